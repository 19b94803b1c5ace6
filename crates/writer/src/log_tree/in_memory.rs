//! A volume opened for reading, shown with its log replayed in memory.
//!
//! The devices are opened once more, under overlays that keep writes in memory. The log is replayed
//! and committed under these overlays, as on a volume opened for writing. The result is opened for
//! reading. Every reading call, including back references, space and checks, then sees an ordinary
//! volume. The devices themselves may be open read-only, and nothing is written to them.
//!
//! If the log cannot be replayed, because it is damaged or uses an unsupported feature, the volume
//! shows its last commit. A notice names the cause for which the log is not shown.

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
    /// The volume as readers see it, with its pending log replayed if possible.
    pub filesystem: Filesystem,
    /// The last commit, as it is on the devices.
    pub on_disk: Filesystem,
}

/// Opens a volume for reading, with changes that were synced since its last commit. See the
/// module's documentation. With `rescue=nologreplay`, the volume shows the last commit.
///
/// # Errors
/// Fails as [`OpenOptions::open`] does.
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
    // The replay itself is committed already. Readers do not observe the opening's later work on
    // orphans.
    replayed.abandon();
    options.open()
}

/// The system's clock, without a background thread, and without a report of lost changes.
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
