//! Tests of replacements with the kernel: this crate completes replacements of the kernel, and the
//! kernel completes those of this crate.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use anyhow::{Context, Result, ensure};
use buttress_device::{Device, OpenOptions as DeviceOptions};
use buttress_format::{ByteCount, DeviceId, Physical, ReplaceState};
use buttress_fs::{OpenOptions, Progress};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::manifest::{Manifest, of_directory};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::{Specification, Volume, make};
use buttress_scrub::{Replace, ReplaceOptions, Replaced};
use buttress_writer::{WritableFilesystem, replacement_item};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::with_kernel::{device, is_whole, writable};

fn new_image(volume: &Volume, mib: u64) -> Result<PathBuf> {
    let path = volume.folder().join("target.img");
    File::create(&path)?.set_len(mib << 20)?;
    Ok(path)
}

fn state(images: &[PathBuf]) -> Result<Option<ReplaceState>> {
    let devices = images
        .iter()
        .map(|image| Ok(Device::open(image, &DeviceOptions::default())?));
    let filesystem = OpenOptions::new(devices.collect::<Result<Vec<_>>>()?)
        .degraded(true)
        .open()?;
    Ok(replacement_item(&filesystem)?.map(|item| item.state))
}

/// Requires that the kernel and btrfs-progs find no error in a volume whose device was replaced.
fn is_replaced(what: &str, manifest: &Manifest, images: &[PathBuf]) -> Result<()> {
    is_whole(what, manifest, images, |mount| {
        let status = status(mount)?;
        ensure!(status.contains("finished on"), "{what}: {status}");
        Ok(())
    })
}

fn status(mount: &Mount) -> Result<String> {
    let told = run(Command::new(newest("btrfs"))
        .args(["replace", "status", "-1"])
        .arg(mount.path()))?;
    Ok(String::from_utf8_lossy(&told.stdout).into_owned())
}

/// A volume's profiles of data and metadata, and its devices.
type Shape = (&'static str, &'static str, u32);

const SHAPES: [Shape; 9] = [
    ("single", "dup", 1),
    ("dup", "dup", 1),
    ("raid0", "raid1", 2),
    ("raid1", "raid1", 2),
    ("raid1c3", "raid1c3", 3),
    ("raid1c4", "raid1c4", 4),
    ("raid10", "raid10", 4),
    ("raid5", "raid5", 3),
    ("raid6", "raid6", 4),
];

/// Runs `tried` on a volume of each shape that the kernel made.
fn with_each(shapes: &[Shape], device_mib: u64, tried: impl Fn(&Shape, &Volume) -> Result<()>) {
    for shape @ (data, metadata, devices) in shapes {
        let volume = make(&Specification {
            data,
            metadata,
            devices: *devices,
            device_mib,
            ..Specification::default()
        });
        volume
            .and_then(|volume| tried(shape, &volume))
            .with_context(|| *data)
            .unwrap();
    }
}

/// Completes a replacement, which must lose nothing.
fn finish(filesystem: WritableFilesystem) -> Result<()> {
    let ended = Replace::new(filesystem.clone(), ReplaceOptions::default(), Progress::new()).run()?;
    let is_whole = matches!(
        ended,
        Replaced::Finished {
            lost: ByteCount::ZERO,
            ..
        }
    );
    ensure!(is_whole, "{ended:?}");
    filesystem.close()?;
    Ok(())
}

#[test]
fn kernel_finds_no_error_after_replacement() {
    if skips(kernel_missing()) {
        return;
    }
    with_each(&SHAPES, 512, |(data, _, devices), volume| {
        let target = new_image(volume, 520)?;
        let mut images = volume.images.clone();
        let lost = images.len() - 1;
        let is_missing = *devices > 1 && *data != "raid0";
        let filesystem = match is_missing {
            true => writable(&images[..lost])?,
            false => writable(&images)?,
        };
        let id = DeviceId::new(lost as u64 + 1);
        filesystem.replacements().start(id, device(&target)?, false)?;
        finish(filesystem)?;
        images[lost] = target;
        is_replaced(data, &volume.manifest, &images)
    });
}

/// Runs the replacement until some chunks are done and committed, and others are not.
fn half_way(filesystem: &WritableFilesystem) -> Result<()> {
    let progress = Progress::new();
    let options = ReplaceOptions {
        commit_every: Duration::from_millis(5),
        limit: Some(ByteCount::new(4 << 20)),
        ..ReplaceOptions::default()
    };
    let cursor = || filesystem.replacements().current().map(|item| item.cursor_left);
    let replace = Replace::new(filesystem.clone(), options, progress.clone());
    let ended = std::thread::scope(|scope| {
        let replacing = scope.spawn(|| replace.run());
        let mut first = None;
        while !replacing.is_finished() {
            let now = cursor().filter(|cursor| *cursor > Physical::MIN);
            first = first.or(now);
            if now > first {
                progress.cancel();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        replacing.join()
    });
    let ended = ended.map_err(|_| anyhow::anyhow!("it panicked"))??;
    ensure!(matches!(ended, Replaced::Suspended), "{ended:?}");
    Ok(())
}

#[test]
fn kernel_completes_replacement_begun_here() {
    if skips(kernel_missing()) {
        return;
    }
    // For a volume with one device this kernel registers no other device, so it cannot find the
    // target.
    let several: Vec<Shape> = [("single", "raid1", 2), ("raid0", "dup", 2)]
        .into_iter()
        .chain(SHAPES.into_iter().skip(3))
        .collect();
    with_each(&several, 512, |(data, ..), volume| {
        let target = new_image(volume, 512)?;
        let filesystem = writable(&volume.images)?;
        filesystem
            .replacements()
            .start(DeviceId::new(1), device(&target)?, false)?;
        half_way(&filesystem)?;
        filesystem.close()?;
        let mut images = volume.images.clone();
        images.push(target.clone());
        ensure!(state(&images)? == Some(ReplaceState::Suspended));
        btrfs_check(&volume.images)?;
        let mount = Mount::new(&images, "noatime")?;
        let mut told = String::new();
        for _ in 0..1000 {
            told = status(&mount)?;
            if told.contains("finished") {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        ensure!(told.contains("finished on"), "{told}");
        mount.close()?;
        let mut images = volume.images.clone();
        images[0] = target;
        is_replaced(data, &volume.manifest, &images)
    });
}

/// Limits the kernel's copy to few bytes per second.
fn slow_down(mount: &Mount, devices: u32) -> Result<()> {
    let told = run(Command::new(newest("btrfs"))
        .args(["filesystem", "show"])
        .arg(mount.path()))?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let uuid = told
        .split("uuid: ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let uuid = uuid.context("no uuid")?;
    for device in 1..=devices {
        let limit = format!("/sys/fs/btrfs/{uuid}/devinfo/{device}/scrub_speed_max");
        std::fs::write(limit, "4m")?;
    }
    Ok(())
}

/// Copies images, and returns the copies.
fn copy_all(images: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let copy = |image: &PathBuf| {
        let copy = image.with_extension("copy");
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(&copy))?;
        Ok(copy)
    };
    images.iter().map(copy).collect()
}

/// Makes a volume whose device 1 the kernel is replacing, as a crash would leave it. Returns the
/// volume's devices, the target last.
fn begun_by_kernel(volume: &Volume) -> Result<(Manifest, Vec<PathBuf>)> {
    let target = new_image(volume, 1024)?;
    let mut images = volume.images.clone();
    images.push(target.clone());
    let mount = Mount::new(&volume.images, "noatime,commit=300")?;
    let big = format!("of={}/big", mount.path().display());
    run(Command::new("dd")
        .args(["if=/dev/urandom", "bs=1M", "count=64"])
        .arg(big))?;
    let manifest = of_directory(mount.path())?;
    slow_down(&mount, u32::try_from(volume.images.len())?)?;
    let to = LoopDevice::attach(&target)?;
    run(Command::new(newest("btrfs"))
        .args(["replace", "start", "-f", "1"])
        .arg(to.path())
        .arg(mount.path()))?;
    // The command runs in the background before the kernel begins.
    while status(&mount)?.contains("Never started") {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The target has a superblock once the kernel commits the start. Nothing more is committed for
    // a long time. Freezing the file system would cancel the replacement.
    for _ in 0..1000 {
        let mut superblock = [0; 4096];
        File::open(&target)?.read_exact_at(&mut superblock, 64 << 10)?;
        if superblock.iter().any(|byte| *byte != 0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    run(Command::new(newest("btrfs"))
        .args(["filesystem", "sync"])
        .arg(mount.path()))?;
    let copied = copy_all(&images);
    // The kernel's replacement may have finished in the meantime.
    let _ = Command::new(newest("btrfs"))
        .args(["replace", "cancel"])
        .arg(mount.path())
        .output()?;
    mount.close()?;
    drop(to);
    Ok((manifest, copied?))
}

/// Shapes of volumes on which the kernel began a replacement; `BUTTRESS_SOAK` adds the second half
/// of the list. On RAID1C4, this kernel writes no superblock to the target while it copies slowly.
const BEGUN_BY_KERNEL: [Shape; 8] = [
    ("single", "dup", 1),
    ("raid1", "raid1", 2),
    ("raid10", "raid10", 4),
    ("raid5", "raid5", 3),
    ("dup", "dup", 1),
    ("raid0", "raid1", 2),
    ("raid1c3", "raid1c3", 3),
    ("raid6", "raid6", 4),
];

#[test]
fn replacement_begun_by_kernel_is_completed() {
    if skips(kernel_missing()) {
        return;
    }
    let (first, _) = BEGUN_BY_KERNEL.split_at(4);
    let shapes = match std::env::var_os("BUTTRESS_SOAK") {
        Some(_) => &BEGUN_BY_KERNEL[..],
        None => first,
    };
    with_each(shapes, 1024, |(data, ..), volume| {
        let (manifest, images) = begun_by_kernel(volume)?;
        let (target, own) = images.split_last().context("no images")?;
        let found = state(&images)?;
        ensure!(found == Some(ReplaceState::Started), "{found:?}");
        let error = writable(own).err().context("it was opened without its target")?;
        ensure!(format!("{error:#}").contains("replace cancel"), "{error:#}");
        let filesystem = writable(&images)?;
        let cursor = filesystem.replacements().current().map(|item| item.cursor_left);
        ensure!(cursor < Some(Physical::new(1 << 30)), "{cursor:?}");
        finish(filesystem)?;
        let mut images = own.to_vec();
        images[0] = target.clone();
        is_replaced(data, &manifest, &images)
    });
}
