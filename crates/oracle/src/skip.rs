//! Tests that could not run, or not in full, are counted: nothing that was left out passes in silence.
//!
//! `cargo test`'s own harness knows no skipping at run time: a test that returns early counts as passed. So a test that
//! leaves something out says so with [`skip`], from where it sees that; helpers several calls below may say it for it.
//!
//! - Under `cargo xtask test` the variable [`RECORDS`] names a file. Each skip is a line there; the chore counts a test
//!   with at least one line as skipped instead of passed, and fails unless what was missing was named with `--without`.
//! - Under `cargo test` alone a line goes to the terminal, also where the output of tests is captured; with `CI=true` the
//!   test fails.
//!
//! A case of [`harness`](crate::harness) has its skips counted by the harness. The skip record
//! names a test by its thread's name, which libtest sets. On other threads it names the line of the
//! call.

use crate::needs::Missing;
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::panic::Location;

/// The variable that names the file of the records.
pub const RECORDS: &str = "BUTTRESS_SKIPPED";

/// Who counted a test that left something out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// No skip was counted yet: the harness counts the test as passed.
    Passed,
    /// The skip was told to the test harness, which counts the test as ignored.
    Ignored,
}

/// One thing that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The program of the test.
    pub program: String,
    /// The test.
    pub test: String,
    /// The name of the missing need.
    pub need: String,
    /// How the test's harness counts it.
    pub told: Told,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = match self.told {
            Told::Passed => "passed",
            Told::Ignored => "ignored",
        };
        let reason = self.reason.replace(['\n', '\t'], " ");
        let Self {
            program, test, need, ..
        } = self;
        write!(f, "{program}\t{test}\t{need}\t{told}\t{reason}")
    }
}

impl Record {
    /// Reads what [`Display`](fmt::Display) writes.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(5, '\t').map(str::to_owned);
        let mut next = || parts.next();
        Some(Self {
            program: next()?,
            test: next()?,
            need: next()?,
            told: match next()?.as_str() {
                "passed" => Told::Passed,
                "ignored" => Told::Ignored,
                _ => return None,
            },
            reason: next()?,
        })
    }
}

thread_local! {
    /// What the case of our own harness that runs on this thread left out, if one runs.
    static CASE: RefCell<Option<Vec<Missing>>> = const { RefCell::new(None) };
}

/// Says that the running test leaves out what it is there for, or a part of it, as something is missing.
///
/// # Panics
/// Outside of `cargo xtask test` with `CI=true`, or when the record cannot be written.
#[track_caller]
pub fn skip(missing: &Missing) {
    let is_case = CASE.with_borrow_mut(|case| {
        if let Some(left_out) = case {
            left_out.push(missing.clone());
        }
        case.is_some()
    });
    if is_case {
        return;
    }
    let caller = Location::caller();
    let thread = std::thread::current();
    let test = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => format!("{}:{}", caller.file(), caller.line()),
    };
    record(&test, missing, Told::Passed);
}

/// As [`skip`] for each need that is missing; whether one is.
#[track_caller]
#[must_use]
pub fn skips(missing: Option<Missing>) -> bool {
    if let Some(missing) = &missing {
        skip(missing);
    }
    missing.is_some()
}

/// Runs a case of our own harness, and gives what it left out beside its result.
pub(crate) fn within<T>(case: impl FnOnce() -> T) -> (T, Vec<Missing>) {
    CASE.set(Some(Vec::new()));
    let result = case();
    (result, CASE.take().unwrap_or_default())
}

/// Writes a skip record, or a message on the terminal.
pub(crate) fn record(test: &str, missing: &Missing, told: Told) {
    let program = std::env::current_exe().unwrap_or_default();
    let record = Record {
        program: program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        test: test.to_owned(),
        need: missing.need().to_owned(),
        told,
        reason: missing.to_string(),
    };
    if let Some(file) = std::env::var_os(RECORDS) {
        let written = File::options()
            .append(true)
            .create(true)
            .open(&file)
            // One write call, so that lines of several programs do not mix.
            .and_then(|mut file| file.write_all(format!("{record}\n").as_bytes()));
        if let Err(error) = written {
            panic!(
                "{test} was skipped, which {} cannot be told: {error}",
                file.display()
            );
        }
        return;
    }
    if told == Told::Ignored {
        return;
    }
    let text = format!("{test} left something out: {missing}");
    assert!(!is_ci(), "{text}; with CI=true nothing may be left out");
    // Not by a macro: the output of tests that pass is caught and thrown away. If no terminal
    // exists, the test ignores the failed message.
    drop(writeln!(std::io::stderr(), "SKIPPED: {text}"));
}

/// Whether this runs where nothing may be left out.
#[must_use]
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false" && value != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let record = Record {
            program: "kernel-0123".to_owned(),
            test: "a::b".to_owned(),
            need: "root".to_owned(),
            told: Told::Ignored,
            reason: "needs\troot,\nto mount".to_owned(),
        };
        let read = Record::parse(&record.to_string()).unwrap();
        assert_eq!(read.reason, "needs root, to mount");
        let reason = read.reason.clone();
        assert_eq!(read, Record { reason, ..record });
        assert_eq!(Record::parse("a\tb\tc\tperhaps\td"), None);
    }

    #[test]
    fn what_a_case_leaves_out_is_its_harnesses_to_count() {
        let missing = Missing::new("root", "needs root");
        let ((), left_out) = within(|| skip(&missing));
        assert_eq!(left_out, [missing]);
        let ((), left_out) = within(|| ());
        assert_eq!(left_out, []);
    }
}
