//! Status file of a running replacement: its process, progress and devices.
//!
//! The file is `IMAGE.replace-status` beside the image, or the file of `--status-file`. The
//! permanent state is in the volume itself. While a process writes to the volume, other processes
//! do not open it and read this file instead. A run that ends in order removes the file. If it
//! failed in the background, the file keeps the reason until the next run.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::background::is_alive;
use crate::context::Context;

/// Version of the file's format.
const VERSION: u64 = 1;

/// Suffix of a status file's name.
pub(super) const ENDING: &str = ".replace-status";

/// Content of a replacement's status file.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Id of the process, and its start time by the kernel's clock.
    pub(super) process: (u32, u64),
    /// Id of the device that is being replaced.
    pub(super) device: u64,
    /// Progress in tenths of a percent.
    pub(super) tenths: u64,
    pub(super) write_errors: u64,
    pub(super) uncorrectable_read_errors: u64,
    /// Start time in seconds since 1970.
    pub(super) started: u64,
    /// All given devices, including the target.
    pub(super) devices: Vec<PathBuf>,
    /// Reason for the end.
    pub(super) error: Option<String>,
}

impl Record {
    /// Loads the record at `path`; `None` if it does not exist or is unreadable.
    pub(super) fn load(path: &Path) -> Option<Self> {
        Self::from_json(&serde_json::from_slice(&fs::read(path).ok()?).ok()?)
    }

    /// Replaces the file with this record.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn save(&self, context: &Context, path: &Path) -> Result<()> {
        let mut output = context.create_output_to_keep(path)?;
        serde_json::to_writer(&mut output, &self.to_json())?;
        output.write_all(b"\n")?;
        output.finish()
    }

    /// Removes the file.
    ///
    /// # Errors
    /// The file exists and cannot be removed.
    pub(super) fn remove(path: &Path) -> Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| path.display().to_string())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the record's process is running.
    pub(super) fn is_alive(&self) -> bool {
        is_alive(self.process.0, self.process.1)
    }

    fn to_json(&self) -> Value {
        let devices: Vec<String> = self
            .devices
            .iter()
            .map(|device| device.display().to_string())
            .collect();
        json!({
            "version": VERSION,
            "process": [self.process.0, self.process.1],
            "devid": self.device,
            "progress_1000": self.tenths,
            "write_errors": self.write_errors,
            "uncorrectable_read_errors": self.uncorrectable_read_errors,
            "started": self.started,
            "devices": devices,
            "error": self.error,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name)?.as_u64();
        if number("version")? != VERSION {
            return None;
        }
        let process = value.get("process")?.as_array()?;
        let devices = value.get("devices")?.as_array()?.iter();
        Some(Self {
            process: (
                process.first()?.as_u64()?.try_into().ok()?,
                process.get(1)?.as_u64()?,
            ),
            device: number("devid")?,
            tenths: number("progress_1000")?,
            write_errors: number("write_errors")?,
            uncorrectable_read_errors: number("uncorrectable_read_errors")?,
            started: number("started")?,
            devices: devices
                .map(|device| device.as_str().map(PathBuf::from))
                .collect::<Option<_>>()?,
            error: value.get("error")?.as_str().map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::this_process;

    #[test]
    fn a_record_comes_back_as_it_was() {
        let record = Record {
            process: this_process(),
            device: 2,
            tenths: 345,
            write_errors: 6,
            uncorrectable_read_errors: 7,
            started: 8,
            devices: vec!["a".into(), "b".into()],
            error: Some("why".to_owned()),
        };
        let back = Record::from_json(&record.to_json()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{record:?}"));
        assert!(back.is_alive());
    }
}
