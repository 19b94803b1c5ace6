//! The three sides: a new volume, mounted, unmounted and mounted again.

use super::program;
use crate::Scale;
use crate::cache::drop_system;
use crate::fsync::Image;
use crate::images::folder;
use anyhow::{Context, Result, bail};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{buttress, newest, run};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The file system that serves a side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Kernel,
    Ours,
    Memory,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Kernel, Self::Ours, Self::Memory];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Ours => "buttress",
            Self::Memory => "memory",
        }
    }
}

enum Mounted {
    Kernel(Mount),
    Served(Child),
}

/// A mounted volume of one side.
pub(super) struct Side {
    pub(super) kind: Kind,
    /// The peak memory of our servers, in KiB.
    pub(super) peak_kib: u64,
    image: Image,
    at: tempfile::TempDir,
    mounted: Option<Mounted>,
}

impl Side {
    /// Makes a new volume and mounts it.
    pub(super) fn new(kind: Kind, scale: Scale) -> Result<Self> {
        let bytes = scale.large_bytes * 2 + (scale.source_files as u64 + scale.inline_files) * (64 << 10);
        let image = Image::new(
            &folder()?,
            &format!("mount-{}", kind.name()),
            (bytes >> 30).max(1),
        )?;
        run(Command::new(newest("mkfs.btrfs"))
            .args(["-q", "-f"])
            .arg(&image.0))?;
        let mut side = Self {
            kind,
            peak_kib: 0,
            image,
            at: tempfile::Builder::new()
                .prefix("buttress-bench-mount-")
                .tempdir()?,
            mounted: None,
        };
        side.open("")?;
        Ok(side)
    }

    /// Returns the mount point.
    pub(super) fn path(&self) -> &Path {
        match &self.mounted {
            Some(Mounted::Kernel(mount)) => mount.path(),
            _ => self.at.path(),
        }
    }

    fn open(&mut self, options: &str) -> Result<()> {
        let mut server = match self.kind {
            Kind::Kernel => {
                let mount = Mount::new(std::slice::from_ref(&self.image.0), options)?;
                self.mounted = Some(Mounted::Kernel(mount));
                return Ok(());
            }
            Kind::Ours => {
                let mut command = Command::new(buttress()?);
                let options = if options.is_empty() {
                    "rw".to_owned()
                } else {
                    format!("rw,{options}")
                };
                command.args(["mount", "--foreground", "-o", &options]);
                command.arg(&self.image.0);
                command
            }
            Kind::Memory => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["mount-part", "serve"]);
                command
            }
        };
        server.arg(self.at.path()).stdin(Stdio::null());
        let mut child = server.spawn().with_context(|| format!("starting {server:?}"))?;
        while !is_mounted(self.at.path())? {
            if let Some(status) = child.try_wait()? {
                bail!("{server:?} ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.mounted = Some(Mounted::Served(child));
        Ok(())
    }

    /// Unmounts, and waits until the image has all data.
    pub(super) fn close(&mut self) -> Result<()> {
        match self.mounted.take() {
            None => Ok(()),
            Some(Mounted::Kernel(mount)) => mount.close(),
            Some(Mounted::Served(mut child)) => {
                let peak = peak_kib(child.id());
                self.peak_kib = self.peak_kib.max(peak.unwrap_or(0));
                let mut umount = match self.kind {
                    Kind::Ours => {
                        let mut command = Command::new(buttress()?);
                        command.arg("umount");
                        command
                    }
                    _ => Command::new("umount"),
                };
                program(umount.arg(self.at.path()), &[0])?;
                let status = child.wait()?;
                anyhow::ensure!(
                    status.success(),
                    "the server of {} ended with {status}",
                    self.kind.name()
                );
                Ok(())
            }
        }
    }

    /// Mounts the volume again with `options`, after dropping the system's caches.
    pub(super) fn cold(&mut self, options: &str) -> Result<()> {
        if self.kind == Kind::Memory {
            return drop_system();
        }
        self.close()?;
        drop_system()?;
        self.open(options)
    }
}

fn is_mounted(directory: &Path) -> Result<bool> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let directory: PathBuf = directory.canonicalize()?;
    Ok(mounts
        .lines()
        .any(|line| line.split(' ').nth(4).map(Path::new) == Some(&directory)))
}

fn peak_kib(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("{error:#}");
        }
    }
}
