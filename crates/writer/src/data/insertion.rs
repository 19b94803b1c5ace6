//! Extents that go into the trees next, with the place of their content.

use super::compressing::NewExtent;
use super::in_place::InPlace;
use buttress_engine::data_extents::DataRange;
use core::ops::Range;

/// An extent that has a place.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) extent: NewExtent,
    pub(super) range: DataRange,
}

/// An extent that write-back puts into the trees next, in order of offset.
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

    /// Where its content lies.
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
