//! What the machine offers for comparisons with the kernel.
//!
//! A capability that is missing is named, so that a skipped test can say why. Two versions of btrfs-progs
//! may be there: the distribution's in `PATH`, and a newer one that `cargo xtask test` lays beside it and
//! points to with `BUTTRESS_PROGS` (a directory that holds `btrfs` and `mkfs.btrfs`).

use crate::needs::{Missing, REFERENCE_PROGS, any_missing, missing};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The version of btrfs-progs whose output is the reference for `dump-super` and `dump-tree`.
pub const REFERENCE_VERSION: &str = "6.14";

/// What comparisons with the kernel need: root, its btrfs, loop devices, and the programs that make and mount volumes.
const KERNEL_NEEDS: [&str; 7] = [
    "root",
    "kernel",
    "loop-devices",
    "mkfs.btrfs",
    "btrfs",
    "losetup",
    "mount",
];

/// Returns why comparisons with the kernel cannot run here, or `None` if they can.
pub fn kernel_missing() -> Option<Missing> {
    static MISSING: OnceLock<Option<Missing>> = OnceLock::new();
    MISSING.get_or_init(|| any_missing(&KERNEL_NEEDS)).clone()
}

/// Returns why btrfs-progs of this version or later cannot be used here for comparisons with the
/// kernel.
#[must_use]
pub fn progs_missing(least: (u32, u32)) -> Option<Missing> {
    let have = newest_version();
    kernel_missing().or_else(|| {
        let reason = format!(
            "needs btrfs-progs {}.{} or later, here is {}.{}",
            least.0, least.1, have.0, have.1
        );
        (have < least).then(|| Missing::new(REFERENCE_PROGS, reason))
    })
}

/// Why the kernel cannot be compared with here by the version of btrfs-progs that is the reference of what is printed.
#[must_use]
pub fn reference_missing() -> Option<Missing> {
    kernel_missing().or_else(|| missing(REFERENCE_PROGS))
}

/// Whether the newest btrfs-progs here is the reference.
pub(crate) fn newest_is_reference() -> bool {
    let (major, minor) = newest_version();
    format!("{major}.{minor}") == REFERENCE_VERSION
}

/// The newest btrfs-progs here: the directory in `BUTTRESS_PROGS`, else the distribution's.
#[must_use]
pub fn newest(program: &str) -> PathBuf {
    match std::env::var_os("BUTTRESS_PROGS") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join(program),
        _ => PathBuf::from(program),
    }
}

/// The version of the newest btrfs-progs here as (major, minor); `(0, 0)` where there is none.
#[must_use]
pub fn newest_version() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let Ok(output) = Command::new(newest("btrfs")).arg("--version").output() else {
            return (0, 0);
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some(version) = text.split_whitespace().find_map(|word| word.strip_prefix('v')) else {
            return (0, 0);
        };
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    })
}

/// Returns the path of the built `buttress` command, relative to the running test program.
pub fn buttress() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BUTTRESS") {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().context("the running program's own path")?;
    // Tests lie one folder below the command, benchmarks beside it.
    let found = program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("buttress"))
        .find(|path| path.is_file());
    found.context("the buttress command is not built; run `cargo build` first or set BUTTRESS to its path")
}

/// Copies a program that is to be run where it comes to lie. Another process (`cp`) copies the
/// program. In this process, a child that another thread is starting could inherit the writable
/// descriptor, and the copy could not be executed.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg(from).arg(to)).map(drop)
}

/// Runs a command, and fails with its whole output unless it exits with 0.
///
/// The command gets no cache of other commands: libblkid caches block devices for minutes, and a
/// loop device shows another image at every attach.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = command
        .env("BLKID_FILE", "/dev/null")
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}\nstdout: {}\nstderr: {}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}
