//! Programs on copies of a damaged volume: ours, and two versions of btrfs-progs.
//!
//! Each program gets a fresh copy, answers on standard input, and a time limit. A program that
//! crashes or exceeds its limit brings nothing back. Repaired volumes are read through Linux.

use crate::base::{Base, read_all};
use crate::judging::{Share, share, whole_files, wrong_files, wrong_of_verified};
use crate::stress;
use anyhow::{Context, Result, ensure};
use buttress_hostile::editor::Editor;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{buttress, newest, run};
use buttress_oracle::volumes::scratch;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time after which a program is killed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between queries whether a program has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// The number of answers on standard input.
const ANSWERS: usize = 10_000;

/// The end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Code(i32),
    /// A signal ended the program, or the time limit.
    Dead,
}

/// Runs a program with consent to everything.
pub fn limited(command: &mut Command) -> Result<End> {
    let mut answers = tempfile::NamedTempFile::new()?;
    std::io::Write::write_all(&mut answers, "y\n".repeat(ANSWERS).as_bytes())?;
    let mut child = command
        .stdin(File::open(answers.path())?)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code().map_or(End::Dead, End::Code));
        }
        if begin.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(End::Dead);
        }
        std::thread::sleep(PAUSE);
    }
}

/// A set of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours,
    /// The btrfs-progs of the distribution.
    Distribution,
    /// The newest btrfs-progs.
    Newest,
}

impl Side {
    pub const ALL: [Self; 3] = [Self::Ours, Self::Distribution, Self::Newest];

    fn btrfs(self) -> Result<PathBuf> {
        Ok(match self {
            Self::Ours => buttress()?,
            Self::Distribution => PathBuf::from("btrfs"),
            Self::Newest => newest("btrfs"),
        })
    }
}

/// A damaged volume, from which each program gets a copy.
pub struct Damaged<'a> {
    pub base: &'a Base,
    pub editor: &'a Editor,
    /// Whether an index of the former file system is needed, because another mkfs ran.
    pub is_formatted: bool,
}

impl Damaged<'_> {
    fn copy(&self, folder: &Path) -> Result<PathBuf> {
        let images = self.editor.write_images(folder)?;
        images.into_iter().next().context("an image")
    }

    /// Restores files with the command `restore`. Returns the share, and the number of files with
    /// content that no commit held. Of ours, only files count that are called verified.
    pub fn restore(&self, side: Side) -> Result<(Share, u64)> {
        let folder = scratch()?;
        let image = self.copy(folder.path())?;
        let out = folder.path().join("out");
        std::fs::create_dir(&out)?;
        let report = folder.path().join("report");
        let mut command = Command::new(side.btrfs()?);
        if side == Side::Ours {
            command.args(["-q", "restore", "-s", "-S", "-x", "-m", "--report"]);
            command.arg(&report);
            if self.is_formatted {
                command.arg("--index").arg(self.index(folder.path(), &image)?);
            }
        } else {
            command.args(["restore", "-s", "-S", "-x", "-m", "-i"]);
        }
        let end = limited(command.arg(&image).arg(&out))?;
        if side == Side::Ours {
            ensure!(matches!(end, End::Code(0..=2)), "restore ended with {end:?}");
        }
        if end == End::Dead {
            return Ok(Default::default());
        }
        let found = read_all(&out);
        let wrong = match side {
            Side::Ours => wrong_of_verified(self.base, &found, &report)?,
            Side::Distribution | Side::Newest => wrong_files(self.base, &found),
        };
        Ok((share(self.base, &found), wrong))
    }

    /// Scans for the former file system.
    fn index(&self, folder: &Path, image: &Path) -> Result<PathBuf> {
        let index = folder.join("index");
        let superblock = self.base.aims.volume.devices[0].read(64 << 10, 4096);
        let fsid = uuid::Uuid::from_slice(&superblock[32..48])?.to_string();
        let mut command = Command::new(buttress()?);
        command.args(["-q", "rescue", "scan", "--fsid", &fsid, "--index"]);
        limited(command.arg(&index).arg(image))?;
        Ok(index)
    }

    /// Repairs the volume with `check --repair`. Ours must keep all files that were whole.
    pub fn repair(&self, side: Side, before: &BTreeSet<PathBuf>, seed: u64) -> Result<(Share, bool)> {
        let folder = scratch()?;
        let image = self.copy(folder.path())?;
        let mut command = Command::new(side.btrfs()?);
        match side {
            Side::Ours => command.args(["-q", "check", "--repair", "--commit", "--yes-to", "all"]),
            Side::Distribution | Side::Newest => command.args(["check", "--repair", "--force"]),
        };
        let end = limited(command.arg(&image))?;
        if side != Side::Ours {
            return Ok((read_mounted(self.base, &image, end).0, false));
        }
        ensure!(
            matches!(end, End::Code(0..=2)),
            "check --repair ended with {end:?}"
        );
        let (share, whole) = read_mounted(self.base, &image, end);
        let lost: Vec<_> = before.difference(&whole).collect();
        ensure!(lost.is_empty(), "the repair lost {lost:?}");
        let mut check = Command::new(buttress()?);
        let is_clean = limited(check.args(["-q", "check"]).arg(&image))? == End::Code(0);
        if is_clean {
            stress::work(&image, seed).context("work on the repaired volume")?;
        }
        Ok((share, is_clean))
    }

    /// Repairs the volume with the commands of `rescue`.
    pub fn rescue(&self, side: Side) -> Result<Share> {
        let folder = scratch()?;
        let image = self.copy(folder.path())?;
        let mut last = End::Code(0);
        for words in [
            ["rescue", "super-recover", "-y"],
            ["rescue", "chunk-recover", "-y"],
        ] {
            last = limited(Command::new(side.btrfs()?).args(words).arg(&image))?;
        }
        Ok(read_mounted(self.base, &image, last).0)
    }

    /// Returns the share and the files that Linux reads from the damaged volume.
    pub fn unrepaired(&self) -> Result<(Share, BTreeSet<PathBuf>)> {
        let folder = scratch()?;
        let image = self.copy(folder.path())?;
        Ok(read_mounted(self.base, &image, End::Code(0)))
    }
}

/// Mounts run one at a time, because all copies of a volume have the same uuid.
static MOUNTS: Mutex<()> = Mutex::new(());

/// Mounts a volume through Linux, and calls `work` with the mount point.
pub fn mounted<T>(image: &Path, options: &str, work: impl FnOnce(&Path) -> T) -> Result<T> {
    let _lock = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let mount = Mount::new(&[image.to_path_buf()], options)?;
    let done = work(mount.path());
    mount.close()?;
    Ok(done)
}

/// Reads a volume through Linux.
fn read_mounted(base: &Base, image: &Path, end: End) -> (Share, BTreeSet<PathBuf>) {
    if end == End::Dead {
        return Default::default();
    }
    let found = mounted(image, "ro,subvolid=5", read_all).unwrap_or_default();
    (share(base, &found), whole_files(base, &found))
}

/// Requires that a volume is clean for `btrfs check`, and for ours.
pub fn expect_clean(image: &Path) -> Result<()> {
    run(Command::new(newest("btrfs")).arg("check").arg(image))?;
    run(Command::new(buttress()?).args(["-q", "check"]).arg(image)).map(drop)
}
