//! The checksum item, `EXTENT_CSUM`: checksums of consecutive sectors of data.
//!
//! The key is `(-10 EXTENT_CSUM logical)`. The item is an array of checksums, one for each sector
//! from `logical` on. An item may cover sectors of several extents, and several items may cover one
//! extent.
//!
//! Source: on-disk format documentation, section "EXTENT_CSUM".

use crate::checksum::ChecksumType;
use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::limits;
use crate::node::RawItem;
use crate::raw;
use crate::units::{ByteCount, Logical, ObjectId};

/// A checksum item that passed its checks.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumItem<'a> {
    /// Address of the first sector.
    pub start: Logical,
    /// Address after the last sector (exclusive).
    pub end: Logical,
    packed: &'a [u8],
    sector_bytes: u32,
    checksum_bytes: usize,
}

impl<'a> ChecksumItem<'a> {
    /// Checks an `EXTENT_CSUM` of a volume with this sector size and checksum type. The checks of a
    /// checksum item cover the object id, the alignment, and the size: a positive number of whole
    /// checksums. The last sector of the checksum item must end within 2^64.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(
        key: &Key,
        data: &'a [u8],
        sector_bytes: u32,
        checksum_type: ChecksumType,
    ) -> Result<Self, ItemError> {
        let fail = |problem: ItemProblem| Err(ItemError::new(key, problem));
        if key.objectid != ObjectId::EXTENT_CHECKSUM {
            return fail(ItemProblem::ObjectIdInvalid {
                objectid: key.objectid.get(),
            });
        }
        raw::require_aligned_offset(key, sector_bytes)?;
        let unit_bytes = checksum_type.size_bytes();
        if data.is_empty() || !data.len().is_multiple_of(unit_bytes) {
            return fail(ItemProblem::SizeNotMultiple {
                size_bytes: data.len(),
                unit_bytes,
            });
        }
        let sectors = ByteCount::of(data.len().checked_div(unit_bytes).unwrap_or(0)).get();
        let length_bytes = sectors.saturating_mul(u64::from(sector_bytes));
        let end = raw::range_end(key, key.offset, length_bytes)?;
        let (start, end) = (Logical::new(key.offset), Logical::new(end));
        Ok(Self {
            start,
            end,
            packed: data,
            sector_bytes,
            checksum_bytes: unit_bytes,
        })
    }

    /// Checks an `EXTENT_CSUM` while a change of the checksums is unfinished. Items of the former and
    /// of the new algorithm then exist, and a single item does not show its algorithm.
    pub(crate) fn check_changing(key: &Key, data: &[u8], sector_bytes: u32) -> Result<(), ItemError> {
        let fail = |problem: ItemProblem| Err(ItemError::new(key, problem));
        if !matches!(
            key.objectid,
            ObjectId::EXTENT_CHECKSUM | ObjectId::CHECKSUM_CHANGE
        ) {
            return fail(ItemProblem::ObjectIdInvalid {
                objectid: key.objectid.get(),
            });
        }
        raw::require_aligned_offset(key, sector_bytes)?;
        let unit_bytes = ChecksumType::Crc32c.size_bytes();
        if data.is_empty() || !data.len().is_multiple_of(unit_bytes) {
            return fail(ItemProblem::SizeNotMultiple {
                size_bytes: data.len(),
                unit_bytes,
            });
        }
        Ok(())
    }

    /// Returns the number of sectors that the item covers.
    #[must_use]
    pub fn sector_count(&self) -> usize {
        self.packed.len().checked_div(self.checksum_bytes).unwrap_or(0)
    }

    /// Returns the stored checksum of the sector at `logical`, or `None` if the checksum item does
    /// not cover it.
    #[must_use]
    pub fn get(&self, logical: Logical) -> Option<&'a [u8]> {
        let distance = logical.get().checked_sub(self.start.get())?;
        let index = usize::try_from(distance.checked_div(u64::from(self.sector_bytes))?).ok()?;
        let begin = index.checked_mul(self.checksum_bytes)?;
        self.packed.get(begin..begin.checked_add(self.checksum_bytes)?)
    }

    /// Returns the checksums of the sectors in `[start, end)` that the item covers, packed, after
    /// the address of the first of these sectors. Returns `None` if the item covers none of the
    /// requested sectors.
    #[must_use]
    pub fn range(&self, start: Logical, end: Logical) -> Option<(Logical, &'a [u8])> {
        let sector_bytes = u64::from(self.sector_bytes);
        let (from, to) = (start.max(self.start), end.min(self.end));
        if from >= to {
            return None;
        }
        let first = from
            .get()
            .checked_sub(self.start.get())?
            .checked_div(sector_bytes)?;
        let last = to.get().checked_sub(self.start.get())?.div_ceil(sector_bytes);
        let position = |index: u64| usize::try_from(index).ok()?.checked_mul(self.checksum_bytes);
        let packed = self.packed.get(position(first)?..position(last)?)?;
        let address = self.start.get().checked_add(first.checked_mul(sector_bytes)?)?;
        Some((Logical::new(address), packed))
    }

    /// All sectors with their checksums, in address order.
    pub fn iter(&self) -> impl Iterator<Item = (Logical, &'a [u8])> + use<'a> {
        let sector_bytes = u64::from(self.sector_bytes);
        let start = self.start.get();
        self.packed
            .chunks_exact(self.checksum_bytes.max(1))
            .zip(0_u64..)
            .map(move |(checksum, index)| {
                (
                    Logical::new(start.saturating_add(index.saturating_mul(sector_bytes))),
                    checksum,
                )
            })
    }
}

impl ChecksumItem<'_> {
    /// Returns the key `(-10 EXTENT_CSUM logical)`. The data of a checksum item is the array of
    /// checksums.
    #[must_use]
    pub const fn key(logical: Logical) -> Key {
        Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, logical.get())
    }

    /// Returns the maximum size in bytes to which the kernel extends one checksum item. The kernel
    /// limits an item to the checksums that fit a leaf with two item heads, minus one, and to 4,096
    /// bytes.
    #[must_use]
    pub fn bytes_max(node_bytes: u32, checksum_type: ChecksumType) -> usize {
        let unit_bytes = checksum_type.size_bytes();
        let heads_bytes = size_of::<RawItem>().saturating_mul(2);
        let capacity_bytes = limits::leaf_bytes(node_bytes).saturating_sub(heads_bytes);
        let checksums = capacity_bytes
            .checked_div(unit_bytes)
            .unwrap_or(0)
            .saturating_sub(1);
        checksums.min(4096).saturating_mul(unit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;

    fn key(offset: u64) -> Key {
        Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, offset)
    }

    fn problem(key: &Key, data: &[u8]) -> Result<(), ItemProblem> {
        ChecksumItem::parse(key, data, 4096, ChecksumType::Crc32c)
            .map(|_| ())
            .map_err(|error| error.problem)
    }

    #[test]
    fn sectors_are_found_by_address() {
        let data = [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];
        let item = ChecksumItem::parse(&key(8192), &data, 4096, ChecksumType::Crc32c).unwrap();
        assert_eq!(
            (item.start.get(), item.end.get(), item.sector_count()),
            (8192, 20_480, 3)
        );
        assert_eq!(item.get(Logical::new(8191)), None);
        assert_eq!(item.get(Logical::new(8192)), Some(&[1; 4][..]));
        assert_eq!(item.get(Logical::new(16_383)), Some(&[2; 4][..]));
        assert_eq!(item.get(Logical::new(20_479)), Some(&[3; 4][..]));
        assert_eq!(item.get(Logical::new(20_480)), None);
        assert_eq!(item.iter().last(), Some((Logical::new(16_384), &[3; 4][..])));
        let range = |start, end| item.range(Logical::new(start), Logical::new(end));
        assert_eq!(range(0, 8192), None);
        assert_eq!(range(0, 8193), Some((Logical::new(8192), &data[..4])));
        assert_eq!(range(12_289, 1 << 40), Some((Logical::new(12_288), &data[4..])));
        assert_eq!(range(20_480, 1 << 40), None);
    }

    #[test]
    fn each_check_has_its_error() {
        assert_eq!(problem(&key(4096), &[0; 8]), Ok(()));
        assert_eq!(
            problem(&Key::new(ObjectId::new(256), ItemType::EXTENT_CSUM, 0), &[0; 8]),
            Err(ItemProblem::ObjectIdInvalid { objectid: 256 })
        );
        assert_eq!(
            problem(&key(4095), &[0; 8]),
            Err(ItemProblem::OffsetUnaligned {
                offset: 4095,
                sector_bytes: 4096
            })
        );
        for size_bytes in [0, 7] {
            assert_eq!(
                problem(&key(0), &[0; 8][..size_bytes]),
                Err(ItemProblem::SizeNotMultiple {
                    size_bytes,
                    unit_bytes: 4
                })
            );
        }
        let start = 0_u64.wrapping_sub(4096);
        assert_eq!(
            problem(&key(start), &[0; 4]),
            Err(ItemProblem::RangeOverflow {
                start,
                length_bytes: 4096
            })
        );
    }
}
