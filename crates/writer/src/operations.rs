//! File operations: names, inodes, attributes.
//!
//! All are calls on [`WritableFilesystem`] that name inodes by [`Location`] and entries by directory and name; paths
//! are the caller's ([`Filesystem::resolve`](buttress_fs::Filesystem::resolve) on a view). Each is one edit of the running
//! transaction: it happens wholly or not at all, and becomes durable with the next commit.
//!
//! | module | holds |
//! |---|---|
//! | [`create`] | files, directories, nodes, symlinks, unnamed files |
//! | [`link`] | names that come and go: link, unlink, rmdir |
//! | [`rename`] | rename in all its forms |
//! | [`attributes`] | mode, owner, times, flags |
//! | [`access_times`] | times of the last access |
//! | [`set_xattr`] | extended attributes, and what some of them mean |
//! | `device_statistics` | statistics of device errors, set to zero |
//! | [`subvolumes`] | subvolumes and snapshots, as directories hold them; the label |
//! | [`unfinished`] | subvolumes that nobody sees before they are whole |
//! | [`deferred_names`] | names of such subvolumes that wait, so that many go into each leaf at once |
//! | `whole_file` | small files that are made at once, with their content; other inodes with their attributes |
//! | [`many_files`] | many of them at once |
//! | `inherit` | what a directory gives to new inodes |
//! | [`orphan`] | inodes without names: held open, or cleaned up |
//! | `entries` | the items of names |
//!
//! # How an operation runs
//!
//! First everything is looked up and checked; only then does it edit. An error before the first edit leaves everything as
//! it was. An error after it (a tree block that cannot be read) leaves half an operation in memory: that must never be
//! committed, so writing stops, and what was not committed is lost.
//!
//! No device is waited for under the edit lock: before its first edit an operation finds tree blocks only in memory. Where
//! one is not there, the lock is let go, the block is read, and the operation is retried. So what it does before the
//! first edit may be done several times (`Operation::begin` is for what must not), and it goes to where it is going to
//! edit while it still can (`Operation::reach`).
//!
//! # Permissions
//!
//! There are none: a caller of this library may do what root may. What holds for root, too, is enforced: read-only
//! subvolumes, immutable and append-only inodes.
//!
//! Where several things are wrong, the error is the one that the kernel's calls would end with.
//!
//! Times, sizes, link counts, change counters and the order of names are kept as the kernel keeps them.

pub mod access_times;
pub mod attributes;
pub mod create;
pub mod deferred_names;
mod device_statistics;
pub(crate) mod entries;
pub(crate) mod inherit;
pub mod link;
pub mod many_files;
pub mod orphan;
pub mod rename;
pub mod set_xattr;
pub mod subvolumes;
#[cfg(test)]
pub(crate) mod tests;
pub mod unfinished;
mod whole_file;

pub use access_times::{AccessPolicy, AccessTimes};
pub use attributes::AttributeChanges;
pub use buttress_fs::NodeKind;
pub use create::NewInode;
pub use deferred_names::RefusedName;
pub use many_files::NewFile;
pub use orphan::OpenInode;
pub use rename::RenameMode;
pub use set_xattr::SetXattr;
pub use subvolumes::ReceivedUuid;
pub use unfinished::{FinishedSubvolume, Received};
pub use whole_file::NewKind;

use crate::WritableFilesystem;
use buttress_engine::checksums::checksum_key;
use buttress_engine::reservation::{Handle, Need};
use buttress_engine::retry::{Looked, Retry};
use buttress_engine::running::Running;
use buttress_engine::steps::StepsLock;
use buttress_format::{
    ByteCount, FileKind, Generation, Incompat, InodeFlags, InodeItem, Key, Logical, RootItem, SubvolumeId,
    Timestamp, TreeId,
};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use buttress_locks::{Excused, RwLockWriteGuard};
use buttress_tree::{NonBlocking, OwnedItem, Tree};
use std::path::PathBuf;

/// One operation while it holds the edit lock. See the module.
pub(crate) struct Operation<'a> {
    handle: Handle<'a>,
    now: Timestamp,
    /// Held from the first edit: live look-ups see all of the operation, or nothing.
    steps: Option<RwLockWriteGuard<'a, (), StepsLock>>,
    /// Whether anything was edited: from there on an error is not the caller's.
    changed: bool,
    /// While nothing was: it can be retried, so a block that is not in memory is read without the lock.
    resident_only: Option<NonBlocking>,
    /// Whether it is nobody's change, but what an earlier one left to do.
    is_upkeep: bool,
    /// What is looked for is going to be edited after a snapshot of this subvolume.
    pub(crate) follows_snapshot_of: Option<SubvolumeId>,
}

impl WritableFilesystem {
    /// Runs an operation under the edit lock. See the module on how often `body` may be run.
    pub(crate) fn operate<T>(
        &self,
        need: Need,
        body: impl FnMut(&mut Operation<'_>) -> Result<T>,
    ) -> Result<T> {
        self.attempt(|| self.start(need), body)
    }

    /// Runs an operation as [`operate`](Self::operate). If its worst case does not fit beside dirty data, writes that back and retries.
    /// The caller holds no file's content.
    pub(crate) fn operate_beside_data<T>(
        &self,
        need: Need,
        mut body: impl FnMut(&mut Operation<'_>) -> Result<T>,
    ) -> Result<T> {
        match self.operate(need, &mut body) {
            Err(Error::NoSpace { .. }) if self.data().delalloc_bytes() > 0 => {
                self.write_back()?;
                self.operate(need, body)
            }
            done => done,
        }
    }

    /// Looks at the running transaction with what operations have for that. Nothing may be edited.
    pub(crate) fn look<T>(&self, body: impl FnMut(&mut Operation<'_>) -> Result<T>) -> Result<T> {
        self.attempt(|| Ok(self.start_to_look()), body)
    }

    /// Runs an operation under a lock that is held already: once, reading what it needs.
    pub(crate) fn operate_on<T>(
        &self,
        handle: Handle<'_>,
        body: impl FnOnce(&mut Operation<'_>) -> Result<T>,
    ) -> Result<T> {
        let _excused = Excused::from_device_rule();
        let mut operation = Operation::new(handle, None);
        let result = body(&mut operation);
        self.end(operation, result)
    }

    fn attempt<'a, T>(
        &'a self,
        start: impl Fn() -> Result<Handle<'a>>,
        mut body: impl FnMut(&mut Operation<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut retry = Retry::default();
        loop {
            let mut operation = Operation::new(start()?, Some(NonBlocking::hold()));
            let result = body(&mut operation);
            let wants_block = result
                .as_ref()
                .is_err_and(|error| error.missing_block().is_some());
            if !wants_block || operation.resident_only.is_none() {
                return self.end(operation, result);
            }
            drop(operation);
            match retry.after(self.forest(), result) {
                Looked::Done(result) => return result,
                Looked::Again => {}
                Looked::Futile => return self.operate_on(start()?, body),
            }
        }
    }

    fn end<T>(&self, operation: Operation<'_>, result: Result<T>) -> Result<T> {
        let is_half_done = operation.changed;
        if is_half_done && result.is_ok() && !operation.is_upkeep {
            // While the lock is held: a commit counts what it has.
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
    fn new(handle: Handle<'a>, resident_only: Option<NonBlocking>) -> Self {
        Self {
            now: handle.now(),
            handle,
            steps: None,
            changed: false,
            resident_only,
            is_upkeep: false,
            follows_snapshot_of: None,
        }
    }
}

impl Operation<'_> {
    /// The running transaction, to be edited.
    pub(crate) fn edit(&mut self) -> &mut Running {
        self.changed = true;
        self.begin()
    }

    /// The running transaction, for what must not be done twice: from here on the operation is not retried.
    pub(crate) fn begin(&mut self) -> &mut Running {
        self.resident_only = None;
        if self.steps.is_none() && !buttress_faults::on("live-operation-half-seen") {
            self.steps = Some(self.handle.steps().write());
        }
        &mut self.handle
    }

    /// Says that this is nobody's change: when it is lost, it is done again at the next opening, or counted otherwise.
    pub(crate) const fn be_upkeep(&mut self) {
        self.is_upkeep = true;
    }

    /// Goes to where these keys are or would be, so that edits there find their way in memory.
    pub(crate) fn reach(&mut self, tree: TreeId, keys: &[Key]) -> Result<()> {
        let follows_snapshot = self.follows_snapshot_of.is_some_and(|of| of.tree() == tree);
        keys.iter().try_for_each(|key| {
            if follows_snapshot {
                self.handle.reach_after_snapshot(tree, key)
            } else {
                self.handle.reach(tree, key)
            }
        })
    }

    /// Goes to where the checksums of new data are going to be.
    pub(crate) fn reach_checksums(&mut self, logical: Logical) -> Result<()> {
        self.reach(TreeId::CHECKSUM, &[checksum_key(logical.get())])
    }

    /// The running transaction, to be looked at.
    pub(crate) fn look(&mut self) -> &mut Running {
        &mut self.handle
    }

    pub(crate) fn get(&mut self, tree: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        self.handle.get(tree, key)
    }

    pub(crate) fn view_of(&mut self, tree: TreeId) -> Result<Tree> {
        self.handle.view(tree)
    }

    pub(crate) fn inode(&mut self, location: Location) -> Result<InodeItem> {
        self.handle.inode(location)
    }

    pub(crate) fn change_inode(
        &mut self,
        location: Location,
        change: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let now = self.now;
        let running = self.edit();
        running.touch_root(location.subvolume.tree(), now)?;
        running.change_inode(location, change)
    }

    pub(crate) fn generation(&self) -> Generation {
        self.handle.running_generation()
    }

    /// The time of the operation: one for all that it changes.
    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn node_bytes(&self) -> u32 {
        self.handle.core.format.node_bytes
    }

    pub(crate) fn has(&self, feature: Incompat) -> bool {
        self.handle.core.has(feature)
    }

    /// Refuses when an edit at its worst does not fit: for operations that did not ask for room when they started.
    pub(super) fn require_space(&mut self, need: Need) -> Result<()> {
        // A chunk that was made for room is there when the operation is retried.
        if self.handle.reserve_space(need)? {
            return Ok(());
        }
        Err(self.look().no_metadata_space(need))
    }

    /// Refuses subvolumes that were deleted: what is still there of their trees only waits to be dropped.
    pub(crate) fn require_subvolume(&mut self, subvolume: SubvolumeId) -> Result<()> {
        let references = match self.look().root_item(subvolume.tree()) {
            Ok(item) => item.references,
            Err(Error::TreeNotFound { .. }) => 0,
            Err(error) => return Err(error),
        };
        if references == 0 && !self.is_unfinished(subvolume)? {
            return Err(Error::SubvolumeNotFound { subvolume });
        }
        Ok(())
    }

    /// Whether a subvolume is being made that nobody sees yet. Inode flags forbid nothing in there.
    pub(crate) fn is_unfinished(&mut self, subvolume: SubvolumeId) -> Result<bool> {
        match self.look().open_tree(subvolume.tree()) {
            Ok(open) => Ok(open.tree.is_unfinished()),
            // It was dropped.
            Err(Error::TreeNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Refuses read-only subvolumes, and deleted ones.
    pub(crate) fn require_writable(&mut self, location: Location) -> Result<()> {
        let subvolume = location.subvolume;
        self.require_subvolume(subvolume)?;
        let open = self.look().open_tree(subvolume.tree())?;
        if open.item.as_ref().is_some_and(RootItem::is_read_only) {
            return Err(Error::ReadOnlySubvolume { subvolume });
        }
        open.tree.know_writable();
        Ok(())
    }

    /// The inode of a directory that is still there.
    pub(super) fn require_directory(&mut self, directory: Location) -> Result<InodeItem> {
        let item = self.inode(directory)?;
        if item.kind() != FileKind::Directory {
            return Err(Error::NotADirectory {
                path: PathBuf::from(directory.to_string()),
            });
        }
        if item.nlink == 0 {
            return Err(Error::InodeNotFound { location: directory });
        }
        Ok(item)
    }

    /// Refuses directories to which no names can be added.
    pub(super) fn require_adding(&mut self, directory: Location, item: &InodeItem) -> Result<()> {
        if item.flags.contains(InodeFlags::IMMUTABLE) && !self.is_unfinished(directory.subvolume)? {
            return Err(Error::NotPermitted {
                location: directory,
                why: "it is immutable",
            });
        }
        self.require_writable(directory)
    }

    /// Refuses directories from which no names can be taken.
    pub(super) fn require_removing(&mut self, directory: Location, item: &InodeItem) -> Result<()> {
        self.require_adding(directory, item)?;
        if item.flags.contains(InodeFlags::APPEND) && !self.is_unfinished(directory.subvolume)? {
            return Err(Error::NotPermitted {
                location: directory,
                why: "names can only be added to it",
            });
        }
        Ok(())
    }

    /// Refuses inodes that must keep their names and attributes.
    pub(super) fn require_changeable(&mut self, location: Location, item: &InodeItem) -> Result<()> {
        let why = if item.flags.contains(InodeFlags::IMMUTABLE) {
            "it is immutable"
        } else if item.flags.contains(InodeFlags::APPEND) {
            "it is append-only"
        } else {
            return Ok(());
        };
        if self.is_unfinished(location.subvolume)? {
            return Ok(());
        }
        Err(Error::NotPermitted { location, why })
    }

    /// Counts a name that a directory got.
    pub(super) fn grow_directory(&mut self, directory: Location, name: &[u8]) -> Result<()> {
        let bytes = ByteCount::of(name.len()).get().saturating_mul(2);
        self.touch_directory(directory, 1, |size| size.saturating_add(bytes))
    }

    /// Counts names that a directory got.
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

    /// Counts a name that a directory lost.
    pub(super) fn shrink_directory(&mut self, directory: Location, name: &[u8]) -> Result<()> {
        let bytes = ByteCount::of(name.len()).get().saturating_mul(2);
        self.touch_directory(directory, 1, |size| size.saturating_sub(bytes))
    }

    /// Counts so many changes of a directory's names.
    fn touch_directory(
        &mut self,
        directory: Location,
        changes: u64,
        size: impl FnOnce(u64) -> u64,
    ) -> Result<()> {
        let now = self.now;
        self.change_inode(directory, |item| {
            item.size = ByteCount::new(size(item.size.get()));
            item.sequence = item.sequence.wrapping_add(changes);
            item.mtime = now;
            item.ctime = now;
        })
    }

    /// Counts a change of an inode's attributes or names.
    pub(super) fn touch_inode(&mut self, location: Location) -> Result<()> {
        let now = self.now;
        self.change_inode(location, |item| {
            if !buttress_faults::on("inode-change-counter-kept") {
                item.sequence = item.sequence.wrapping_add(1);
            }
            item.ctime = now;
        })
    }
}
