//! Tests of packing: shapes, and trees at addresses in any order.

use super::*;
use crate::shape::Shape;
use buttress_format::{CompatRo, Expectation, Incompat, ItemType, ObjectId};
use std::collections::BTreeMap;

const NODE_BYTES: u32 = 4096;

const GENERATION: Generation = Generation::new(8);

/// Returns the rules of tree blocks for the checks of a reader.
fn volume_format() -> buttress_format::BlockFormat {
    buttress_format::BlockFormat {
        node_bytes: NODE_BYTES,
        sector_bytes: 4096,
        checksum_type: ChecksumType::Crc32c,
        former_checksum_type: None,
        changes_checksums: false,
        fsid: Uuid::nil(),
        seed_fsids: [].into(),
        chunk_tree_uuid: Some(Uuid::nil()),
        generation: GENERATION.into(),
        incompat: Incompat::empty(),
        compat_ro: CompatRo::empty(),
    }
}

fn format() -> BlockFormat {
    BlockFormat {
        fsid: Uuid::nil(),
        chunk_tree_uuid: Uuid::nil(),
        node_bytes: NODE_BYTES,
        checksum: ChecksumType::Crc32c,
        generation: GENERATION,
    }
}

/// Blocks by address, at addresses from a list.
struct Kept {
    free: Vec<u64>,
    blocks: BTreeMap<u64, TreeBlock>,
    notes: Vec<BlockNote>,
}

impl Kept {
    fn new(free: Vec<u64>) -> Self {
        Self {
            free,
            blocks: BTreeMap::new(),
            notes: Vec::new(),
        }
    }
}

impl Places for Kept {
    fn next(&mut self) -> Result<Logical> {
        let next = self
            .free
            .pop()
            .ok_or_else(|| Error::Caller("no free address".into()))?;
        Ok(Logical::new(next))
    }
}

impl BlockSink for Kept {
    fn put(&mut self, note: &BlockNote, block: &TreeBlock) -> Result<()> {
        self.notes.push(*note);
        let logical = block.header().logical.get();
        assert!(
            self.blocks.insert(logical, block.clone()).is_none(),
            "{logical} is used twice"
        );
        Ok(())
    }
}

impl Kept {
    /// Returns the items below a block, in key order. Each block must match its parent's pointer.
    fn items(&self, logical: Logical, level: u8, items: &mut Vec<(Key, Vec<u8>)>) {
        let block = &self.blocks[&logical.get()];
        let checked = TreeBlock::inspect(block.bytes().clone(), &volume_format(), &Expectation::at(logical));
        let failures = checked.failures.iter();
        let failures: Vec<_> = failures.map(ToString::to_string).collect();
        assert_eq!(failures, [""; 0]);
        assert_eq!(block.header().level, level);
        items.extend(block.items().map(|item| (item.key, item.data.to_vec())));
        for pointer in block.pointers() {
            let child = &self.blocks[&pointer.logical.get()];
            let first = child.key(0).unwrap();
            assert_eq!((pointer.key, pointer.generation), (first, GENERATION));
            self.items(pointer.logical, level - 1, items);
        }
    }
}

/// Returns items of this number, each with data of 1000 bytes.
fn items(count: u64) -> impl Iterator<Item = (Key, Vec<u8>)> {
    (0..count).map(|number| {
        // No check knows the content of this item type.
        let key = Key::new(ObjectId::new(256 + number), ItemType(7), number);
        let mut data = vec![7; 1000];
        data[..8].copy_from_slice(&number.to_le_bytes());
        (key, data)
    })
}

/// The numbers of items at which trees of one, two and three levels begin. A node of 4 KiB has 121
/// pointers, and a leaf holds three items of 1000 bytes.
const COUNTS: [u64; 10] = [0, 1, 3, 4, 360, 363, 364, 366, 121 * 121 * 3, 121 * 121 * 3 + 1];

/// The counted blocks equal the packed blocks, for trees of one, two and three levels.
#[test]
fn shapes_are_those_of_packed_trees() {
    for count in COUNTS {
        let mut kept = Kept::new((1..20_000).map(|number| number * u64::from(NODE_BYTES)).collect());
        let mut packer = Packer::new(TreeId::FS, format());
        let mut shape = Shape::new(&format());
        for (key, data) in items(count) {
            packer.push(&mut kept, &key, &data).unwrap();
            shape.push(&key, data.len());
        }
        let (root, _) = packer.finish(&mut kept).unwrap();
        let notes = kept.notes.iter();
        let levels: Vec<_> = notes.map(|note| (note.level, note.first_key)).collect();
        assert!(shape.finish() == levels, "{count} items");
        assert_eq!(root.blocks, levels.len() as u64);
        assert_eq!(root.level, levels.last().unwrap().0);
    }
}

/// Addresses in any order change no item, and each address is used once.
#[test]
fn trees_at_scattered_addresses_hold_the_items() {
    let mut free: Vec<u64> = (1..700).map(|number| number * u64::from(NODE_BYTES)).collect();
    let mut state = 5_u64;
    for place in (1..free.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        free.swap(place, usize::try_from(state >> 33).unwrap() % (place + 1));
    }
    for count in [1, 3, 4, 363, 364, 2000] {
        let mut kept = Kept::new(free.clone());
        let mut packer = Packer::new(TreeId::FS, format());
        for (key, data) in items(count) {
            packer.push(&mut kept, &key, &data).unwrap();
        }
        let (root, top) = packer.finish(&mut kept).unwrap();
        let mut found = Vec::new();
        kept.items(root.logical, root.level, &mut found);
        assert!(found == items(count).collect::<Vec<_>>(), "{count} items");
        let copy = top
            .copy_for(&mut kept, &format(), &root, TreeId::new(300))
            .unwrap();
        let mut found = Vec::new();
        kept.items(copy.logical, copy.level, &mut found);
        assert!(
            found == items(count).collect::<Vec<_>>(),
            "a copy of {count} items"
        );
        assert_eq!(kept.blocks[&copy.logical.get()].header().owner, TreeId::new(300));
    }
}

/// A tree needs no more addresses than its shape counts, and one less is an error.
#[test]
fn missing_address_ends_packing() {
    let shape = Shape::of_items(&format(), &items(364).collect::<Vec<_>>());
    for missing in [0, 1] {
        let addresses = (1..=shape.len() - missing).map(|number| number as u64 * u64::from(NODE_BYTES));
        let mut kept = Kept::new(addresses.collect());
        let mut packer = Packer::new(TreeId::FS, format());
        let pushed = items(364).try_for_each(|(key, data)| packer.push(&mut kept, &key, &data));
        let packed = pushed.and_then(|()| packer.finish(&mut kept));
        assert_eq!(packed.map_err(|error| error.to_string()).is_ok(), missing == 0);
    }
}
