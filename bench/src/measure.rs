//! Runs a command as a whole process: seconds, peak memory, bytes written into a pipe.

use anyhow::{Context, Result, bail};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Wall time from start to end.
    pub(crate) seconds: f64,
    /// Peak resident memory, all of it (the program's own pages too), as sampled every 2 ms.
    pub(crate) peak_kib: u64,
    /// Bytes that came out of standard output.
    pub(crate) output_bytes: u64,
    /// Seconds of processor time of the process, its own and the kernel's on its behalf.
    pub(crate) cpu_seconds: f64,
    /// Seconds that all processors of the machine were busy meanwhile, whoever had them: what a job of the kernel's own
    /// threads takes shows only there.
    pub(crate) machine_seconds: f64,
}

/// Seconds that the machine's processors were not idle since it started.
fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted as users already.
    let ticks: Vec<f64> = all.take(7).filter_map(|ticks| ticks.parse().ok()).collect();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    (ticks.iter().sum::<f64>() - idle) / 100.0
}

/// Processor seconds of children that have ended.
fn children_seconds() -> f64 {
    let fields = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process name in `/proc/self/stat`, in brackets, may hold any characters; `cutime` and
    // `cstime` are fields 16 and 17, in hundredths of a second.
    let after = fields.rsplit_once(") ").map_or("", |(_, after)| after);
    let ticks = after.split(' ').skip(13).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Runs `command` with standard output into a pipe that is drained as fast as it fills.
pub(crate) fn run(command: &mut Command) -> Result<Run> {
    run_from(command, Stdio::null())
}

/// As [`run`], with a standard input.
pub(crate) fn run_from(command: &mut Command, input: Stdio) -> Result<Run> {
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
    if !status.success() {
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
