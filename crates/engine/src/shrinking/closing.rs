//! The chunks of a volume while it shrinks: no edit makes one, and no commit removes one.
//!
//! Invariant: from the begin of a shrink to the commit of the new sizes, no new chunk gets a place
//! past the new end of a device. Until the new ends are known, only the plan makes chunks.

use crate::engine::Engine;
use buttress_format::{ByteCount, DeviceId, Logical};
use buttress_fs::error::Result;
use std::collections::BTreeMap;

/// Keeps edits from making chunks, and commits from removing empty ones. Groups that were closed
/// meanwhile take extents again when this is dropped.
pub(super) struct NoChunks<'a> {
    engine: &'a Engine,
}

impl<'a> NoChunks<'a> {
    pub(super) fn begin(engine: &'a Engine) -> Result<Self> {
        engine.require_writing()?;
        let mut running = engine.shared.running.lock();
        for room in &mut running.core.devices.rooms {
            room.chunks_end = Some(0);
        }
        running.core.groups.set_keeps_empty(true);
        drop(running);
        Ok(Self { engine })
    }

    /// Closes groups: no more extents go to them.
    pub(super) fn close(&mut self, groups: &[Logical]) {
        let mut running = self.engine.shared.running.lock();
        for start in groups {
            if let Some(group) = running.core.groups.get_mut(start.get()) {
                group.read_only = true;
            }
        }
    }

    /// Opens the closed groups, and lets commits remove empty ones. Edits make chunks below these
    /// ends of the devices; a device without an end gets no chunk.
    pub(super) fn open_below(&mut self, ends: &BTreeMap<DeviceId, ByteCount>) {
        let mut running = self.engine.shared.running.lock();
        for room in &mut running.core.devices.rooms {
            let end = ends.get(&room.item.device).map_or(0, |end| end.get());
            room.chunks_end = (!buttress_faults::on("shrink-cut-chunk-past-end")).then_some(end);
        }
        for group in running.core.groups.iter_mut() {
            group.read_only = false;
            group.is_last_resort = false;
        }
        running.core.groups.set_keeps_empty(false);
    }
}

impl Drop for NoChunks<'_> {
    fn drop(&mut self) {
        self.open_below(&BTreeMap::new());
        let mut running = self.engine.shared.running.lock();
        for room in &mut running.core.devices.rooms {
            room.chunks_end = None;
        }
    }
}
