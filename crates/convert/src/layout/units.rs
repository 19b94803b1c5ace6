//! The used units of a device: one bit for each 64 KiB.
//!
//! The length of a chunk is a multiple of this unit, so the layout needs no finer map. A device of
//! 1 TiB takes 2 MiB of memory.

use buttress_exact::Exact as _;
use buttress_format::STRIPE_BYTES;
use core::ops::Range;

/// The size of a unit in bytes.
pub const UNIT_BYTES: u64 = STRIPE_BYTES;

const BITS: u64 = 64;

/// The used units of a device.
#[derive(Clone, Debug)]
pub struct Units {
    words: Vec<u64>,
    device_bytes: u64,
}

impl Units {
    /// Makes the map of a device of `device_bytes` without used units.
    #[must_use]
    pub fn new(device_bytes: u64) -> Self {
        let words = device_bytes.div_ceil(UNIT_BYTES).div_ceil(BITS);
        Self {
            words: vec![0; words.narrow()],
            device_bytes,
        }
    }

    /// Returns the size of the device in bytes.
    #[must_use]
    pub const fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Returns the number of units, a last incomplete one included.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.device_bytes.div_ceil(UNIT_BYTES)
    }

    /// Returns true if the device has no unit.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.device_bytes == 0
    }

    /// Returns the number of complete units.
    #[must_use]
    pub fn complete(&self) -> u64 {
        self.device_bytes.quotient(UNIT_BYTES)
    }

    /// Marks the units that the `bytes` of the device touch. Bytes after the end of the device do
    /// not count.
    pub fn mark_bytes(&mut self, bytes: Range<u64>) {
        if bytes.start < bytes.end {
            self.mark(bytes.start.quotient(UNIT_BYTES)..bytes.end.div_ceil(UNIT_BYTES));
        }
    }

    /// Marks units as used.
    pub fn mark(&mut self, units: Range<u64>) {
        for unit in units.start..units.end.min(self.len()) {
            if let Some(word) = self.words.get_mut(word_of(unit)) {
                *word |= bit_of(unit);
            }
        }
    }

    /// Returns true if the unit is used. Units after the end are not.
    #[must_use]
    pub fn is_used(&self, unit: u64) -> bool {
        let word = self.words.get(word_of(unit));
        word.is_some_and(|word| word & bit_of(unit) != 0)
    }

    /// Returns the first unit in `within` that is used or free as asked, or the end of `within`.
    #[must_use]
    pub fn find(&self, within: Range<u64>, is_used: bool) -> u64 {
        let uniform = if is_used { 0 } else { u64::MAX };
        let mut unit = within.start;
        while unit < within.end {
            let whole = unit.is_multiple_of(BITS) && self.words.get(word_of(unit)) == Some(&uniform);
            if whole {
                unit = unit.exact_add(BITS);
            } else if self.is_used(unit) == is_used {
                return unit;
            } else {
                unit = unit.exact_add(1);
            }
        }
        within.end
    }

    /// Returns the runs of used or of free units in `within`, in order.
    pub fn runs(&self, within: Range<u64>, is_used: bool) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = within.start;
        core::iter::from_fn(move || {
            let start = self.find(at..within.end, is_used);
            let end = self.find(start..within.end, !is_used);
            at = end;
            (start < end).then_some(start..end)
        })
    }
}

fn word_of(unit: u64) -> usize {
    unit.quotient(BITS).narrow()
}

fn bit_of(unit: u64) -> u64 {
    1 << unit.remainder(BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_alternate_and_cover_the_device() {
        let mut units = Units::new(300 * UNIT_BYTES + 1);
        assert_eq!((units.len(), units.complete()), (301, 300));
        units.mark_bytes(0..1);
        units.mark_bytes(64 * UNIT_BYTES..200 * UNIT_BYTES + 1);
        units.mark_bytes(300 * UNIT_BYTES..400 * UNIT_BYTES);
        let used: Vec<_> = units.runs(0..301, true).collect();
        assert_eq!(used, [0..1, 64..201, 300..301]);
        let free: Vec<_> = units.runs(0..301, false).collect();
        assert_eq!(free, [1..64, 201..300]);
        assert_eq!(units.runs(70..80, false).count(), 0);
    }
}
