//! Images made by mke2fs, and the kernel's mount of them.

use anyhow::{Context, Result};
use buttress_device::{Device, OpenOptions};
use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::tools::run;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The needs of tests that mount.
pub(crate) const NEEDS: [&str; 4] = ["root", "loop-devices", "mkfs.ext4", "setfacl"];

/// An image in a folder of its own.
pub(crate) struct Image {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    /// Makes an image of `mib` MiB by mke2fs with `options`.
    pub(crate) fn new(mib: u64, options: &[&str]) -> Result<Self> {
        let folder = buttress_oracle::volumes::scratch()?;
        let path = folder.path().join("image");
        File::create(&path)?.set_len(mib << 20)?;
        run(Command::new("mke2fs").args(["-q", "-F"]).args(options).arg(&path))?;
        Ok(Self {
            _folder: folder,
            path,
        })
    }

    /// Opens the image for reading.
    pub(crate) fn device(&self) -> Result<Device> {
        Ok(Device::open(&self.path, &OpenOptions::default())?)
    }
}

/// A mount by the kernel, until it is dropped.
pub(crate) struct Mounted {
    folder: Option<tempfile::TempDir>,
    _device: LoopDevice,
}

impl Mounted {
    pub(crate) fn new(image: &Path, options: &str) -> Result<Self> {
        let device = LoopDevice::attach(image)?;
        let folder = tempfile::tempdir()?;
        run(Command::new("mount")
            .args(["-t", "ext4", "-o", options])
            .arg(device.path())
            .arg(folder.path()))?;
        Ok(Self {
            folder: Some(folder),
            _device: device,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    /// Unmounts, and returns any error.
    pub(crate) fn close(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(folder) = self.folder.take() else {
            return Ok(());
        };
        if let Err(error) = run(Command::new("umount").arg(folder.path())) {
            // The folder is still a mount point, so it must not be removed.
            let kept = folder.keep();
            return Err(error).with_context(|| format!("{} stays mounted", kept.display()));
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}");
        }
    }
}
