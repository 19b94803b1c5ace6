//! The log tree: the inodes that were synced since the last commit.
//!
//! A log is written beside the last commit, whose superblock names it. For each subvolume it holds
//! items of the inodes that were synced, in the form of the subvolume's tree. The next opening for
//! writing replays the log: the items become part of the subvolumes in one transaction. A commit
//! makes the log obsolete.
//!
//! | module | holds |
//! |---|---|
//! | `syncing` | `fsync` and `fdatasync`: what a sync writes, and when |
//! | `logs` | the logs of a volume, and their locks |
//! | `subvolume_log` | the content of one subvolume's log |
//! | `deciding` | the choice of a sync: nothing, a batch for the log, or a commit |
//! | `batch`, `inode_batch` | the items that a sync adds to a log: of all inodes, of each inode |
//! | `writing` | a round of writing logs |
//! | `collecting` | the new parts of an inode, and the inodes that must be logged with it |
//! | `content`, `entries`, `removals` | items of files, of directories, of removed names |
//! | `gathered`, `gathering` | many inodes read in one pass |
//! | `editor` | the log's own trees |
//! | `statistics` | counters |
//! | `replay` | the effect of log items on the subvolumes |
//! | `in_memory` | a volume opened for reading, shown with its log replayed |
//!
//! docs/log-tree.md has the promises and the mechanism.
//!
//! Source: on-disk format documentation, section "Log tree". The results of replay were learnt from
//! logs that the kernel wrote and replayed.

mod batch;
mod collecting;
mod content;
mod deciding;
mod editor;
mod entries;
mod gathered;
mod gathering;
mod in_memory;
mod inode_batch;
mod inode_set;
pub(crate) mod logs;
mod removals;
mod replay;
mod statistics;
mod subvolume_log;
mod syncing;
#[cfg(test)]
mod tests;
mod writing;

pub use in_memory::{Shown, open_replayed};
pub use statistics::{CommitCause, LogStatistics};
pub use syncing::Synced;

use buttress_engine::opening::refuse;
use buttress_engine::replacement::{is_open, replacement_item};
use buttress_format::Logical;
use buttress_fs::Filesystem;
use buttress_fs::error::{Error, Result, WritingRefusal};

/// Drops the pending log of a volume that was opened from writable devices, without reading it.
/// Changes that were synced after the last commit are lost. Returns the address of the log root, if
/// there was a log.
///
/// # Errors
/// Fails with [`buttress_fs::Error::WritingRefused`] for a refused state or feature, or with an
/// error of a device.
pub fn drop_log(filesystem: &Filesystem) -> Result<Option<Logical>> {
    let root = filesystem.superblock().log_root;
    if root == Logical::MIN {
        return Ok(None);
    }
    refuse(filesystem)?;
    if replacement_item(filesystem)?.is_some_and(|item| is_open(&item)) {
        return Err(Error::WritingRefused(WritingRefusal::State {
            name: "a replacement of a device that has not come to its end",
            remedy: "open the volume for writing, which replays the log",
        }));
    }
    filesystem.volume().write_log_root(Logical::MIN, 0)?;
    Ok(Some(root))
}
