//! Tests of the checks that need a whole leaf: items against earlier items, and against features.

use super::*;
use crate::chunk::{ChunkProblem, RawChunk, RawStripe};
use crate::device_item::RawDeviceExtent;
use crate::item_error::{FileItemProblem, ItemProblem};
use crate::key::ItemType;
use crate::node::Expectation;
use crate::node::testing::{LOGICAL, format, key, leaf};
use bytes::Bytes;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

type Items = Vec<(Key, Vec<u8>)>;

const SECTOR: u64 = 4096;

/// Returns the slot and the fault that the checker finds in a leaf of these items in tree `owner`.
fn fault(owner: TreeId, items: &Items) -> Option<(usize, ItemProblem)> {
    let block = Bytes::from(leaf(owner, items));
    match TreeBlock::check(block, &format(), &Expectation::at(LOGICAL)) {
        Ok(_) => None,
        Err(error) => match error.problem {
            BlockProblem::Item { slot, error } => Some((slot, error.problem)),
            other => panic!("{other}"),
        },
    }
}

fn overlap(slot: usize, start: u64, previous_end: u64) -> Option<(usize, ItemProblem)> {
    Some((slot, ItemProblem::OverlapsPrevious { start, previous_end }))
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Returns a file extent of `num_bytes` without a disk address: a hole.
fn hole(num_bytes: u64) -> Vec<u8> {
    let mut data = numbers(&[1, num_bytes]);
    data.extend_from_slice(&[0, 0, 0, 0, 1]);
    data.extend_from_slice(&numbers(&[0, 0, 0, num_bytes]));
    data
}

fn data_extent(flags: u64) -> Vec<u8> {
    numbers(&[1, 1, flags])
}

fn chunk(chunk_type: u64) -> Vec<u8> {
    let head = RawChunk {
        length: U64::new(1 << 20),
        owner: U64::new(2),
        stripe_len: U64::new(65536),
        chunk_type: U64::new(chunk_type),
        io_align: U32::new(65536),
        io_width: U32::new(65536),
        sector_size: U32::new(4096),
        num_stripes: U16::new(1),
        sub_stripes: U16::new(1),
    };
    let stripe = RawStripe {
        devid: U64::new(1),
        offset: U64::new(1 << 20),
        dev_uuid: [0; 16],
    };
    [head.as_bytes(), stripe.as_bytes()].concat()
}

#[test]
fn file_extents_do_not_overlap_within_an_inode() {
    let extent = |inode: u64, offset: u64| (key(inode, ItemType::EXTENT_DATA, offset), hole(2 * SECTOR));
    let tree = TreeId::TREE_LOG;
    assert_eq!(
        fault(
            tree,
            &vec![extent(257, 0), extent(257, 2 * SECTOR), extent(258, 0)]
        ),
        None
    );
    assert_eq!(
        fault(tree, &vec![extent(257, 0), extent(257, SECTOR)]),
        overlap(1, SECTOR, 2 * SECTOR)
    );
}

#[test]
fn an_inode_item_leads_the_items_of_an_inode_in_subvolumes() {
    let items = vec![
        (key(257, ItemType::EXTENT_DATA, 0), hole(SECTOR)),
        (key(258, ItemType::EXTENT_DATA, 0), hole(SECTOR)),
    ];
    let missing = FileItemProblem::InodeItemMissing {
        previous_objectid: 257,
    };
    assert_eq!(fault(TreeId::FS, &items), Some((1, missing.clone().into())));
    assert_eq!(fault(TreeId::new(300), &items), Some((1, missing.into())));
    assert_eq!(fault(TreeId::TREE_LOG, &items), None);
}

#[test]
fn checksums_do_not_overlap() {
    let item = |offset: u64, count: usize| {
        (
            Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, offset),
            vec![0; 4 * count],
        )
    };
    assert_eq!(
        fault(TreeId::CHECKSUM, &vec![item(0, 2), item(2 * SECTOR, 1)]),
        None
    );
    assert_eq!(
        fault(TreeId::CHECKSUM, &vec![item(0, 2), item(SECTOR, 1)]),
        overlap(1, SECTOR, 2 * SECTOR)
    );
}

#[test]
fn extents_do_not_overlap_across_references_and_block_groups() {
    let extent = |start: u64| (key(start, ItemType::EXTENT_ITEM, 2 * SECTOR), data_extent(1));
    let reference = (key(0, ItemType::SHARED_DATA_REF, SECTOR), vec![1, 0, 0, 0]);
    let group = (key(0, ItemType::BLOCK_GROUP_ITEM, 1 << 20), numbers(&[0, 256, 1]));
    let sound = vec![extent(0), reference.clone(), group.clone(), extent(2 * SECTOR)];
    assert_eq!(fault(TreeId::EXTENT, &sound), None);
    let bad = vec![extent(0), reference, group, extent(SECTOR)];
    assert_eq!(fault(TreeId::EXTENT, &bad), overlap(3, SECTOR, 2 * SECTOR));
    let block = (key(0, ItemType::METADATA_ITEM, 0), data_extent(2));
    assert_eq!(
        fault(TreeId::EXTENT, &vec![block, extent(SECTOR)]),
        overlap(1, SECTOR, 16384)
    );
}

#[test]
fn block_groups_chunks_and_device_extents_do_not_overlap() {
    let group = |start: u64| {
        (
            key(start, ItemType::BLOCK_GROUP_ITEM, 1 << 20),
            numbers(&[0, 256, 1]),
        )
    };
    assert_eq!(fault(TreeId::BLOCK_GROUP, &vec![group(0), group(1 << 20)]), None);
    assert_eq!(
        fault(TreeId::BLOCK_GROUP, &vec![group(0), group(SECTOR)]),
        overlap(1, SECTOR, 1 << 20)
    );

    let chunk_item = |start: u64| (key(256, ItemType::CHUNK_ITEM, start), chunk(1));
    assert_eq!(
        fault(TreeId::CHUNK, &vec![chunk_item(0), chunk_item(1 << 20)]),
        None
    );
    assert_eq!(
        fault(TreeId::CHUNK, &vec![chunk_item(0), chunk_item(SECTOR)]),
        overlap(1, SECTOR, 1 << 20)
    );

    let device_extent = |device: u64, start: u64| {
        let raw = RawDeviceExtent {
            chunk_tree: U64::new(3),
            chunk_objectid: U64::new(256),
            chunk_offset: U64::new(0),
            length: U64::new(1 << 20),
            chunk_tree_uuid: [0; 16],
        };
        (key(device, ItemType::DEV_EXTENT, start), raw.as_bytes().to_vec())
    };
    let sound = vec![
        device_extent(1, 0),
        device_extent(1, 1 << 20),
        device_extent(2, 0),
    ];
    assert_eq!(fault(TreeId::DEVICE, &sound), None);
    assert_eq!(
        fault(
            TreeId::DEVICE,
            &vec![device_extent(1, 0), device_extent(1, SECTOR)]
        ),
        overlap(1, SECTOR, 1 << 20)
    );
}

#[test]
fn free_ranges_do_not_overlap() {
    let extent = (key(0, ItemType::FREE_SPACE_EXTENT, 2 * SECTOR), Vec::new());
    let bitmap = |start: u64| (key(start, ItemType::FREE_SPACE_BITMAP, SECTOR), vec![1]);
    assert_eq!(
        fault(TreeId::FREE_SPACE, &vec![extent.clone(), bitmap(2 * SECTOR)]),
        None
    );
    assert_eq!(
        fault(TreeId::FREE_SPACE, &vec![extent, bitmap(SECTOR)]),
        overlap(1, SECTOR, 2 * SECTOR)
    );
}

#[test]
fn features_are_needed() {
    let stripes = vec![(key(0, ItemType::RAID_STRIPE, SECTOR), numbers(&[1, 65536]))];
    let missing = ItemProblem::FeatureMissing {
        feature: "RAID_STRIPE_TREE",
    };
    assert_eq!(fault(TreeId::RAID_STRIPE, &stripes), Some((0, missing)));
    let mixed = vec![(key(256, ItemType::CHUNK_ITEM, 0), chunk(5))];
    let problem = ChunkProblem::MixedWithoutFeature { flags: 5 };
    assert_eq!(fault(TreeId::CHUNK, &mixed), Some((0, problem.into())));

    let generous = BlockFormat {
        incompat: Incompat::RAID_STRIPE_TREE | Incompat::MIXED_GROUPS,
        ..format()
    };
    for (owner, items) in [(TreeId::RAID_STRIPE, stripes), (TreeId::CHUNK, mixed)] {
        let block = Bytes::from(leaf(owner, &items));
        assert!(TreeBlock::check(block, &generous, &Expectation::at(LOGICAL)).is_ok());
    }
}

#[test]
fn generations_end_with_the_volumes_own() {
    let limit = format().generation_limit().get();
    let extent = |generation: u64| {
        vec![(
            key(0, ItemType::EXTENT_ITEM, SECTOR),
            numbers(&[1, generation, 1]),
        )]
    };
    assert_eq!(fault(TreeId::EXTENT, &extent(limit)), None);
    assert_eq!(
        fault(TreeId::EXTENT, &extent(limit + 1)),
        Some((
            0,
            ItemProblem::GenerationInFuture {
                field: "extent generation",
                generation: limit + 1,
                limit
            }
        ))
    );
}

/// Every item type must check at least the size of its data. No item type has a size of three
/// bytes, so each must fail its check.
#[test]
fn every_item_type_checks_its_size() {
    // These item types may hold any bytes, or stand for several kinds of items.
    let free = [
        ItemType::STRING_ITEM,
        ItemType::TEMPORARY_ITEM,
        ItemType::PERSISTENT_ITEM,
        ItemType::EXTENT_OWNER_REF,
        ItemType::VERITY_DESC_ITEM,
        ItemType::VERITY_MERKLE_ITEM,
    ];
    for item_type in ItemType::ALL.iter().filter(|item_type| !free.contains(item_type)) {
        let items = vec![(key(1 << 20, *item_type, SECTOR), vec![1, 2, 3])];
        assert!(fault(TreeId::TREE_LOG, &items).is_some(), "{item_type}");
    }
    let state = [
        Key::new(ObjectId::BALANCE, ItemType::TEMPORARY_ITEM, 0),
        Key::new(ObjectId::DEVICE_STATISTICS, ItemType::PERSISTENT_ITEM, 1),
        Key::new(ObjectId::FREE_SPACE, ItemType(0), 0),
    ];
    for key in state {
        assert!(
            fault(TreeId::ROOT, &vec![(key, vec![1, 2, 3])]).is_some(),
            "{key}"
        );
    }
}

#[test]
fn file_trees_are_distinguished_from_other_trees() {
    for tree in [5, 256, (1 << 48) - 1] {
        assert!(is_file_tree(TreeId::new(tree)), "{tree}");
    }
    for tree in [
        0,
        1,
        4,
        6,
        255,
        1 << 48,
        TreeId::DATA_RELOCATION.get(),
        TreeId::TREE_LOG.get(),
    ] {
        assert!(!is_file_tree(TreeId::new(tree)), "{tree}");
    }
}
