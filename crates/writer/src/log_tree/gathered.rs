//! Inode items, names and attributes that were read for a sync, and their reusable memory.

use super::inode_batch::NamesAndAttributes;
use buttress_format::{InodeItem, InodeNumber};

/// The number of inodes whose memory is kept for the next sync.
const KEPT_INODES: usize = 256;

/// The items that the collection read, in order of inodes. Most requests follow that order.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) items: Row<InodeItem>,
    /// Names and attributes that the collection has not taken out yet.
    pub(super) names: Row<NamesAndAttributes>,
}

impl Gathered {
    /// Empties this collection and returns it, with its allocated memory.
    pub(super) fn cleared(mut self) -> Self {
        self.items.clear();
        self.names.clear();
        self
    }

    /// Returns the item of an inode, if it was read. Items do not change during a collection.
    pub(super) fn item(&mut self, inode: InodeNumber) -> Option<InodeItem> {
        self.items.of(inode).copied()
    }

    /// Returns the names and attributes of an inode once, if they were read.
    pub(super) fn take_names(&mut self, inode: InodeNumber) -> Option<NamesAndAttributes> {
        let names = core::mem::take(self.names.of(inode)?);
        Some(names).filter(|names| !names.is_empty())
    }
}

/// Values of several inodes, one for each, in order.
#[derive(Debug)]
pub(super) struct Row<T> {
    pub(super) all: Vec<(InodeNumber, T)>,
    /// The position after the last returned value.
    next: usize,
}

impl<T> Default for Row<T> {
    fn default() -> Self {
        let all = Vec::new();
        Self { all, next: 0 }
    }
}

impl<T> Row<T> {
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.all.shrink_to(KEPT_INODES);
        self.next = 0;
    }

    pub(super) fn of(&mut self, inode: InodeNumber) -> Option<&mut T> {
        let is_next = self.all.get(self.next).is_some_and(|(next, _)| *next == inode);
        let place = match is_next {
            true => self.next,
            false => self.all.binary_search_by_key(&inode, |(inode, _)| *inode).ok()?,
        };
        self.next = place.saturating_add(1);
        self.all.get_mut(place).map(|(_, of_inode)| of_inode)
    }
}

impl<T: Default> Row<T> {
    /// Returns the value of an inode that is not before the last one.
    pub(super) fn last_of(&mut self, inode: InodeNumber) -> Option<&mut T> {
        if self.all.last().is_none_or(|(last, _)| *last < inode) {
            self.all.push((inode, T::default()));
        }
        let (last, of_inode) = self.all.last_mut()?;
        (*last == inode).then_some(of_inode)
    }
}
