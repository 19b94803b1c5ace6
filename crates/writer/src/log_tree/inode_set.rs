//! Sets of inodes with numbers near each other, such as files that were made one after another.
//!
//! Each map entry has 64 bits, one bit for each inode number. A sync of very many names checks each
//! inode number several times, and neighbouring numbers share a map entry.

use buttress_format::InodeNumber;
use std::collections::BTreeMap;

/// The number of bits in a map entry, as a power of two.
const SHIFT: u32 = 6;

/// A set of inodes. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct InodeSet {
    bits: BTreeMap<u64, u64>,
    count: usize,
}

/// Returns the map entry of an inode number, and the number's bit in that entry.
const fn place_of(inode: InodeNumber) -> (u64, u64) {
    let number = inode.get();
    let bit = number & ((1 << SHIFT) - 1);
    (number >> SHIFT, 1 << bit)
}

impl InodeSet {
    pub(super) fn has(&self, inode: InodeNumber) -> bool {
        let (place, bit) = place_of(inode);
        self.bits.get(&place).is_some_and(|bits| bits & bit != 0)
    }

    /// Adds an inode. Returns whether the inode was absent.
    pub(super) fn insert(&mut self, inode: InodeNumber) -> bool {
        let (place, bit) = place_of(inode);
        let bits = self.bits.entry(place).or_default();
        let is_new = *bits & bit == 0;
        *bits |= bit;
        self.count = self.count.saturating_add(usize::from(is_new));
        is_new
    }

    pub(super) fn remove(&mut self, inode: InodeNumber) {
        let (place, bit) = place_of(inode);
        let Some(bits) = self.bits.get_mut(&place).filter(|bits| **bits & bit != 0) else {
            return;
        };
        *bits &= !bit;
        if *bits == 0 {
            self.bits.remove(&place);
        }
        self.count = self.count.saturating_sub(1);
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_contains_inserted_inodes() {
        let numbers = [0, 1, 63, 64, 65, 127, 1 << 40, u64::MAX];
        let mut set = InodeSet::default();
        for (before, number) in numbers.into_iter().enumerate() {
            let inode = InodeNumber::new(number);
            assert!(!set.has(inode));
            assert_eq!(set.len(), before);
            assert!(set.insert(inode));
            assert!(!set.insert(inode));
            assert!(set.has(inode));
        }
        for (left, number) in (0..numbers.len()).rev().zip(numbers) {
            let inode = InodeNumber::new(number);
            set.remove(inode);
            set.remove(inode);
            assert!(!set.has(inode));
            assert_eq!(set.len(), left);
        }
        assert!(set.bits.is_empty());
    }
}
