//! Chunks for metadata: several ones, since superblock copies and data divide the free space.

use super::super::places::{DEVICE_EXTENT_BYTES_MAX, Place};
use super::packing::is_scattered;
use super::{Kind, Planner, Source, Stop};
use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, DeviceId, STRIPE_BYTES};

/// The shortest chunk for metadata that is not the last one.
const METADATA_PIECE_BYTES: u64 = 4 << 20;

impl Planner<'_, '_> {
    /// Makes chunks in the lowest free ranges until they hold `wanted` bytes together.
    pub(super) fn make_pieces(
        &mut self,
        kind: Kind,
        wanted: u64,
        bound: &dyn Fn(DeviceId) -> u64,
    ) -> Result<Vec<usize>, Stop> {
        let mut chunks = Vec::new();
        let mut left = wanted;
        while left > 0 {
            let place = self.piece(kind, left, bound).ok_or(Stop::NoPlace)?;
            // Clamp: the last chunk may be longer than what is left.
            left = left.saturating_sub(place.length);
            self.plan.metadata.0 = self.plan.metadata.0.exact_add(place.length);
            chunks.push(self.make(kind.flags, place));
        }
        Ok(chunks)
    }

    /// Returns the place of one chunk: for all bytes, or the longest one in a lower free range.
    fn piece(&self, kind: Kind, bytes: u64, bound: &dyn Fn(DeviceId) -> u64) -> Option<Place> {
        let low = |bytes: u64| {
            let place = self.places.low(kind.profile(), bytes, bound);
            place.filter(|place| place.device_extent <= DEVICE_EXTENT_BYTES_MAX)
        };
        let whole = low(bytes);
        let least = METADATA_PIECE_BYTES.min(bytes);
        let first = low(least)?;
        if whole.as_ref().is_some_and(|whole| is_near(whole, &first)) {
            return whole;
        }
        // The longest chunk where the shortest one is, in whole stripe units.
        let (mut fits, mut too_long) = (least.quotient(STRIPE_BYTES), bytes.div_ceil(STRIPE_BYTES));
        while too_long > fits.exact_add(1) {
            let middle = fits.midpoint(too_long);
            match low(middle.exact_mul(STRIPE_BYTES)).is_some_and(|place| is_near(&place, &first)) {
                true => fits = middle,
                false => too_long = middle,
            }
        }
        low(fits.exact_mul(STRIPE_BYTES).max(least)).or(whole)
    }

    /// Returns the sum of the data extents in mixed block groups, and the length of the longest one.
    pub(super) fn data_of_mixed(&mut self, groups: &[Source]) -> Result<(u64, u64), Stop> {
        let (mut sum, mut longest) = (0_u64, 0_u64);
        let is_mixed = |group: &&Source| group.flags.contains(BlockGroupFlags::DATA);
        for group in groups.iter().filter(is_mixed) {
            for length in (self.lengths)(group.start)? {
                sum = sum.exact_add(length);
                longest = longest.max(length);
            }
        }
        Ok((sum, longest))
    }
}

/// Whether a place begins where another one does, with its copies side by side.
fn is_near(place: &Place, other: &Place) -> bool {
    place.stripes.first() == other.stripes.first() && !is_scattered(place)
}
