//! Dumps for reports: without names, with the contents of some files, and reduced to a finding; and
//! dumps of many chunks on one device.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::string_slice,
    reason = "tests state what must hold"
)]

use crate::image::{SUPERBLOCK, blocks, made, ours};
use crate::support::in_folder;

use buttress::dump::DumpReader;
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{newest, reference_missing, run};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use in_folder::{buttress, done, text};

/// The content of files, and the beginning of names, attributes and targets that a search must not
/// find.
const SECRET: &str = "confidential";

/// Fills a volume with names of all lengths, links, attributes and snapshots, and leaves a log.
fn fill_with_secrets(images: &[PathBuf]) {
    let mounted = Mount::new(images, "").unwrap();
    let top = mounted.path();
    for number in 0..400_usize {
        let folder = top.join(format!("{SECRET} folder {}", number % 5));
        fs::create_dir_all(&folder).unwrap();
        let content = format!("{SECRET} {number} ").repeat(number % 90);
        fs::write(folder.join(format!("{SECRET} {number}")), content).unwrap();
        // Short names, of two directories: letters, and numbers of up to three digits.
        fs::write(folder.join(format!("{number}")), "").unwrap();
    }
    for letter in 'a'..='z' {
        fs::create_dir(top.join(letter.to_string())).unwrap();
        fs::write(top.join("a").join(format!("{letter}.c")), "").unwrap();
    }
    let first = top.join(format!("{SECRET} folder 0")).join("0");
    // More links in one directory than an INODE_REF holds.
    for number in 100..2100 {
        fs::hard_link(&first, top.join("b").join(format!("{number}"))).unwrap();
    }
    std::os::unix::fs::symlink(format!("/{SECRET}/target"), top.join("link")).unwrap();
    run(Command::new("setfattr")
        .args(["-n", "user.confidential-name", "-v", SECRET])
        .arg(&first))
    .unwrap();
    run(Command::new("setfattr")
        .args(["-n", "user.x", "-v", SECRET])
        .arg(&first))
    .unwrap();
    let snapshot = |name: &str| {
        let mut command = Command::new(newest("btrfs"));
        command
            .args(["-q", "subvolume", "snapshot"])
            .arg(top)
            .arg(top.join(name));
        run(&mut command).unwrap();
    };
    snapshot("snap");
    fs::write(top.join("a").join("new"), SECRET).unwrap();
    snapshot("confidential snapshot");
    run(Command::new("sync").arg("-f").arg(top)).unwrap();
    mounted.close().unwrap();
}

/// Returns the number of files of each depth, length of name, kind and size below a directory.
fn shape(top: &Path) -> BTreeMap<(usize, usize, bool, u64), usize> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(top.to_owned(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            // The metadata comes from a lookup by name, which needs the right hash.
            let metadata = entry.path().symlink_metadata().unwrap();
            let length = entry.file_name().len();
            let key = (depth, length, metadata.is_dir(), metadata.len());
            *found.entry(key).or_default() += 1;
            if metadata.is_dir() {
                waiting.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

/// Requires that no file below a directory has a name of the original. A replacement of few bytes can
/// consist of digits, but most do not.
fn require_other_names(top: &Path) {
    let (mut names, mut numbers) = (0, 0);
    let mut waiting = vec![top.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_number = name.len() > 1 && name.bytes().all(|byte| byte.is_ascii_digit());
            names += 1;
            numbers += usize::from(is_number);
            assert!(!name.contains(SECRET) && !name.ends_with(".c"), "{name}");
            if entry.path().symlink_metadata().unwrap().is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    assert!(numbers * 20 < names, "{numbers} of {names} names are numbers");
}

#[test]
fn sanitised_dumps_mount_and_have_no_names() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let image = folder.join("a.img");
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    let mut mkfs = Command::new(newest("mkfs.btrfs"));
    run(mkfs.args(["-q", "-L", SECRET, "-O", "extref"]).arg(&image)).unwrap();
    fill_with_secrets(std::slice::from_ref(&image));
    let mounted = Mount::new(std::slice::from_ref(&image), "ro").unwrap();
    let before = shape(mounted.path());
    mounted.close().unwrap();
    let output = buttress(folder, &["--format", "json", "image", "-s", "a.img", "s.dump"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // Linux decides which short names begin leaves.
    assert!(report["image"]["kept-names"].as_u64().unwrap() <= 2, "{report}");
    done(folder, &["image", "-ss", "-c", "9", "a.img", "ss.dump"]);
    let dump = fs::read(folder.join("s.dump")).unwrap();
    for secret in [SECRET, "/target"] {
        let found = dump.windows(secret.len()).any(|bytes| bytes == secret.as_bytes());
        assert!(!found, "{secret}");
    }
    for dump in ["s.dump", "ss.dump"] {
        let theirs = folder.join("theirs.img");
        run(Command::new(newest("btrfs-image"))
            .arg("-r")
            .arg(folder.join(dump))
            .arg(&theirs))
        .unwrap();
        done(folder, &["image", "-r", dump, "ours.img"]);
        for image in [theirs, folder.join("ours.img")] {
            btrfs_check(std::slice::from_ref(&image)).unwrap();
            let mounted = Mount::new(std::slice::from_ref(&image), "ro").unwrap();
            assert_eq!(shape(mounted.path()), before);
            require_other_names(mounted.path());
            mounted.close().unwrap();
            done(folder, &["check", "-q", image.to_str().unwrap()]);
            fs::remove_file(image).unwrap();
        }
    }
}

#[test]
fn data_of_files_comes_back_through_both_restores() {
    if skips(reference_missing()) {
        return;
    }
    for (profile, devices) in [("dup", 1), ("raid1", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let images = made(folder, if devices == 1 { "single" } else { profile }, devices);
        // Inline content, and extents.
        let files = [("/folder 3/file 10", 400), ("/folder 2/file 268", 10_720)];
        let words = files.iter().flat_map(|(path, _)| ["--with-data", path]);
        ours(folder, &words.collect::<Vec<_>>(), &images, "ours.dump");
        let theirs = folder.join("theirs.img");
        let mut command = Command::new(newest("btrfs-image"));
        run(command.arg("-r").arg(folder.join("ours.dump")).arg(&theirs)).unwrap();
        done(folder, &["image", "-r", "ours.dump", "restored.img"]);
        for image in [theirs, folder.join("restored.img")] {
            btrfs_check(std::slice::from_ref(&image)).unwrap();
            for (path, length) in files {
                let volume = format!("{}:{path}", image.display());
                assert_eq!(done(folder, &["cat", &volume]), "x".repeat(length), "{path}");
            }
            let mounted = Mount::new(std::slice::from_ref(&image), "ro").unwrap();
            for (path, length) in files {
                let found = fs::read(mounted.path().join(&path[1..])).unwrap();
                assert_eq!(found, vec![b'x'; length], "{path}");
            }
            mounted.close().unwrap();
        }
    }
}

#[test]
fn wrong_files_and_contradictions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "a.img"]);
    let refused = |words: &[&str], told: &str| {
        let output = buttress(folder, words);
        assert!(!output.status.success(), "{words:?}");
        let message = text(&output.stderr);
        assert!(message.contains(told), "{words:?}: {message}");
        assert!(!folder.join("a.dump").exists(), "{words:?}");
    };
    refused(&["image", "--with-data", "/none", "a.img", "a.dump"], "/none");
    refused(
        &["image", "--with-data", "/", "a.img", "a.dump"],
        "no regular file",
    );
    refused(&["image", "-s", "--with-data", "/", "a.img", "a.dump"], "--force");
    refused(&["image", "--force", "a.img", "a.dump"], "-r");
    refused(&["image", "-d", "a.img", "a.dump"], "--with-data");
    refused(&["image", "-r", "-o", "a.img", "a.dump"], "no tool opens");
    refused(&["image", "--reduce", "nothing", "a.img", "a.dump"], "--codes");
    refused(
        &["image", "--reduce", "link-count", "a.img", "a.dump"],
        "no finding link-count",
    );
}

#[test]
fn many_chunks_are_restored_to_one_device() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let images: Vec<PathBuf> = (0..2)
        .map(|number| folder.join(format!("{number}.img")))
        .collect();
    for image in &images {
        File::create(image).unwrap().set_len(200 << 30).unwrap();
    }
    let mut mkfs = Command::new(newest("mkfs.btrfs"));
    mkfs.args(["-q", "-n", "4096", "-d", "raid1", "-m", "raid1"])
        .args(&images);
    run(&mut mkfs).unwrap();
    let mounted = Mount::new(&images, "").unwrap();
    // A leaf of the device tree has 54 extents, and 1 GiB has an extent on each device.
    run(Command::new("fallocate")
        .args(["-l", "80G"])
        .arg(mounted.path().join("large")))
    .unwrap();
    mounted.close().unwrap();
    ours(folder, &[], &images, "a.dump");
    let device_leaves = items_of_tree(&folder.join("a.dump"), 4);
    assert!(device_leaves > 2, "{device_leaves}");
    done(folder, &["image", "-r", "a.dump", "one.img"]);
    let one = folder.join("one.img");
    btrfs_check(std::slice::from_ref(&one)).unwrap();
    let mounted = Mount::new(std::slice::from_ref(&one), "ro").unwrap();
    assert_eq!(
        fs::metadata(mounted.path().join("large")).unwrap().len(),
        80 << 30
    );
    mounted.close().unwrap();
}

/// Returns the number of 4 KiB leaves of a tree in a dump.
fn items_of_tree(dump: &Path, tree: u64) -> usize {
    let mut reader = DumpReader::new(BufReader::new(File::open(dump).unwrap()));
    let mut found = 0;
    while let Some(item) = reader.next_item().unwrap() {
        let blocks = item.bytes.chunks(4096);
        let is_leaf = |block: &&[u8]| block[88..96] == tree.to_le_bytes() && block[100] == 0;
        found += blocks.filter(is_leaf).count();
    }
    found
}

#[test]
fn reduced_dump_shows_its_finding() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "-b", "200M", "-m", "single", "a.img"]);
    let script: String = (0..3000)
        .map(|number| format!("put /dev/null /{SECRET}-{number}\n"))
        .collect();
    fs::write(folder.join("script"), script).unwrap();
    let shell = Command::new(in_folder::PROGRAM)
        .current_dir(folder)
        .args(["shell", "-w", "a.img"])
        .stdin(File::open(folder.join("script")).unwrap())
        .output()
        .unwrap();
    assert!(shell.status.success(), "{shell:?}");
    done(folder, &["image", "a.img", "a.dump"]);
    let whole = blocks(&folder.join("a.dump"));
    // The last leaf of the top level.
    let is_file_leaf = |block: &[u8]| block[88..96] == 5_u64.to_le_bytes() && block[100] == 0;
    let mut leaves = whole
        .iter()
        .filter(|(at, block)| **at != SUPERBLOCK && is_file_leaf(block));
    let (_, block) = leaves.next_back().unwrap();
    let bytes = fs::read(folder.join("a.img")).unwrap();
    let at = bytes
        .chunks(4096)
        .position(|part| part == &block[..4096])
        .unwrap()
        * 4096;
    let file = File::options().write(true).open(folder.join("a.img")).unwrap();
    file.write_all_at(&[0x5a; 64], (at + 200) as u64).unwrap();
    let shown = done(
        folder,
        &["image", "--reduce", "tree-block-damaged", "a.img", "r.dump"],
    );
    assert!(shown.contains("tree-block-damaged"), "{shown}");
    let reduced = fs::read(folder.join("r.dump")).unwrap();
    assert!(reduced.len() < 20 << 10, "{} bytes", reduced.len());
    assert!(blocks(&folder.join("r.dump")).len() * 3 < whole.len());
    done(folder, &["image", "-r", "r.dump", "r.img"]);
    let check = buttress(folder, &["check", "r.img"]);
    assert!(text(&check.stdout).contains("tree-block-damaged"), "{check:?}");
}
