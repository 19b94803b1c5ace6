//! A small test harness whose cases can be skipped with a reason.
//!
//! `cargo test`'s own harness has no skipping at run time. Comparisons with the kernel depend on
//! the machine (root, loop devices, a version of btrfs-progs), and a test that returns early would
//! count as passed there. A case of this harness returns an [`Outcome`]. A case that left a part
//! out, by [`skip`](crate::skip::skip), also counts as skipped.
//!
//! The harness accepts these arguments of `cargo test`: a filter, `--exact`, `--list`,
//! `--test-threads N`, `--nocapture`.

use crate::needs::Missing;
use crate::skip::{RECORDS, Told, is_ci, record, within};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The result of a case that did not fail.
#[derive(Debug)]
pub enum Outcome {
    /// The case passed.
    Passed,
    /// The case could not run, with the reason.
    Skipped(Missing),
}

type Body = Box<dyn Fn() -> anyhow::Result<Outcome> + Send + Sync>;

/// A named case.
pub struct Case {
    name: String,
    body: Body,
}

impl Case {
    /// Returns a case that runs `body`.
    pub fn new<F>(name: impl Into<String>, body: F) -> Self
    where
        F: Fn() -> anyhow::Result<Outcome> + Send + Sync + 'static,
    {
        Self {
            name: name.into(),
            body: Box::new(body),
        }
    }
}

struct Arguments {
    filters: Vec<String>,
    exact: bool,
    list: bool,
    threads: usize,
}

fn arguments() -> Arguments {
    let mut parsed = Arguments {
        filters: Vec::new(),
        exact: false,
        list: false,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--exact" => parsed.exact = true,
            "--list" => parsed.list = true,
            "--test-threads" => {
                parsed.threads = words
                    .next()
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(parsed.threads);
            }
            "--format" | "--color" | "--logfile" | "--skip" => drop(words.next()),
            option if option.starts_with('-') => {}
            filter => parsed.filters.push(filter.to_owned()),
        }
    }
    parsed
}

/// Runs the cases that the command line chooses and returns the process's exit status: 0 only if
/// none failed.
#[must_use]
pub fn run(cases: Vec<Case>) -> std::process::ExitCode {
    let arguments = arguments();
    let wanted = |case: &Case| {
        arguments.filters.is_empty()
            || arguments.filters.iter().any(|filter| {
                if arguments.exact {
                    case.name == *filter
                } else {
                    case.name.contains(filter.as_str())
                }
            })
    };
    let all = cases.len();
    let selected: Vec<Case> = cases.into_iter().filter(wanted).collect();
    let filtered_out = all.saturating_sub(selected.len());
    if arguments.list {
        for case in &selected {
            println!("{}: test", case.name);
        }
        return std::process::ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", selected.len());
    let next = AtomicUsize::new(0);
    let counts = Mutex::new((0usize, 0usize, 0usize));
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.clamp(1, selected.len().max(1)) {
            scope.spawn(|| {
                while let Some(case) = selected.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (passed, failed, skipped) = run_one(case);
                    let mut counts = counts.lock().unwrap_or_else(|poison| poison.into_inner());
                    counts.0 += passed;
                    counts.1 += failed;
                    counts.2 += skipped;
                }
            });
        }
    });
    let (passed, failed, skipped) = *counts.lock().unwrap_or_else(|poison| poison.into_inner());
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; \
         {filtered_out} filtered out"
    );
    // The chore that counts the records decides about skips.
    let may_skip = !is_ci() || std::env::var_os(RECORDS).is_some();
    if failed == 0 && skipped > 0 && !may_skip {
        println!("with CI=true nothing may be skipped");
    }
    if failed == 0 && (skipped == 0 || may_skip) {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}

fn run_one(case: &Case) -> (usize, usize, usize) {
    let start = Instant::now();
    let (outcome, mut left_out) = within(|| catch_unwind(AssertUnwindSafe(|| (case.body)())));
    let seconds = start.elapsed().as_secs_f64();
    let cause = match outcome {
        Ok(Ok(outcome)) => {
            if let Outcome::Skipped(missing) = outcome {
                left_out.push(missing);
            }
            return tell(&case.name, &left_out, seconds);
        }
        Ok(Err(error)) => format!("{error:?}"),
        Err(_) => "it panicked; see above".to_owned(),
    };
    println!("test {} ... FAILED ({seconds:.1} s)\n    {cause}", case.name);
    (0, 1, 0)
}

/// Prints and counts a case that did not fail: passed if it left nothing out, otherwise skipped.
fn tell(name: &str, left_out: &[Missing], seconds: f64) -> (usize, usize, usize) {
    let Some(first) = left_out.first() else {
        println!("test {name} ... ok ({seconds:.1} s)");
        return (1, 0, 0);
    };
    for missing in left_out {
        record(name, missing, Told::Ignored);
    }
    println!("test {name} ... ignored, {first}");
    (0, 0, 1)
}
