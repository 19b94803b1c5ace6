//! `cargo xtask targets`: checks a program that reads volumes for other processors and systems.
//!
//! The chore runs `cargo check` on the facade without features, so it compiles types and
//! conditions, and links and runs nothing. Build scripts of dependencies would compile C; a
//! placeholder replaces the compiler, so no cross compiler is needed. If the toolchain lacks the
//! standard library of a target, the chore skips the target. `--add` installs the library by
//! rustup; `--all` fails without it.

use crate::run::{cargo, root, run as run_command};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::process::Command;

const USAGE: &str = "usage: cargo xtask targets [--add] [--all] [TARGET…]";

/// Targets, each with the property that it represents.
const TARGETS: [(&str, &str); 9] = [
    ("i686-unknown-linux-gnu", "32-bit"),
    ("armv7-unknown-linux-gnueabihf", "32-bit"),
    ("s390x-unknown-linux-gnu", "big-endian"),
    ("powerpc64-unknown-linux-gnu", "big-endian"),
    ("wasm32-wasip1", "WASI"),
    ("x86_64-apple-darwin", "macOS"),
    ("aarch64-apple-darwin", "macOS"),
    ("x86_64-pc-windows-gnu", "Windows"),
    ("x86_64-unknown-freebsd", "FreeBSD"),
];

/// The results of the builds, by target triple.
#[derive(Default)]
struct Results<'a> {
    passed: Vec<&'a str>,
    failed: Vec<&'a str>,
    skipped: Vec<&'a str>,
}

/// Checks the given targets, or all of [`TARGETS`].
pub(crate) fn run(words: &[String]) -> Result<()> {
    let (mut add, mut all, mut named) = (false, false, Vec::new());
    for word in words {
        match word.as_str() {
            "--add" => add = true,
            "--all" => all = true,
            word if word.starts_with('-') => bail!(USAGE),
            word => named.push(word),
        }
    }
    if named.is_empty() {
        named = TARGETS.iter().map(|(target, _)| *target).collect();
    }
    let mut installed = installed()?;
    let mut results = Results::default();
    for target in named {
        if add && !installed.contains(target) && install(target) {
            installed.insert(target.to_owned());
        }
        let (list, result) = match installed.contains(target) {
            false => (&mut results.skipped, "skipped: no std"),
            true => match check(target) {
                Ok(()) => (&mut results.passed, "passed"),
                Err(_) => (&mut results.failed, "FAILED"),
            },
        };
        list.push(target);
        println!("{target} ({}): {result}", meaning(target));
    }
    results.finish(all)
}

impl Results<'_> {
    /// Prints the totals. Returns an error if the check of a target failed, or if `all` is set and
    /// a target was skipped.
    fn finish(&self, all: bool) -> Result<()> {
        println!(
            "{} targets passed, {} failed, {} skipped",
            self.passed.len(),
            self.failed.len(),
            self.skipped.len()
        );
        if !self.failed.is_empty() {
            bail!("the check failed for {}", self.failed.join(", "));
        }
        if all && !self.skipped.is_empty() {
            bail!(
                "the toolchain has no standard library for {}: run `cargo xtask targets --add`",
                self.skipped.join(", ")
            );
        }
        Ok(())
    }
}

/// Returns the property that a target represents.
fn meaning(target: &str) -> &'static str {
    let known = TARGETS.iter().find(|(name, _)| *name == target);
    known.map_or("asked for", |(_, meaning)| meaning)
}

/// Returns the targets whose standard library rustc has. The toolchain need not come from rustup.
fn installed() -> Result<BTreeSet<String>> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let words = ["--print", "sysroot"];
    let output = Command::new(rustc).current_dir(root()?).args(words).output()?;
    let sysroot = String::from_utf8(output.stdout).context("the toolchain's folder")?;
    let folder = std::path::Path::new(sysroot.trim()).join("lib/rustlib");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))?;
    let folders = entries
        .flatten()
        .filter(|entry| entry.path().join("lib").is_dir());
    Ok(folders
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

/// Installs the standard library of a target by rustup. Returns whether the installation succeeded.
fn install(target: &str) -> bool {
    let Ok(root) = root() else { return false };
    let words = ["target", "add", target];
    let status = Command::new("rustup").current_dir(root).args(words).status();
    status.is_ok_and(|status| status.success())
}

fn check(target: &str) -> Result<()> {
    let mut command = cargo()?;
    command.args(["check", "--locked", "--quiet", "--lib", "--package", "buttress"]);
    command.args(["--target", target]);
    // Only a linker needs the objects that the build scripts would compile.
    command.env("TARGET_CC", "true").env("TARGET_AR", "true");
    run_command(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The forge's workflow checks each target by name.
    #[test]
    fn workflow_checks_every_target() {
        let path = root().unwrap().join(".github/workflows/ci.yml");
        let workflow = std::fs::read_to_string(path).unwrap();
        for (target, _) in TARGETS {
            assert!(workflow.contains(&format!("- {target}\n")), "{target}");
        }
    }

    #[test]
    fn skipped_target_fails_only_if_all_are_wanted() {
        let skipped = Results {
            skipped: vec!["a-target"],
            ..Results::default()
        };
        assert!(skipped.finish(false).is_ok());
        assert!(skipped.finish(true).is_err());
        let failed = Results {
            failed: vec!["a-target"],
            ..Results::default()
        };
        assert!(failed.finish(false).is_err());
    }
}
