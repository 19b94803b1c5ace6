//! Calls on a file's content: how each comes to the file and its lock, and what follows when it lets go.
//!
//! A call holds the file's lock from its begin to its end, over devices where it needs them. While content is in flight
//! nobody holds it: only writes that need nothing of it go on, all other calls wait until it has landed.
//!
//! Left out: what a call does with the content.

use super::content::{Content, Of};
use crate::WritableFilesystem;
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

impl WritableFilesystem {
    /// Does something with a file's content, under the file's lock. Nothing of it is in flight.
    pub(super) fn with_content<T>(
        &self,
        location: Location,
        body: impl FnOnce(&mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        self.hold_content(Of::location(location), true, body)
    }

    /// Does something with a file's content, under the file's lock. `waits`: nothing of it is in flight.
    /// Otherwise `body` inspects [`FileState::in_flight`], and changes nothing of what that needs.
    pub(super) fn hold_content<T>(
        &self,
        of: Of<'_>,
        waits: bool,
        body: impl FnOnce(&mut Content<'_>) -> Result<T>,
    ) -> Result<T> {
        let Of { location, inode } = of;
        let id = file_id(location);
        let table = self.data();
        loop {
            // What readers are shown, nearly always: found without a lock that all writers share.
            let shown = match inode {
                Some(inode) => inode.read().content.clone(),
                None => self
                    .live_inodes()
                    .look(id, |inode| inode.content.clone())
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
                self.show_content(id, &file);
            }
            let before = file.memory_bytes();
            let mut content = Content {
                filesystem: self,
                location,
                inode,
                file: &file,
                state: &mut state,
                sector_bytes: u64::from(self.forest().block_format().sector_bytes),
                keeps_times: false,
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
        if !file.is_clean(state) || self.has_pending_times(id) {
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

    /// Returns whether the item of an inode lacks times that writes set.
    pub(super) fn has_pending_times(&self, id: FileId) -> bool {
        let pending = self.live_inodes().look(id, |inode| !inode.pending.is_empty());
        pending.unwrap_or(false)
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
    /// [`Error::InodeNotFound`](buttress_fs::Error::InodeNotFound), or that the tree cannot be read.
    pub fn size_of(&self, location: Location) -> Result<u64> {
        Ok(self.metadata(location)?.size.get())
    }
}
