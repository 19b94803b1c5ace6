//! Sets of addresses in clusters: one bit for each sector, in pages that are allocated with their
//! first bit.
//!
//! A page of 128 bytes covers 1024 sectors. Tree blocks are close together, so a set of all tree
//! blocks takes less than a five-thousandth of their bytes. A hostile volume with scattered
//! pointers makes the set a few times as large as the nodes with these pointers.

use buttress_exact::Exact as _;
use buttress_format::Logical;
use buttress_locks::{Mutex, Rank, lock_class};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

lock_class!(PagesLock, "shards", Rank::LEAF);

const PAGE_WORDS: usize = 16;
const PAGE_SECTORS: u64 = 1024;
const SHARDS: usize = 16;

type Pages = HashMap<u64, [u64; PAGE_WORDS], BuildHasherDefault<std::collections::hash_map::DefaultHasher>>;

/// A set of sectors that many threads fill at once.
#[derive(Debug)]
pub struct Sectors {
    shards: [Mutex<Pages, PagesLock>; SHARDS],
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
    /// Makes an empty set of sectors of this size.
    #[must_use]
    pub fn new(sector_bytes: u32) -> Self {
        Self {
            shards: core::array::from_fn(|_| Mutex::default()),
            sector_bytes: u64::from(sector_bytes).max(1),
        }
    }

    fn place(&self, logical: Logical) -> Place {
        let sector = logical.get().quotient(self.sector_bytes);
        let page = sector.quotient(PAGE_SECTORS);
        let inside = sector.remainder(PAGE_SECTORS);
        let as_index = |number: u64| number.narrow::<usize>();
        Place {
            shard: as_index(page & 15),
            page,
            word: as_index(inside >> 6),
            bit: 1 << (inside & 63),
        }
    }

    /// Adds the sector at `logical`. Returns false if the sector was already in the set.
    pub fn insert(&self, logical: Logical) -> bool {
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

    /// Returns whether the set has the sector at `logical`.
    #[must_use]
    pub fn contains(&self, logical: Logical) -> bool {
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
}
