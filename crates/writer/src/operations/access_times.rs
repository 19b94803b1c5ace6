//! Times of the last access, which reads set.
//!
//! A call that reads content, lists a directory or follows a symlink reports the access with
//! [`WritableFilesystem::note_access`]. An access changes only the access time: no other time, and
//! no change counter.
//!
//! Sources: mount(8), options `relatime`, `strictatime`, `noatime` and `nodiratime`;
//! ioctl_iflags(2), `FS_NOATIME_FL`.

use crate::WritableFilesystem;
use buttress_engine::reservation::Need;
use buttress_format::{FileKind, FileOffset, InodeFlags, InodeItem, Timestamp};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use core::ops::Range;

/// The number of items that an access changes: the inode item.
const ACCESS_ITEMS: u64 = 1;

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Which accesses update the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Counts the first access after a change of the inode, and the first access after a day.
    #[default]
    Relative,
    /// Every access.
    Strict,
    /// No access.
    Never,
}

/// The rules by which accesses update access times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessPolicy {
    /// The rule by which accesses count, such as `relatime`.
    pub times: AccessTimes,
    /// Whether accesses of directories are ignored.
    pub without_directories: bool,
}

impl AccessPolicy {
    /// Returns whether an access at `now` updates the access time of an inode.
    fn moves(self, item: &InodeItem, now: Timestamp) -> bool {
        if item.flags.contains(InodeFlags::NOATIME) || item.atime == now {
            return false;
        }
        if self.without_directories && item.kind() == FileKind::Directory {
            return false;
        }
        match self.times {
            AccessTimes::Never => false,
            AccessTimes::Strict => true,
            AccessTimes::Relative => {
                let is_older = item.atime <= item.mtime || item.atime <= item.ctime;
                // An access time in the future is not older than a day.
                let age = now.seconds.saturating_sub(item.atime.seconds);
                is_older || age >= DAY_SECONDS
            }
        }
    }
}

impl WritableFilesystem {
    /// Records an access of an inode, if `policy` counts it. Returns whether the access time
    /// changed. The access time never changes in a read-only subvolume, nor for a placeholder of a
    /// missing subvolume.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], [`Error::NoSpace`], or with an error of the tree.
    pub fn note_access(&self, location: Location, policy: AccessPolicy) -> Result<bool> {
        if policy.times == AccessTimes::Never || location.placeholder().is_some() {
            return Ok(false);
        }
        // Nearly always the access time stays unchanged, so no edit begins.
        if !self.moves_access_time(location, policy)? {
            return Ok(false);
        }
        self.operate(Need::places(ACCESS_ITEMS), |operation| {
            match operation.require_writable(location) {
                Err(Error::ReadOnlySubvolume { .. }) => return Ok(false),
                is_writable => is_writable?,
            }
            operation.inode(location)?;
            let now = operation.now();
            operation.change_inode(location, |item| item.atime = now)?;
            Ok(true)
        })
    }

    /// Records a direct read (`O_DIRECT`) of a range as Linux's btrfs does: the read counts only if
    /// Linux would serve it from the page cache. The caller reads first, so that this call sees the
    /// extents that the caller read. Returns whether the access time changed.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::note_access`] does.
    pub fn note_direct_read(
        &self,
        location: Location,
        range: &Range<FileOffset>,
        policy: AccessPolicy,
    ) -> Result<bool> {
        let may_move = policy.times != AccessTimes::Never && self.moves_access_time(location, policy)?;
        if !may_move || self.live().is_read_directly(location, range)? {
            return Ok(false);
        }
        self.note_access(location, policy)
    }

    /// Returns whether an access now would update the access time.
    fn moves_access_time(&self, location: Location, policy: AccessPolicy) -> Result<bool> {
        Ok(self.moves_access_time_of(&self.live().inode(location)?.0, policy))
    }

    /// Returns whether an access now would update the access time of an inode with this item.
    pub(crate) fn moves_access_time_of(&self, item: &InodeItem, policy: AccessPolicy) -> bool {
        policy.moves(item, self.now())
    }
}
