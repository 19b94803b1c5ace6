//! The items of one tree that make up a keyed reference to a data extent.
//!
//! A keyed reference names a tree, an inode and a file offset, and counts items. Snapshots share
//! leaves, so a tree also contains leaves whose items other references count:
//!
//! - A leaf of another owner: a keyed reference with that owner counts its items.
//! - A leaf with full back references: references by the leaf's address count its items.
//!
//! The search skips both. Otherwise it would reach the count with items of these leaves, and miss a
//! leaf of the tree itself; a relocation would then leave this leaf with the old address.
//!
//! Invariant: the caller holds the edit lock, and no delayed reference waits.

use super::extents::Extent;
use crate::running::Running;
use crate::trees::LiveTree;
use buttress_accounts::delayed_references::Reference;
use buttress_exact::Exact as _;
use buttress_format::{FileExtent, FileExtentBody, InodeNumber, ItemType, Key, Logical, TreeBlock, TreeId};
use buttress_fs::error::{Corruption, Result};
use buttress_fs::extents::COMPRESSED_EXTENT_LIMIT;
use core::ops::ControlFlow;
use std::collections::HashSet;

/// A reference to a data extent by tree, inode and file offset.
pub(super) struct KeyedData {
    pub(super) root: TreeId,
    pub(super) inode: InodeNumber,
    /// The file offset of the extent's first byte.
    pub(super) offset: u64,
    pub(super) count: i64,
}

/// The place of items that a keyed reference counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum User {
    /// A committed leaf of a subvolume, by address.
    Leaf(Logical),
    /// An item in a leaf in memory, or in a tree of the volume itself.
    Item(Key),
}

/// The leaves whose items references by address count. Each keyed reference of an extent asks for
/// them, and an extent can have many references.
pub(super) struct CountedLeaves(HashSet<Logical>);

impl CountedLeaves {
    pub(super) fn of(extent: &Extent) -> Self {
        let leaves = extent
            .references
            .iter()
            .filter_map(|(reference, _)| match reference {
                Reference::SharedData { parent } => Some(*parent),
                _ => None,
            });
        Self(leaves.collect())
    }
}

impl KeyedData {
    /// Returns the places of all items that the reference counts, in order of their keys.
    ///
    /// # Errors
    /// Fails if a block cannot be read, or with [`Corruption::BackReferenceDangling`] if the tree
    /// has fewer such items than the reference counts.
    pub(super) fn users(
        &self,
        running: &mut Running,
        extent: &Extent,
        counted_leaves: &CountedLeaves,
    ) -> Result<Vec<User>> {
        let open = running.open_tree(self.root)?;
        // A tree that is being dropped has nothing below this key any more.
        let dropped = open.item.as_ref().map(|item| item.drop_progress);
        let tree = open.tree.clone();
        let sector_bytes = running.core.format.sector_bytes;
        let mut users = Vec::new();
        let mut found = 0_i64;
        let mut next = Some(self.first_key(dropped));
        while let Some(from) = next.filter(|_| found < self.count) {
            let wanted = self.count.exact_sub(found);
            let keys = self.items(&tree, &from, extent, sector_bytes, wanted)?;
            next = keys.last().and_then(|key| key.successor());
            let mut own: Option<TreeBlock> = None;
            for key in keys {
                if own.as_ref().is_some_and(|leaf| leaf.search(&key).is_ok()) {
                    found = found.exact_add(1);
                    continue;
                }
                match self.written_leaf(running, &tree, &key)? {
                    Some((_, leaf)) if !self.counts(counted_leaves, &leaf) => {
                        next = last_key(&leaf).max(Some(key)).and_then(Key::successor);
                        break;
                    }
                    Some((logical, leaf)) => {
                        users.push(User::Leaf(logical));
                        own = Some(leaf);
                    }
                    None => users.push(User::Item(key)),
                }
                found = found.exact_add(1);
            }
        }
        match found == self.count {
            true => Ok(users),
            false => Err(self.dangling(extent).into()),
        }
    }

    /// Whether the reference counts the items of a committed leaf.
    fn counts(&self, counted_leaves: &CountedLeaves, leaf: &TreeBlock) -> bool {
        let header = leaf.header();
        let is_own = header.owner == self.root && !counted_leaves.0.contains(&header.logical);
        is_own || buttress_faults::on("relocation-foreign-items-counted")
    }

    /// Returns the committed leaf of a subvolume with this key; `None` for a leaf in memory, and in
    /// trees of the volume itself, whose leaves no other tree shares.
    fn written_leaf(
        &self,
        running: &mut Running,
        tree: &LiveTree,
        key: &Key,
    ) -> Result<Option<(Logical, TreeBlock)>> {
        if !self.root.holds_files() {
            running.reach(self.root, key)?;
            return Ok(None);
        }
        let written = tree.with(|tree| tree.written_leaf(key))?;
        Ok(written.map(|(pointer, leaf)| (pointer.logical, leaf)))
    }

    /// Returns the first key that the reference may count.
    fn first_key(&self, dropped: Option<Key>) -> Key {
        // An offset in the upper half wraps, because the file begins in the middle of the extent.
        let from = match self.offset > u64::MAX / 2 {
            true => 0,
            false => self.offset,
        };
        let first = Key::new(self.inode.object_id(), ItemType::EXTENT_DATA, from);
        dropped.map_or(first, |dropped| dropped.max(first))
    }

    /// Returns the keys, from `from` on, of at most `wanted` items with the reference's values.
    fn items(
        &self,
        tree: &LiveTree,
        from: &Key,
        extent: &Extent,
        sector_bytes: u32,
        wanted: i64,
    ) -> Result<Vec<Key>> {
        let object = self.inode.object_id();
        let reach = extent.item.length.get().max(COMPRESSED_EXTENT_LIMIT.get());
        let mut keys = Vec::new();
        tree.scan(from, |key, data| {
            if key.objectid != object
                || key.item_type != ItemType::EXTENT_DATA
                || key.offset.wrapping_sub(self.offset) >= reach
                || i64::try_from(keys.len()).is_ok_and(|found| found >= wanted)
            {
                return ControlFlow::Break(());
            }
            let uses = FileExtent::parse(key, data, sector_bytes).is_ok_and(|found| match found.body {
                FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => {
                    slice.disk == extent.item.start
                        && key.offset.wrapping_sub(slice.offset.get()) == self.offset
                }
                FileExtentBody::Inline(_) => false,
            });
            if uses {
                keys.push(*key);
            }
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    fn dangling(&self, extent: &Extent) -> Corruption {
        Corruption::BackReferenceDangling {
            logical: extent.item.start,
            reference: format!(
                "tree {} inode {} offset {} count {}",
                self.root, self.inode, self.offset, self.count
            ),
        }
    }
}

fn last_key(leaf: &TreeBlock) -> Option<Key> {
    leaf.items().last().map(|item| item.key)
}
