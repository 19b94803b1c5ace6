//! The items of each inode that a sync puts into a log: its item, its names and attributes, its content or its entries.

use buttress_format::{InodeItem, InodeNumber, Key};
use core::ops::Range;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Room for what is logged of so many inodes is kept for the next sync.
const KEPT_BATCHES: usize = 256;

/// The bytes of an item of a log: those of most names and extents are kept in place, as a sync has very many of them.
pub(super) type Data = SmallVec<[u8; 56]>;

/// An item of a log.
pub(super) type Item = (Key, Data);

/// Names and attributes of an inode: most have one name, and nothing else.
pub(super) type NamesAndAttributes = SmallVec<[Item; 1]>;

/// What is logged of one inode.
#[derive(Debug, Default)]
pub(super) struct InodeBatch {
    /// The inode's item; `None`: the one in the log stays.
    pub(super) item: Option<InodeItem>,
    /// How much of it the log has afterwards.
    pub(super) whole: bool,
    /// All names and attributes; `None`: those in the log stay.
    pub(super) names: Option<NamesAndAttributes>,
    /// File extents, each with the range whose extents it takes the place of.
    pub(super) content: Vec<(Range<u64>, Vec<Item>)>,
    /// New entries of a directory.
    pub(super) entries: Vec<Item>,
    /// Ranges of indexes of which the log has all entries: first and last.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Indexes of entries that the log may have, and that are gone.
    pub(super) gone: Vec<u64>,
}

/// What is logged of several inodes, in order of their numbers.
#[derive(Debug, Default)]
pub(super) struct InodeBatches {
    /// In the order in which they came: they are large, and are not to be moved.
    all: Vec<InodeBatch>,
    places: BTreeMap<InodeNumber, usize>,
    /// Memory for entries.
    entries: Vec<Item>,
}

impl InodeBatches {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The same memory, without anything in it.
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

    /// Memory for the entries of a directory, without anything in it.
    pub(super) fn room_for_entries(&mut self) -> Vec<Item> {
        core::mem::take(&mut self.entries)
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.all.reserve(count);
    }

    /// What is logged of an inode, which may be nothing so far.
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
