//! Volumes in memory, created and opened with a clock and uuids from a seed.

use super::comparing::{kernels_view, manifest};
use anyhow::{Context, Result, ensure};
use buttress::check::{Finding, Report};
use buttress::mkfs::Identity;
use buttress::unstable::check;
use buttress::unstable::check::check;
use buttress::unstable::device::MemoryBackend;
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    Backend, ByteCount, Device, DeviceEngine as Engine, DeviceOptions, Environment, Progress, Timestamp,
    Uuid, mkfs,
};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::expect_equal;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::scratch;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Environment with a clock that advances by a second at each query, and uuids that count.
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

/// Devices of a volume.
pub type Backends = Vec<Arc<dyn Backend>>;

/// Creates an empty volume on devices in memory of these sizes.
///
/// # Errors
/// Fails if the options do not fit the devices.
pub fn empty(device_bytes: &[usize], options: &mkfs::Options) -> Result<Backends> {
    let backends: Backends = (0_u32..)
        .zip(device_bytes)
        .map(|(number, bytes)| {
            Arc::new(MemoryBackend::new(format!("memory-{number}"), vec![0; *bytes])) as Arc<dyn Backend>
        })
        .collect();
    // The ids of the twin volume must differ from those of all mounted volumes of this machine.
    static VOLUMES: AtomicU64 = AtomicU64::new(1);
    let volume = u128::from(VOLUMES.fetch_add(1, Ordering::Relaxed));
    let process = u128::from(std::process::id());
    let id = |number: u128| Uuid::from_u128(0xc4a5 << 112 | process << 64 | volume << 16 | number);
    let identity = Identity {
        fsid: id(1),
        chunk_tree: id(2),
        top_level: id(3),
        devices: (4..).take(backends.len()).map(id).collect(),
        time: Timestamp {
            seconds: 1,
            nanoseconds: 0,
        },
    };
    mkfs::make(&devices(&backends), options, &identity)?;
    Ok(backends)
}

/// Creates a volume with mkfs.btrfs and these options on devices in memory.
///
/// # Errors
/// mkfs.btrfs fails.
pub fn made_by_progs(backends: &[Arc<dyn Backend>], options: &[&str]) -> Result<()> {
    let folder = scratch()?;
    let images = write_images(backends, folder.path())?;
    run(Command::new(newest("mkfs.btrfs"))
        .args(["-q", "-f"])
        .args(options)
        .args(&images))?;
    for (backend, image) in backends.iter().zip(&images) {
        let image = File::open(image)?;
        copy_pieces(
            backend.size_bytes(),
            |offset, piece| Ok(image.read_exact_at(piece, offset)?),
            |offset, piece| Ok(backend.write_at(offset, piece)?),
        )?;
    }
    Ok(())
}

/// Writes devices to image files in `folder`.
///
/// # Errors
/// The errors of reading and writing.
pub fn write_images(backends: &[Arc<dyn Backend>], folder: &Path) -> Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    for (number, backend) in backends.iter().enumerate() {
        let path = folder.join(format!("device-{number}"));
        let file = File::create(&path)?;
        file.set_len(backend.size_bytes())?;
        copy_pieces(
            backend.size_bytes(),
            |offset, piece| Ok(backend.read_vectored_at(offset, &mut [piece])?),
            |offset, piece| Ok(file.write_all_at(piece, offset)?),
        )?;
        images.push(path);
    }
    Ok(images)
}

/// Size of a copied piece in bytes; zero pieces are skipped.
const PIECE_BYTES: usize = 64 << 10;

/// Compare whole pieces: in test builds, a comparison byte by byte takes most of the time.
static ZEROS: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

fn copy_pieces(
    bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> Result<()>,
    write: impl Fn(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    for offset in (0..bytes).step_by(PIECE_BYTES) {
        let length = usize::try_from(bytes - offset)?.min(PIECE_BYTES);
        let part = &mut piece[..length];
        read(offset, part)?;
        if part != &ZEROS[..length] {
            write(offset, part)?;
        }
    }
    Ok(())
}

/// Returns the devices, with reads and writes on the calling threads.
#[must_use]
pub fn devices(backends: &[Arc<dyn Backend>]) -> Vec<Device> {
    backends
        .iter()
        .map(|backend| Device::with_backend(Arc::clone(backend), Engine::Inline))
        .collect()
}

/// Number of retries of opening an image; the next constant is the pause between them.
const OPEN_RETRIES: u32 = 50;
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// Opens the devices on these images.
///
/// # Errors
/// Fails if an image cannot be opened or locked.
pub fn open_images(images: &[PathBuf], write: bool) -> Result<Vec<Device>> {
    let options = DeviceOptions {
        write,
        ..DeviceOptions::default()
    };
    images.iter().map(|image| open_image(image, &options)).collect()
}

/// Opens an image, and retries while it is locked. A child process of another case may inherit the
/// lock of a closed image until its `exec`.
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
/// All findings of the check.
pub fn open_checked(backends: &[Arc<dyn Backend>]) -> Result<Filesystem> {
    let (filesystem, report) = open_and_check(backends)?;
    ensure!(report.is_clean(), "{report:#?}");
    Ok(filesystem)
}

/// Returns whether a crash left a state that btrfs-progs and the kernel accept. After a crash, a
/// torn superblock may prevent btrfs-progs from reading the volume, and `btrfs check` reports the
/// write hole.
///
/// # Errors
/// Fails if the volume is unreadable.
pub fn is_clean(backends: &[Arc<dyn Backend>]) -> Result<bool> {
    Ok(open_and_check(backends)?.1.is_clean())
}

/// Opens and checks like [`open_checked`] after a crash: one superblock per device may be torn,
/// which the next commit repairs.
///
/// # Errors
/// Any other finding of the check.
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

/// Opens and checks like [`open_checked`] some time after a crash: only the write hole may remain.
///
/// # Errors
/// Any other finding of the check.
pub fn open_checked_but_for_holes(backends: &[Arc<dyn Backend>]) -> Result<Filesystem> {
    let (filesystem, report) = open_and_check(backends)?;
    let only_holes = report
        .findings
        .iter()
        .all(|found| is_write_hole(&filesystem, &found.finding));
    ensure!(only_holes, "{report:#?}");
    Ok(filesystem)
}

/// Returns whether a finding is parity that a crash left inconsistent with its row. For the write
/// hole, the first copy read is good.
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

/// Checks devices after a crash with `btrfs check`, and mounts them with the kernel, read-only and
/// then for writing. For these devices, the check must find nothing, either. After the checks, the
/// kernel's view must equal Buttress's.
///
/// # Errors
/// The findings of the check, or the differences.
pub fn expect_kernel_agrees(backends: &[Arc<dyn Backend>]) -> Result<()> {
    let folder = scratch()?;
    let images = write_images(backends, folder.path())?;
    btrfs_check(&images).context("as the crash left it")?;
    let ours = manifest(&OpenOptions::new(devices(backends)).open()?)?;
    expect_equal("the kernel's view", &kernels_view(&images)?, &ours)?;
    let mount = Mount::new(&images, "noatime,subvolid=5")?;
    match std::fs::write(mount.path().join("by the kernel, after the crash"), b"x") {
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {}
        written => written.context("writing by the kernel")?,
    }
    mount.close()?;
    btrfs_check(&images)
        .context("after the kernel wrote to it")
        .map(drop)
}

/// Opens a volume for writing.
///
/// # Errors
/// The volume cannot be opened, or not for writing.
pub fn open_for_writing(backends: &[Arc<dyn Backend>]) -> Result<WritableFilesystem> {
    write_to(OpenOptions::new(devices(backends)).open()?)
}

/// Opens a volume for writing like [`open_for_writing`], with a cache of `cache` bytes for trees.
///
/// # Errors
/// The errors of [`open_for_writing`].
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
