//! Runs a command as a whole process, and measures seconds, peak memory, and the bytes that it
//! writes to a pipe.

use anyhow::{Context, Result, bail};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The measurements of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Wall-clock seconds from start to end.
    pub(crate) seconds: f64,
    /// Peak resident memory in KiB, including the program's own pages, sampled every 2 ms.
    pub(crate) peak_kib: u64,
    /// The bytes written to standard output.
    pub(crate) output_bytes: u64,
    /// Seconds of processor time of the process, in user space and in the kernel.
    pub(crate) cpu_seconds: f64,
    /// Busy seconds of all processors of the machine during the run. Only the busy seconds include
    /// the kernel's own threads.
    pub(crate) machine_seconds: f64,
}

/// Returns the busy seconds of the machine's processors since its start.
fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // The fields of `/proc/stat` are user, nice, system, idle, iowait, irq, softirq and steal;
    // guests already count as user.
    let ticks: Vec<f64> = all.take(7).filter_map(|ticks| ticks.parse().ok()).collect();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    (ticks.iter().sum::<f64>() - idle) / 100.0
}

/// Returns the processor seconds of children that have ended.
fn children_seconds() -> f64 {
    let fields = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process name in brackets may contain any text; `cutime` and `cstime` are fields 16 and
    // 17, in hundredths of a second.
    let after = fields.rsplit_once(") ").map_or("", |(_, after)| after);
    let ticks = after.split(' ').skip(13).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Runs `command` with standard output to a pipe that is drained continuously.
pub(crate) fn run(command: &mut Command) -> Result<Run> {
    run_from(command, Stdio::null())
}

/// Runs `command` as [`run`] does, with a standard input.
pub(crate) fn run_from(command: &mut Command, input: Stdio) -> Result<Run> {
    run_accepting(command, input, &[0])
}

/// Runs `command` as [`run_from`] does, and accepts these exit codes.
pub(crate) fn run_accepting(command: &mut Command, input: Stdio, accepted: &[i32]) -> Result<Run> {
    let (cpu_before, busy_before) = (children_seconds(), busy_seconds());
    let start = Instant::now();
    let mut child = command
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let mut output = child.stdout.take().context("output")?;
    let errors = child.stderr.take().context("standard error")?;
    let errors = std::thread::spawn(move || std::io::read_to_string(errors));
    let (ended, peak_kib) = (AtomicBool::new(false), AtomicU64::new(0));
    let status_file = format!("/proc/{}/status", child.id());
    let mut output_bytes = 0;
    let status = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                peak_kib.fetch_max(high_water_kib(&status_file).unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut buffer = vec![0; 1 << 20];
        let drained = loop {
            match output.read(&mut buffer) {
                Ok(0) => break Ok(()),
                Ok(length) => output_bytes += length as u64,
                Err(error) => break Err(error),
            }
        };
        let status = child.wait();
        ended.store(true, Ordering::Relaxed);
        drained.and(status)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    if !status.code().is_some_and(|code| accepted.contains(&code)) {
        let text = errors.join().ok().and_then(Result::ok).unwrap_or_default();
        bail!("{command:?} ended with {status}: {text}");
    }
    Ok(Run {
        seconds,
        peak_kib: peak_kib.into_inner(),
        output_bytes,
        cpu_seconds: children_seconds() - cpu_before,
        machine_seconds: busy_seconds() - busy_before,
    })
}

fn high_water_kib(status_file: &str) -> Option<u64> {
    let text = std::fs::read_to_string(status_file).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}
