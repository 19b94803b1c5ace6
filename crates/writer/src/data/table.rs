//! Which files have dirty data, and each file's lock.

use super::DataOptions;
use super::dirty::DirtyData;
use super::waiting::{FileContent, FileLock};
use crate::live::pending_times::PendingTimes;
use crate::live::trees::LiveTree;
use crate::transaction::WritableFilesystem;
use crate::transaction::reserved_ahead::ReservedAhead;
use buttress_format::{ByteCount, FileKind, InodeFlags, InodeItem, InodeNumber, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::location::Location;
use buttress_locks::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use buttress_locks::{Mutex, MutexGuard, Rank, RwLock, lock_class};
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type FileId = (TreeId, InodeNumber);

lock_class!(pub(super) FilesLock, "files", Rank::LEAF);
lock_class!(pub(crate) SeveralStepsLock, "several_steps", Rank::new(5).over_device());
lock_class!(pub(crate) InPlaceLock, "in_place", Rank::new(30).over_device_when_shared());

/// What a file takes in memory beside its content.
const FILE_BYTES: u64 = 640;

/// How many files may have dirty data. Content of one file is worth holding back, since more of it may come and lie
/// beside it; of very many, nothing more is to be expected but memory taken from what else waits.
pub(super) const FILES_MAX: usize = 1024;

/// Where a file is in the table.
pub(super) fn file_id(location: Location) -> FileId {
    (location.subvolume.tree(), location.inode)
}

/// The files with dirty data, or with a call under way.
#[derive(Debug)]
pub(crate) struct DataTable {
    pub(crate) options: DataOptions,
    pub(super) files: Mutex<BTreeMap<FileId, Arc<FileContent>>, FilesLock>,
    /// How many there are: known without the lock, which all writers share.
    file_count: AtomicUsize,
    /// The memory that all that waits takes.
    delalloc_bytes: AtomicU64,
    /// The most that may wait.
    delalloc_bytes_max: u64,
    /// Whether the last write of data found no space on the host. If so, commits discard what they free, so that the
    /// host gets its space.
    lacks_host_space: AtomicBool,
    /// Held for reading from the decision to overwrite something in place until that is done, and for writing while a
    /// commit freezes its state: what a snapshot shares is not overwritten.
    pub(crate) in_place: RwLock<(), InPlaceLock>,
    /// Held for reading by calls that change content in several steps, of which a snapshot must have all or none, and for
    /// writing while a snapshot freezes its source.
    pub(crate) several_steps: RwLock<(), SeveralStepsLock>,
}

/// What a call knows of a file beside the dirty data.
#[derive(Debug, Default)]
pub(super) struct FileState {
    /// The file's size; not yet looked up in a file that was just taken in.
    pub(super) size: Option<u64>,
    /// How much room is promised for what waits.
    pub(super) reserved: u64,
    /// Dirty data becomes an extent, however little it is: another extent is going to be beside it.
    pub(super) never_inline: bool,
    /// Content is being written back, and the lock was let go of meanwhile ([`super::in_flight`]).
    pub(super) in_flight: bool,
    /// The subvolume's tree as a call found it: one that is not open any more is not known to be writable.
    pub(super) tree: Option<LiveTree>,
    /// Whether readers of the inode find the content.
    pub(super) is_shown: bool,
    /// The table has let go of it.
    pub(super) is_gone: bool,
}

impl FileState {
    /// Whether it is that of a file which the table has and readers find.
    pub(super) const fn is_in_use(&self) -> bool {
        self.is_shown && !self.is_gone
    }
}

impl FileContent {
    /// The memory of what waits, and of the file's records.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self.waiting.read().memory_bytes() {
            0 => 0,
            bytes => bytes.saturating_add(FILE_BYTES),
        }
    }

    /// Takes the file's lock if nobody has it, and nothing of the file is being written back.
    pub(super) fn lock_if_free(&self) -> Option<MutexGuard<'_, FileState, FileLock>> {
        self.state.try_lock().filter(|state| !state.in_flight)
    }

    /// Returns whether nothing of the content is dirty. Pending times are the live inode's.
    pub(super) fn is_clean(&self, state: &FileState) -> bool {
        let is_settled = state.reserved == 0 && !state.in_flight;
        is_settled && self.waiting.read().pending.is_empty()
    }
}

/// A file's content while its lock is held.
pub(super) struct Content<'a> {
    pub(super) filesystem: &'a WritableFilesystem,
    pub(super) location: Location,
    pub(super) file: &'a Arc<FileContent>,
    pub(super) state: &'a mut FileState,
    pub(super) sector_bytes: u64,
    /// The caller sets the file's times.
    pub(super) keeps_times: bool,
}

impl DataTable {
    /// A table for no more than `limit` of content.
    pub(crate) fn new(options: DataOptions, limit: ByteCount) -> Self {
        Self {
            options,
            files: Mutex::default(),
            file_count: AtomicUsize::new(0),
            delalloc_bytes: AtomicU64::new(0),
            delalloc_bytes_max: options.delalloc_bytes_max.min(limit).get(),
            lacks_host_space: AtomicBool::new(false),
            in_place: RwLock::default(),
            several_steps: RwLock::default(),
        }
    }

    /// The file, taken in if it is not here.
    pub(super) fn file(&self, id: FileId) -> Arc<FileContent> {
        let mut files = self.files.lock();
        let file = files.entry(id).or_insert_with(|| Arc::new(FileContent::new(id)));
        let file = Arc::clone(file);
        self.file_count.store(files.len(), Ordering::Relaxed);
        file
    }

    /// Files that are here.
    pub(super) fn present(&self, locations: &[Location]) -> Vec<(Location, Arc<FileContent>)> {
        let files = self.files.lock();
        let find = |location: &Location| Some((*location, Arc::clone(files.get(&file_id(*location))?)));
        locations.iter().filter_map(find).collect()
    }

    pub(super) fn let_go(&self, id: FileId) {
        let mut files = self.files.lock();
        files.remove(&id);
        self.file_count.store(files.len(), Ordering::Relaxed);
    }

    /// Whether more waits than should.
    pub(super) fn is_over_limit(&self) -> bool {
        self.delalloc_bytes() > self.delalloc_bytes_max || self.dirty_files() > FILES_MAX
    }

    /// Whether half of what may wait does, of bytes or of files.
    pub(super) fn is_half_full(&self) -> bool {
        self.is_full_by(1)
    }

    /// Whether a quarter of what may wait does, of bytes or of files.
    pub(super) fn is_quarter_full(&self) -> bool {
        self.is_full_by(2)
    }

    fn is_full_by(&self, halvings: u32) -> bool {
        self.delalloc_bytes() > self.delalloc_bytes_max >> halvings
            || self.dirty_files() > FILES_MAX >> halvings
    }

    /// How many files have dirty data.
    pub(super) fn dirty_files(&self) -> usize {
        self.file_count.load(Ordering::Relaxed)
    }

    /// The memory that content takes that waits.
    pub(crate) fn delalloc_bytes(&self) -> u64 {
        self.delalloc_bytes.load(Ordering::Relaxed)
    }

    /// Whether the last write of data found no space on the host.
    pub(crate) fn lacks_host_space(&self) -> bool {
        self.lacks_host_space.load(Ordering::Relaxed)
    }

    /// Notes whether a write of data found space on the host.
    pub(super) fn note_host_space<T>(&self, written: &Result<T>) {
        let lacks = match written {
            Ok(_) => false,
            Err(Error::OutOfHostSpace(_)) => true,
            Err(_) => return,
        };
        if self.lacks_host_space() != lacks {
            self.lacks_host_space.store(lacks, Ordering::Relaxed);
        }
    }

    /// Whether content of any file waits.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.files.lock().is_empty()
    }

    pub(super) fn count(&self, before: u64, after: u64) -> Result<(), Defect> {
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

    /// Whether nothing is counted or promised but what is reserved ahead, when no file has dirty data. Whoever has the edit lock asks: a promise is made
    /// and kept under it, while the file is in the table.
    pub(crate) fn balance(&self, reserved_bytes: u64, ahead: &ReservedAhead) -> Result<(), Defect> {
        let files = self.files.lock();
        let waiting = self.delalloc_bytes();
        let ahead = ahead.bytes();
        if !files.is_empty() || (waiting == 0 && reserved_bytes == ahead) {
            return Ok(());
        }
        Err(Defect::new("dirty data is counted that no file has")
            .with("bytes in memory", waiting)
            .with("bytes promised", reserved_bytes)
            .with("of them ahead", ahead))
    }
}

impl Content<'_> {
    /// The file's size.
    pub(super) fn size(&mut self) -> Result<u64> {
        if let Some(size) = self.state.size {
            return Ok(size);
        }
        let size = self.filesystem.live_inode(self.location)?.0.size.get();
        self.set_size(size);
        Ok(size)
    }

    /// The file has another size, for readers too.
    pub(super) fn set_size(&mut self, size: u64) {
        self.state.size = Some(size);
        self.file.waiting.write().size = Some(size);
    }

    /// Looks at the dirty data.
    pub(super) fn look_at_dirty<T>(&self, look: impl FnOnce(&DirtyData) -> T) -> T {
        look(&self.file.waiting.read().pending)
    }

    /// Changes the dirty data.
    pub(super) fn change_dirty<T>(&self, change: impl FnOnce(&mut DirtyData) -> T) -> T {
        change(&mut self.file.waiting.write().pending)
    }

    pub(super) fn waiting_ranges(&self, from: u64, count: usize) -> Vec<Range<u64>> {
        self.look_at_dirty(|pending| pending.ranges(from, count))
    }

    /// The inode, when its content may be changed.
    pub(super) fn require_writable(&mut self) -> Result<InodeItem> {
        self.filesystem.require_writing()?;
        let location = self.location;
        let is_known = |tree: &Option<LiveTree>| tree.as_ref().is_some_and(LiveTree::is_known_writable);
        if !is_known(&self.state.tree) {
            self.state.tree = self.filesystem.live_trees().get(location.subvolume.tree());
        }
        let item = if is_known(&self.state.tree) {
            self.filesystem.live_inode(location)?.0
        } else {
            self.filesystem.look(|operation| {
                operation.require_writable(location)?;
                operation.inode(location)
            })?
        };
        match item.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsADirectory { location }),
            _ => return Err(Error::NotAFile { location }),
        }
        if item.flags.contains(InodeFlags::IMMUTABLE) && !self.is_unfinished() {
            return Err(Error::NotPermitted {
                location,
                why: "it is immutable",
            });
        }
        Ok(item)
    }

    /// Whether the file's subvolume is being made, and nobody sees it yet: inode flags forbid nothing in there.
    pub(super) fn is_unfinished(&self) -> bool {
        let tree = self.filesystem.live_trees().get(self.location.subvolume.tree());
        tree.is_some_and(|tree| tree.is_unfinished())
    }

    /// The inode, when content that it has may be changed, not only added to.
    pub(super) fn require_changeable(&mut self) -> Result<InodeItem> {
        let item = self.require_writable()?;
        if item.flags.contains(InodeFlags::APPEND) && !self.is_unfinished() {
            return Err(Error::NotPermitted {
                location: self.location,
                why: "it is append-only",
            });
        }
        Ok(item)
    }

    /// Notes that content was written.
    pub(super) fn touch(&self) {
        if self.keeps_times {
            return self.count_write();
        }
        let filesystem = self.filesystem;
        // Under the inode's lock: no time that another call set before is later.
        self.change_pending(|pending| pending.note_write(filesystem.now()));
    }

    /// Notes that content was written by a caller who sets the file's times.
    pub(super) fn count_write(&self) {
        self.change_pending(PendingTimes::count_write);
    }

    /// Returns whether the inode item lacks times.
    pub(super) fn has_pending_times(&self) -> bool {
        self.filesystem.has_pending_times(file_id(self.location))
    }

    /// Changes the pending times. An inode that is not in memory any more is gone, and its times with it.
    pub(super) fn change_pending(&self, change: impl FnOnce(&mut PendingTimes)) {
        let inodes = self.filesystem.live_inodes();
        let _found = inodes.update(file_id(self.location), |inode| change(&mut inode.pending));
    }

    /// Reserves space for so much more content; writes back and commits when there is none.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let filesystem = self.filesystem;
        match filesystem.reserve_data(bytes) {
            Err(error) if error.is_out_of_space() => {
                // What waits may take less once it is compressed, and a commit sets free what edits gave up.
                self.write_back()?;
                filesystem.commit_metadata()?;
                filesystem.reserve_data(bytes)?;
            }
            reserved => reserved?,
        }
        self.state.reserved = self.state.reserved.saturating_add(bytes);
        Ok(())
    }

    /// Lets go of promised room.
    pub(super) fn release(&mut self, bytes: u64) {
        let bytes = bytes.min(self.state.reserved);
        if bytes > 0 {
            if !buttress_faults::on("ledger-promise-released-twice") {
                self.state.reserved = self.state.reserved.saturating_sub(bytes);
            }
            if !buttress_faults::on("ledger-promise-kept") {
                self.filesystem.release_data(bytes);
            }
        }
    }

    /// Does something while content stays out of the tree.
    pub(super) fn out_of_tree<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.state.never_inline = true;
        let result = body(self);
        self.state.never_inline = false;
        result
    }

    pub(super) fn align_down(&self, at: u64) -> u64 {
        at.checked_div(self.sector_bytes)
            .unwrap_or(0)
            .saturating_mul(self.sector_bytes)
    }

    pub(super) fn align_up(&self, at: u64) -> u64 {
        at.checked_next_multiple_of(self.sector_bytes).unwrap_or(u64::MAX)
    }
}
