//! GUID partition tables.
//!
//! A header lies in the second sector, its backup in the last. Each has a checksum over itself, and
//! one over its array of entries. The reader uses the backup table if the primary fails its checks.
//! An image does not state its sector size, but the header's position reveals it, so 512 and 4096
//! bytes are tried.
//!
//! Source: UEFI specification, section 5.3 "GUID Partition Table (GPT) Disk Layout". Checksums are
//! CRC-32 as in zlib, over the header with its own field as zero.
//!
//! Clamps: the numbers of a partition table can be anything; ranges beyond the device are refused.

use std::io;
use std::ops::Range;

use crc_fast::{CrcAlgorithm, checksum};

use super::{Partition, Table, invalid, le_u32, le_u64, read_at};
use crate::backend::Backend;

/// The size of the largest array of entries that is read. The usual array has 16 KiB.
pub(crate) const TABLE_BYTES: u64 = 4 << 20;

const SIGNATURE: &[u8; 8] = b"EFI PART";
const HEADER_BYTES_MIN: usize = 92;
const ENTRY_BYTES_MIN: usize = 128;
/// The partition type in a master boot record that covers the space of a GUID table.
const PROTECTIVE_TYPE: u8 = 0xee;

struct Header {
    entries_lba: u64,
    entry_count: u32,
    entry_bytes: u32,
    entries_checksum: u32,
}

/// Returns the table, or `None` if the device has no table and does not claim to have one.
///
/// # Errors
/// Fails if both the table and its backup are damaged, or if a read fails.
pub(crate) fn read(device: &dyn Backend, sector_bytes: Option<u32>) -> io::Result<Option<Table>> {
    let sizes: &[u64] = match sector_bytes {
        Some(4096) => &[4096, 512],
        _ => &[512, 4096],
    };
    let mut failure = None;
    for &sector in sizes {
        let last = device
            .size_bytes()
            .checked_div(sector)
            .and_then(|sectors| sectors.checked_sub(1));
        for lba in [Some(1), last].into_iter().flatten() {
            match read_copy(device, sector, lba) {
                Ok(Some(table)) => return Ok(Some(table)),
                Ok(None) => {}
                Err(cause) => failure = failure.or(Some(cause)),
            }
        }
    }
    match failure {
        Some(cause) => Err(cause),
        None if is_protected(device)? => Err(invalid(
            "its MBR announces a GPT, but the GPT and its backup are missing",
        )),
        None => Ok(None),
    }
}

/// Returns the table whose header lies in sector `lba`; `None` if there is no header.
fn read_copy(device: &dyn Backend, sector: u64, lba: u64) -> io::Result<Option<Table>> {
    let Ok(length) = usize::try_from(sector) else {
        return Ok(None);
    };
    let Some(offset) = lba.checked_mul(sector) else {
        return Ok(None);
    };
    let Some(bytes) = read_at(device, offset, length)? else {
        return Ok(None);
    };
    if !bytes.starts_with(SIGNATURE) {
        return Ok(None);
    }
    let header = check_header(&bytes, lba)?;
    let entries = read_entries(device, &header, sector)?;
    let entry_bytes = usize::try_from(header.entry_bytes).unwrap_or(usize::MAX);
    let partitions = entries
        .chunks_exact(entry_bytes)
        .zip(1_u32..)
        .filter_map(|(entry, number)| {
            Some(Partition {
                number,
                range: entry_range(entry, sector)?,
            })
        })
        .collect();
    Ok(Some(Table {
        kind: "GPT",
        partitions,
    }))
}

fn check_header(bytes: &[u8], lba: u64) -> io::Result<Header> {
    let field = || invalid("its GPT header is incomplete");
    let length = usize::try_from(le_u32(bytes, 12).ok_or_else(field)?).unwrap_or(usize::MAX);
    let stored = le_u32(bytes, 16).ok_or_else(field)?;
    let Some(covered) = bytes.get(..length).filter(|_| length >= HEADER_BYTES_MIN) else {
        return Err(invalid(format!(
            "its GPT header in sector {lba} has an invalid length of {length} bytes"
        )));
    };
    let mut covered = covered.to_vec();
    covered.get_mut(16..20).ok_or_else(field)?.fill(0);
    let computed = crc32(&covered);
    if computed != stored {
        let what = format!("its GPT header in sector {lba} has checksum {stored:#x}, computed {computed:#x}");
        return Err(invalid(what));
    }
    let own_lba = le_u64(bytes, 24).ok_or_else(field)?;
    if own_lba != lba {
        return Err(invalid(format!(
            "its GPT header in sector {lba} has the sector number {own_lba}"
        )));
    }
    Ok(Header {
        entries_lba: le_u64(bytes, 72).ok_or_else(field)?,
        entry_count: le_u32(bytes, 80).ok_or_else(field)?,
        entry_bytes: le_u32(bytes, 84).ok_or_else(field)?,
        entries_checksum: le_u32(bytes, 88).ok_or_else(field)?,
    })
}

fn read_entries(device: &dyn Backend, header: &Header, sector: u64) -> io::Result<Vec<u8>> {
    let Header {
        entries_lba,
        entry_count,
        entry_bytes,
        entries_checksum,
    } = *header;
    let total = u64::from(entry_count).checked_mul(u64::from(entry_bytes));
    let size_allowed = usize::try_from(entry_bytes).is_ok_and(|bytes| bytes >= ENTRY_BYTES_MIN);
    let total = total.filter(|total| size_allowed && *total <= TABLE_BYTES);
    let Some(length) = total.and_then(|total| usize::try_from(total).ok()) else {
        return Err(invalid(format!(
            "its GPT has an invalid size: {entry_count} entries of {entry_bytes} bytes"
        )));
    };
    let outside = || {
        invalid(format!(
            "the entries of its GPT, in sector {entries_lba}, are outside of the device"
        ))
    };
    let offset = entries_lba.checked_mul(sector).ok_or_else(outside)?;
    let entries = read_at(device, offset, length)?.ok_or_else(outside)?;
    let computed = crc32(&entries);
    if computed != entries_checksum {
        let what =
            format!("the entries of its GPT have checksum {entries_checksum:#x}, computed {computed:#x}");
        return Err(invalid(what));
    }
    Ok(entries)
}

/// Returns the bytes of one entry's partition; `None` for an unused entry. If the partition's range
/// overflows, returns an empty range, whose use then reports the error.
fn entry_range(entry: &[u8], sector: u64) -> Option<Range<u64>> {
    if entry.get(..16)?.iter().all(|byte| *byte == 0) {
        return None;
    }
    let first = le_u64(entry, 32)?;
    let last = le_u64(entry, 40)?;
    let start = first.checked_mul(sector);
    let end = last.checked_add(1).and_then(|end| end.checked_mul(sector));
    Some(start.unwrap_or(u64::MAX)..end.unwrap_or(0))
}

fn is_protected(device: &dyn Backend) -> io::Result<bool> {
    let Some(record) = read_at(device, 0, 512)? else {
        return Ok(false);
    };
    let types = [450, 466, 482, 498].map(|at| record.get(at).copied());
    Ok(record.get(510..512) == Some(&[0x55, 0xaa]) && types.contains(&Some(PROTECTIVE_TYPE)))
}

fn crc32(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32IsoHdlc, bytes)).unwrap_or(0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::memory::MemoryBackend;

    /// Returns a device of `sectors` sectors with a table of 4 entries. `parts` gives number, first
    /// and last sector.
    pub(in super::super) fn build(sector: usize, sectors: u64, parts: &[(usize, u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; sector * sectors as usize];
        let mut entries = vec![0; 4 * 128];
        for &(number, first, last) in parts {
            let entry = &mut entries[(number - 1) * 128..][..128];
            entry[..16].fill(0xaf);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
        }
        for (lba, entries_lba) in [(1, 2), (sectors - 1, sectors - 2)] {
            bytes[entries_lba as usize * sector..][..entries.len()].copy_from_slice(&entries);
            let mut header = vec![0; 92];
            header[..8].copy_from_slice(SIGNATURE);
            header[12..16].copy_from_slice(&92_u32.to_le_bytes());
            header[24..32].copy_from_slice(&lba.to_le_bytes());
            header[72..80].copy_from_slice(&entries_lba.to_le_bytes());
            header[80..84].copy_from_slice(&4_u32.to_le_bytes());
            header[84..88].copy_from_slice(&128_u32.to_le_bytes());
            header[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
            let sum = crc32(&header);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            bytes[lba as usize * sector..][..92].copy_from_slice(&header);
        }
        bytes
    }

    type Found = Option<Vec<(u32, Range<u64>)>>;

    fn partitions(bytes: Vec<u8>) -> io::Result<Found> {
        let table = read(&MemoryBackend::new("m", bytes), None)?;
        Ok(table.map(|table| {
            table
                .partitions
                .into_iter()
                .map(|p| (p.number, p.range))
                .collect()
        }))
    }

    #[test]
    fn both_sector_sizes_are_recognised() {
        for sector in [512_usize, 4096] {
            let bytes = build(sector, 64, &[(1, 8, 15), (3, 20, 20)]);
            let unit = sector as u64;
            let expected = vec![(1, 8 * unit..16 * unit), (3, 20 * unit..21 * unit)];
            assert_eq!(partitions(bytes).unwrap(), Some(expected));
        }
    }

    #[test]
    fn the_backup_takes_over_when_the_primary_is_damaged() {
        for damaged in [512 + 1, 512 + 16, 512 + 60, 2 * 512 + 33] {
            let mut bytes = build(512, 64, &[(2, 8, 15)]);
            bytes[damaged] ^= 1;
            assert_eq!(
                partitions(bytes).unwrap(),
                Some(vec![(2, 4096..8192)]),
                "damaged at {damaged}"
            );
        }
    }

    #[test]
    fn damage_of_both_table_copies_is_reported() {
        let mut bytes = build(512, 64, &[(2, 8, 15)]);
        bytes[512 + 60] ^= 1;
        bytes[63 * 512 + 60] ^= 1;
        let message = partitions(bytes).unwrap_err().to_string();
        assert!(message.contains("sector 1 has checksum"), "{message}");
    }

    #[test]
    fn a_protective_record_without_a_table_is_an_error() {
        let mut bytes = vec![0; 65536];
        assert_eq!(partitions(bytes.clone()).unwrap(), None);
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        bytes[450] = PROTECTIVE_TYPE;
        assert!(partitions(bytes).is_err());
    }

    #[test]
    fn hostile_counts_and_places_are_refused_with_valid_checksums() {
        let table = build(512, 64, &[]);
        // The columns are field offset in the header, value as 8 bytes, width.
        for (at, value, width) in [
            (80, u64::from(u32::MAX), 4),
            (84, 0, 4),
            (84, 127, 4),
            (72, u64::MAX, 8),
            (72, 1 << 40, 8),
            (12, 91, 4),
            (12, 1 << 20, 4),
        ] {
            let mut bytes = table.clone();
            for lba in [1, 63] {
                let header = &mut bytes[lba * 512..][..512];
                header[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
                header[16..20].fill(0);
                let sum = crc32(&header[..92]);
                header[16..20].copy_from_slice(&sum.to_le_bytes());
            }
            assert!(partitions(bytes).is_err(), "{value} at {at}");
        }
    }

    #[test]
    fn devices_too_small_for_a_table_have_none() {
        for length in [0, 1, 511, 512, 513, 1024, 4096, 8192] {
            assert_eq!(partitions(vec![0; length]).unwrap(), None);
        }
    }
}
