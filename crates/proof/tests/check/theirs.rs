//! `btrfs check` as a judge: its verdict on a volume, by version and mode.

use anyhow::{Context, Result};
use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::tools::newest;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The verdict of one run of `btrfs check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The run of `btrfs check` reported no error.
    Silent,
    /// The run of `btrfs check` reported an error, or could not check.
    Error,
    /// A signal ended the run.
    Crash,
}

impl Verdict {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Silent => "–",
            Self::Error => "error",
            Self::Crash => "crash",
        }
    }
}

/// A version of btrfs-progs in one mode.
#[derive(Clone, Debug)]
pub struct Judge {
    pub name: String,
    program: PathBuf,
    mode: &'static str,
}

const MODES: [&str; 2] = ["original", "lowmem"];

/// Returns the version that a program reports, as `6.14`.
fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    Some(version.to_owned())
}

/// Returns the distribution's btrfs-progs and a newer one, each in both modes, or why one of them
/// is missing.
pub fn judges(wanted: [&str; 2]) -> Result<Vec<Judge>, String> {
    let mut judges = Vec::new();
    for (program, wanted) in [PathBuf::from("btrfs"), newest("btrfs")].into_iter().zip(wanted) {
        let found = version(&program).unwrap_or_else(|| "none".to_owned());
        if found != wanted {
            return Err(format!(
                "needs btrfs-progs {wanted}, {} is {found}",
                program.display()
            ));
        }
        judges.extend(MODES.map(|mode| Judge {
            name: format!("{wanted} {mode}"),
            program: program.clone(),
            mode,
        }));
    }
    Ok(judges)
}

/// Returns judges for the newest btrfs-progs, in both modes.
pub fn newest_judges() -> Vec<Judge> {
    let judge = |mode| Judge {
        name: format!("newest {mode}"),
        program: newest("btrfs"),
        mode,
    };
    MODES.map(judge).into()
}

impl Judge {
    /// Runs the judge on the volume on these images.
    pub fn look_at(&self, images: &[PathBuf], options: &[&str]) -> Result<(Verdict, String)> {
        // For one image, the check needs no block device; for several images, it finds the other
        // devices among the block devices.
        let devices = match images {
            [_] => Vec::new(),
            _ => images
                .iter()
                .map(|image| LoopDevice::attach(image))
                .collect::<Result<Vec<_>>>()?,
        };
        let first = match devices.first() {
            Some(device) => device.path(),
            None => images.first().context("a volume has a device")?,
        };
        let output = Command::new(&self.program)
            .env("BLKID_FILE", "/dev/null")
            .arg("check")
            .arg(format!("--mode={}", self.mode))
            .args(options)
            .arg(first)
            .output()?;
        Ok((verdict(&output), words(&output)))
    }
}

fn verdict(output: &Output) -> Verdict {
    match output.status.code() {
        Some(0) => Verdict::Silent,
        Some(_) => Verdict::Error,
        None => Verdict::Crash,
    }
}

fn words(output: &Output) -> String {
    let [printed, complained] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    printed + &complained
}
