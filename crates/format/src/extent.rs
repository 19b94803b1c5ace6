//! Extents: ranges of logical addresses in use, and their back references.
//!
//! An `EXTENT_ITEM` describes data, or a tree block on volumes without skinny metadata. A
//! `METADATA_ITEM` describes a tree block. Both item types count the references to an extent and
//! hold the first references inline. References that do not fit inline are items of their own with
//! the same object id ([`crate::extent::keyed`]).
//!
//! ```text
//! references 8 | generation 8 | flags 8 | tree block info 18, EXTENT_ITEM of a tree block only |
//! inline references: type 1, then
//!     TREE_BLOCK_REF, SHARED_BLOCK_REF, EXTENT_OWNER_REF: root or parent 8
//!     EXTENT_DATA_REF: root 8, inode 8, offset 8, count 4
//!     SHARED_DATA_REF: parent 8, count 4
//! ```
//! Inline references are ordered by type. Inline references of one type are ordered from the
//! greatest [`InlineReference::sort_value`] to the least.
//!
//! Source: on-disk format documentation, section "Extent item".

mod edit;
mod error;
pub mod keyed;
mod reference;

pub use error::ExtentProblem;
pub use reference::{ExtentDataReference, InlineReference, InlineReferences};

use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key, RawKey};
use crate::node::BlockFormat;
use crate::raw;
use crate::superblock::{HIGHEST_LEVEL, Incompat};
use crate::units::{ByteCount, Generation, Logical};
use smallvec::SmallVec;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The on-disk layout of the fixed head of an extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawExtentItem {
    /// The number of references.
    pub refs: U64,
    /// The transaction that allocated the extent.
    pub generation: U64,
    /// [`ExtentFlags`].
    pub flags: U64,
}

/// The on-disk layout of the tree block info that an `EXTENT_ITEM` of a tree block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawTreeBlockInfo {
    /// The first key of the tree block that the extent holds.
    pub key: RawKey,
    /// The level of the block.
    pub level: u8,
}

const _: () = assert!(size_of::<RawExtentItem>() == 24);
const _: () = assert!(size_of::<RawTreeBlockInfo>() == 18);

bitflags::bitflags! {
    /// The type of an extent. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ExtentFlags: u64 {
        /// File content.
        const DATA = 1 << 0;
        /// A tree block.
        const TREE_BLOCK = 1 << 1;
        /// The children of the tree block are referred to by this block's address, not by its tree.
        const FULL_BACKREF = 1 << 8;
        const _ = !0;
    }
}

/// The first key and level of a tree block, stored in its `EXTENT_ITEM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeBlockInfo {
    /// The first key of the block when it was allocated.
    pub first_key: Key,
    /// The level of the block.
    pub level: u8,
}

/// An extent in use: the logical range `[start, start + length)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentItem {
    /// The extent's first byte, from the item's key.
    pub start: Logical,
    /// The length of the extent. The extent's length comes from the key for data, and is the node
    /// size for a tree block.
    pub length: ByteCount,
    /// The number of references, inline and keyed together.
    pub references: u64,
    /// The transaction that allocated the extent.
    pub generation: Generation,
    /// The type of the extent: data or tree block.
    pub flags: ExtentFlags,
    /// The tree block info, present only in the `EXTENT_ITEM` of a tree block.
    pub tree_block_info: Option<TreeBlockInfo>,
    /// The level of a tree block, from its info or its key; `None` for data.
    pub level: Option<u8>,
    /// The references that the item itself holds.
    pub inline_references: SmallVec<[InlineReference; 2]>,
}

impl ExtentItem {
    /// Parses an `EXTENT_ITEM` or `METADATA_ITEM`.
    ///
    /// # Errors
    /// Fails if the key is not aligned, the item is too small, or a generation lies in the future.
    /// Otherwise fails with the first [`ExtentProblem`] found.
    pub fn parse(key: &Key, data: &[u8], format: &BlockFormat) -> Result<Self, ItemError> {
        let is_metadata_item = key.item_type == ItemType::METADATA_ITEM;
        check_key(key, is_metadata_item, format)?;
        let (head, rest) = raw::prefix::<RawExtentItem>(key, data)?;
        let flags = ExtentFlags::from_bits_retain(head.flags.get());
        check_head(key, head, flags, is_metadata_item, format)?;
        let is_tree_block = flags.contains(ExtentFlags::TREE_BLOCK);
        let (tree_block_info, rest) = if is_tree_block && !is_metadata_item {
            let (info, rest) = parse_tree_block_info(key, rest)?;
            (Some(info), rest)
        } else {
            (None, rest)
        };
        let length_bytes = if is_tree_block {
            u64::from(format.node_bytes)
        } else {
            key.offset
        };
        raw::range_end(key, key.objectid.get(), length_bytes)?;
        let level = match tree_block_info {
            Some(info) => Some(info.level),
            None if is_metadata_item => u8::try_from(key.offset).ok(),
            None => None,
        };
        let references = head.refs.get();
        Ok(Self {
            start: Logical::new(key.objectid.get()),
            length: ByteCount::new(length_bytes),
            references,
            generation: Generation::new(head.generation.get()),
            flags,
            tree_block_info,
            level,
            inline_references: reference::parse_all(key, rest, flags, references, format.sector_bytes)?,
        })
    }

    /// Returns the number of references that an `EXTENT_ITEM` or `METADATA_ITEM` counts. Parses
    /// nothing else of the item, because some callers read millions of items.
    ///
    /// # Errors
    /// Returns [`ItemProblem::SizeTooSmall`].
    pub fn parse_count(key: &Key, data: &[u8]) -> Result<u64, ItemError> {
        let (head, _) = raw::prefix::<RawExtentItem>(key, data)?;
        Ok(head.refs.get())
    }

    /// Returns true if the extent holds file content, false if it is a tree block.
    #[must_use]
    pub const fn is_data(&self) -> bool {
        self.flags.contains(ExtentFlags::DATA)
    }

    /// The end of the range, exclusive.
    #[must_use]
    pub const fn end(&self) -> Logical {
        self.start.saturating_add(self.length)
    }
}

fn check_key(key: &Key, is_metadata_item: bool, format: &BlockFormat) -> Result<(), ItemError> {
    if is_metadata_item && !format.incompat.contains(Incompat::SKINNY_METADATA) {
        return Err(ItemError::new(
            key,
            ItemProblem::FeatureMissing {
                feature: "SKINNY_METADATA",
            },
        ));
    }
    raw::require_aligned_objectid(key, format.sector_bytes)?;
    if is_metadata_item {
        if key.offset > u64::from(HIGHEST_LEVEL) {
            return Err(ItemError::new(key, ExtentProblem::Level { level: key.offset }));
        }
        return Ok(());
    }
    if key.offset == 0 {
        return Err(ItemError::new(key, ItemProblem::OffsetZero));
    }
    raw::require_aligned_offset(key, format.sector_bytes)
}

fn check_head(
    key: &Key,
    head: &RawExtentItem,
    flags: ExtentFlags,
    is_metadata_item: bool,
    format: &BlockFormat,
) -> Result<(), ItemError> {
    let fail = |problem: ExtentProblem| Err(ItemError::new(key, problem));
    let generation = head.generation.get();
    let limit = format.generation_limit().get();
    if generation > limit {
        let problem = ItemProblem::GenerationInFuture {
            field: "extent generation",
            generation,
            limit,
        };
        return Err(ItemError::new(key, problem));
    }
    let is_data = flags.contains(ExtentFlags::DATA);
    let is_tree_block = flags.contains(ExtentFlags::TREE_BLOCK);
    if is_data == is_tree_block {
        return fail(ExtentProblem::Flags { flags: flags.bits() });
    }
    if is_data && is_metadata_item {
        return fail(ExtentProblem::DataInMetadataItem);
    }
    if is_data && flags.contains(ExtentFlags::FULL_BACKREF) {
        return fail(ExtentProblem::DataWithFullBackref { flags: flags.bits() });
    }
    if is_tree_block && !is_metadata_item && key.offset != u64::from(format.node_bytes) {
        return fail(ExtentProblem::TreeBlockLength {
            length_bytes: key.offset,
            node_bytes: format.node_bytes,
        });
    }
    Ok(())
}

fn parse_tree_block_info<'a>(key: &Key, rest: &'a [u8]) -> Result<(TreeBlockInfo, &'a [u8]), ItemError> {
    let Ok((info, after)) = RawTreeBlockInfo::ref_from_prefix(rest) else {
        let head_bytes = size_of::<RawExtentItem>();
        return Err(ItemError::new(
            key,
            ItemProblem::SizeTooSmall {
                size_bytes: head_bytes.saturating_add(rest.len()),
                needed_bytes: head_bytes.saturating_add(size_of::<RawTreeBlockInfo>()),
            },
        ));
    };
    if info.level > HIGHEST_LEVEL {
        return Err(ItemError::new(
            key,
            ExtentProblem::Level {
                level: u64::from(info.level),
            },
        ));
    }
    Ok((
        TreeBlockInfo {
            first_key: Key::from(info.key),
            level: info.level,
        },
        after,
    ))
}

#[cfg(test)]
mod tests;
