//! Notices about a volume that are no failures: the volume is still read.

use buttress_format::{Generation, Logical, TreeId};
use core::fmt;

/// A fact about the volume that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A notice about the volume's devices.
    Volume(buttress_volume::Notice),
    /// A log tree holds synced changes, which the view shows as if the log had been replayed.
    LogReplayed {
        /// The commit that the log follows.
        generation: Generation,
    },
    /// A log tree holds synced changes, but cannot be replayed. The volume is read as of its last
    /// commit.
    LogNotReplayed {
        /// The commit that the log follows.
        generation: Generation,
        /// The reason.
        reason: String,
    },
    /// A log tree holds synced changes, and is not replayed. The volume is read as of its last
    /// commit.
    PendingLog {
        /// The root of the log tree.
        logical: Logical,
        /// The level of the log tree's root.
        level: u8,
        /// The commit that the log follows.
        generation: Generation,
    },
    /// The root tree could not be read, and a backup root of the superblock is used.
    BackupRootUsed {
        /// The index of the backup root, among four.
        slot: usize,
        /// The commit of the backup root.
        generation: Generation,
        /// The reason why the superblock's own root was not used.
        reason: String,
    },
    /// A tree is missing, or its root cannot be read. Operations that do not need the unreadable
    /// tree still work.
    TreeUnreadable {
        /// The tree.
        tree: TreeId,
        /// The reason.
        reason: String,
    },
    /// Data is read without verification, because the options ask for it.
    DataUnverified,
}

impl Notice {
    /// Returns true if the notice states that an older state is shown.
    #[must_use]
    pub const fn is_older_state(&self) -> bool {
        matches!(self, Self::Volume(buttress_volume::Notice::OlderState { .. }))
    }
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
