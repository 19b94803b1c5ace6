//! Volumes in image files that the kernel and Buttress use alternately.
#![allow(dead_code, reason = "each test uses a part of this")]

use anyhow::{Context, Result, ensure};
use buttress_device::{Device, OpenOptions as DeviceOptions};
use buttress_fs::OpenOptions;
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{Manifest, expect_equal, of_directory};
use buttress_oracle::tools::{newest, run};
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Opens an image for writing.
pub(crate) fn device(image: &Path) -> Result<Device> {
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    Ok(Device::open(image, &options)?)
}

/// Opens a volume for writing, degraded if an image is missing.
pub(crate) fn writable(images: &[PathBuf]) -> Result<WritableFilesystem> {
    let devices = images.iter().map(|image| device(image));
    let devices = devices.collect::<Result<Vec<_>>>()?;
    let filesystem = OpenOptions::new(devices).degraded(true).open()?;
    Ok(WritableFilesystem::new(filesystem, WriteOptions::default())?)
}

/// Requires that the kernel and btrfs-progs find no error, and that the volume has the expected
/// content. `also` inspects the volume as the kernel mounted it.
pub(crate) fn is_whole(
    what: &str,
    manifest: &Manifest,
    images: &[PathBuf],
    also: impl FnOnce(&Mount) -> Result<()>,
) -> Result<()> {
    btrfs_check(images).with_context(|| what.to_owned())?;
    let mount = Mount::new(images, "noatime")?;
    expect_equal(what, manifest, &of_directory(mount.path())?)?;
    let scrubbed = run(Command::new(newest("btrfs"))
        .args(["scrub", "start", "-B", "-r"])
        .arg(mount.path()))?;
    let text = String::from_utf8_lossy(&scrubbed.stdout).into_owned();
    ensure!(
        text.contains("no errors found"),
        "{what}: the kernel finds {text}"
    );
    also(&mount)?;
    mount.close()
}
