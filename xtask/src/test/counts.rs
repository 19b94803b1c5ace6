//! Counts of the results of test programs (passed, failed, skipped), and the result of the run.

use super::words::Words;
use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::needs;
use buttress_oracle::skip::{RECORDS, Record, Told, is_ci};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The file in which tests record skipped parts.
pub(super) struct Skipped(PathBuf);

impl Skipped {
    pub(super) fn new() -> Result<Self> {
        let path = crate::run::target()?.join(format!("skipped-{}", std::process::id()));
        std::fs::write(&path, "").with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }

    /// Sets a test command's environment: the file of skips, the needs that count as missing, and
    /// the place of btrfs-progs.
    pub(super) fn tell(&self, command: &mut Command, without: &[String], progs: Option<&PathBuf>) {
        command
            .env(RECORDS, &self.0)
            .env(needs::WITHOUT, without.join(","));
        match progs {
            Some(folder) => command.env("BUTTRESS_PROGS", folder),
            None => command.env_remove("BUTTRESS_PROGS"),
        };
    }

    /// Returns the recorded skips, and removes the file.
    fn take(self) -> Result<Vec<Record>> {
        let told = std::fs::read_to_string(&self.0).context("reading what was skipped")?;
        std::fs::remove_file(&self.0)?;
        Ok(told.lines().filter_map(Record::parse).collect())
    }
}

/// The counts from the output of test programs.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    /// The number of tests of these programs that the arguments did not choose.
    pub(super) left_out: u64,
    /// Names of tests that failed, and of tests that their harness reported as ignored.
    failures: BTreeSet<String>,
    ignored: BTreeMap<String, String>,
    /// The running test, if a program printed its name and then output of the test itself.
    running: Option<String>,
}

/// The end of a test, from a line of output.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TestEnd {
    pub(super) test: String,
    /// The duration, if the line states it.
    pub(super) time: Option<Duration>,
}

impl Counts {
    /// Reads a line of a test program: `test NAME ... FAILED`, `test NAME ... ignored, WHY`, or its
    /// closing line, `test result: ok. 3 passed; 0 failed; 1 ignored; …`. Returns the test that
    /// ended with this line.
    ///
    /// With one thread a program prints `test NAME ... ` first. Output of the test's processes can
    /// follow the name, and the result is then on a separate line.
    pub(super) fn add(&mut self, line: &str) -> Option<TestEnd> {
        let rest = line.strip_prefix("test ").unwrap_or_default();
        if let Some(rest) = rest.strip_prefix("result:") {
            self.add_closing(rest);
            return None;
        }
        let (name, how) = match rest.split_once(" ... ") {
            Some((name, how)) if is_end(how) => (name.to_owned(), how),
            Some((name, _)) => {
                self.running = Some(name.to_owned());
                return None;
            }
            None if ["ok", "FAILED"].contains(&line) || line.starts_with("ignored, ") => {
                (self.running.take()?, line)
            }
            None => return None,
        };
        self.running = None;
        if how.starts_with("FAILED") {
            self.failures.insert(name.clone());
        } else if let Some(why) = how.strip_prefix("ignored") {
            let why = why.trim_start_matches([',', ' ']).to_owned();
            self.ignored.insert(name.clone(), why);
        }
        let seconds = how
            .rsplit_once(" (")
            .and_then(|(_, time)| time.strip_suffix(" s)"));
        let seconds = seconds.and_then(|seconds| seconds.parse().ok());
        Some(TestEnd {
            test: name,
            time: seconds.map(Duration::from_secs_f64),
        })
    }

    /// Returns the names of tests that failed.
    pub(super) fn failures(&self) -> impl Iterator<Item = &str> {
        self.failures.iter().map(String::as_str)
    }

    /// Adds the counts of another program.
    pub(super) fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.left_out += other.left_out;
        self.failures.extend(other.failures);
        self.ignored.extend(other.ignored);
    }

    /// Counts a program that ended without a closing line.
    pub(super) fn add_crash(&mut self, how: &str) {
        self.failed += 1;
        self.failures.insert(how.to_owned());
    }

    /// Counts a test program that hung after this line.
    pub(super) fn add_hang(&mut self, last: &str) {
        self.failed += 1;
        self.failures
            .insert(format!("a program that hung after {last:?}"));
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
                "filtered" => self.left_out += number,
                _ => {}
            }
        }
    }

    /// Counts tests as skipped that passed for their harness but left a part out. Returns an entry
    /// for each skipped part, with the name of the missing need if the test recorded it.
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

/// Returns whether the text after a test's name marks the end of the test.
fn is_end(how: &str) -> bool {
    let end = how.split([' ', ',']).next().unwrap_or_default();
    ["ok", "FAILED", "ignored"].contains(&end)
}

/// A part that a test left out.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Skip {
    test: String,
    reason: String,
    /// The missing need, if the test named it.
    need: Option<String>,
}

/// Returns the missing needs that caused a skip and that `without` does not name.
fn not_accepted<'a>(skips: &'a [Skip], without: &[String], is_ci: bool) -> BTreeSet<&'a str> {
    let needs = skips
        .iter()
        .map(|skip| skip.need.as_deref().unwrap_or("(ignored)"));
    needs
        .filter(|need| is_ci || !without.iter().any(|name| name == need))
        .collect()
}

/// Prints the skipped tests and the closing line. Returns an error if a test failed, or was skipped
/// for a need that `--without` does not name.
pub(super) fn finish(mut counts: Counts, skipped: Skipped, success: bool, words: &Words) -> Result<()> {
    let skips = counts.add_skips(&skipped.take()?);
    if !skips.is_empty() {
        println!("\nskipped:");
        for Skip { test, reason, .. } in &skips {
            println!("  {test}: {reason}");
        }
    }
    // A program that crashed, or could not be built, has no closing line, but counts as a failure.
    if !success && counts.failed == 0 {
        counts.failed = 1;
    }
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed, counts.failed, counts.skipped
    );
    std::io::stdout().flush()?;
    ensure!(success, "tests failed");
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
            "tests were skipped; what is missing can be left out knowingly: cargo xtask test {}--without {}",
            if words.quick { "--quick " } else { "" },
            not_accepted.join(" --without ")
        );
    }
    ensure!(counts.passed + counts.skipped > 0, "no test was chosen");
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
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.02s",
        );
        counts.add("test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out");
        counts.add("test something ... ok");
        assert_eq!((counts.passed, counts.failed, counts.skipped), (5, 4, 1));
        assert_eq!(counts.left_out, 7);
    }

    #[test]
    fn ends_of_tests_are_found_behind_what_they_print() {
        let mut counts = Counts::default();
        let mut end = |line: &str| counts.add(line).map(|end| (end.test, end.time));
        let untimed = |test: &str| Some((test.to_owned(), None));
        assert_eq!(end("test one ... ok"), untimed("one"));
        assert_eq!(
            end("test two - should panic ... ok"),
            untimed("two - should panic")
        );
        assert_eq!(
            end("test three ... FAILED (1.5 s)"),
            Some(("three".to_owned(), Some(Duration::from_millis(1500))))
        );
        assert_eq!(end("test four ... note: a process of the test prints"), None);
        assert_eq!(end("more of it"), None);
        assert_eq!(end("FAILED"), untimed("four"));
        assert_eq!(end("ok"), None, "no test runs");
        assert_eq!(end("test result: ok. 1 passed; 0 failed"), None);
        assert_eq!(counts.failures().collect::<Vec<_>>(), ["four", "three"]);
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
            // The test adds two records of one test, one of a test that also failed, and one of a
            // test that the harness counted as ignored.
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
}
