//! A volume opened for reading, shown with its log replayed: in memory.
//!
//! The devices are opened once more, under overlays that keep what is written in memory. There the log is replayed and
//! committed as on a volume that is opened for writing, and what comes of that is opened for reading. So every call that reads,
//! back references, space and checks among them, sees a volume like any other; the devices themselves may be open for
//! reading only, and nothing is written to them.
//!
//! Where the log cannot be replayed, because it is damaged or because of a feature that is not written, the volume is as of
//! its last commit, and a notice names the cause.

use crate::WritableFilesystem;
use buttress_device::Device;
use buttress_engine::{Environment, SystemEnvironment, Uncommitted, WriteOptions};
use buttress_format::{Logical, Timestamp, Uuid};
use buttress_fs::error::Result;
use buttress_fs::{Filesystem, Notice, OpenOptions};
use std::sync::Arc;

/// A volume that was opened for reading.
#[derive(Clone, Debug)]
pub struct Shown {
    /// As it is read: with its log replayed, where one was pending and could be.
    pub filesystem: Filesystem,
    /// As it lies on its devices: its last commit.
    pub on_disk: Filesystem,
}

/// Opens a volume for reading, with what was synced since its last commit. See the module. With `rescue=nologreplay` the last
/// commit is shown.
///
/// # Errors
/// As [`OpenOptions::open`].
pub fn open_replayed(options: OpenOptions) -> Result<Shown> {
    let on_disk = options.clone().open()?;
    let superblock = on_disk.superblock();
    if superblock.log_root == Logical::MIN || on_disk.rescue().no_log_replay {
        let filesystem = on_disk.clone();
        return Ok(Shown { filesystem, on_disk });
    }
    let generation = superblock.generation;
    let mut notices = on_disk.notices();
    notices.retain(|notice| !matches!(notice, Notice::PendingLog { .. }));
    match replay(options) {
        Ok(filesystem) => {
            notices.push(Notice::LogReplayed { generation });
            let filesystem = filesystem.with_notices(notices);
            Ok(Shown { filesystem, on_disk })
        }
        Err(error) => {
            let reason = error.to_string();
            notices.push(Notice::LogNotReplayed { generation, reason });
            let filesystem = on_disk.with_notices(notices);
            let on_disk = filesystem.clone();
            Ok(Shown { filesystem, on_disk })
        }
    }
}

fn replay(options: OpenOptions) -> Result<Filesystem> {
    let kept = options.devices().iter().map(Device::with_changes_in_memory);
    let options = options.clone().on(kept.collect());
    let writing = WriteOptions {
        environment: Arc::new(InMemory),
        ..WriteOptions::default()
    };
    let replayed = WritableFilesystem::in_memory(options.clone().open()?, writing)?;
    // The replay is committed. What opening does besides, on inodes without names, nobody sees.
    replayed.abandon();
    options.open()
}

/// The system's clock, no thread, and nothing that could be lost.
#[derive(Debug)]
struct InMemory;

impl Environment for InMemory {
    fn now(&self) -> Timestamp {
        SystemEnvironment.now()
    }

    fn new_uuid(&self) -> Uuid {
        SystemEnvironment.new_uuid()
    }

    fn lost(&self, _: &Uncommitted) {}
}
