//! The modes of read-ahead, their windows, and the direction of a reader.

use buttress_exact::Exact as _;
use buttress_format::ByteCount;

/// The window of [`ReadAhead::sweep`].
pub const SWEEP_WINDOW: ByteCount = ByteCount::new(16 << 20);

/// The largest window of read-ahead blocks that are in the page cache. On no measured device does a
/// larger window help. With a window of this size, a block that was copied and checked is still in
/// the processor's cache when the walk visits it.
const CACHED_WINDOW_BYTES: u64 = 4 << 20;

/// Returns the size of the window after one of `window_bytes`. `cached` is true if its blocks were
/// in the page cache.
pub(crate) fn next_window(window_bytes: u64, largest_bytes: u64, cached: bool) -> u64 {
    let largest_bytes = if cached {
        largest_bytes.min(CACHED_WINDOW_BYTES)
    } else {
        largest_bytes
    };
    window_bytes.exact_mul(2).min(largest_bytes)
}

/// The read-ahead mode of a cursor or a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadAhead {
    /// No read-ahead, for single lookups.
    #[default]
    None,
    /// When a leaf must be read, fetches preceding leaves of the same object within 64 KiB of its
    /// address. Stops after 64 KiB of leaves or 32 slots.
    Backward,
    /// When a leaf must be read, fetches following leaves within 64 KiB of its address. This
    /// read-ahead stops after 64 KiB of leaves or 32 slots.
    Forward,
    /// When a leaf must be read, fetches following leaves at any address, up to 128 KiB. When a
    /// node must be read, fetches the two nodes after it. `ForwardAlways` had this form when it was
    /// first proposed for the kernel; this mode serves for comparison.
    ForwardOnMiss,
    /// Fetches the same blocks as `ForwardOnMiss`, at every visit of a leaf or a node.
    ForwardAlways,
    /// For a walk to higher keys that visits its whole range, fetches a window of leaves.
    Sweep {
        /// The number of bytes of leaves to fetch ahead.
        window_bytes: ByteCount,
    },
}

impl ReadAhead {
    /// Returns a sweep with the default window.
    #[must_use]
    pub const fn sweep() -> Self {
        Self::Sweep {
            window_bytes: SWEEP_WINDOW,
        }
    }
}

/// The direction in which a cursor moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Toward {
    Lower,
    Higher,
}
