//! Volumes in memory, made and opened with a clock and uuids that a seed gives.

use anyhow::{Result, ensure};
use buttress::check::{self, Finding, Report, check};
use buttress::device::{Backend, Device, Engine, MemoryBackend};
use buttress::format::{Timestamp, Uuid};
use buttress::fs::mkfs::{self, Identity};
use buttress::fs::{Environment, WritableFilesystem, WriteOptions};
use buttress::{Filesystem, OpenOptions, Progress};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

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

/// Bytes in memory with an empty volume on them.
///
/// # Errors
/// Options that do not fit.
pub fn empty(bytes: usize, options: &mkfs::Options) -> Result<Arc<dyn Backend>> {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new("memory", vec![0; bytes]));
    let device = Device::with_backend(Arc::clone(&backend), Engine::Inline);
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp {
            seconds: 1,
            nanoseconds: 0,
        },
    };
    mkfs::make(&[device], options, &identity)?;
    Ok(backend)
}

/// Opens a volume for reading, and checks it.
///
/// # Errors
/// What the check found, all of it.
pub fn open_checked(backend: &Arc<dyn Backend>) -> Result<Filesystem> {
    let (filesystem, report) = open_and_check(backend)?;
    ensure!(report.is_clean(), "{report:#?}");
    Ok(filesystem)
}

/// As [`open_checked`], after a crash: of several superblocks one may be torn, which the next commit mends.
///
/// # Errors
/// What else the check found.
pub fn open_after_crash(backend: &Arc<dyn Backend>) -> Result<Filesystem> {
    let (filesystem, report) = open_and_check(backend)?;
    let torn = report
        .findings
        .iter()
        .filter(|found| matches!(found.finding, Finding::SuperblockDamaged { .. }))
        .count();
    ensure!(torn == report.findings.len() && torn <= 1, "{report:#?}");
    Ok(filesystem)
}

fn open_and_check(backend: &Arc<dyn Backend>) -> Result<(Filesystem, Report)> {
    let device = Device::with_backend(Arc::clone(backend), Engine::Inline);
    let filesystem = OpenOptions::new(vec![device]).open()?;
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
pub fn open_for_writing(backend: &Arc<dyn Backend>) -> Result<WritableFilesystem> {
    let device = Device::with_backend(Arc::clone(backend), Engine::Inline);
    let filesystem = OpenOptions::new(vec![device]).open()?;
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    Ok(WritableFilesystem::new(filesystem, options)?)
}
