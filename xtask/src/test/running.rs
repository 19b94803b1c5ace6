//! A running test program: its output goes to a file, which the chore reads as the file grows.
//!
//! A pipe would not suffice: a mount's server that a test leaves behind keeps the pipe open, and
//! the reader would wait for the server. The time of a test is the time between two lines, or the
//! time that the line states.

use super::counts::Counts;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A test program, or the documentation tests, before the run.
#[derive(Debug)]
pub(super) struct Job {
    /// The package and the target.
    pub(super) name: (String, String),
    pub(super) command: Command,
    /// The number of test threads in the program.
    pub(super) threads: usize,
    /// The program runs while no other program does.
    pub(super) is_alone: bool,
    /// The expected time with one thread, in seconds.
    pub(super) expected: f64,
}

/// A test that ended, with its duration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timed {
    pub(super) test: String,
    pub(super) time: Duration,
}

/// A program that ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: (String, String),
    pub(super) counts: Counts,
    pub(super) tests: Vec<Timed>,
    pub(super) time: Duration,
    pub(super) is_success: bool,
    /// The file of its whole output.
    pub(super) output: PathBuf,
}

/// A running program.
#[derive(Debug)]
pub(super) struct Running {
    job: Job,
    child: Child,
    output: PathBuf,
    reader: File,
    /// The start of a line whose end is not written yet.
    line: Vec<u8>,
    last_line: String,
    counts: Counts,
    tests: Vec<Timed>,
    began: Instant,
    /// The time of the last line.
    heard: Instant,
    /// The time at which the last test ended.
    test_began: Instant,
    hangs: bool,
}

impl Running {
    /// Starts `job`, which prints to the file `output`.
    pub(super) fn start(mut job: Job, output: PathBuf) -> Result<Self> {
        let writer = File::create(&output).with_context(|| format!("making {}", output.display()))?;
        let reader = File::open(&output)?;
        let child = job
            .command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn()
            .with_context(|| format!("starting {:?}", job.command))?;
        let now = Instant::now();
        Ok(Self {
            job,
            child,
            output,
            reader,
            line: Vec::new(),
            last_line: String::new(),
            counts: Counts::default(),
            tests: Vec::new(),
            began: now,
            heard: now,
            test_began: now,
            hangs: false,
        })
    }

    pub(super) const fn threads(&self) -> usize {
        self.job.threads
    }

    pub(super) const fn is_alone(&self) -> bool {
        self.job.is_alone
    }

    /// Reads the output since the last call. Returns whether the program has ended.
    ///
    /// A program without output for `silence_max` is killed, and counts as another failed test.
    pub(super) fn has_ended(&mut self, silence_max: Duration) -> Result<bool> {
        let status = self.child.try_wait()?;
        self.read()?;
        if status.is_some() {
            return Ok(true);
        }
        if self.heard.elapsed() > silence_max && !self.hangs {
            self.hangs = true;
            self.counts.add_hang(&self.last_line);
            self.child.kill()?;
        }
        Ok(false)
    }

    fn read(&mut self) -> Result<()> {
        let mut bytes = Vec::new();
        self.reader.read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.heard = Instant::now();
        for byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            self.last_line = String::from_utf8_lossy(&self.line).into_owned();
            self.line.clear();
            if let Some(ended) = self.counts.add(&self.last_line) {
                let measured = self.heard.duration_since(self.test_began);
                self.test_began = self.heard;
                self.tests.push(Timed {
                    test: ended.test,
                    time: ended.time.unwrap_or(measured),
                });
            }
        }
        Ok(())
    }

    /// Returns the results of a program that has ended.
    pub(super) fn end(mut self) -> Result<Ended> {
        let status = self.child.wait()?;
        let is_success = status.success() && self.counts.failed == 0;
        // A program that crashed has no closing line.
        if !is_success && self.counts.failed == 0 {
            let (package, target) = &self.job.name;
            self.counts.add_crash(&format!("{package} {target}: {status}"));
        }
        Ok(Ended {
            name: self.job.name,
            counts: self.counts,
            tests: self.tests,
            time: self.began.elapsed(),
            is_success,
            output: self.output,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn script(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: ("package".to_owned(), name.to_owned()),
            command,
            threads: 1,
            is_alone: false,
            expected: 1.0,
        }
    }

    fn end(text: &str, silence_max: Duration) -> Ended {
        let folder = tempfile::tempdir().unwrap();
        let mut running = Running::start(script("name", text), folder.path().join("output")).unwrap();
        while !running.has_ended(silence_max).unwrap() {
            std::thread::sleep(Duration::from_millis(5));
        }
        running.end().unwrap()
    }

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn tests_are_timed_by_their_lines() {
        let ended = end(
            "sleep 0.2; echo 'test first ... ok'; echo 'test second ... ok (7.5 s)'; \
             echo 'test result: ok. 2 passed; 0 failed' >&2",
            LONG,
        );
        assert!(ended.is_success);
        assert_eq!((ended.counts.passed, ended.counts.failed), (2, 0));
        assert_eq!(ended.tests[0].test, "first");
        assert!(ended.tests[0].time >= Duration::from_millis(150), "{ended:?}");
        assert_eq!(ended.tests[1].time, Duration::from_millis(7500));
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_counts_as_failed() {
        let ended = end(
            "echo 'test first ... ok'; exec sleep 1000",
            Duration::from_millis(300),
        );
        assert!(!ended.is_success);
        assert_eq!(ended.counts.failed, 1);
    }

    #[test]
    fn a_program_that_crashes_counts_as_failed() {
        let ended = end("echo 'test first ... ok'; kill -SEGV $$", LONG);
        assert!(!ended.is_success);
        assert_eq!(ended.counts.failed, 1);
    }

    #[test]
    fn output_of_a_process_left_behind_is_not_awaited() {
        let began = Instant::now();
        let ended = end("sleep 60 & echo 'test result: ok. 1 passed; 0 failed'", LONG);
        assert!(ended.is_success && began.elapsed() < Duration::from_secs(50));
    }
}
