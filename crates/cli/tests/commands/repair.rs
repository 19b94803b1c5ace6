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

/// Makes a volume with one damaged superblock copy on two images.
fn damaged_pair(folder: &Path) -> (PathBuf, PathBuf) {
    let (image, other) = (folder.join("ill.img"), folder.join("other.img"));
    for path in [&image, &other] {
        File::create(path).unwrap().set_len(128 << 20).unwrap();
    }
    let [name, other_name] = [&image, &other].map(|path| path.to_string_lossy().into_owned());
    assert!(buttress(&["mkfs", "-q", &name]).status.success());
    assert!(buttress(&["device", "add", &other_name, &name]).status.success());
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0x5a; 8], IN_COPY).unwrap();
    (image, other)
}

#[test]
fn repair_of_two_images_names_and_commits_both_overlays() {
    let folder = tempfile::tempdir().unwrap();
    let (image, other) = damaged_pair(folder.path());
    let [name, other] = [&image, &other].map(|path| path.to_string_lossy().into_owned());
    let repair = ["check", "--repair", "--device", &other, &name];
    let output = buttress(&repair);
    let text = String::from_utf8_lossy(&output.stdout);
    let commit = format!("overlay commit {name}.repair {name} {other}");
    let discard = format!("overlay discard {name}.repair {name}.repair.2");
    assert!(text.contains(&commit) && text.contains(&discard), "{text}");
    let overlay = format!("{name}.repair");
    let (code, message) = failure(&["overlay", "commit", &overlay, &name]);
    assert_eq!(code, 1);
    assert!(message.contains("the overlay has more images"), "{message}");
    // The second overlay alone also is an earlier repair.
    let kept = folder.path().join("kept");
    fs::rename(&overlay, &kept).unwrap();
    let (code, message) = failure(&repair);
    assert_eq!(code, 2);
    assert!(
        message.contains("an earlier repair") && message.contains(".repair.2"),
        "{message}"
    );
    fs::rename(&kept, &overlay).unwrap();
    assert!(
        buttress(&["overlay", "commit", &overlay, &name, &other])
            .status
            .success()
    );
    assert_eq!(check(&image, &["--device", &other]).0, 0);
}

#[test]
fn commit_refuses_an_earlier_overlay() {
    let folder = tempfile::tempdir().unwrap();
    let image = damaged(folder.path());
    let name = image.to_string_lossy();
    assert_eq!(check(&image, &["--repair"]).0, 0);
    let overlay = format!("{name}.repair");
    let (code, message) = failure(&["check", "--repair", "--commit", "--overlay", &overlay, &name]);
    assert_eq!(code, 2);
    assert!(
        message.contains(&format!("overlay commit {overlay} {name}")),
        "{message}"
    );
    assert!(Path::new(&overlay).exists());
    assert_eq!(check(&image, &[]).0, 1);
}

#[test]
fn failed_repair_deletes_the_overlays_that_it_made() {
    let folder = tempfile::tempdir().unwrap();
    let (image, other) = damaged_pair(folder.path());
    let [name, other] = [&image, &other].map(|path| path.to_string_lossy().into_owned());
    let overlay = format!("{name}.repair");
    // The second overlay cannot be created.
    std::os::unix::fs::symlink("/no such directory/file", format!("{overlay}.2")).unwrap();
    let (code, message) = failure(&["check", "--repair", "--device", &other, &name]);
    assert_eq!(code, 2, "{message}");
    assert!(!Path::new(&overlay).exists());
}
