//! `restore` beside `btrfs restore`: the same files from a whole volume, at least as many from a
//! damaged one, and no wrong content called verified.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support::in_folder;

use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{newest, reference_missing};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use in_folder::{buttress, done, text};

const SUPERBLOCKS: [u64; 2] = [64 << 10, 64 << 20];
const NODE_BYTES: u64 = 16 << 10;
const BYTES: u64 = 200 << 20;

/// A volume that Linux wrote in several commits: files of all sizes, a link, a subvolume with a
/// snapshot.
fn made(folder: &Path) -> PathBuf {
    let image = folder.join("made.img");
    File::create(&image).unwrap().set_len(BYTES).unwrap();
    let mut mkfs = Command::new(newest("mkfs.btrfs"));
    let mkfs = mkfs.args(["-q", "-f"]).arg(&image).output().unwrap();
    assert!(mkfs.status.success(), "{mkfs:?}");
    let mounted = Mount::new(std::slice::from_ref(&image), "").unwrap();
    let at = |name: &str| mounted.path().join(name);
    let progs = |words: &[&str], paths: &[PathBuf]| {
        let mut command = Command::new(newest("btrfs"));
        let output = command.args(words).args(paths).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    for directory in ["a", "b", "c"] {
        fs::create_dir(at(directory)).unwrap();
        for number in 0..80_usize {
            let content = vec![directory.as_bytes()[0] ^ number.to_le_bytes()[0]; number * 131 % 7000 + 1];
            fs::write(at(&format!("{directory}/file {number}")), content).unwrap();
        }
        progs(&["filesystem", "sync"], &[mounted.path().to_owned()]);
    }
    symlink("a/file 1", at("link")).unwrap();
    rustix::fs::setxattr(
        at("a/file 2"),
        "user.key",
        b"value",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    std::os::unix::fs::chown(at("a/file 3"), Some(1000), Some(1001)).unwrap();
    progs(&["-q", "subvolume", "create"], &[at("home")]);
    for number in 0..20_usize {
        fs::write(at(&format!("home/file {number}")), vec![9; number * 3000]).unwrap();
    }
    progs(
        &["-q", "subvolume", "snapshot", "-r"],
        &[at("home"), at("monday")],
    );
    mounted.close().unwrap();
    image
}

/// The kind, owner, mode, attribute and content of each file below a folder.
fn tree(top: &Path, with_metadata: bool) -> BTreeMap<PathBuf, (String, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let content = if stat.is_symlink() {
                fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else if stat.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let mut value = [0; 16];
            let length = rustix::fs::lgetxattr(&path, "user.key", &mut value).unwrap_or(0);
            let mut facts = format!("{:?} {:?}", stat.file_type(), &value[..length]);
            if with_metadata && !stat.is_symlink() {
                let (uid, gid, mode, time) = (stat.uid(), stat.gid(), stat.mode(), stat.mtime());
                facts.push_str(&format!(" {uid}:{gid} {mode:o} {time}"));
            }
            found.insert(path.strip_prefix(top).unwrap().to_owned(), (facts, content));
        }
    }
    found
}

/// Restores with btrfs-progs into a new folder.
fn theirs(folder: &Path, image: &str, options: &[&str], name: &str) -> PathBuf {
    let target = folder.join(name);
    fs::create_dir_all(&target).unwrap();
    let mut command = Command::new(newest("btrfs"));
    let command = command.arg("restore").args(options).arg(image).arg(&target);
    command.current_dir(folder).stdin(Stdio::null()).output().unwrap();
    target
}

#[test]
fn restored_files_are_those_of_btrfs_restore() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    made(folder);
    let cases: [&[&str]; 7] = [
        &[],
        &["-s"],
        &["-x", "-m", "-S", "-s"],
        &["-r", "256"],
        &["-d"],
        &["--path-regex", "^/(|a(|/file 1.*))$"],
        &["-c", "--path-regex", "^/(|B(|/.*))$"],
    ];
    for (number, options) in cases.iter().enumerate() {
        let expected = theirs(folder, "made.img", options, &format!("theirs {number}"));
        let found = format!("ours {number}");
        done(
            folder,
            &[&["restore", "-q"], *options, &["made.img", &found]].concat(),
        );
        let with_metadata = options.contains(&"-m");
        let (expected, found) = (
            tree(&expected, with_metadata),
            tree(&folder.join(found), with_metadata),
        );
        assert!(!expected.is_empty(), "{options:?}");
        let differs = expected
            .iter()
            .find(|(path, facts)| found.get(*path) != Some(facts));
        let shown = differs.map(|(path, (facts, _))| (path, facts, found.get(path).map(|(facts, _)| facts)));
        assert!(shown.is_none(), "{options:?}: {shown:?}");
        let more: Vec<&PathBuf> = found
            .keys()
            .filter(|path| !expected.contains_key(*path))
            .collect();
        assert!(more.is_empty(), "{options:?}: {more:?}");
    }
    // An existing file stays, unless -o replaces it.
    let changed = folder.join("ours 0/a/file 5");
    fs::write(&changed, "changed").unwrap();
    let output = buttress(folder, &["restore", "--report", "report", "made.img", "ours 0"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("a/file 5: skipped") || text(&output.stdout).contains("skipped:"));
    let report: Value = serde_json::from_slice(&fs::read(folder.join("report")).unwrap()).unwrap();
    let entries = report["files"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["path"] == "a/file 5").unwrap();
    assert_eq!(entry["verdict"], "skipped");
    assert_eq!(report["totals"]["skipped"]["files"], entries.len());
    assert_eq!(fs::read(&changed).unwrap(), b"changed");
    done(folder, &["restore", "-q", "-o", "made.img", "ours 0"]);
    assert_eq!(
        tree(&folder.join("ours 0"), false),
        tree(&folder.join("theirs 0"), false)
    );
    let listed = Command::new(newest("btrfs"))
        .args(["restore", "-l", "made.img"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert_eq!(done(folder, &["restore", "-l", "made.img"]), text(&listed.stdout));
}

/// A way to damage an image.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Superblocks,
    /// The root of a tree.
    Root(u64),
    /// Every fifth leaf of a tree.
    Leaves(u64),
}

/// Zeroes all copies of the blocks with these addresses.
fn zero_blocks(image: &Path, wanted: &dyn Fn(u64, usize) -> bool) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut superblock = [0; 4096];
    file.read_exact_at(&mut superblock, SUPERBLOCKS[0]).unwrap();
    let mut header = [0; 101];
    let mut seen: Vec<u64> = Vec::new();
    for at in (0..BYTES).step_by(4096) {
        file.read_exact_at(&mut header, at).unwrap();
        if header[32..48] != superblock[32..48] || header[64..72] == *b"_BHRfS_M" {
            continue;
        }
        let logical = u64::from_le_bytes(header[48..56].try_into().unwrap());
        if !seen.contains(&logical) {
            seen.push(logical);
        }
        let number = seen.iter().position(|known| *known == logical).unwrap();
        if wanted(logical, number) {
            file.write_all_at(&vec![0; usize::try_from(NODE_BYTES).unwrap()], at)
                .unwrap();
        }
    }
}

fn damage(folder: &Path, how: Damage) {
    let image = folder.join("damaged.img");
    fs::copy(folder.join("made.img"), &image).unwrap();
    let addresses = |tree: u64, kind: &str| -> Vec<u64> {
        let printed = done(
            folder,
            &[
                "inspect-internal",
                "dump-tree",
                "-t",
                &tree.to_string(),
                "made.img",
            ],
        );
        // Each block has two lines; the first one counts its items.
        let heads = printed.lines().filter(|line| line.contains(" items "));
        let lines = heads.filter_map(|line| line.strip_prefix(kind));
        lines
            .map(|line| line.split(' ').next().unwrap().parse().unwrap())
            .collect()
    };
    match how {
        Damage::Superblocks => {
            let file = File::options().write(true).open(&image).unwrap();
            for at in SUPERBLOCKS {
                file.write_all_at(&[0; 4096], at).unwrap();
            }
        }
        Damage::Root(tree) => {
            let first = addresses(tree, "node ")
                .into_iter()
                .chain(addresses(tree, "leaf "))
                .next();
            zero_blocks(&image, &|logical, _| Some(logical) == first);
        }
        Damage::Leaves(tree) => {
            let all = addresses(tree, "leaf ");
            // The first of several leaves has the root directory.
            let first = usize::from(all.len() > 1);
            let leaves: Vec<u64> = all.into_iter().skip(first).step_by(5).collect();
            assert!(!leaves.is_empty(), "tree {tree}");
            zero_blocks(&image, &|logical, _| leaves.contains(&logical));
        }
    }
}

#[test]
fn damaged_volumes_are_restored_with_verdicts() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    made(folder);
    let truth = tree(&theirs(folder, "made.img", &["-s"], "truth"), false);
    let right = |found: &BTreeMap<PathBuf, (String, Vec<u8>)>| -> usize {
        truth
            .iter()
            .filter(|(path, facts)| found.get(*path).is_some_and(|found| found.1 == facts.1))
            .count()
    };
    for (number, how) in [
        Damage::Superblocks,
        Damage::Root(1),
        Damage::Root(3),
        Damage::Leaves(5),
        Damage::Leaves(7),
    ]
    .into_iter()
    .enumerate()
    {
        damage(folder, how);
        let before = fs::read(folder.join("damaged.img")).unwrap();
        let expected = tree(
            &theirs(folder, "damaged.img", &["-s", "-i"], &format!("t{number}")),
            false,
        );
        let target = format!("o{number}");
        let output = buttress(
            folder,
            &["restore", "-s", "--report", "report", "damaged.img", &target],
        );
        assert!(folder.join(&target).is_dir(), "{how:?}: {output:?}");
        let found = tree(&folder.join(&target), false);
        let (theirs, ours) = (right(&expected), right(&found));
        assert!(
            ours >= theirs,
            "{how:?}: ours {ours}, theirs {theirs}: {output:?}"
        );
        // Only the lost leaves, and what the lost last commit made, are missing.
        let whole = match how {
            Damage::Leaves(5) => 0,
            Damage::Root(1) => 240,
            _ => truth.len(),
        };
        assert!(ours >= whole, "{how:?}: {ours} of {whole}: {output:?}");
        let report: Value = serde_json::from_slice(&fs::read(folder.join("report")).unwrap()).unwrap();
        let mut verified = 0;
        for file in report["files"].as_array().unwrap() {
            let path = PathBuf::from(file["path"].as_str().unwrap());
            if file["verdict"] == "verified" {
                verified += 1;
                assert_eq!(found[&path].1, truth[&path].1, "{how:?}: {}", path.display());
            }
        }
        assert_eq!(report["totals"]["verified"]["files"], verified);
        let is_whole = report["totals"]["verified"]["files"] == report["files"].as_array().unwrap().len();
        let state = &report["state"];
        let is_older = state["generation"].as_u64() < state["newest-generation"].as_u64();
        assert_eq!(is_older, matches!(how, Damage::Root(1)), "{how:?}: {state}");
        assert_eq!(
            text(&output.stderr).contains("this older state is read"),
            is_older,
            "{output:?}"
        );
        assert_eq!(
            output.status.code(),
            Some(i32::from(!is_whole || is_older)),
            "{how:?}: {output:?}"
        );
        assert!(
            fs::read(folder.join("damaged.img")).unwrap() == before,
            "the image has changed"
        );
        let only = format!("v{number}");
        buttress(
            folder,
            &["restore", "-q", "-s", "--verified-only", "damaged.img", &only],
        );
        let files = tree(&folder.join(&only), false);
        let files = files
            .iter()
            .filter(|(_, facts)| facts.0.contains("is_file: true"));
        assert_eq!(files.count(), verified, "{how:?}");
        for name in [target, only, format!("t{number}")] {
            fs::remove_dir_all(folder.join(name)).unwrap();
        }
    }
}

#[test]
fn restoring_nothing_fails_with_its_own_code() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    File::create(folder.join("empty.img"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let output = buttress(folder, &["restore", "empty.img", "out"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    done(folder, &["mkfs", "-q", "--size", "128M", "new.img"]);
    let output = buttress(folder, &["restore", "new.img", "new.img/out"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = buttress(folder, &["restore", "--report", "new.img", "new.img", "out"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    done(folder, &["check", "-q", "new.img"]);
    done(folder, &["restore", "new.img", "out"]);
}
