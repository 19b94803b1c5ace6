//! Removes what simple quotas leave in the extent tree after they were disabled: the references that
//! name the maker of each data extent, and the feature flag that allows them.
//!
//! Each call edits some extent items. The caller commits after each call. The flag goes last, so a
//! crash leaves a volume with the flag and fewer such references, which is valid; the same calls
//! then finish the removal. The calls expect that no other thread uses the volume.
//!
//! Source: on-disk format documentation, section "EXTENT_OWNER_REF".

use crate::areas::Conversions;
use crate::need::Need;
use crate::running_parts::ExtentTree;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ExtentItem, Incompat, InlineReference, ItemType, Key, TreeId};
use buttress_fs::error::{Corruption, Result};
use buttress_tree::ReadAhead;

/// The number of extent items that one call changes.
const ITEMS_AT_ONCE: usize = 2000;

/// The extent items of data that fit into one place: a leaf of the smallest nodes holds 50.
const ITEMS_A_PLACE: u64 = 30;

/// The places of a call beside those of its items.
const OTHER_PLACES: u64 = 16;

impl Conversions<'_> {
    /// Removes the references to makers from some data extents, from the extent item `from` on.
    /// Returns the extent item at which the next call continues, or `None` after the last one.
    ///
    /// # Errors
    /// Fails if the extent tree cannot be read, or no space is free.
    pub fn remove_owner_references(&self, from: Key) -> Result<Option<Key>> {
        let places = u64_of(ITEMS_AT_ONCE).quotient(ITEMS_A_PLACE);
        let need = Need::places(places.exact_add(OTHER_PLACES));
        self.engine.edit_alone(need, |running| {
            running.extent_tree().remove_owner_references(from)
        })
    }

    /// Clears the feature flag of simple quotas, which no extent needs any more.
    ///
    /// # Errors
    /// Fails with the error that stopped writing.
    pub fn forget_simple_quotas(&self) -> Result<()> {
        self.engine.edit_alone(Need::places(OTHER_PLACES), |running| {
            running.core.format.incompat.remove(Incompat::SIMPLE_QUOTA);
            Ok(())
        })
    }
}

impl ExtentTree<'_> {
    fn remove_owner_references(&mut self, from: Key) -> Result<Option<Key>> {
        let tree = self.running.core.extent.tree.view();
        let mut changed = Vec::new();
        let mut next = None;
        for found in tree.range(from..=Key::MAX, ReadAhead::Forward) {
            let found = found?;
            let key = found.key();
            if key.item_type != ItemType::EXTENT_ITEM {
                continue;
            }
            if changed.len() == ITEMS_AT_ONCE {
                next = Some(key);
                break;
            }
            let item = ExtentItem::parse(&key, found.data(), &self.running.core.format);
            let mut item = item.map_err(|error| Corruption::Item {
                tree: TreeId::EXTENT,
                error,
            })?;
            let before = item.inline_references.len();
            item.inline_references
                .retain(|reference| !matches!(reference, InlineReference::Owner { .. }));
            if item.inline_references.len() < before {
                changed.push((key, item.encode()));
            }
        }
        for (key, bytes) in changed {
            self.put(&key, &bytes)?;
        }
        Ok(next)
    }
}
