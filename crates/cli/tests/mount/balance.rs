//! `balance` of a mounted volume, which its server runs beside readers and writers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::skip::skips;
use mounting::{Mounted, buttress, no_fuse, sound, text};
use serde_json::Value;
use std::fs;

fn content(number: usize) -> Vec<u8> {
    let words = (0..1_usize << 19).map(|at| (at.wrapping_mul(2_654_435_761) + number).to_le_bytes());
    words.flatten().collect()
}

const FILES: usize = 10;

/// A volume with single data in some block groups, mounted for changes.
fn mounted() -> Mounted {
    let mounted = Mounted::new();
    sound(&[
        "mkfs",
        "-q",
        "-f",
        "-d",
        "single",
        "-m",
        "dup",
        "-b",
        "256M",
        mounted.image(),
    ]);
    mounted.mount("rw");
    for number in 0..FILES {
        fs::write(mounted.path(&format!("f{number}")), content(number)).unwrap();
    }
    sound(&["filesystem", "sync", mounted.directory()]);
    mounted
}

fn document(words: &[&str], name: &str) -> Value {
    let output = buttress(&[words, &["--format", "json"]].concat());
    let whole: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    whole[name].clone()
}

fn state(directory: &str) -> String {
    let status = document(&["balance", "status", directory], "balance-status");
    status["state"].as_str().unwrap().to_owned()
}

fn data_profiles(directory: &str) -> Vec<String> {
    let plan = document(
        &["balance", "start", "--dry-run", "-d", directory],
        "balance-start",
    );
    let groups = plan["block_groups"].as_array().unwrap().iter();
    let mut profiles: Vec<String> = groups
        .map(|group| group["profile"].as_str().unwrap().to_owned())
        .collect();
    profiles.sort();
    profiles.dedup();
    profiles
}

#[test]
fn mounted_volume_is_converted_beside_writers() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted();
    let directory = mounted.directory();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..200_usize {
                fs::write(
                    mounted.path(&format!("new-{}", number % 8)),
                    vec![number as u8; 9000],
                )
                .unwrap();
            }
        });
        let told = text(&sound(&["balance", "start", "-dconvert=dup", directory]).stdout);
        assert!(told.starts_with("Done, had to relocate "), "{told}");
        writer.join().unwrap();
    });
    assert_eq!(data_profiles(directory), ["DUP"]);
    assert_eq!(state(directory), "none");
    for number in 0..FILES {
        assert!(fs::read(mounted.path(&format!("f{number}"))).unwrap() == content(number));
    }
    mounted.umount();
    sound(&["check", "--check-data-csum", mounted.image()]);
}

#[test]
fn mounted_volume_is_cut_and_grows_beside_its_files() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted();
    let directory = mounted.directory();
    // The chunks past the new end move into the gap that this file leaves.
    fs::write(mounted.path("gap"), vec![7; 60 << 20]).unwrap();
    sound(&["filesystem", "sync", directory]);
    fs::write(mounted.path("last"), content(99)).unwrap();
    fs::remove_file(mounted.path("gap")).unwrap();
    sound(&["filesystem", "sync", directory]);
    for size in ["180M", "300M"] {
        sound(&["filesystem", "resize", size, directory]);
    }
    assert_eq!(fs::metadata(mounted.image()).unwrap().len(), 300 << 20);
    for number in 0..FILES {
        assert!(fs::read(mounted.path(&format!("f{number}"))).unwrap() == content(number));
    }
    assert!(fs::read(mounted.path("last")).unwrap() == content(99));
    mounted.umount();
    sound(&["check", "--check-data-csum", mounted.image()]);
}

#[test]
fn balance_in_the_server_is_paused_by_the_end_of_the_mount() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted();
    let directory = mounted.directory();
    sound(&[
        "balance",
        "start",
        "--background",
        "--limit",
        "2M",
        "-dconvert=dup",
        directory,
    ]);
    assert_eq!(state(directory), "running");
    let second = buttress(&["balance", "start", "-dusage=1", directory]);
    assert!(
        text(&second.stderr).contains("already running"),
        "{}",
        text(&second.stderr)
    );
    sound(&["balance", "pause", directory]);
    assert_eq!(state(directory), "paused");
    let again = buttress(&["balance", "pause", directory]);
    assert_eq!(again.status.code(), Some(2));
    mounted.umount();
    assert_eq!(state(mounted.image()), "paused");
    mounted.mount("rw");
    sound(&["balance", "resume", directory]);
    assert_eq!(
        (state(directory).as_str(), data_profiles(directory)),
        ("none", vec!["DUP".to_owned()])
    );
    sound(&[
        "balance",
        "start",
        "--background",
        "--limit",
        "2M",
        "-dconvert=single",
        directory,
    ]);
    mounted.umount();
    assert_eq!(state(mounted.image()), "paused");
    sound(&["balance", "cancel", mounted.image()]);
    assert_eq!(state(mounted.image()), "none");
    sound(&["check", "--check-data-csum", mounted.image()]);
}
