//! Tests of the tour: it leaves a clean volume of a directory for experiments.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support;

use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use std::fs;
use std::process::Command;

use support::{image, json};

#[test]
fn a_volume_is_made_from_a_directory_changed_checked_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["tour", "--keep", concat!(env!("CARGO_MANIFEST_DIR"), "/src")])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}");
    for expected in [
        "no error found",
        "project",
        "before to after",
        "largest-file-shared: ",
        "damaged blocks skipped",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let made = fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    assert!(
        text.contains(&format!("The volume is {}.", made.display())),
        "{text}"
    );
    if skips(missing("btrfs")) {
        return;
    }
    let checked = Command::new("btrfs")
        .args(["check", "--check-data-csum"])
        .arg(&made)
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}

#[test]
fn tour_without_keep_removes_its_image() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["tour", concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/tour")])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("The volume was removed; to keep it for experiments, run `buttress tour --keep`"),
        "{text}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The image grows in the directory that the tour reads.
#[test]
fn a_tour_of_the_temporary_folder_omits_its_own_image() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "content").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .arg("tour")
        .arg(folder.path())
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !text.contains("FAILED"), "{text}");
}

/// The table in `docs/tour.md` lists the steps of the tour in order.
#[test]
fn page_shows_every_step_of_the_tour() {
    let page = include_str!("../../../../docs/tour.md");
    let table = page.split_once("$ buttress tour --keep\n").unwrap().1;
    let table = table.split_once("\n\n").unwrap().0;
    let shown: Vec<&str> = table
        .lines()
        .skip(1)
        .map(|line| line.split("  ").next().unwrap().trim())
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args([
            "tour",
            "--format",
            "json",
            concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/tour"),
        ])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = document["tour"]["steps"].as_array().unwrap();
    let steps: Vec<&str> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(shown, steps);
}

#[test]
fn a_volume_that_is_there_is_only_looked_at() {
    let before = fs::metadata(image()).unwrap().modified().unwrap();
    let tour = json(&["tour", image().to_str().unwrap()], "tour");
    assert!(tour["image"].is_null());
    let steps = tour["steps"].as_array().unwrap();
    assert!(steps.iter().all(|step| step["ok"] == true), "{tour}");
    assert_eq!(fs::metadata(image()).unwrap().modified().unwrap(), before);
}
