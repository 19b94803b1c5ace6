//! `rescue …` beside `btrfs rescue`: the same words and exit codes, the same volume afterwards apart
//! from generations and addresses, and Linux mounts it.
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
use buttress_oracle::tools::{newest, newest_version, reference_missing};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use in_folder::buttress;

const PRIMARY: u64 = 65536;
const COPY: u64 = 64 << 20;
const BYTES: u64 = 200 << 20;

/// A volume that Linux wrote: files, a subvolume and its snapshot.
fn made(folder: &Path, options: &[&str], mount: &str) -> PathBuf {
    let image = folder.join("made.img");
    File::create(&image).unwrap().set_len(BYTES).unwrap();
    let mut mkfs = Command::new(newest("mkfs.btrfs"));
    let mkfs = mkfs
        .args(["-q", "-f"])
        .args(options)
        .arg(&image)
        .output()
        .unwrap();
    assert!(mkfs.status.success(), "{mkfs:?}");
    let mounted = Mount::new(std::slice::from_ref(&image), mount).unwrap();
    let below = |name: &str| mounted.path().join(name);
    let progs = |words: &[&str], paths: &[PathBuf]| {
        let output = Command::new(newest("btrfs"))
            .args(words)
            .args(paths)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    progs(&["-q", "subvolume", "create"], &[below("home")]);
    for number in 0..40_usize {
        fs::write(below(&format!("home/file {number}")), vec![7; number * 3000]).unwrap();
    }
    progs(
        &["-q", "subvolume", "snapshot", "-r"],
        &[below("home"), below("monday")],
    );
    mounted.close().unwrap();
    image
}

fn theirs(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(newest("btrfs"));
    let command = command.arg("rescue").args(words).arg("a.img");
    command.current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn ours(folder: &Path, words: &[&str]) -> Output {
    buttress(folder, &[&["rescue"], words, &["a.img"]].concat())
}

/// Returns what btrfs-progs prints of the volume, without what each commit changes: generations,
/// addresses and checksums of blocks.
fn described(image: &Path) -> String {
    let print = |words: &[&str]| {
        let mut command = Command::new(newest("btrfs"));
        let output = command
            .arg("inspect-internal")
            .args(words)
            .arg(image)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut kept = Vec::new();
    let superblock = print(&["dump-super"]);
    let changing = [
        "superblock:",
        "csum\t",
        "generation",
        "root\t",
        "uuid_tree_generation",
        "chunk_root\t",
    ];
    let lines = superblock.lines();
    kept.extend(lines.filter(|line| !changing.iter().any(|word| line.starts_with(word))));
    let trees = ["1", "5", "256", "257", "3", "4", "7"].map(|tree| print(&["dump-tree", "-t", tree]));
    for line in trees.iter().flat_map(|text| text.lines()) {
        let line = line.trim_start();
        let changing = [
            "leaf ",
            "generation ",
            "level ",
            "btrfs-progs ",
            "node ",
            "chunk uuid",
        ];
        if !changing.iter().any(|word| line.starts_with(word)) {
            kept.push(line);
        }
    }
    kept.join("\n")
}

/// Runs a command of both programs on copies of the image, and compares results and words.
fn expect_same(folder: &Path, words: &[&str]) {
    let place = folder.join("a.img");
    let run = |program: &dyn Fn(&Path, &[&str]) -> Output| {
        fs::copy(folder.join("made.img"), &place).unwrap();
        let output = program(folder, words);
        (output, described(&place))
    };
    let (expected, theirs) = run(&theirs);
    let (found, ours) = run(&ours);
    assert_eq!(
        found.status.code(),
        expected.status.code(),
        "{words:?}: {found:?}"
    );
    let text = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    // btrfs-progs asks its question on standard output.
    let expected = text(&expected);
    let expected = expected.rsplit("[y/N]: ").next().unwrap();
    assert_eq!(text(&found), expected, "{words:?}");
    let differs = theirs
        .lines()
        .zip(ours.lines())
        .find(|(theirs, ours)| theirs != ours);
    // btrfs-progs gives snapshots nodes of their own even if they have no inode cache.
    let is_unshared =
        words == ["clear-ino-cache"] && differs.is_some_and(|(theirs, _)| theirs.starts_with("bytes_used"));
    assert!(theirs == ours || is_unshared, "{words:?}: {differs:?}");
    let clean = buttress(folder, &["check", "a.img"]);
    assert!(clean.status.success(), "{words:?}: {clean:?}");
    btrfs_check(std::slice::from_ref(&place)).unwrap();
    let mounted = Mount::new(std::slice::from_ref(&place), "").unwrap();
    fs::write(mounted.path().join("after"), "rescue").unwrap();
    mounted.close().unwrap();
}

fn has_all_commands() -> bool {
    // `clear-space-cache` and `clear-ino-cache` came after 6.2.
    newest_version() >= (6, 14)
}

#[test]
fn cleared_trees_and_caches_are_as_after_btrfs_rescue() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    made(folder.path(), &["-O", "^block-group-tree"], "");
    expect_same(folder.path(), &["clear-uuid-tree"]);
    if !has_all_commands() {
        return;
    }
    expect_same(folder.path(), &["clear-space-cache", "v2"]);
    expect_same(folder.path(), &["clear-space-cache", "v1"]);
    expect_same(folder.path(), &["clear-ino-cache"]);
    made(
        folder.path(),
        &["-O", "^block-group-tree,^free-space-tree"],
        "space_cache=v1",
    );
    expect_same(folder.path(), &["clear-space-cache", "v1"]);
    expect_same(folder.path(), &["clear-space-cache", "v2"]);
}

#[test]
fn block_group_tree_keeps_its_free_space_tree() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let made = buttress(
        folder,
        &["mkfs", "-q", "-b", "200M", "-O", "block-group-tree", "a.img"],
    );
    assert!(made.status.success(), "{made:?}");
    let refused = ours(folder, &["clear-space-cache", "v2"]);
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("convert-from-block-group-tree"), "{told}");
}

#[test]
fn recovered_superblocks_are_as_after_btrfs_rescue() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &[], "");
    let open = || File::options().read(true).write(true).open(&image).unwrap();
    let mut older = vec![0; 4096];
    open().read_exact_at(&mut older, COPY).unwrap();
    expect_same(folder.path(), &["super-recover"]);
    expect_same(folder.path(), &["super-recover", "-y"]);
    Mount::new(std::slice::from_ref(&image), "")
        .unwrap()
        .close()
        .unwrap();
    for (at, bytes) in [
        (PRIMARY + 164, &[0; 100][..]),
        (COPY + 200, &[1; 100]),
        (COPY, &older),
    ] {
        let file = open();
        let mut before = vec![0; bytes.len()];
        file.read_exact_at(&mut before, at).unwrap();
        file.write_all_at(bytes, at).unwrap();
        expect_same(folder.path(), &["super-recover", "-y"]);
        file.write_all_at(&before, at).unwrap();
    }
    // Without an answer, neither program writes.
    open().write_all_at(&[0; 100], COPY + 200).unwrap();
    fs::copy(&image, folder.path().join("a.img")).unwrap();
    for output in [
        theirs(folder.path(), &["super-recover"]),
        ours(folder.path(), &["super-recover"]),
    ] {
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert!(fs::read(&image).unwrap() == fs::read(folder.path().join("a.img")).unwrap());
    }
}

#[test]
fn device_sizes_are_as_after_btrfs_rescue() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &[], "");
    expect_same(folder.path(), &["fix-device-size"]);
    File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(BYTES - 8192 - 100)
        .unwrap();
    expect_same(folder.path(), &["fix-device-size"]);
    File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(100 << 20)
        .unwrap();
    fs::copy(&image, folder.path().join("a.img")).unwrap();
    let refused = ours(folder.path(), &["fix-device-size"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(fs::read(folder.path().join("a.img")).unwrap() == fs::read(&image).unwrap());
    assert_eq!(theirs(folder.path(), &["fix-device-size"]).status.code(), Some(1));
}
