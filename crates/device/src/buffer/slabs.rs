//! Small blocks of memory, packed in slabs.
//!
//! A cache holds tens of thousands of tree blocks, which many threads fill and release in any
//! order. As single aligned allocations, tree blocks would leave gaps of almost a page between
//! them, in one arena for each thread. The gaps would take half as much memory again as the cache
//! may have. Buffers of up to [`BLOCK_BYTES_MAX`] are therefore slots of equal size in slabs of
//! [`SLAB_BYTES`]. Each power of two has one class, which all threads share. An unused slab returns
//! to the system, except for a few ([`IDLE_SLABS_MAX`]) whose memory stays warm.
//!
//! Slabs come from the system itself ([`pages`]).
//!
//! Invariant: a place is either in its slab's list of free places, or owned by exactly one
//! [`Block`].

use buttress_exact::Exact as _;
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::{ALIGNMENT_BYTES, Block, Home, pages};

/// The size of the largest block in a slab: the largest tree block.
const BLOCK_BYTES_MAX: usize = 64 << 10;

/// The size and alignment of a slab: a huge page on systems with pages of 4 KiB.
const SLAB_BYTES: usize = 2 << 20;

/// The number of unused slabs of a class that are kept.
const IDLE_SLABS_MAX: usize = 4;

/// The number of slabs of a class after which new slabs use huge pages. A huge page has one page
/// fault instead of 512, but takes all its memory at once, which light users should not pay for.
const SMALL_PAGE_SLABS: usize = 1;

/// A place in a slab of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    slab: usize,
    slot: usize,
}

/// All slabs with blocks of one size.
pub(super) struct Class {
    block_bytes: usize,
    slabs: Mutex<Slabs>,
}

#[derive(Default)]
struct Slabs {
    /// The slabs by number; `None` for a returned slab.
    slabs: Vec<Option<Slab>>,
    /// The numbers of slabs with unused places, each once.
    with_room: Vec<usize>,
    /// The unused slab numbers, which a new slab can have.
    vacant: Vec<usize>,
    /// The number of completely free slabs.
    idle: usize,
}

struct Slab {
    memory: Mapping,
    /// The free places.
    free: Vec<usize>,
}

/// Memory pages that this process owns, [`SLAB_BYTES`] of them. Invariant: the mapping is owned by
/// this value alone.
struct Mapping {
    start: NonNull<u8>,
}

// SAFETY: the pages are owned exclusively, and cannot be reached through `&Mapping`.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps zero pages, which take up memory on their first write. With `huge_pages`, the pages
    /// take up all their memory at once, if the system has a huge page.
    fn new(huge_pages: bool) -> Self {
        let start = pages::take(SLAB_BYTES, SLAB_BYTES);
        if huge_pages {
            pages::prefer_huge_pages(start, SLAB_BYTES);
        }
        Self { start }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` took it with this length and alignment. A slab is dropped when all its
        // places are free.
        unsafe { pages::give_back(self.start, SLAB_BYTES, SLAB_BYTES) }
    }
}

const fn class(block_bytes: usize) -> Class {
    Class {
        block_bytes,
        slabs: Mutex::new(Slabs {
            slabs: Vec::new(),
            with_room: Vec::new(),
            vacant: Vec::new(),
            idle: 0,
        }),
    }
}

static CLASSES: [Class; 5] = [
    class(ALIGNMENT_BYTES),
    class(8 << 10),
    class(16 << 10),
    class(32 << 10),
    class(BLOCK_BYTES_MAX),
];

/// Returns the class of blocks of at least `capacity` bytes, if they are small enough for a slab.
pub(super) fn class_of(capacity: usize) -> Option<&'static Class> {
    CLASSES.iter().find(|class| class.block_bytes >= capacity)
}

/// Receives a buffer of `block_bytes`, whose home is the slab's `place`.
pub(super) fn put(block_bytes: usize, place: Place) {
    let surplus = class_of(block_bytes).and_then(|class| class.slabs.lock().put(place, class.slots()));
    // Unmap the surplus slab after the lock is released, because unmapping takes time.
    drop(surplus);
}

impl Class {
    fn slots(&self) -> usize {
        SLAB_BYTES.quotient(self.block_bytes)
    }

    /// Returns a block whose memory is initialised, with arbitrary content.
    pub(super) fn take(&self) -> Block {
        let mut slabs = self.slabs.lock();
        loop {
            if let Some((slab, slot)) = slabs.take(self.slots()) {
                let start = slab.memory.start;
                let offset_bytes = slot.slot.exact_mul(self.block_bytes);
                return Block {
                    // SAFETY: a slot is smaller than `slots()`, so all of it lies inside the slab's
                    // mapping of `SLAB_BYTES`; it was in the list of free places, so nobody else
                    // owns it.
                    start: unsafe { start.add(offset_bytes) },
                    capacity: self.block_bytes,
                    home: Home::Slab(slot),
                };
            }
            slabs.add(self.slots());
        }
    }
}

impl Slabs {
    /// Takes a free place from the slab that was used last, so that older slabs become free.
    fn take(&mut self, slots: usize) -> Option<(&Slab, Place)> {
        let number = *self.with_room.last()?;
        let slab = self.slabs.get_mut(number)?.as_mut()?;
        if slab.free.len() == slots {
            self.idle = self.idle.exact_sub(1);
        }
        let slot = slab.free.pop()?;
        if slab.free.is_empty() {
            self.with_room.pop();
        }
        Some((slab, Place { slab: number, slot }))
    }

    /// Adds a slab whose places are all free.
    fn add(&mut self, slots: usize) {
        let small = self.slabs.len().exact_sub(self.vacant.len()) < SMALL_PAGE_SLABS;
        let slab = Slab {
            memory: Mapping::new(!small),
            free: (0..slots).rev().collect(),
        };
        // Clamp: without a vacant number, the next number is used.
        let number = self.vacant.pop().unwrap_or(self.slabs.len());
        match self.slabs.get_mut(number) {
            Some(vacant) => *vacant = Some(slab),
            None => self.slabs.push(Some(slab)),
        }
        self.with_room.push(number);
        self.idle = self.idle.exact_add(1);
    }

    /// Returns a place to the slab that contains it. Returns the slab to free, if the slab is
    /// unused and enough unused slabs are kept.
    fn put(&mut self, place: Place, slots: usize) -> Option<Slab> {
        let entry = self.slabs.get_mut(place.slab)?;
        let slab = entry.as_mut()?;
        slab.free.push(place.slot);
        if slab.free.len() == 1 {
            self.with_room.push(place.slab);
        }
        if slab.free.len() < slots {
            return None;
        }
        if self.idle < IDLE_SLABS_MAX {
            self.idle = self.idle.exact_add(1);
            return None;
        }
        self.with_room.retain(|number| *number != place.slab);
        self.vacant.push(place.slab);
        entry.take()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, Home};
    use super::*;
    use std::collections::BTreeSet;

    /// Asserts that every free place and every slab with space is listed once, and that the counts
    /// are correct.
    fn assert_sound(slabs: &Slabs, slots: usize) {
        let with_room: BTreeSet<usize> = slabs.with_room.iter().copied().collect();
        assert_eq!(with_room.len(), slabs.with_room.len());
        let mut idle = 0;
        for (number, slab) in slabs.slabs.iter().enumerate() {
            let Some(slab) = slab else {
                assert!(slabs.vacant.contains(&number));
                continue;
            };
            let free: BTreeSet<usize> = slab.free.iter().copied().collect();
            assert_eq!(free.len(), slab.free.len());
            assert_eq!(with_room.contains(&number), !free.is_empty());
            idle += usize::from(free.len() == slots);
        }
        assert_eq!(idle, slabs.idle);
        assert!(idle <= IDLE_SLABS_MAX);
    }

    #[test]
    fn blocks_in_use_never_overlap_and_free_slabs_go_back() {
        // The test uses a class of its own, so that the buffers of other tests do not interfere.
        static CLASS: Class = class(16 << 10);
        let slots = CLASS.slots();
        let mut held: Vec<Block> = Vec::new();
        let mut state = 1_u64;
        // Miri interprets, so it runs fewer rounds.
        let rounds = if cfg!(miri) { 4000 } else { 20_000 };
        for round in 0..rounds {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let grows = round < rounds * 2 / 5 || (round < rounds * 3 / 5 && state >> 63 == 0);
            if grows || held.is_empty() {
                held.push(CLASS.take());
            } else {
                let block = held.swap_remove((state >> 33) as usize % held.len());
                let Home::Slab(place) = block.home else {
                    panic!("a small block lies in a slab");
                };
                drop(CLASS.slabs.lock().put(place, slots));
            }
            if round % 1000 == 0 {
                assert_sound(&CLASS.slabs.lock(), slots);
                let starts: BTreeSet<usize> = held.iter().map(|block| block.start.addr().get()).collect();
                let mut ends = 0;
                for start in starts.iter().copied() {
                    assert!(start >= ends && start % ALIGNMENT_BYTES == 0);
                    ends = start + (16 << 10);
                }
                assert_eq!(starts.len(), held.len());
            }
        }
        for block in held.drain(..) {
            if let Home::Slab(place) = block.home {
                drop(CLASS.slabs.lock().put(place, slots));
            }
        }
        let slabs = CLASS.slabs.lock();
        assert_sound(&slabs, slots);
        assert_eq!(slabs.slabs.iter().flatten().count(), IDLE_SLABS_MAX);
        drop(slabs);
    }

    #[test]
    fn every_small_size_has_the_smallest_class_that_holds_it() {
        for (capacity, expected) in [
            (1, 4096),
            (4096, 4096),
            (4097, 8192),
            (12_288, 16_384),
            (65_536, 65_536),
        ] {
            assert_eq!(class_of(capacity).map(|class| class.block_bytes), Some(expected));
        }
        assert!(class_of(65_537).is_none());
    }

    #[test]
    fn threads_return_blocks_of_other_threads() {
        let (sender, receiver) = std::sync::mpsc::channel::<Buffer>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..if cfg!(miri) { 50 } else { 2000_u32 } {
                    let mut buffer = Buffer::uncleared(4096);
                    buffer.fill(number as u8);
                    sender.send(buffer).unwrap();
                }
            });
            for (number, buffer) in receiver.into_iter().enumerate() {
                assert_eq!(buffer[..], [number as u8; 4096]);
            }
        });
    }
}
