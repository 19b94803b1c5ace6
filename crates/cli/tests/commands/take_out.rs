//! Tests of commands that extract files from a volume: `cp`, `tar`, and `diff`, which compares the
//! results.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use crate::support;

use buttress_oracle::needs::{any_missing, missing};
use buttress_oracle::skip::skips;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use support::{buttress, failure, inside, json, stdout};

/// Only root can preserve owners, device nodes and `trusted.` attributes.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the differences between `/home` and its copy, without attributes that the host may
/// refuse.
fn differences(copy: &Path) -> String {
    let ignored = if is_root() { "xattrs" } else { "xattrs,owner,mtime" };
    let output = buttress(&[
        "diff",
        "--ignore",
        ignored,
        &inside("/home"),
        copy.to_str().unwrap(),
    ]);
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_archive_copy_is_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let output = buttress(&["cp", "-a", &inside("/home"), copy.to_str().unwrap()]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let differences = differences(&copy);
    // Users other than root cannot create device nodes or preserve owners.
    if !skips(missing("root")) {
        assert_eq!(differences, "");
    }
    let holes = fs::metadata(copy.join("plain/holes")).unwrap();
    assert_eq!(holes.len(), 3 << 20);
    assert!(
        holes.blocks() * 512 < 1 << 20,
        "{} blocks: holes were filled",
        holes.blocks()
    );
    let names =
        ["special/first-name", "special/second-name"].map(|name| fs::metadata(copy.join(name)).unwrap());
    assert_eq!(names[0].ino(), names[1].ino());
    assert_eq!((names[0].mtime(), names[0].mtime_nsec()), (-1, 999_999_999));
    let (from, to) = (
        stdout(&["stat", &inside("/home/many")]),
        fs::metadata(copy.join("many")).unwrap(),
    );
    let modified = from.lines().find(|line| line.starts_with("Modify: ")).unwrap();
    assert!(
        modified.ends_with(&format!(".{:09} +0000", to.mtime_nsec())),
        "{modified}"
    );
}

#[test]
fn a_plain_copy_has_the_content() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let words = [
        "cp",
        "-r",
        &inside("/home/compressed"),
        &inside("/home/plain"),
        copy.to_str().unwrap(),
    ];
    let totals = json(&words, "cp");
    assert_eq!(totals[0]["files"], 12);
    let ignored = "mtime,mode,owner,xattrs";
    for part in ["compressed", "plain"] {
        let other = copy.join(part);
        stdout(&[
            "diff",
            "--ignore",
            ignored,
            &inside(&format!("/home/{part}")),
            other.to_str().unwrap(),
        ]);
    }
    let (code, error) = failure(&["cp", &inside("/home"), directory.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(
        error.contains("is a directory") && error.contains("help: to copy directories, give -r"),
        "{error}"
    );
}

#[test]
fn nothing_is_written_through_links_in_the_destination() {
    let directory = tempfile::tempdir().unwrap();
    let outside = directory.path().join("outside");
    let copy = directory.path().join("copy");
    fs::create_dir(&outside).unwrap();
    fs::create_dir_all(copy.join("plain")).unwrap();
    fs::write(outside.join("victim"), "as it was").unwrap();
    // A link replaces a directory, and another link replaces a file.
    symlink(&outside, copy.join("special")).unwrap();
    symlink(outside.join("victim"), copy.join("plain/text")).unwrap();
    let (code, error) = failure(&["cp", "-r", "-T", &inside("/home"), copy.to_str().unwrap()]);
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("special") && error.contains("cannot overwrite non-directory"),
        "{error}"
    );
    assert_eq!(
        fs::read_dir(&outside).unwrap().count(),
        1,
        "something was made outside"
    );
    assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "as it was");
    assert_eq!(fs::metadata(copy.join("plain/text")).unwrap().len(), 40_000);
    // In spite of the failure, the other files were copied.
    assert_eq!(fs::read_dir(copy.join("many")).unwrap().count(), 2000);
}

#[test]
fn an_archive_unpacks_to_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("a.tar");
    let output = buttress(&["tar", "-f", archive.to_str().unwrap(), &inside("/home")]);
    assert!(output.status.success());
    let warnings = String::from_utf8_lossy(&output.stderr);
    assert!(
        warnings.contains("./special/socket: socket ignored"),
        "{warnings}"
    );
    let copy = directory.path().join("copy");
    fs::create_dir(&copy).unwrap();
    // Only root can unpack device nodes.
    if skips(any_missing(&["tar", "root"])) {
        return;
    }
    let unpacked = Command::new("tar")
        .arg("-xpf")
        .args([&archive, Path::new("-C"), &copy])
        .stderr(Stdio::null())
        .status();
    assert!(unpacked.unwrap().success());
    assert_eq!(differences(&copy), "removed         special/socket\n");
}

#[test]
fn the_same_volume_gives_the_same_archive() {
    let first = buttress(&["tar", &inside("/")]).stdout;
    assert!(first == buttress(&["tar", &inside("/")]).stdout);
    let listing = first
        .chunks(512)
        .filter(|block| block.get(257..262) == Some(b"ustar"))
        .count();
    assert!(listing > 4000, "{listing} headers");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["tar", &inside("/")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut head = [0; 512];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!String::from_utf8_lossy(&output.stderr).contains("error"));
}

#[test]
fn diff_tells_what_changed_since_the_snapshot() {
    let words = ["diff", &inside("/home-monday"), &inside("/home")];
    let output = buttress(&words);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("added           after-the-snapshot\n"), "{text}");
    assert!(text.contains("removed         plain/inline\n"), "{text}");
    assert!(text.contains("modified        plain (mtime)\n"), "{text}");
    assert!(text.contains("added           projects/README\n"), "{text}");
    assert!(!text.contains("plain/text"), "{text}");
    assert_eq!(
        buttress(&["diff", &inside("/home"), &inside("/home")])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(
        buttress(&["diff", &inside("/home"), "/nowhere"]).status.code(),
        Some(2)
    );
    let other = buttress(&["diff", &inside("/home/special/pipe"), &inside("/home/plain/text")]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stdout).contains("(fifo -> file)"));
}
