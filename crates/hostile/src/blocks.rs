//! Targets for superblocks and tree blocks: arbitrary bytes behind a correct checksum, and
//! assembled blocks in which only the items can be wrong.

use crate::input::Input;
use crate::{Depth, items};
use buttress_format::{
    BlockFormat, ChecksumType, CompatRo, Expectation, Generation, Incompat, ItemType, Key, Logical, ObjectId,
    SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, TreeBlock, TreeId, Uuid,
};
use bytes::Bytes;
use std::hint::black_box;
use std::sync::Arc;

/// The size of all tree blocks in this module.
const NODE_BYTES: usize = 4096;
/// The length of a block's header.
const HEADER_BYTES: usize = 101;
/// The address of all tree blocks in this module.
const LOGICAL: u64 = 1 << 20;
/// The uuid of all tree blocks in this module.
const FSID: [u8; 16] = [0x42; 16];
/// The generation of the fuzzed volume.
const GENERATION: u64 = 100;

/// The target of a superblock with correct magic, address and checksum.
pub fn superblock(bytes: &[u8]) -> Depth {
    let mut block = padded(bytes, SUPERBLOCK_BYTES);
    mend_superblock(&mut block, SUPERBLOCK_OFFSETS[0].get());
    if let Ok(raw) = Superblock::raw(&block) {
        black_box(Superblock::inspect_system_chunks(raw));
    }
    match Superblock::check(&block, SUPERBLOCK_OFFSETS[0]) {
        Ok(superblock) => {
            black_box(format!("{superblock:?}"));
            black_box(superblock.block_format());
            Depth::Passed
        }
        Err(error) => {
            black_box(error.to_string());
            Depth::Refused
        }
    }
}

/// Sets the correct magic, address and checksum of a superblock. An unknown checksum type stays in
/// the superblock.
pub fn mend_superblock(block: &mut [u8], physical: u64) {
    block[48..56].copy_from_slice(&physical.to_le_bytes());
    block[64..72].copy_from_slice(b"_BHRfS_M");
    let checksum_type = ChecksumType::from_raw(u16::from_le_bytes([block[196], block[197]]));
    mend_checksum(block, checksum_type.unwrap_or(ChecksumType::Crc32c));
}

/// Computes the checksum at the beginning of a superblock or tree block.
pub fn mend_checksum(block: &mut [u8], checksum_type: ChecksumType) {
    let checksum = checksum_type.compute(&block[32..]);
    block[..32].fill(0);
    block[..checksum.as_bytes().len()].copy_from_slice(checksum.as_bytes());
}

/// The target of a tree block with correct checksum, uuid and address, and a possible generation.
/// All other bytes come from the input.
pub fn tree_block(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let format = format(&mut input);
    let mut block = padded(input.rest(), NODE_BYTES);
    block[32..48].copy_from_slice(&FSID);
    block[48..56].copy_from_slice(&LOGICAL.to_le_bytes());
    block[56] |= 1;
    let generation = GENERATION - u64::from(block[80] % 8);
    block[80..88].copy_from_slice(&generation.to_le_bytes());
    check(block, &format)
}

/// The target of a leaf whose heads and data match. The items of the leaf come from the input.
pub fn leaf(bytes: &[u8]) -> Depth {
    const OWNERS: [TreeId; 8] = [
        TreeId::FS,
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::CHUNK,
        TreeId::DEVICE,
        TreeId::CHECKSUM,
        TreeId::FREE_SPACE,
        TreeId::TREE_LOG,
    ];
    let mut input = Input::new(bytes);
    let format = format(&mut input);
    let owner = input.choose(&OWNERS);
    let mut room = NODE_BYTES - HEADER_BYTES;
    let mut entries: Vec<(Key, Vec<u8>)> = Vec::new();
    while !input.is_empty() {
        let how = input.byte();
        let item_type = match how {
            0..=0x7f => items::TYPES[usize::from(how) % items::TYPES.len()],
            _ => ItemType(input.byte()),
        };
        let objectid = if how & 0x40 == 0 {
            256 + u64::from(input.byte())
        } else {
            input.u64()
        };
        let offset = if how & 0x20 == 0 {
            u64::from(input.byte()) << 12
        } else {
            input.u64()
        };
        let length = usize::from(input.u16() % 2048);
        let mut data = input.bytes(length).to_vec();
        let mut key = Key::new(ObjectId::new(objectid), item_type, offset);
        if how & 0x10 == 0 {
            items::mend(&mut key, &mut data);
        }
        if room < 25 + data.len() {
            break;
        }
        room -= 25 + data.len();
        entries.push((key, data));
    }
    entries.sort_by_key(|(key, _)| *key);
    entries.dedup_by_key(|(key, _)| *key);
    let mut block = header(owner, 0, entries.len());
    let mut end = NODE_BYTES;
    for (slot, (key, data)) in entries.iter().enumerate() {
        end -= data.len();
        block[end..end + data.len()].copy_from_slice(data);
        let head = &mut block[HEADER_BYTES + slot * 25..][..25];
        put_key(head, key);
        let offset = u32::try_from(end - HEADER_BYTES).unwrap_or(0);
        head[17..21].copy_from_slice(&offset.to_le_bytes());
        head[21..25].copy_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_le_bytes());
    }
    check(block, &format)
}

/// The target of a node with ascending keys. The pointers of the node come from the input.
pub fn node(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let format = format(&mut input);
    let level = 1 + input.byte() % 8;
    let mut pointers = Vec::new();
    while !input.is_empty() && pointers.len() < (NODE_BYTES - HEADER_BYTES) / 33 {
        let key = Key::new(
            ObjectId::new(input.u64()),
            ItemType(input.byte()),
            u64::from(input.byte()),
        );
        let sectors = input.u16();
        let rough = u64::from(input.byte() / 128);
        let generation = u64::from(input.byte() & 0x7f);
        pointers.push((key, (u64::from(sectors) << 12) + rough, generation));
    }
    pointers.sort_by_key(|(key, ..)| *key);
    pointers.dedup_by_key(|(key, ..)| *key);
    let mut block = header(TreeId::FS, level, pointers.len());
    for (slot, (key, logical, generation)) in pointers.iter().enumerate() {
        let head = &mut block[HEADER_BYTES + slot * 33..][..33];
        put_key(head, key);
        head[17..25].copy_from_slice(&logical.to_le_bytes());
        head[25..33].copy_from_slice(&generation.to_le_bytes());
    }
    check(block, &format)
}

fn put_key(head: &mut [u8], key: &Key) {
    head[..8].copy_from_slice(&key.objectid.get().to_le_bytes());
    head[8] = key.item_type.0;
    head[9..17].copy_from_slice(&key.offset.to_le_bytes());
}

fn header(owner: TreeId, level: u8, count: usize) -> Vec<u8> {
    let mut block = vec![0; NODE_BYTES];
    block[32..48].copy_from_slice(&FSID);
    block[48..56].copy_from_slice(&LOGICAL.to_le_bytes());
    block[56] = 1;
    block[63] = 1;
    block[80..88].copy_from_slice(&GENERATION.to_le_bytes());
    block[88..96].copy_from_slice(&owner.get().to_le_bytes());
    block[96..100].copy_from_slice(&u32::try_from(count).unwrap_or(0).to_le_bytes());
    block[100] = level;
    block
}

fn format(input: &mut Input<'_>) -> BlockFormat {
    let choices = input.byte();
    let mut incompat = Incompat::MIXED_BACKREF | Incompat::EXTENDED_IREF;
    for (bit, feature) in [
        (4, Incompat::SKINNY_METADATA),
        (8, Incompat::NO_HOLES),
        (16, Incompat::RAID_STRIPE_TREE),
        (32, Incompat::SIMPLE_QUOTA),
    ] {
        if choices & bit != 0 {
            incompat |= feature;
        }
    }
    BlockFormat {
        node_bytes: NODE_BYTES as u32,
        sector_bytes: 4096,
        checksum_type: ChecksumType::ALL[usize::from(choices & 3)],
        fsid: Uuid::from_bytes(FSID),
        seed_fsids: Arc::default(),
        former_checksum_type: None,
        changes_checksums: false,
        chunk_tree_uuid: None,
        generation: Generation::new(GENERATION).into(),
        incompat,
        compat_ro: CompatRo::from_bits_retain(0),
    }
}

fn check(mut block: Vec<u8>, format: &BlockFormat) -> Depth {
    mend_checksum(&mut block, format.checksum_type);
    let bytes = Bytes::from(block);
    let expectation = Expectation::at(Logical::new(LOGICAL));
    let damaged = TreeBlock::inspect(bytes.clone(), format, &expectation);
    visit(&damaged.block, format);
    match TreeBlock::check(bytes, format, &expectation) {
        Ok(block) => {
            assert!(
                damaged.is_sound(),
                "one check passes, the other finds {:?}",
                damaged.failures
            );
            for slot in 0..block.item_count() {
                assert!(block.key(slot).is_some_and(|key| block.search(&key) == Ok(slot)));
                assert_eq!(block.item(slot).is_some(), block.is_leaf());
            }
            visit(&block, format);
            Depth::Passed
        }
        Err(error) => {
            assert!(
                !damaged.is_sound(),
                "one check fails with {error}, the other finds nothing"
            );
            black_box(error.to_string());
            Depth::Refused
        }
    }
}

fn visit(block: &TreeBlock, format: &BlockFormat) {
    black_box((block.free_space(), block.search(&Key::MAX).is_ok()));
    for item in block.items() {
        black_box(items::parse(&item.key, item.data, format));
    }
    black_box(block.pointers().count());
}

fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut padded = bytes[..bytes.len().min(length)].to_vec();
    padded.resize(length, 0);
    padded
}
