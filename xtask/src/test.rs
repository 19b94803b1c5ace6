//! `cargo xtask test`: runs every test, lists skipped tests with reasons, and prints a line of
//! counts.
//!
//! A test that could not run, or that left a part out, counts as skipped. Tests of `cargo test`'s
//! own harness cannot report a skip, so they write it to a file ([`buttress_oracle::skip`]). A
//! skipped test fails the run unless `--without` names the missing thing; with `CI=true` it always
//! fails the run.

mod counts;
mod quick;
mod running;
mod side_by_side;
mod times;
mod words;

use crate::run::{self, cargo};
use crate::tools;
use anyhow::{Context, Result, anyhow};
use buttress_oracle::needs::REFERENCE_PROGS;
use buttress_oracle::seeds;
use counts::{Counts, Skipped};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use words::Words;

/// Runs the tests that the arguments choose, or all.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let words = Words::parse(words)?;
    if words.quick {
        return quick::run(&words);
    }
    tools::install_missing_but(&words.without);
    let progs = if words.without.iter().any(|need| need == REFERENCE_PROGS) {
        None
    } else {
        tools::newer_progs()?
    };
    // The comparisons run the command, which cargo builds automatically only for its own crate's
    // tests.
    if words.choose_packages() {
        run::run(cargo()?.args(["build", "--quiet", "-p", "buttress-cli"]))?;
    }
    let skipped = Skipped::new()?;
    crate::own_files::ignore_sync();
    let date = words.nightly.then(seeds::today);
    if let Some(date) = &date {
        println!(
            "random tests take seeds of {date}; to run them again: {}={date}",
            seeds::DATE
        );
    }
    let prepare = |command: &mut Command| {
        if let Some(date) = &date {
            command.env(seeds::DATE, date);
        }
        skipped.tell(command, &words.without, progs.as_ref());
    };
    let (counts, success) = match words.chosen() {
        Some(chosen) => side_by_side::run(&words, &chosen, prepare)?,
        None => run_by_cargo(&words, prepare)?,
    };
    counts::finish(counts, skipped, success, &words)
}

/// Runs the tests that arguments for cargo choose, one program after another.
fn run_by_cargo(words: &Words, prepare: impl Fn(&mut Command)) -> Result<(Counts, bool)> {
    let mut command = cargo()?;
    command.args(["test", "--no-fail-fast"]);
    if !words.choose_packages() {
        command.arg("--workspace");
    }
    command.args(&words.cargo);
    prepare(&mut command);
    let mut counts = Counts::default();
    let success = listen(&mut command, &mut counts)?;
    Ok((counts, success))
}

/// The time without output after which a test program counts as hanging. The harness names running
/// tests after a minute.
const SILENCE_MAX: Duration = Duration::from_secs(20 * 60);

/// Runs a command of tests, prints its output and counts the results. Returns whether the test
/// command succeeded.
///
/// A hanging program is killed and counts as a failed test; the next programs still run.
fn listen(command: &mut Command, counts: &mut Counts) -> Result<bool> {
    listen_within(command, counts, SILENCE_MAX)
}

fn listen_within(command: &mut Command, counts: &mut Counts, silence_max: Duration) -> Result<bool> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let output = child.stdout.take().context("the output of tests")?;
    let (lines, said) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || -> Result<()> {
        for line in BufReader::new(output).split(b'\n') {
            lines.send(line?)?;
        }
        Ok(())
    });
    let mut last = String::new();
    loop {
        match said.recv_timeout(silence_max) {
            Ok(line) => {
                last = String::from_utf8_lossy(&line).into_owned();
                counts.add(&last);
                println!("{last}");
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                println!(
                    "nothing was said for {} s, so what runs is taken to hang, and ended; its last line: {last}",
                    silence_max.as_secs()
                );
                counts.add_hang(&last);
                if end_children(child.id())? == 0 {
                    // A process that the test program left behind still holds the output.
                    child.kill()?;
                    child.wait()?;
                    return Ok(false);
                }
            }
        }
    }
    reader.join().map_err(|_| anyhow!("reading what tests say"))??;
    Ok(child.wait()?.success())
}

/// Kills the children of a process. Returns the number of killed children.
fn end_children(parent: u32) -> Result<usize> {
    let mut ended = 0;
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task"))?;
    for task in tasks {
        let children = std::fs::read_to_string(task?.path().join("children"))?;
        for child in children.split_whitespace() {
            if let Some(child) = child.parse().ok().and_then(Pid::from_raw) {
                rustix::process::kill_process(child, Signal::KILL)?;
                ended += 1;
            }
        }
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended_and_counts_as_failed() {
        let script = "echo 'test first ... ok'; sleep 1000; echo 'test second ... ok'; echo 'test result: ok. 2 passed; 0 failed'";
        let mut counts = Counts::default();
        let ended = listen_within(
            Command::new("sh").args(["-c", script]),
            &mut counts,
            Duration::from_millis(300),
        );
        // The shell continues after the killed child, as cargo does.
        assert!(ended.unwrap());
        assert_eq!((counts.passed, counts.failed), (2, 1));
    }

    /// Tests skip parts only by [`buttress_oracle::skip`]: a test that merely prints a note would
    /// pass.
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
