//! What the machine offers for comparisons with the kernel.
//!
//! A capability that is missing is named, so that a skipped test can say why. Two versions of btrfs-progs
//! may be there: the distribution's in `PATH`, and a newer one that `cargo xtask test` lays beside it and
//! points to with `BUTTRESS_PROGS` (a directory that holds `btrfs` and `mkfs.btrfs`).

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The version of btrfs-progs whose output is the reference for `dump-super` and `dump-tree`.
pub const REFERENCE_VERSION: &str = "6.14";

/// Why the kernel cannot be compared with here, or `None` where it can.
pub fn kernel_missing() -> Option<String> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    MISSING
        .get_or_init(|| {
            if !rustix::process::geteuid().is_root() {
                return Some("needs root, to mount volumes".to_owned());
            }
            let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
            if !filesystems.split_whitespace().any(|word| word == "btrfs") {
                return Some("this kernel has no btrfs".to_owned());
            }
            if !std::path::Path::new("/dev/loop-control").exists() {
                return Some("no loop devices here".to_owned());
            }
            for program in ["mkfs.btrfs", "btrfs", "losetup", "mount"] {
                if !in_path(program) {
                    return Some(format!("{program} is not installed"));
                }
            }
            None
        })
        .clone()
}

fn in_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
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

/// The built `buttress` command, by the place of the running program.
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

/// Runs a command, and fails with its whole output unless it exits with 0.
///
/// What other commands learnt of block devices is hidden from it: libblkid believes its notes for minutes, and a loop
/// device shows another image at every attaching.
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
