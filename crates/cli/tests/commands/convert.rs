//! `convert`: ext4 to btrfs and back, interrupted conversions, and refusals.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

use crate::support::{in_folder, pty};

use buttress::convert::{Options, Without, prepare};
use buttress::mkfs::{Identity, Options as MakeOptions};
use buttress::{Device, DeviceEngine, DeviceOptions, Progress, Timestamp, Uuid};
use buttress_lab::{Fault, FaultyBackend};
use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, run};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use in_folder::{buttress, done, text};
use pty::Terminal;

/// Makes an ext4 image of a folder with two files.
fn make(folder: &Path, name: &str, mib: u64, words: &[&str]) {
    let from = folder.join("from");
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("small"), b"small\n").unwrap();
    fs::write(from.join("large"), vec![7; 1 << 20]).unwrap();
    let image = folder.join(name);
    File::create(&image).unwrap().set_len(mib << 20).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&from);
    run(mke2fs.args(words).arg(&image)).unwrap();
}

/// Requires that a command fails with this exit code and text.
fn refused(folder: &Path, words: &[&str], code: i32, told: &str) {
    let output = buttress(folder, words);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {message}");
    assert!(message.contains(told), "{words:?}: {message}");
}

fn check_old(folder: &Path, name: &str) {
    let mut check = Command::new("e2fsck");
    run(check.arg("-fn").arg(folder.join(name))).unwrap();
}

#[test]
fn an_image_becomes_btrfs_and_ext4_again() {
    if skips(any_missing(&["mke2fs", "e2fsck"])) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, "a.img", 96, &["-b", "4096", "-L", "old"]);
    let told = done(folder, &["convert", "-p", "a.img"]);
    for line in [
        "Type:           ext4",
        "Label:          old",
        "Conversion complete",
    ] {
        assert!(told.contains(line), "{told}");
    }
    assert_eq!(done(folder, &["cat", "a.img:/small"]), "small\n");
    assert!(done(folder, &["ls", "a.img:/ext2_saved"]).contains("image"));
    done(folder, &["check", "a.img"]);
    refused(folder, &["convert", "a.img"], 1, "only ext2, ext3 and ext4");
    assert_eq!(done(folder, &["convert", "-r", "a.img"]), "Rollback succeeded\n");
    check_old(folder, "a.img");
    refused(folder, &["convert", "-r", "a.img"], 1, "a.img");

    let words = [
        "convert", "--uuid", "copy", "-l", "new", "--csum", "xxhash", "-N", "4096", "a.img",
    ];
    let told = done(folder, &words);
    assert!(
        told.contains("xxhash") && told.contains("Label:          new"),
        "{told}"
    );
    assert!(done(folder, &["filesystem", "label", "a.img"]).contains("new"));
    done(folder, &["cp", "from/small", "a.img:/added"]);
    refused(folder, &["convert", "-r", "a.img"], 1, "give -f");
    assert_eq!(done(folder, &["cat", "a.img:/added"]), "small\n");
    let told = done(folder, &["convert", "-r", "-f", "--format", "json", "a.img"]);
    assert!(told.contains("rolled-back"), "{told}");
    check_old(folder, "a.img");

    done(
        folder,
        &["convert", "-d", "-i", "-n", "-q", "--no-progress", "a.img"],
    );
    let sizes = done(folder, &["fiemap", "-v", "a.img:/small"]);
    assert!(!sizes.contains("inline"), "{sizes}");
    done(folder, &["check", "a.img"]);
}

#[test]
fn an_overlay_receives_a_conversion() {
    if skips(any_missing(&["mke2fs"])) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, "a.img", 96, &["-b", "4096"]);
    let before = fs::read(folder.join("a.img")).unwrap();
    done(folder, &["convert", "--overlay", "changes", "a.img"]);
    assert!(
        before == fs::read(folder.join("a.img")).unwrap(),
        "the image has changed"
    );
    assert_eq!(
        done(folder, &["cat", "--overlay", "changes", "a.img:/small"]),
        "small\n"
    );
}

/// Converts an image until the write of the primary superblock fails.
fn interrupt(image: &Path) {
    let uuid = |number: u128| Uuid::from_u128(0x7000_4000_8000_0000_0000_0000_0000_0000 + number);
    let opened = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let backend = Device::open_backend(image, &opened).unwrap();
    let faulty = FaultyBackend::new(backend, 1);
    faulty.inject(Fault::FailWrites(65_536..69_632));
    let device = Device::with_backend(faulty, DeviceEngine::Inline);
    let options = Options {
        make: MakeOptions::default(),
        identity: Identity {
            fsid: uuid(1),
            chunk_tree: uuid(2),
            top_level: uuid(3),
            devices: vec![uuid(4)],
            time: Timestamp {
                seconds: 1_700_000_000,
                nanoseconds: 0,
            },
        },
        saved: uuid(5),
        folder: None,
        without: Without::default(),
    };
    let prepared = prepare(&device, &options, &Progress::new()).unwrap();
    assert!(prepared.publish().is_err());
}

#[test]
fn the_next_call_continues_an_interrupted_conversion() {
    if skips(any_missing(&["mke2fs", "e2fsck"])) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, "a.img", 96, &["-b", "4096"]);
    interrupt(&folder.join("a.img"));
    let output = buttress(folder, &["convert", "-r", "a.img"]);
    let notice = text(&output.stderr);
    assert!(
        notice.contains("the device now holds the old file system"),
        "{notice}"
    );
    assert_eq!(text(&output.stdout), "Rollback succeeded\n");
    check_old(folder, "a.img");
    interrupt(&folder.join("a.img"));
    assert!(done(folder, &["convert", "a.img"]).contains("Conversion complete"));
    done(folder, &["check", "a.img"]);
}

#[test]
fn wrong_images_and_options_are_refused_unchanged() {
    if skips(any_missing(&["mke2fs"])) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, "small-blocks.img", 32, &["-b", "1024"]);
    make(folder, "full.img", 8, &["-b", "4096"]);
    make(folder, "features.img", 96, &["-b", "4096", "-O", "casefold"]);
    make(folder, "a.img", 96, &["-b", "4096"]);
    done(folder, &["mkfs", "-q", "-b", "128M", "btrfs.img"]);
    fs::write(folder.join("empty.img"), []).unwrap();
    let images = [
        "small-blocks.img",
        "full.img",
        "features.img",
        "btrfs.img",
        "a.img",
    ];
    let before = images.map(|name| fs::read(folder.join(name)).unwrap());
    for (image, told) in [
        ("small-blocks.img", "the block size is 1024 bytes"),
        ("full.img", "free space is too small"),
        ("features.img", "casefold"),
        ("btrfs.img", "only ext2, ext3 and ext4 can be converted"),
        ("empty.img", "empty.img"),
        ("absent.img", "absent.img"),
        (".", "is a directory"),
    ] {
        refused(folder, &["convert", image], 1, told);
    }
    refused(
        folder,
        &["convert", "-r", "btrfs.img"],
        1,
        "subvolume 256 does not exist",
    );
    for (words, code, told) in [
        (&["-O", "quota"][..], 1, "buttress quota enable"),
        (&["-O", "^no-holes"], 1, "^no-holes"),
        (&["-O", "none"], 1, "unknown feature"),
        (&["-N", "3000"], 1, "3000"),
        (&["-r", "-d"], 2, "--rollback"),
        (&["-f"], 2, "--rollback"),
        (&["-L", "-l", "new"], 2, "--copy-label"),
        (&["--uuid", "x"], 2, "neither new, copy nor a uuid"),
        (&["--csum", "md5"], 2, "unknown checksum"),
        (&["--compress"], 2, "--compress"),
    ] {
        let words = [&["convert"], words, &["a.img"]].concat();
        refused(folder, &words, code, told);
    }
    refused(
        folder,
        &["convert", "-O", "list-all", "a.img"],
        2,
        "takes no image",
    );
    assert!(done(folder, &["convert", "-O", "list-all"]).contains("block-group-tree"));
    for (name, bytes) in images.iter().zip(&before) {
        assert!(
            *bytes == fs::read(folder.join(name)).unwrap(),
            "{name} has changed"
        );
    }
}

#[test]
fn a_mounted_device_is_refused() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "a.img", 96, &["-b", "4096"]);
    let device = LoopDevice::attach(&folder.path().join("a.img")).unwrap();
    let place = folder.path().join("mounted");
    fs::create_dir(&place).unwrap();
    run(Command::new("mount").arg(device.path()).arg(&place)).unwrap();
    let path = device.path().to_str().unwrap().to_owned();
    let by_device = buttress(folder.path(), &["convert", &path]);
    let by_image = buttress(folder.path(), &["convert", "a.img"]);
    run(Command::new("umount").arg(&place)).unwrap();
    for output in [by_device, by_image] {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("in use"), "{message}");
    }
    assert!(done(folder.path(), &["convert", &path]).contains("Conversion complete"));
}

#[test]
fn a_label_cannot_control_the_terminal() {
    if skips(any_missing(&["mke2fs"])) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, "a.img", 96, &["-b", "4096", "-L", "a\u{1b}[2Jb"]);
    let mut command = Command::new(in_folder::PROGRAM);
    let words = ["convert", "--no-progress"];
    let terminal = Terminal::start(command.args(words).arg(folder.join("a.img")));
    let (code, told) = terminal.finish();
    assert_eq!(code, Some(0), "{told}");
    assert!(!told.contains("\u{1b}[2J") && told.contains("[2Jb"), "{told}");
}
