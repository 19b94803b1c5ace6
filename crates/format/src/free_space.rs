//! Free space: the ranges that no extent covers. These ranges are stored in the free space tree or,
//! on old volumes, in files of the root tree.
//!
//! In the free space tree each block group has one `FREE_SPACE_INFO`. Beside its info item, each
//! block group has `FREE_SPACE_EXTENT` items, one for each range and without data, or
//! `FREE_SPACE_BITMAP` items. A free-space bitmap has a bit for each sector of its range, lowest
//! bit first. The object id and offset of a free-space item's key are start and length. The old v1
//! cache has one header ([`FreeSpaceHeader`]) for each block group in the root tree. The header
//! names an inode that holds the content.
//!
//! Source: on-disk format documentation, sections "Free space info", "Free space extent", "Free
//! space bitmap".

use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key, RawKey};
use crate::node::RawItem;
use crate::raw;
use crate::units::{ByteCount, Generation, Logical, ObjectId};
use buttress_exact::{at_most, u64_of};
use core::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The maximum size of a bitmap in bytes.
pub const BITMAP_MAX_BYTES: usize = 256;

/// The on-disk layout of a free space info item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawFreeSpaceInfo {
    /// The number of free ranges.
    pub extent_count: U32,
    /// [`FreeSpaceInfo::USING_BITMAPS`].
    pub flags: U32,
}

/// The on-disk layout of a header of the v1 cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are those of FreeSpaceHeader, which documents them"
)]
pub struct RawFreeSpaceHeader {
    pub location: RawKey,
    pub generation: U64,
    pub num_entries: U64,
    pub num_bitmaps: U64,
}

const _: () = assert!(size_of::<RawFreeSpaceInfo>() == 8);
const _: () = assert!(size_of::<RawFreeSpaceHeader>() == 41);

/// The form in which the free space of one block group is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceInfo {
    /// The first byte of the block group.
    pub start: Logical,
    /// The length of the block group in bytes.
    pub length: ByteCount,
    /// The number of free ranges in the block group, in either form.
    pub extent_count: u32,
    /// Flags; see [`FreeSpaceInfo::USING_BITMAPS`].
    pub flags: u32,
}

impl FreeSpaceInfo {
    /// The flag of a block group whose free space is stored in bitmaps.
    pub const USING_BITMAPS: u32 = 1;

    /// Parses a `FREE_SPACE_INFO` item.
    ///
    /// # Errors
    /// Fails if the size is wrong, or if the range is empty, not aligned or beyond 2^64.
    pub fn parse(key: &Key, data: &[u8], sector_bytes: u32) -> Result<Self, ItemError> {
        let (start, length) = range(key, sector_bytes)?;
        let raw = raw::exactly::<RawFreeSpaceInfo>(key, data)?;
        let flags = raw.flags.get();
        if flags & !Self::USING_BITMAPS != 0 {
            return Err(ItemError::new(key, FreeSpaceProblem::Flags { flags }));
        }
        Ok(Self {
            start,
            length,
            extent_count: raw.extent_count.get(),
            flags,
        })
    }

    /// Returns true if the free space is stored in bitmaps.
    #[must_use]
    pub const fn uses_bitmaps(&self) -> bool {
        self.flags & Self::USING_BITMAPS != 0
    }
}

/// A free range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceExtent {
    /// The first byte of the free range.
    pub start: Logical,
    /// The length of the free range in bytes.
    pub length: ByteCount,
}

impl FreeSpaceExtent {
    /// Parses a `FREE_SPACE_EXTENT`.
    ///
    /// # Errors
    /// Fails if the item has data, or if the range is empty, not aligned or beyond 2^64.
    pub fn parse(key: &Key, data: &[u8], sector_bytes: u32) -> Result<Self, ItemError> {
        let (start, length) = range(key, sector_bytes)?;
        raw::require_empty(key, data)?;
        Ok(Self { start, length })
    }
}

/// A range with a bit for each of its sectors; a set bit is a free sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceBitmap<'a> {
    /// The first byte of the range that the bitmap covers.
    pub start: Logical,
    /// The length of the range in bytes.
    pub length: ByteCount,
    /// The bits, lowest first. Bits beyond the range have no meaning.
    pub bits: &'a [u8],
}

impl<'a> FreeSpaceBitmap<'a> {
    /// Parses a `FREE_SPACE_BITMAP`.
    ///
    /// # Errors
    /// Fails if the range is empty, not aligned, beyond 2^64 or larger than a bitmap can cover.
    /// Also fails if the size of the item's data does not fit the range.
    pub fn parse(key: &Key, data: &'a [u8], sector_bytes: u32) -> Result<Self, ItemError> {
        let (start, length) = range(key, sector_bytes)?;
        let sectors = length
            .get()
            .checked_div(u64::from(sector_bytes))
            .unwrap_or(u64::MAX);
        let expected = at_most(sectors.div_ceil(8), usize::MAX);
        if expected > BITMAP_MAX_BYTES {
            return Err(ItemError::new(
                key,
                FreeSpaceProblem::BitmapTooLong {
                    length_bytes: length.get(),
                },
            ));
        }
        if data.len() != expected {
            let problem = ItemProblem::SizeWrong {
                size_bytes: data.len(),
                expected_bytes: expected,
            };
            return Err(ItemError::new(key, problem));
        }
        Ok(Self {
            start,
            length,
            bits: data,
        })
    }

    /// Returns true if the sector with this index in the range is free. Returns false for an index
    /// beyond the range.
    #[must_use]
    pub fn is_free(&self, sector: usize) -> bool {
        let byte = sector.checked_div(8).and_then(|index| self.bits.get(index));
        let bit = 1_u8 << (sector & 7);
        byte.is_some_and(|byte| byte & bit != 0)
    }
}

impl FreeSpaceInfo {
    /// Returns the key `(start FREE_SPACE_INFO length)` of the block group.
    #[must_use]
    pub const fn key(&self) -> Key {
        range_key(ItemType::FREE_SPACE_INFO, self.start, self.length)
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawFreeSpaceInfo>()] {
        zerocopy::transmute!(RawFreeSpaceInfo {
            extent_count: U32::new(self.extent_count),
            flags: U32::new(self.flags),
        })
    }

    /// Returns the number of free ranges above which a block group of this length switches to
    /// bitmaps. With more ranges than the returned number, the items of the ranges would take more
    /// space than the bitmaps.
    #[must_use]
    pub fn bitmap_threshold(length: ByteCount, sector_bytes: u32) -> u32 {
        let bitmap_item_bytes = u64::try_from(size_of::<RawItem>().saturating_add(BITMAP_MAX_BYTES));
        let bitmaps = length.get().div_ceil(bitmap_range_bytes(sector_bytes).max(1));
        let bytes = bitmaps.saturating_mul(bitmap_item_bytes.unwrap_or(u64::MAX));
        let extent_item_bytes = u64_of(size_of::<RawItem>());
        u32::try_from(bytes.checked_div(extent_item_bytes).unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// Returns the number of free ranges below which a block group of this length switches back
    /// from bitmaps to ranges. The threshold is lower than [`FreeSpaceInfo::bitmap_threshold`], so
    /// that a block group does not switch back and forth.
    #[must_use]
    pub fn extent_threshold(length: ByteCount, sector_bytes: u32) -> u32 {
        Self::bitmap_threshold(length, sector_bytes).saturating_sub(100)
    }
}

impl FreeSpaceExtent {
    /// Returns the key `(start FREE_SPACE_EXTENT length)`. A `FREE_SPACE_EXTENT` item has no data.
    #[must_use]
    pub const fn key(&self) -> Key {
        range_key(ItemType::FREE_SPACE_EXTENT, self.start, self.length)
    }
}

impl FreeSpaceBitmap<'_> {
    /// Returns the key `(start FREE_SPACE_BITMAP length)`. The data of a bitmap item holds one bit
    /// for each sector.
    #[must_use]
    pub const fn key(&self) -> Key {
        range_key(ItemType::FREE_SPACE_BITMAP, self.start, self.length)
    }

    /// Sets (free) or clears (in use) the bits of the sectors `[first, end)` of a bitmap. Sectors
    /// beyond the bitmap are ignored.
    pub fn mark(bits: &mut [u8], sectors: Range<usize>, free: bool) {
        for sector in sectors {
            let Some(byte) = sector.checked_div(8).and_then(|index| bits.get_mut(index)) else {
                return;
            };
            let bit = 1_u8 << (sector & 7);
            if free {
                *byte |= bit;
            } else {
                *byte &= !bit;
            }
        }
    }
}

/// Returns the length of the longest range that one bitmap covers: [`BITMAP_MAX_BYTES`] of bits,
/// one for each sector.
#[must_use]
pub fn bitmap_range_bytes(sector_bytes: u32) -> u64 {
    u64_of(BITMAP_MAX_BYTES)
        .saturating_mul(8)
        .saturating_mul(u64::from(sector_bytes))
}

const fn range_key(item_type: ItemType, start: Logical, length: ByteCount) -> Key {
    Key::new(ObjectId::new(start.get()), item_type, length.get())
}

/// The header of one block group's v1 free space cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceHeader {
    /// The block group's address, from the key.
    pub start: Logical,
    /// The key of the inode that holds the cache.
    pub location: Key,
    /// The generation of the cache.
    pub generation: Generation,
    /// The number of entries in the cache.
    pub entry_count: u64,
    /// The number of entries that are bitmaps.
    pub bitmap_count: u64,
}

impl FreeSpaceHeader {
    /// Parses the header under `(FREE_SPACE 0 address)` in the root tree.
    ///
    /// # Errors
    /// Fails if the size is wrong.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let raw = raw::exactly::<RawFreeSpaceHeader>(key, data)?;
        Ok(Self {
            start: Logical::new(key.offset),
            location: Key::from(raw.location),
            generation: Generation::new(raw.generation.get()),
            entry_count: raw.num_entries.get(),
            bitmap_count: raw.num_bitmaps.get(),
        })
    }
}

/// Returns the range that the key of a free space item names.
fn range(key: &Key, sector_bytes: u32) -> Result<(Logical, ByteCount), ItemError> {
    raw::require_aligned_objectid(key, sector_bytes)?;
    raw::require_aligned_offset(key, sector_bytes)?;
    if key.offset == 0 {
        return Err(ItemError::new(key, ItemProblem::OffsetZero));
    }
    raw::range_end(key, key.objectid.get(), key.offset)?;
    Ok((Logical::new(key.objectid.get()), ByteCount::new(key.offset)))
}

/// The check that a free space item fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeSpaceProblem {
    /// The flags have bits without a meaning.
    #[error("free space info flags are 0x{flags:x}, expected at most 0x1")]
    Flags {
        /// The flags.
        flags: u32,
    },
    /// The bitmap's range is longer than a bitmap can cover.
    #[error("bitmap covers {length_bytes} bytes, which need more than {BITMAP_MAX_BYTES} bytes of bits")]
    BitmapTooLong {
        /// The length of the range in bytes.
        length_bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(item_type: ItemType, start: u64, length: u64) -> Key {
        Key::new(ObjectId::new(start), item_type, length)
    }

    #[test]
    fn ranges_are_checked_in_all_three_types() {
        let sector_bytes = 4096;
        let cases = [
            (
                1,
                4096,
                ItemProblem::ObjectIdUnaligned {
                    objectid: 1,
                    sector_bytes,
                },
            ),
            (
                0,
                1,
                ItemProblem::OffsetUnaligned {
                    offset: 1,
                    sector_bytes,
                },
            ),
            (0, 0, ItemProblem::OffsetZero),
            (
                8192,
                0u64.wrapping_sub(4096),
                ItemProblem::RangeOverflow {
                    start: 8192,
                    length_bytes: 0u64.wrapping_sub(4096),
                },
            ),
        ];
        for (start, length, expected) in cases {
            let key = key(ItemType::FREE_SPACE_INFO, start, length);
            let info = FreeSpaceInfo::parse(&key, &[0; 8], 4096).map(|_| ());
            let extent = FreeSpaceExtent::parse(&key, &[], 4096).map(|_| ());
            let bitmap = FreeSpaceBitmap::parse(&key, &[0], 4096).map(|_| ());
            for found in [info, extent, bitmap] {
                assert_eq!(found.map_err(|error| error.problem), Err(expected.clone()));
            }
        }
    }

    #[test]
    fn contents_are_checked() {
        let info = key(ItemType::FREE_SPACE_INFO, 0, 8 << 20);
        let parsed = FreeSpaceInfo::parse(&info, &[3, 0, 0, 0, 1, 0, 0, 0], 4096).unwrap();
        assert!(parsed.uses_bitmaps() && parsed.extent_count == 3);
        assert_eq!(
            FreeSpaceInfo::parse(&info, &[3, 0, 0, 0, 2, 0, 0, 0], 4096)
                .unwrap_err()
                .problem,
            FreeSpaceProblem::Flags { flags: 2 }.into()
        );
        assert_eq!(
            FreeSpaceInfo::parse(&info, &[0; 9], 4096).unwrap_err().problem,
            ItemProblem::SizeWrong {
                size_bytes: 9,
                expected_bytes: 8
            }
        );
        assert_eq!(
            FreeSpaceExtent::parse(&info, &[0], 4096).unwrap_err().problem,
            ItemProblem::SizeWrong {
                size_bytes: 1,
                expected_bytes: 0
            }
        );
    }

    #[test]
    fn bitmaps_have_a_bit_for_each_sector() {
        let bitmap_key = key(ItemType::FREE_SPACE_BITMAP, 0, 9 * 4096);
        let bitmap = FreeSpaceBitmap::parse(&bitmap_key, &[0b10, 0b1], 4096).unwrap();
        let free: Vec<usize> = (0..100).filter(|sector| bitmap.is_free(*sector)).collect();
        assert_eq!(free, [1, 8]);
        assert_eq!(
            FreeSpaceBitmap::parse(&bitmap_key, &[0], 4096)
                .unwrap_err()
                .problem,
            ItemProblem::SizeWrong {
                size_bytes: 1,
                expected_bytes: 2
            }
        );
        let long = key(ItemType::FREE_SPACE_BITMAP, 0, (8 << 20) + 4096);
        assert_eq!(
            FreeSpaceBitmap::parse(&long, &[0; 257], 4096)
                .unwrap_err()
                .problem,
            FreeSpaceProblem::BitmapTooLong {
                length_bytes: (8 << 20) + 4096
            }
            .into()
        );
    }

    #[test]
    fn v1_headers_are_read() {
        let header_key = Key::new(ObjectId::FREE_SPACE, ItemType(0), 1 << 20);
        let mut data = [0; 41];
        data[0] = 9;
        data[33] = 2;
        let header = FreeSpaceHeader::parse(&header_key, &data).unwrap();
        assert_eq!(
            (
                header.location.objectid.get(),
                header.bitmap_count,
                header.start.get()
            ),
            (9, 2, 1 << 20)
        );
        assert!(FreeSpaceHeader::parse(&header_key, &data[1..]).is_err());
    }
}
