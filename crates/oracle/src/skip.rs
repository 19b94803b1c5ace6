//! Counts of tests that could not run, or not in full, so that every skip is reported.
//!
//! `cargo test`'s own harness has no skipping at run time: a test that returns early counts as
//! passed. A test that leaves something out therefore calls [`skip`]; helpers several calls below
//! the test may call it, too.
//!
//! - Under `cargo xtask test` the variable [`RECORDS`] names a file, and each skip is a line there.
//!   The chore counts a test with at least one line as skipped instead of passed. The chore fails
//!   unless `--without` names the missing need.
//! - Under `cargo test` alone, a line goes to the terminal even if the test's output is captured.
//!   With `CI=true` the test fails.
//!
//! The harness counts the skips of a case of [`harness`](crate::harness). A test is identified by
//! its thread's name, which libtest sets; in its own threads a test is identified by the calling
//! line.

use crate::needs::Missing;
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::panic::Location;

/// The variable with the path of the records.
pub const RECORDS: &str = "BUTTRESS_SKIPPED";

/// The harness's own count of a test that left something out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The harness counts the test as passed.
    Passed,
    /// The harness counts the test as ignored.
    Ignored,
}

/// A part that a test left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The test program.
    pub program: String,
    /// The name of the test.
    pub test: String,
    /// The name of the missing need.
    pub need: String,
    /// The count of the test's harness.
    pub told: Told,
    /// The reason.
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
    /// Parses the form that [`Display`](fmt::Display) writes.
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
    /// The parts left out by the case of our own harness on this thread, if a case runs.
    static CASE: RefCell<Option<Vec<Missing>>> = const { RefCell::new(None) };
}

/// Records that the running test leaves out its subject, or a part of it, because a need is
/// missing.
///
/// # Panics
/// Panics with `CI=true` outside of `cargo xtask test`, or if the record cannot be written.
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

/// Calls [`skip`] for each missing need. Returns whether a need is missing.
#[track_caller]
#[must_use]
pub fn skips(missing: Option<Missing>) -> bool {
    if let Some(missing) = &missing {
        skip(missing);
    }
    missing.is_some()
}

/// Runs a case of our own harness. Returns the case's result and the parts that the case left out.
pub(crate) fn within<T>(case: impl FnOnce() -> T) -> (T, Vec<Missing>) {
    CASE.set(Some(Vec::new()));
    let result = case();
    (result, CASE.take().unwrap_or_default())
}

/// Writes a record, or prints it on the terminal.
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
            // A single call writes the line, so that lines of several programs do not mix.
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
    // The macro `eprintln!` would write to captured output, which is discarded for tests that pass.
    // An error of the terminal does not fail the test.
    drop(writeln!(std::io::stderr(), "SKIPPED: {text}"));
}

/// Returns whether this run accepts no skips.
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
