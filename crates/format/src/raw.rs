//! Readers of raw structs in item data, with size checks for all item types.

use crate::item_error::{ItemError, ItemProblem};
use crate::key::Key;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Reads all of `data` as one `Raw`.
///
/// # Errors
/// Returns [`ItemProblem::SizeWrong`] if `data` has another size.
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

/// Reads the beginning of `data` as one `Raw`, and returns it with the remaining bytes.
///
/// # Errors
/// Returns [`ItemProblem::SizeTooSmall`] if `data` is shorter than one `Raw`.
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

/// Reads all of `data` as an array of one or more `Raw`.
///
/// # Errors
/// Returns [`ItemProblem::SizeNotMultiple`] if `data` is empty or ends inside a `Raw`.
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

/// Returns true if `number` is a multiple of the sector size. Returns false for a sector size of
/// zero.
pub(crate) fn is_aligned(number: u64, sector_bytes: u32) -> bool {
    number.checked_rem(u64::from(sector_bytes)) == Some(0)
}

/// Refuses a key whose object id is an address that is not sector-aligned.
///
/// # Errors
/// Returns [`ItemProblem::ObjectIdUnaligned`].
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

/// Refuses a key whose offset is not whole sectors.
///
/// # Errors
/// Returns [`ItemProblem::OffsetUnaligned`].
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

/// Returns the end of the range `[start, start + length)`.
///
/// # Errors
/// Returns [`ItemProblem::RangeOverflow`] if the end lies beyond 2^64.
pub(crate) fn range_end(key: &Key, start: u64, length_bytes: u64) -> Result<u64, ItemError> {
    start
        .checked_add(length_bytes)
        .ok_or_else(|| ItemError::new(key, ItemProblem::RangeOverflow { start, length_bytes }))
}

/// Refuses an item with data whose key holds all its information.
///
/// # Errors
/// Returns [`ItemProblem::SizeWrong`].
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
