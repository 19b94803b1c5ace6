//! Little-endian numbers at offsets of a structure.

use crate::error::Problem;
use buttress_exact::{Exact as _, u64_of};

/// Returns the `length` bytes at `offset`.
///
/// # Errors
/// Fails if the range passes the end of `bytes`.
pub(crate) fn part<'a>(
    bytes: &'a [u8],
    what: &'static str,
    offset: usize,
    length: usize,
) -> Result<&'a [u8], Problem> {
    let end = offset.checked_add(length);
    end.and_then(|end| bytes.get(offset..end)).ok_or(Problem::Bounds {
        what,
        offset: u64_of(offset),
        length: u64_of(length),
        end: u64_of(bytes.len()),
    })
}

fn array<const N: usize>(bytes: &[u8], what: &'static str, offset: usize) -> Result<[u8; N], Problem> {
    let part = part(bytes, what, offset, N)?;
    part.first_chunk().copied().ok_or(Problem::Bounds {
        what,
        offset: u64_of(offset),
        length: u64_of(N),
        end: u64_of(bytes.len()),
    })
}

/// Returns the 16-bit number at `offset`.
pub(crate) fn u16_at(bytes: &[u8], what: &'static str, offset: usize) -> Result<u16, Problem> {
    array(bytes, what, offset).map(u16::from_le_bytes)
}

/// Returns the 32-bit number at `offset`.
pub(crate) fn u32_at(bytes: &[u8], what: &'static str, offset: usize) -> Result<u32, Problem> {
    array(bytes, what, offset).map(u32::from_le_bytes)
}

/// Returns a length, rounded up to a multiple of four.
pub(crate) fn rounded_to_four(length: usize) -> usize {
    length.div_ceil(4).exact_mul(4)
}
