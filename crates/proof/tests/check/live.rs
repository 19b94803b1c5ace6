//! A mounted volume of the kernel, and copies of its devices as a crash would leave them.
//!
//! No commit overwrites data that the previous commit needs. If no superblock changed during the
//! copying, a copy represents a single moment: it has that commit, the log that its superblock
//! names, and any part of later writes.

use crate::open;
use crate::theirs::{Verdict, newest_judges};
use anyhow::{Result, bail, ensure};
use buttress::Progress;
use buttress::check::{Options, Report};
use buttress::unstable::check::check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::run;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Largest number of attempts of a copy during which a superblock changes.
const ATTEMPTS: u32 = 60;
const SUPERBLOCK: u64 = 65_536;

/// A mounted volume.
pub struct Live {
    pub folder: tempfile::TempDir,
    pub images: Vec<PathBuf>,
    pub mount: Mount,
}

impl Live {
    /// Mounts a volume with a commit at least every five minutes.
    pub fn mount(folder: tempfile::TempDir, images: Vec<PathBuf>, options: &str) -> Result<Self> {
        let comma = if options.is_empty() { "" } else { "," };
        let mount = Mount::new(&images, &format!("commit=300{comma}{options}"))?;
        Ok(Self {
            folder,
            images,
            mount,
        })
    }

    pub fn top(&self) -> &Path {
        self.mount.path()
    }

    pub fn commit(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.top())?)?)
    }

    pub fn close(self) -> Result<()> {
        self.mount.close()
    }

    fn superblocks(&self) -> Result<Vec<Vec<u8>>> {
        let read = |image: &PathBuf| {
            let mut bytes = vec![0; 4096];
            File::open(image)?.read_exact_at(&mut bytes, SUPERBLOCK)?;
            Ok(bytes)
        };
        self.images.iter().map(read).collect()
    }

    /// Copies the devices under a name, so that copies of several moments can be checked later.
    pub fn copy(&self, name: &str) -> Result<Vec<PathBuf>> {
        for _ in 0..ATTEMPTS {
            let before = self.superblocks()?;
            let mut copies = Vec::new();
            for (number, image) in self.images.iter().enumerate() {
                let copy = self.folder.path().join(format!("{name}-{number}"));
                let mut command = Command::new("cp");
                run(command.arg("--sparse=always").arg(image).arg(&copy))?;
                copies.push(copy);
            }
            if self.superblocks()? == before {
                return Ok(copies);
            }
        }
        bail!("superblocks changed during each of {ATTEMPTS} copies");
    }

    /// Copies the devices, and checks the copy.
    pub fn look(&self) -> Result<Report> {
        expect_no_false_alarm(&self.copy("copy")?)
    }
}

/// Checks a volume after a crash: it must have no finding if `btrfs check` reports nothing.
pub fn expect_no_false_alarm(images: &[PathBuf]) -> Result<Report> {
    let options = Options {
        data_checksums: true,
        ..Options::default()
    };
    let report = check(&open(images)?, &options, &Progress::new())?;
    if !report.is_clean() {
        let mut said = String::new();
        for judge in newest_judges() {
            let (verdict, words) = judge.look_at(images, &["--check-data-csum"])?;
            ensure!(
                verdict != Verdict::Silent,
                "btrfs check ({}) is silent:\n{}",
                judge.name,
                crate::text(&report)
            );
            said += &words;
        }
        println!(
            "btrfs check finds something as well:\n{}{said}",
            crate::text(&report)
        );
    }
    Ok(report)
}
