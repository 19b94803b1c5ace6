//! Jobs in a separate background process: start, identity of the process, and the status file with
//! its progress.
//!
//! A job counts as running only if its process exists and began at the time in the status file,
//! because the system reuses process ids.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};

use crate::exit::Advice;
use crate::output::terminal;

/// Interval between checks of a background process's progress.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Returns the path of a job's status file: `named`, or else the image's path with the suffix
/// `ending`.
///
/// # Errors
/// Fails if no file was named and the image is a block device.
pub fn status_file(image: &Path, named: Option<&Path>, ending: &str) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    if fs::metadata(image).is_ok_and(|found| found.file_type().is_block_device()) {
        return Err(anyhow!(
            "{}: a status file cannot be beside a block device",
            image.display()
        ))
        .context(Advice::new("name a status file with --status-file FILE"));
    }
    let mut name: OsString = image.as_os_str().to_owned();
    name.push(ending);
    Ok(name.into())
}

/// Returns the start time of a process by the kernel's clock; `None` if the process does not exist.
fn beginning_of(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process name, in brackets, may contain any characters. The third field of
    // `/proc/PID/stat` follows the name.
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let is_gone = matches!(fields.next()?, "Z" | "X");
    let begun = fields.nth(18)?.parse().ok()?;
    (!is_gone).then_some(begun)
}

/// Returns id and start time of this process.
pub fn this_process() -> (u32, u64) {
    let id = std::process::id();
    (id, beginning_of(id).unwrap_or(0))
}

/// Returns whether a process with this id and start time exists.
pub fn is_alive(process: u32, begun: u64) -> bool {
    beginning_of(process) == Some(begun)
}

/// Asks a process to stop, and waits for its end.
///
/// # Errors
/// Fails if the system refuses to signal the process.
pub fn stop(process: (u32, u64)) -> Result<()> {
    stop_by(process, Signal::INT)
}

/// Asks a process by a signal to stop in order, and waits until the process has ended.
///
/// # Errors
/// The system refuses to signal the process.
pub fn stop_by((process, begun): (u32, u64), signal: Signal) -> Result<()> {
    let id = i32::try_from(process).ok().and_then(Pid::from_raw);
    let id = id.context("the status file contains no process id")?;
    kill_process(id, signal).with_context(|| format!("asking process {process} to stop"))?;
    while is_alive(process, begun) {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Starts this command line again as a separate process with `--in-background`, and waits until
/// `is_ready` returns a value for its process id. `None` means that the process completed its work
/// before `is_ready` returned a value.
///
/// # Errors
/// Fails with the message of the process, if the process fails before it is ready.
pub fn start<T>(is_ready: impl Fn(u32) -> Option<T>) -> Result<(u32, Option<T>)> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--in-background")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("starting the process in the background")?;
    loop {
        let ended = child
            .try_wait()
            .context("waiting for the process in the background")?;
        if let Some(ready) = is_ready(child.id()) {
            return Ok((child.id(), Some(ready)));
        }
        if let Some(status) = ended {
            if status.success() {
                return Ok((child.id(), None));
            }
            let mut told = String::new();
            if let Some(mut errors) = child.stderr.take() {
                errors.read_to_string(&mut told)?;
            }
            let told = told.trim_start_matches("error: ").trim_end();
            return Err(anyhow!("{}", terminal::shown(told)));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
