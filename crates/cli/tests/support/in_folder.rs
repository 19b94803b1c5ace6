//! Commands that run in a folder, and name its images by relative paths.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a panic is how a test fails; each test uses a part of this"
)]

use std::path::Path;
use std::process::{Command, Output};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_buttress");

/// Runs a command in a folder.
pub fn buttress(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).args(words).output().unwrap()
}

/// Returns the standard output of a command in a folder, which must exit with 0.
pub fn done(folder: &Path, words: &[&str]) -> String {
    let output = buttress(folder, words);
    let code = output.status.code();
    assert_eq!(code, Some(0), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
