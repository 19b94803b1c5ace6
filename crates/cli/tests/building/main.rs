//! Images that `buttress mkfs` builds, beside the kernel, btrfs-progs and who else calls mkfs.btrfs: what is in them, that they
//! are sound, and that they are the same bytes each time.
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

/// The latest time of all volumes here.
const EPOCH: i64 = 1_700_000_000;

/// The uuid of all volumes on one device here.
const UUID: &str = "12345678-1234-1234-1234-123456789abc";

/// That of volumes on several: the kernel mounts no such volume beside another one of the same uuid.
const UUID_OF_SEVERAL: &str = "12345678-1234-1234-1234-123456789abd";

/// `buttress mkfs`, quiet, with all that makes the same bytes each time.
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

/// Runs a command that must end with 0.
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

/// Bytes that compress somewhat, other ones for each seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 59) as u8
    };
    (0..length).map(step).collect()
}

/// What an image of a directory is to hold: all but times of reading and of change, and no time later than the epoch.
fn wanted(tree: &Path) -> Manifest {
    let mut wanted = manifest::of_directory(tree).unwrap();
    for entry in wanted.values_mut() {
        entry.extra = None;
        entry.modified = entry.modified.min((EPOCH, 0));
    }
    wanted
}

/// Whether two files hold the same bytes.
fn same_bytes(one: &Path, other: &Path) -> bool {
    Command::new("cmp")
        .arg("--silent")
        .args([one, other])
        .status()
        .unwrap()
        .success()
}
