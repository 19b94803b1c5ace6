//! A file's content that is newer than its extents, for readers that do not wait for writers.
//!
//! A call that changes content holds the file's state for its whole length, also during device I/O,
//! except for a write-back. Readers do not acquire the file lock. Readers lock a file's dirty and
//! in-flight data only for the length of a copy.
//!
//! Invariants:
//! - Newer content stays in the file's state in memory until extents with this content are in the
//!   tree.
//! - A call holds the layout lock if it changes extents in several steps under content that readers
//!   could have observed.

use super::dirty_data::DirtyData;
use crate::trees::LiveTree;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, InodeItem, InodeNumber, TreeId};
use buttress_fs::location::Location;
use buttress_locks::{Condvar, Mutex, MutexGuard, Rank, RwLock, lock_class};
use bytes::Bytes;
use core::ops::Range;

/// The identity of a file: its subvolume's tree, and its inode number in this tree.
pub type FileId = (TreeId, InodeNumber);

lock_class!(pub FileLock, "state", Rank::new(10).over_device().several());
lock_class!(pub LayoutLock, "layout", Rank::new(15).over_device_when_exclusive());
lock_class!(pub WaitingLock, "waiting", Rank::new(42));

/// The memory of a file's record without its content, in bytes.
const FILE_BYTES: u64 = 640;

/// Returns the key of a file in the table.
pub fn file_id(location: Location) -> FileId {
    (location.subvolume.tree(), location.inode)
}

/// A file with dirty data, or with a call in progress. See the module's documentation.
#[derive(Debug)]
pub struct FileContent {
    /// Held for the length of a call that changes content.
    pub state: Mutex<FileState, FileLock>,
    /// Signalled when no content of the file is in flight any more.
    pub has_landed: Condvar,
    /// Shared by readers of the file, and exclusive for calls that change extents in several steps.
    pub layout: RwLock<(), LayoutLock>,
    /// Content without extents, locked only while a call copies it.
    pub waiting: RwLock<Waiting, WaitingLock>,
}

impl FileContent {
    /// Returns the record of a file without dirty data.
    pub fn new((tree, inode): FileId) -> Self {
        // Two files are always locked in the order of this number.
        let place = (u128::from(tree.get()) << u64::BITS) | u128::from(inode.get());
        Self {
            state: Mutex::with_place(FileState::default(), place),
            has_landed: Condvar::new(),
            layout: RwLock::default(),
            waiting: RwLock::default(),
        }
    }
}

/// The state of a file that only content-changing calls need.
#[derive(Debug, Default)]
pub struct FileState {
    /// The file's size; `None` until a call looks it up.
    pub size: Option<u64>,
    /// The space reserved for dirty data, in bytes.
    pub reserved: u64,
    /// The part of the reserved bytes that is charged to quota limits.
    pub charged: u64,
    /// The dirty bytes without reserved space: they overwrite extents in place.
    pub unreserved: u64,
    /// The file's dirty data never becomes an inline extent, however small, because another extent
    /// will follow it.
    pub never_inline: bool,
    /// A write-back of this file has released the file lock during its I/O.
    pub in_flight: bool,
    /// The subvolume's tree that a call found writable. The cached tree has no meaning once the
    /// subvolume's tree is closed.
    pub tree: Option<LiveTree>,
    /// Whether readers find this content through the live inode.
    pub is_shown: bool,
    /// The table of files no longer contains this file.
    pub is_gone: bool,
}

impl FileState {
    /// Returns whether readers find this file's content in the table.
    pub const fn is_in_use(&self) -> bool {
        self.is_shown && !self.is_gone
    }
}

impl FileContent {
    /// Returns the memory of the dirty data and of the file's records, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        match self.waiting.read().memory_bytes() {
            0 => 0,
            bytes => bytes.saturating_add(FILE_BYTES),
        }
    }

    /// Acquires the file lock if it is free and no content of the file is in flight.
    pub fn lock_if_free(&self) -> Option<MutexGuard<'_, FileState, FileLock>> {
        self.state.try_lock().filter(|state| !state.in_flight)
    }

    /// Returns whether the file has no dirty content. Pending times belong to the live inode and do
    /// not count as dirty content.
    pub fn is_clean(&self, state: &FileState) -> bool {
        let is_settled = state.reserved == 0 && !state.in_flight;
        is_settled && self.waiting.read().pending.is_empty()
    }
}

/// Content that has no extent yet. See the module's documentation.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Dirty data.
    pub pending: DirtyData,
    /// Content that is being written back, older than the dirty data.
    in_flight: Vec<(u64, Bytes)>,
    /// The file's size, once a call has looked it up. The cached size remains after the last call
    /// on the file.
    pub size: Option<u64>,
}

impl Waiting {
    /// Shows an inode item with the size and space of pending content, as `stat(2)` does. The
    /// compressed size of content is unknown until write-back. Until write-back, the counted space
    /// of dirty content is at most the file's length.
    pub fn show_in(&self, item: &mut InodeItem, sector_bytes: u32) {
        item.size = self.size.map_or(item.size, ByteCount::new);
        let waiting = ByteCount::new(self.in_flight_bytes().saturating_add(self.pending.bytes()));
        let whole = item.size.checked_align_up(u64::from(sector_bytes));
        let most = whole.unwrap_or(ByteCount::MAX);
        item.nbytes = item.nbytes.max(item.nbytes.saturating_add(waiting).min(most));
    }

    /// Returns the memory of dirty and in-flight content, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.in_flight_bytes().saturating_add(self.pending.memory_bytes())
    }

    fn in_flight_bytes(&self) -> u64 {
        let lengths = self.in_flight.iter().map(|(_, bytes)| ByteCount::of(bytes.len()));
        lengths.fold(ByteCount::ZERO, ByteCount::saturating_add).get()
    }

    /// Removes all dirty data and returns it for a write-back. Readers continue to see the data
    /// that a write-back has removed from the dirty data.
    pub fn begin_write_back(&mut self) -> Vec<(u64, Bytes)> {
        if buttress_faults::on("live-in-flight-unseen") {
            return self.pending.take();
        }
        self.in_flight = self.pending.take();
        self.in_flight.clone()
    }

    /// Removes the file's dirty data of the whole sectors in a range, as
    /// [`begin_write_back`](Self::begin_write_back) does.
    pub fn begin_write_back_of(&mut self, range: &Range<u64>) -> Vec<(u64, Bytes)> {
        self.in_flight = self.pending.take_range(range);
        self.in_flight.clone()
    }

    /// Returns whether in-flight content may become an inline extent: it is a whole file of at most
    /// one sector.
    pub fn may_land_inline(&self, sector_bytes: u64) -> bool {
        matches!(self.in_flight.as_slice(), [(0, content)] if ByteCount::of(content.len()).get() <= sector_bytes)
    }

    /// Drops the file's in-flight content: extents have it, or a later call made it obsolete.
    pub fn end_write_back(&mut self) {
        self.in_flight.clear();
    }

    /// Makes in-flight content dirty again, except in ranges with newer dirty data.
    pub fn fail_write_back(&mut self, pieces: Vec<(u64, Bytes)>) {
        self.in_flight.clear();
        self.pending.restore(pieces);
    }

    /// Copies pending content of a range over `buffer`, which begins at `offset`. Returns the parts
    /// of the range that have no pending content.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Vec<Range<u64>> {
        let end = offset.saturating_add(u64_of(buffer.len()));
        let mut gaps: Vec<Range<u64>> = core::iter::once(offset..end).collect();
        for (start, bytes) in &self.in_flight {
            let piece_end = start.exact_add(u64_of(bytes.len()));
            let (from, to) = (offset.max(*start), end.min(piece_end));
            if from >= to {
                continue;
            }
            let inside = |at: u64, of: u64| at.exact_sub(of).narrow::<usize>();
            let source = bytes.get(inside(from, *start)..inside(to, *start));
            let place = buffer.get_mut(inside(from, offset)..inside(to, offset));
            if let (Some(place), Some(source)) = (place, source) {
                place.copy_from_slice(source);
                take_out(&mut gaps, &(from..to));
            }
        }
        self.pending.read(offset, buffer);
        for range in self.pending.ranges(offset, usize::MAX) {
            if range.start >= end {
                break;
            }
            take_out(&mut gaps, &range);
        }
        gaps
    }
}

/// Subtracts a range from a list of disjoint ranges.
fn take_out(ranges: &mut Vec<Range<u64>>, gone: &Range<u64>) {
    let parts = |range: Range<u64>| {
        let before = range.start..range.end.min(gone.start);
        let after = range.start.max(gone.end)..range.end;
        [before, after].into_iter().filter(|part| part.start < part.end)
    };
    *ranges = core::mem::take(ranges).into_iter().flat_map(parts).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_data_covers_in_flight_and_extents_have_the_rest() {
        let mut waiting = Waiting::default();
        waiting.pending.write(512, &[1; 1024], 512);
        let pieces = waiting.begin_write_back();
        waiting.pending.write(1024, &[2; 1024], 512);
        let mut buffer = [9; 3072];
        assert_eq!(waiting.read(0, &mut buffer), [0..512, 2048..3072]);
        let byte_at = |buffer: &[u8], at: usize| buffer.get(at).copied();
        assert_eq!(byte_at(&buffer, 511), Some(9));
        assert_eq!(byte_at(&buffer, 512), Some(1));
        assert_eq!(byte_at(&buffer, 1024), Some(2));
        assert_eq!(byte_at(&buffer, 2047), Some(2));

        waiting.fail_write_back(pieces);
        assert_eq!(waiting.read(600, &mut buffer[..100]), []);
        waiting.end_write_back();
        drop(waiting.begin_write_back());
        waiting.end_write_back();
        let gaps = waiting.read(600, &mut buffer[..100]);
        assert_eq!(gaps.first(), Some(&(600..700)));
    }
}
