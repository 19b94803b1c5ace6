//! What a user should know about a volume that is read all the same.

use buttress_format::{Generation, Logical, TreeId};
use core::fmt;

/// Something about the volume that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Something about its devices.
    Volume(buttress_volume::Notice),
    /// Synced changes wait in a log tree, and are shown as if it had been replayed.
    LogReplayed {
        /// The commit that it follows.
        generation: Generation,
    },
    /// Synced changes wait in a log tree that cannot be replayed: the volume is read as of its last commit.
    LogNotReplayed {
        /// The commit that it follows.
        generation: Generation,
        /// Why.
        reason: String,
    },
    /// Synced changes wait in a log tree that is not replayed: the volume is read as of its last commit.
    PendingLog {
        /// The root of the log tree.
        logical: Logical,
        /// Its level.
        level: u8,
        /// The commit that it follows.
        generation: Generation,
    },
    /// The root tree could not be read; one of the backup roots in the superblock was taken.
    BackupRootUsed {
        /// Which of the four.
        slot: usize,
        /// The commit that it belongs to.
        generation: Generation,
        /// Why the superblock's own root was passed over.
        reason: String,
    },
    /// A tree is missing or its root cannot be read. What does not need it can still be read.
    TreeUnreadable {
        /// The tree.
        tree: TreeId,
        /// Why.
        reason: String,
    },
    /// Data is read without looking at checksums, as asked for.
    DataUnverified,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(notice) => fmt::Display::fmt(notice, f),
            Self::PendingLog {
                logical,
                level,
                generation,
            } => write!(
                f,
                "a log tree is pending (root {logical}, level {level}, after generation {generation}). This command shows the last commit; the log is replayed when the volume is opened for writing (to silence this, use rescue=nologreplay)"
            ),
            Self::LogReplayed { generation } => write!(
                f,
                "a log tree is pending after generation {generation}. It is replayed in memory, so synced changes are visible and nothing is written (to see the last commit, use rescue=nologreplay)"
            ),
            Self::LogNotReplayed { generation, reason } => write!(
                f,
                "a log tree is pending after generation {generation} and cannot be replayed, so changes synced since are not visible: {reason} (to silence this, use rescue=nologreplay; to delete the log, run `buttress rescue zero-log`)"
            ),
            Self::BackupRootUsed {
                slot,
                generation,
                reason,
            } => write!(
                f,
                "the volume is read in the state of generation {generation}, from backup root {slot}: {reason}"
            ),
            Self::TreeUnreadable { tree, reason } => write!(f, "tree {tree} cannot be read: {reason}"),
            Self::DataUnverified => f.write_str("data is read without verifying its checksums"),
        }
    }
}

impl From<buttress_volume::Notice> for Notice {
    fn from(notice: buttress_volume::Notice) -> Self {
        Self::Volume(notice)
    }
}
