//! Short runs of common programs on a mount: each verifies its own writes, and the volume is
//! checked afterwards. For longer runs, `cargo xtask suites programs` exists.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::field::PROGRAMS;
use buttress_oracle::needs::{any_missing, missing};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::newest;
use mounting::{Mounted, no_fuse, text};
use std::fs;
use std::process::Command;

const SECONDS: u64 = 2;
const MIB: u64 = 8;

fn passes(name: &str, options: &str) {
    let program = PROGRAMS.iter().find(|program| program.name == name).unwrap();
    if skips(no_fuse()) || skips(any_missing(program.needs)) || skips(missing("btrfs")) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount(options);
    let inside = mounted.path("inside");
    fs::create_dir(&inside).unwrap();
    let output = program.command(&inside, SECONDS, MIB).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    mounted.umount();
    mounted.expect_sound();
    let judged = Command::new(newest("btrfs"))
        .arg("check")
        .arg(&mounted.image)
        .output()
        .unwrap();
    assert!(judged.status.success(), "{}", text(&judged.stderr));
}

#[test]
fn fio_buffered() {
    passes("fio-buffered", "rw,compress=zstd");
}

#[test]
fn fio_direct() {
    passes("fio-direct", "rw");
}

#[test]
fn fio_mmap() {
    passes("fio-mmap", "rw,compress=zstd");
}

#[test]
fn stress_ng() {
    passes("stress-ng", "rw");
}

#[test]
fn dbench() {
    passes("dbench", "rw");
}

#[test]
fn fs_mark() {
    passes("fs_mark", "rw");
}

#[test]
fn postmark() {
    passes("postmark", "rw");
}

#[test]
fn sqlite() {
    passes("sqlite3", "rw");
}

#[test]
fn git() {
    passes("git", "rw,compress=zstd");
}

#[test]
fn unpacking() {
    passes("unpacking", "rw");
}

#[test]
fn packages() {
    passes("dpkg-deb", "rw,compress=zstd");
}
