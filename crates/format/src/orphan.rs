//! The orphan item: a mark of an inode or subvolume to be cleaned up after a crash.
//!
//! In a subvolume, it marks an inode without names that was still open, or an inode that is being
//! truncated. In the root tree, it marks a subvolume whose deletion has not finished. The key is
//! `(-5 ORPHAN_ITEM object)`; the item is empty.
//!
//! Source: on-disk format documentation, section "ORPHAN_ITEM".

use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::units::ObjectId;

/// A checked orphan item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanItem {
    /// The inode or subvolume to clean up.
    pub object: ObjectId,
}

impl OrphanItem {
    /// Checks an orphan item: its object id must be valid, and its data empty.
    ///
    /// # Errors
    /// Returns [`ItemProblem::ObjectIdInvalid`] or [`ItemProblem::SizeWrong`].
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        if key.objectid != ObjectId::ORPHAN {
            let problem = ItemProblem::ObjectIdInvalid {
                objectid: key.objectid.get(),
            };
            return Err(ItemError::new(key, problem));
        }
        if !data.is_empty() {
            let problem = ItemProblem::SizeWrong {
                size_bytes: data.len(),
                expected_bytes: 0,
            };
            return Err(ItemError::new(key, problem));
        }
        Ok(Self {
            object: ObjectId::new(key.offset),
        })
    }
}

impl OrphanItem {
    /// Returns the key `(-5 ORPHAN_ITEM object)`. The item has no data.
    #[must_use]
    pub const fn key(object: ObjectId) -> Key {
        Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, object.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;

    #[test]
    fn all_is_in_the_key() {
        let key = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, 300);
        assert_eq!(OrphanItem::parse(&key, b"").unwrap().object, ObjectId::new(300));
        assert_eq!(
            OrphanItem::parse(&key, b"x").unwrap_err().problem,
            ItemProblem::SizeWrong {
                size_bytes: 1,
                expected_bytes: 0
            }
        );
        let key = Key::new(ObjectId::new(256), ItemType::ORPHAN_ITEM, 300);
        assert_eq!(
            OrphanItem::parse(&key, b"").unwrap_err().problem,
            ItemProblem::ObjectIdInvalid { objectid: 256 }
        );
    }
}
