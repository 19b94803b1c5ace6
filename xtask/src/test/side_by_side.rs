//! Test programs side by side: as many test threads as the machine can use, the longest programs
//! first.
//!
//! Cargo runs one program after another, so a program's last test keeps one processor while the
//! other processors idle. In this chore a test program has one thread, and several programs run at
//! once. A program that would outlast all others gets more threads. The known times are in
//! `times.txt` beside this file; `cargo xtask test --times` measures them.
//!
//! A program that passes prints one line. The whole output of a failed program is shown when it
//! ends. All outputs are in `target/test-outputs`.

use super::counts::Counts;
use super::running::{Ended, Job, Running};
use super::times;
use super::words::{Chosen, Words};
use crate::programs::{self, Programs};
use crate::run::{cargo, target};
use anyhow::{Context, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Test programs that run while no other program does, each with the reason.
const ALONE: &[(&str, &str, &str)] = &[
    (
        "buttress-cli",
        "mount_rings",
        "turns on enable_uring of the kernel's module fuse, which every mount of that time would see",
    ),
    (
        "buttress-lab",
        "crash",
        "has a limit of time for an image: a hundred thousand images must stay a matter of minutes",
    ),
];

/// The name of the documentation tests' job.
const DOCUMENTATION: (&str, &str) = ("documentation", "");

/// The time without output after which a program counts as hanging. The harness names tests that
/// run for a minute.
const SILENCE_MAX: Duration = Duration::from_secs(15 * 60);

/// The pause between two readings of outputs, and therefore the precision of tests' times.
const PAUSE: Duration = Duration::from_millis(10);

/// Builds the chosen programs, runs them, and returns the counts. `prepare` sets the environment of
/// every test.
pub(super) fn run(words: &Words, chosen: &Chosen, prepare: impl Fn(&mut Command)) -> Result<(Counts, bool)> {
    let began = Instant::now();
    let mut command = cargo()?;
    command.args(["test", "--no-run"]);
    choose_packages(&mut command, chosen);
    let programs = programs::build(&mut command)?;
    let built = began.elapsed();
    let jobs = jobs(&programs, chosen, &prepare)?;
    let threads = words.threads.unwrap_or_else(default_threads);
    let outputs = target()?.join("test-outputs");
    let began = Instant::now();
    let ended = run_all(jobs, threads, &outputs, SILENCE_MAX)?;
    let time = began.elapsed();
    let mut counts = Counts::default();
    let is_success = ended.iter().all(|ended| ended.is_success);
    if words.times {
        times::print(&ended)?;
    }
    print_failures(&ended);
    println!(
        "\n{} programs in {:.0} s on {threads} threads, after {:.0} s to build them",
        ended.len(),
        time.as_secs_f64(),
        built.as_secs_f64()
    );
    for ended in ended {
        counts.merge(ended.counts);
    }
    Ok((counts, is_success))
}

/// Returns one thread more than processors, because some tests wait for the kernel or for devices.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) + 1
}

fn choose_packages(command: &mut Command, chosen: &Chosen) {
    if chosen.packages.is_empty() {
        command.arg("--workspace");
    }
    for package in &chosen.packages {
        command.args(["-p", package]);
    }
}

/// Returns the jobs of these programs and of their packages' documentation.
fn jobs(programs: &Programs, chosen: &Chosen, prepare: impl Fn(&mut Command)) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (name, program) in programs {
        let mut command = Command::new(&program.path);
        command
            .args(&chosen.filter)
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder);
        jobs.push(job(name.clone(), command));
    }
    // Cargo refuses to test the documentation of packages without a library.
    if programs.keys().any(|(_, target)| target == "lib") {
        let mut command = cargo()?;
        command.args(["test", "--doc", "--no-fail-fast"]);
        choose_packages(&mut command, chosen);
        command.args(&chosen.filter);
        // Arguments from here on are for the harness.
        command.arg("--");
        let (package, target) = DOCUMENTATION;
        jobs.push(job((package.to_owned(), target.to_owned()), command));
    }
    for job in &mut jobs {
        prepare(&mut job.command);
    }
    Ok(jobs)
}

fn job(name: (String, String), command: Command) -> Job {
    let is_alone = ALONE
        .iter()
        .any(|(package, target, _)| *package == name.0 && *target == name.1);
    Job {
        expected: times::expected(&name),
        name,
        command,
        threads: 1,
        is_alone,
    }
}

/// Sorts the jobs into the order of their start, and gives more threads to jobs that would outlast
/// all others.
fn plan(jobs: &mut [Job], threads: usize) {
    let total: f64 = jobs.iter().map(|job| job.expected).sum();
    for job in jobs.iter_mut() {
        // A program with this share of the whole time would run nearly alone at the end.
        let is_long = job.expected > total / threads as f64 / 2.0;
        job.threads = if is_long { threads.min(2) } else { 1 };
    }
    jobs.sort_by(|left, right| {
        let order = |job: &Job| (job.is_alone, -job.expected / job.threads as f64);
        order(left)
            .partial_cmp(&order(right))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
}

fn run_all(mut jobs: Vec<Job>, threads: usize, outputs: &Path, silence_max: Duration) -> Result<Vec<Ended>> {
    std::fs::create_dir_all(outputs).with_context(|| format!("making {}", outputs.display()))?;
    plan(&mut jobs, threads);
    let count = jobs.len();
    let mut waiting = std::collections::VecDeque::from(jobs);
    let mut running: Vec<Running> = Vec::new();
    let mut ended = Vec::new();
    while !waiting.is_empty() || !running.is_empty() {
        while let Some(job) = next(&mut waiting, &running, threads) {
            let output = output_of(outputs, &job.name);
            let mut job = job;
            let number = job.threads.to_string();
            job.command.args(["--test-threads", &number]);
            running.push(Running::start(job, output)?);
        }
        std::thread::sleep(PAUSE);
        let mut at = 0;
        while let Some(one) = running.get_mut(at) {
            if one.has_ended(silence_max)? {
                let one = running.swap_remove(at).end()?;
                print_end(&one, ended.len() + 1, count)?;
                ended.push(one);
            } else {
                at += 1;
            }
        }
    }
    Ok(ended)
}

/// Takes the first job from the queue that may start now.
fn next(waiting: &mut std::collections::VecDeque<Job>, running: &[Running], threads: usize) -> Option<Job> {
    let used: usize = running.iter().map(Running::threads).sum();
    let free = threads.saturating_sub(used);
    let is_idle = running.is_empty();
    if running.iter().any(Running::is_alone) {
        return None;
    }
    let may_start = |job: &Job| {
        if job.is_alone {
            is_idle
        } else {
            job.threads <= free || is_idle
        }
    };
    let at = waiting.iter().position(may_start)?;
    waiting.remove(at)
}

fn output_of(outputs: &Path, (package, target): &(String, String)) -> PathBuf {
    outputs.join(format!("{package}-{target}.txt"))
}

fn print_end(ended: &Ended, number: usize, count: usize) -> Result<()> {
    if !ended.is_success {
        println!("\n{} {}:", ended.name.0, ended.name.1);
        let text = std::fs::read(&ended.output)?;
        std::io::stdout().write_all(&text)?;
    }
    let Counts {
        passed,
        failed,
        skipped,
        ..
    } = ended.counts;
    let rest = match (failed, skipped) {
        (0, 0) => String::new(),
        (0, skipped) => format!(", {skipped} skipped"),
        (failed, skipped) => format!(", {failed} FAILED, {skipped} skipped"),
    };
    println!(
        "{number:>3}/{count} {:>6.1} s  {} {}: {passed} passed{rest}",
        ended.time.as_secs_f64(),
        ended.name.0,
        ended.name.1
    );
    Ok(())
}

fn print_failures(ended: &[Ended]) {
    let failed: Vec<_> = ended.iter().filter(|ended| !ended.is_success).collect();
    if failed.is_empty() {
        return;
    }
    println!("\nfailed:");
    for ended in failed {
        let (package, target) = &ended.name;
        for test in ended.counts.failures() {
            println!("  {package} {target} {test}");
        }
        println!("    output: {}", ended.output.display());
    }
}

#[cfg(test)]
mod tests {
    use super::super::running::tests::script;
    use super::*;

    fn names(jobs: &[Job]) -> Vec<&str> {
        jobs.iter().map(|job| job.name.1.as_str()).collect()
    }

    fn taking(name: &str, expected: f64) -> Job {
        Job {
            expected,
            ..script(name, "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'")
        }
    }

    #[test]
    fn long_programs_start_first_and_those_alone_last() {
        let mut jobs: Vec<_> = (1..=20)
            .map(|number| taking(&number.to_string(), f64::from(number)))
            .collect();
        jobs.push(taking("longest", 300.0));
        jobs.push(Job {
            is_alone: true,
            ..taking("alone", 400.0)
        });
        plan(&mut jobs, 3);
        assert_eq!(names(&jobs[..3]), ["longest", "20", "19"]);
        assert_eq!(jobs[0].threads, 2);
        assert_eq!(jobs[1].threads, 1);
        assert_eq!(names(&jobs[21..]), ["alone"]);
    }

    #[test]
    fn all_run_and_what_must_be_alone_is() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("alone");
        let ok = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        let others = (0..6).map(|number| {
            // This job fails while the other job runs.
            let text = format!("test ! -e {} && sleep 0.1 && {ok}", mark.display());
            script(&number.to_string(), &text)
        });
        let mut jobs: Vec<_> = others.collect();
        let text = format!("touch {0}; sleep 0.3; {ok}; rm {0}", mark.display());
        jobs.push(Job {
            is_alone: true,
            ..script("alone", &text)
        });
        let began = Instant::now();
        let ended = run_all(jobs, 3, &folder.path().join("outputs"), SILENCE_MAX).unwrap();
        assert_eq!(ended.len(), 7);
        assert!(ended.iter().all(|ended| ended.is_success), "{ended:?}");
        assert_eq!(ended[6].name.1, "alone");
        assert!(began.elapsed() > Duration::from_millis(450));
    }

    #[test]
    fn programs_that_run_alone_exist() {
        let targets = super::super::quick::test_targets().unwrap();
        for (package, target, why) in ALONE {
            let name = ((*package).to_owned(), (*target).to_owned());
            assert!(targets.contains(&name), "{package} {target}, which {why}");
        }
    }
}
