//! The raw structs of tree blocks, and the header as a value.

use crate::checksum::{CHECKSUM_FIELD_BYTES, Checksum, ChecksumType};
use crate::key::RawKey;
use crate::units::{Generation, Logical, TreeId};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of the header of a tree block.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();

/// The on-disk layout of the header of a tree block. The checksum covers all bytes of the block
/// after the checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are those of Header, which documents them")]
pub struct RawHeader {
    pub csum: [u8; CHECKSUM_FIELD_BYTES],
    pub fsid: [u8; 16],
    pub bytenr: U64,
    pub flags: [u8; 7],
    pub backref_revision: u8,
    pub chunk_tree_uuid: [u8; 16],
    pub generation: U64,
    pub owner: U64,
    pub nritems: U32,
    pub level: u8,
}

/// The on-disk layout of an item head in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawItem {
    /// The item's key.
    pub key: RawKey,
    /// The offset of the item's data, in bytes from the end of the block's header.
    pub offset: U32,
    /// The length of the item's data in bytes.
    pub size: U32,
}

/// The on-disk layout of a key pointer in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawKeyPointer {
    /// The first key of the child block.
    pub key: RawKey,
    /// The address of the child block.
    pub blockptr: U64,
    /// The generation of the child block.
    pub generation: U64,
}

const _: () = assert!(size_of::<RawHeader>() == 101);
const _: () = assert!(size_of::<RawItem>() == 25);
const _: () = assert!(size_of::<RawKeyPointer>() == 33);

bitflags::bitflags! {
    /// The flags of a tree block. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct HeaderFlags: u64 {
        /// The block has been written to disk. Every block that can be read has this flag.
        const WRITTEN = 1 << 0;
        /// The block belongs to a relocation tree.
        const RELOC = 1 << 1;
        const _ = !0;
    }
}

/// The header of a tree block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The stored checksum.
    pub checksum: Checksum,
    /// The uuid of the block's volume.
    pub fsid: Uuid,
    /// The block's own address.
    pub logical: Logical,
    /// The flags, in 56 bits.
    pub flags: HeaderFlags,
    /// 1 for mixed back references, which all current volumes have. 0 for the first format.
    pub backref_revision: u8,
    /// The uuid of the chunk tree.
    pub chunk_tree_uuid: Uuid,
    /// The transaction that wrote the block.
    pub generation: Generation,
    /// The tree that the block was created for.
    pub owner: TreeId,
    /// The number of items or pointers in the block.
    pub item_count: u32,
    /// The height above the leaves: 0 for a leaf.
    pub level: u8,
}

impl Header {
    /// Returns the header of a block that is too short to hold one.
    pub(super) const fn absent(logical: Logical) -> Self {
        Self {
            checksum: Checksum::EMPTY,
            fsid: Uuid::nil(),
            logical,
            flags: HeaderFlags::empty(),
            backref_revision: 0,
            chunk_tree_uuid: Uuid::nil(),
            generation: Generation::MIN,
            owner: TreeId::MIN,
            item_count: 0,
            level: 0,
        }
    }

    /// Converts the raw fields without checks.
    #[must_use]
    pub fn from_raw(raw: &RawHeader, checksum_type: ChecksumType) -> Self {
        let [f0, f1, f2, f3, f4, f5, f6] = raw.flags;
        Self {
            checksum: Checksum::of(raw.csum.get(..checksum_type.size_bytes()).unwrap_or(&raw.csum)),
            fsid: Uuid::from_bytes(raw.fsid),
            logical: Logical::new(raw.bytenr.get()),
            flags: HeaderFlags::from_bits_retain(u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, 0])),
            backref_revision: raw.backref_revision,
            chunk_tree_uuid: Uuid::from_bytes(raw.chunk_tree_uuid),
            generation: Generation::new(raw.generation.get()),
            owner: TreeId::new(raw.owner.get()),
            item_count: raw.nritems.get(),
            level: raw.level,
        }
    }
}
