//! Uncommitted changes, counted so that their loss is always reported.
//!
//! A writer that ends without a commit leaves the volume at the last commit
//! (docs/decisions/0007-dropping-without-a-commit.md). The holder of the last handle either
//! [commits](crate::Engine::close) or [discards](crate::Engine::abandon) the uncommitted changes.
//! Dropping the last handle also discards the changes, and
//! [`Environment::lost`](super::Environment::lost) receives their counts.
//!
//! The counts of uncommitted changes are of changing calls and of written bytes. The counts are
//! upper bounds: a background commit between a change and its count leaves the change counted.

use buttress_format::{ByteCount, Generation, Timestamp};
use buttress_locks::Counter;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The changes that are not committed yet, or that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uncommitted {
    /// The number of changes of names, attributes, sizes, extents and subvolumes.
    pub changes: u64,
    /// The bytes of written content.
    pub content: ByteCount,
    /// The generation of the last commit, at which the volume stays.
    pub committed: Generation,
}

impl Uncommitted {
    /// Returns whether there are no uncommitted changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changes == 0 && self.content.get() == 0
    }
}

impl fmt::Display for Uncommitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = if self.changes == 1 { "change" } else { "changes" };
        let bytes = if self.content.get() == 1 { "byte" } else { "bytes" };
        let (count, content) = (self.changes, self.content.get());
        match (count, content) {
            (count, 0) => write!(f, "{count} {changes}"),
            (0, content) => write!(f, "{content} {bytes} of content"),
            (count, content) => write!(f, "{count} {changes} and {content} {bytes} of content"),
        }
    }
}

/// Counts of changes since the volume was opened, and the values of these counts at the last
/// commit.
#[derive(Debug, Default)]
pub struct Account {
    changes: AtomicU64,
    content_bytes: Counter,
    committed_changes: AtomicU64,
    committed_content_bytes: AtomicU64,
    /// The generation of the last commit, readable without the edit lock, for signal handlers.
    committed: AtomicU64,
    /// Whether uncommitted changes may be lost without a report.
    is_abandoned: AtomicBool,
}

/// The value of the change counts at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Counted(u64);

impl Account {
    /// Returns the counts of uncommitted changes for a volume whose last commit has this
    /// generation.
    pub fn new(committed: Generation) -> Self {
        let account = Self::default();
        account.set_committed(committed);
        account
    }

    /// Records that a commit is durable.
    pub fn set_committed(&self, committed: Generation) {
        self.committed.store(committed.get(), Ordering::SeqCst);
    }

    /// Returns the count of all changes so far, which a state frozen now contains.
    pub fn changes(&self) -> Counted {
        Counted(self.changes.load(Ordering::SeqCst))
    }

    /// Returns the count of all content so far, which a commit with a write-back from now on
    /// contains.
    pub fn content(&self) -> Counted {
        Counted(self.content_bytes.sum())
    }

    pub(crate) fn commit_changes(&self, counted: Counted) {
        self.committed_changes.fetch_max(counted.0, Ordering::SeqCst);
    }

    pub(crate) fn commit_content(&self, counted: Counted) {
        self.committed_content_bytes
            .fetch_max(counted.0, Ordering::SeqCst);
    }

    /// Resets the counts: changes of opening belong to no caller.
    pub fn forget(&self) {
        self.commit_changes(self.changes());
        self.commit_content(self.content());
    }

    /// Counts a change.
    pub(crate) fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts content that a caller wrote.
    pub(crate) fn count_content(&self, bytes: usize) {
        self.content_bytes.add(ByteCount::of(bytes).get());
    }

    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::SeqCst)
    }

    pub(crate) fn since_commit(&self) -> Uncommitted {
        // Read the committed counts before the others, because the others only grow.
        let committed_changes = self.committed_changes.load(Ordering::SeqCst);
        let committed_bytes = self.committed_content_bytes.load(Ordering::SeqCst);
        let since = |Counted(all): Counted, committed: u64| all.saturating_sub(committed);
        Uncommitted {
            changes: since(self.changes(), committed_changes),
            content: ByteCount::new(since(self.content(), committed_bytes)),
            committed: Generation::new(self.committed.load(Ordering::SeqCst)),
        }
    }
}

/// The time since which changes have been dirty, as the background thread observed it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirtySince {
    pub since: Option<Timestamp>,
    /// The number of commits that wrote all content back, at the time of the observation.
    pub whole_commits: u64,
}
