//! Targets for metadata dumps: any bytes as a dump, a whole dump with changes, and sanitised dumps of
//! changed volumes.
//!
//! `dump` reads its input as a dump. `dump_restore` changes bytes of the dump of a small volume,
//! repairs checksums if the input asks for it, and restores the result to memory. `dump_sanitise`
//! changes a seed volume, and writes a sanitised dump of it. A second dump must have the same bytes.

use crate::input::Input;
use crate::{Depth, mutation, seeds};
use buttress_device::{Device, Engine};
use buttress_dump::{DumpOptions, DumpReader, Sanitise, restore, write};
use buttress_format::{ByteCount, ChecksumType, Uuid};
use buttress_fs::Progress;
use buttress_fs::open::OpenOptions;
use buttress_mkfs::{Identity, Options};
use std::io::Cursor;
use std::sync::{Arc, LazyLock};

const DEVICE_BYTES: usize = 128 << 20;
const INDEX_BYTES: usize = 1024;
const SUPERBLOCK_BYTES: usize = 4096;
const NODE_BYTES: usize = 16384;

/// The target of a dump in any bytes.
pub fn dump(bytes: &[u8]) -> Depth {
    let mut reader = DumpReader::new(bytes);
    let mut items = 0_usize;
    loop {
        match reader.next_item() {
            Ok(Some(item)) => {
                assert!(item.bytes.len() <= 256 << 10, "an item exceeds its bound");
                items += 1;
            }
            Ok(None) => break,
            Err(error) => {
                std::hint::black_box(error.to_string());
                break;
            }
        }
    }
    Depth::passed(items > 0)
}

/// The dump of a small volume, without compression.
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let device = Device::memory(vec![0; DEVICE_BYTES]);
    let id = Uuid::from_u128;
    let identity = Identity {
        fsid: id(1),
        chunk_tree: id(2),
        top_level: id(3),
        devices: vec![id(4)],
        time: buttress_format::Timestamp::default(),
    };
    let mut bytes = Vec::new();
    let made = buttress_mkfs::make(std::slice::from_ref(&device), &Options::default(), &identity);
    let options = DumpOptions::default();
    if let (Ok(_), Ok(volume)) = (made, OpenOptions::new(vec![device]).open()) {
        let written = write(&volume, &mut bytes, &options, &Progress::new());
        assert!(written.is_ok(), "a new volume has a dump");
    }
    bytes
});

/// Computes the checksums of the superblock and of all tree blocks in a dump of one cluster.
fn mend(dump: &mut [u8]) {
    let Some(items) = dump.get_mut(INDEX_BYTES..) else {
        return;
    };
    let (superblock, blocks) = items.split_at_mut(items.len().min(SUPERBLOCK_BYTES));
    for block in core::iter::once(superblock).chain(blocks.chunks_mut(NODE_BYTES)) {
        if block.len() > 32 {
            let (stored, covered) = block.split_at_mut(32);
            let checksum = ChecksumType::Crc32c.compute(covered);
            stored[..4].copy_from_slice(&checksum.as_bytes()[..4]);
        }
    }
}

/// The target of a restore: changes to the dump of a small volume.
pub fn dump_restore(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let mut dump = WHOLE.clone();
    for change in input.rest().chunks_exact(4) {
        let at = usize::from(change[0]) << 16 | usize::from(change[1]) << 8 | usize::from(change[2]);
        let place = dump.len().checked_sub(1).map_or(0, |last| at % (last + 1));
        if let Some(byte) = dump.get_mut(place) {
            *byte ^= change[3];
        }
    }
    if choices & 1 == 1 {
        mend(&mut dump);
    }
    let devices: Vec<Device> = (0..1 + usize::from(choices >> 1 & 1))
        .map(|_| Device::memory(vec![0; DEVICE_BYTES]))
        .collect();
    let restored = restore(&mut Cursor::new(dump), &devices, &Progress::new());
    match restored {
        Ok(_) => Depth::Passed,
        Err(error) => {
            std::hint::black_box(error.to_string());
            Depth::Refused
        }
    }
}

/// The target of a sanitised dump: changes to a seed volume, as those of [`crate::image`].
pub fn dump_sanitise(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let volumes = seeds::volumes();
    let aims = &volumes[usize::from(input.byte()) % volumes.len()];
    let walk = input.byte() & 1 == 1;
    let devices = mutation::apply(aims, &mut input).into_iter();
    let devices = devices.map(|overlay| Device::with_backend(Arc::new(overlay), Engine::Inline));
    let options = OpenOptions::new(devices.collect())
        .cache(ByteCount::new(2 << 20))
        .degraded(true)
        .for_inspection(true);
    let Ok(volume) = options.open() else {
        return Depth::Refused;
    };
    let options = DumpOptions {
        walk,
        sanitise: Some(Sanitise {
            secret: [1; 32],
            strict: false,
        }),
        ..DumpOptions::default()
    };
    let dumped = || {
        let mut bytes = Vec::new();
        let written = write(&volume, &mut bytes, &options, &Progress::new());
        written.map(|written| (written, bytes))
    };
    match (dumped(), dumped()) {
        (Ok(first), Ok(second)) => {
            assert!(first == second, "two dumps differ");
            Depth::Passed
        }
        (Err(error), Err(_)) => {
            std::hint::black_box(error.to_string());
            Depth::Refused
        }
        _ => panic!("one of two dumps fails"),
    }
}

/// Returns inputs for these targets, each with the target's name.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = vec![("dump_restore", vec![0]), ("dump_restore", vec![1])];
    for volume in 0..10 {
        seeds.push(("dump_sanitise", vec![volume, 0]));
        // Bytes of blocks in the middle of a volume.
        seeds.push(("dump_sanitise", vec![volume, 1, 0, volume, 7, 90, 3, 1, 0xff]));
    }
    // Fields of the first cluster, the superblock, and the first block of the chunk tree.
    for at in [
        16,
        21,
        29,
        1024 + 80,
        1024 + 88,
        5120 + 96,
        5120 + 101,
        5120 + 118,
    ] {
        let [_, high, middle, low] = u32::to_be_bytes(at);
        seeds.push(("dump_restore", vec![1, high, middle, low, 1]));
    }
    let mut small = Vec::new();
    small.extend_from_slice(&0xbd5c_25e2_7295_668b_u64.to_le_bytes());
    small.extend_from_slice(&0_u64.to_le_bytes());
    small.extend_from_slice(&1_u32.to_le_bytes());
    small.push(0);
    small.extend_from_slice(&65536_u64.to_le_bytes());
    small.extend_from_slice(&512_u32.to_le_bytes());
    small.resize(INDEX_BYTES + 512, 7);
    seeds.push(("dump", small.clone()));
    let stored = crate::compressed::deflate(&[7; 4096], 6).unwrap_or_default();
    small.truncate(INDEX_BYTES);
    small[20] = 1;
    small[29..33].copy_from_slice(&u32::try_from(stored.len()).unwrap_or(0).to_le_bytes());
    small.extend_from_slice(&stored);
    seeds.push(("dump", small));
    seeds
}
