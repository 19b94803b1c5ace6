//! Loop devices and mounts that are undone when they go out of scope.

use crate::tools::run;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How often, and after which pause, unmounting is tried again while the mount is busy.
const UMOUNT_RETRIES: u32 = 30;
const UMOUNT_PAUSE: Duration = Duration::from_millis(100);

/// An image file attached as a block device until it is dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `image`.
    ///
    /// Its partitions are looked for so that those of what was attached before are forgotten: a device that seems to have
    /// partitions is left out when btrfs-progs looks for the devices of a volume.
    pub fn attach(image: &Path) -> Result<Self> {
        Self::attach_with(image, &["--partscan"])
    }

    /// Attaches `image` with more options of losetup.
    pub(crate) fn attach_with(image: &Path, options: &[&str]) -> Result<Self> {
        let mut command = Command::new("losetup");
        let output = run(command.args(options).args(["--find", "--show"]).arg(image))?;
        let path = String::from_utf8(output.stdout).context("losetup's answer")?;
        Ok(Self {
            path: PathBuf::from(path.trim_end()),
        })
    }

    /// The block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("losetup").arg("--detach").arg(&self.path)) {
            eprintln!("could not detach {}: {error:#}", self.path.display());
        }
    }
}

/// A mounted volume: its loop devices and the directory, until it is dropped.
#[derive(Debug)]
pub struct Mount {
    directory: Option<tempfile::TempDir>,
    // Fields drop in order: the devices go after `drop` has unmounted.
    devices: Vec<LoopDevice>,
}

impl Mount {
    /// Mounts the volume that lies on `images`, with further `options` for `mount -o`.
    pub fn new(images: &[PathBuf], options: &str) -> Result<Self> {
        let devices = images
            .iter()
            .map(|image| LoopDevice::attach(image))
            .collect::<Result<Vec<_>>>()?;
        let directory = tempfile::Builder::new().prefix("buttress-mount-").tempdir()?;
        // The kernel must know all devices before the first is mounted; `device=` says them to it.
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

    /// The directory on which the device is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory
            .as_ref()
            .map_or(Path::new(""), tempfile::TempDir::path)
    }

    /// The loop devices below the mount.
    #[must_use]
    pub fn devices(&self) -> &[LoopDevice] {
        &self.devices
    }

    /// Unmounts and detaches, and says what went wrong.
    pub fn close(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        if let Some(directory) = self.directory.take() {
            let umount = || run(Command::new("umount").arg(directory.path()));
            // Another program on the machine may be reading the mounted file system at this moment.
            let mut unmounted = umount();
            for _ in 0..UMOUNT_RETRIES {
                if unmounted.is_ok() {
                    break;
                }
                std::thread::sleep(UMOUNT_PAUSE);
                unmounted = umount();
            }
            if let Err(error) = unmounted {
                // A directory that is still mounted must not be removed.
                let kept = directory.keep();
                return Err(error.context(format!("{} stays mounted", kept.display())));
            }
            // The kernel remembers devices, and refuses an older state of the same volume on others.
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
