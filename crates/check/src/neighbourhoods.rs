//! A filter of address ranges with a fixed size.

use buttress_exact::Exact as _;

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
