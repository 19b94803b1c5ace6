//! File operations: names, inodes, attributes.
//!
//! All operations are calls on [`WritableFilesystem`]. Operations name inodes by [`Location`], and
//! entries by directory and name; the caller resolves paths
//! ([`Filesystem::resolve`](buttress_fs::Filesystem::resolve) on a view). Each operation is one
//! edit of the running transaction. An operation is atomic, and becomes durable with the next
//! commit.
//!
//! | module | holds |
//! |---|---|
//! | `access` | lookups before the first edit |
//! | [`create`] | files, directories, nodes, symlinks, unnamed files |
//! | [`link`] | new and removed names: link, unlink, rmdir |
//! | [`rename`] | rename in all its forms |
//! | `nesting` | directories that contain each other |
//! | [`attributes`] | mode, owner, times, flags |
//! | [`access_times`] | times of the last access |
//! | [`set_xattr`] | extended attributes, and the meaning of some of them |
//! | `device_statistics` | reset of device error statistics |
//! | [`quotas`] | quotas on and off, quota groups, the rescan |
//! | [`subvolumes`] | subvolumes and snapshots as directory entries; the label |
//! | [`unfinished`] | subvolumes that no reader sees until they are finished |
//! | [`deferred_names`] | names of such subvolumes that wait, so that many go into each leaf at once |
//! | `whole_file` | small files that are made at once, with their content; other inodes with their attributes |
//! | [`many_files`] | many such files at once |
//! | `inherit` | the attributes that a directory gives to new inodes |
//! | [`orphan`] | inodes without names: held open, or cleaned up |
//! | `entries` | the items of names |
//!
//! # How an operation runs
//!
//! An operation begins as an `Access`: lookups and checks, and no edits. A read-only look uses an
//! `Access` without an `Operation`. An `Operation` consumes an `Access` and adds edits. An error
//! before an operation's first edit changes nothing. After an error past the first edit (a tree
//! block that cannot be read), half of the operation is in memory. No commit may write half an
//! operation, so writing stops, and changes since the last commit are lost.
//!
//! No operation waits for a device under the edit lock. Before its first edit, an operation finds
//! tree blocks only in memory. If a block is missing, `attempt` releases the edit lock, reads the
//! block, and retries. An operation's code before its first edit may therefore run several times.
//! `Operation::begin` marks the beginning of work that must not run twice. Before the first edit,
//! an operation loads the paths to its edits (`Access::reach`).
//!
//! # Permissions
//!
//! Operations check no permissions: a caller of this library may do everything that root may do.
//! Operations enforce the limits that hold for root too: read-only subvolumes, immutable and
//! append-only inodes.
//!
//! If several errors apply, the operation returns the one that the kernel's call would return.
//!
//! Times, sizes, link counts, change counters and the order of names follow the kernel.

mod access;
pub mod access_times;
pub(crate) mod areas;
pub mod attributes;
pub mod create;
pub mod deferred_names;
mod device_statistics;
pub(crate) mod entries;
pub(crate) mod inherit;
pub mod link;
pub mod many_files;
mod nesting;
mod new_inode;
pub mod orphan;
mod quota_inheritance;
mod quota_removal;
pub mod quotas;
pub mod rename;
pub mod set_xattr;
pub mod subvolumes;
#[cfg(test)]
pub(crate) mod tests;
pub mod unfinished;
mod whole_file;

pub(crate) use access::Access;
pub use access_times::{AccessPolicy, AccessTimes};
pub use attributes::AttributeChanges;
pub use buttress_fs::NodeKind;
pub use deferred_names::RefusedName;
pub use many_files::NewFile;
pub use new_inode::{NewInode, NewKind};
pub use orphan::OpenInode;
pub use quotas::{QuotaLimit, Rescanned};
pub use rename::RenameMode;
pub use set_xattr::SetXattr;
pub use subvolumes::ReceivedUuid;
pub use unfinished::{FinishedSubvolume, Received};

use crate::WritableFilesystem;
use buttress_engine::freezing::Prepared;
use buttress_engine::reservation::{Handle, Need};
use buttress_engine::retry::{Attempted, Retry};
use buttress_engine::running::Running;
use buttress_engine::steps::StepsLock;
use buttress_format::{ByteCount, InodeItem};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use buttress_locks::{Excused, RwLockWriteGuard};
use core::cell::Cell;
use core::ops::{Deref, DerefMut};

/// An operation while it holds the edit lock: lookups and edits. See the module's documentation for
/// how an operation runs.
pub(crate) struct Operation<'a> {
    access: Access<'a>,
    edits: Option<Edits<'a>>,
    /// Whether the operation is upkeep: it completes earlier work, and no caller requested it.
    is_upkeep: bool,
    /// Whether the operation returned, with a result or an error. A panic leaves this false.
    has_returned: bool,
}

/// The state of an operation from its first edit on, or from work that must not run twice.
struct Edits<'a> {
    _whole: Steps<'a>,
    /// Whether the operation edited anything. After the first edit, errors stop writing instead of
    /// going to the caller.
    any: bool,
}

/// How far an operation has progressed.
#[derive(Clone, Copy)]
enum Progress {
    /// The operation has changed nothing, and may run again.
    NotBegun,
    /// The operation has begun its edits.
    Begun,
}

/// The steps lock, held from the first edit to the last: live lookups see all of the operation or
/// nothing.
type Steps<'a> = Option<RwLockWriteGuard<'a, (), StepsLock>>;

impl<'a> From<Access<'a>> for Operation<'a> {
    fn from(access: Access<'a>) -> Self {
        Self {
            access,
            edits: None,
            is_upkeep: false,
            has_returned: false,
        }
    }
}

/// Stops writing if a panic interrupted the operation after its first edit. The operation still
/// holds the edit lock, so no commit can contain its edits.
impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let has_edited = self.edits.as_ref().is_some_and(|edits| edits.any);
        if has_edited && !self.has_returned {
            self.access.stop_writing(&"a thread panicked during a change");
        }
    }
}

impl<'a> Deref for Operation<'a> {
    type Target = Access<'a>;

    fn deref(&self) -> &Access<'a> {
        &self.access
    }
}

impl DerefMut for Operation<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.access
    }
}

impl WritableFilesystem {
    /// Runs an operation under the edit lock. The module's documentation states how often `body`
    /// may run.
    ///
    /// An operation may need more space than its `Need`, as preallocation does. If the operation
    /// finds no space, a trim may hold space, so the operation runs once more while trims are
    /// blocked.
    pub(crate) fn operate<T>(
        &self,
        need: Need,
        mut body: impl FnMut(&mut Operation<'_>) -> Result<T>,
    ) -> Result<T> {
        match self.run(|| self.start(need), &mut body) {
            (Err(Error::NoSpace { .. }), Progress::NotBegun)
                if !buttress_faults::on("space-of-trim-unawaited") =>
            {
                let no_trim = self.hold_off_trims();
                self.run(|| self.start_without_trim(&no_trim, need), body).0
            }
            (result, _) => result,
        }
    }

    /// Runs an operation as [`operate`](Self::operate) does. If the operation's worst case does not
    /// fit beside dirty data, writes the data back and retries. The caller holds no file lock.
    pub(crate) fn operate_beside_data<T>(
        &self,
        need: Need,
        mut body: impl FnMut(&mut Operation<'_>) -> Result<T>,
    ) -> Result<T> {
        self.quotas()
            .with_current(|| match self.operate(need, &mut body) {
                Err(Error::NoSpace { .. }) if self.data().delalloc_bytes() > 0 => {
                    self.writeback().write_all()?;
                    self.operate(need, &mut body)
                }
                done => done,
            })
    }

    /// Runs an operation that changes only state in memory, such as open handles of inodes. An
    /// operation on state in memory needs no space.
    pub(crate) fn note<T>(&self, body: impl FnMut(&mut Operation<'_>) -> Result<T>) -> Result<T> {
        self.run(|| Ok(self.start_reading()), body).0
    }

    fn run<'a, T>(
        &'a self,
        start: impl Fn() -> Result<Handle<'a>>,
        body: impl FnMut(&mut Operation<'a>) -> Result<T>,
    ) -> (Result<T>, Progress) {
        let progress = Cell::new(Progress::NotBegun);
        let result = self.attempt(
            start,
            body,
            |operation: &Operation<'a>| operation.may_retry(),
            |operation, result| {
                if operation.edits.is_some() {
                    progress.set(Progress::Begun);
                }
                self.end(operation, result)
            },
        );
        (result, progress.get())
    }

    /// Runs a lookup of the running transaction with the lookups of operations.
    pub(crate) fn read_under_lock<T>(&self, body: impl FnMut(&mut Access<'_>) -> Result<T>) -> Result<T> {
        self.attempt(
            || Ok(self.start_reading()),
            body,
            |access: &Access<'_>| access.may_retry(),
            |_, result| result,
        )
    }

    /// Runs an operation once under an edit lock that the caller holds. The operation reads missing
    /// blocks itself.
    pub(crate) fn operate_on<T>(
        &self,
        handle: Handle<'_>,
        body: impl FnOnce(&mut Operation<'_>) -> Result<T>,
    ) -> Result<T> {
        let _excused = Excused::from_device_rule();
        let mut operation = Operation::from(Access::reading(handle));
        let result = body(&mut operation);
        self.end(operation, result)
    }

    /// Runs an operation on the state that a commit freezes, before any other edit. If the
    /// operation's need finds no space, a trim may hold space, or a commit may free space. The call
    /// waits for the trim and the commit, and retries once.
    pub(super) fn operate_at_commit<T>(
        &self,
        need: Need,
        body: impl Fn(&mut Operation<'_>, Option<&Prepared>) -> Result<T>,
    ) -> Result<T> {
        let once = || {
            let (_, done) = self.commit_for_snapshot(|handle, committing| {
                self.operate_on(handle, |operation| {
                    operation.require_space(need)?;
                    body(operation, committing)
                })
            })?;
            done
        };
        match once() {
            Err(Error::NoSpace { .. })
                if self.require_writing().is_ok() && !buttress_faults::on("space-of-trim-unawaited") =>
            {
                drop(self.start(need)?);
                once()
            }
            done => done,
        }
    }

    /// Runs `body` with access to the running transaction. If `body` misses a block that it may not
    /// read, reads that block without the lock and runs `body` again. Only a missing block makes
    /// `body` run again.
    fn attempt<'a, A: From<Access<'a>>, T>(
        &'a self,
        start: impl Fn() -> Result<Handle<'a>>,
        mut body: impl FnMut(&mut A) -> Result<T>,
        may_retry: impl Fn(&A) -> bool,
        end: impl Fn(A, Result<T>) -> Result<T>,
    ) -> Result<T> {
        let mut retry = Retry::default();
        loop {
            let mut access = A::from(Access::resident_only(start()?));
            let result = body(&mut access);
            let misses_block = result
                .as_ref()
                .is_err_and(|error| error.missing_block().is_some());
            if !misses_block || !may_retry(&access) {
                return end(access, result);
            }
            drop(access);
            match retry.after(self.forest(), result) {
                Attempted::Done(result) => return result,
                Attempted::Again => {}
                Attempted::Futile => break,
            }
        }
        let _excused = Excused::from_device_rule();
        let mut access = A::from(Access::reading(start()?));
        let result = body(&mut access);
        end(access, result)
    }

    fn end<T>(&self, mut operation: Operation<'_>, result: Result<T>) -> Result<T> {
        operation.has_returned = true;
        let is_half_done = operation.edits.as_ref().is_some_and(|edits| edits.any);
        if is_half_done && result.is_ok() && !operation.is_upkeep {
            // Count the change under the lock, because a commit records how many changes it
            // contains.
            self.count_change();
        }
        drop(operation);
        if let Err(error) = &result
            && is_half_done
        {
            self.forest().volume().stop_writing(error);
        }
        result
    }
}

impl<'a> Operation<'a> {
    /// Returns the running transaction for edits.
    pub(crate) fn edit(&mut self) -> &mut Running {
        self.begun().any = true;
        self.access.transaction_mut()
    }

    /// Returns the running transaction for work that must not run twice: from here on the operation
    /// is not retried.
    pub(crate) fn begin(&mut self) -> &mut Running {
        self.begun();
        self.access.transaction_mut()
    }

    fn begun(&mut self) -> &mut Edits<'a> {
        let access = &mut self.access;
        access.retry_no_more();
        self.edits.get_or_insert_with(|| {
            let whole = !buttress_faults::on("live-operation-half-seen");
            Edits {
                _whole: whole.then(|| access.steps().write()),
                any: false,
            }
        })
    }

    /// Returns the running transaction for allocating data space. Allocating is no edit, so its
    /// errors go to the caller.
    pub(crate) fn ledgers(&mut self) -> &mut Running {
        self.access.transaction_mut()
    }

    /// Marks the operation as upkeep. If upkeep work is lost, the next opening repeats it, or
    /// another change already counts it.
    pub(crate) const fn be_upkeep(&mut self) {
        self.is_upkeep = true;
    }

    pub(crate) fn change_inode(
        &mut self,
        location: Location,
        change: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let now = self.now();
        let running = self.edit();
        running.touch_root(location.subvolume.tree(), now)?;
        running.inode_items().change(location, change)
    }

    /// Checks that an edit's worst case fits into the free space, for operations that started
    /// without a reservation.
    pub(super) fn require_space(&mut self, need: Need) -> Result<()> {
        // If the operation is retried, a chunk made for its need still exists.
        if self.access.transaction_mut().reserve_space(need)? {
            return Ok(());
        }
        Err(self.lookups().no_metadata_space(need))
    }

    /// Adds a new name to a directory's size, and updates the directory.
    pub(super) fn grow_directory(&mut self, directory: Location, name: &[u8]) -> Result<()> {
        let bytes = ByteCount::of(name.len()).get().saturating_mul(2);
        self.touch_directory(directory, 1, |size| size.saturating_add(bytes))
    }

    /// Adds new names to a directory's size, and updates the directory.
    pub(super) fn grow_directory_by<'n>(
        &mut self,
        directory: Location,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<()> {
        let (mut count, mut bytes) = (0_u64, 0_u64);
        for name in names {
            count = count.saturating_add(1);
            bytes = bytes.saturating_add(ByteCount::of(name.len()).get().saturating_mul(2));
        }
        self.touch_directory(directory, count, |size| size.saturating_add(bytes))
    }

    /// Subtracts a removed name from a directory's size, and updates the directory.
    pub(super) fn shrink_directory(&mut self, directory: Location, name: &[u8]) -> Result<()> {
        let bytes = ByteCount::of(name.len()).get().saturating_mul(2);
        self.touch_directory(directory, 1, |size| size.saturating_sub(bytes))
    }

    /// Records `count` changes of a directory's names in its inode.
    fn touch_directory(
        &mut self,
        directory: Location,
        changes: u64,
        size: impl FnOnce(u64) -> u64,
    ) -> Result<()> {
        let now = self.now();
        self.change_inode(directory, |item| {
            item.size = ByteCount::new(size(item.size.get()));
            item.sequence = item.sequence.wrapping_add(changes);
            item.mtime = now;
            item.ctime = now;
        })
    }

    /// Records a change of an inode's attributes or names.
    pub(super) fn touch_inode(&mut self, location: Location) -> Result<()> {
        let now = self.now();
        self.change_inode(location, |item| {
            if !buttress_faults::on("inode-change-counter-kept") {
                item.sequence = item.sequence.wrapping_add(1);
            }
            item.ctime = now;
        })
    }
}
