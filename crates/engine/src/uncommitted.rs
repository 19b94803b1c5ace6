//! What was done and is not committed yet: counted, so that nothing is lost in silence.
//!
//! A writer that goes away without a commit leaves the volume as the last commit made it
//! (docs/decisions/0007-dropping-without-a-commit.md). Whoever holds the last handle says what is to become of
//! the rest: [`Engine::close`] commits it, [`Engine::abandon`] forgets it. A last handle that is merely
//! dropped forgets it too, and [`Environment::lost`](super::Environment::lost) is told how much that was.
//!
//! Counts are of calls that changed something, and of bytes that they wrote. They are upper bounds: a commit that a thread
//! makes between a change and its count leaves it counted.

use super::background::Background;
use super::{Engine, Shared};
use buttress_format::{ByteCount, Generation};
use buttress_fs::error::Result;
use buttress_locks::Counter;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

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

    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::SeqCst)
    }

    fn since_commit(&self) -> Uncommitted {
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

/// What all handles of callers have in common, and goes with the last of them.
#[derive(Debug)]
pub struct Holders {
    writer: Arc<Shared>,
    pub(crate) background: Option<Background>,
}

impl Holders {
    pub(crate) fn of(writer: &Arc<Shared>) -> Self {
        Self {
            writer: Arc::clone(writer),
            background: Background::start(writer),
        }
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        // It may still be committing.
        drop(self.background.take());
        let account = &self.writer.account;
        let lost = account.since_commit();
        if !lost.is_empty() && !account.is_abandoned() {
            self.writer.environment.lost(&lost);
        }
    }
}

impl Engine {
    /// What is not committed yet. It waits for nobody.
    #[must_use]
    pub fn uncommitted(&self) -> Uncommitted {
        self.shared.account.since_commit()
    }

    /// Commits and lets go of the volume. Where there are other handles, they keep it open.
    ///
    /// # Errors
    /// As for [`Engine::commit`]; what could not be committed is lost with the last handle.
    pub fn close(self) -> Result<Generation> {
        self.commit()
    }

    /// Lets go of the volume without a commit, and says what is forgotten: the volume stays as the last commit made it, which
    /// may have been one that no call made. Where there are other handles, they may still commit it; unless one does, it is gone.
    pub fn abandon(self) -> Uncommitted {
        self.shared.account.is_abandoned.store(true, Ordering::SeqCst);
        self.uncommitted()
    }

    /// Counts a change.
    pub fn count_change(&self) {
        self.shared.account.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts content that was taken in.
    pub fn count_content(&self, bytes: usize) {
        self.shared.account.content_bytes.add(ByteCount::of(bytes).get());
    }
}
