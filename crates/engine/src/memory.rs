//! The memory of uncommitted state, which shares one budget with the cache of clean tree blocks.
//!
//! Three kinds of state use the memory of uncommitted state. *Dirty* state is blocks that edits
//! changed, delayed references and changed inodes. *Frozen* state is the blocks of a commit that is
//! being written. *Pending* state is file content, counted by [`crate::data_table`]. Together,
//! dirty, frozen and pending state may use ten sixteenths of the cache's budget. The cache of clean
//! blocks has two sixteenths while the volume is open for writing, plus the unused part of a
//! quarter for readahead. The share of dirty state is large because each commit rewrites every leaf
//! to which names of many files hash, and the nodes above. With fewer commits, fewer leaves are
//! rewritten. Lookups find dirty blocks as fast as cached blocks.
//!
//! The shares of the budget are fixed. Shrinking the cache while dirty state grows would free
//! little memory, because evicted blocks are scattered between kept blocks.
//!
//! Dirty file content may use half of this limit. When three quarters of the limit without content
//! are used, a background commit begins while edits continue. When all of the limit without content
//! is used, edits wait for that commit, or commit themselves. If twice the growth during the
//! previous commit would not fit into the last quarter, the commit begins that much earlier. Half
//! of the limit without content is used by then at least.
//!
//! The limit of dirty memory does not count looked-up names (4 MiB), state of views, write buffers
//! (some 16 MiB), and free space.

use buttress_format::ByteCount;
use buttress_locks::atomic::{AtomicU64, Ordering};

/// The least limit of dirty memory, for any cache budget. With a smaller limit, every other edit
/// would commit.
const LEAST_BYTES: u64 = 8 << 20;

/// The sixteenths of the cache's budget that dirty memory may use.
const WAITING_SIXTEENTHS: u64 = 10;

/// The memory of one delayed reference or one inode: its fields, and its part of a map's nodes.
pub(crate) const REFERENCE_BYTES: u64 = 320;
pub(crate) const INODE_BYTES: u64 = 320;

/// The dirty and frozen memory of a volume. See the module's documentation.
#[derive(Debug)]
pub(crate) struct DirtyMemory {
    limit_bytes: u64,
    dirty_bytes: AtomicU64,
    frozen_bytes: AtomicU64,
    /// The bytes that became dirty while the last commit was written.
    came_bytes: AtomicU64,
}

/// How urgent a commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pressure {
    /// The state of dirty memory needs no commit.
    None,
    /// The amount of dirty memory suggests that a background commit should begin.
    Background,
    /// Dirty memory has reached its limit.
    Hard,
}

impl DirtyMemory {
    /// Returns the limits of dirty memory for a cache of this budget, or for an explicit limit.
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

    /// Returns the limit of dirty memory.
    pub(crate) const fn limit(&self) -> ByteCount {
        ByteCount::new(self.limit_bytes)
    }

    /// Returns the limit of dirty content.
    pub(crate) const fn content_limit(&self) -> ByteCount {
        ByteCount::new(self.limit_bytes >> 1)
    }

    pub(crate) fn set_dirty(&self, bytes: u64) {
        self.dirty_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts all dirty blocks as frozen when a commit freezes them.
    pub(crate) fn freeze(&self, bytes: u64) {
        self.dirty_bytes.store(0, Ordering::Relaxed);
        self.frozen_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts the frozen blocks as written.
    pub(crate) fn thaw(&self) {
        self.came_bytes
            .store(self.dirty_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.frozen_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns how urgent a commit is.
    pub(crate) fn pressure(&self, delalloc_bytes: u64) -> Pressure {
        let (dirty, frozen) = (
            self.dirty_bytes.load(Ordering::Relaxed),
            self.frozen_bytes.load(Ordering::Relaxed),
        );
        // Content alone never causes a commit, which would write almost no tree blocks.
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

    /// Returns the part of the limit of dirty memory that stays free for edits during a commit.
    fn ahead_bytes(&self, rest: u64) -> u64 {
        let came = self.came_bytes.load(Ordering::Relaxed);
        came.saturating_mul(2).clamp(rest >> 2, rest >> 1)
    }

    /// Returns the bytes in use now, without content.
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
    fn commit_begins_at_three_quarters_and_blocks_edits_at_limit() {
        // The limit of dirty memory is 176 MiB.
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
    fn commit_begins_earlier_after_faster_growth() {
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
    fn tiny_cache_allows_some_dirty_memory() {
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
