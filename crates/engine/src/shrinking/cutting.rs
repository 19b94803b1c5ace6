//! The end of a shrink: devices and image files get their sizes.
//!
//! A shrink that ends early returns the devices that it enlarged to their earlier sizes. If little
//! content is past an earlier end, this content moves back first. Otherwise the device keeps the
//! size that its content needs, and the next shrink continues.

use super::closing::NoChunks;
use crate::areas::Shrinking;
use crate::membership::{cut_file, require_no_chunk_past};
use crate::relocation::RelocationOptions;
use buttress_format::{ByteCount, DeviceId, Logical, Physical};
use buttress_fs::error::Result;
use buttress_volume::{DeviceSlot, Volume};
use std::collections::BTreeMap;

/// The most content past the earlier ends that a shrink moves back when it ends early, in bytes.
const BACK_BYTES: u64 = 64 << 20;

/// The sizes of a device before a shrink.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The bytes that belong to the volume.
    pub volume: ByteCount,
    /// The bytes of the image file or block device.
    pub device: ByteCount,
}

impl Shrinking<'_> {
    /// Gives the devices and image files these sizes. The caller keeps new chunks off the parts to
    /// be cut, so the refusal of a chunk there only guards this.
    pub(super) fn cut_devices(&self, ends: &BTreeMap<DeviceId, ByteCount>) -> Result<()> {
        // After two commits, the last durable state has no extent past the ends either.
        self.engine.commit()?;
        self.engine.commit()?;
        let mut cut = Vec::new();
        for (device, end) in ends {
            let slot = self.engine.devices().member(*device)?;
            require_no_chunk_past(self.engine.forest().volume(), &slot, *end)?;
            if slot.expected_bytes() != Some(*end) {
                self.engine.devices().set_bytes(*device, *end)?;
            }
            cut.push((slot, *end));
        }
        self.engine.commit()?;
        for (slot, end) in cut {
            // A device that failed during the job keeps its older state whole.
            let Some(own) = slot.device().filter(|_| slot.is_written()) else {
                continue;
            };
            cut_file(own, slot.uuid(), end)?;
        }
        Ok(())
    }

    /// Cuts the devices that a shrink enlarged before it ended early: at their earlier ends, or
    /// after the last content past these ends.
    pub(super) fn return_sizes(&self, before: &BTreeMap<DeviceId, Sizes>) -> Result<()> {
        let mut grown = BTreeMap::new();
        for (device, sizes) in before {
            let slot = self.engine.devices().member(*device)?;
            let own_bytes = slot.device().map(|own| ByteCount::new(own.size_bytes()));
            let has_grown = |now: Option<ByteCount>, then| now.is_some_and(|now| now > then);
            if has_grown(slot.expected_bytes(), sizes.volume) || has_grown(own_bytes, sizes.device) {
                grown.insert(*device, slot);
            }
        }
        if grown.is_empty() {
            return Ok(());
        }
        let mut closed = NoChunks::begin(self.engine)?;
        closed.open_below(&before.iter().map(|(id, sizes)| (*id, sizes.volume)).collect());
        let past = |id: &DeviceId| before.get(id).map(|sizes| sizes.volume);
        let groups = grown.keys().filter_map(|id| Some((*id, past(id)?)));
        let groups = self.few_groups_past(groups.collect());
        // If the volume has no space for this content, the devices stay larger.
        let _stays = self
            .engine
            .relocations()
            .relocate_now(&groups, &RelocationOptions::default());
        let mut ends = BTreeMap::new();
        for (device, slot) in &grown {
            let (Some(earlier), Some(now)) = (past(device), slot.expected_bytes()) else {
                continue;
            };
            let last = end_of_extents(self.engine.forest().volume(), slot);
            ends.insert(*device, earlier.max(last).min(now));
        }
        self.cut_devices(&ends)
    }

    /// Returns the groups with a device extent past these ends, smallest content first, as long as
    /// their content is little.
    fn few_groups_past(&self, ends: Vec<(DeviceId, ByteCount)>) -> Vec<Logical> {
        let mut groups: Vec<Logical> = Vec::new();
        for (device, end) in ends {
            groups.extend(
                self.engine
                    .relocations()
                    .groups_on(device, &(Physical::new(end.get())..Physical::MAX)),
            );
        }
        groups.sort_unstable();
        groups.dedup();
        let running = self.engine.shared.running.lock();
        let used = |start: &Logical| {
            let group = running.core.groups.holding(start.get());
            group.map_or(0, |group| group.used)
        };
        groups.sort_by_key(used);
        let mut left = BACK_BYTES;
        groups.retain(|start| match left.checked_sub(used(start)) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        });
        groups
    }
}

/// Returns the end of the last device extent on a device.
fn end_of_extents(volume: &Volume, slot: &DeviceSlot) -> ByteCount {
    let map = volume.chunk_map();
    let ends = map.chunks().iter().flat_map(|chunk| {
        let length = chunk.layout().device_extent_bytes().get();
        let stripes = chunk.chunk().stripes.iter();
        let own = stripes.filter(|stripe| stripe.device_uuid == slot.uuid());
        // Clamp: an end past the last address is past every device.
        own.map(move |stripe| stripe.physical.get().saturating_add(length))
    });
    // Clamp: a device without extents ends at its start.
    ByteCount::new(ends.max().unwrap_or(0))
}
