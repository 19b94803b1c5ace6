//! What a writer holds in memory until it is committed: one budget with the cache of clean tree blocks.
//!
//! Three things wait: blocks that edits changed, with what is noted about references and inodes (*dirty*); the blocks of a
//! commit that is being written (*frozen*); file content (*pending*, counted by [`crate::data::table`]). Together they may
//! take eleven sixteenths of the cache's budget. The cache shrinks by what they take, down to a sixteenth, and a quarter is
//! for reading ahead, so that all of it is the budget.
//!
//! Content may take half of what may wait. When the rest is half used up, a commit begins in the background, and edits go
//! on; when it is used up, they wait for that commit, or commit themselves.
//!
//! Not counted: what views hold, buffers of writes under way (some 16 MiB), and the map of free space.

use buttress_format::ByteCount;
use buttress_tree::Forest;
use core::sync::atomic::{AtomicU64, Ordering};

/// The cache hears of changes of this size.
const STEP_BYTES: u64 = 1 << 20;

/// However small the cache's budget is, so much may wait: less than that, and every other edit would be a commit.
const LEAST_BYTES: u64 = 8 << 20;

/// What a reference that waits takes, and what an inode in memory takes: their fields, and their part of a tree's nodes.
pub(super) const REFERENCE_BYTES: u64 = 320;
pub(super) const INODE_BYTES: u64 = 320;

/// What is held. See the module.
#[derive(Debug)]
pub(super) struct Holdings {
    limit_bytes: u64,
    dirty_bytes: AtomicU64,
    frozen_bytes: AtomicU64,
    /// What the cache was told last.
    told_bytes: AtomicU64,
    /// The most that was held at once.
    peak_bytes: AtomicU64,
}

/// How urgent a commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    /// There is room.
    None,
    /// Half of what may wait does: a commit should begin.
    Begin,
    /// All of it does.
    Wait,
}

impl Holdings {
    /// Of a cache with this budget, or with a limit that is given.
    pub(super) fn new(cache_budget: ByteCount, limit: Option<ByteCount>) -> Self {
        let sixteenth = cache_budget.get() >> 4;
        let limit = limit.map_or(sixteenth.saturating_mul(11), ByteCount::get);
        Self {
            limit_bytes: limit.max(LEAST_BYTES),
            dirty_bytes: AtomicU64::new(0),
            frozen_bytes: AtomicU64::new(0),
            told_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
        }
    }

    /// The most that may wait.
    #[cfg(test)]
    pub(super) const fn limit(&self) -> ByteCount {
        ByteCount::new(self.limit_bytes)
    }

    /// The most content that may wait.
    pub(super) const fn content_limit(&self) -> ByteCount {
        ByteCount::new(self.limit_bytes >> 1)
    }

    pub(super) fn set_dirty(&self, bytes: u64) {
        self.dirty_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A commit froze all that was dirty.
    pub(super) fn freeze(&self, bytes: u64) {
        self.dirty_bytes.store(0, Ordering::Relaxed);
        self.frozen_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What was frozen is written, and gone.
    pub(super) fn thaw(&self) {
        self.frozen_bytes.store(0, Ordering::Relaxed);
    }

    /// Whether edits should make way for a commit.
    pub(super) fn pressure(&self, pending_bytes: u64) -> Pressure {
        let (dirty, frozen) = (
            self.dirty_bytes.load(Ordering::Relaxed),
            self.frozen_bytes.load(Ordering::Relaxed),
        );
        // Whatever waits of content, a commit that would write next to nothing helps nobody.
        let rest = self
            .limit_bytes
            .saturating_sub(pending_bytes)
            .max(self.limit_bytes >> 2);
        if dirty.saturating_add(frozen) > rest {
            Pressure::Wait
        } else if frozen == 0 && dirty > rest >> 1 {
            Pressure::Begin
        } else {
            Pressure::None
        }
    }

    /// Tells the cache what is held, where that changed by much.
    pub(super) fn tell(&self, forest: &Forest, pending_bytes: u64) {
        let held = self
            .dirty_bytes
            .load(Ordering::Relaxed)
            .saturating_add(self.frozen_bytes.load(Ordering::Relaxed))
            .saturating_add(pending_bytes);
        self.peak_bytes.fetch_max(held, Ordering::Relaxed);
        let told = self.told_bytes.load(Ordering::Relaxed);
        if held.abs_diff(told) >= STEP_BYTES {
            self.told_bytes.store(held, Ordering::Relaxed);
            forest.hold_outside(ByteCount::new(held));
        }
    }

    /// What the cache was told last.
    #[cfg(test)]
    pub(super) fn told(&self) -> ByteCount {
        ByteCount::new(self.told_bytes.load(Ordering::Relaxed))
    }

    /// The most that was held at once.
    #[cfg(test)]
    pub(super) fn peak(&self) -> ByteCount {
        ByteCount::new(self.peak_bytes.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_commit_begins_when_half_is_used_and_is_waited_for_when_all_is() {
        // 176 MiB may wait.
        let holdings = Holdings::new(ByteCount::new(256 * MIB), None);
        assert_eq!(holdings.limit(), ByteCount::new(176 * MIB));
        for (dirty, frozen, pending, expected) in [
            (0, 0, 0, Pressure::None),
            (88, 0, 0, Pressure::None),
            (89, 0, 0, Pressure::Begin),
            (89, 60, 0, Pressure::None),
            (89, 88, 0, Pressure::Wait),
            (177, 0, 0, Pressure::Wait),
            (45, 0, 88, Pressure::Begin),
            (89, 0, 88, Pressure::Wait),
            (44, 0, 176, Pressure::Begin),
            (45, 0, 500, Pressure::Wait),
        ] {
            holdings.freeze(frozen * MIB);
            holdings.set_dirty(dirty * MIB);
            assert_eq!(
                holdings.pressure(pending * MIB),
                expected,
                "{dirty} {frozen} {pending}"
            );
        }
        holdings.thaw();
        holdings.set_dirty(0);
        assert_eq!(holdings.pressure(0), Pressure::None);
    }

    #[test]
    fn a_tiny_cache_leaves_room_for_some_edits() {
        assert_eq!(
            Holdings::new(ByteCount::ZERO, None).limit(),
            ByteCount::new(LEAST_BYTES)
        );
        let given = Holdings::new(ByteCount::ZERO, Some(ByteCount::new(64 * MIB)));
        assert_eq!(given.content_limit(), ByteCount::new(32 * MIB));
    }
}
