//! Status files of jobs: JSON records of what a job does and how far it is, replaced as a whole every second.
//!
//! While a process writes to a volume, other processes do not open it: they read the status file. A record counts as running
//! only if its process exists and began when the record says. This module leaves out the content of records and the place of
//! the file ([`status_file`](crate::background::status_file)).

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use crossbeam_channel::{RecvTimeoutError, bounded};
use serde_json::{Value, json};

use crate::background::is_alive;
use crate::context::Context;
use crate::exit::Advice;

/// How often a record is saved.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// The content of a status file.
pub trait Record: Sized {
    /// The job, for messages: `a scrub`.
    const JOB: &'static str;
    /// The remedy for a status file that is no record.
    const REMEDY: &'static str;

    /// The process, and when it began, by the kernel's count.
    fn process(&self) -> (u32, u64);

    /// As JSON.
    fn to_json(&self) -> Value;

    /// Reads a record from JSON; `None` if the record belongs to another version or is invalid.
    fn from_json(value: &Value) -> Option<Self>;

    /// Whether the process of the record exists.
    fn is_alive(&self) -> bool {
        let (process, begun) = self.process();
        is_alive(process, begun)
    }

    /// Reads the record at `path`; `None` without a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no record.
    fn load(path: &Path) -> Result<Option<Self>> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let value: Option<Value> = serde_json::from_slice(&bytes).ok();
        let record = value.as_ref().and_then(Self::from_json);
        record
            .map(Some)
            .ok_or_else(|| anyhow!("{} is not a status file of {}", path.display(), Self::JOB))
            .context(Advice::new(Self::REMEDY))
    }

    /// Reads the record of a job that is running at this moment.
    fn load_running(path: Option<&Path>) -> Option<Self> {
        let record = Self::load(path?).ok().flatten();
        record.filter(Self::is_alive)
    }

    /// Replaces the status file by this record.
    ///
    /// # Errors
    /// Fails if the status file cannot be written.
    fn save(&self, context: &Context, path: &Path) -> Result<()> {
        let mut output = context.create_output_to_keep(path)?;
        serde_json::to_writer(&mut output, &self.to_json())?;
        output.write_all(b"\n")?;
        output.finish()
    }
}

/// Removes a status file, if it exists.
///
/// # Errors
/// Fails if the status file cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Returns a process as JSON.
pub fn process_to_json((process, begun): (u32, u64)) -> Value {
    json!([process, begun])
}

/// Returns the process that a JSON record names.
pub fn process_from_json(value: &Value) -> Option<(u32, u64)> {
    let process = value.as_array()?;
    Some((
        process.first()?.as_u64()?.try_into().ok()?,
        process.get(1)?.as_u64()?,
    ))
}

/// Runs a job, and saves its record every second during the job. Returns the outcomes of the job
/// and of the saving.
pub fn while_saving<T>(save: impl Fn() -> Result<()> + Send, job: impl FnOnce() -> T) -> (T, Result<()>) {
    let (stop, stopped) = bounded::<()>(0);
    std::thread::scope(|scope| {
        let saving = scope.spawn(move || -> Result<()> {
            while stopped.recv_timeout(SAVE_EVERY) == Err(RecvTimeoutError::Timeout) {
                save()?;
            }
            Ok(())
        });
        let ended = job();
        drop(stop);
        match saving.join() {
            Ok(saved) => (ended, saved),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::this_process;

    #[derive(Debug)]
    struct Job((u32, u64));

    impl Record for Job {
        const JOB: &'static str = "a job";
        const REMEDY: &'static str = "remove it";

        fn process(&self) -> (u32, u64) {
            self.0
        }

        fn to_json(&self) -> Value {
            json!({ "process": process_to_json(self.0) })
        }

        fn from_json(value: &Value) -> Option<Self> {
            process_from_json(value.get("process")?).map(Self)
        }
    }

    #[test]
    fn file_without_record_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        assert!(Job::load(&path).unwrap().is_none());
        fs::write(&path, b"{}").unwrap();
        let error = Job::load(&path).unwrap_err();
        assert!(format!("{error:#}").contains("is not a status file of a job"));
        assert!(Job::load_running(Some(&path)).is_none());
        remove(&path).unwrap();
        remove(&path).unwrap();
    }

    #[test]
    fn record_runs_only_with_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        let own = this_process();
        for (process, runs) in [(own, true), ((own.0, own.1 + 1), false)] {
            fs::write(&path, Job(process).to_json().to_string()).unwrap();
            assert_eq!(Job::load(&path).unwrap().unwrap().0, process);
            assert_eq!(Job::load_running(Some(&path)).is_some(), runs);
        }
        assert!(Job::load_running(None).is_none());
    }
}
