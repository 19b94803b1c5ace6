//! `cargo xtask nightly [--seconds N]`: all checks that take too long for each change, within a
//! time limit, with one report.
//!
//! The steps are other chores, each in its own process, one after another. The steps are tests with
//! the day's seeds and full budgets, deliberate faults, the model checker, fuzz targets, soaks, and
//! Debian's programs. Each step gets a share of the remaining time. A step that ends early leaves
//! its time to later steps. The chore kills a step that exceeds its time, and the report names the
//! step. For a soak, which has no end of its own, exceeding the time is no failure.
//!
//! The report is `target/nightly/report.md`, beside the whole output of each step. The chore fails
//! if a step failed or did not end.

use crate::run::{root, target};
use anyhow::{Context, Result, bail};
use buttress_oracle::seeds;
use rustix::process::{Pid, Signal};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: cargo xtask nightly [--seconds N]";

/// The time limit: four hours.
const SECONDS: u64 = 4 * 3600;

/// The number of lines of a failed step that the report shows.
const LINES: usize = 60;

/// A step: a chore with its arguments. `SECONDS` in an argument stands for the step's seconds.
struct Step {
    name: &'static str,
    words: &'static [&'static str],
    /// The step's share of the time, relative to the shares of later steps.
    share: u64,
    /// The percentage of the step's time for building its programs.
    build_percent: u64,
    /// The step uses all of its time, and has no end of its own.
    is_endless: bool,
    /// The program without which the step is skipped.
    needs: Option<&'static str>,
}

const fn step(name: &'static str, share: u64, words: &'static [&'static str]) -> Step {
    Step {
        name,
        words,
        share,
        build_percent: 0,
        is_endless: false,
        needs: None,
    }
}

/// Returns a step that gets its seconds as an argument, after building.
const fn timed(name: &'static str, share: u64, words: &'static [&'static str]) -> Step {
    Step {
        build_percent: 30,
        ..step(name, share, words)
    }
}

/// Returns a step of a fixed size that few machines complete in the step's time.
const fn endless(name: &'static str, share: u64, words: &'static [&'static str]) -> Step {
    Step {
        is_endless: true,
        ..step(name, share, words)
    }
}

/// The steps, the most informative first. The first two steps build much and get no seconds.
const STEPS: [Step; 9] = [
    step("tests", 40, &["test", "--nightly", "--times"]),
    step("faults", 30, &["faults"]),
    step(
        "schedules",
        5,
        &["schedules", "--seed", "SEED", "--schedules", "2000"],
    ),
    Step {
        // The build compiles libFuzzer from its sources.
        needs: Some("c++"),
        ..timed("fuzz", 10, &["fuzz", "--seconds", "SECONDS"])
    },
    timed("soak", 10, &["soak", "--seed", "SEED", "--seconds", "HALF"]),
    endless(
        "soak-writing",
        5,
        &["soak", "--seed", "SEED", "--operations", "280000"],
    ),
    endless("soak-scrub", 5, &["soak", "--seed", "SEED", "--scrub", "60"]),
    timed("soak-mount", 5, &["soak", "--seed", "SEED", "--mount", "SECONDS"]),
    timed("programs", 5, &["suites", "programs", "--seconds-each", "20"]),
];

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed(String),
    /// The chore killed the step at the end of its time.
    OutOfTime,
    /// As [`End::OutOfTime`], for a step without an end of its own.
    WholeTime,
    Skipped(String),
}

struct Done {
    name: &'static str,
    words: Vec<String>,
    end: End,
    time: Duration,
    output: PathBuf,
}

/// Runs all steps and writes the report.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let seconds = parse(words)?;
    let folder = target()?.join("nightly");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let date = std::env::var(seeds::DATE).unwrap_or_else(|_| seeds::today());
    let seed = seeds::seed_of_day("nightly");
    let mut done = Vec::new();
    let mut shares: u64 = STEPS.iter().map(|step| step.share).sum();
    for step in &STEPS {
        let left = until.saturating_duration_since(Instant::now());
        let time = Duration::from_secs(left.as_secs() * step.share / shares);
        shares -= step.share;
        done.push(run_step(step, time, seed, &folder)?);
        // The report is written after each step, so that an interrupted run leaves its results.
        let text = report(&done, &date, seed, seconds);
        std::fs::write(folder.join("report.md"), text)?;
    }
    println!("the report: {}", folder.join("report.md").display());
    let bad: Vec<_> = done
        .iter()
        .filter(|done| matches!(done.end, End::Failed(_) | End::OutOfTime))
        .map(|done| done.name)
        .collect();
    if !bad.is_empty() {
        bail!("not all is well with {}", bad.join(", "));
    }
    Ok(())
}

fn parse(words: &[String]) -> Result<u64> {
    match words {
        [] => Ok(SECONDS),
        [word, seconds] if word == "--seconds" => seconds
            .parse()
            .with_context(|| format!("{USAGE}: {seconds} is not a number")),
        _ => bail!(USAGE),
    }
}

impl Step {
    /// Returns the chore's arguments, for a step with this much time.
    fn words(&self, time: Duration, seed: u64) -> Vec<String> {
        let seconds = (time.as_secs() * (100 - self.build_percent) / 100).max(1);
        let said = |word: &&str| match *word {
            "SECONDS" => seconds.to_string(),
            // The step's chore runs two kinds, each for this long.
            "HALF" => (seconds / 2).max(1).to_string(),
            "SEED" => seed.to_string(),
            word => word.to_owned(),
        };
        self.words.iter().map(said).collect()
    }
}

fn run_step(step: &Step, time: Duration, seed: u64, folder: &Path) -> Result<Done> {
    let words = step.words(time, seed);
    println!(
        "{}: cargo xtask {}, at most {} s",
        step.name,
        words.join(" "),
        time.as_secs()
    );
    let output = folder.join(format!("{}.txt", step.name));
    let began = Instant::now();
    let end = match step.needs {
        Some(program) if !is_installed(program) => End::Skipped(format!("{program} is not installed")),
        _ => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(&words).current_dir(root()?).env("CI", "true");
            match within(&mut command, time, &output)? {
                End::OutOfTime if step.is_endless => End::WholeTime,
                end => end,
            }
        }
    };
    println!("{}: {end:?} after {} s", step.name, began.elapsed().as_secs());
    Ok(Done {
        name: step.name,
        words,
        end,
        time: began.elapsed(),
        output,
    })
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs a command for at most this long, then kills the command with all processes that it started.
fn within(command: &mut Command, time: Duration, output: &Path) -> Result<End> {
    let file = File::create(output).with_context(|| format!("making {}", output.display()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() {
                End::Passed
            } else {
                End::Failed(status.to_string())
            });
        }
        if began.elapsed() >= time {
            let group = Pid::from_raw(i32::try_from(child.id())?).context("the id of a process")?;
            rustix::process::kill_process_group(group, Signal::KILL)?;
            child.wait()?;
            return Ok(End::OutOfTime);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the report, as Markdown.
fn report(done: &[Done], date: &str, seed: u64, seconds: u64) -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    line(format_args!("# Nightly run of {date}\n"));
    line(format_args!(
        "Commit {}, seed {seed}, at most {seconds} s. To run the tests again with these seeds: `{}={date} cargo xtask test --nightly`.\n",
        commit().unwrap_or_else(|| "unknown".to_owned()),
        seeds::DATE
    ));
    line(format_args!("| step | command | end | time |\n|---|---|---|---|"));
    for Done {
        name,
        words,
        end,
        time,
        ..
    } in done
    {
        let end = match end {
            End::Passed => "passed".to_owned(),
            End::Failed(how) => format!("**failed** ({how})"),
            End::OutOfTime => "**out of time**".to_owned(),
            End::WholeTime => "no failure in its time".to_owned(),
            End::Skipped(why) => format!("skipped: {why}"),
        };
        let words = words.join(" ");
        line(format_args!(
            "| {name} | `cargo xtask {words}` | {end} | {} s |",
            time.as_secs()
        ));
    }
    for done in done {
        let lines = last_lines(&done.output, LINES);
        let shown = match done.end {
            End::Skipped(_) => continue,
            End::Passed | End::WholeTime => lines.last().into_iter().collect::<Vec<_>>(),
            End::Failed(_) | End::OutOfTime => lines.iter().collect(),
        };
        line(format_args!("\n## {}\n\n```", done.name));
        for shown in shown {
            line(format_args!("{shown}"));
        }
        line(format_args!("```"));
    }
    text
}

fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(root().ok()?)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Returns the last non-empty lines of a file.
fn last_lines(path: &Path, count: usize) -> Vec<String> {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(count);
    lines[first..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(name: &'static str, script: &str, time: Duration, folder: &Path) -> Done {
        let output = folder.join(name);
        let end = within(Command::new("sh").args(["-c", script]), time, &output).unwrap();
        Done {
            name,
            words: vec![name.to_owned()],
            end,
            time,
            output,
        }
    }

    #[test]
    fn report_shows_how_each_step_ended() {
        let folder = tempfile::tempdir().unwrap();
        let long = Duration::from_secs(100);
        let short = Duration::from_millis(300);
        let all = [
            done("good", "echo begin; echo all is well", long, folder.path()),
            done("bad", "echo why it failed; exit 3", long, folder.path()),
            // The shell starts another process, which must end, too.
            done("endless", "echo so far; sleep 1000; true", short, folder.path()),
        ];
        assert_eq!(all[0].end, End::Passed);
        assert!(matches!(&all[1].end, End::Failed(how) if how.contains('3')));
        assert_eq!(all[2].end, End::OutOfTime);
        let text = report(&all, "2026-11-25", 7, 600);
        for part in [
            "| good | `cargo xtask good` | passed |",
            "**failed**",
            "**out of time**",
            "all is well",
            "why it failed",
            "so far",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("begin"), "of what passed the last line only");
    }

    #[test]
    fn steps_are_told_their_seconds() {
        let fuzz = STEPS.iter().find(|step| step.name == "fuzz").unwrap();
        let words = fuzz.words(Duration::from_secs(1000), 5);
        assert_eq!(words, ["fuzz", "--seconds", "700"]);
        let names: std::collections::BTreeSet<_> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
    }

    #[test]
    fn only_seconds_are_taken() {
        let parse = |words: &[&str]| parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]).unwrap(), SECONDS);
        assert_eq!(parse(&["--seconds", "60"]).unwrap(), 60);
        assert!(parse(&["--seconds"]).is_err() && parse(&["60"]).is_err());
    }
}
