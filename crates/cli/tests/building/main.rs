//! Tests of images that `buttress mkfs` builds, compared with the kernel, btrfs-progs and other
//! callers of mkfs.btrfs: their content, their soundness, and their reproducible bytes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

#[path = "../support/mod.rs"]
mod support;

mod callers;
mod debian;
mod holes;
mod matrix;
mod sharing;
mod stopped;

use buttress_oracle::manifest::{self, Manifest};
use std::path::Path;
use std::process::{Command, Output};

/// Latest time in all volumes of these tests.
const EPOCH: i64 = 1_700_000_000;

/// Uuid of all volumes on one device in these tests.
const UUID: &str = "12345678-1234-1234-1234-123456789abc";

/// Uuid of volumes on several devices: the kernel does not mount such a volume beside another one
/// with the same uuid.
const UUID_OF_SEVERAL: &str = "12345678-1234-1234-1234-123456789abd";

/// Returns a quiet `buttress mkfs` command with all options for reproducible bytes.
fn mkfs() -> Command {
    mkfs_of(UUID)
}

fn mkfs_of(uuid: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command.args(["mkfs", "-q", "-U", uuid]);
    deterministic(&mut command);
    command
}

fn deterministic(command: &mut Command) {
    command
        .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
        .env("DETERMINISTIC_SEED", "1");
}

/// Runs a command that must exit with 0.
fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Returns moderately compressible bytes, different for each seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 59) as u8
    };
    (0..length).map(step).collect()
}

/// Returns the expected content of an image of a directory: everything except access and change
/// times, with no time later than the epoch.
fn wanted(tree: &Path) -> Manifest {
    let mut wanted = manifest::of_directory(tree).unwrap();
    for entry in wanted.values_mut() {
        entry.extra = None;
        entry.modified = entry.modified.min((EPOCH, 0));
    }
    wanted
}

/// Returns whether two files have the same bytes.
fn same_bytes(one: &Path, other: &Path) -> bool {
    Command::new("cmp")
        .arg("--silent")
        .args([one, other])
        .status()
        .unwrap()
        .success()
}
