//! The record of an unfinished publication or roll back: 512 bytes at byte 512 of the device.
//!
//! Neither file system uses this place of the boot area. The record is one sector, so a power cut
//! leaves the old bytes or the new ones. Its old bytes are in the copy of the first unit.
//!
//! Invariant: a record on the device decodes to the record that was written, because
//! [`Record::write`] refuses any other one.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `BUTTCONV` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | purpose: 1 publication, 2 roll back |
//! | 16 | 4 | number of copies |
//! | 20 | 16 | fsid of the new volume |
//! | 36 | 8 | size of the old file system in bytes |
//! | 44 | 32 | checksum field of the superblock that the old content has at 64 KiB, else zeros |
//! | 76 | 16 each | copies: first byte of the unit, first byte of the copy, in the order of units |
//! | 508 | 4 | CRC-32C of all bytes before |
//!
//! All numbers are little-endian.

use crate::error::Result;
use crate::layout::{Moved, RESERVED, UNIT_BYTES};
use crate::superblocks::CHECKSUM_BYTES;
use buttress_device::Device;
use buttress_exact::{Defect, Exact as _, u64_of};
use buttress_format::{ChecksumType, Physical, Uuid};

/// The first byte of the record.
pub(crate) const OFFSET: u64 = 512;

/// The size of the record in bytes.
pub(crate) const BYTES: usize = 512;

const MAGIC: &[u8; 8] = b"BUTTCONV";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 44 + CHECKSUM_BYTES;
const COPY_BYTES: usize = 16;
const CHECKSUM_AT: usize = BYTES - 4;
/// The largest number of copies: all units of the reserved ranges.
const COPIES_MAX: usize = 18;

const _: () = assert!(HEAD_BYTES + COPIES_MAX * COPY_BYTES <= CHECKSUM_AT);

/// The change that a record guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The new volume takes the place of the old file system.
    Publication,
    /// The old file system takes the place of the new volume.
    RollBack,
}

/// An unfinished publication or roll back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The change.
    pub(crate) purpose: Purpose,
    /// The fsid of the new volume.
    pub(crate) fsid: Uuid,
    /// The size of the old file system. The device can be larger.
    pub(crate) old_bytes: u64,
    /// The checksum field of a btrfs superblock that the old content has in place of the primary
    /// superblock, else zeros. Such a superblock is no sign of a new volume.
    pub(crate) old_primary: [u8; CHECKSUM_BYTES],
    /// The copies of the old content of reserved ranges. The first copy is that of byte 0.
    pub(crate) copies: Vec<Moved>,
}

impl Record {
    /// Writes the record, durably.
    pub(crate) fn write(&self, device: &Device) -> Result<()> {
        let bytes = self.encode();
        if Self::decode(&bytes, device.size_bytes()).as_ref() != Some(self) {
            let defect = Defect::new("the record of a conversion cannot be read back");
            return Err(defect.with("copies", u64_of(self.copies.len())).into());
        }
        device.write(OFFSET, &bytes)?;
        Ok(device.flush()?)
    }

    /// Reads the record of a device, if it has one.
    pub(crate) fn read(device: &Device) -> Result<Option<Self>> {
        if device.size_bytes() < OFFSET.exact_add(u64_of(BYTES)) {
            return Ok(None);
        }
        let bytes = device.read(OFFSET, BYTES)?;
        Ok(Self::decode(&bytes, device.size_bytes()))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let purpose: u32 = match self.purpose {
            Purpose::Publication => 1,
            Purpose::RollBack => 2,
        };
        bytes.extend_from_slice(&purpose.to_le_bytes());
        bytes.extend_from_slice(&self.copies.len().narrow::<u32>().to_le_bytes());
        bytes.extend_from_slice(self.fsid.as_bytes());
        bytes.extend_from_slice(&self.old_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.old_primary);
        for copy in &self.copies {
            bytes.extend_from_slice(&copy.from.get().to_le_bytes());
            bytes.extend_from_slice(&copy.to.get().to_le_bytes());
        }
        bytes.resize(CHECKSUM_AT, 0);
        let checksum = ChecksumType::Crc32c.compute(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes.resize(BYTES, 0);
        bytes
    }

    /// Returns the record in `bytes`, or `None` for bytes that are no valid record of a device of
    /// this size.
    fn decode(bytes: &[u8], device_bytes: u64) -> Option<Self> {
        let (covered, _) = bytes.split_at_checked(CHECKSUM_AT)?;
        let rest = covered.strip_prefix(MAGIC)?;
        let (version, rest) = rest.split_first_chunk()?;
        let (purpose, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let (fsid, rest) = rest.split_first_chunk()?;
        let (old_bytes, rest) = rest.split_first_chunk()?;
        let (old_primary, rest) = rest.split_first_chunk()?;
        let old_bytes = u64::from_le_bytes(*old_bytes);
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        if u32::from_le_bytes(*version) != VERSION || count > COPIES_MAX || old_bytes > device_bytes {
            return None;
        }
        let copy = |bytes: &[u8]| {
            let (from, bytes) = bytes.split_first_chunk()?;
            let (to, _) = bytes.split_first_chunk()?;
            let copy = Moved {
                from: Physical::new(u64::from_le_bytes(*from)),
                to: Physical::new(u64::from_le_bytes(*to)),
            };
            is_copy(&copy, old_bytes, device_bytes).then_some(copy)
        };
        let record = Self {
            purpose: match u32::from_le_bytes(*purpose) {
                1 => Purpose::Publication,
                2 => Purpose::RollBack,
                _ => return None,
            },
            fsid: Uuid::from_bytes(*fsid),
            old_bytes,
            old_primary: *old_primary,
            copies: rest
                .chunks_exact(COPY_BYTES)
                .take(count)
                .map(copy)
                .collect::<Option<_>>()?,
        };
        let is_ordered = record.copies.is_sorted_by(|a, b| a.from < b.from);
        let is_first = |copy: &Moved| copy.from.get() == 0;
        if !is_ordered || !record.copies.first().is_some_and(is_first) {
            return None;
        }
        // The encoding is unique, so this comparison also verifies the checksum.
        (record.encode() == bytes).then_some(record)
    }
}

/// Returns true if a layout makes this copy. It copies a unit of a reserved range of the old file
/// system to a unit outside of these ranges.
fn is_copy(copy: &Moved, old_bytes: u64, device_bytes: u64) -> bool {
    let (from, to) = (copy.from.get(), copy.to.get());
    let is_reserved = |at: u64| RESERVED.iter().any(|range| range.contains(&at));
    let is_on_device = to.checked_add(UNIT_BYTES).is_some_and(|end| end <= device_bytes);
    from.is_multiple_of(UNIT_BYTES)
        && to.is_multiple_of(UNIT_BYTES)
        && is_reserved(from)
        && !is_reserved(to)
        && from < old_bytes
        && is_on_device
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            purpose: Purpose::RollBack,
            fsid: Uuid::from_u128(7),
            old_bytes: 4 << 20,
            old_primary: [9; CHECKSUM_BYTES],
            copies: vec![Moved {
                from: Physical::new(0),
                to: Physical::new(5 << 20),
            }],
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_back_is_not_written() {
        let device = Device::memory(vec![0; 6 << 20]);
        let change = |change: fn(&mut Record)| {
            let mut record = record();
            change(&mut record);
            record
        };
        let refused = [
            change(|record| record.copies[0].to = Physical::new((5 << 20) + 4096)),
            change(|record| record.copies[0].to = Physical::new((6 << 20) - 4096)),
            change(|record| record.copies[0].to = Physical::new(1 << 16)),
            change(|record| record.copies[0].from = Physical::new(1 << 16)),
            change(|record| record.copies.clear()),
            change(|record| record.copies = vec![record.copies[0]; 2]),
            change(|record| record.copies = vec![record.copies[0]; 19]),
            change(|record| record.old_bytes = 7 << 20),
        ];
        for record in refused {
            assert!(record.write(&device).is_err(), "{record:?}");
            assert_eq!(Record::read(&device).unwrap(), None);
        }
        record().write(&device).unwrap();
        assert_eq!(Record::read(&device).unwrap(), Some(record()));
    }

    #[test]
    fn only_a_whole_record_is_read() {
        let record = record();
        let bytes = record.encode();
        assert_eq!(bytes.len(), BYTES);
        assert_eq!(Record::decode(&bytes, 6 << 20), Some(record));
        assert_eq!(
            Record::decode(&bytes, 5 << 20),
            None,
            "the copy is not on the device"
        );
        for at in 0..BYTES {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Record::decode(&damaged, 6 << 20), None, "byte {at}");
        }
    }
}
