//! Loop devices and mounts. Dropping the values of this module detaches the devices and unmounts.

use crate::tools::run;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The number of retries of an unmount while the mount is busy, and the pause before each retry.
const UMOUNT_RETRIES: u32 = 30;
const UMOUNT_PAUSE: Duration = Duration::from_millis(100);

/// The number of queries of a detached device until it has no image, and the pause before each query.
const DETACH_RETRIES: u32 = 500;
const DETACH_PAUSE: Duration = Duration::from_millis(10);

/// An image file, attached as a block device until this value is dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `image`.
    ///
    /// losetup scans for partitions, so that the kernel forgets the partitions of an earlier image.
    /// btrfs-progs ignores a device that seems to have partitions.
    pub fn attach(image: &Path) -> Result<Self> {
        Self::attach_with(image, &["--partscan"])
    }

    /// Attaches `image` with further options of losetup.
    pub(crate) fn attach_with(image: &Path, options: &[&str]) -> Result<Self> {
        let mut command = Command::new("losetup");
        let output = run(command.args(options).args(["--find", "--show"]).arg(image))?;
        let path = String::from_utf8(output.stdout).context("losetup's answer")?;
        Ok(Self {
            path: PathBuf::from(path.trim_end()),
        })
    }

    /// Returns the path of the block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the attached image as the kernel reports it.
    fn backing_file(&self) -> Option<String> {
        let name = self.path.file_name()?;
        let attributes = Path::new("/sys/block").join(name).join("loop/backing_file");
        std::fs::read_to_string(attributes).ok()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let backing_file = self.backing_file();
        if let Err(error) = run(Command::new("losetup").arg("--detach").arg(&self.path)) {
            eprintln!("could not detach {}: {error:#}", self.path.display());
            return;
        }
        // The kernel detaches when the last opener closes the device. A scan of all devices by
        // another process is such an opener, and its users would still see the image.
        for _ in 0..DETACH_RETRIES {
            if backing_file.is_none() || self.backing_file() != backing_file {
                return;
            }
            std::thread::sleep(DETACH_PAUSE);
        }
        eprintln!("another process keeps {} open", self.path.display());
    }
}

/// A mounted volume with its loop devices and its directory, until this value is dropped.
#[derive(Debug)]
pub struct Mount {
    directory: Option<tempfile::TempDir>,
    // The devices. Fields drop in order, so the devices are detached after `drop` has unmounted.
    devices: Vec<LoopDevice>,
}

impl Mount {
    /// Mounts the volume on `images`, with further `options` for `mount -o`.
    pub fn new(images: &[PathBuf], options: &str) -> Result<Self> {
        let devices = images
            .iter()
            .map(|image| LoopDevice::attach(image))
            .collect::<Result<Vec<_>>>()?;
        let directory = tempfile::Builder::new().prefix("buttress-mount-").tempdir()?;
        // The kernel must know all devices before it mounts the first; `device=` names them.
        let mut all = options.to_owned();
        for device in devices.iter().skip(1) {
            if !all.is_empty() {
                all.push(',');
            }
            all.push_str("device=");
            all.push_str(&device.path().to_string_lossy());
        }
        let first = devices.first().context("a volume has a device")?;
        let mut command = Command::new("mount");
        command.args(["-t", "btrfs"]);
        if !all.is_empty() {
            command.arg("-o").arg(all);
        }
        run(command.arg(first.path()).arg(directory.path()))?;
        Ok(Self {
            directory: Some(directory),
            devices,
        })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory
            .as_ref()
            .map_or(Path::new(""), tempfile::TempDir::path)
    }

    /// Returns the block devices of the volume.
    #[must_use]
    pub fn devices(&self) -> &[LoopDevice] {
        &self.devices
    }

    /// Unmounts and detaches, and returns any error.
    pub fn close(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        if let Some(directory) = self.directory.take() {
            let umount = || run(Command::new("umount").arg(directory.path()));
            // Another program of the machine may be using the mount at this moment.
            let mut unmounted = umount();
            for _ in 0..UMOUNT_RETRIES {
                if unmounted.is_ok() {
                    break;
                }
                std::thread::sleep(UMOUNT_PAUSE);
                unmounted = umount();
            }
            if let Err(error) = unmounted {
                // The directory is still a mount point, so it must not be removed.
                let kept = directory.keep();
                return Err(error.context(format!("{} stays mounted", kept.display())));
            }
            // The kernel remembers devices, and refuses an older state of the same volume on other
            // devices.
            for device in &self.devices {
                let forget = ["device", "scan", "--forget"];
                let _ = run(Command::new("btrfs").args(forget).arg(device.path()));
            }
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}");
        }
    }
}
