//! A copy between buffers of different lengths.

/// Copies as many bytes as both buffers have, and returns their number.
pub(super) fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let length = from.len().min(to.len());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    length
}
