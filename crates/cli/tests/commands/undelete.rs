//! `undelete`: versions of deleted and overwritten files, beside the content that each commit had.
//!
//! The volumes are Linux's and ours. Every version is compared with the tree of its commit: a verified
//! version has this content, byte for byte. `BUTTRESS_UNDELETE_FILES=1000` makes the table of
//! docs/undelete.md: how many files come back, by age and by free space.
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
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use in_folder::{buttress, done, text};

/// The number of deletions, each followed by writes of other files.
const ROUNDS: usize = 10;

/// The content of files by path, for each generation.
type Truth = BTreeMap<u64, BTreeMap<String, Vec<u8>>>;

/// Returns bytes that no other seed yields.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Returns the generation of the primary superblock.
fn generation(image: &Path) -> u64 {
    let mut bytes = [0; 8];
    let file = File::open(image).unwrap();
    file.read_exact_at(&mut bytes, (64 << 10) + 72).unwrap();
    u64::from_le_bytes(bytes)
}

/// Makes an empty volume of Linux's.
fn formatted(image: &Path, bytes: u64) {
    File::create(image).unwrap().set_len(bytes).unwrap();
    let mut mkfs = Command::new(newest("mkfs.btrfs"));
    let mkfs = mkfs
        .args(["-q", "-f", "-m", "single"])
        .arg(image)
        .output()
        .unwrap();
    assert!(mkfs.status.success(), "{mkfs:?}");
}

fn synced(top: &Path) {
    let mut command = Command::new(newest("btrfs"));
    let output = command.args(["filesystem", "sync"]).arg(top).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A volume of Linux's whose files are deleted at different ages beside a writer.
struct Aged {
    image: PathBuf,
    /// The names of the files, by the round in which they were deleted.
    deleted: Vec<Vec<String>>,
    contents: BTreeMap<String, Vec<u8>>,
}

/// Makes the volume: `files` files are deleted in equal groups, and each deletion is followed by
/// `churn` bytes of new files.
fn aged(image: &Path, files: usize, bytes: u64, filled: u64, churn: usize) -> Aged {
    formatted(image, bytes);
    // A discard would erase deleted files at once.
    let mounted = Mount::new(&[image.to_owned()], "nodiscard,commit=300").unwrap();
    let at = |name: &str| mounted.path().join(name);
    for number in 0..filled / (4 << 20) {
        fs::write(at(&format!("filler-{number}")), content(number, 4 << 20)).unwrap();
    }
    fs::create_dir_all(at("home/anna")).unwrap();
    let (mut deleted, mut contents) = (vec![Vec::new(); ROUNDS], BTreeMap::new());
    for number in 0..files {
        let name = format!("home/anna/letter-{number}");
        let length = 1 + (number * 7919) % 120_000;
        let bytes = content(1_000_000 + number as u64, length);
        fs::write(at(&name), &bytes).unwrap();
        contents.insert(name.clone(), bytes);
        deleted[number * ROUNDS / files].push(name);
    }
    synced(mounted.path());
    fs::write(at("other"), "another commit").unwrap();
    synced(mounted.path());
    for (round, names) in deleted.iter().enumerate() {
        for name in names {
            fs::remove_file(at(name)).unwrap();
        }
        synced(mounted.path());
        // The writer keeps the last two rounds of its own files.
        for part in 0..4 {
            let seed = 5_000_000 + (round * 4 + part) as u64;
            fs::write(at(&format!("log-{round}-{part}")), content(seed, churn / 4)).unwrap();
            if round >= 2 {
                fs::remove_file(at(&format!("log-{}-{part}", round - 2))).unwrap();
            }
            synced(mounted.path());
        }
    }
    mounted.close().unwrap();
    Aged {
        image: image.to_owned(),
        deleted,
        contents,
    }
}

/// Restores all deleted files, and returns for each round how many came back. No content that is
/// called verified is wrong.
fn come_back(folder: &Path, aged: &Aged) -> Vec<usize> {
    let image = aged.image.to_str().unwrap();
    let output = buttress(
        folder,
        &[
            "undelete", "-q", "-o", "back", "--report", "report", image, "/home",
        ],
    );
    assert!(output.status.code() < Some(2), "{output:?}");
    let report: Value = serde_json::from_slice(&fs::read(folder.join("report")).unwrap()).unwrap();
    let mut verified = Vec::new();
    for file in report["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        if file["verdict"] == "verified" {
            let found = fs::read(folder.join("back").join(path)).unwrap();
            assert!(found == aged.contents[path], "{path} is not what was deleted");
            verified.push(path.to_owned());
        }
    }
    fs::remove_dir_all(folder.join("back")).unwrap();
    let count = |names: &Vec<String>| names.iter().filter(|name| verified.contains(name)).count();
    aged.deleted.iter().map(count).collect()
}

#[test]
fn deleted_files_of_linux_come_back_by_age() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let image = folder.join("aged.img");
    let wanted = std::env::var("BUTTRESS_UNDELETE_FILES").ok();
    let Some(files) = wanted.map(|files| files.parse::<usize>().unwrap()) else {
        let back = come_back(folder, &aged(&image, 60, 200 << 20, 0, 1 << 20));
        // Most of the space is free, so all data is still there; old tree blocks are not.
        assert_eq!(back[ROUNDS - 1], 60 / ROUNDS, "{back:?}");
        return;
    };
    println!("| deleted before | written since | 15 % full | 40 % full | 60 % full | 70 % full |");
    let bytes: u64 = 2 << 30;
    let tables: Vec<Vec<usize>> = [15, 40, 60, 70]
        .iter()
        .map(|percent| {
            come_back(
                folder,
                &aged(&image, files, bytes, bytes * percent / 100, 8 << 20),
            )
        })
        .collect();
    for round in 0..ROUNDS {
        let age = ROUNDS - round;
        let counts: Vec<String> = tables.iter().map(|back| back[round].to_string()).collect();
        println!("| {age} | {} MiB | {} |", age * 8, counts.join(" | "));
    }
}

/// Checks each version of a listing beside the truth, and that `--all` writes the verified ones.
fn compared(folder: &Path, image: &str, truth: &Truth) -> Vec<(String, u64, String)> {
    let listed = buttress(folder, &["undelete", "--format", "json", image, "/"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let versions = listed["undelete"]["versions"].as_array().unwrap();
    let output = buttress(folder, &["undelete", "-q", "--all", "-o", "all", image, "/"]);
    assert!(output.status.code() < Some(2), "{output:?}");
    let found = versions.iter().map(|version| {
        let path = version["path"].as_str().unwrap().to_owned();
        let generation = version["generation"].as_u64().unwrap();
        let verdict = version["verdict"].as_str().unwrap().to_owned();
        if verdict == "verified" {
            let bytes = fs::read(folder.join("all").join(format!("{path}.g{generation}"))).unwrap();
            // A state that no sync made has the content of the last one or of the next one.
            let known = truth.range(..=generation).next_back().map(|(_, tree)| tree);
            let next = truth.range(generation..).next().map(|(_, tree)| tree);
            let mut trees = known.into_iter().chain(next);
            assert!(
                trees.any(|tree| tree.get(&path) == Some(&bytes)),
                "{path} of {generation}"
            );
        }
        (path, generation, verdict)
    });
    found.collect()
}

#[test]
fn versions_have_the_content_of_their_commits() {
    if skips(reference_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let image = folder.join("versions.img");
    formatted(&image, 200 << 20);
    let mounted = Mount::new(std::slice::from_ref(&image), "nodiscard,commit=300").unwrap();
    let at = |name: &str| mounted.path().join(name);
    let mut truth = Truth::new();
    let mut tree: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for round in 0..8_u64 {
        let mut write = |name: &str, bytes: Vec<u8>| {
            fs::write(at(name), &bytes).unwrap();
            tree.insert(name.to_owned(), bytes);
        };
        // Inline, several extents, overwritten in place, kept, and created once.
        write("small", content(round, 300 + usize::try_from(round).unwrap()));
        write("large", content(100 + round, 300_000));
        write(&format!("only-{round}"), content(200 + round, 50_000));
        if round == 0 {
            write("kept", content(300, 20_000));
        }
        if round >= 2 {
            let name = format!("only-{}", round - 2);
            fs::remove_file(at(&name)).unwrap();
            tree.remove(&name);
        }
        if round == 5 {
            fs::rename(at("kept"), at("moved")).unwrap();
            let bytes = tree.remove("kept").unwrap();
            tree.insert("moved".to_owned(), bytes);
        }
        synced(mounted.path());
        truth.insert(generation(&image), tree.clone());
    }
    mounted.close().unwrap();
    let before = fs::read(&image).unwrap();
    let found = compared(folder, "versions.img", &truth);
    assert!(fs::read(&image).unwrap() == before, "the image changed");
    let verified = |name: &str| {
        found
            .iter()
            .filter(|(path, _, verdict)| path == name && verdict == "verified")
            .count()
    };
    assert!(verified("large") >= 3 && verified("small") >= 3, "{found:?}");
    assert!(verified("only-5") == 1 && verified("kept") == 1, "{found:?}");
    // The newest state has these, so they are not listed.
    assert!(
        found.iter().all(|(path, ..)| path != "moved" && path != "only-7"),
        "{found:?}"
    );
    // A file that was renamed is no deleted file.
    let output = buttress(folder, &["undelete", "-o", "kept", "versions.img", "/kept"]);
    assert!(text(&output.stderr).contains("renamed to /moved"), "{output:?}");
    assert!(!folder.join("kept/kept").exists());
}

#[test]
fn deleted_files_of_ours_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mkfs = ["mkfs", "-q", "--size", "128M", "ours.img"];
    done(folder, &mkfs);
    let image = folder.join("ours.img");
    let mut truth = Truth::new();
    let mut tree: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for round in 0..5_u64 {
        let bytes = content(round, 60_000);
        fs::write(folder.join("file"), &bytes).unwrap();
        done(folder, &["cp", "file", "ours.img:/letter"]);
        done(folder, &["cp", "file", &format!("ours.img:/only-{round}")]);
        tree.insert("letter".to_owned(), bytes.clone());
        tree.insert(format!("only-{round}"), bytes);
        truth.insert(generation(&image), tree.clone());
        if round >= 1 {
            let name = format!("only-{}", round - 1);
            done(
                folder,
                &[
                    "shell",
                    "-w",
                    "-c",
                    &format!("rm /{name}"),
                    "-c",
                    "sync",
                    "ours.img",
                ],
            );
            tree.remove(&name);
            truth.insert(generation(&image), tree.clone());
        }
    }
    let found = compared(folder, "ours.img", &truth);
    let verified = |name: &str| {
        found
            .iter()
            .any(|(path, _, verdict)| path == name && verdict == "verified")
    };
    assert!(verified("only-3"), "{found:?}");
    assert!(!verified("only-4"), "{found:?}");
    // Without -o, nothing is written; existing files stay.
    let target = folder.join("out");
    done(folder, &["undelete", "-q", "-o", "out", "ours.img", "only-3"]);
    assert!(fs::read(target.join("only-3")).unwrap() == content(3, 60_000));
    fs::write(target.join("only-3"), "own").unwrap();
    let output = buttress(folder, &["undelete", "-o", "out", "ours.img", "only-3"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(fs::read(target.join("only-3")).unwrap(), b"own");
    let output = buttress(folder, &["undelete", "ours.img", "/never"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        text(&output.stderr).contains("/never: no older version"),
        "{output:?}"
    );
}

#[test]
fn path_in_image_argument_and_index_as_report_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "--size", "128M", "ours.img"]);
    let output = buttress(folder, &["undelete", "ours.img:/home", "letter"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("separate argument"), "{output:?}");
    done(folder, &["rescue", "scan", "-q", "ours.img"]);
    let before = fs::read(folder.join("ours.img.scan")).unwrap();
    let (report, image) = ("ours.img.scan", "ours.img");
    let output = buttress(folder, &["undelete", "-o", "out", "--report", report, image, "/"]);
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    assert!(fs::read(folder.join("ours.img.scan")).unwrap() == before);
}
