//! The items of each inode in a batch: its item, its names and attributes, its content or its
//! entries.

use buttress_format::{InodeItem, InodeNumber, Key};
use core::ops::Range;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The number of inodes whose memory is kept for the next sync.
const KEPT_BATCHES: usize = 256;

/// The bytes of a log item. A log item stores most names and extents inline, because a sync has
/// very many of them.
pub(super) type Data = SmallVec<[u8; 56]>;

/// An item of a log.
pub(super) type Item = (Key, Data);

/// Names and attributes of an inode. Most logged inodes have one name and no extended attributes.
pub(super) type NamesAndAttributes = SmallVec<[Item; 1]>;

/// The logged items of one inode.
#[derive(Debug, Default)]
pub(super) struct InodeBatch {
    /// The inode's item; `None` keeps the item in the log.
    pub(super) item: Option<InodeItem>,
    /// Whether the log has the whole inode after this batch.
    pub(super) whole: bool,
    /// All names and attributes; `None` keeps those that the log has.
    pub(super) names: Option<NamesAndAttributes>,
    /// File extents, each with the range of logged extents that they replace.
    pub(super) content: Vec<(Range<u64>, Vec<Item>)>,
    /// New entries of a directory.
    pub(super) entries: Vec<Item>,
    /// Ranges of indexes, first and last, of which the log has all entries.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Indexes of removed directory entries that the log may contain.
    pub(super) gone: Vec<u64>,
}

/// The logged items of several inodes, in order of their numbers.
#[derive(Debug, Default)]
pub(super) struct InodeBatches {
    /// In the order of collection: batches are large and should not be moved.
    all: Vec<InodeBatch>,
    places: BTreeMap<InodeNumber, usize>,
    /// Reusable memory for entries.
    entries: Vec<Item>,
}

impl InodeBatches {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Empties this batch and returns it, with its allocated memory.
    pub(super) fn cleared(mut self) -> Self {
        self.places.clear();
        for batch in &mut self.all {
            if batch.entries.capacity() > self.entries.capacity() {
                self.entries = core::mem::take(&mut batch.entries);
            }
        }
        self.entries.clear();
        self.entries.shrink_to(KEPT_BATCHES);
        self.all.clear();
        self.all.shrink_to(KEPT_BATCHES);
        self
    }

    /// Returns empty memory for the entries of a directory.
    pub(super) fn room_for_entries(&mut self) -> Vec<Item> {
        core::mem::take(&mut self.entries)
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.all.reserve(count);
    }

    /// Returns the batch of an inode, which may still be empty.
    pub(super) fn of(&mut self, inode: InodeNumber) -> &mut InodeBatch {
        let place = *self.places.entry(inode).or_insert(self.all.len());
        if place == self.all.len() {
            self.all.push(InodeBatch::default());
        }
        #[allow(
            clippy::indexing_slicing,
            reason = "each place is one that was there when it was noted"
        )]
        &mut self.all[place]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (InodeNumber, &InodeBatch)> {
        let places = self.places.iter();
        places.filter_map(|(inode, place)| Some((*inode, self.all.get(*place)?)))
    }
}
