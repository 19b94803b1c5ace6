//! What was done and is not committed yet: counted, so that nothing is lost in silence.
//!
//! A writer that goes away without a commit leaves the volume as the last commit made it
//! (docs/decisions/0007-dropping-without-a-commit.md). Whoever holds the last handle says what is to become of
//! the rest: [`Engine::close`](crate::Engine::close) commits it, [`Engine::abandon`](crate::Engine::abandon) forgets it. A last handle that is merely
//! dropped forgets it too, and [`Environment::lost`](super::Environment::lost) is told how much that was.
//!
//! Counts are of calls that changed something, and of bytes that they wrote. They are upper bounds: a commit that a thread
//! makes between a change and its count leaves it counted.

use buttress_format::{ByteCount, Generation, Timestamp};
use buttress_locks::Counter;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is not committed yet, or was lost for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uncommitted {
    /// How many changes of names, attributes, sizes, extents and subvolumes there were.
    pub changes: u64,
    /// How much content was written.
    pub content: ByteCount,
    /// The last commit, which the volume is left at.
    pub committed: Generation,
}

impl Uncommitted {
    /// Whether there is nothing.
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

/// Counts since the volume was opened, and as they were at the last commit.
#[derive(Debug, Default)]
pub struct Account {
    changes: AtomicU64,
    content_bytes: Counter,
    committed_changes: AtomicU64,
    committed_content_bytes: AtomicU64,
    /// The generation of the last commit: known without the edit lock, so that a signal need not wait for it.
    committed: AtomicU64,
    /// What is not committed may go without a word.
    is_abandoned: AtomicBool,
}

/// What had been counted at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Counted(u64);

impl Account {
    /// Of a volume whose last commit was this one.
    pub fn new(committed: Generation) -> Self {
        let account = Self::default();
        account.set_committed(committed);
        account
    }

    /// A commit is durable.
    pub fn set_committed(&self, committed: Generation) {
        self.committed.store(committed.get(), Ordering::SeqCst);
    }

    /// All changes up to now: what a state has that is frozen now.
    pub fn changes(&self) -> Counted {
        Counted(self.changes.load(Ordering::SeqCst))
    }

    /// All content up to now: what a commit has that writes it back from now on.
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

    /// What opening changed is nobody's work.
    pub fn forget(&self) {
        self.commit_changes(self.changes());
        self.commit_content(self.content());
    }

    /// Counts a change.
    pub(crate) fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts content that was taken in.
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
        // What is committed first: the rest only grows.
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

/// The time since which something is dirty, as the background thread saw it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirtySince {
    pub since: Option<Timestamp>,
    /// The number of commits with all content at that time.
    pub whole_commits: u64,
}
