//! `cargo xtask test --quick`: the most informative tests for their time, for the minutes between
//! two edits.
//!
//! A single command builds the quick tests, with the program `buttress` (whose tests need it) and
//! the features of the whole workspace. The whole suite therefore reuses most of the build later.
//! Before the closing line the chore lists the tests that it left out, by name and number. The
//! closing line counts only tests that ran.

use super::counts::{Counts, Skipped, finish};
use super::listen;
use super::words::Words;
use crate::programs::{self, Program};
use crate::run::cargo;
use crate::tools;
use anyhow::{Context, Result};
use buttress_oracle::needs::REFERENCE_PROGS;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

/// A test program, and its quick tests.
struct Part {
    package: &'static str,
    /// `lib` and `bin` (of this chore) are unit tests; other names are files or folders of
    /// `tests/`.
    target: &'static str,
    /// Arguments of the program: names of tests to run, or names to leave out after `--skip`.
    words: &'static [&'static str],
    /// Sizes of random runs.
    sizes: &'static [(&'static str, &'static str)],
}

const fn all(package: &'static str, target: &'static str) -> Part {
    some(package, target, &[])
}

const fn some(package: &'static str, target: &'static str, words: &'static [&'static str]) -> Part {
    Part {
        package,
        target,
        words,
        sizes: &[],
    }
}

/// Crates without quick tests, which would take long to build.
const UNTOUCHED: [&str; 2] = ["buttress-bench", "buttress-hostile"];

/// The quick tests, from the lowest layer up, so that the first failure is the deepest.
const PARTS: &[Part] = &[
    all("xtask", "bin"),
    all("buttress-format", "lib"),
    all("buttress-device", "lib"),
    all("buttress-lab", "lib"),
    all("buttress-extfs", "lib"),
    all("buttress-volume", "lib"),
    some("buttress-volume", "volume", &["rows::"]),
    all("buttress-tree", "lib"),
    all("buttress-fs", "lib"),
    all("buttress-accounts", "lib"),
    all("buttress-engine", "lib"),
    // Two tests take as long as all others together, and one needs a recent btrfs-progs; all three
    // are left out.
    some(
        "buttress-writer",
        "lib",
        &[
            "--skip",
            "a_full_volume_says_so_and_can_be_emptied",
            "--skip",
            "an_inode_has_at_most_65535_names",
            "--skip",
            "data_is_allocated_shared_and_freed",
        ],
    ),
    all("buttress-check", "lib"),
    all("buttress-scrub", "lib"),
    all("buttress-stream", "lib"),
    all("buttress", "lib"),
    all("buttress", "files"),
    all("buttress-cli", "lib"),
    some("buttress-cli", "commands", &["look::"]),
    // A volume that the kernel made and filled, read by the library and the command, and compared.
    some("buttress-proof", "kernel", &["matrix::crc32c_nodes_of_16_kib"]),
    // Random changes beside the model and, if available, the kernel.
    Part {
        package: "buttress-proof",
        target: "writing",
        words: &["model::plain_0"],
        sizes: &[("BUTTRESS_WRITING_OPERATIONS", "7000")],
    },
];

/// Runs all quick tests.
pub(super) fn run(words: &Words) -> Result<()> {
    let begin = Instant::now();
    let progs = if words.without.iter().any(|need| need == REFERENCE_PROGS) {
        None
    } else {
        tools::unpacked_progs()?
    };
    let mut command = cargo()?;
    command.args(["test", "--no-run", "--workspace"]);
    command.args(UNTOUCHED.iter().flat_map(|package| ["--exclude", package]));
    command.args(target_words());
    let programs = programs::build(&mut command)?;
    let built = begin.elapsed();
    let skipped = Skipped::new()?;
    let mut counts = Counts::default();
    let mut success = true;
    for part in PARTS {
        let key = (part.package.to_owned(), part.target.to_owned());
        let Program { path, folder } = programs
            .get(&key)
            .with_context(|| format!("{} has no test program {}", part.package, part.target))?;
        let started = Instant::now();
        println!("\n{} {}", part.package, part.target);
        let mut command = Command::new(path);
        command.args(part.words).current_dir(folder);
        command.envs(part.sizes.iter().copied());
        skipped.tell(&mut command, &words.without, progs.as_ref());
        success &= listen(&mut command, &mut counts)?;
        println!(
            "{} {}: {:.1} s",
            part.package,
            part.target,
            started.elapsed().as_secs_f64()
        );
    }
    let untouched = test_targets()?
        .into_iter()
        .filter(|(package, target)| {
            !PARTS
                .iter()
                .any(|part| part.package == package && part.target == target)
        })
        .map(|(package, target)| format!("{package} {target}"));
    println!(
        "\nleft out, as `cargo xtask test` does not: {} tests of these programs, and these programs: {}",
        counts.left_out,
        untouched.collect::<Vec<_>>().join(", ")
    );
    println!(
        "{:.0} s to see what is built, {:.0} s in all",
        built.as_secs_f64(),
        begin.elapsed().as_secs_f64()
    );
    finish(counts, skipped, success, words)
}

/// Returns the arguments with which cargo builds exactly these programs.
fn target_words() -> Vec<&'static str> {
    let targets: BTreeSet<&str> = PARTS.iter().map(|part| part.target).collect();
    targets
        .into_iter()
        .flat_map(|target| match target {
            "lib" => vec!["--lib"],
            "bin" => vec!["--bin", "xtask"],
            target => vec!["--test", target],
        })
        .collect()
}

/// Returns the test programs of the workspace: package and target.
pub(super) fn test_targets() -> Result<Vec<(String, String)>> {
    let words = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let metadata: Value = serde_json::from_slice(&cargo()?.args(words).output()?.stdout)?;
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().context("a list of packages")? {
        let name = package["name"].as_str().context("a package's name")?;
        for target in package["targets"].as_array().into_iter().flatten() {
            if target["kind"][0].as_str() == Some("test") {
                let target = target["name"].as_str().context("a target's name")?;
                found.push((name.to_owned(), target.to_owned()));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quick_program_is_a_test_program() {
        let targets = test_targets().unwrap();
        for part in PARTS.iter().filter(|part| !["lib", "bin"].contains(&part.target)) {
            let key = (part.package.to_owned(), part.target.to_owned());
            assert!(targets.contains(&key), "{key:?}");
        }
        assert!(targets.len() > PARTS.len(), "some are left out");
    }

    #[test]
    fn the_kernel_and_the_command_are_among_them() {
        let has = |package: &str, target: &str| {
            PARTS
                .iter()
                .any(|part| part.package == package && part.target == target)
        };
        assert!(has("buttress-proof", "kernel") && has("buttress-cli", "commands"));
        for lower in [
            "format", "device", "volume", "tree", "fs", "accounts", "engine", "writer",
        ] {
            assert!(has(&format!("buttress-{lower}"), "lib"), "{lower}");
        }
    }
}
