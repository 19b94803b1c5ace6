//! `filesystem shrink` and `inspect-internal min-dev-size`: the size that they state, and what
//! Linux does with the result.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support::in_folder;

use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{self, kernel_missing};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use in_folder::{buttress, done, text};

const MIB: u64 = 1 << 20;

fn length(folder: &Path, name: &str) -> u64 {
    fs::metadata(folder.join(name)).unwrap().len()
}

/// Bytes that no compression makes shorter.
fn noise(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24).to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// A volume with holes in its block groups: files of many sizes, of which every third is removed.
fn aged(folder: &Path, mkfs: &[&str]) {
    let tree = folder.join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..90_u32 {
        let bytes = (number as usize % 17 + 1) * 23_000;
        fs::write(tree.join(format!("file {number}")), noise(number, bytes)).unwrap();
    }
    fs::write(tree.join("large"), noise(99, 20 << 20)).unwrap();
    let mut words = vec!["mkfs", "-q", "-b", "200M", "--rootdir", "tree"];
    words.extend_from_slice(mkfs);
    words.push("a.img");
    done(folder, &words);
    let mut script: Vec<String> = vec![
        "snapshot / snapshot".to_owned(),
        "reflink /large 0 0 8M /clone".to_owned(),
        "falloc 0 3M /prealloc".to_owned(),
    ];
    for number in (0..90).step_by(3) {
        fs::remove_file(tree.join(format!("file {number}"))).unwrap();
        script.push(format!("rm \"/file {number}\""));
    }
    script.push("pwrite -S 0xcd 4096 64K /large".to_owned());
    let mut words = vec!["shell", "-w"];
    for line in &script {
        words.extend(["-c", line]);
    }
    words.push("a.img");
    done(folder, &words);
}

/// Asserts that the kernel reads, writes, snapshots and cleans the volume after it has grown.
fn expect_usable(images: &[PathBuf], grow: bool) {
    if skips(kernel_missing()) {
        return;
    }
    btrfs_check(images).unwrap();
    let mount = Mount::new(images, "noatime").unwrap();
    let path = mount.path();
    assert_eq!(fs::read(path.join("clone")).unwrap()[..4096], noise(99, 4096));
    fs::remove_file(path.join("file 1")).unwrap();
    if grow {
        fs::create_dir(path.join("new")).unwrap();
        for number in 0..50 {
            fs::write(path.join(format!("new/{number}")), noise(number, 9000)).unwrap();
        }
        let copy = path.join("copy");
        let word = |word: &str| {
            let mut command = Command::new("btrfs");
            command.args(["subvolume", word]);
            command
        };
        tools::run(word("snapshot").arg(path).arg(&copy)).unwrap();
        tools::run(word("delete").arg("-c").arg(&copy)).unwrap();
        tools::run(word("sync").arg(path)).unwrap();
        fs::remove_dir_all(path.join("new")).unwrap();
    }
    mount.close().unwrap();
    btrfs_check(images).unwrap();
}

fn content(folder: &Path) -> String {
    let sums = done(folder, &["tar", "-f", "out.tar", "a.img:/"]);
    let digest = fs::read(folder.join("out.tar")).unwrap();
    fs::remove_file(folder.join("out.tar")).unwrap();
    let space = done(folder, &["filesystem", "du", "--raw", "-s", "a.img:/"]);
    let extents = done(folder, &["fiemap", "a.img:/large"]);
    // Physical places differ; lengths, order and flags stay.
    let shape: Vec<usize> = extents
        .lines()
        .map(|line| line.split_whitespace().count())
        .collect();
    format!("{sums}{space}{shape:?}{}", buttress_hash(&digest))
}

fn buttress_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(14_695_981_039_346_656_037, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211)
    })
}

#[test]
fn shrink_reaches_the_size_of_its_dry_run_and_of_mkfs() {
    for mkfs in [
        &["-m", "single"][..],
        &["-m", "dup"],
        &["-d", "dup", "-m", "dup"],
        &["--mixed"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        aged(folder, mkfs);
        let before = content(folder);
        let bytes = fs::read(folder.join("a.img")).unwrap();
        let words = ["filesystem", "shrink", "--format", "json", "--dry-run", "a.img"];
        let document: Value = serde_json::from_str(&done(folder, &words)).unwrap();
        let planned = document["filesystem-shrink"]["devices"][0]["new_size"]
            .as_u64()
            .unwrap();
        assert!(
            fs::read(folder.join("a.img")).unwrap() == bytes,
            "a dry run changed the image"
        );
        let told = done(folder, &["filesystem", "shrink", "a.img"]);
        assert!(
            told.starts_with("Shrink device id 1 (a.img) from 200.00MiB to "),
            "{told}"
        );
        assert_eq!(length(folder, "a.img"), planned, "{mkfs:?}");
        done(folder, &["check", "--check-data-csum", "a.img"]);
        assert_eq!(content(folder), before, "{mkfs:?}");
        let told = done(folder, &["filesystem", "shrink", "a.img"]);
        assert!(told.contains("already as small as possible"), "{told}");
        assert_eq!(length(folder, "a.img"), planned);
        // The snapshot keeps the removed files and the overwritten part of the large one.
        let mut words = vec!["mkfs", "-q", "--rootdir", "tree", "--shrink"];
        words.extend_from_slice(mkfs);
        words.push("b.img");
        done(folder, &words);
        let copies = if mkfs.contains(&"-d") { 2 } else { 1 };
        let removed: u64 = (0..90_u64)
            .step_by(3)
            .map(|number| (number % 17 + 1) * 24_576)
            .sum();
        let mut unshared = (removed + 3 * MIB + 64 * 1024) * copies;
        if mkfs.contains(&"--mixed") {
            // The longest extent.
            unshared += 20 * MIB;
        }
        let of_mkfs = length(folder, "b.img") + unshared;
        assert!(
            planned <= of_mkfs + of_mkfs / 20,
            "{mkfs:?}: {planned}, mkfs makes {of_mkfs}"
        );
        expect_usable(&[folder.join("a.img")], false);
    }
}

#[test]
fn slack_is_free_space_that_linux_uses() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    aged(folder, &["-m", "dup"]);
    let least = done(folder, &["inspect-internal", "min-dev-size", "a.img"]);
    let least: u64 = least.split(' ').next().unwrap().parse().unwrap();
    done(folder, &["filesystem", "shrink", "--slack", "150M", "a.img"]);
    assert_eq!(length(folder, "a.img"), least + 150 * MIB);
    expect_usable(&[folder.join("a.img")], true);
}

#[test]
fn resize_reaches_min_dev_size_and_nothing_below() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    aged(folder, &["-m", "single"]);
    let told = done(folder, &["inspect-internal", "min-dev-size", "a.img"]);
    let least: u64 = told.split(' ').next().unwrap().parse().unwrap();
    let before = fs::read(folder.join("a.img")).unwrap();
    let refused = buttress(
        folder,
        &["filesystem", "resize", &(least - 4096).to_string(), "a.img"],
    );
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    let wanted = format!("expected at least {least}");
    assert!(
        text(&refused.stderr).contains(&wanted),
        "{}",
        text(&refused.stderr)
    );
    assert!(fs::read(folder.join("a.img")).unwrap() == before);
    done(folder, &["filesystem", "resize", &least.to_string(), "a.img"]);
    assert_eq!(length(folder, "a.img"), least);
    done(folder, &["check", "--check-data-csum", "a.img"]);
    let again = done(folder, &["inspect-internal", "min-dev-size", "a.img"]);
    assert_eq!(again, told);
}

#[test]
fn full_volume_of_two_devices_shrinks_each() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let words = [
        "mkfs", "-q", "-d", "raid1", "-m", "raid1", "-b", "300M", "a.img", "b.img",
    ];
    done(folder, &words);
    fs::write(folder.join("content"), noise(7, 150 << 20)).unwrap();
    done(folder, &["cp", "--device", "b.img", "content", "a.img:/kept"]);
    fs::write(folder.join("content"), noise(8, 60 << 20)).unwrap();
    done(folder, &["cp", "--device", "b.img", "content", "a.img:/removed"]);
    done(
        folder,
        &["shell", "-w", "--device", "b.img", "-c", "rm /removed", "a.img"],
    );
    done(folder, &["filesystem", "shrink", "--device", "b.img", "a.img"]);
    for name in ["a.img", "b.img"] {
        assert!(
            length(folder, name) < 172 * MIB,
            "{name}: {}",
            length(folder, name)
        );
    }
    done(
        folder,
        &["check", "--check-data-csum", "--device", "b.img", "a.img"],
    );
    let kept = buttress(folder, &["cat", "--device", "b.img", "a.img:/kept"]).stdout;
    assert!(kept == noise(7, 150 << 20));
    if !skips(kernel_missing()) {
        btrfs_check(&[folder.join("a.img"), folder.join("b.img")]).unwrap();
    }
}

#[test]
fn device_without_content_stays_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let words = [
        "mkfs", "-q", "-d", "raid1", "-m", "raid1", "-b", "300M", "a.img", "b.img", "c.img",
    ];
    done(folder, &words);
    let images = ["--device", "b.img", "--device", "c.img", "a.img"];
    done(folder, &[&["filesystem", "shrink"][..], &images].concat());
    for name in ["a.img", "b.img", "c.img"] {
        assert_eq!(length(folder, name), 16 * MIB, "{name}");
    }
    done(folder, &[&["check"][..], &images].concat());
}

#[test]
fn longer_image_file_is_cut_to_its_volume() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "300M", "a.img"]);
    done(folder, &["filesystem", "shrink", "a.img"]);
    let least = length(folder, "a.img");
    assert!(least < 12 * MIB, "{least}");
    let file = File::options().write(true).open(folder.join("a.img")).unwrap();
    file.set_len(100 * MIB).unwrap();
    done(folder, &["filesystem", "shrink", "a.img"]);
    assert_eq!(length(folder, "a.img"), least);
    done(folder, &["check", "a.img"]);
}
