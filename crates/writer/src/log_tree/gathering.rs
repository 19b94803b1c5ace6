//! Names and attributes of inodes, read from their tree.
//!
//! A directory that got many names leads to as many inodes, which lie one after another in the tree if they were made one
//! after another: they are read at one go, and not each by a way down of its own. Where something lies between them the next
//! one is gone down to.

use super::batch::{Data, NamesAndAttributes};
use super::collecting::{Collector, Stop, Walk};
use super::statistics::CommitCause;
use buttress_format::{InodeNumber, ItemType, Key};
use core::ops::ControlFlow;

/// More items than this that lie between those of two inodes are not read over.
const PASSED_MAX: usize = 16;

/// What was read, and has not been taken yet, in order of inodes.
#[derive(Debug, Default)]
pub(super) struct Gathered(Vec<(InodeNumber, NamesAndAttributes)>);

impl Gathered {
    /// What was read of an inode, once.
    pub(super) fn take(&mut self, inode: InodeNumber) -> Option<NamesAndAttributes> {
        let place = self.0.binary_search_by_key(&inode, |(inode, _)| *inode).ok()?;
        let (_, items) = self.0.get_mut(place)?;
        Some(core::mem::take(items)).filter(|items| !items.is_empty())
    }

    /// Where the items of an inode go, which is not before the last one.
    fn of(&mut self, inode: InodeNumber) -> Option<&mut NamesAndAttributes> {
        if self.0.last().is_none_or(|(last, _)| *last < inode) {
            self.0.push((inode, NamesAndAttributes::new()));
        }
        let (last, items) = self.0.last_mut()?;
        (*last == inode).then_some(items)
    }
}

/// Whether items of this type are names or attributes.
fn is_logged(item_type: ItemType) -> bool {
    (ItemType::INODE_REF..=ItemType::XATTR_ITEM).contains(&item_type)
}

/// Whether items of this type, which lie between attributes and entries or extents, are ones that no log holds.
fn is_other(item_type: ItemType) -> bool {
    item_type > ItemType::XATTR_ITEM && item_type < ItemType::DIR_LOG_ITEM
}

/// Those of a row of inodes in order that do not come before one.
fn from_inode(mut inodes: &[InodeNumber], inode: InodeNumber) -> &[InodeNumber] {
    while let Some((_, behind)) = inodes.split_first().filter(|(first, _)| **first < inode) {
        inodes = behind;
    }
    inodes
}

impl Collector<'_, '_> {
    /// Reads names and attributes of inodes, for when they are asked for.
    pub(super) fn gather(&mut self, mut inodes: Vec<InodeNumber>) -> Walk {
        inodes.sort_unstable();
        inodes.dedup();
        let tree = self.tree();
        let open = self.operation.look().open_tree(tree)?;
        let mut gathered = Gathered(Vec::with_capacity(inodes.len()));
        let mut rest = inodes.as_slice();
        while let Some(first) = rest.first() {
            let mut passed = 0_usize;
            // The last inode that was come to.
            let mut last = *first;
            let from = Key::new(first.object_id(), ItemType::INODE_REF, 0);
            let mut next = rest;
            open.tree.scan(&from, |key, data| {
                let inode = InodeNumber::new(key.objectid.get());
                last = inode;
                next = from_inode(next, inode);
                let is_wanted = next.first() == Some(&inode);
                if is_wanted && is_logged(key.item_type) {
                    passed = 0;
                    if let Some(items) = gathered.of(inode) {
                        items.push((*key, Data::from_slice(data)));
                    }
                    return ControlFlow::Continue(());
                }
                if is_wanted
                    && is_other(key.item_type)
                    && let Some(items) = gathered.of(inode)
                {
                    // Whoever asks for it looks at it alone, and finds what is wrong.
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
        self.gathered = gathered;
        Ok(())
    }

    /// Reads names and attributes of one inode.
    pub(super) fn scan_names_and_attributes(&mut self, inode: InodeNumber) -> Walk<NamesAndAttributes> {
        let object = inode.object_id();
        let tree = self.tree();
        let mut items = NamesAndAttributes::new();
        let mut has_others = false;
        let open = self.operation.look().open_tree(tree)?;
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
