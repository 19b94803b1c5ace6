//! `cargo xtask test`: every test, with what was skipped and why, and one line that counts them.
//!
//! A test that could not run counts as skipped, and so does one that left a part out: tests of `cargo test`'s own harness,
//! which cannot say so, write it into a file ([`buttress_oracle::skip`]). A skip is a failure of the run unless `--without`
//! names what is missing; with `CI=true` it always is.

mod counts;
mod quick;

use crate::run::{self, cargo};
use crate::tools;
use anyhow::{Context, Result, anyhow, ensure};
use buttress_oracle::needs::{self, REFERENCE_PROGS};
use buttress_oracle::seeds;
use counts::{Counts, Skipped};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Words {
    /// Needs that may be missing, and are taken as missing.
    without: Vec<String>,
    /// Only the quick ones.
    quick: bool,
    /// Random tests take further seeds, derived from the day's date.
    nightly: bool,
    /// What goes on to cargo.
    cargo: Vec<String>,
}

impl Words {
    fn parse(words: &[String]) -> Result<Self> {
        let mut parsed = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--quick" {
                parsed.quick = true;
                continue;
            }
            if word == "--nightly" {
                parsed.nightly = true;
                continue;
            }
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
        ensure!(
            !parsed.quick || parsed.cargo.is_empty(),
            "--quick has tests of its own; without it `cargo xtask test {}` runs those that are named",
            parsed.cargo.join(" ")
        );
        Ok(parsed)
    }

    /// Whether some packages only are asked for.
    fn choose_packages(&self) -> bool {
        let chooses = |word: &String| word == "-p" || word == "--package" || word.starts_with("--package=");
        self.cargo.iter().any(chooses)
    }
}

/// Runs the tests that the words choose, or all.
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
    // The comparisons run the command, which cargo builds by itself for its own crate's tests only.
    if words.choose_packages() {
        run::run(cargo()?.args(["build", "--quiet", "-p", "buttress-cli"]))?;
    }
    let skipped = Skipped::new()?;
    crate::own_files::ignore_sync();
    let mut command = cargo()?;
    command.args(["test", "--no-fail-fast"]);
    if !words.choose_packages() {
        command.arg("--workspace");
    }
    command.args(&words.cargo);
    if words.nightly {
        let date = seeds::today();
        println!(
            "random tests take seeds of {date}; to run them again: {}={date}",
            seeds::DATE
        );
        command.env(seeds::DATE, date);
    }
    skipped.tell(&mut command, &words.without, progs.as_ref());
    let mut counts = Counts::default();
    let success = listen(&mut command, &mut counts)?;
    counts::finish(counts, skipped, success, &words)
}

/// How long a test program may say nothing before it is taken to hang. The harness tells after a minute which tests still run.
const SILENCE_MAX: Duration = Duration::from_secs(20 * 60);

/// Runs a command of tests, shows what it says and counts it. Whether it ended well.
///
/// A program that hangs is ended, and counts as a test that failed: the others still have their turn.
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
                    // Somebody that it left behind has its output.
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

/// Ends what a process has started. How many those were.
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

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
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
        assert!(
            Words::parse(&words(&["--quick", "--without", "root"]))
                .unwrap()
                .quick
        );
        for wrong in [
            &["--without"][..],
            &["--without", "a-thing"],
            &["--without-tar"],
            &["--quick", "name"],
        ] {
            assert!(Words::parse(&words(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_counts_as_failed() {
        let script = "echo 'test first ... ok'; sleep 1000; echo 'test second ... ok'; echo 'test result: ok. 2 passed; 0 failed'";
        let mut counts = Counts::default();
        let ended = listen_within(
            Command::new("sh").args(["-c", script]),
            &mut counts,
            Duration::from_millis(300),
        );
        // The shell goes on after the child that was ended, as cargo does.
        assert!(ended.unwrap());
        assert_eq!((counts.passed, counts.failed), (2, 1));
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
