//! Keyed references: references to extents that are items of their own, because the extent item has
//! no space.
//!
//! | item type | key offset | data |
//! |---|---|---|
//! | `TREE_BLOCK_REF` | the tree | none |
//! | `SHARED_BLOCK_REF` | the parent block | none |
//! | `EXTENT_DATA_REF` | a hash, or the next free number after it | tree, inode, offset, count |
//! | `SHARED_DATA_REF` | the leaf | count 4 |
//!
//! The object id of the item is the address of the extent.
//!
//! Source: on-disk format documentation, section "Extent item".

use super::ExtentProblem;
use super::reference::{ExtentDataReference, InlineReference, RawExtentDataReference};
use crate::item_error::ItemError;
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{Logical, ObjectId, TreeId};
use smallvec::SmallVec;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Parses the references of a keyed item in the form of inline references. Every keyed item holds
/// exactly one reference, except `EXTENT_DATA_REF`, which may hold several.
///
/// # Errors
/// Fails if the item type is no keyed reference, the address is not aligned, or the size is wrong.
/// Also fails with an [`ExtentProblem`] of the reference.
pub fn parse_keyed_references(
    key: &Key,
    data: &[u8],
    sector_bytes: u32,
) -> Result<SmallVec<[InlineReference; 1]>, ItemError> {
    raw::require_aligned_objectid(key, sector_bytes)?;
    let mut references = SmallVec::new();
    match key.item_type {
        ItemType::TREE_BLOCK_REF => {
            raw::require_empty(key, data)?;
            references.push(InlineReference::TreeBlock {
                root: TreeId::new(key.offset),
            });
        }
        ItemType::SHARED_BLOCK_REF => {
            raw::require_empty(key, data)?;
            raw::require_aligned_offset(key, sector_bytes)?;
            references.push(InlineReference::SharedBlock {
                parent: Logical::new(key.offset),
            });
        }
        ItemType::SHARED_DATA_REF => {
            let count = raw::exactly::<U32>(key, data)?.get();
            raw::require_aligned_offset(key, sector_bytes)?;
            if count == 0 {
                return Err(ItemError::new(key, ExtentProblem::CountZero));
            }
            references.push(InlineReference::SharedData {
                parent: Logical::new(key.offset),
                count,
            });
        }
        ItemType::EXTENT_DATA_REF => {
            for raw in raw::row::<RawExtentDataReference>(key, data)? {
                let reference = ExtentDataReference::from_raw(raw, sector_bytes)
                    .map_err(|problem| ItemError::new(key, problem))?;
                references.push(InlineReference::ExtentData(reference));
            }
        }
        item_type => {
            return Err(ItemError::new(
                key,
                ExtentProblem::ReferenceType {
                    item_type,
                    offset_bytes: 0,
                },
            ));
        }
    }
    Ok(references)
}

impl InlineReference {
    /// Returns the key of the reference to the extent at `extent`, as an item of its own. For a
    /// reference to data by tree, inode and offset, the returned key is the first key to try. If a
    /// reference from another place has this key, the writer uses the next free offset. Returns
    /// `None` for an owner, which is only stored inline.
    #[must_use]
    pub fn keyed_key(&self, extent: Logical) -> Option<Key> {
        match self {
            Self::Owner { .. } => None,
            _ => {
                let extent = ObjectId::new(extent.get());
                Some(Key::new(extent, self.item_type(), self.sort_value()))
            }
        }
    }

    /// Returns the data of the reference as an item of its own. The item's data is empty if its key
    /// holds all fields of the reference.
    #[must_use]
    pub fn encode_keyed(&self) -> Vec<u8> {
        match self {
            Self::ExtentData(reference) => reference.to_raw().as_bytes().to_vec(),
            Self::SharedData { count, .. } => count.to_le_bytes().to_vec(),
            Self::Owner { .. } | Self::TreeBlock { .. } | Self::SharedBlock { .. } => Vec::new(),
        }
    }
}
