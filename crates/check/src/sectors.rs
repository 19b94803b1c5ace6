//! Sets of addresses in clusters: one bit for each sector, in pages that are allocated with their
//! first bit.
//!
//! A page of 128 bytes covers 1024 sectors. Tree blocks are close together, so a set of all tree
//! blocks takes less than a five-thousandth of their bytes. A hostile volume with scattered
//! pointers makes the set a few times as large as the nodes with these pointers.

use buttress_exact::Exact as _;
use buttress_format::Logical;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

const PAGE_WORDS: usize = 16;
const PAGE_SECTORS: u64 = 1024;
const SHARDS: usize = 16;

type Pages = HashMap<u64, [u64; PAGE_WORDS], BuildHasherDefault<std::collections::hash_map::DefaultHasher>>;

/// A set of sectors that many threads fill at once.
#[derive(Debug)]
pub(crate) struct Sectors {
    shards: [Mutex<Pages>; SHARDS],
    sector_bytes: u64,
}

/// The position of a sector's bit: shard, page, word, bit.
struct Place {
    shard: usize,
    page: u64,
    word: usize,
    bit: u64,
}

impl Sectors {
    pub(crate) fn new(sector_bytes: u32) -> Self {
        Self {
            shards: core::array::from_fn(|_| Mutex::default()),
            sector_bytes: u64::from(sector_bytes).max(1),
        }
    }

    fn place(&self, logical: Logical) -> Place {
        let sector = logical.get().checked_div(self.sector_bytes).unwrap_or(0);
        let page = sector.checked_div(PAGE_SECTORS).unwrap_or(0);
        let inside = sector.checked_rem(PAGE_SECTORS).unwrap_or(0);
        let as_index = |number: u64| number.narrow::<usize>();
        Place {
            shard: as_index(page & 15),
            page,
            word: as_index(inside >> 6),
            bit: 1 << (inside & 63),
        }
    }

    /// Adds the sector at `logical`. Returns false if the sector was already in the set.
    pub(crate) fn insert(&self, logical: Logical) -> bool {
        let Place {
            shard,
            page,
            word,
            bit,
        } = self.place(logical);
        let Some(shard) = self.shards.get(shard) else {
            return false;
        };
        let mut pages = shard.lock();
        let Some(word) = pages.entry(page).or_default().get_mut(word) else {
            return false;
        };
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub(crate) fn contains(&self, logical: Logical) -> bool {
        let Place {
            shard,
            page,
            word,
            bit,
        } = self.place(logical);
        self.shards.get(shard).is_some_and(|shard| {
            let pages = shard.lock();
            let word = pages.get(&page).and_then(|page| page.get(word));
            word.is_some_and(|word| word & bit != 0)
        })
    }
}

/// A filter of addresses with a fixed size, which may report neighbours of a marked range as
/// marked.
#[derive(Debug)]
pub(crate) struct Neighbourhoods {
    words: Vec<core::sync::atomic::AtomicU64>,
}

/// The size of a neighbourhood, as a power of two.
const NEIGHBOURHOOD_SHIFT: u32 = 18;
const NEIGHBOURHOOD_WORDS: u64 = 1 << 14;
/// The most neighbourhoods that a query inspects; a longer range counts as marked.
const NEIGHBOURHOODS_MAX: u64 = 1 << 12;

impl Neighbourhoods {
    pub(crate) fn new() -> Self {
        Self {
            words: (0..NEIGHBOURHOOD_WORDS)
                .map(|_| core::sync::atomic::AtomicU64::new(0))
                .collect(),
        }
    }

    fn place(number: u64) -> (usize, u64) {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (mixed >> 50).narrow::<usize>();
        (word, 1 << (mixed >> 44 & 63))
    }

    fn numbers(start: u64, end: u64) -> core::ops::RangeInclusive<u64> {
        start >> NEIGHBOURHOOD_SHIFT..=end.saturating_sub(1).max(start) >> NEIGHBOURHOOD_SHIFT
    }

    /// Marks the address range `[start, end)`.
    pub(crate) fn mark(&self, start: u64, end: u64) {
        let numbers = Self::numbers(start, end);
        if numbers.end().saturating_sub(*numbers.start()) > NEIGHBOURHOOD_WORDS << 6 {
            for word in &self.words {
                word.store(u64::MAX, core::sync::atomic::Ordering::Relaxed);
            }
            return;
        }
        for number in numbers {
            let (word, bit) = Self::place(number);
            if let Some(word) = self.words.get(word) {
                word.fetch_or(bit, core::sync::atomic::Ordering::Relaxed);
            }
        }
    }

    /// Returns whether `[start, end)` may contain a marked address.
    pub(crate) fn may_meet(&self, start: u64, end: u64) -> bool {
        let mut numbers = Self::numbers(start, end);
        if numbers.end().saturating_sub(*numbers.start()) > NEIGHBOURHOODS_MAX {
            return true;
        }
        numbers.any(|number| {
            let (word, bit) = Self::place(number);
            let word = self.words.get(word);
            word.is_some_and(|word| word.load(core::sync::atomic::Ordering::Relaxed) & bit != 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_contains_inserted_sectors() {
        let set = Sectors::new(4096);
        let addresses: Vec<Logical> = (0..3000_u64)
            .map(|number| Logical::new(number * 7919 * 4096))
            .collect();
        for address in &addresses {
            assert!(!set.contains(*address));
            assert!(set.insert(*address));
            assert!(!set.insert(*address));
        }
        assert!(addresses.iter().all(|address| set.contains(*address)));
        assert!(!set.contains(Logical::new(4096)));
    }

    #[test]
    fn neighbourhoods_never_miss() {
        let marks = Neighbourhoods::new();
        assert!(!marks.may_meet(0, 1 << 20));
        for number in 0..1000_u64 {
            let start = number * 12_345_678_901;
            marks.mark(start, start + 4096);
            assert!(marks.may_meet(start, start + 4096));
            assert!(marks.may_meet(start.saturating_sub(1 << 20), start + 1));
        }
    }
}
