//! `cargo xtask semver`: checks by cargo-semver-checks whether the library's interface allows its
//! version.
//!
//! The chore compares the crate `buttress` without its feature `unstable`, because unstable items
//! may change with any version. The baseline is the newest tag `v…`, or the revision that
//! `--baseline-rev` names.

use crate::run::{cargo, root, run as run_command};
use anyhow::{Context, Result, bail, ensure};
use std::process::{Command, Stdio};

const USAGE: &str = "usage: cargo xtask semver [--baseline-rev REVISION]";

pub(crate) fn run(words: &[String]) -> Result<()> {
    let revision = match words {
        [] => None,
        [word, revision] if word == "--baseline-rev" => Some(revision.clone()),
        _ => bail!(USAGE),
    };
    let mut version = cargo()?;
    version
        .args(["semver-checks", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    ensure!(
        version.status().context("starting cargo")?.success(),
        "cargo-semver-checks is not installed: cargo install --locked cargo-semver-checks"
    );
    let revision = match revision {
        Some(revision) => revision,
        None => newest_release()?,
    };
    println!("buttress beside {revision}");
    run_command(cargo()?.args([
        "semver-checks",
        "--package",
        "buttress",
        "--only-explicit-features",
        "--features",
        "full",
        "--baseline-rev",
        &revision,
    ]))
}

/// Returns the newest release tag that the current commit contains.
fn newest_release() -> Result<String> {
    let words = ["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"];
    let output = Command::new("git").current_dir(root()?).args(words).output()?;
    ensure!(
        output.status.success(),
        "there is no tag v… to compare with: name a revision with --baseline-rev"
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
