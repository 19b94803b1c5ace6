//! Master boot records: four primary partitions, and a chain of logical ones inside an extended
//! one.
//!
//! Sector 0 holds four entries from byte 446 on and the signature 55 AA in bytes 510 and 511. An
//! entry has its type in byte 4, its first sector in bytes 8 to 11, its count of sectors in bytes
//! 12 to 15. An extended partition begins with a record of the same form: its first entry is a
//! logical partition, relative to that record; its second leads to the next record, relative to the
//! extended partition. Logical partitions are numbered from 5 in the order of the chain of records.
//!
//! The chain of partitions comes from disk, so at most [`MAX_LOGICAL`] links are followed. The
//! chain of partition records therefore ends even if it is a cycle.
//!
//! Source: the description of the MBR in the UEFI specification, section 5.2.1, and the behaviour
//! of fdisk and the kernel for extended partitions, which no standard describes.
//!
//! Clamps: the numbers of a partition table can be anything; ranges beyond the device are refused.

use std::io;

use super::{Partition, Table, le_u32, read_at};
use crate::backend::Backend;

/// The maximum number of logical partitions that are read.
pub(crate) const MAX_LOGICAL: u32 = 128;

const EXTENDED_TYPES: [u8; 3] = [0x05, 0x0f, 0x85];
const FIRST_LOGICAL: u32 = 5;

struct Entry {
    kind: u8,
    first_sector: u64,
    sectors: u64,
}

impl Entry {
    fn is_extended(&self) -> bool {
        EXTENDED_TYPES.contains(&self.kind) && self.sectors > 0
    }

    fn is_used(&self) -> bool {
        self.kind != 0 && self.sectors > 0
    }

    /// Returns the partition that an entry describes, counted from sector `base`. All values are
    /// sums and products of 32-bit numbers and a sector size, so they fit into 64 bits.
    fn partition(&self, number: u32, base: u64, sector_bytes: u32) -> Partition {
        let start = base.saturating_add(self.first_sector);
        let unit = u64::from(sector_bytes);
        let end = start.saturating_add(self.sectors);
        Partition {
            number,
            range: start.saturating_mul(unit)..end.saturating_mul(unit),
        }
    }
}

/// Returns the table, or `None` if sector 0 has no signature or no entry.
pub(crate) fn read(device: &dyn Backend, sector_bytes: u32) -> io::Result<Option<Table>> {
    let Some(entries) = read_record(device, 0)? else {
        return Ok(None);
    };
    let mut partitions = Vec::new();
    for (entry, number) in entries.iter().zip(1_u32..) {
        if entry.is_used() {
            partitions.push(entry.partition(number, 0, sector_bytes));
        }
    }
    if partitions.is_empty() {
        return Ok(None);
    }
    if let Some(extended) = entries.iter().find(|entry| entry.is_extended()) {
        read_chain(device, extended.first_sector, sector_bytes, &mut partitions)?;
    }
    Ok(Some(Table {
        kind: "MBR",
        partitions,
    }))
}

fn read_chain(
    device: &dyn Backend,
    extended_start: u64,
    sector_bytes: u32,
    partitions: &mut Vec<Partition>,
) -> io::Result<()> {
    let mut record_at = extended_start;
    let mut number = FIRST_LOGICAL;
    for _ in 0..MAX_LOGICAL {
        let Some(entries) = read_record(device, record_at.saturating_mul(u64::from(sector_bytes)))? else {
            // If the chain of records leaves the device or leads to something else, the partitions
            // found so far remain valid.
            return Ok(());
        };
        let [logical, next, _, _] = entries;
        if logical.is_used() {
            partitions.push(logical.partition(number, record_at, sector_bytes));
            number = number.saturating_add(1);
        }
        if !next.is_extended() {
            return Ok(());
        }
        record_at = extended_start.saturating_add(next.first_sector);
    }
    Ok(())
}

fn read_record(device: &dyn Backend, offset: u64) -> io::Result<Option<[Entry; 4]>> {
    let Some(record) = read_at(device, offset, 512)? else {
        return Ok(None);
    };
    if record.get(510..512) != Some(&[0x55, 0xaa]) {
        return Ok(None);
    }
    Ok(Some([446, 462, 478, 494].map(|at| entry(&record, at))))
}

fn entry(record: &[u8], at: usize) -> Entry {
    let bytes = record.get(at..).unwrap_or_default();
    Entry {
        kind: bytes.get(4).copied().unwrap_or(0),
        first_sector: le_u32(bytes, 8).unwrap_or(0).into(),
        sectors: le_u32(bytes, 12).unwrap_or(0).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::memory::MemoryBackend;

    /// Writes a record at sector `at` with (slot, type, first sector, count).
    fn record(bytes: &mut [u8], sector: usize, at: usize, entries: &[(usize, u8, u32, u32)]) {
        let record = &mut bytes[at * sector..][..512];
        record[510..].copy_from_slice(&[0x55, 0xaa]);
        for &(slot, kind, first, count) in entries {
            let entry = &mut record[446 + 16 * slot..][..16];
            entry[4] = kind;
            entry[8..12].copy_from_slice(&first.to_le_bytes());
            entry[12..].copy_from_slice(&count.to_le_bytes());
        }
    }

    fn partitions(bytes: Vec<u8>, sector: u32) -> Option<Vec<(u32, Range<u64>)>> {
        let table = read(&MemoryBackend::new("m", bytes), sector).unwrap()?;
        Some(
            table
                .partitions
                .into_iter()
                .map(|p| (p.number, p.range))
                .collect(),
        )
    }

    #[test]
    fn primary_and_logical_partitions_have_their_numbers() {
        for sector in [512_usize, 4096] {
            let mut bytes = vec![0; sector * 100];
            record(&mut bytes, sector, 0, &[(0, 0x83, 4, 6), (2, 0x05, 20, 60)]);
            record(&mut bytes, sector, 20, &[(0, 0x83, 2, 8), (1, 0x05, 30, 10)]);
            record(&mut bytes, sector, 50, &[(0, 0x83, 1, 9)]);
            let unit = sector as u64;
            let expected = [(1, 4..10), (3, 20..80), (5, 22..30), (6, 51..60)];
            let expected = expected.map(|(n, r): (u32, Range<u64>)| (n, r.start * unit..r.end * unit));
            assert_eq!(partitions(bytes, sector as u32), Some(expected.to_vec()));
        }
    }

    #[test]
    fn a_chain_that_runs_in_a_circle_ends() {
        let mut bytes = vec![0; 512 * 100];
        record(&mut bytes, 512, 0, &[(0, 0x0f, 20, 60)]);
        record(&mut bytes, 512, 20, &[(0, 0x83, 2, 8), (1, 0x05, 10, 10)]);
        record(&mut bytes, 512, 30, &[(0, 0x83, 2, 8), (1, 0x05, 0, 10)]);
        assert_eq!(partitions(bytes, 512).unwrap().len(), 1 + MAX_LOGICAL as usize);
    }

    #[test]
    fn chains_out_of_the_device_and_unsigned_records_end_it() {
        let mut bytes = vec![0; 512 * 100];
        record(
            &mut bytes,
            512,
            0,
            &[(0, 0x05, u32::MAX, u32::MAX), (1, 0x83, u32::MAX, u32::MAX)],
        );
        assert_eq!(partitions(bytes.clone(), 4096).unwrap().len(), 2);
        bytes[510] = 0;
        assert_eq!(partitions(bytes, 512), None);
        assert_eq!(partitions(vec![0; 300], 512), None);
    }
}
