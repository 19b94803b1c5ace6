//! `filesystem defragment`: its options, and the same files defragmented by the kernel.

use crate::support::in_folder;

use buttress::{
    AllocateMode, FileAttributes, FileOffset, SnapshotMode, Volume, WritableFile, WritableSubvolume,
    WritableVolume,
};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use in_folder::{buttress, done, text};

/// Content that compresses, and that differs in every sector.
fn content(seed: usize, bytes: usize) -> Vec<u8> {
    let line = |number: usize| format!("{seed}: line {number} of the same words\n").into_bytes();
    (0..).flat_map(line).take(bytes).collect()
}

/// Writes sectors one by one, so that each is an extent of its own: first the even ones, then the odd ones.
fn in_pieces(volume: &WritableVolume, file: &WritableFile, content: &[u8], piece: usize) {
    for first in [0, 1] {
        for (number, part) in content.chunks(piece).enumerate().skip(first).step_by(2) {
            file.write_at(FileOffset::new((number * piece) as u64), part)
                .unwrap();
            volume.write_back().unwrap();
        }
    }
}

/// Makes a volume with fragmented files, and a snapshot of its subvolume.
fn fragmented(folder: &Path) {
    done(folder, &["mkfs", "-q", "-b", "512M", "a.img"]);
    let volume = Volume::open_writable(folder.join("a.img")).unwrap();
    let home = volume.root().create_subvolume("home").unwrap();
    in_pieces(
        &volume,
        &home.create("plain").unwrap(),
        &content(1, 900_000),
        4096,
    );
    in_pieces(
        &volume,
        &home.create("larger").unwrap(),
        &content(2, 3 << 20),
        20_480,
    );
    home.write("whole", content(3, 4 << 20)).unwrap();
    home.write("inline", b"a few bytes").unwrap();
    home.create_dir("below").unwrap();
    in_pieces(
        &volume,
        &home.create("below/file").unwrap(),
        &content(4, 100_000),
        4096,
    );
    with_holes(&home);
    preallocated(&home);
    let nocow = home.create("nocow").unwrap();
    volume.set_flags(nocow.location(), FileAttributes::NOCOW).unwrap();
    in_pieces(&volume, &nocow, &content(5, 300_000), 4096);
    let single = home.create("single").unwrap();
    single.write_at(FileOffset::new(8192), &content(6, 4096)).unwrap();
    volume.sync().unwrap();
    volume
        .root()
        .create_snapshot(&home, "snapshot", SnapshotMode::ReadOnly)
        .unwrap();
    volume.close().unwrap();
}

fn with_holes(home: &WritableSubvolume) {
    let file = home.create("holes").unwrap();
    for number in (0..60_u64).filter(|number| number % 5 != 4) {
        file.write_at(FileOffset::new(number * 4096), &content(number as usize, 4096))
            .unwrap();
        home.volume().write_back().unwrap();
        home.write("between", content(7, 4096)).unwrap();
        home.volume().write_back().unwrap();
    }
}

fn preallocated(home: &WritableSubvolume) {
    let file = home.create("preallocated").unwrap();
    let all = FileOffset::new(0)..FileOffset::new(400 << 10);
    file.allocate(all, AllocateMode::Allocate).unwrap();
    for number in (0..100_u64).step_by(3) {
        file.write_at(FileOffset::new(number * 4096), &content(8, 4096))
            .unwrap();
    }
    home.volume().write_back().unwrap();
}

/// Returns every file below a directory, with its content.
fn files_below(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(
                    path.strip_prefix(directory).unwrap().to_owned(),
                    fs::read(&path).unwrap(),
                );
            }
        }
    }
    found
}

/// The number of extents of each file of a subvolume, as filefrag counts them.
fn extents_of(mount: &Path, subvolume: &str) -> BTreeMap<PathBuf, usize> {
    let directory = mount.join(subvolume);
    let files = files_below(&directory).into_keys();
    let count = |file: PathBuf| {
        let output = Command::new("filefrag")
            .arg(directory.join(&file))
            .output()
            .unwrap();
        let said = text(&output.stdout);
        let count = said
            .trim()
            .rsplit(": ")
            .next()
            .and_then(|rest| rest.split(' ').next());
        (
            file,
            count
                .and_then(|count| count.parse().ok())
                .unwrap_or_else(|| panic!("{said}")),
        )
    };
    files.map(count).collect()
}

#[test]
fn kernel_and_buttress_defragment_the_same_files() {
    if skips(kernel_missing()) || skips(any_missing(&["filefrag"])) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fragmented(folder);
    fs::copy(folder.join("a.img"), folder.join("b.img")).unwrap();
    let mount = Mount::new(&[folder.join("b.img")], "noatime").unwrap();
    let (before, model) = (extents_of(mount.path(), "home"), files_below(mount.path()));
    let of_snapshot = extents_of(mount.path(), "snapshot");
    let mut theirs = Command::new(newest("btrfs"));
    theirs
        .args(["filesystem", "defragment", "-r", "-f"])
        .arg(mount.path().join("home"));
    assert!(theirs.status().unwrap().success());
    rustix::fs::syncfs(fs::File::open(mount.path()).unwrap()).unwrap();
    let kernel = extents_of(mount.path(), "home");
    mount.close().unwrap();

    done(folder, &["filesystem", "defragment", "-r", "a.img:/home"]);
    done(folder, &["check", "--check-data-csum", "a.img"]);
    btrfs_check(&[folder.join("a.img")]).unwrap();
    let mount = Mount::new(&[folder.join("a.img")], "noatime").unwrap();
    let ours = extents_of(mount.path(), "home");
    assert!(files_below(mount.path()) == model);
    assert_eq!(extents_of(mount.path(), "snapshot"), of_snapshot);
    mount.close().unwrap();
    for (file, count) in &ours {
        let name = file.display();
        assert!(
            *count <= kernel[file],
            "{name}: {count}, by the kernel {}",
            kernel[file]
        );
        // A file that the kernel leaves alone stays as it is.
        let is_same = kernel[file] == before[file];
        assert!(
            !is_same || *count == before[file],
            "{name}: {count} of {}",
            before[file]
        );
    }
    assert!(
        before[Path::new("plain")] > 100 && ours[Path::new("plain")] == 1,
        "{before:?} {ours:?}"
    );
}

/// The extents of a file: offset, length, and whether the content is compressed.
fn fiemap(folder: &Path, path: &str) -> Vec<Value> {
    let told = done(folder, &["fiemap", "--format", "json", path]);
    let document: Value = serde_json::from_str(&told).unwrap();
    let mut found = Vec::new();
    collect(&document, &mut found);
    found
}

fn collect(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
        Value::Object(object) if object.contains_key("logical") => found.push(value.clone()),
        Value::Object(object) => object.values().for_each(|value| collect(value, found)),
        _ => {}
    }
}

#[test]
fn defragment_takes_the_options_of_btrfs_progs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fragmented(folder);
    let count = |path: &str| fiemap(folder, path).len();
    let (plain, below) = (count("a.img:/home/plain"), count("a.img:/home/below/file"));
    assert!(plain > 100 && below > 10, "{plain} {below}");
    let defragment = |words: &[&str]| {
        let all = [&["filesystem", "defragment"], words].concat();
        done(folder, &all)
    };
    // A directory without -r, and a target size that all extents have.
    let warned = buttress(folder, &["fi", "def", "a.img:/home"]);
    assert!(warned.status.success() && text(&warned.stderr).contains("-r defragments the files below it"));
    defragment(&["-t", "4K", "-r", "a.img:/home"]);
    assert_eq!(
        (count("a.img:/home/plain"), count("a.img:/home/below/file")),
        (plain, below)
    );
    // A range.
    defragment(&["-s", "256K", "-l", "128K", "a.img:/home/plain"]);
    assert_eq!(count("a.img:/home/plain"), plain - 31);
    // To keep sharing moves the extents that the snapshot has too.
    let told = defragment(&["--keep-shared", "--format", "json", "a.img:/home/below/file"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert!(told.to_string().contains("\"moved\":102400"), "{told}");
    assert_eq!(count("a.img:/home/below/file"), 1);
    assert_eq!(count("a.img:/snapshot/below/file"), 1);
    // All of it, by steps, with a level of compression.
    let named = defragment(&[
        "-v",
        "--step",
        "256K",
        "-f",
        "-czstd",
        "-L",
        "9",
        "a.img:/home/plain",
        "a.img:/home/below/file",
    ]);
    assert!(
        named.contains("/home/plain\n") && named.contains("\n2 files: "),
        "{named}"
    );
    let compressed = |path: &str| {
        let extents = fiemap(folder, path);
        extents
            .iter()
            .filter(|extent| extent.to_string().contains("encoded"))
            .count()
    };
    assert_eq!(compressed("a.img:/home/plain"), 7);
    assert_eq!(compressed("a.img:/snapshot/plain"), 0);
    defragment(&["--nocomp", "-r", "a.img:/home"]);
    assert_eq!(
        (compressed("a.img:/home/plain"), count("a.img:/home/plain")),
        (0, 1)
    );
    for words in [
        &["-L", "3", "a.img:/home"][..],
        &["-cgzip", "a.img:/home"],
        &["-czstd:3", "-L", "3", "a.img:/home"],
        &["-clzo", "-L", "3", "a.img:/home"],
        &["-czstd", "--nocomp", "a.img:/home"],
        &["-s", "much", "a.img:/home"],
    ] {
        let all = [&["filesystem", "defragment"], words].concat();
        assert_eq!(buttress(folder, &all).status.code(), Some(2), "{words:?}");
    }
    // A file that fails does not stop the command.
    let mixed = buttress(
        folder,
        &[
            "fi",
            "def",
            "a.img:/snapshot/plain",
            "a.img:/none",
            "a.img:/home/larger",
        ],
    );
    assert_eq!(mixed.status.code(), Some(1));
    let said = text(&mixed.stderr);
    assert!(
        said.contains("/snapshot/plain") && said.contains("/none"),
        "{said}"
    );
    assert_eq!(count("a.img:/home/larger"), 1);
    done(folder, &["check", "--check-data-csum", "a.img"]);
}
