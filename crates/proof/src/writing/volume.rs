//! Volumes in memory, made and opened with a clock and uuids that a seed gives.

use anyhow::{Result, ensure};
use buttress::check::{self, Finding, Report, check};
use buttress::device::{Backend, Device, Engine, MemoryBackend};
use buttress::format::{Timestamp, Uuid};
use buttress::fs::mkfs::{self, Identity};
use buttress::fs::{Environment, WritableFilesystem, WriteOptions};
use buttress::{ByteCount, DeviceOptions, Filesystem, OpenOptions, Progress};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// A clock that moves on by a second with each look at it, and uuids that count.
#[derive(Debug, Default)]
pub struct Ticking {
    seconds: AtomicI64,
}

impl Environment for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp {
            seconds: 1_000_000_i64.saturating_add(self.seconds.fetch_add(1, Ordering::Relaxed)),
            nanoseconds: 7,
        }
    }

    fn new_uuid(&self) -> Uuid {
        let number = self.seconds.fetch_add(1, Ordering::Relaxed).unsigned_abs();
        Uuid::from_u128((0xfeed_u128 << 64) | u128::from(number))
    }
}

/// The devices of a volume.
pub type Backends = Vec<Arc<dyn Backend>>;

/// Devices in memory of these sizes with an empty volume on them.
///
/// # Errors
/// Options that do not fit.
pub fn empty(device_bytes: &[usize], options: &mkfs::Options) -> Result<Backends> {
    let backends: Backends = (0_u32..)
        .zip(device_bytes)
        .map(|(number, bytes)| {
            Arc::new(MemoryBackend::new(format!("memory-{number}"), vec![0; *bytes])) as Arc<dyn Backend>
        })
        .collect();
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: (4_u128..).take(backends.len()).map(Uuid::from_u128).collect(),
        time: Timestamp {
            seconds: 1,
            nanoseconds: 0,
        },
    };
    mkfs::make(&devices(&backends), options, &identity)?;
    Ok(backends)
}

/// The devices, read and written by the threads that ask.
#[must_use]
pub fn devices(backends: &[Arc<dyn Backend>]) -> Vec<Device> {
    backends
        .iter()
        .map(|backend| Device::with_backend(Arc::clone(backend), Engine::Inline))
        .collect()
}

/// How often, and after which pause, opening an image is tried again.
const OPEN_RETRIES: u32 = 50;
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// The devices on these images.
///
/// # Errors
/// That one cannot be opened, or locked.
pub fn open_images(images: &[PathBuf], write: bool) -> Result<Vec<Device>> {
    let options = DeviceOptions {
        write,
        ..DeviceOptions::default()
    };
    images.iter().map(|image| open_image(image, &options)).collect()
}

/// Opens an image. A command that another case starts at this moment may hold the lock of one that was just closed, until
/// its program begins: then it is tried again.
fn open_image(image: &Path, options: &DeviceOptions) -> Result<Device> {
    for _ in 0..OPEN_RETRIES {
        if let Ok(device) = Device::open(image, options) {
            return Ok(device);
        }
        std::thread::sleep(OPEN_PAUSE);
    }
    Ok(Device::open(image, options)?)
}

/// Opens a volume for reading, and checks it.
///
/// # Errors
/// What the check found, all of it.
pub fn open_checked(backends: &[Arc<dyn Backend>]) -> Result<Filesystem> {
    let (filesystem, report) = open_and_check(backends)?;
    ensure!(report.is_clean(), "{report:#?}");
    Ok(filesystem)
}

/// As [`open_checked`], after a crash: of each device's superblocks one may be torn, which the next commit mends.
///
/// # Errors
/// What else the check found.
pub fn open_after_crash(backends: &[Arc<dyn Backend>]) -> Result<Filesystem> {
    let (filesystem, report) = open_and_check(backends)?;
    let is_torn = |finding: &Finding| matches!(finding, Finding::SuperblockDamaged { .. });
    let torn = report
        .findings
        .iter()
        .filter(|found| is_torn(&found.finding))
        .count();
    let others_are_holes = report
        .findings
        .iter()
        .all(|found| is_torn(&found.finding) || is_write_hole(&filesystem, &found.finding));
    ensure!(others_are_holes && torn <= backends.len(), "{report:#?}");
    Ok(filesystem)
}

/// As [`open_checked`], later in the life of a volume that saw a crash: only the write hole may be left of it.
///
/// # Errors
/// What else the check found.
pub fn open_checked_but_for_holes(backends: &[Arc<dyn Backend>]) -> Result<Filesystem> {
    let (filesystem, report) = open_and_check(backends)?;
    let only_holes = report
        .findings
        .iter()
        .all(|found| is_write_hole(&filesystem, &found.finding));
    ensure!(only_holes, "{report:#?}");
    Ok(filesystem)
}

/// Parity that a crash left unfit for its row. The copy that is read first is good.
fn is_write_hole(filesystem: &Filesystem, finding: &Finding) -> bool {
    let Finding::DataCopyDamaged { logical, copy, .. } = finding else {
        return false;
    };
    let map = filesystem.volume().chunk_map();
    *copy > 1
        && map
            .find(*logical)
            .is_some_and(|chunk| chunk.layout().has_parity())
}

fn open_and_check(backends: &[Arc<dyn Backend>]) -> Result<(Filesystem, Report)> {
    let filesystem = OpenOptions::new(devices(backends)).open()?;
    let options = check::Options {
        data_checksums: true,
        ..check::Options::default()
    };
    let report = check(&filesystem, &options, &Progress::new())?;
    Ok((filesystem, report))
}

/// Opens a volume for writing.
///
/// # Errors
/// That it cannot be opened, or is not written.
pub fn open_for_writing(backends: &[Arc<dyn Backend>]) -> Result<WritableFilesystem> {
    write_to(OpenOptions::new(devices(backends)).open()?)
}

/// As [`open_for_writing`], keeping no more than `cache` of the trees in memory.
///
/// # Errors
/// As there.
pub fn open_for_writing_with_cache(
    backends: &[Arc<dyn Backend>],
    cache: ByteCount,
) -> Result<WritableFilesystem> {
    write_to(OpenOptions::new(devices(backends)).cache(cache).open()?)
}

fn write_to(filesystem: Filesystem) -> Result<WritableFilesystem> {
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    Ok(WritableFilesystem::new(filesystem, options)?)
}
