//! `cargo xtask test`: every test, with what was skipped and why, and one line that counts them.

use crate::run::{self, cargo};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Counts {
    /// Adds the closing line of one test program: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result:") else {
            return;
        };
        for part in rest.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (
                words.next().and_then(|word| word.parse::<u64>().ok()),
                words.next(),
            ) else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

/// Runs the tests whose names contain the filter, or all.
pub(crate) fn run(words: &[String]) -> Result<()> {
    tools::install_missing();
    let progs = tools::newer_progs()?;
    // The comparisons run the command, which cargo does not build for another crate's tests by itself.
    run::run(cargo()?.args(["build", "--quiet", "-p", "buttress-cli"]))?;
    let mut command = cargo()?;
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(words)
        .stdout(Stdio::piped());
    if let Some(folder) = &progs {
        command.env("BUTTRESS_PROGS", folder);
    }
    let mut child = command.spawn().context("starting cargo test")?;
    let output = child.stdout.take().context("cargo's output")?;
    let mut counts = Counts::default();
    let mut skipped = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        counts.add(&line);
        if let Some((name, reason)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... ignored"))
        {
            skipped.push(format!("{name}: {}", reason.trim_start_matches([',', ' '])));
        }
        println!("{line}");
    }
    let status = child.wait()?;
    if !skipped.is_empty() {
        println!("\nskipped:");
        for line in &skipped {
            println!("  {line}");
        }
    }
    // A program that could not be built or that crashed has no closing line, but is a failure.
    if !status.success() && counts.failed == 0 {
        counts.failed = 1;
    }
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed, counts.failed, counts.skipped
    );
    std::io::stdout().flush()?;
    if !status.success() {
        bail!("cargo test ended with {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut counts = Counts::default();
        counts.add(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s",
        );
        counts.add("test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out");
        counts.add("test something ... ok");
        assert_eq!((counts.passed, counts.failed, counts.skipped), (5, 4, 1));
    }
}
