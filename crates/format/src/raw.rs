//! Reading raw structs out of item data, with the size checks that all of them share.

use crate::item_error::{ItemError, ItemProblem};
use crate::key::Key;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// The whole of `data` as one `Raw`.
///
/// # Errors
/// [`ItemProblem::SizeWrong`] when `data` has another size.
pub(crate) fn exactly<'a, Raw>(key: &Key, data: &'a [u8]) -> Result<&'a Raw, ItemError>
where
    Raw: FromBytes + Immutable + KnownLayout + Unaligned,
{
    Raw::ref_from_bytes(data).map_err(|_| {
        ItemError::new(
            key,
            ItemProblem::SizeWrong {
                size_bytes: data.len(),
                expected_bytes: size_of::<Raw>(),
            },
        )
    })
}

/// The first bytes of `data` as one `Raw`, and the rest.
///
/// # Errors
/// [`ItemProblem::SizeTooSmall`] when `data` ends before that.
pub(crate) fn prefix<'a, Raw>(key: &Key, data: &'a [u8]) -> Result<(&'a Raw, &'a [u8]), ItemError>
where
    Raw: FromBytes + Immutable + KnownLayout + Unaligned,
{
    Raw::ref_from_prefix(data).map_err(|_| {
        ItemError::new(
            key,
            ItemProblem::SizeTooSmall {
                size_bytes: data.len(),
                needed_bytes: size_of::<Raw>(),
            },
        )
    })
}

/// All of `data` as a row of `Raw`, at least one.
///
/// # Errors
/// [`ItemProblem::SizeNotMultiple`] when `data` is empty or ends inside one.
pub(crate) fn row<'a, Raw>(key: &Key, data: &'a [u8]) -> Result<&'a [Raw], ItemError>
where
    Raw: FromBytes + Immutable + Unaligned,
{
    match <[Raw]>::ref_from_bytes(data) {
        Ok(row) if !row.is_empty() => Ok(row),
        _ => Err(ItemError::new(
            key,
            ItemProblem::SizeNotMultiple {
                size_bytes: data.len(),
                unit_bytes: size_of::<Raw>(),
            },
        )),
    }
}

/// Whether `number` is a multiple of the sector size (never for a sector size of zero).
pub(crate) fn is_aligned(number: u64, sector_bytes: u32) -> bool {
    number.checked_rem(u64::from(sector_bytes)) == Some(0)
}

/// Refuses a key whose first field is an address that no sector begins at.
///
/// # Errors
/// [`ItemProblem::ObjectIdUnaligned`].
pub(crate) fn require_aligned_objectid(key: &Key, sector_bytes: u32) -> Result<(), ItemError> {
    let objectid = key.objectid.get();
    if is_aligned(objectid, sector_bytes) {
        return Ok(());
    }
    Err(ItemError::new(
        key,
        ItemProblem::ObjectIdUnaligned {
            objectid,
            sector_bytes,
        },
    ))
}

/// Refuses a key whose last field is not whole sectors.
///
/// # Errors
/// [`ItemProblem::OffsetUnaligned`].
pub(crate) fn require_aligned_offset(key: &Key, sector_bytes: u32) -> Result<(), ItemError> {
    if is_aligned(key.offset, sector_bytes) {
        return Ok(());
    }
    Err(ItemError::new(
        key,
        ItemProblem::OffsetUnaligned {
            offset: key.offset,
            sector_bytes,
        },
    ))
}

/// The end of the range `[start, start + length)`.
///
/// # Errors
/// [`ItemProblem::RangeOverflow`] when it lies beyond 2^64.
pub(crate) fn range_end(key: &Key, start: u64, length_bytes: u64) -> Result<u64, ItemError> {
    start
        .checked_add(length_bytes)
        .ok_or_else(|| ItemError::new(key, ItemProblem::RangeOverflow { start, length_bytes }))
}

/// Refuses data in an item whose key says everything.
///
/// # Errors
/// [`ItemProblem::SizeWrong`].
pub(crate) fn require_empty(key: &Key, data: &[u8]) -> Result<(), ItemError> {
    if data.is_empty() {
        return Ok(());
    }
    Err(ItemError::new(
        key,
        ItemProblem::SizeWrong {
            size_bytes: data.len(),
            expected_bytes: 0,
        },
    ))
}
