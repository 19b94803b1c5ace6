//! `cargo xtask miri`: runs tests of the crates with `unsafe` code under Miri, which reports
//! undefined behaviour.
//!
//! Miri interprets the program. Miri has no io_uring and few system calls on files, so [`PARTS`]
//! names the tests that Miri can run. The chore needs a nightly toolchain with the component
//! `miri`. Without one it prints `skipped` and succeeds; with `--all` it fails.

use crate::run::{root, run as run_command, target};
use anyhow::{Result, bail};
use std::process::{Command, Stdio};
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask miri [--all] [PACKAGE]";

/// Packages, each with the arguments of `cargo test` that choose its tests.
const PARTS: [(&str, &[&str]); 3] = [
    ("buttress-locks", &["--lib", "--tests"]),
    ("buttress-ring", &["--lib"]),
    (
        "buttress-device",
        &["--lib", "--", "buffer::", "queue::", "partition::"],
    ),
];

pub(crate) fn run(words: &[String]) -> Result<()> {
    let (mut all, mut only) = (false, None);
    for word in words {
        match word.as_str() {
            "--all" => all = true,
            word if word.starts_with('-') || only.is_some() => bail!(USAGE),
            word => only = Some(word),
        }
    }
    let chosen: Vec<_> = PARTS
        .iter()
        .filter(|(name, _)| only.is_none_or(|only| *name == only))
        .collect();
    if chosen.is_empty() {
        bail!(USAGE);
    }
    if !has_miri()? {
        let remedy = "rustup toolchain install nightly --component miri --component rust-src";
        if all {
            bail!("there is no nightly toolchain with Miri: run `{remedy}`");
        }
        println!("Miri: skipped, no nightly toolchain has it; to install one, run `{remedy}`");
        return Ok(());
    }
    for (name, words) in chosen {
        let begun = Instant::now();
        let mut command = nightly(&["miri", "test", "--locked", "--package", name])?;
        run_command(command.args(*words))?;
        println!("{name}: passed in {} s", begun.elapsed().as_secs());
    }
    Ok(())
}

/// Returns the cargo of the nightly toolchain.
fn nightly(words: &[&str]) -> Result<Command> {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo"])
        .args(words)
        .current_dir(root()?)
        .env("CARGO_TARGET_DIR", target()?.join("miri"))
        // Random tests read files with seeds that failed before.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("PROPTEST_CASES", "4")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    Ok(command)
}

fn has_miri() -> Result<bool> {
    let mut command = nightly(&["miri", "--version"])?;
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(status.is_ok_and(|status| status.success()))
}
