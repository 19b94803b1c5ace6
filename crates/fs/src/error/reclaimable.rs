//! The space that a balance would return to a volume without space.

use buttress_format::ByteCount;
use core::fmt;

/// Space in block groups of another kind. A balance packs these groups, and the emptied groups become
/// unallocated space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaimable {
    /// The option of `balance start` that selects the kind: `-d` or `-m`.
    pub option: &'static str,
    /// The value of the `usage` filter, in per cent.
    pub usage_percent: u64,
    /// The length of the block groups that the balance empties.
    pub bytes: ByteCount,
}

impl fmt::Display for Reclaimable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            option,
            usage_percent,
            bytes,
        } = self;
        write!(
            f,
            "; to free block groups of about {bytes} bytes, run `buttress balance start {option}usage={usage_percent}`"
        )
    }
}

/// Returns the remedy for a message; nothing if there is none.
pub(super) fn remedy(reclaimable: Option<&Reclaimable>) -> String {
    reclaimable.map_or_else(String::new, ToString::to_string)
}
