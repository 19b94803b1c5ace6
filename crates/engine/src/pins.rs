//! Pins: freed space that must not be used again yet, and the readers that may still need it.
//!
//! What a transaction frees is still part of the last state on disk, so it may be overwritten only when the superblock
//! that no longer needs it is durable; and a reader of an older state still reads it. So freed ranges wait here, with the
//! generations in which they were allocated and freed: a range is needed by readers of the states in between, and by no
//! others. A reader that stays for a thousand commits keeps what it sees, not what came and went since.

use super::block_groups::BlockGroups;
use buttress_exact::Exact as _;
use buttress_format::Generation;
use buttress_fs::error::Defect;
use buttress_locks::atomic::{AtomicU64, Ordering};
use buttress_locks::{Mutex, Rank, lock_class};
use std::collections::BTreeMap;
use std::sync::Arc;

lock_class!(HeldLock, "held", Rank::new(51));

/// The readers of a volume, by the generation that they see.
#[derive(Debug, Default)]
pub struct Readers {
    held: Mutex<BTreeMap<Generation, usize>, HeldLock>,
    /// How often the last reader of a generation let go whose leaving can free something.
    departures: AtomicU64,
    /// The generation that runs.
    running: AtomicU64,
}

/// A reader's hold on a generation; lets go when it is dropped.
#[derive(Debug)]
pub struct Hold {
    readers: Arc<Readers>,
    generation: Generation,
}

impl Readers {
    /// Registers a reader that sees the state that the commit of `generation` froze, or the transaction that runs after it.
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

    /// From now on this generation runs.
    pub fn set_running(&self, generation: Generation) {
        self.running.store(generation.get(), Ordering::SeqCst);
    }

    /// Registers a reader of the transaction that runs.
    pub fn hold_running(self: &Arc<Self>) -> Hold {
        let running = self.running.load(Ordering::SeqCst);
        self.hold(Generation::new(running.saturating_sub(1)))
    }

    /// Whether the transaction still runs that ran when the hold was taken.
    pub fn is_running_still(&self, hold: &Hold) -> bool {
        self.running.load(Ordering::SeqCst) == hold.generation.get().saturating_add(1)
    }

    /// The generations that somebody reads, in order.
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
                // What the running transaction frees waits for its commit in any case.
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
    /// The transaction that allocated it.
    allocated: Generation,
}

impl Pinned {
    /// Whether a reader of one of these generations may need a range that was freed in `freed`. A reader may also see the
    /// transaction that runs after the commit of its generation.
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

/// Freed ranges by the transaction that freed them.
#[derive(Debug, Default)]
pub struct Pins {
    waiting: BTreeMap<Generation, Vec<Pinned>>,
    /// How long those are, all together.
    bytes: u64,
    /// What was the case when ranges were last released: nothing can be released before it changes.
    looked_at: Option<(Generation, u64)>,
}

impl Pins {
    /// A range was freed in the transaction `freed` that had been allocated in `allocated`.
    pub fn add(&mut self, freed: Generation, start: u64, length: u64, allocated: Generation) {
        self.bytes = self.bytes.exact_add(length);
        self.waiting.entry(freed).or_default().push(Pinned {
            start,
            length,
            allocated,
        });
    }

    /// Whether block groups have as much pinned as waits here.
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

    /// All ranges that are pinned, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.waiting
            .values()
            .flatten()
            .map(|pinned| (pinned.start, pinned.length))
    }

    /// Takes out what may be used again: freed up to `durable`, and part of nothing that a reader sees.
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

    /// How many bytes wait only because a reader holds an old state.
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
        // The transaction that ran when the reader came may be what it sees.
        pins.add(generation(20), 8192, 4096, generation(11));
        assert_eq!(pins.release(generation(20), &readers), vec![(4096, 4096)]);
    }
}
