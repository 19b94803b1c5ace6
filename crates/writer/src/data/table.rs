//! Which files have dirty data, and each file's lock.

use super::DataOptions;
use super::dirty::DirtyData;
use super::waiting::{FileContent, FileLock};
use crate::live::trees::LiveTree;
use crate::transaction::WritableFilesystem;
use crate::transaction::reserved_ahead::ReservedAhead;
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_accounts::fiemap::ContentState;
use buttress_format::{
    ByteCount, FileKind, InodeFlags, InodeItem, InodeNumber, SubvolumeId, Timestamp, TreeId,
};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::location::Location;
use buttress_locks::atomic::{AtomicU64, AtomicUsize, Ordering};
use buttress_locks::{Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, lock_class};
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type FileId = (TreeId, InodeNumber);

lock_class!(FilesLock, "files", Rank::LEAF);
lock_class!(pub(crate) SeveralStepsLock, "several_steps", Rank::new(5).over_device());
lock_class!(pub(crate) InPlaceLock, "in_place", Rank::new(30).over_device_when_shared());

/// What a file takes in memory beside its content.
const FILE_BYTES: u64 = 640;

/// How many files may have dirty data. Content of one file is worth holding back, since more of it may come and lie
/// beside it; of very many, nothing more is to be expected but memory taken from what else waits.
pub(super) const FILES_MAX: usize = 1024;

/// Where a file is in the table.
fn file_id(location: Location) -> FileId {
    (location.subvolume.tree(), location.inode)
}

/// The files with dirty data, or with a call under way.
#[derive(Debug)]
pub(crate) struct DataTable {
    pub(crate) options: DataOptions,
    files: Mutex<BTreeMap<FileId, Arc<FileContent>>, FilesLock>,
    /// How many there are: known without the lock, which all writers share.
    file_count: AtomicUsize,
    /// The memory that all that waits takes.
    delalloc_bytes: AtomicU64,
    /// The most that may wait.
    delalloc_bytes_max: u64,
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
    /// When content was written last, and how often since it was written back.
    pub(super) written: Option<Timestamp>,
    pub(super) writes: u64,
    /// How much room is promised for what waits.
    pub(super) reserved: u64,
    /// Dirty data becomes an extent, however little it is: another extent is going to be beside it.
    pub(super) never_inline: bool,
    /// The subvolume's tree as a call found it: one that is not open any more is not known to be writable.
    tree: Option<LiveTree>,
    /// Whether readers of the inode find the content.
    is_shown: bool,
    /// The table has let go of it.
    is_gone: bool,
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
        let waiting = self.waiting.read();
        if waiting.pending.is_empty() {
            return 0;
        }
        waiting.pending.memory_bytes().saturating_add(FILE_BYTES)
    }

    /// Takes the file's lock if nobody has it.
    pub(super) fn lock_if_free(&self) -> Option<MutexGuard<'_, FileState, FileLock>> {
        self.state.try_lock()
    }

    fn is_clean(&self, state: &FileState) -> bool {
        state.written.is_none() && state.reserved == 0 && self.waiting.read().pending.is_empty()
    }
}

/// A file's content while its lock is held.
pub(super) struct Content<'a> {
    pub(super) filesystem: &'a WritableFilesystem,
    pub(super) location: Location,
    pub(super) file: &'a FileContent,
    pub(super) state: &'a mut FileState,
    pub(super) sector_bytes: u64,
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
            in_place: RwLock::default(),
            several_steps: RwLock::default(),
        }
    }

    /// The file, taken in if it is not here.
    fn file(&self, id: FileId) -> Arc<FileContent> {
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

    fn let_go(&self, id: FileId) {
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

    /// Whether content of any file waits.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.files.lock().is_empty()
    }

    fn count(&self, before: u64, after: u64) -> Result<(), Defect> {
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

impl WritableFilesystem {
    /// Does something with a file's content, under the file's lock.
    pub(super) fn with_content<T>(
        &self,
        location: Location,
        body: impl FnOnce(&mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        let id = file_id(location);
        let table = self.data();
        loop {
            // What readers are shown, nearly always: found without a lock that all writers share.
            let shown = self.live_inodes().look(id, |inode| inode.content.clone());
            let file = shown.flatten().unwrap_or_else(|| table.file(id));
            let _table = buttress_faults::on("lock-file-under-its-table").then(|| table.files.lock());
            let mut state = file.state.lock();
            if state.is_gone {
                continue;
            }
            if !core::mem::replace(&mut state.is_shown, true) {
                self.show_content(id, &file);
            }
            let before = file.memory_bytes();
            let mut content = Content {
                filesystem: self,
                location,
                file: &file,
                state: &mut state,
                sector_bytes: u64::from(self.forest().block_format().sector_bytes),
            };
            let result = body(&mut content);
            self.leave_content(location, &file, &mut state, before);
            return result;
        }
    }

    /// What follows on a change of a file's content, under the file's lock: memory is counted, and of what is clean the table
    /// lets go. `before` is the memory that it took.
    pub(super) fn leave_content(
        &self,
        location: Location,
        file: &FileContent,
        state: &mut FileState,
        before: u64,
    ) {
        let (id, table) = (file_id(location), self.data());
        if let Err(defect) = table.count(before, file.memory_bytes()) {
            self.forest().volume().stop_writing(&defect);
        }
        if !file.is_clean(state) {
            return;
        }
        state.is_gone = true;
        // Before the table lets go of it: the next call shows content of its own, which must stay shown.
        let is_late = buttress_faults::on("live-content-hidden-late");
        if is_late {
            table.let_go(id);
        }
        self.live_inodes().update(id, |inode| inode.content = None);
        self.live_inodes().forget_unknown(id);
        if !is_late {
            table.let_go(id);
        }
    }

    /// As [`with_content`](Self::with_content), for a call whose steps a snapshot must have all or none of.
    pub(super) fn with_content_in_steps<T>(
        &self,
        location: Location,
        body: impl FnOnce(&mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        let _steps = self.begin_steps();
        self.with_content(location, body)
    }

    /// Keeps snapshots from freezing their sources until the call that has begun is done.
    pub(super) fn begin_steps(&self) -> Option<RwLockReadGuard<'_, (), SeveralStepsLock>> {
        let is_left_out = buttress_faults::on("snapshot-between-steps");
        (!is_left_out).then(|| self.data().several_steps.read())
    }

    /// Has readers of the inode find its content from now on.
    fn show_content(&self, id: FileId, file: &Arc<FileContent>) {
        let inode = self.live_inodes().entry(id);
        let mut inode = inode.write();
        inode.content = Some(Arc::clone(file));
        inode.calls = inode.calls.wrapping_add(1);
    }

    /// Sets times of a file by `body`: the time of dirty data is older, and must not be set after it.
    pub(crate) fn with_newer_times<T>(
        &self,
        location: Location,
        body: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        self.with_content(location, |content| {
            let result = body(content.filesystem)?;
            content.set_written(None);
            Ok(result)
        })
    }

    /// Whether content of a file waits to be written back, or is being written: how much room it takes is not known yet.
    #[must_use]
    pub fn is_waiting(&self, location: Location) -> bool {
        let id = file_id(location);
        self.data().files.lock().contains_key(&id)
    }

    pub(super) fn waiting(&self) -> Vec<Location> {
        let files = self.data().files.lock();
        files
            .keys()
            .filter_map(|(tree, inode)| Some(Location::new(tree.as_subvolume()?, *inode)))
            .collect()
    }

    /// Gives up what waits of the files of a subvolume that is gone, and the space that was reserved for it: who is out of
    /// space must not wait for a commit to find out.
    pub(crate) fn give_up_content_of(&self, subvolume: SubvolumeId) -> Result<()> {
        let mut waiting = self.waiting();
        waiting.retain(|location| location.subvolume == subvolume);
        waiting.into_iter().try_for_each(|id| self.write_back_file(id))
    }

    /// Writes back one file's content.
    ///
    /// # Errors
    /// As for [`WritableFilesystem::write_back`].
    pub fn write_back_file(&self, location: Location) -> Result<()> {
        self.with_content(location, |content| content.write_back())
    }

    /// Writes back what waits in a range of a file.
    pub(crate) fn write_back_range(&self, location: Location, range: &Range<u64>) -> Result<()> {
        self.with_content(location, |content| content.write_back_range(range))
    }

    /// Whether content in a range of a file waits to be written back, or is being written.
    pub(crate) fn has_dirty_in(&self, location: Location, range: &Range<u64>) -> Result<bool> {
        self.with_content(location, |content| {
            let waiting = content.waiting_ranges(range.start, 1);
            Ok(waiting.first().is_some_and(|first| first.start < range.end))
        })
    }

    /// Does something with the content of two files, under both locks, which are taken in the order of the inodes. The
    /// first is `None` when both are the same file.
    pub(super) fn with_two<T>(
        &self,
        source: Location,
        target: Location,
        body: impl FnOnce(Option<&mut Content<'_>>, &mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        let id = |location: Location| (location.subvolume.tree(), location.inode);
        match id(source).cmp(&id(target)) {
            core::cmp::Ordering::Equal => self.with_content(target, |target| body(None, target)),
            core::cmp::Ordering::Less => self.with_content(source, |source| {
                self.with_content(target, |target| body(Some(source), target))
            }),
            core::cmp::Ordering::Greater if buttress_faults::on("lock-two-files-unordered") => self
                .with_content(source, |source| {
                    self.with_content(target, |target| body(Some(source), target))
                }),
            core::cmp::Ordering::Greater => self.with_content(target, |target| {
                self.with_content(source, |source| body(Some(source), target))
            }),
        }
    }

    /// The ranges of a file that wait behind `from`, at most `count` of them, and a view: both of one moment.
    ///
    /// # Errors
    /// None so far.
    pub(crate) fn look_at_content(
        &self,
        location: Location,
        from: u64,
        count: usize,
    ) -> Result<ContentState> {
        self.with_content(location, |content| {
            Ok(ContentState {
                waiting: content.waiting_ranges(from, count),
                view: self.view(),
            })
        })
    }

    /// As [`WritableFilesystem::look_at_content`], with the delayed references, while nothing is edited.
    ///
    /// # Errors
    /// As there, and what `body` ends with.
    pub(crate) fn quiesced_content<T>(
        &self,
        location: Location,
        from: u64,
        count: usize,
        body: impl FnOnce(ContentState, &DelayedReferences) -> Result<T>,
    ) -> Result<T> {
        self.with_content(location, |content| {
            let waiting = content.waiting_ranges(from, count);
            self.quiesced(|view, references| {
                let view = view.clone();
                body(ContentState { waiting, view }, references)
            })
        })
    }

    /// The size of a file, with dirty data.
    ///
    /// # Errors
    /// [`Error::InodeNotFound`], or that the tree cannot be read.
    pub fn size_of(&self, location: Location) -> Result<u64> {
        Ok(self.metadata(location)?.size.get())
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

    fn waiting_ranges(&self, from: u64, count: usize) -> Vec<Range<u64>> {
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
    pub(super) fn touch(&mut self) {
        self.set_written(Some(self.filesystem.now()));
        self.state.writes = self.state.writes.saturating_add(1);
    }

    /// Content that waits was written at this time, for readers too; or none waits.
    pub(super) fn set_written(&mut self, written: Option<Timestamp>) {
        self.state.written = written;
        self.file.waiting.write().written = written;
    }

    /// Promises room for so much more content; writes back and commits when there is none.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let filesystem = self.filesystem;
        match filesystem.reserve_data(bytes) {
            Err(Error::NoSpace { .. }) => {
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
