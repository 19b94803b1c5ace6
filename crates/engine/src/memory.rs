//! What a writer holds in memory until it is committed: one budget with the cache of clean tree blocks.
//!
//! Three things wait: blocks that edits changed, with what is noted about references and inodes (*dirty*); the blocks of a
//! commit that is being written (*frozen*); file content (*pending*, counted by [`crate::data_table`]). Together they may
//! take ten sixteenths of the cache's budget. The cache of clean blocks has two sixteenths as long as the volume is open for
//! writing, and what is not read ahead of a quarter. So much may wait because each commit writes anew every leaf that names of
//! many files hash to, and nodes above: the fewer commits, the less of that. Blocks that wait are found as those of the
//! cache are.
//!
//! These shares are fixed. A cache that shrank while more waits would give back little: what leaves it lies between what
//! stays, and allocators keep the pages of both.
//!
//! Content may take half of what may wait. When three quarters of the rest are used up, a commit begins in the background, and
//! edits go on; when all of it is, they wait for that commit, or commit themselves. Where twice as much as came during the
//! commit before would not fit into the last quarter, a commit begins that much earlier, but not before the rest is half used up.
//!
//! Not counted: names that were looked up (4 MiB), what views hold, buffers of writes under way (some 16 MiB), and the map of free space.

use buttress_format::ByteCount;
use buttress_locks::atomic::{AtomicU64, Ordering};

/// However small the cache's budget is, so much may wait: less than that, and every other edit would be a commit.
const LEAST_BYTES: u64 = 8 << 20;

/// How much of the cache's budget may wait.
const WAITING_SIXTEENTHS: u64 = 10;

/// What a reference that waits takes, and what an inode in memory takes: their fields, and their part of a tree's nodes.
pub(crate) const REFERENCE_BYTES: u64 = 320;
pub(crate) const INODE_BYTES: u64 = 320;

/// What is held. See the module.
#[derive(Debug)]
pub(crate) struct DirtyMemory {
    limit_bytes: u64,
    dirty_bytes: AtomicU64,
    frozen_bytes: AtomicU64,
    /// What became dirty while the last commit was being written.
    came_bytes: AtomicU64,
}

/// How urgent a commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pressure {
    /// There is room.
    None,
    /// So much waits that a commit should begin.
    Background,
    /// All of it does.
    Hard,
}

impl DirtyMemory {
    /// Of a cache with this budget, or with a limit that is given.
    pub(crate) fn new(cache_budget: ByteCount, limit: Option<ByteCount>) -> Self {
        let sixteenth = cache_budget.get() >> 4;
        let limit = limit.map_or(sixteenth.saturating_mul(WAITING_SIXTEENTHS), ByteCount::get);
        Self {
            limit_bytes: limit.max(LEAST_BYTES),
            dirty_bytes: AtomicU64::new(0),
            frozen_bytes: AtomicU64::new(0),
            came_bytes: AtomicU64::new(0),
        }
    }

    /// The most that may wait.
    pub(crate) const fn limit(&self) -> ByteCount {
        ByteCount::new(self.limit_bytes)
    }

    /// The most content that may wait.
    pub(crate) const fn content_limit(&self) -> ByteCount {
        ByteCount::new(self.limit_bytes >> 1)
    }

    pub(crate) fn set_dirty(&self, bytes: u64) {
        self.dirty_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A commit froze all that was dirty.
    pub(crate) fn freeze(&self, bytes: u64) {
        self.dirty_bytes.store(0, Ordering::Relaxed);
        self.frozen_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What was frozen is written, and gone.
    pub(crate) fn thaw(&self) {
        self.came_bytes
            .store(self.dirty_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.frozen_bytes.store(0, Ordering::Relaxed);
    }

    /// Whether edits should make way for a commit.
    pub(crate) fn pressure(&self, delalloc_bytes: u64) -> Pressure {
        let (dirty, frozen) = (
            self.dirty_bytes.load(Ordering::Relaxed),
            self.frozen_bytes.load(Ordering::Relaxed),
        );
        // Whatever waits of content, a commit that would write next to nothing helps nobody.
        let rest = self
            .limit_bytes
            .saturating_sub(delalloc_bytes)
            .max(self.limit_bytes >> 2);
        if dirty.saturating_add(frozen) > rest {
            Pressure::Hard
        } else if frozen == 0 && dirty > rest.saturating_sub(self.ahead_bytes(rest)) {
            Pressure::Background
        } else {
            Pressure::None
        }
    }

    /// Of what may be dirty, what is left for edits beside a commit.
    fn ahead_bytes(&self, rest: u64) -> u64 {
        let came = self.came_bytes.load(Ordering::Relaxed);
        came.saturating_mul(2).clamp(rest >> 2, rest >> 1)
    }

    /// Returns the bytes that are held now, without content.
    #[cfg(feature = "testing")]
    pub(crate) fn held(&self) -> ByteCount {
        let (dirty, frozen) = (&self.dirty_bytes, &self.frozen_bytes);
        ByteCount::new(
            dirty
                .load(Ordering::Relaxed)
                .saturating_add(frozen.load(Ordering::Relaxed)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_commit_begins_when_three_quarters_are_used_and_is_waited_for_when_all_is() {
        // 176 MiB may wait.
        let dirty_memory = DirtyMemory::new(ByteCount::new(1 << 30), Some(ByteCount::new(176 * MIB)));
        for (dirty, frozen, pending, expected) in [
            (0, 0, 0, Pressure::None),
            (132, 0, 0, Pressure::None),
            (133, 0, 0, Pressure::Background),
            (89, 60, 0, Pressure::None),
            (89, 88, 0, Pressure::Hard),
            (177, 0, 0, Pressure::Hard),
            (66, 0, 88, Pressure::None),
            (67, 0, 88, Pressure::Background),
            (89, 0, 88, Pressure::Hard),
            (44, 0, 176, Pressure::Background),
            (45, 0, 500, Pressure::Hard),
        ] {
            dirty_memory.freeze(frozen * MIB);
            dirty_memory.set_dirty(dirty * MIB);
            assert_eq!(
                dirty_memory.pressure(pending * MIB),
                expected,
                "{dirty} {frozen} {pending}"
            );
        }
        dirty_memory.set_dirty(0);
        dirty_memory.thaw();
        assert_eq!(dirty_memory.pressure(0), Pressure::None);
    }

    #[test]
    fn a_commit_begins_earlier_the_more_came_during_the_one_before() {
        let dirty_memory = DirtyMemory::new(ByteCount::new(1 << 30), Some(ByteCount::new(160 * MIB)));
        for (came, begins_at) in [(0, 120), (20, 120), (30, 100), (40, 80), (90, 80)] {
            dirty_memory.freeze(60 * MIB);
            dirty_memory.set_dirty(came * MIB);
            dirty_memory.thaw();
            dirty_memory.set_dirty(begins_at * MIB);
            assert_eq!(dirty_memory.pressure(0), Pressure::None, "{came}");
            dirty_memory.set_dirty(begins_at * MIB + 1);
            assert_eq!(dirty_memory.pressure(0), Pressure::Background, "{came}");
        }
    }

    #[test]
    fn a_tiny_cache_leaves_room_for_some_edits() {
        assert_eq!(
            DirtyMemory::new(ByteCount::ZERO, None).limit(),
            ByteCount::new(LEAST_BYTES)
        );
        let usual = DirtyMemory::new(ByteCount::new(256 * MIB), None);
        assert_eq!(usual.limit(), ByteCount::new(160 * MIB));
        let given = DirtyMemory::new(ByteCount::ZERO, Some(ByteCount::new(64 * MIB)));
        assert_eq!(given.content_limit(), ByteCount::new(32 * MIB));
    }
}
