//! Errors of devices, recorded in the device statistics of the device tree.
//!
//! The volume counts failed reads, writes and flushes of each device since it was opened, and bad
//! copies that a scrub found. A commit adds the counts since the last commit to the device's item,
//! which `btrfs device stats` shows. Errors during a commit count for the next commit, which then
//! runs even if nothing else changed.
//!
//! Left out: bad copies that ordinary reads found and skipped.

use crate::core_state::Core;
use crate::running_parts::DeviceItems;
use buttress_format::{DeviceId, DeviceStatistics, TreeId, Uuid};
use buttress_fs::error::{Corruption, Result};
use buttress_tree::NonBlocking;
use buttress_volume::DeviceErrors;

/// Errors of one device that its item does not record yet.
struct Unrecorded {
    id: DeviceId,
    uuid: Uuid,
    /// All errors of the device since the volume was opened.
    all: DeviceErrors,
    /// The errors that the device's item already records.
    recorded: DeviceErrors,
}

impl Core {
    /// Returns whether a device failed since its statistics were last recorded.
    pub fn has_device_errors(&self) -> bool {
        !self.unrecorded_errors().is_empty()
    }

    fn unrecorded_errors(&self) -> Vec<Unrecorded> {
        if buttress_faults::on("device-errors-unrecorded") {
            return Vec::new();
        }
        let devices = &self.devices;
        let slots = self.forest.volume().devices();
        let unrecorded = slots.iter().filter_map(|slot| {
            let is_listed = devices.rooms.iter().any(|room| room.item.uuid == slot.uuid());
            let all = slot.errors();
            let recorded = devices.recorded.get(&slot.uuid()).copied().unwrap_or_default();
            (is_listed && all != recorded).then(|| Unrecorded {
                id: slot.id(),
                uuid: slot.uuid(),
                all,
                recorded,
            })
        });
        unrecorded.collect()
    }
}

impl DeviceItems<'_> {
    /// Adds the new errors of devices to their statistics. If a tree block is missing, the call
    /// ends between two devices.
    pub fn record_errors(&mut self) -> Result<()> {
        for device in self.running.core.unrecorded_errors() {
            let key = DeviceStatistics::key(device.id);
            self.running.reach(TreeId::DEVICE, &key)?;
            let item = self.running.get(TreeId::DEVICE, &key)?;
            let mut bytes = item.map_or_else(Vec::new, |item| item.data().to_vec());
            let before = match bytes.is_empty() {
                true => DeviceStatistics::default(),
                false => DeviceStatistics::parse(&key, &bytes).map_err(|error| Corruption::Item {
                    tree: TreeId::DEVICE,
                    error,
                })?,
            };
            let sum =
                |stored: u64, all: u64, recorded: u64| stored.saturating_add(all.saturating_sub(recorded));
            let (all, recorded) = (device.all, device.recorded);
            let after = DeviceStatistics {
                write_errors: sum(before.write_errors, all.writes, recorded.writes),
                read_errors: sum(before.read_errors, all.reads, recorded.reads),
                flush_errors: sum(before.flush_errors, all.flushes, recorded.flushes),
                corruption_errors: sum(before.corruption_errors, all.corruptions, recorded.corruptions),
                generation_errors: sum(before.generation_errors, all.generations, recorded.generations),
                ..before
            }
            .to_bytes();
            // Keep counters that a later format version may have appended.
            let rest = bytes.split_off(bytes.len().min(after.len()));
            bytes = [&after[..], &rest].concat();
            NonBlocking::lifted(|| self.running.put(TreeId::DEVICE, &key, &bytes))?;
            self.running.core.devices.recorded.insert(device.uuid, all);
        }
        Ok(())
    }
}
