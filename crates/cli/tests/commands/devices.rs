//! `device add|remove|delete` and `filesystem resize`: what they do, what they refuse, and what the
//! kernel reads afterwards.
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
use buttress_oracle::tools::kernel_missing;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use in_folder::{buttress, done, text};

const MIB: u64 = 1 << 20;

fn empty(folder: &Path, name: &str, mib: u64) {
    let file = File::create(folder.join(name)).unwrap();
    file.set_len(mib * MIB).unwrap();
}

fn length(folder: &Path, name: &str) -> u64 {
    fs::metadata(folder.join(name)).unwrap().len()
}

/// A volume with a file in it.
fn volume(folder: &Path, mib: u64) -> Vec<u8> {
    done(folder, &["mkfs", "-q", "-b", &format!("{mib}M"), "a.img"]);
    let content: Vec<u8> = (0..1_u32 << 20)
        .flat_map(|number| (number * 7).to_le_bytes())
        .collect();
    fs::write(folder.join("content"), &content).unwrap();
    done(folder, &["cp", "content", "a.img:/content"]);
    content
}

/// Asserts that Buttress's check, `btrfs check` and the kernel find the volume whole.
fn expect_whole(folder: &Path, images: &[&str], content: &[u8]) {
    let mut words = vec!["check", "--check-data-csum"];
    for image in &images[1..] {
        words.extend(["--device", image]);
    }
    words.push(images[0]);
    done(folder, &words);
    if skips(kernel_missing()) {
        return;
    }
    let paths: Vec<PathBuf> = images.iter().map(|image| folder.join(image)).collect();
    btrfs_check(&paths).unwrap();
    let mount = Mount::new(&paths, "noatime").unwrap();
    assert!(fs::read(mount.path().join("content")).unwrap() == content);
    fs::write(mount.path().join("by the kernel"), b"x").unwrap();
    mount.close().unwrap();
    btrfs_check(&paths).unwrap();
}

#[test]
fn device_joins_and_leaves_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let content = volume(folder, 300);
    empty(folder, "b.img", 200);
    empty(folder, "c.img", 64);
    let told = done(folder, &["device", "add", "b.img", "c.img", "a.img"]);
    assert_eq!(
        told,
        "b.img: added as device 2 (200.00MiB)\nc.img: added as device 3 (64.00MiB)\n"
    );
    expect_whole(folder, &["a.img", "b.img", "c.img"], &content);
    // From this point on, the volume needs all of its devices.
    let alone = buttress(folder, &["ls", "a.img:/"]);
    assert_eq!(alone.status.code(), Some(1), "{}", text(&alone.stderr));
    let removed = [
        "device", "remove", "b.img", "--device", "b.img", "--device", "c.img", "a.img",
    ];
    assert_eq!(done(folder, &removed), "device 2 (b.img): removed\n");
    assert!(
        !buttress(folder, &["inspect-internal", "dump-super", "b.img"])
            .status
            .success()
    );
    expect_whole(folder, &["a.img", "c.img"], &content);
    // A lost device, and the word for it on the command line.
    fs::remove_file(folder.join("c.img")).unwrap();
    let told = done(folder, &["device", "delete", "--degraded", "missing", "a.img"]);
    assert_eq!(told, "device 3 (missing): removed\n");
    expect_whole(folder, &["a.img"], &content);
    // After a removal, the last device's id is assigned again, as in Linux.
    empty(folder, "d.img", 64);
    let told = done(folder, &["device", "add", "--format", "json", "d.img", "a.img"]);
    let document: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(document["device-add"][0]["devid"], 2, "{told}");
    assert_eq!(document["device-add"][0]["size"], 64 * MIB, "{told}");
    let told = done(
        folder,
        &[
            "device", "remove", "--format", "json", "2", "--device", "d.img", "a.img",
        ],
    );
    let document: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(document["device-remove"][0]["devid"], 2, "{told}");
    expect_whole(folder, &["a.img"], &content);
}

#[test]
fn device_that_holds_something_is_added_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let content = volume(folder, 300);
    done(folder, &["mkfs", "-q", "-b", "200M", "other.img"]);
    let refused = buttress(folder, &["device", "add", "other.img", "a.img"]);
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(
        told.contains("seems to contain btrfs") && told.contains("to overwrite it, give -f"),
        "{told}"
    );
    done(folder, &["ls", "other.img:/"]);
    expect_whole(folder, &["a.img"], &content);
    // A trace between superblocks shows whether blocks were discarded.
    let file = File::options()
        .write(true)
        .open(folder.join("other.img"))
        .unwrap();
    file.write_all_at(&[0x5a; 4096], 150 * MIB).unwrap();
    let trace = || {
        let mut bytes = [0; 4096];
        let file = File::open(folder.join("other.img")).unwrap();
        file.read_exact_at(&mut bytes, 150 * MIB).unwrap();
        bytes[0]
    };
    done(folder, &["device", "add", "-f", "-K", "other.img", "a.img"]);
    assert_eq!(trace(), 0x5a);
    expect_whole(folder, &["a.img", "other.img"], &content);
    done(
        folder,
        &["device", "remove", "2", "--device", "other.img", "a.img"],
    );
    done(folder, &["device", "add", "other.img", "a.img"]);
    assert_eq!(trace(), 0);
    expect_whole(folder, &["a.img", "other.img"], &content);
}

#[test]
fn device_that_cannot_join_is_refused_before_any_change() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    volume(folder, 300);
    empty(folder, "good.img", 64);
    empty(folder, "small.img", 15);
    empty(folder, "none.img", 0);
    fs::hard_link(folder.join("a.img"), folder.join("linked.img")).unwrap();
    fs::copy(folder.join("a.img"), folder.join("copy.img")).unwrap();
    fs::create_dir(folder.join("directory")).unwrap();
    let before = fs::read(folder.join("a.img")).unwrap();
    for (words, wanted) in [
        (&["a.img"][..], "a device of the volume"),
        (&["linked.img"], "a device of the volume"),
        (&["-f", "copy.img"], "already is device 1 of this volume"),
        (&["good.img", "./good.img"], "given twice"),
        (&["good.img", "small.img"], "expected at least 16777216"),
        (&["none.img"], "expected at least 16777216"),
        (&["directory"], "is a directory"),
        (&["absent.img"], "absent.img"),
        (&["/dev/null"], "/dev/null"),
    ] {
        let line = [&["device", "add"], words, &["a.img"]].concat();
        let refused = buttress(folder, &line);
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{line:?}: {told}");
        assert!(told.contains(wanted), "{line:?}: {told}");
        assert!(
            fs::read(folder.join("a.img")).unwrap() == before,
            "{line:?} changed the volume"
        );
        let good = fs::read(folder.join("good.img")).unwrap();
        assert!(
            good.iter().all(|byte| *byte == 0),
            "{line:?} changed the new device"
        );
    }
    for words in [
        &["device", "add", "a.img"][..],
        &["device", "remove", "a.img"],
        &["device", "add"],
    ] {
        let refused = buttress(folder, words);
        assert_eq!(
            refused.status.code(),
            Some(2),
            "{words:?}: {}",
            text(&refused.stderr)
        );
    }
}

#[test]
fn device_that_is_needed_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(
        folder,
        &[
            "mkfs", "-q", "-d", "raid1", "-m", "raid1", "-b", "300M", "a.img", "b.img",
        ],
    );
    let before = fs::read(folder.join("a.img")).unwrap();
    for (word, wanted) in [
        (
            "2",
            "block groups of profile RAID1 need more devices (found 1 without it, expected at least 2)",
        ),
        ("b.img", "profile RAID1 need more devices"),
        ("5", "the volume has no device 5"),
        ("missing", "no device of the volume is missing"),
        ("cancel", "no removal of a device is in progress"),
        ("c.img", "the volume has no device c.img"),
    ] {
        let refused = buttress(folder, &["device", "remove", word, "--device", "b.img", "a.img"]);
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{word}: {told}");
        assert!(told.contains(wanted), "{word}: {told}");
    }
    let twice = buttress(
        folder,
        &["device", "remove", "2", "b.img", "--device", "b.img", "a.img"],
    );
    assert!(
        text(&twice.stderr).contains("given twice"),
        "{}",
        text(&twice.stderr)
    );
    assert!(fs::read(folder.join("a.img")).unwrap() == before);
    done(folder, &["mkfs", "-q", "-f", "-b", "300M", "a.img"]);
    let last = buttress(folder, &["device", "remove", "1", "a.img"]);
    assert!(
        text(&last.stderr).contains("the only writable device"),
        "{}",
        text(&last.stderr)
    );
}

#[test]
fn image_grows_and_is_cut_with_its_volume() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let content = volume(folder, 300);
    let told = done(folder, &["filesystem", "resize", "500M", "a.img"]);
    assert_eq!(told, "Resize device id 1 (a.img) from 300.00MiB to 500.00MiB\n");
    assert_eq!(length(folder, "a.img"), 500 * MIB);
    expect_whole(folder, &["a.img"], &content);
    done(folder, &["filesystem", "resize", "1:-150m", "a.img"]);
    assert_eq!(length(folder, "a.img"), 350 * MIB);
    expect_whole(folder, &["a.img"], &content);
    // The image file may be longer than its volume; this length is the file's.
    let file = File::options().write(true).open(folder.join("a.img")).unwrap();
    file.set_len(400 * MIB + 1000).unwrap();
    let told = done(
        folder,
        &["filesystem", "resize", "--format", "json", "max", "a.img"],
    );
    let document: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(document["filesystem-resize"]["old_size"], 350 * MIB, "{told}");
    assert_eq!(document["filesystem-resize"]["new_size"], 400 * MIB, "{told}");
    expect_whole(folder, &["a.img"], &content);
    done(folder, &["filesystem", "resize", "+4096", "a.img"]);
    assert_eq!(length(folder, "a.img"), 400 * MIB + 4096);
    expect_whole(folder, &["a.img"], &content);
}

#[test]
fn resize_that_cannot_be_done_is_refused_before_any_change() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    volume(folder, 300);
    let before = fs::read(folder.join("a.img")).unwrap();
    for (word, wanted, code) in [
        ("1M", "too small for a device of a volume", 1),
        ("0", "too small for a device of a volume", 1),
        ("-1G", "the new size is negative", 1),
        ("+18446744073709551615", "expected at most 16 EiB", 1),
        ("16777215T", "File too large", 1),
        ("9:max", "the volume has no device 9", 1),
        ("cancel", "no resize is in progress", 1),
        ("lots", "is not a size", 2),
        ("x:1G", "is not a device id", 2),
        ("17E", "is more than 16 EiB", 2),
    ] {
        let refused = buttress(folder, &["filesystem", "resize", word, "a.img"]);
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{word}: {told}");
        assert!(told.contains(wanted), "{word}: {told}");
        assert!(
            fs::read(folder.join("a.img")).unwrap() == before,
            "{word} changed the volume"
        );
    }
}

#[test]
fn content_moves_from_a_device_that_goes_and_from_an_end_that_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(
        folder,
        &[
            "mkfs", "-q", "-d", "single", "-m", "single", "-b", "300M", "a.img", "b.img",
        ],
    );
    let content: Vec<u8> = (0..1_u32 << 21)
        .flat_map(|number| (number * 5).to_le_bytes())
        .collect();
    fs::write(folder.join("content"), &content).unwrap();
    done(folder, &["cp", "--device", "b.img", "content", "a.img:/content"]);
    let told = done(
        folder,
        &["device", "remove", "a.img", "--device", "b.img", "a.img"],
    );
    assert_eq!(told, "device 1 (a.img): removed\n");
    assert!(!buttress(folder, &["ls", "a.img:/"]).status.success());
    expect_whole(folder, &["b.img"], &content);
    let before = fs::read(folder.join("b.img")).unwrap();
    let refused = buttress(folder, &["filesystem", "resize", "10M", "b.img"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(
        fs::read(folder.join("b.img")).unwrap() == before,
        "{}",
        text(&refused.stderr)
    );
    done(folder, &["filesystem", "resize", "160M", "b.img"]);
    assert_eq!(length(folder, "b.img"), 160 * MIB);
    expect_whole(folder, &["b.img"], &content);
}
