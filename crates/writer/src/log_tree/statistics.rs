//! Counts of syncs, and of their outcomes.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// The reason why a sync had to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CommitCause {
    /// The subvolume was made since the last commit, so a replay would not find its tree.
    NewSubvolume,
    /// A subvolume was added to or removed from the directory. A log cannot record the move of a
    /// subvolume, because its references are in the root tree.
    SubvolumeMoved,
    /// A name that must survive was in a directory that is deleted.
    DirectoryGone,
    /// More names were removed since the last commit than the engine records.
    ManyNames,
    /// The changes exceed the limits of a log, so the sync commits and writes them once.
    Much,
    /// The running transaction made a chunk. A replay starts from the last commit and would not
    /// find data in that chunk.
    NewChunk,
    /// Free space for log blocks is lacking beside the commit's own needs.
    Space,
    /// An inode has items of types that logs never hold.
    OtherItems,
    /// A device failed while the log was written. Only a commit gives it an older generation than
    /// the other devices.
    DeviceLost,
    /// A failed sync left the log of the running transaction incomplete.
    Incomplete,
}

impl CommitCause {
    /// All causes.
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

    /// Returns the cause in a word or two.
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

/// Counts of syncs since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStatistics {
    /// The number of calls of `fsync` and `fdatasync`.
    pub syncs: u64,
    /// Syncs without any work, because everything was durable.
    pub unneeded: u64,
    /// Syncs that another call's log write made durable.
    pub joined: u64,
    /// Written logs: blocks, a flush, superblocks.
    pub written: u64,
    /// The number of written log blocks.
    pub blocks: u64,
    /// The bytes of the written log blocks.
    pub bytes: u64,
    /// The number of syncs that were commits, by cause.
    pub commits: Vec<(CommitCause, u64)>,
}

/// The counters behind [`LogStatistics`].
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
