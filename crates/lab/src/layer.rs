//! Shared parts of backends over another backend.

use std::ops::Range;

/// Defines the methods that pass the name and the geometry of `self.inner` through.
macro_rules! geometry_of_inner {
    () => {
        fn name(&self) -> &str {
            self.inner.name()
        }

        fn size_bytes(&self) -> u64 {
            self.inner.size_bytes()
        }

        fn sector_bytes(&self) -> u32 {
            self.inner.sector_bytes()
        }

        fn is_rotational(&self) -> bool {
            self.inner.is_rotational()
        }

        fn is_writable(&self) -> bool {
            self.inner.is_writable()
        }
    };
}
pub(crate) use geometry_of_inner;

/// Returns the byte range of a request.
pub(crate) fn range_of(offset_bytes: u64, length_bytes: u64) -> Range<u64> {
    // Clamp: no backend reaches the largest offset, and each checks the range.
    offset_bytes..offset_bytes.saturating_add(length_bytes)
}
