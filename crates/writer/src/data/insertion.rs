//! Extents to be inserted into the trees, with the addresses of their content.

use super::compressing::NewExtent;
use super::in_place::InPlace;
use buttress_engine::data_extents::DataRange;
use core::ops::Range;

/// A new data extent that has an address.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) extent: NewExtent,
    pub(super) range: DataRange,
}

/// An extent that write-back will insert into the trees, in order of offset.
pub(super) enum Insertion {
    New(Placed),
    Written(InPlace),
}

impl Insertion {
    pub(super) fn range(&self) -> Range<u64> {
        match self {
            Self::New(Placed { extent, .. }) => extent.start..extent.start.saturating_add(extent.length),
            Self::Written(part) => part.range.clone(),
        }
    }

    /// Returns the address range of the inserted content.
    pub(super) fn addresses(&self) -> Range<u64> {
        let (start, length) = match self {
            Self::New(placed) => (placed.range.logical.get(), placed.range.length.get()),
            Self::Written(part) => (
                part.logical.get(),
                part.range.end.saturating_sub(part.range.start),
            ),
        };
        start..start.saturating_add(length)
    }
}
