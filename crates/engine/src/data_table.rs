//! The table of files with dirty data, and each file's lock.

use super::data_options::DataOptions;
use super::file_content::{FileContent, FileId, file_id};
use crate::reserved_ahead::ReservedAhead;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::location::Location;
use buttress_locks::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use buttress_locks::{Mutex, Rank, RwLock, lock_class};
use std::collections::BTreeMap;
use std::sync::Arc;

lock_class!(pub FilesLock, "files", Rank::LEAF);
lock_class!(pub SeveralStepsLock, "several_steps", Rank::new(5).over_device());
lock_class!(pub InPlaceLock, "in_place", Rank::new(30).over_device_when_shared());

/// The largest number of files with dirty data. A file keeps its dirty data for a while, so that
/// adjacent data can follow. Dirty data of very many files only takes memory from other dirty
/// state, so their number is limited.
pub const FILES_MAX: usize = 1024;

/// The files with dirty data, or with a call in progress.
#[derive(Debug)]
pub struct DataTable {
    /// Options for writing content.
    pub options: DataOptions,
    /// The files with dirty data, or with a call in progress.
    pub files: Mutex<BTreeMap<FileId, Arc<FileContent>>, FilesLock>,
    /// The number of files, readable without the lock of `files` that all writers share.
    file_count: AtomicUsize,
    /// The memory of all dirty data, in bytes.
    delalloc_bytes: AtomicU64,
    /// The limit of the memory of all dirty data, in bytes.
    delalloc_bytes_max: u64,
    /// The most bytes that calls reserve for content without a file in the table.
    beside_bytes: AtomicU64,
    /// Whether the last write of data found no space on the host. After such a write, commits
    /// discard the ranges that they free, which returns space to the host.
    lacks_host_space: AtomicBool,
    /// A writer holds this lock for reading from the decision to overwrite data in place until the
    /// write ends. A commit holds this lock for writing while it freezes its state, so no in-place
    /// write changes shared data.
    pub in_place: RwLock<(), InPlaceLock>,
    /// Calls that change content in several steps hold this lock for reading. A snapshot holds this
    /// lock for writing while it freezes its source, so the snapshot contains all steps or none.
    pub several_steps: RwLock<(), SeveralStepsLock>,
}

impl DataTable {
    /// Returns an empty table for at most `limit` of dirty content.
    pub fn new(options: DataOptions, limit: ByteCount) -> Self {
        Self {
            options,
            files: Mutex::default(),
            file_count: AtomicUsize::new(0),
            delalloc_bytes: AtomicU64::new(0),
            delalloc_bytes_max: options.delalloc_bytes_max.min(limit).get(),
            beside_bytes: AtomicU64::new(0),
            lacks_host_space: AtomicBool::new(false),
            in_place: RwLock::default(),
            several_steps: RwLock::default(),
        }
    }

    /// Returns the file's content, and adds the file to the table if it is absent.
    pub fn file(&self, id: FileId) -> Arc<FileContent> {
        let mut files = self.files.lock();
        let file = files.entry(id).or_insert_with(|| Arc::new(FileContent::new(id)));
        let file = Arc::clone(file);
        self.file_count.store(files.len(), Ordering::Relaxed);
        file
    }

    /// Returns the content of those of the files that are in the table.
    pub fn present(&self, locations: &[Location]) -> Vec<(Location, Arc<FileContent>)> {
        let files = self.files.lock();
        let find = |location: &Location| Some((*location, Arc::clone(files.get(&file_id(*location))?)));
        locations.iter().filter_map(find).collect()
    }

    /// Removes a file from the table.
    pub fn let_go(&self, id: FileId) {
        let mut files = self.files.lock();
        files.remove(&id);
        self.file_count.store(files.len(), Ordering::Relaxed);
    }

    /// Returns whether dirty data exceeds its limit.
    pub fn is_over_limit(&self) -> bool {
        self.delalloc_bytes() > self.delalloc_bytes_max || self.dirty_files() > FILES_MAX
    }

    /// Returns whether dirty data reaches half of its limit, in bytes or files.
    pub fn is_half_full(&self) -> bool {
        self.is_full_by(1)
    }

    /// Returns whether dirty data reaches a quarter of its limit, in bytes or files.
    pub fn is_quarter_full(&self) -> bool {
        self.is_full_by(2)
    }

    fn is_full_by(&self, halvings: u32) -> bool {
        self.delalloc_bytes() > self.delalloc_bytes_max >> halvings
            || self.dirty_files() > FILES_MAX >> halvings
    }

    /// Returns the number of files with dirty data.
    pub fn dirty_files(&self) -> usize {
        self.file_count.load(Ordering::Relaxed)
    }

    /// Returns the memory of all dirty data, in bytes.
    pub fn delalloc_bytes(&self) -> u64 {
        self.delalloc_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether the last write of data found no space on the host.
    pub fn lacks_host_space(&self) -> bool {
        self.lacks_host_space.load(Ordering::Relaxed)
    }

    /// Records whether a write of data found space on the host.
    pub fn note_host_space<T>(&self, written: &Result<T>) {
        let lacks = match written {
            Ok(_) => false,
            Err(Error::OutOfHostSpace(_)) => true,
            Err(_) => return,
        };
        if self.lacks_host_space() != lacks {
            self.lacks_host_space.store(lacks, Ordering::Relaxed);
        }
    }

    /// Returns whether any file has dirty data.
    pub fn has_dirty(&self) -> bool {
        !self.files.lock().is_empty()
    }

    /// Records that a file's dirty data took `before` bytes of memory and now takes `after`.
    ///
    /// # Errors
    /// Fails with a [`Defect`] if more memory is returned than was taken.
    pub fn count(&self, before: u64, after: u64) -> Result<(), Defect> {
        if before == after {
            return Ok(());
        }
        self.delalloc_bytes.fetch_add(after, Ordering::Relaxed);
        let before = match buttress_faults::on("ledger-dirty-memory-kept") {
            true => 0,
            false => before,
        };
        let had = self.delalloc_bytes.fetch_sub(before, Ordering::Relaxed);
        if had >= before {
            return Ok(());
        }
        let what = "more of the memory of dirty data is given back than was taken";
        Err(Defect::new(what).with("taken", had).with("given back", before))
    }

    /// Counts bytes that a call will reserve for content without a file in the table: content of a
    /// file that is made afterwards, or new extents of content that stays. The call ends the count
    /// with [`end_beside`](Self::end_beside), after it has released the bytes or given them to a
    /// file.
    pub fn begin_beside(&self, bytes: u64) {
        self.beside_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Ends a count of [`begin_beside`](Self::begin_beside).
    pub fn end_beside(&self, bytes: u64) {
        self.beside_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// If no file has dirty data, checks that no memory is counted, and that nothing is reserved
    /// except ahead of writes and beside files. The caller holds the edit lock. Calls reserve and
    /// release space under the edit lock, while their file is in the table or their count lasts.
    pub fn balance(&self, reserved_bytes: u64, ahead: &ReservedAhead) -> Result<(), Defect> {
        let files = self.files.lock();
        let waiting = self.delalloc_bytes();
        let ahead = ahead.bytes();
        let most = ahead.exact_add(self.beside_bytes.load(Ordering::Relaxed));
        if !files.is_empty() || (waiting == 0 && (ahead..=most).contains(&reserved_bytes)) {
            return Ok(());
        }
        Err(Defect::new("dirty data is counted that no file has")
            .with("bytes in memory", waiting)
            .with("bytes promised", reserved_bytes)
            .with("of them ahead", ahead))
    }
}
