//! Moves of bytes inside a block.

/// Moves `length` bytes of a node from offset `from` to offset `to`. The two ranges may overlap.
/// Returns false and moves nothing if a range lies outside `bytes`.
pub(super) fn shift(bytes: &mut [u8], from: usize, to: usize, length: usize) -> bool {
    let fits = |start: usize| start.checked_add(length).is_some_and(|end| end <= bytes.len());
    if !fits(from) || !fits(to) {
        return false;
    }
    bytes.copy_within(from..from.saturating_add(length), to);
    true
}
