//! Extent items as bytes, and changes of their inline references.
//!
//! A writer parses the item, changes it with these functions, and encodes it again. Inline
//! references stay in the order that the format requires. Each change of a reference also updates
//! the item's count of references.
//!
//! If [`ExtentItem::has_space_for`] returns false, a reference becomes an item of its own
//! ([`InlineReference::keyed_key`], [`InlineReference::encode_keyed`]). While the extent has a
//! keyed reference, the kernel adds no inline references, so that a search inspects one place only.
//! Buttress's writers also add no inline reference to an extent that has a keyed reference.
//! [`ExtentItem::references`] also counts keyed references.
//!
//! Source: on-disk format documentation, section "Extent item".

use super::{
    ExtentFlags, ExtentItem, ExtentProblem, InlineReference, RawExtentItem, RawTreeBlockInfo, reference,
};
use crate::key::{ItemType, Key, RawKey};
use crate::limits;
use crate::units::{Logical, ObjectId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

impl ExtentItem {
    /// Returns the item's key: `(start METADATA_ITEM level)` for a tree block without
    /// [`ExtentItem::tree_block_info`], else `(start EXTENT_ITEM length)`.
    #[must_use]
    pub fn key(&self) -> Key {
        let start = ObjectId::new(self.start.get());
        match self.level {
            Some(level) if self.tree_block_info.is_none() => {
                Key::new(start, ItemType::METADATA_ITEM, u64::from(level))
            }
            _ => Key::new(start, ItemType::EXTENT_ITEM, self.length.get()),
        }
    }

    /// Returns the length of the item that [`ExtentItem::encode`] makes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let info_bytes = self.tree_block_info.map_or(0, |_| size_of::<RawTreeBlockInfo>());
        self.inline_references
            .iter()
            .map(InlineReference::inline_bytes)
            .fold(
                size_of::<RawExtentItem>().saturating_add(info_bytes),
                usize::saturating_add,
            )
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut item = Vec::with_capacity(self.encoded_bytes());
        let head = RawExtentItem {
            refs: U64::new(self.references),
            generation: U64::new(self.generation.get()),
            flags: U64::new(self.flags.bits()),
        };
        item.extend_from_slice(head.as_bytes());
        if let Some(info) = &self.tree_block_info {
            let raw = RawTreeBlockInfo {
                key: RawKey::from(info.first_key),
                level: info.level,
            };
            item.extend_from_slice(raw.as_bytes());
        }
        for reference in &self.inline_references {
            reference.encode_inline(&mut item);
        }
        item
    }

    /// Returns the index of the inline reference from the same place, regardless of its count.
    #[must_use]
    pub fn find_inline(&self, wanted: &InlineReference) -> Option<usize> {
        self.inline_references
            .iter()
            .position(|reference| reference.is_same_place(wanted))
    }

    /// Returns true if this reference can be added inline. Either the item already holds a
    /// reference from the same place, or the item stays within the kernel's size limit.
    #[must_use]
    pub fn has_space_for(&self, reference: &InlineReference, node_bytes: u32) -> bool {
        let grown_bytes = self.encoded_bytes().saturating_add(reference.inline_bytes());
        grown_bytes < limits::extent_item_bytes_limit(node_bytes) || self.find_inline(reference).is_some()
    }

    /// Adds an inline reference. Raises the count of an inline reference from the same place, or
    /// inserts a new one by type and sort value. Raises the item's count of references by the
    /// reference's count.
    ///
    /// # Errors
    /// Fails if the reference does not fit the extent's flags, if its place can have only one
    /// reference, or if a count overflows its field. After an error, the item is unchanged.
    pub fn add_inline(&mut self, reference: InlineReference) -> Result<(), ExtentProblem> {
        reference::check_kind(&reference, self.flags)?;
        let count = u64::from(reference.count());
        let references = self
            .references
            .checked_add(count)
            .ok_or(ExtentProblem::CountOverflow)?;
        if let Some(present) = self
            .inline_references
            .iter_mut()
            .find(|present| present.is_same_place(&reference))
        {
            let raised = present.count().checked_add(reference.count());
            present.set_count(raised.ok_or(ExtentProblem::CountOverflow)?)?;
        } else {
            let order = |of: &InlineReference| (of.item_type(), core::cmp::Reverse(of.sort_value()));
            let at = self
                .inline_references
                .iter()
                .position(|present| order(present) > order(&reference))
                .unwrap_or(self.inline_references.len());
            self.inline_references.insert(at, reference);
        }
        self.references = references;
        Ok(())
    }

    /// Removes an inline reference. Lowers the count of the inline reference from the same place by
    /// this reference's count, and removes that reference at zero. Lowers the reference count of
    /// the extent item by the same number. Returns `Ok(false)` if the item has no such inline
    /// reference.
    ///
    /// # Errors
    /// Returns [`ExtentProblem::CountTooSmall`] if the item holds fewer references. On this error
    /// the item is unchanged.
    pub fn remove_inline(&mut self, reference: &InlineReference) -> Result<bool, ExtentProblem> {
        let Some(at) = self.find_inline(reference) else {
            return Ok(false);
        };
        let count = reference.count();
        let present = self.inline_references.get(at).map_or(0, InlineReference::count);
        let (Some(left), Some(references)) = (
            present.checked_sub(count),
            self.references.checked_sub(u64::from(count)),
        ) else {
            return Err(ExtentProblem::CountTooSmall {
                count,
                present: u64::from(present).min(self.references),
            });
        };
        if left == 0 {
            self.inline_references.remove(at);
        } else if let Some(present) = self.inline_references.get_mut(at) {
            present.set_count(left)?;
        }
        self.references = references;
        Ok(true)
    }

    /// Returns a new data extent without references.
    #[must_use]
    pub fn new_data(start: Logical, length: crate::ByteCount, generation: crate::Generation) -> Self {
        Self {
            start,
            length,
            references: 0,
            generation,
            flags: ExtentFlags::DATA,
            tree_block_info: None,
            level: None,
            inline_references: smallvec::SmallVec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
