//! Hand-made tree blocks for tests.

use super::{BlockFormat, HEADER_BYTES, RawHeader, RawItem, RawKeyPointer};
use crate::checksum::ChecksumType;
use crate::key::{ItemType, Key, RawKey};
use crate::superblock::{CompatRo, Incompat};
use crate::units::{Generation, Logical, ObjectId, TreeId};
use std::sync::Arc;
use uuid::Uuid;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

pub(crate) const NODE_BYTES: usize = 16384;
pub(crate) const FSID: [u8; 16] = [0x11; 16];
pub(crate) const LOGICAL: Logical = Logical::new(1 << 20);

/// Returns the format of a volume at generation 100, with nodes of 16 KiB and sectors of 4 KiB.
pub(crate) fn format() -> BlockFormat {
    BlockFormat {
        node_bytes: 16384,
        sector_bytes: 4096,
        checksum_type: ChecksumType::Crc32c,
        fsid: Uuid::from_bytes(FSID),
        seed_fsids: Arc::default(),
        former_checksum_type: None,
        changes_checksums: false,
        chunk_tree_uuid: None,
        generation: Generation::new(100).into(),
        incompat: Incompat::SKINNY_METADATA | Incompat::NO_HOLES,
        compat_ro: CompatRo::empty(),
    }
}

pub(crate) fn key(objectid: u64, item_type: ItemType, offset: u64) -> Key {
    Key::new(ObjectId::new(objectid), item_type, offset)
}

pub(crate) fn header(owner: TreeId, level: u8, count: usize) -> RawHeader {
    RawHeader {
        csum: [0; 32],
        fsid: FSID,
        bytenr: U64::new(LOGICAL.get()),
        flags: [1, 0, 0, 0, 0, 0, 0],
        backref_revision: 1,
        chunk_tree_uuid: [0x22; 16],
        generation: U64::new(100),
        owner: U64::new(owner.get()),
        nritems: small(count),
        level,
    }
}

/// Recomputes the block's checksum.
pub(crate) fn seal(block: &mut [u8]) {
    let checksum = ChecksumType::Crc32c.compute(&block[32..]);
    block[..4].copy_from_slice(checksum.as_bytes());
}

/// Returns a leaf with these items in the correct layout.
pub(crate) fn leaf(owner: TreeId, items: &[(Key, Vec<u8>)]) -> Vec<u8> {
    let mut block = vec![0; NODE_BYTES];
    block[..HEADER_BYTES].copy_from_slice(header(owner, 0, items.len()).as_bytes());
    let mut end = NODE_BYTES;
    for (slot, (key, data)) in items.iter().enumerate() {
        let start = end - data.len();
        block[start..end].copy_from_slice(data);
        let head = RawItem {
            key: RawKey::from(*key),
            offset: small(start - HEADER_BYTES),
            size: small(data.len()),
        };
        let at = HEADER_BYTES + slot * size_of::<RawItem>();
        block[at..at + size_of::<RawItem>()].copy_from_slice(head.as_bytes());
        end = start;
    }
    seal(&mut block);
    block
}

pub(crate) fn node(pointers: &[(Key, u64, u64)]) -> Vec<u8> {
    let mut block = vec![0; NODE_BYTES];
    block[..HEADER_BYTES].copy_from_slice(header(TreeId::FS, 1, pointers.len()).as_bytes());
    for (slot, (key, logical, generation)) in pointers.iter().enumerate() {
        let pointer = RawKeyPointer {
            key: RawKey::from(*key),
            blockptr: U64::new(*logical),
            generation: U64::new(*generation),
        };
        let at = HEADER_BYTES + slot * size_of::<RawKeyPointer>();
        block[at..at + size_of::<RawKeyPointer>()].copy_from_slice(pointer.as_bytes());
    }
    seal(&mut block);
    block
}

pub(crate) fn small(number: usize) -> U32 {
    U32::new(u32::try_from(number).unwrap())
}
