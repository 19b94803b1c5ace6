//! `check --repair`: where the repair goes, when it is kept, and what the command refuses.
//!
//! The damage is a superblock copy with a wrong checksum. The tests of the crate `repair` have the
//! repairs themselves.

use crate::support::{buttress, failure, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An offset in the first copy of the superblock.
const IN_COPY: u64 = (64 << 20) + 500;

/// Makes a volume with one damaged superblock copy.
fn damaged(folder: &Path) -> PathBuf {
    let image = folder.join("ill.img");
    let made = buttress(&["mkfs", "-q", "--size", "128M", &image.to_string_lossy()]);
    assert!(made.status.success());
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0x5a; 8], IN_COPY).unwrap();
    image
}

/// Runs a check of an image with further words. Returns the exit code and standard output.
fn check(image: &Path, words: &[&str]) -> (i32, String) {
    let output = buttress(&[&["check"], words, &[&image.to_string_lossy()]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap(), text)
}

fn overlay_of(image: &Path) -> PathBuf {
    image.with_extension("img.repair")
}

#[test]
fn repair_leaves_the_image_until_it_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let image = damaged(folder.path());
    let before = fs::read(&image).unwrap();
    let (code, text) = check(&image, &["--repair"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("step 1 [superblock-damaged]"), "{text}");
    assert!(text.contains("overlay commit"), "{text}");
    assert!(fs::read(&image).unwrap() == before, "the image changed");
    let overlay = overlay_of(&image);
    let over = ["--overlay", &overlay.to_string_lossy()];
    assert_eq!(check(&image, &over).0, 0);
    fs::remove_file(&overlay).unwrap();
    assert_eq!(check(&image, &[]).0, 1);
    let (code, text) = check(&image, &["--repair", "--commit"]);
    assert_eq!(code, 0, "{text}");
    assert!(!overlay.exists());
    assert_eq!(check(&image, &[]).0, 0);
    // Without a finding, a repair makes no overlay.
    assert_eq!(check(&image, &["--repair"]).0, 0);
    assert!(!overlay.exists());
}

#[test]
fn repair_in_place_changes_the_image_after_a_trial() {
    let folder = tempfile::tempdir().unwrap();
    let image = damaged(folder.path());
    let (code, text) = check(&image, &["--repair", "--in-place"]);
    assert_eq!(code, 0, "{text}");
    assert!(!overlay_of(&image).exists());
    assert_eq!(check(&image, &[]).0, 0);
}

#[test]
fn dry_run_of_a_repair_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let image = damaged(folder.path());
    let before = fs::read(&image).unwrap();
    let (code, text) = check(&image, &["--repair", "--dry-run"]);
    assert_eq!(code, 1, "{text}");
    assert!(fs::read(&image).unwrap() == before, "the image changed");
    assert!(!overlay_of(&image).exists());
}

#[test]
fn repair_refuses_unknown_codes_and_earlier_overlays() {
    let folder = tempfile::tempdir().unwrap();
    let image = damaged(folder.path());
    let name = image.to_string_lossy();
    let (code, message) = failure(&["check", "--repair", "--yes-to", "no-such-code", &name]);
    assert_eq!(code, 2);
    assert!(message.contains("no finding has this code"), "{message}");
    assert_eq!(check(&image, &["--repair", "--yes-to", "all"]).0, 0);
    let (code, message) = failure(&["check", "--repair", &name]);
    assert_eq!(code, 2);
    assert!(message.contains("an earlier repair"), "{message}");
    let overlay = overlay_of(&image);
    let (code, message) = failure(&[
        "check",
        "--repair",
        "--in-place",
        "--overlay",
        &overlay.to_string_lossy(),
        &name,
    ]);
    assert_eq!(code, 2);
    assert!(message.contains("give one of both"), "{message}");
}

#[test]
fn repair_in_json_has_both_verdicts() {
    let folder = tempfile::tempdir().unwrap();
    let image = damaged(folder.path());
    let document = json(&["check", "--repair", &image.to_string_lossy()], "check");
    assert_eq!(document["clean"], false);
    let document = &document["repair"];
    assert_eq!(document["kept"], "better");
    assert_eq!(document["severity-before"]["redundancy"], 1);
    assert_eq!(document["severity-after"]["redundancy"], 0);
    assert_eq!(document["plan"][0]["codes"][0], "superblock-damaged");
    assert_eq!(document["done"][0]["changed"], true);
    assert_eq!(document["after"]["clean"], true);
}
