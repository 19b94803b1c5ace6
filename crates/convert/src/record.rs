//! The record of an unfinished publication or roll back: 512 bytes at byte 512 of the device.
//!
//! Neither file system uses this place of the boot area. The record is one sector, so a power cut
//! leaves the old bytes or the new ones. Its old bytes are in the copy of the first unit.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `BUTTCONV` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | purpose: 1 publication, 2 roll back |
//! | 16 | 4 | number of copies |
//! | 20 | 16 | fsid of the new volume |
//! | 36 | 16 each | copies: first byte of the unit, first byte of the copy |
//! | 508 | 4 | CRC-32C of all bytes before |
//!
//! All numbers are little-endian.

use crate::error::Result;
use crate::layout::{Moved, UNIT_BYTES};
use buttress_device::Device;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ChecksumType, Physical, Uuid};

/// The first byte of the record.
pub(crate) const OFFSET: u64 = 512;

/// The size of the record in bytes.
pub(crate) const BYTES: usize = 512;

const MAGIC: &[u8; 8] = b"BUTTCONV";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 36;
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
    /// The copies of the old content of reserved ranges.
    pub(crate) copies: Vec<Moved>,
}

impl Record {
    /// Writes the record, durably.
    pub(crate) fn write(&self, device: &Device) -> Result<()> {
        device.write(OFFSET, &self.encode())?;
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
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        if u32::from_le_bytes(*version) != VERSION || count > COPIES_MAX {
            return None;
        }
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk()?));
        let copy = |bytes: &[u8]| {
            let (from, to) = (number(bytes)?, number(bytes.get(8..)?)?);
            let is_unit = |at: u64| at.is_multiple_of(UNIT_BYTES) && at < device_bytes;
            (is_unit(from) && is_unit(to)).then_some(Moved {
                from: Physical::new(from),
                to: Physical::new(to),
            })
        };
        let record = Self {
            purpose: match u32::from_le_bytes(*purpose) {
                1 => Purpose::Publication,
                2 => Purpose::RollBack,
                _ => return None,
            },
            fsid: Uuid::from_bytes(*fsid),
            copies: rest
                .chunks_exact(COPY_BYTES)
                .take(count)
                .map(copy)
                .collect::<Option<_>>()?,
        };
        // The encoding is unique, so this comparison also verifies the checksum.
        (record.encode() == bytes).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_record_is_read() {
        let record = Record {
            purpose: Purpose::RollBack,
            fsid: Uuid::from_u128(7),
            copies: vec![Moved {
                from: Physical::new(0),
                to: Physical::new(5 << 20),
            }],
        };
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
