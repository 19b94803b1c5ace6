//! Status file of a running replacement: its process, progress and devices.
//!
//! The status file is `IMAGE.replace-status` beside the image, or the file of `--status-file`. The
//! permanent state of the replacement is in the volume itself. While a process writes to the
//! volume, other processes do not open it and read this file instead. A run that ends in order
//! removes the file. If a replacement in the background failed, the file keeps the reason until the
//! next run.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::status_files::{self, process_from_json, process_to_json};

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
    /// Reason why the replacement ended.
    pub(super) error: Option<String>,
}

impl status_files::Record for Record {
    const JOB: &'static str = "a replacement";
    const REMEDY: &'static str = "remove it, or name another file with --status-file";

    fn process(&self) -> (u32, u64) {
        self.process
    }

    fn to_json(&self) -> Value {
        let devices: Vec<String> = self
            .devices
            .iter()
            .map(|device| device.display().to_string())
            .collect();
        json!({
            "version": VERSION,
            "process": process_to_json(self.process),
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
        let devices = value.get("devices")?.as_array()?.iter();
        Some(Self {
            process: process_from_json(value.get("process")?)?,
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
    use crate::status_files::Record as _;

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
