//! `image` beside btrfs-image, both ways, on volumes of all profiles: the same blocks in the dumps,
//! and restored volumes that `btrfs check` and Linux accept.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support::in_folder;

use buttress::dump::DumpReader;
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{newest, reference_missing, run};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use in_folder::{buttress, done, text};

const NODE_BYTES: usize = 16384;
/// The address of the superblock in a dump.
pub(crate) const SUPERBLOCK: u64 = 65536;

/// Makes a volume that Linux filled, with a dump by btrfs-image.
pub(crate) fn made(folder: &Path, profile: &str, devices: usize) -> Vec<PathBuf> {
    let images: Vec<PathBuf> = (0..devices)
        .map(|number| folder.join(format!("{number}.img")))
        .collect();
    for image in &images {
        File::create(image).unwrap().set_len(400 << 20).unwrap();
    }
    let mut mkfs = Command::new(newest("mkfs.btrfs"));
    mkfs.args(["-q", "-f", "-d", profile, "-m", profile])
        .args(&images);
    run(&mut mkfs).unwrap();
    let mounted = Mount::new(&images, "").unwrap();
    for number in 0..300_usize {
        let folder = mounted.path().join(format!("folder {}", number % 7));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("file {number}")), vec![b'x'; number * 40]).unwrap();
    }
    let first = mounted.devices()[0].path().to_owned();
    run(Command::new("sync").arg("-f").arg(mounted.path())).unwrap();
    run(Command::new(newest("btrfs-image"))
        .args(["-c", "9"])
        .arg(&first)
        .arg(folder.join("theirs.dump")))
    .unwrap();
    mounted.close().unwrap();
    images
}

/// Returns the blocks of a dump by address, and its superblock.
pub(crate) fn blocks(dump: &Path) -> BTreeMap<u64, Vec<u8>> {
    let mut reader = DumpReader::new(BufReader::new(File::open(dump).unwrap()));
    let mut found = BTreeMap::new();
    while let Some(item) = reader.next_item().unwrap() {
        for (index, block) in item.bytes.chunks(NODE_BYTES).enumerate() {
            let at = item.logical + (index * NODE_BYTES) as u64;
            assert!(found.insert(at, block.to_vec()).is_none(), "{at} is there twice");
        }
    }
    found
}

pub(crate) fn ours(folder: &Path, words: &[&str], images: &[PathBuf], dump: &str) {
    let mut all = vec!["image"];
    all.extend_from_slice(words);
    for image in &images[1..] {
        all.extend(["--device", image.to_str().unwrap()]);
    }
    all.extend([images[0].to_str().unwrap(), dump]);
    done(folder, &all);
}

fn mounts(images: &[PathBuf]) {
    let mounted = Mount::new(images, "ro").unwrap();
    let names = fs::read_dir(mounted.path().join("folder 3")).unwrap().count();
    assert_eq!(names, 43);
    mounted.close().unwrap();
}

fn compare(profile: &str, devices: usize) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let images = made(folder, profile, devices);
    ours(folder, &["-c", "9"], &images, "ours.dump");
    ours(folder, &["-w", "-t", "3"], &images, "walked.dump");
    let [found, walked, theirs] =
        ["ours.dump", "walked.dump", "theirs.dump"].map(|name| blocks(&folder.join(name)));
    assert!(found == walked, "{profile}: the walk found other blocks");
    let addresses = |blocks: &BTreeMap<u64, Vec<u8>>| blocks.keys().copied().collect::<Vec<_>>();
    assert_eq!(addresses(&found), addresses(&theirs), "{profile}");
    // btrfs-image may take the superblock of another device of the volume.
    let differs = found
        .iter()
        .find(|(at, block)| theirs[at] != **block && **at != SUPERBLOCK);
    assert!(differs.is_none(), "{profile}: {:?}", differs.map(|(at, _)| at));
    assert!(
        devices > 1 || found == theirs,
        "{profile}: the superblock differs"
    );
    // Ours restored by btrfs-image, theirs by ours.
    let restored = folder.join("restored-by-theirs.img");
    let by_theirs = |dump: &str| {
        let mut command = Command::new(newest("btrfs-image"));
        command.arg("-r").arg(folder.join(dump)).arg(&restored);
        run(&mut command).is_ok()
    };
    // btrfs-image 6.2 and 6.14 abort on striped chunks with a superblock copy inside, also on dumps of
    // their own.
    if by_theirs("theirs.dump") {
        fs::remove_file(&restored).unwrap();
        assert!(by_theirs("ours.dump"), "{profile}");
        btrfs_check(std::slice::from_ref(&restored)).unwrap();
    }
    done(folder, &["image", "-r", "theirs.dump", "restored.img"]);
    let restored = folder.join("restored.img");
    btrfs_check(std::slice::from_ref(&restored)).unwrap();
    mounts(std::slice::from_ref(&restored));
    if devices > 1 {
        let several: Vec<String> = (0..devices)
            .map(|number| format!("several-{number}.img"))
            .collect();
        let mut words = vec!["image", "-r", "-m", "theirs.dump"];
        words.extend(several.iter().map(String::as_str));
        done(folder, &words);
        let several: Vec<PathBuf> = several.iter().map(|name| folder.join(name)).collect();
        btrfs_check(&several).unwrap();
        mounts(&several);
    }
}

#[test]
fn dumps_are_those_of_btrfs_image_both_ways() {
    if skips(reference_missing()) {
        return;
    }
    for (profile, devices) in [("dup", 1), ("raid1", 2), ("raid0", 2), ("raid5", 3)] {
        compare(profile, devices);
    }
    if std::env::var_os("BUTTRESS_SOAK").is_some() {
        for (profile, devices) in [
            ("single", 1),
            ("single", 3),
            ("raid1c3", 3),
            ("raid1c4", 4),
            ("raid10", 4),
            ("raid6", 4),
        ] {
            compare(profile, devices);
        }
    }
}

#[test]
fn damaged_dumps_and_wrong_targets_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "a.img"]);
    done(folder, &["image", "a.img", "a.dump"]);
    let refused = |words: &[&str], told: &str| {
        let output = buttress(folder, words);
        assert!(!output.status.success(), "{words:?}");
        let message = text(&output.stderr);
        assert!(message.contains(told), "{words:?}: {message}");
    };
    refused(&["image", "-r", "a.dump", "a.img"], "--force");
    refused(&["image", "-r", "a.dump", "a.dump"], "a.dump");
    refused(&["image", "a.img", "a.img"], "a.img");
    refused(&["image", "-r", "a.dump", "b.img", "c.img"], "-m");
    refused(
        &["image", "-r", "-m", "a.dump", "b.img", "c.img"],
        "1 devices (found 2)",
    );
    let dump = fs::read(folder.join("a.dump")).unwrap();
    for (at, told) in [
        (0, "no cluster"),
        (8, "another offset"),
        (16, "number of items"),
        (20, "compression"),
    ] {
        let mut damaged = dump.clone();
        damaged[at] ^= 0x80;
        fs::write(folder.join("b.dump"), &damaged).unwrap();
        refused(&["image", "-r", "b.dump", "d.img"], told);
    }
    fs::write(folder.join("b.dump"), &dump[..dump.len() / 2]).unwrap();
    refused(&["image", "-r", "b.dump", "d.img"], "ends within a cluster");
    let mut full = File::options().write(true).open("/dev/full").unwrap();
    assert!(full.write_all(&[0]).is_err());
    refused(&["image", "a.img", "/dev/full"], "/dev/full");
}

#[test]
fn dump_of_a_damaged_extent_tree_has_all_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "-m", "single", "a.img"]);
    done(folder, &["image", "a.img", "a.dump"]);
    let whole = blocks(&folder.join("a.dump"));
    let extent_tree = whole
        .iter()
        .find(|(_, block)| block.get(88..96) == Some(&[2, 0, 0, 0, 0, 0, 0, 0][..]));
    let (logical, block) = extent_tree.unwrap();
    // The volume has one place for the block: the damage is found by its bytes.
    let bytes = fs::read(folder.join("a.img")).unwrap();
    let at = bytes
        .chunks(4096)
        .position(|part| part == &block[..4096])
        .unwrap()
        * 4096;
    let file = File::options().write(true).open(folder.join("a.img")).unwrap();
    file.write_all_at(&[0x5a; 64], (at + 200) as u64).unwrap();
    let output = buttress(folder, &["image", "a.img", "b.dump"]);
    assert!(output.status.success(), "{output:?}");
    assert!(
        text(&output.stderr).contains("a walk from the roots"),
        "{output:?}"
    );
    let found = blocks(&folder.join("b.dump"));
    assert!(found.keys().eq(whole.keys()));
    assert!(
        found[logical] != whole[logical],
        "the damaged block is dumped as it is"
    );
}

#[test]
fn restore_with_an_overlay_keeps_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "a.img"]);
    done(folder, &["image", "a.img", "a.dump"]);
    let target = File::create(folder.join("b.img")).unwrap();
    target.set_len(200 << 20).unwrap();
    let overlay = ["--overlay", "b.overlay"];
    done(
        folder,
        &[&["image", "-r"][..], &overlay, &["a.dump", "b.img"]].concat(),
    );
    let mut first = vec![1; 1 << 20];
    let bytes = File::open(folder.join("b.img")).unwrap();
    bytes.read_exact_at(&mut first, 0).unwrap();
    assert!(
        first.iter().all(|byte| *byte == 0),
        "the restore changed the target"
    );
    done(folder, &[&["ls"][..], &overlay, &["b.img:/"]].concat());
    let missing = buttress(
        folder,
        &[&["image", "-r"][..], &overlay, &["a.dump", "c.img"]].concat(),
    );
    assert!(!missing.status.success(), "{missing:?}");
    assert!(!folder.join("c.img").exists());
}

#[test]
fn restore_over_other_content_needs_force() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "a.img"]);
    done(folder, &["image", "a.img", "a.dump"]);
    // The magic of ext4, at its place in an image with holes.
    let mut ext4 = vec![0; 8192];
    ext4[1080..1082].copy_from_slice(b"\x53\xef");
    for (name, content, told) in [
        ("text", b"some text".to_vec(), "is not empty"),
        ("ext4.img", ext4, "ext4"),
    ] {
        let path = folder.join(name);
        fs::write(&path, &content).unwrap();
        let output = buttress(folder, &["image", "-r", "a.dump", name]);
        assert!(!output.status.success(), "{name}");
        let message = text(&output.stderr);
        assert!(
            message.contains(told) && message.contains("--force"),
            "{name}: {message}"
        );
        assert_eq!(fs::read(&path).unwrap(), content, "{name}");
        done(folder, &["image", "-r", "--force", "a.dump", name]);
        done(folder, &["ls", &format!("{name}:/")]);
    }
    let sparse = File::create(folder.join("sparse.img")).unwrap();
    sparse.set_len(200 << 20).unwrap();
    done(folder, &["image", "-r", "a.dump", "sparse.img"]);
}

#[test]
fn failed_restore_removes_the_files_that_it_created() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "a.img"]);
    done(folder, &["image", "a.img", "a.dump"]);
    let dump = fs::read(folder.join("a.dump")).unwrap();
    fs::write(folder.join("cut.dump"), &dump[..dump.len() / 2]).unwrap();
    fs::write(folder.join("old.img"), "").unwrap();
    for targets in [&["new.img"][..], &["-m", "new.img", "old.img"]] {
        let words = [&["image", "-r", "cut.dump"], targets].concat();
        assert!(!buttress(folder, &words).status.success(), "{words:?}");
        assert!(!folder.join("new.img").exists(), "{words:?}");
        assert!(folder.join("old.img").exists(), "{words:?}");
    }
    done(folder, &["image", "-r", "a.dump", "new.img"]);
    assert!(folder.join("new.img").exists());
}

#[test]
fn help_says_what_hashes_of_names_reveal() {
    let folder = tempfile::tempdir().unwrap();
    let output = buttress(folder.path(), &["image", "--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = help.split_whitespace().collect();
    assert!(words.join(" ").contains("can be computed from it"), "{help}");
}
