//! Pins: freed space that must not be used again yet, and the readers that may still need it.
//!
//! What a transaction frees is still part of the last state on disk, so it may be overwritten only when the superblock
//! that no longer needs it is durable; and a reader that holds an older root still reads it. So freed ranges wait here
//! under their transaction's generation, until that generation is durable and every reader holds this generation or a
//! newer one.

use buttress_format::Generation;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The readers of a volume, by the generation that they see.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    held: Mutex<BTreeMap<Generation, usize>>,
}

/// A reader's hold on a generation; lets go when it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    readers: Arc<Readers>,
    generation: Generation,
}

impl Readers {
    /// Registers a reader that sees the state of `generation`: the last commit's, for the running transaction too.
    pub(crate) fn hold(self: &Arc<Self>, generation: Generation) -> Hold {
        let mut held = self.held.lock();
        let count = held.entry(generation).or_default();
        *count = count.saturating_add(1);
        Hold {
            readers: Arc::clone(self),
            generation,
        }
    }

    /// The oldest generation that somebody reads.
    pub(crate) fn oldest(&self) -> Option<Generation> {
        self.held.lock().keys().next().copied()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.readers.held.lock();
        if let Some(count) = held.get_mut(&self.generation) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.remove(&self.generation);
            }
        }
    }
}

/// Freed ranges by the transaction that freed them.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    waiting: BTreeMap<Generation, Vec<(u64, u64)>>,
}

impl Pins {
    /// A range was freed in the transaction `generation`.
    pub(crate) fn add(&mut self, generation: Generation, start: u64, length: u64) {
        self.waiting.entry(generation).or_default().push((start, length));
    }

    /// All ranges that are pinned, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.waiting.values().flatten().copied()
    }

    /// Takes out what may be used again: freed up to `durable`, and older than nothing that a reader holds.
    pub(crate) fn release(
        &mut self,
        durable: Generation,
        oldest_reader: Option<Generation>,
    ) -> Vec<(u64, u64)> {
        let limit = oldest_reader.map_or(durable, |reader| reader.min(durable));
        let mut released = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            if *first.key() > limit {
                break;
            }
            released.extend(first.remove());
        }
        released
    }

    /// How many bytes wait only because a reader holds an old state.
    pub(crate) fn held_by_readers_bytes(&self, durable: Generation) -> u64 {
        self.waiting
            .range(..=durable)
            .flat_map(|(_, ranges)| ranges)
            .fold(0, |sum, (_, length)| sum.saturating_add(*length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_what_was_freed_after_its_state() {
        let readers = Arc::new(Readers::default());
        let mut pins = Pins::default();
        let generation = Generation::new;
        let old = readers.hold(generation(10));
        let newer = readers.hold(generation(11));
        pins.add(generation(11), 4096, 4096);
        pins.add(generation(12), 8192, 4096);
        assert_eq!(pins.release(generation(12), readers.oldest()), vec![]);
        assert_eq!(pins.held_by_readers_bytes(generation(12)), 8192);
        drop(old);
        assert_eq!(pins.release(generation(12), readers.oldest()), vec![(4096, 4096)]);
        drop(newer);
        assert_eq!(pins.release(generation(11), readers.oldest()), vec![]);
        assert_eq!(pins.release(generation(12), readers.oldest()), vec![(8192, 4096)]);
    }
}
