//! What was synced, and how.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Why a sync was a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CommitCause {
    /// The subvolume was made since the last commit: replaying would not find its tree.
    NewSubvolume,
    /// A subvolume came to the directory or left it: its references lie in the root tree.
    SubvolumeMoved,
    /// A name that must last left a directory which is gone itself.
    DirectoryGone,
    /// More names went since the last commit than are remembered.
    ManyNames,
    /// More is new than a log is good for: the commit writes it once.
    Much,
    /// The running transaction made a chunk: replaying, on the last commit, would not find what lies in it.
    NewChunk,
    /// There is no space for log blocks beside what the commit itself needs.
    Space,
    /// An inode has items that no log holds.
    OtherItems,
    /// A device was left out while the log was written: only a commit tells it from the others.
    DeviceLost,
    /// A failure left the log of the running transaction incomplete.
    Incomplete,
}

impl CommitCause {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::NewSubvolume,
        Self::SubvolumeMoved,
        Self::DirectoryGone,
        Self::ManyNames,
        Self::Much,
        Self::NewChunk,
        Self::Space,
        Self::OtherItems,
        Self::DeviceLost,
        Self::Incomplete,
    ];

    /// The cause in a word or two.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewSubvolume => "new-subvolume",
            Self::SubvolumeMoved => "subvolume-moved",
            Self::DirectoryGone => "directory-gone",
            Self::ManyNames => "many-names",
            Self::Much => "much",
            Self::NewChunk => "new-chunk",
            Self::Space => "space",
            Self::OtherItems => "other-items",
            Self::DeviceLost => "device-lost",
            Self::Incomplete => "incomplete",
        }
    }
}

impl fmt::Display for CommitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What syncs there were since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStatistics {
    /// Calls of `fsync` and `fdatasync`.
    pub syncs: u64,
    /// Those that had nothing to do: all was durable.
    pub unneeded: u64,
    /// Those that were made durable by what another one wrote.
    pub joined: u64,
    /// Logs that were written: blocks, a flush, superblocks.
    pub written: u64,
    /// Blocks of logs that were written.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Syncs that were commits, by cause.
    pub commits: Vec<(CommitCause, u64)>,
}

/// The same, while it is counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) syncs: AtomicU64,
    pub(super) unneeded: AtomicU64,
    pub(super) joined: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) bytes: AtomicU64,
    commits: [AtomicU64; CommitCause::ALL.len()],
}

pub(super) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn count_commit(&self, cause: CommitCause) {
        let counters = CommitCause::ALL.iter().zip(&self.commits);
        for (_, counter) in counters.filter(|(other, _)| **other == cause) {
            count(counter, 1);
        }
    }

    pub(super) fn read(&self) -> LogStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let commits = CommitCause::ALL.iter().zip(&self.commits);
        LogStatistics {
            syncs: read(&self.syncs),
            unneeded: read(&self.unneeded),
            joined: read(&self.joined),
            written: read(&self.written),
            blocks: read(&self.blocks),
            bytes: read(&self.bytes),
            commits: commits
                .map(|(cause, counter)| (*cause, read(counter)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}
