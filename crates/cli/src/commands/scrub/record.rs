//! Status file of a scrub: its counters and position, written every second during the scrub.
//!
//! The file is `IMAGE.scrub-status` beside the image, or the file of `--status-file`. A block
//! device has no default location, so it has a status file only if one is named. The file is JSON,
//! and each write replaces it completely. A scrub with the state "running" is interrupted, and can
//! be resumed, unless its process exists and began at the recorded time.

use std::path::Path;

use anyhow::Result;
use buttress::scrub::{ChunkPosition, Counters, DeviceReport, Position, Report};
use buttress::{DeviceId, Logical, Uuid};
use serde_json::{Map, Value, json};

use crate::status_files::{self, Record as _, process_from_json, process_to_json};

/// Version of the file's format.
const VERSION: u64 = 1;

/// State of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The scrub is running.
    Running,
    /// The scrub reached its end.
    Finished,
    /// The scrub was stopped in an orderly way before its end.
    Aborted,
    /// The scrub's process ended without stopping the scrub.
    Interrupted,
}

impl State {
    /// Returns the state's name in `btrfs scrub status`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Aborted => "aborted",
            Self::Interrupted => "interrupted",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Running, Self::Finished, Self::Aborted]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// Content of a scrub's status file.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) uuid: Uuid,
    pub(super) state: State,
    /// Id of the process, and its start time by the kernel's clock.
    pub(super) process: (u32, u64),
    /// Start time in seconds since 1970.
    pub(super) started: i64,
    pub(super) resumed: Option<i64>,
    /// Running time without pauses, in milliseconds.
    pub(super) milliseconds: u64,
    pub(super) devices: Vec<DeviceReport>,
    pub(super) position: Position,
}

impl Record {
    /// Loads the record at `path`; `None` if the file does not exist. If the process of a running
    /// job no longer exists, the job counts as interrupted.
    ///
    /// # Errors
    /// Fails if the file is unreadable, or contains no record.
    pub(super) fn find(path: &Path) -> Result<Option<Self>> {
        Ok(Self::load(path)?.map(|mut record| {
            if record.state == State::Running && !record.is_alive() {
                record.state = State::Interrupted;
            }
            record
        }))
    }

    /// Returns the counters as a report, without damaged ranges.
    pub(super) fn report(&self) -> Report {
        Report {
            devices: self.devices.clone(),
            ..Report::default()
        }
    }
}

impl status_files::Record for Record {
    const JOB: &'static str = "a scrub";
    const REMEDY: &'static str = "to start again and replace the file, run `scrub start -f`";

    fn process(&self) -> (u32, u64) {
        self.process
    }

    fn to_json(&self) -> Value {
        let numbers = |addresses: &mut dyn Iterator<Item = Logical>| -> Vec<u64> {
            addresses.map(Logical::get).collect()
        };
        let devices: Vec<Value> = self.devices.iter().map(device_to_json).collect();
        let begun: Vec<Value> = self
            .position
            .begun
            .iter()
            .map(|begun| json!([begun.chunk.get(), begun.group]))
            .collect();
        json!({
            "version": VERSION,
            "uuid": self.uuid.to_string(),
            "status": self.state.name(),
            "process": process_to_json(self.process),
            "started": self.started,
            "resumed": self.resumed,
            "milliseconds": self.milliseconds,
            "devices": devices,
            "superblocks": self.position.superblocks,
            "finished": numbers(&mut self.position.finished.iter().copied()),
            "begun": begun,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        if value.get("version")?.as_u64()? != VERSION {
            return None;
        }
        let pair = |pair: &Value| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?));
        let finished = value.get("finished")?.as_array()?.iter();
        let begun = value.get("begun")?.as_array()?.iter();
        let position = Position {
            superblocks: value.get("superblocks")?.as_bool()?,
            finished: finished
                .map(|address| address.as_u64().map(Logical::new))
                .collect::<Option<_>>()?,
            begun: begun
                .map(|begun| {
                    let (chunk, group) = pair(begun)?;
                    let chunk = Logical::new(chunk);
                    Some(ChunkPosition { chunk, group })
                })
                .collect::<Option<_>>()?,
        };
        let devices = value.get("devices")?.as_array()?.iter();
        Some(Self {
            uuid: value.get("uuid")?.as_str()?.parse().ok()?,
            state: State::from_name(value.get("status")?.as_str()?)?,
            process: process_from_json(value.get("process")?)?,
            started: value.get("started")?.as_i64()?,
            resumed: value.get("resumed")?.as_i64(),
            milliseconds: value.get("milliseconds")?.as_u64()?,
            devices: devices.map(device_from_json).collect::<Option<_>>()?,
            position,
        })
    }
}

/// Returns a device with its counters under their names.
pub(super) fn device_to_json(device: &DeviceReport) -> Value {
    let mut object = Map::new();
    object.insert("devid".to_owned(), json!(device.device.get()));
    object.insert("uuid".to_owned(), json!(device.uuid.to_string()));
    object.insert("device".to_owned(), json!(*device.name));
    object.insert("missing".to_owned(), json!(device.missing));
    object.insert("bytes_to_scrub".to_owned(), json!(device.to_scrub));
    for (name, value) in device.counters.fields() {
        object.insert(name.to_owned(), json!(value));
    }
    object.insert("missed".to_owned(), json!(device.counters.missed));
    Value::Object(object)
}

fn device_from_json(value: &Value) -> Option<DeviceReport> {
    let mut counters = Counters::default();
    for (name, _) in Counters::default().fields() {
        *counters.field_mut(name)? = value.get(name)?.as_u64()?;
    }
    // Files of earlier program versions lack this counter.
    counters.missed = value.get("missed").map_or(Some(0), Value::as_u64)?;
    Some(DeviceReport {
        device: DeviceId::new(value.get("devid")?.as_u64()?),
        uuid: value.get("uuid")?.as_str()?.parse().ok()?,
        name: value.get("device")?.as_str()?.into(),
        missing: value.get("missing")?.as_bool()?,
        to_scrub: value.get("bytes_to_scrub")?.as_u64()?,
        counters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::this_process;
    use std::sync::Arc;

    #[test]
    fn a_record_comes_back_as_it_was() {
        let mut counters = Counters::default();
        for (number, (name, _)) in (1..).zip(Counters::default().fields()) {
            *counters.field_mut(name).unwrap() = number;
        }
        counters.missed = 77;
        let record = Record {
            uuid: Uuid::from_u128(7),
            state: State::Aborted,
            process: this_process(),
            started: 12,
            resumed: Some(13),
            milliseconds: 14,
            devices: vec![DeviceReport {
                device: DeviceId::new(3),
                uuid: Uuid::from_u128(9),
                name: Arc::from("disk"),
                missing: true,
                to_scrub: 99,
                counters,
            }],
            position: Position {
                superblocks: true,
                finished: [1_u64, 5].map(Logical::new).into(),
                begun: vec![ChunkPosition {
                    chunk: Logical::new(9),
                    group: 4,
                }],
            },
        };
        let back = Record::from_json(&record.to_json()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{record:?}"));
        assert!(record.is_alive());
        let mut without = record.to_json();
        let devices = without.get_mut("devices").unwrap().as_array_mut().unwrap();
        devices[0].as_object_mut().unwrap().remove("missed");
        let earlier = Record::from_json(&without).unwrap();
        assert_eq!(earlier.devices[0].counters.missed, 0);
        let other = Record {
            process: (record.process.0, 1),
            ..record
        };
        assert!(!other.is_alive(), "another process has the number by now");
    }
}
