//! Tests of overlays against a byte vector, over bases that must not change.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::side::SideFile;
use super::*;
use crate::backend::Backend;
use crate::device::{Device, OpenOptions};
use crate::partition::Offset;

const SIZE: usize = 300_000;

fn base() -> (tempfile::TempDir, Vec<u8>) {
    let folder = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    let bytes: Vec<u8> = (0..SIZE as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut file = std::fs::File::create(folder.path().join("base")).unwrap();
    file.write_all(&bytes).unwrap();
    (folder, bytes)
}

fn options(folder: &Path, write: bool) -> OpenOptions {
    OpenOptions {
        write,
        overlay: Some(folder.join("side")),
        ..OpenOptions::default()
    }
}

fn open(folder: &Path, write: bool) -> Result<Device, crate::IoError> {
    Device::open(folder.join("base"), &options(folder, write))
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Zero(usize, usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SIZE, 1..20_000_usize, any::<bool>()).prop_map(|(at, length, blocks)| {
        let (at, length) = if blocks {
            (at / 4096 * 4096, length.next_multiple_of(4096))
        } else {
            (at, length)
        };
        (at, length.min(SIZE - at))
    });
    prop_oneof![
        4 => (range.clone(), any::<u8>()).prop_map(|((at, length), byte)| Step::Write(at, vec![byte; length])),
        1 => range.prop_map(|(at, length)| Step::Zero(at, length)),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn an_overlay_holds_what_was_written_and_the_base_stays(steps in proptest::collection::vec(step(), 1..20)) {
        let (folder, original) = base();
        let mut model = original.clone();
        let mut device = open(folder.path(), true).unwrap();
        for step in &steps {
            match step {
                Step::Write(at, bytes) => {
                    device.write(*at as u64, bytes).unwrap();
                    model[*at..*at + bytes.len()].copy_from_slice(bytes);
                }
                Step::Zero(at, length) => {
                    device.zero(*at as u64, *length as u64).unwrap();
                    model[*at..*at + *length].fill(0);
                }
                Step::Reopen => {
                    device.flush().unwrap();
                    drop(device);
                    device = open(folder.path(), true).unwrap();
                }
            }
            prop_assert!(device.read(0, SIZE).unwrap()[..] == model[..]);
        }
        device.flush().unwrap();
        drop(device);
        prop_assert!(std::fs::read(folder.path().join("base")).unwrap() == original);
        prop_assert!(open(folder.path(), false).unwrap().read(0, SIZE).unwrap()[..] == model[..]);
        apply(folder.path().join("side"), folder.path().join("base"), &OpenOptions::default(), &|_, _| Ok(Vec::new())).unwrap();
        prop_assert!(std::fs::read(folder.path().join("base")).unwrap() == model);
        prop_assert!(!folder.path().join("side").exists());
    }
}

#[test]
fn crash_loses_only_unflushed_changes() {
    let (folder, original) = base();
    let device = open(folder.path(), true).unwrap();
    device.write(0, &[1; 8192]).unwrap();
    device.flush().unwrap();
    device.write(8192, &[2; 4096]).unwrap();
    drop(device);
    let found = open(folder.path(), false).unwrap().read(0, 16384).unwrap();
    assert_eq!(found[..8192], [1; 8192]);
    assert!(found[8192..12288] == [2; 4096] || found[8192..12288] == original[8192..12288]);
    assert_eq!(found[12288..], original[12288..16384]);
}

#[test]
fn side_files_are_sparse_and_locked() {
    use std::os::unix::fs::MetadataExt;
    let (folder, _) = base();
    std::fs::File::options()
        .write(true)
        .open(folder.path().join("base"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let device = open(folder.path(), true).unwrap();
    device.write(700 << 30, &vec![1; 65536]).unwrap();
    device.flush().unwrap();
    let error = open(folder.path(), true).unwrap_err();
    assert!(error.to_string().contains("in use by another process"), "{error}");
    assert!(std::fs::metadata(folder.path().join("side")).unwrap().blocks() * 512 < 1 << 20);
    drop(device);
    assert_eq!(
        open(folder.path(), false).unwrap().read(700 << 30, 1).unwrap()[0],
        1
    );
}

#[test]
fn other_bases_and_other_files_are_refused() {
    let (folder, _) = base();
    let missing = open(folder.path(), false).unwrap_err();
    assert_eq!(missing.kind, io::ErrorKind::NotFound);
    open(folder.path(), true).unwrap().flush().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut file = std::fs::File::options()
        .write(true)
        .open(folder.path().join("base"))
        .unwrap();
    file.write_all(b"changed").unwrap();
    drop(file);
    for error in [
        open(folder.path(), true).unwrap_err(),
        apply(
            folder.path().join("side"),
            folder.path().join("base"),
            &OpenOptions::default(),
            &|_, _| Ok(Vec::new()),
        )
        .unwrap_err(),
    ] {
        assert!(
            error.to_string().contains("state") || error.to_string().contains("has changed"),
            "{error}"
        );
    }
    for bytes in [&b"x"[..], &[0; 8192], b"BUTTROVL"] {
        std::fs::write(folder.path().join("side"), bytes).unwrap();
        let error = open(folder.path(), true).unwrap_err();
        assert!(error.to_string().contains("not an overlay"), "{error}");
    }
}

#[test]
fn interrupted_apply_must_be_finished_before_any_other_use() {
    let (folder, mut model) = base();
    let device = open(folder.path(), true).unwrap();
    device.write(5000, &[9; 10_000]).unwrap();
    model[5000..15_000].fill(9);
    device.flush().unwrap();
    drop(device);
    let mut side = SideFile::open_to_apply(&folder.path().join("side")).unwrap();
    side.begin_to_apply().unwrap();
    drop(side);
    // Only a part of the overlay has been applied to the base.
    let file = std::fs::File::options()
        .write(true)
        .open(folder.path().join("base"))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &model[4096..8192], 4096).unwrap();
    drop(file);
    let error = open(folder.path(), false).unwrap_err();
    assert!(error.to_string().contains("being applied"), "{error}");
    let applied = apply(
        folder.path().join("side"),
        folder.path().join("base"),
        &OpenOptions::default(),
        &|_, _| Ok(Vec::new()),
    )
    .unwrap();
    assert_eq!(applied.bytes, 12_288);
    assert!(std::fs::read(folder.path().join("base")).unwrap() == model);
}

#[test]
fn overlays_lie_below_partitions() {
    let (folder, model) = base();
    let inside = OpenOptions {
        partition: Offset::Bytes(8192),
        ..options(folder.path(), true)
    };
    let device = Device::open(folder.path().join("base"), &inside).unwrap();
    device.write(0, &[3; 100]).unwrap();
    device.flush().unwrap();
    drop(device);
    let found = open(folder.path(), false).unwrap().read(8000, 400).unwrap();
    assert_eq!(found[..192], model[8000..8192]);
    assert_eq!(found[192..292], [3; 100]);
    assert_eq!(found[292..], model[8292..8400]);
}

#[test]
fn discard_deletes_only_unused_overlays() {
    let (folder, model) = base();
    let side = folder.path().join("side");
    let device = open(folder.path(), true).unwrap();
    device.write(0, &[9; 4096]).unwrap();
    device.flush().unwrap();
    let in_use = discard(&side).unwrap_err();
    assert!(in_use.to_string().contains("in use"), "{in_use}");
    drop(device);
    let other = discard(folder.path().join("base")).unwrap_err();
    assert!(other.to_string().contains("not an overlay"), "{other}");
    SideFile::open_to_apply(&side).unwrap().begin_to_apply().unwrap();
    let begun = discard(&side).unwrap_err();
    assert!(begun.to_string().contains("overlay commit"), "{begun}");
    std::fs::remove_file(&side).unwrap();
    open(folder.path(), true).unwrap().flush().unwrap();
    discard(&side).unwrap();
    assert!(!side.exists());
    assert!(std::fs::read(folder.path().join("base")).unwrap() == model);
}

/// A device in memory that records the places of writes between flushes.
#[derive(Debug)]
struct Recording {
    memory: crate::MemoryBackend,
    stages: Mutex<Vec<Vec<u64>>>,
}

impl Backend for Recording {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn sector_bytes(&self) -> u32 {
        self.memory.sector_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        self.memory.read_vectored_at(offset_bytes, buffers)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.stages.lock().unwrap().last_mut().unwrap().push(offset_bytes);
        self.memory.write_at(offset_bytes, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.stages.lock().unwrap().push(Vec::new());
        self.memory.flush()
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::Error::other("an apply discards nothing"))
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::Error::other("an apply writes zeros as other bytes"))
    }
}

#[test]
fn apply_writes_named_blocks_of_each_volume_last() {
    let (folder, mut model) = base();
    let side = folder.path().join("side");
    for start in [0, 100_000] {
        let inside = OpenOptions {
            partition: Offset::Bytes(start),
            ..options(folder.path(), true)
        };
        let device = Device::open(folder.path().join("base"), &inside).unwrap();
        for at in [0, 8192, 16_384, 40_960] {
            device.write(at, &[at as u8 ^ 0x55; 4096]).unwrap();
            let at = (start + at) as usize;
            model[at..at + 4096].fill((at - start as usize) as u8 ^ 0x55);
        }
        device.flush().unwrap();
    }
    let last: Last<'_> = &|_, start| {
        let at = |range: std::ops::Range<u64>| start + range.start..start + range.end;
        let second = std::iter::once(at(8192..8200)).collect();
        Ok(vec![second, vec![at(0..512), at(40_960..40_961)]])
    };
    let bytes = std::fs::read(folder.path().join("base")).unwrap();
    let recording = Arc::new(Recording {
        memory: crate::MemoryBackend::new("base", bytes),
        stages: Mutex::new(vec![Vec::new()]),
    });
    let backend: Arc<dyn Backend> = recording.clone();
    let recorded = Device::with_backend(backend, crate::Engine::Inline);
    let copy = recorded.clone();
    apply_all(vec![(side, Box::new(move || Ok(copy)))], last).unwrap();
    assert!(recorded.read(0, SIZE).unwrap()[..] == model[..]);
    let stages = recording.stages.lock().unwrap();
    // The second volume begins within a block, so whole blocks around its ranges are late.
    assert_eq!(stages[1], [8192, 106_496]);
    assert_eq!(stages[2], [0, 40_960, 98_304, 139_264]);
    assert_eq!(stages[3], [0_u64; 0]);
}

/// The places of the generation and the device's uuid in a volume.
const GENERATION: usize = 65536 + 72;
const DEVICE_UUID: usize = 65536 + 267;

/// Applies the overlay of `folder` to a base in memory, which has no times, as a block device.
fn apply_to(folder: &Path, bytes: Vec<u8>) -> Result<Applied, crate::IoError> {
    let memory: Arc<dyn Backend> = Arc::new(crate::MemoryBackend::new("base", bytes));
    let device = Device::with_backend(memory, crate::Engine::Inline);
    let part: (_, Box<dyn FnOnce() -> Result<Device, crate::IoError>>) =
        (folder.join("side"), Box::new(move || Ok(device)));
    apply_all(vec![part], &|_, _| Ok(Vec::new()))
}

fn write_side(folder: &Path, at: usize, bytes: &[u8]) {
    let device = open(folder, true).unwrap();
    device.write(at as u64, bytes).unwrap();
    device.flush().unwrap();
}

#[test]
fn apply_refuses_a_base_with_another_superblock() {
    let (folder, bytes) = base();
    write_side(folder.path(), 0, &[9; 4096]);
    for place in [GENERATION, DEVICE_UUID] {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        let error = apply_to(folder.path(), changed).unwrap_err();
        assert!(error.to_string().contains("superblock"), "{error}");
    }
    apply_to(folder.path(), bytes).unwrap();
}

#[test]
fn resumed_apply_refuses_a_base_with_other_uuids() {
    let (folder, bytes) = base();
    write_side(folder.path(), 0, &[9; 4096]);
    let side = folder.path().join("side");
    SideFile::open_to_apply(&side).unwrap().begin_to_apply().unwrap();
    let mut swapped = bytes.clone();
    swapped[DEVICE_UUID] ^= 1;
    let error = apply_to(folder.path(), swapped).unwrap_err();
    assert!(error.to_string().contains("superblock"), "{error}");
    // The interrupted apply may have written the new superblock.
    let mut begun = bytes;
    begun[GENERATION] ^= 1;
    apply_to(folder.path(), begun).unwrap();
}

#[test]
fn resumed_apply_accepts_uuids_that_the_overlay_wrote() {
    let (folder, mut bytes) = base();
    write_side(folder.path(), DEVICE_UUID, &[7; 16]);
    let side = folder.path().join("side");
    SideFile::open_to_apply(&side).unwrap().begin_to_apply().unwrap();
    bytes[DEVICE_UUID..DEVICE_UUID + 16].fill(7);
    apply_to(folder.path(), bytes).unwrap();
}

#[test]
fn overlay_without_times_refuses_a_changed_superblock() {
    let (folder, bytes) = base();
    let side = folder.path().join("side");
    let state = BaseState {
        size_bytes: bytes.len() as u64,
        changed_seconds: 0,
        changed_nanoseconds: 0,
    };
    let over = |bytes: &[u8]| {
        let memory: Arc<dyn Backend> = Arc::new(crate::MemoryBackend::new("base", bytes.to_vec()));
        let mut overlay = Overlay::open(memory, &state, &side, true)?;
        overlay.record_volume(0)
    };
    over(&bytes).unwrap();
    over(&bytes).unwrap();
    let mut changed = bytes;
    changed[GENERATION] ^= 1;
    let error = over(&changed).unwrap_err();
    assert!(error.to_string().contains("superblock"), "{error}");
}
