//! The errors of a conversion.

use buttress_format::ByteCount;

/// A failure of a conversion. The old file system is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The free space is too small, or too fragmented, for the new trees.
    #[error(
        "free space is too small or too fragmented for the new trees (found {free} bytes in its \
         longest runs, expected {needed} bytes in runs of 1 MiB or more). Delete files or grow \
         the volume first"
    )]
    NoSpace {
        /// The bytes that one copy of the new trees needs.
        needed: ByteCount,
        /// The bytes of the longest free runs.
        free: ByteCount,
    },
}
