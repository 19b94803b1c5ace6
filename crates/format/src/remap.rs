//! Remap items, on volumes with the remap-tree feature. A remapped range keeps its logical address,
//! and the remap tree maps it to its new address.
//!
//! | key | item |
//! |---|---|
//! | `(start IDENTITY_REMAP length)` | no data: the range has not moved |
//! | `(start REMAP length)` | the new address, 8 bytes |
//! | `(new start REMAP_BACKREF length)` | the old address, 8 bytes |
//!
//! Opening refuses volumes with the remap-tree feature, because no reader follows these items yet.
//! The module `remap` only parses the items.
//!
//! Source: the kernel's documentation of the on-disk format, remap tree.

use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{ByteCount, Logical};
use zerocopy::little_endian::U64;

/// The remap item of the logical range `[start, start + length)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemapItem {
    /// The first byte of the remapped range, from the key.
    pub start: Logical,
    /// The length of the range in bytes, from the key.
    pub length: ByteCount,
    /// The other address of the mapping: a `REMAP` holds the new address, and a `REMAP_BACKREF` the
    /// old one. An `IDENTITY_REMAP` has `start` itself.
    pub other: Logical,
}

impl RemapItem {
    /// Parses an `IDENTITY_REMAP`, `REMAP` or `REMAP_BACKREF`.
    ///
    /// # Errors
    /// Fails if the size is wrong, or if the range is empty, not aligned or beyond 2^64.
    pub fn parse(key: &Key, data: &[u8], sector_bytes: u32) -> Result<Self, ItemError> {
        raw::require_aligned_objectid(key, sector_bytes)?;
        raw::require_aligned_offset(key, sector_bytes)?;
        if key.offset == 0 {
            return Err(ItemError::new(key, ItemProblem::OffsetZero));
        }
        let start = key.objectid.get();
        raw::range_end(key, start, key.offset)?;
        let other = if key.item_type == ItemType::IDENTITY_REMAP {
            raw::require_empty(key, data)?;
            start
        } else {
            raw::exactly::<U64>(key, data)?.get()
        };
        Ok(Self {
            start: Logical::new(start),
            length: ByteCount::new(key.offset),
            other: Logical::new(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ObjectId;

    #[test]
    fn all_three_types_are_read_and_checked() {
        let parse = |item_type: ItemType, start: u64, length: u64, data: &[u8]| {
            RemapItem::parse(&Key::new(ObjectId::new(start), item_type, length), data, 4096)
                .map(|item| item.other.get())
                .map_err(|error| error.problem)
        };
        let address = (1_u64 << 20).to_le_bytes();
        assert_eq!(parse(ItemType::IDENTITY_REMAP, 4096, 4096, &[]), Ok(4096));
        assert_eq!(parse(ItemType::REMAP, 0, 4096, &address), Ok(1 << 20));
        assert_eq!(parse(ItemType::REMAP_BACKREF, 0, 4096, &address), Ok(1 << 20));
        let sector_bytes = 4096;
        let cases = [
            (
                parse(ItemType::IDENTITY_REMAP, 0, 4096, &address),
                ItemProblem::SizeWrong {
                    size_bytes: 8,
                    expected_bytes: 0,
                },
            ),
            (
                parse(ItemType::REMAP, 0, 4096, &[]),
                ItemProblem::SizeWrong {
                    size_bytes: 0,
                    expected_bytes: 8,
                },
            ),
            (
                parse(ItemType::REMAP, 1, 4096, &address),
                ItemProblem::ObjectIdUnaligned {
                    objectid: 1,
                    sector_bytes,
                },
            ),
            (
                parse(ItemType::REMAP, 0, 1, &address),
                ItemProblem::OffsetUnaligned {
                    offset: 1,
                    sector_bytes,
                },
            ),
            (parse(ItemType::REMAP, 0, 0, &address), ItemProblem::OffsetZero),
        ];
        for (found, expected) in cases {
            assert_eq!(found, Err(expected));
        }
    }
}
