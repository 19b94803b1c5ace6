//! The ranges of a device that hold the boot area and superblocks.
//!
//! Source: on-disk format documentation, section "Superblock".

use super::units::UNIT_BYTES;
use buttress_exact::Exact as _;
use core::ops::Range;

/// The ranges of bytes that no chunk may use: the boot area with the primary superblock, and the
/// places of the superblock copies.
pub const RESERVED: [Range<u64>; 3] = [
    0..1 << 20,
    64 << 20..(64 << 20) + UNIT_BYTES,
    256 << 30..(256 << 30) + UNIT_BYTES,
];

/// Returns the units of the reserved ranges.
pub(super) fn reserved_units() -> impl Iterator<Item = Range<u64>> {
    RESERVED
        .iter()
        .map(|range| range.start.quotient(UNIT_BYTES)..range.end.quotient(UNIT_BYTES))
}
