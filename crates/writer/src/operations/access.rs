//! Lookups in the running transaction: the part of an operation before its first edit, and the
//! whole of a read-only call.
//!
//! An access makes no edits: an [`Operation`](super::Operation) consumes
//! an access and adds edits. The compiler therefore rejects a read-only lookup that makes edits.
//!
//! While an access [waits for no device](Access::may_retry), a lookup that misses a block ends with
//! an error. The caller then reads the block without the lock and retries.

use buttress_engine::checksums::checksum_key;
use buttress_engine::data_options::DataOptions;
use buttress_engine::lookups::Lookups;
use buttress_engine::reservation::Handle;
use buttress_engine::running::Running;
use buttress_engine::steps::Steps;
use buttress_format::{
    FileKind, Generation, Incompat, InodeFlags, InodeItem, Key, Logical, RootItem, SubvolumeId, Timestamp,
    TreeId,
};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use buttress_tree::{NonBlocking, OwnedItem, Tree};
use std::path::PathBuf;

/// Lookups in the running transaction, under the edit lock. See the module's documentation for the
/// rules of access.
pub(crate) struct Access<'a> {
    handle: Handle<'a>,
    now: Timestamp,
    /// Present while lookups may use only blocks in memory.
    resident_only: Option<NonBlocking>,
    /// The subvolume whose snapshot precedes the edits.
    pub(crate) follows_snapshot_of: Option<SubvolumeId>,
}

impl<'a> Access<'a> {
    /// Returns an access whose lookups read no block. The operation with this access may be
    /// retried.
    pub(super) fn resident_only(handle: Handle<'a>) -> Self {
        Self::new(handle, Some(NonBlocking::hold()))
    }

    /// Returns an access whose lookups read missing blocks.
    pub(super) fn reading(handle: Handle<'a>) -> Self {
        Self::new(handle, None)
    }

    fn new(handle: Handle<'a>, resident_only: Option<NonBlocking>) -> Self {
        Self {
            now: handle.now(),
            handle,
            resident_only,
            follows_snapshot_of: None,
        }
    }

    /// Returns the running transaction, for the edits of the operation that consumed this access.
    pub(super) fn transaction_mut(&mut self) -> &mut Running {
        &mut self.handle
    }

    /// The options of file data.
    pub(super) fn data_options(&self) -> &DataOptions {
        &self.handle.filesystem().data().options
    }

    /// Stops writing to the volume for good.
    pub(super) fn stop_writing(&self, cause: &dyn core::fmt::Display) {
        self.handle.filesystem().forest().volume().stop_writing(cause);
    }

    /// Returns the lock that makes an operation's edits visible together.
    pub(super) fn steps(&self) -> &'a Steps {
        self.handle.steps()
    }
}

impl Access<'_> {
    /// Returns whether a lookup that misses a block may be retried.
    pub(super) const fn may_retry(&self) -> bool {
        self.resident_only.is_some()
    }

    /// Ends retries: from here on lookups read missing blocks.
    pub(super) fn retry_no_more(&mut self) {
        self.resident_only = None;
    }

    /// Loads the paths to these keys, so that edits there find their blocks in memory.
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

    /// Loads the paths to the checksums of new data.
    pub(crate) fn reach_checksums(&mut self, logical: Logical) -> Result<()> {
        self.reach(TreeId::CHECKSUM, &[checksum_key(logical.get())])
    }

    /// Returns the lookups of the running transaction.
    pub(crate) fn lookups(&mut self) -> Lookups<'_> {
        Lookups::new(&mut self.handle)
    }

    pub(crate) fn get(&mut self, tree: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        self.handle.get(tree, key)
    }

    pub(crate) fn view_of(&mut self, tree: TreeId) -> Result<Tree> {
        self.handle.view(tree)
    }

    pub(crate) fn inode(&mut self, location: Location) -> Result<InodeItem> {
        self.handle.inode_items().item(location)
    }

    pub(crate) fn generation(&self) -> Generation {
        self.handle.running_generation()
    }

    /// Returns the time of the operation, the same for all of its changes.
    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn node_bytes(&self) -> u32 {
        self.handle.core.format.node_bytes
    }

    pub(crate) fn has(&self, feature: Incompat) -> bool {
        self.handle.core.has(feature)
    }

    /// Returns whether another refresh of the quota counters would change nothing, if the last one
    /// ended with the commit `refreshed`.
    pub(crate) fn quota_counters_are_settled(&self, refreshed: Option<Generation>) -> bool {
        let limits = &self.handle.core.quota_limits;
        let is_unchanged = |refreshed| self.handle.subvolumes_reach_the_same_since(refreshed);
        refreshed.is_some_and(is_unchanged) && !limits.has_charges()
    }

    /// Returns whether a rescan of classic quotas would write the same counters again.
    pub(crate) fn quota_counters_are_current(&self) -> bool {
        self.handle.quota_counters_are_current()
    }

    /// Ends the charges of landed data if the stored quota counters include all of it.
    pub(crate) fn settle_counted_charges(&self) {
        self.handle.settle_counted_charges();
    }

    /// Returns an error for a deleted subvolume, whose tree remains only until it is dropped.
    pub(crate) fn require_subvolume(&mut self, subvolume: SubvolumeId) -> Result<()> {
        let references = match self.lookups().root_item(subvolume.tree()) {
            Ok(item) => item.references,
            Err(Error::TreeNotFound { .. }) => 0,
            Err(error) => return Err(error),
        };
        if references == 0 && !self.is_unfinished(subvolume)? {
            return Err(Error::SubvolumeNotFound { subvolume });
        }
        Ok(())
    }

    /// Returns whether a subvolume is unfinished, so that no reader sees it. In an unfinished
    /// subvolume, inode flags forbid no change.
    pub(crate) fn is_unfinished(&mut self, subvolume: SubvolumeId) -> Result<bool> {
        match self.lookups().open_tree(subvolume.tree()) {
            Ok(open) => Ok(open.tree.is_unfinished()),
            // Another call dropped the subvolume's tree.
            Err(Error::TreeNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns an error for a read-only or deleted subvolume.
    pub(crate) fn require_writable(&mut self, location: Location) -> Result<()> {
        let subvolume = location.subvolume;
        self.require_subvolume(subvolume)?;
        let open = self.lookups().open_tree(subvolume.tree())?;
        if open.item.as_ref().is_some_and(RootItem::is_read_only) {
            return Err(Error::ReadOnlySubvolume { subvolume });
        }
        open.tree.know_writable();
        Ok(())
    }

    /// Returns the inode item of an existing directory.
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

    /// Returns an error for a directory to which no name can be added.
    pub(super) fn require_adding(&mut self, directory: Location, item: &InodeItem) -> Result<()> {
        if item.flags.contains(InodeFlags::IMMUTABLE) && !self.is_unfinished(directory.subvolume)? {
            return Err(Error::NotPermitted {
                location: directory,
                why: "it is immutable",
            });
        }
        self.require_writable(directory)
    }

    /// Returns an error for a directory from which no name can be removed.
    pub(super) fn require_removing(&mut self, directory: Location, item: &InodeItem) -> Result<()> {
        self.require_adding(directory, item)?;
        if item.flags.contains(InodeFlags::APPEND) && !self.is_unfinished(directory.subvolume)? {
            return Err(Error::NotPermitted {
                location: directory,
                why: "the directory is append-only",
            });
        }
        Ok(())
    }

    /// Returns an error for an inode whose names and attributes must not change.
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
}
