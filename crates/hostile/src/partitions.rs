//! Targets for partition tables: the beginning of a device of 64 sectors; all later bytes are zero.

use crate::Depth;
use crate::input::Input;
use buttress_device::{Backend, MemoryBackend, Offset, partition_window};
use crc_fast::{CrcAlgorithm, checksum};
use std::sync::Arc;

const SECTORS: usize = 64;

/// The target of a GUID partition table with correct signature, place and checksums in its header.
pub fn gpt(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let sector = if choices & 1 == 0 { 512 } else { 4096 };
    let mut device = device(input.rest(), sector);
    let header = &mut device[sector..sector + 512];
    header[..8].copy_from_slice(b"EFI PART");
    header[24..32].copy_from_slice(&1_u64.to_le_bytes());
    if choices & 2 == 0 {
        header[72..80].copy_from_slice(&2_u64.to_le_bytes());
        // The table has few entries of the usual size, so that it is inside the device.
        let count = header[80] % 16;
        header[80..84].copy_from_slice(&u32::from(count).to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        let length = usize::from(count) * 128;
        let entries = crc32(&device[2 * sector..2 * sector + length]);
        device[sector + 88..sector + 92].copy_from_slice(&entries.to_le_bytes());
    }
    let header = &mut device[sector..sector + 512];
    let length = if choices & 4 == 0 {
        92
    } else {
        92 + usize::from(header[12])
    };
    header[12..16].copy_from_slice(&u32::try_from(length).unwrap_or(92).to_le_bytes());
    header[16..20].fill(0);
    let own = crc32(&header[..length]);
    header[16..20].copy_from_slice(&own.to_le_bytes());
    open_all(device, choices)
}

/// The target of a master boot record with all signatures.
pub fn mbr(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let mut device = device(input.rest(), 512);
    for sector in device.chunks_exact_mut(512).take(16) {
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
    }
    open_all(device, choices)
}

fn device(bytes: &[u8], sector: usize) -> Vec<u8> {
    let mut device = vec![0; SECTORS * sector];
    let length = bytes.len().min(device.len());
    device[..length].copy_from_slice(&bytes[..length]);
    device
}

fn crc32(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32IsoHdlc, bytes)).unwrap_or(0)
}

fn open_all(device: Vec<u8>, choices: u8) -> Depth {
    let size = device.len() as u64;
    let whole: Arc<dyn Backend> = Arc::new(MemoryBackend::new("hostile", device));
    let sector_bytes = if choices & 8 == 0 {
        None
    } else {
        Some(512 << (choices >> 4 & 3))
    };
    let mut passed = false;
    for number in [1, 2, 3, 4, 5, 6, 16, 132, u32::MAX] {
        match partition_window(Arc::clone(&whole), Offset::Partition(number), sector_bytes) {
            Ok(partition) => {
                passed = true;
                assert!(
                    partition.size_bytes() <= size,
                    "a partition is larger than its device"
                );
                let length = usize::try_from(partition.size_bytes()).unwrap_or(0);
                let mut content = vec![0; length];
                assert!(partition.read_vectored_at(0, &mut [&mut content]).is_ok());
                assert!(partition.read_vectored_at(1, &mut [&mut content]).is_err() || length == 0);
            }
            Err(error) => {
                std::hint::black_box(error.to_string());
            }
        }
    }
    Depth::passed(passed)
}

/// Returns inputs with partitions: four primary partitions with a chain, and a GUID table with two
/// entries.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut chain = vec![0; 1 + 4 * 512];
    let mut entry = |record: usize, slot: usize, kind: u8, first: u32, sectors: u32| {
        let at = 1 + record * 512 + 446 + slot * 16;
        chain[at + 4] = kind;
        chain[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
        chain[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
    };
    entry(0, 0, 0x83, 8, 4);
    entry(0, 1, 0x05, 1, 32);
    entry(1, 0, 0x83, 4, 4);
    entry(1, 1, 0x05, 1, 8);
    entry(2, 0, 0x83, 4, 4);
    let mut table = vec![0; 1 + 3 * 512];
    table[1 + 512 + 80] = 2;
    for (slot, first, last) in [(0, 8_u64, 15_u64), (1, 16, 40)] {
        let at = 1 + 2 * 512 + slot * 128;
        table[at..at + 16].fill(7);
        table[at + 32..at + 40].copy_from_slice(&first.to_le_bytes());
        table[at + 40..at + 48].copy_from_slice(&last.to_le_bytes());
    }
    vec![chain, table]
}
