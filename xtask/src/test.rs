//! `cargo xtask test`: every test, with what was skipped and why, and one line that counts them.
//!
//! A test that could not run counts as skipped, and so does one that left a part out: tests of `cargo test`'s own harness,
//! which cannot say so, write it into a file ([`buttress_oracle::skip`]). A skip is a failure of the run unless `--without`
//! names what is missing; with `CI=true` it always is.

use crate::run::{self, cargo, target};
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::needs::{self, REFERENCE_PROGS};
use buttress_oracle::skip::{RECORDS, Record, Told, is_ci};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Words {
    /// Needs that may be missing, and are taken as missing.
    without: Vec<String>,
    /// What goes on to cargo.
    cargo: Vec<String>,
}

impl Words {
    fn parse(words: &[String]) -> Result<Self> {
        let mut parsed = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let need = match word.strip_prefix("--without") {
                Some("") => words.next().context("--without wants the name of a tool")?,
                Some(rest) => rest
                    .strip_prefix('=')
                    .context("--without wants the name of a tool")?,
                None => {
                    parsed.cargo.push(word.clone());
                    continue;
                }
            };
            let known: Vec<_> = needs::names().collect();
            ensure!(
                known.contains(&need),
                "no test needs {need:?}; what may be missing is one of: {}",
                known.join(", ")
            );
            parsed.without.push(need.to_owned());
        }
        Ok(parsed)
    }

    /// Whether some packages only are asked for.
    fn choose_packages(&self) -> bool {
        let chooses = |word: &String| word == "-p" || word == "--package" || word.starts_with("--package=");
        self.cargo.iter().any(chooses)
    }
}

/// What the test programs printed, as far as it counts.
#[derive(Debug, Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// Names of tests that failed, and of those that their harness told as ignored.
    failures: BTreeSet<String>,
    ignored: BTreeMap<String, String>,
}

impl Counts {
    /// Looks at one line of a test program: `test NAME ... FAILED`, `test NAME ... ignored, WHY`, or its closing line,
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else {
            return;
        };
        if let Some(rest) = rest.strip_prefix("result:") {
            self.add_closing(rest);
        } else if let Some((name, how)) = rest.split_once(" ... ") {
            if how.starts_with("FAILED") {
                self.failures.insert(name.to_owned());
            } else if let Some(why) = how.strip_prefix("ignored") {
                let why = why.trim_start_matches([',', ' ']).to_owned();
                self.ignored.insert(name.to_owned(), why);
            }
        }
    }

    fn add_closing(&mut self, line: &str) {
        for part in line.split(['.', ';']) {
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

    /// Counts tests as skipped that passed for their harness, but left something out. Gives a line for each thing that was
    /// left out, with the name of what was missing if it is known.
    fn add_skips(&mut self, records: &[Record]) -> Vec<Skip> {
        let counted: BTreeSet<_> = records
            .iter()
            .filter(|record| record.told == Told::Passed && !self.failures.contains(&record.test))
            .map(|record| (&record.program, &record.test))
            .collect();
        let counted = counted.len() as u64;
        self.passed = self.passed.saturating_sub(counted);
        self.skipped += counted;
        let mut skips: BTreeSet<Skip> = records
            .iter()
            .map(|record| Skip {
                test: record.test.clone(),
                reason: record.reason.clone(),
                need: Some(record.need.clone()),
            })
            .collect();
        for (test, reason) in &self.ignored {
            if !records.iter().any(|record| record.test == *test) {
                skips.insert(Skip {
                    test: test.clone(),
                    reason: reason.clone(),
                    need: None,
                });
            }
        }
        skips.into_iter().collect()
    }
}

/// Something that was left out.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Skip {
    test: String,
    reason: String,
    /// What was missing, if the test said so by name.
    need: Option<String>,
}

/// The needs for want of which something was skipped though nobody said that they may be missing.
fn not_accepted<'a>(skips: &'a [Skip], without: &[String], is_ci: bool) -> BTreeSet<&'a str> {
    let needs = skips
        .iter()
        .map(|skip| skip.need.as_deref().unwrap_or("(ignored)"));
    needs
        .filter(|need| is_ci || !without.iter().any(|name| name == need))
        .collect()
}

/// Runs the tests that the words choose, or all.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let words = Words::parse(words)?;
    tools::install_missing_but(&words.without);
    let progs = if words.without.iter().any(|need| need == REFERENCE_PROGS) {
        None
    } else {
        tools::newer_progs()?
    };
    // The comparisons run the command, which cargo does not build for another crate's tests by itself.
    run::run(cargo()?.args(["build", "--quiet", "-p", "buttress-cli"]))?;
    let records = target()?.join(format!("skipped-{}", std::process::id()));
    std::fs::write(&records, "").with_context(|| format!("making {}", records.display()))?;
    let mut command = cargo()?;
    command.args(["test", "--no-fail-fast"]);
    if !words.choose_packages() {
        command.arg("--workspace");
    }
    command
        .args(&words.cargo)
        .env(RECORDS, &records)
        .env(needs::WITHOUT, words.without.join(","))
        .stdout(Stdio::piped());
    if let Some(folder) = &progs {
        command.env("BUTTRESS_PROGS", folder);
    } else {
        command.env_remove("BUTTRESS_PROGS");
    }
    let mut child = command.spawn().context("starting cargo test")?;
    let output = child.stdout.take().context("cargo's output")?;
    let mut counts = Counts::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        counts.add(&line);
        println!("{line}");
    }
    let status = child.wait()?;
    let told = std::fs::read_to_string(&records).context("reading what was skipped")?;
    std::fs::remove_file(&records)?;
    let told: Vec<Record> = told.lines().filter_map(Record::parse).collect();
    let skips = counts.add_skips(&told);
    if !skips.is_empty() {
        println!("\nskipped:");
        for Skip { test, reason, .. } in &skips {
            println!("  {test}: {reason}");
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
    ensure!(status.success(), "cargo test ended with {status}");
    let not_accepted: Vec<_> = not_accepted(&skips, &words.without, is_ci())
        .into_iter()
        .collect();
    if !not_accepted.is_empty() && is_ci() {
        bail!(
            "with CI=true nothing may be skipped; missing: {}",
            not_accepted.join(", ")
        );
    }
    if !not_accepted.is_empty() {
        bail!(
            "tests were skipped; what is missing can be left out knowingly: cargo xtask test --without {}",
            not_accepted.join(" --without ")
        );
    }
    ensure!(
        counts.passed + counts.skipped > 0,
        "no test was chosen by {:?}",
        words.cargo.join(" ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn record(test: &str, told: Told) -> Record {
        Record {
            program: "program".to_owned(),
            test: test.to_owned(),
            need: "tar".to_owned(),
            told,
            reason: "no tar".to_owned(),
        }
    }

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

    #[test]
    fn a_test_that_left_something_out_is_skipped_and_not_passed() {
        let mut counts = Counts::default();
        counts.add("test one ... ok");
        counts.add("test two ... ok");
        counts.add("test three ... FAILED");
        counts.add("test four ... ignored, no tar");
        counts.add("test five ... ignored");
        counts.add("test result: FAILED. 2 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out");
        let skips = counts.add_skips(&[
            // Twice in one test, once in one that failed all the same, once where the harness counted it.
            record("one", Told::Passed),
            record("one", Told::Passed),
            record("three", Told::Passed),
            record("four", Told::Ignored),
        ]);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (1, 1, 3));
        let tests: Vec<_> = skips.iter().map(|skip| skip.test.as_str()).collect();
        assert_eq!(tests, ["five", "four", "one", "three"]);
        assert_eq!(skips[0].need, None, "ignored for a reason of its own");
    }

    #[test]
    fn what_is_missing_must_be_named() {
        let skips = [Skip {
            test: "one".to_owned(),
            reason: "no tar".to_owned(),
            need: Some("tar".to_owned()),
        }];
        assert_eq!(not_accepted(&[], &[], true).len(), 0);
        assert!(not_accepted(&skips, &words(&["root"]), false).contains("tar"));
        assert_eq!(not_accepted(&skips, &words(&["root", "tar"]), false).len(), 0);
        assert_eq!(not_accepted(&skips, &words(&["tar"]), true).len(), 1, "not in CI");
    }

    #[test]
    fn words_are_ours_or_cargos() {
        let parsed = Words::parse(&words(&[
            "--without",
            "tar",
            "-p",
            "xtask",
            "--without=root",
            "name",
        ]));
        let parsed = parsed.unwrap();
        assert_eq!(parsed.without, ["tar", "root"]);
        assert_eq!(parsed.cargo, ["-p", "xtask", "name"]);
        assert!(parsed.choose_packages());
        for wrong in [&["--without"][..], &["--without", "a-thing"], &["--without-tar"]] {
            assert!(Words::parse(&words(wrong)).is_err(), "{wrong:?}");
        }
    }

    /// Tests leave things out by [`buttress_oracle::skip`] alone: what only prints that it was skipped passes.
    #[test]
    fn no_test_says_only_in_print_that_it_was_skipped() {
        let root = run::root().unwrap();
        let mut folders: Vec<_> = ["crates", "bench", "xtask"].map(|name| root.join(name)).into();
        let mut found = Vec::new();
        let words = ["println!(\"", "print!(\""].map(|start| format!("{start}skip"));
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let says = |line: &&str| words.iter().any(|word| line.contains(word.as_str()));
                    if let Some(line) = text.lines().find(|line| says(line)) {
                        found.push(format!("{}: {}", path.display(), line.trim()));
                    }
                }
            }
        }
        assert_eq!(
            found, [""; 0],
            "buttress_oracle::skip::skip counts what is left out"
        );
    }
}
