//! Calls on a file's content: how each call acquires the file lock, and what it does on release.
//!
//! A call holds the file lock from its begin to its end, also during device I/O. Write-backs by the
//! background, a commit or a sync release the file lock while content of the file is in flight.
//! Writes that need none of the content in flight continue. All other calls on the file wait until
//! the content in flight has landed.
//!
//! Left out: the change that a call makes to the content.

use super::content::{Content, Of};
use crate::areas::Contents;
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_accounts::fiemap::ContentState;
use buttress_engine::data_table::SeveralStepsLock;
use buttress_engine::file_content::{FileContent, FileId, FileState, file_id};
use buttress_format::SubvolumeId;
use buttress_fs::error::Result;
use buttress_fs::location::Location;
use buttress_locks::RwLockReadGuard;
use core::ops::Range;
use std::sync::Arc;

impl<'v> Contents<'v> {
    /// Runs `body` on a file's content, under the file lock, while no content of the file is in
    /// flight.
    pub(super) fn with<T>(
        &self,
        location: Location,
        body: impl FnOnce(&mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        self.hold(Of::location(location), true, body)
    }

    /// Runs `body` on a file's content, under the file lock. With `waits`, no content of the file
    /// is in flight. Without `waits`, `body` checks [`FileState::in_flight`], and changes nothing
    /// that a write-back in progress needs.
    pub(super) fn hold<T>(
        &self,
        of: Of<'_>,
        waits: bool,
        body: impl FnOnce(&mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        let Of { location, inode } = of;
        let id = file_id(location);
        let table = self.filesystem.data();
        loop {
            // The live inode nearly always has the content, so this lookup needs no lock shared by
            // all writers.
            let shown = match inode {
                Some(inode) => inode.read().content.clone(),
                None => self
                    .filesystem
                    .live_inodes()
                    .with(id, |inode| inode.content.clone())
                    .flatten(),
            };
            let file = shown.unwrap_or_else(|| table.file(id));
            let _table = buttress_faults::on("lock-file-under-its-table").then(|| table.files.lock());
            let mut state = file.state.lock();
            while waits && state.in_flight {
                file.has_landed.wait(&mut state);
            }
            if state.is_gone {
                continue;
            }
            if !core::mem::replace(&mut state.is_shown, true) {
                self.show(id, &file);
            }
            let before = file.memory_bytes();
            let mut content = Content {
                filesystem: self.filesystem,
                location,
                inode,
                file: &file,
                state: &mut state,
                sector_bytes: u64::from(self.filesystem.forest().block_format().sector_bytes),
                keeps_times: false,
            };
            let result = body(&mut content);
            self.leave(location, &file, &mut state, before);
            return result;
        }
    }

    /// Ends a call that may have changed a file's content: counts its memory, and removes a clean
    /// file from the table. The caller holds the file lock. `before` is the memory at the begin of
    /// the call.
    pub(super) fn leave(&self, location: Location, file: &FileContent, state: &mut FileState, before: u64) {
        let (id, table) = (file_id(location), self.filesystem.data());
        if let Err(defect) = table.count(before, file.memory_bytes()) {
            self.filesystem.forest().volume().stop_writing(&defect);
        }
        if !file.is_clean(state) || self.has_pending_times(id) {
            return;
        }
        state.is_gone = true;
        // The content must be hidden before it leaves the table: the next call stores other
        // content, which readers must continue to find.
        let is_late = buttress_faults::on("live-content-hidden-late");
        if is_late {
            table.let_go(id);
        }
        self.filesystem
            .live_inodes()
            .update(id, |inode| inode.content = None);
        self.filesystem.live_inodes().forget_unknown(id);
        if !is_late {
            table.let_go(id);
        }
    }

    /// Runs `body` as [`with_content`](Self::with_content) does, for a call whose several steps a
    /// snapshot contains completely or not at all.
    pub(super) fn with_in_steps<T>(
        &self,
        location: Location,
        body: impl FnOnce(&mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        let _steps = self.begin_steps();
        self.with(location, body)
    }

    /// Blocks snapshots from freezing their sources until the call that has begun ends.
    pub(super) fn begin_steps(&self) -> Option<RwLockReadGuard<'v, (), SeveralStepsLock>> {
        let is_left_out = buttress_faults::on("snapshot-between-steps");
        (!is_left_out).then(|| self.filesystem.data().several_steps.read())
    }

    /// From this call on, readers of the inode find its content.
    fn show(&self, id: FileId, file: &Arc<FileContent>) {
        let inode = self.filesystem.live_inodes().entry(id);
        let mut inode = inode.write();
        inode.content = Some(Arc::clone(file));
        inode.calls = inode.calls.wrapping_add(1);
    }

    /// Returns whether writes set times that the inode item does not record yet.
    pub(super) fn has_pending_times(&self, id: FileId) -> bool {
        let pending = self
            .filesystem
            .live_inodes()
            .with(id, |inode| !inode.pending.is_empty());
        pending.unwrap_or(false)
    }

    /// Returns whether a file has dirty or in-flight content. The size of such content on disk is
    /// not known yet.
    #[must_use]
    pub fn is_waiting(&self, location: Location) -> bool {
        let id = file_id(location);
        self.filesystem.data().files.lock().contains_key(&id)
    }

    pub(super) fn waiting_files(&self) -> Vec<Location> {
        let files = self.filesystem.data().files.lock();
        files
            .keys()
            .filter_map(|(tree, inode)| Some(Location::new(tree.as_subvolume()?, *inode)))
            .collect()
    }

    /// Discards the dirty data of a deleted subvolume's files, and releases its reservations. A
    /// caller without space then does not have to wait for a commit to get that space.
    pub(crate) fn give_up_of(&self, subvolume: SubvolumeId) -> Result<()> {
        let mut waiting = self.waiting_files();
        waiting.retain(|location| location.subvolume == subvolume);
        waiting
            .into_iter()
            .try_for_each(|id| self.filesystem.writeback().write_file(id))
    }

    /// Returns whether content in a range of a file is dirty or in flight.
    pub(crate) fn has_dirty_in(&self, location: Location, range: &Range<u64>) -> Result<bool> {
        self.with(location, |content| {
            let waiting = content.waiting_ranges(range.start, 1);
            Ok(waiting.first().is_some_and(|first| first.start < range.end))
        })
    }

    /// Runs `body` on the content of two files, under both file locks. The two file locks are
    /// acquired in the order of the inodes. The first content is `None` if both are the same file.
    pub(super) fn with_two<T>(
        &self,
        source: Location,
        target: Location,
        body: impl FnOnce(Option<&mut Content<'_>>, &mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        let id = |location: Location| (location.subvolume.tree(), location.inode);
        match id(source).cmp(&id(target)) {
            core::cmp::Ordering::Equal => self.with(target, |target| body(None, target)),
            core::cmp::Ordering::Less => self.with(source, |source| {
                self.with(target, |target| body(Some(source), target))
            }),
            core::cmp::Ordering::Greater if buttress_faults::on("lock-two-files-unordered") => self
                .with(source, |source| {
                    self.with(target, |target| body(Some(source), target))
                }),
            core::cmp::Ordering::Greater => self.with(target, |target| {
                self.with(source, |source| body(Some(source), target))
            }),
        }
    }

    /// Returns at most `count` dirty ranges of a file after `from`, and a view of the same moment.
    ///
    /// # Errors
    /// The call returns no errors so far.
    pub(crate) fn look_at(&self, location: Location, from: u64, count: usize) -> Result<ContentState> {
        self.with(location, |content| {
            Ok(ContentState {
                waiting: content.waiting_ranges(from, count),
                view: self.filesystem.view(),
            })
        })
    }

    /// Runs `body` on a file's dirty ranges, a view and the delayed references, while no edit runs.
    /// The dirty ranges are those of [`Contents::look_at`].
    ///
    /// # Errors
    /// Fails as [`Contents::look_at`] does, or with any error of `body`.
    pub(crate) fn quiesced<T>(
        &self,
        location: Location,
        from: u64,
        count: usize,
        body: impl FnOnce(ContentState, &DelayedReferences) -> Result<T>,
    ) -> Result<T> {
        self.with(location, |content| {
            let waiting = content.waiting_ranges(from, count);
            self.filesystem.quiesced(|view, references| {
                let view = view.clone();
                body(ContentState { waiting, view }, references)
            })
        })
    }

    /// Returns the size of a file, including dirty data.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`](buttress_fs::Error::InodeNotFound), or with an error of
    /// the tree.
    pub fn size_of(&self, location: Location) -> Result<u64> {
        Ok(self.filesystem.live().metadata(location)?.size.get())
    }
}
