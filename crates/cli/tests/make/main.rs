//! Tests of commands that create and change volumes: mkfs, subvolume, property, label, each also
//! over an overlay.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

#[path = "../support/mod.rs"]
mod support;

mod changing;
mod epoch;
mod hard_links;
mod mkfs;
mod offset;
mod tuning;

use support::stdout;

/// Creates a folder, and returns the path of an image that does not exist yet.
fn fresh() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("new.img").to_str().unwrap().to_owned();
    (folder, image)
}

fn made() -> (tempfile::TempDir, String) {
    let (folder, image) = fresh();
    stdout(&["mkfs", "-q", "-b", "256M", "-L", "new", &image]);
    (folder, image)
}

fn check(image: &str) {
    let text = stdout(&["check", image]);
    assert!(text.contains("no error found"), "{text}");
}
