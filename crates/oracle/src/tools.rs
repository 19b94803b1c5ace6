//! The machine's means for comparisons with the kernel.
//!
//! A missing capability has a name, so that a skipped test can give the reason. Two versions of
//! btrfs-progs may exist: the distribution's in `PATH`, and a newer one that `cargo xtask test`
//! unpacks. `BUTTRESS_PROGS` names the directory of the newer `btrfs` and `mkfs.btrfs`.

use crate::needs::{Missing, REFERENCE_PROGS, any_missing, missing};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The reference version of btrfs-progs for the output of `dump-super` and `dump-tree`.
pub const REFERENCE_VERSION: &str = "6.14";

/// The needs of comparisons with the kernel: root, its btrfs, loop devices, and the programs that
/// make and mount volumes.
const KERNEL_NEEDS: [&str; 7] = [
    "root",
    "kernel",
    "loop-devices",
    "mkfs.btrfs",
    "btrfs",
    "losetup",
    "mount",
];

/// Returns the need that prevents a comparison with the kernel, if any.
pub fn kernel_missing() -> Option<Missing> {
    static MISSING: OnceLock<Option<Missing>> = OnceLock::new();
    MISSING.get_or_init(|| any_missing(&KERNEL_NEEDS)).clone()
}

/// Returns the need that prevents a comparison by btrfs-progs of at least this version, if any.
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

/// Returns the need that prevents a comparison with the reference version of btrfs-progs, if any.
#[must_use]
pub fn reference_missing() -> Option<Missing> {
    kernel_missing().or_else(|| missing(REFERENCE_PROGS))
}

/// Returns whether the newest btrfs-progs here is the reference version.
pub(crate) fn newest_is_reference() -> bool {
    let (major, minor) = newest_version();
    format!("{major}.{minor}") == REFERENCE_VERSION
}

/// Returns the folder of the newest btrfs-progs: `BUTTRESS_PROGS`, otherwise the distribution's.
#[must_use]
pub fn newest(program: &str) -> PathBuf {
    match std::env::var_os("BUTTRESS_PROGS") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join(program),
        _ => PathBuf::from(program),
    }
}

/// Returns the version of the newest btrfs-progs as (major, minor), or `(0, 0)` without
/// btrfs-progs.
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

/// Returns the built `buttress` command, found from the running program's folder.
pub fn buttress() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BUTTRESS") {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().context("the running program's own path")?;
    // Test programs are one folder below the command, benchmarks beside it.
    let found = program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("buttress"))
        .find(|path| path.is_file());
    found.context("the buttress command is not built; run `cargo build` first or set BUTTRESS to its path")
}

/// Copies a program that will run from the new place. Another process makes the copy of the
/// program. A file that this process wrote may still be open for writing in a child that another
/// thread is starting, and the system refuses to run such a file.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg(from).arg(to)).map(drop)
}

/// Runs a command. Unless it exits with 0, returns an error with its whole output.
///
/// The command does not see libblkid's notes of earlier commands. libblkid trusts its notes for
/// minutes, but a loop device has another image after each attachment.
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
