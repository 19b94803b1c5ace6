//! Tests of `replace start` of a device with irreparable damage, compared with the kernel on the
//! same damage.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support::in_folder;

use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use in_folder::{buttress, done, text};

/// Creates a volume of one image without redundancy, with small files and a large one, and an empty
/// target.
fn volume(folder: &Path) -> Vec<u8> {
    done(
        folder,
        &[
            "mkfs", "-q", "-d", "single", "-m", "single", "-b", "300M", "a.img",
        ],
    );
    fs::create_dir(folder.join("many")).unwrap();
    for number in 0..600 {
        fs::write(
            folder.join(format!("many/f{number}")),
            format!("content of {number}"),
        )
        .unwrap();
    }
    let large: Vec<u8> = (0..1_u32 << 18)
        .flat_map(|number| (number * 7).to_le_bytes())
        .collect();
    fs::write(folder.join("many/large"), &large).unwrap();
    done(folder, &["cp", "-r", "many", "a.img:/"]);
    File::create(folder.join("t.img"))
        .unwrap()
        .set_len(300 << 20)
        .unwrap();
    large
}

/// Returns the offset of a leaf in the middle of the tree, which no mount needs, and the leaf's
/// address.
fn middle_leaf(folder: &Path) -> (u64, u64) {
    let dumped = done(folder, &["inspect-internal", "dump-tree", "-t", "5", "a.img"]);
    let leaves = dumped.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("leaf")).then(|| words.next()?.parse::<u64>().ok())?
    });
    let leaves: Vec<u64> = leaves.collect();
    let logical = leaves[leaves.len() / 2];
    let image = fs::read(folder.join("a.img")).unwrap();
    let is_it = |at: &usize| {
        let block = &image[*at..*at + 101];
        block[48..56] == logical.to_le_bytes() && block[88..96] == 5_u64.to_le_bytes() && block[100] == 0
    };
    let at = (0..image.len()).step_by(4096).find(is_it).unwrap();
    (at as u64, logical)
}

fn spoil(folder: &Path, at: u64) {
    let image = File::options().write(true).open(folder.join("a.img")).unwrap();
    image.write_all_at(&[0xee; 32], at).unwrap();
}

/// Returns the exit code of the kernel's replacement of device 1 of `a.img` by `t.img`, and its status afterwards.
fn kernels(folder: &Path) -> (Option<i32>, String) {
    let mount = Mount::new(&[folder.join("a.img")], "noatime").unwrap();
    let target = LoopDevice::attach(&folder.join("t.img")).unwrap();
    let btrfs = |words: &[&str]| {
        let mut command = Command::new(newest("btrfs"));
        command.arg("replace").args(words);
        command
    };
    let mut start = btrfs(&["start", "-B", "-f", "1"]);
    let ended = start.arg(target.path()).arg(mount.path()).output().unwrap();
    let status = btrfs(&["status", "-1"]).arg(mount.path()).output().unwrap();
    mount.close().unwrap();
    (ended.status.code(), text(&status.stdout))
}

#[test]
fn lost_metadata_ends_the_replacement_as_in_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    volume(folder);
    let (at, logical) = middle_leaf(folder);
    spoil(folder, at + 8192);
    let ended = buttress(folder, &["replace", "start", "-B", "1", "t.img", "a.img"]);
    let told = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    let named = format!("tree 5: block {logical}");
    assert!(
        told.contains("metadata is lost") && told.contains(&named),
        "{told}"
    );
    let status = done(folder, &["replace", "status", "a.img"]);
    assert!(status.contains(", canceled on "), "{status}");
    assert!(!buttress(folder, &["ls", "t.img:/"]).status.success());
    // Undamaged files are still readable, and the volume is writable.
    assert_eq!(done(folder, &["cat", "a.img:/many/f0"]), "content of 0");
    done(folder, &["subvolume", "create", "a.img:/s"]);
    if skips(kernel_missing()) {
        return;
    }
    let (code, status) = kernels(folder);
    assert_eq!(code, Some(1), "{status}");
    assert!(status.contains(", canceled on "), "{status}");
}

#[test]
fn lost_data_is_listed_with_its_files_and_fails_to_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let large = volume(folder);
    let image = fs::read(folder.join("a.img")).unwrap();
    let sector = &large[8192..12288];
    let is_it = |at: &usize| &image[*at..*at + 4096] == sector;
    let at = (0..image.len()).step_by(4096).find(is_it).unwrap();
    spoil(folder, at as u64);
    let start = [
        "replace", "start", "-B", "--format", "json", "1", "t.img", "a.img",
    ];
    let ended = buttress(folder, &start);
    let told = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(told.contains("(reads fail): /many/large"), "{told}");
    let document: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let document = &document["replace-start"];
    assert_eq!(document["finished"], true, "{document}");
    assert_eq!(document["lost_bytes"], 4096, "{document}");
    assert_eq!(
        document["lost"][0]["files"][0]["path"], "/many/large",
        "{document}"
    );
    assert_eq!(document["lost"][0]["has_checksum"], true, "{document}");
    assert_eq!(
        buttress(folder, &["cat", "t.img:/many/large"]).status.code(),
        Some(1)
    );
    assert_eq!(done(folder, &["cat", "t.img:/many/f599"]), "content of 599");
    if skips(kernel_missing()) {
        return;
    }
    let mount = Mount::new(&[folder.join("t.img")], "ro").unwrap();
    let read = fs::read(mount.path().join("many/large"));
    mount.close().unwrap();
    assert_eq!(read.unwrap_err().raw_os_error(), Some(5));
}

#[test]
fn forced_target_keeps_no_former_signature() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    volume(folder);
    // Before the replacement, the target has the signatures of mkfs.xfs and mkfs.ext4, and a label
    // of LVM.
    let target = File::options().write(true).open(folder.join("t.img")).unwrap();
    let signatures: [(u64, &[u8]); 3] = [(0, b"XFSB"), (512, b"LABELONE"), (1080, b"\x53\xef")];
    for (at, signature) in signatures {
        target.write_all_at(signature, at).unwrap();
    }
    let refused = buttress(folder, &["replace", "start", "-B", "1", "t.img", "a.img"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("to overwrite it, give -f"),
        "{}",
        text(&refused.stderr)
    );
    done(folder, &["replace", "start", "-Bf", "1", "t.img", "a.img"]);
    let held = fs::read(folder.join("t.img")).unwrap();
    assert!(held[..4096].iter().all(|byte| *byte == 0));
    assert_eq!(done(folder, &["cat", "t.img:/many/f0"]), "content of 0");
}
