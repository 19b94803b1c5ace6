//! Reads inode items, names and attributes of many inodes in one pass.
//!
//! A directory with many new names leads the sync to as many inodes. Inodes that were made one
//! after another are adjacent in the tree. A single scan reads all of these inodes, instead of a
//! descent for each. If other items lie between two inodes, the scan descends to the next inode. If
//! an item in memory is newer than in the tree, the gathering uses the item in memory.

use super::collecting::{Collector, Stop, Walk};
use super::gathered::{Gathered, Row};
use super::inode_batch::{Data, NamesAndAttributes};
use super::statistics::CommitCause;
use buttress_format::{InodeItem, InodeNumber, ItemType, Key};
use core::ops::ControlFlow;

/// The maximum number of items between two inodes that a scan reads over; with more items it
/// descends again.
const PASSED_MAX: usize = 16;

/// Returns whether items of this type are names or attributes.
fn is_logged(item_type: ItemType) -> bool {
    (ItemType::INODE_REF..=ItemType::XATTR_ITEM).contains(&item_type)
}

/// Returns whether items of this type, between attributes and entries or extents, are never logged.
fn is_other(item_type: ItemType) -> bool {
    item_type > ItemType::XATTR_ITEM && item_type < ItemType::DIR_LOG_ITEM
}

/// Returns those inodes of an ordered list that are not below `inode`.
fn from_inode(mut inodes: &[InodeNumber], inode: InodeNumber) -> &[InodeNumber] {
    while let Some((_, behind)) = inodes.split_first().filter(|(first, _)| **first < inode) {
        inodes = behind;
    }
    inodes
}

impl Collector<'_, '_> {
    /// Reads items, names and attributes of inodes for later requests.
    pub(super) fn gather(&mut self, mut inodes: Vec<InodeNumber>) -> Walk {
        inodes.sort_unstable();
        inodes.dedup();
        let tree = self.tree();
        let open = self.operation.lookups().open_tree(tree)?;
        let Gathered { mut items, mut names } = core::mem::take(&mut self.gathered);
        items.clear();
        names.clear();
        let mut rest = inodes.as_slice();
        while let Some(first) = rest.first() {
            let mut passed = 0_usize;
            // The last inode that this scan reached.
            let mut last = *first;
            let from = InodeItem::key(*first);
            let mut next = rest;
            open.tree.scan(&from, |key, data| {
                let inode = InodeNumber::new(key.objectid.get());
                last = inode;
                next = from_inode(next, inode);
                let is_wanted = next.first() == Some(&inode);
                if is_wanted && key.item_type == ItemType::INODE_ITEM {
                    passed = 0;
                    // A later request for a damaged item looks the item up again and returns the
                    // error.
                    items
                        .all
                        .extend(InodeItem::parse(key, data).ok().map(|item| (inode, item)));
                    return ControlFlow::Continue(());
                }
                if is_wanted && is_logged(key.item_type) {
                    passed = 0;
                    if let Some(items) = names.last_of(inode) {
                        items.push((*key, Data::from_slice(data)));
                    }
                    return ControlFlow::Continue(());
                }
                if is_wanted
                    && is_other(key.item_type)
                    && let Some(items) = names.last_of(inode)
                {
                    // If the scan met an error, a request for this inode looks it up alone and
                    // returns the error.
                    items.clear();
                }
                passed = passed.saturating_add(1);
                match next.is_empty() || passed > PASSED_MAX {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })?;
            let behind = from_inode(next, last);
            rest = match behind.split_first() {
                Some((first, others)) if *first == last => others,
                _ => behind,
            };
        }
        self.gather_changed_items(&inodes, &mut items);
        self.gathered = Gathered { items, names };
        Ok(())
    }

    /// Replaces items that were read from the tree by their newer versions in memory. If very many
    /// inodes changed, keeps none of the read items: requests then look them up.
    fn gather_changed_items(&mut self, inodes: &[InodeNumber], items: &mut Row<InodeItem>) {
        let (Some(first), Some(last)) = (inodes.first(), inodes.last()) else {
            return;
        };
        let tree = self.tree();
        let most = inodes.len().saturating_mul(2).saturating_add(PASSED_MAX);
        let changed = self
            .operation
            .lookups()
            .inodes()
            .changed_items(tree, *first..=*last);
        for (looked_at, (inode, item)) in changed.enumerate() {
            if looked_at >= most {
                return items.clear();
            }
            if let (Some(place), Some(item)) = (items.of(inode), item) {
                *place = item;
            }
        }
    }

    /// Reads the names and attributes of one inode.
    pub(super) fn scan_names_and_attributes(&mut self, inode: InodeNumber) -> Walk<NamesAndAttributes> {
        let object = inode.object_id();
        let tree = self.tree();
        let mut items = NamesAndAttributes::new();
        let mut has_others = false;
        let open = self.operation.lookups().open_tree(tree)?;
        open.tree
            .scan(&Key::new(object, ItemType::INODE_REF, 0), |key, data| {
                if key.objectid != object || !is_logged(key.item_type) {
                    has_others = key.objectid == object && is_other(key.item_type);
                    return ControlFlow::Break(());
                }
                items.push((*key, Data::from_slice(data)));
                ControlFlow::Continue(())
            })?;
        match has_others {
            true => Err(Stop::Commit(CommitCause::OtherItems)),
            false => Ok(items),
        }
    }
}
