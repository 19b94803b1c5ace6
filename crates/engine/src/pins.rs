//! Pins: freed space that may not be reused yet, and the readers that may still need it.
//!
//! The last state on disk still contains the ranges that a transaction freed. Freed ranges may be
//! overwritten only after the next superblock is durable. A reader of an older state may also still
//! read such a range. Pins therefore keep each freed range with the generations in which it was
//! allocated and freed. Only readers of the states between these generations need it. A reader that
//! stays for a thousand commits keeps the ranges that it sees, not ranges allocated and freed
//! since.

use super::block_groups::BlockGroups;
use buttress_exact::Exact as _;
use buttress_format::Generation;
use buttress_fs::error::Defect;
use buttress_locks::atomic::{AtomicU64, Ordering};
use buttress_locks::{Mutex, Rank, lock_class};
use std::collections::BTreeMap;
use std::sync::Arc;

lock_class!(HeldLock, "held", Rank::new(51));

/// The readers of a volume, by the generation that they read.
#[derive(Debug, Default)]
pub struct Readers {
    held: Mutex<BTreeMap<Generation, usize>, HeldLock>,
    /// The number of times that a generation lost its last reader and thereby may have released
    /// pins.
    departures: AtomicU64,
    /// The generation of the running transaction.
    running: AtomicU64,
}

/// A reader's hold on a generation, released on drop.
#[derive(Debug)]
pub struct Hold {
    readers: Arc<Readers>,
    generation: Generation,
}

impl Readers {
    /// Registers a reader of the state that the commit of `generation` froze, or of the transaction
    /// after it.
    pub fn hold(self: &Arc<Self>, generation: Generation) -> Hold {
        let mut held = self.held.lock();
        let count = held.entry(generation).or_default();
        *count = match buttress_faults::on("pins-second-reader-uncounted") {
            true => 1,
            false => count.exact_add(1),
        };
        Hold {
            readers: Arc::clone(self),
            generation,
        }
    }

    /// Sets the generation of the running transaction.
    pub fn set_running(&self, generation: Generation) {
        self.running.store(generation.get(), Ordering::SeqCst);
    }

    /// Registers a reader of the running transaction.
    pub fn hold_running(self: &Arc<Self>) -> Hold {
        let running = self.running.load(Ordering::SeqCst);
        self.hold(Generation::new(running.saturating_sub(1)))
    }

    /// Returns whether the transaction that was running when the hold was taken is still running.
    pub fn is_running_still(&self, hold: &Hold) -> bool {
        self.running.load(Ordering::SeqCst) == hold.generation.get().saturating_add(1)
    }

    /// Returns the generations that have readers, in order.
    fn generations(&self) -> Vec<Generation> {
        self.held.lock().keys().copied().collect()
    }
}

impl buttress_fs::filesystem::Hold for Hold {}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.readers.held.lock();
        if let Some(count) = held.get_mut(&self.generation) {
            *count = count.exact_sub(1);
            if *count == 0 {
                held.remove(&self.generation);
                // Ranges that the running transaction frees stay pinned until its commit in any
                // case.
                if !self.readers.is_running_still(self) && !buttress_faults::on("pins-departure-unnoticed") {
                    self.readers.departures.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A freed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pinned {
    start: u64,
    length: u64,
    /// The generation of the transaction that allocated the range.
    allocated: Generation,
}

impl Pinned {
    /// Returns whether a reader of one of these generations may need a range that was freed in
    /// `freed`. A reader may also read the transaction that runs after the commit of its
    /// generation.
    fn is_needed(&self, freed: Generation, readers: &[Generation]) -> bool {
        let first = match buttress_faults::on("pins-view-of-running-forgotten") {
            true => self.allocated.get(),
            false => self.allocated.get().saturating_sub(1),
        };
        let from = readers.partition_point(|reader| reader.get() < first);
        let is_read = readers.get(from).is_some_and(|reader| *reader < freed);
        is_read && !buttress_faults::on("pins-ignore-readers")
    }
}

/// Freed ranges, by the transaction that freed them.
#[derive(Debug, Default)]
pub struct Pins {
    waiting: BTreeMap<Generation, Vec<Pinned>>,
    /// The length of all pinned ranges, in bytes.
    bytes: u64,
    /// The durable generation and departures at the last release. No range can be released until
    /// one of them changes.
    looked_at: Option<(Generation, u64)>,
}

impl Pins {
    /// Pins a range that transaction `freed` freed and transaction `allocated` had allocated.
    pub fn add(&mut self, freed: Generation, start: u64, length: u64, allocated: Generation) {
        self.bytes = self.bytes.exact_add(length);
        self.waiting.entry(freed).or_default().push(Pinned {
            start,
            length,
            allocated,
        });
    }

    /// Checks that the block groups' pinned bytes equal the bytes pinned here.
    pub fn balance(&self, groups: &BlockGroups) -> Result<(), Defect> {
        let (waiting, pinned) = (self.bytes, groups.pinned_bytes());
        if waiting == pinned {
            return Ok(());
        }
        let what = "block groups have more or less pinned than waits to be released";
        Err(Defect::new(what)
            .with("block groups", pinned)
            .with("waits", waiting))
    }

    /// Returns all pinned ranges, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.waiting
            .values()
            .flatten()
            .map(|pinned| (pinned.start, pinned.length))
    }

    /// Removes and returns ranges that were freed up to `durable` and that no reader needs.
    pub fn release(&mut self, durable: Generation, readers: &Readers) -> Vec<(u64, u64)> {
        let now = (durable, readers.departures.load(Ordering::Relaxed));
        if self.looked_at == Some(now) || self.waiting.is_empty() {
            return Vec::new();
        }
        self.looked_at = Some(now);
        let held = readers.generations();
        let mut released = Vec::new();
        for (freed, ranges) in self.waiting.range_mut(..=durable) {
            ranges.retain(|pinned| {
                let stays = pinned.is_needed(*freed, &held);
                if !stays {
                    if !buttress_faults::on("pins-bytes-keep-released") {
                        self.bytes = self.bytes.exact_sub(pinned.length);
                    }
                    released.push((pinned.start, pinned.length));
                }
                stays
            });
        }
        self.waiting.retain(|_, ranges| !ranges.is_empty());
        released
    }

    /// Returns the bytes that stay pinned only because a reader holds an older state.
    pub fn held_by_readers_bytes(&self, durable: Generation) -> u64 {
        self.waiting
            .range(..=durable)
            .flat_map(|(_, ranges)| ranges)
            .fold(0, |sum: u64, pinned| sum.exact_add(pinned.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn generation(number: u64) -> Generation {
        Generation::new(number)
    }

    #[test]
    fn a_reader_keeps_what_was_freed_after_its_state() {
        let readers = Arc::new(Readers::default());
        let mut pins = Pins::default();
        let old = readers.hold(generation(10));
        let newer = readers.hold(generation(11));
        pins.add(generation(11), 4096, 4096, generation(5));
        pins.add(generation(12), 8192, 4096, generation(5));
        assert_eq!(pins.release(generation(12), &readers), vec![]);
        assert_eq!(
            (pins.held_by_readers_bytes(generation(12)), pins.bytes),
            (8192, 8192)
        );
        drop(old);
        assert_eq!(pins.release(generation(12), &readers), vec![(4096, 4096)]);
        drop(newer);
        assert_eq!(pins.release(generation(11), &readers), vec![]);
        assert_eq!(pins.release(generation(12), &readers), vec![(8192, 4096)]);
        assert_eq!(pins.bytes, 0);
    }

    #[test]
    fn second_reader_of_a_state_keeps_its_ranges() {
        let readers = Arc::new(Readers::default());
        let mut pins = Pins::default();
        let (first, second) = (readers.hold(generation(10)), readers.hold(generation(10)));
        pins.add(generation(11), 4096, 4096, generation(5));
        drop(first);
        assert_eq!(pins.release(generation(12), &readers), vec![]);
        drop(second);
        assert_eq!(pins.release(generation(12), &readers), vec![(4096, 4096)]);
    }

    #[test]
    fn first_reader_of_a_state_outlives_later_ones() {
        let readers = Arc::new(Readers::default());
        let first = readers.hold(generation(10));
        for _ in 0..3 {
            drop(readers.hold(generation(10)));
            assert_eq!(readers.generations(), [generation(10)]);
        }
        drop(first);
        assert_eq!(readers.generations(), []);
    }

    #[test]
    fn what_came_and_went_after_a_reader_is_not_kept() {
        let readers = Arc::new(Readers::default());
        let mut pins = Pins::default();
        let _reader = readers.hold(generation(10));
        pins.add(generation(20), 4096, 4096, generation(15));
        // The reader may see the transaction that was running when the reader registered.
        pins.add(generation(20), 8192, 4096, generation(11));
        assert_eq!(pins.release(generation(20), &readers), vec![(4096, 4096)]);
    }
}
