//! What all threads of a scrub share.

use crate::filling::Trees;
use crate::filling_target::{Filled, Replacing};
use crate::limit::Limiter;
use crate::mending::Ledger;
use crate::options::Options;
use crate::position::Running;
use crate::report::Counters;
use buttress_format::{BlockFormat, ByteCount, Logical, Physical};
use buttress_fs::{Filesystem, Progress};
use buttress_volume::{DeviceSlot, MappedChunk, RowGuard, Volume};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use uuid::Uuid;

/// Gives the state of the last commit of a volume that others write to.
pub type Views<'a> = dyn Fn() -> Filesystem + Sync + 'a;

/// Tells of an address whether its data was ever written.
pub type IsWritten<'a> = dyn Fn(Logical, ByteCount) -> bool + Sync + 'a;

/// One device, and what is counted on it.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) slot: Arc<DeviceSlot>,
    pub(crate) counters: Mutex<Counters>,
    pub(crate) limiter: Limiter,
    pub(crate) to_scrub: u64,
}

/// What all threads of a scrub share.
pub(crate) struct Job<'a> {
    pub(crate) volume: Arc<Volume>,
    pub(crate) format: BlockFormat,
    pub(crate) options: Options,
    pub(crate) progress: Progress,
    pub(crate) ledger: Mutex<Ledger>,
    /// Devices that something was written to.
    pub(crate) written: Mutex<HashSet<Uuid>>,
    /// Of a volume that nobody writes. Where others write each chunk has its own: what is freed while they are held is not used
    /// again.
    pub(crate) trees: Option<Trees>,
    /// Gives the state of the last commit, where others write.
    pub(crate) views: Option<&'a Views<'a>>,
    pub(crate) guard: Option<RowGuard>,
    pub(crate) replaces: Option<Replacing>,
    pub(crate) replaced: Mutex<Filled>,
    pub(crate) devices: HashMap<Uuid, DeviceState>,
    pub(crate) running: Mutex<Running>,
    pub(crate) is_written: Option<&'a IsWritten<'a>>,
}

impl Job<'_> {
    pub(crate) fn first_group(&self, chunk: Logical) -> Option<u64> {
        self.running.lock().done().first_group(chunk)
    }

    /// Changes the counters of a device.
    pub(crate) fn count(&self, slot: &DeviceSlot, change: impl FnOnce(&mut Counters)) {
        if let Some(state) = self.devices.get(&slot.uuid()) {
            change(&mut state.counters.lock());
        }
    }

    pub(crate) fn is_written(&self, logical: Logical, length: ByteCount) -> bool {
        self.is_written
            .is_none_or(|is_written| is_written(logical, length))
    }

    /// The trees that say what of a chunk is in use; a chunk, as the map has it by then. `None` for one that went since it was
    /// listed. Another one may have its addresses then, and lie elsewhere: all that is there was written since.
    ///
    /// The trees come first: while they are held, no chunk goes that they lead to.
    pub(crate) fn trees_of(
        &self,
        chunk: &Arc<MappedChunk>,
    ) -> buttress_fs::Result<Option<(Trees, Arc<MappedChunk>)>> {
        if let Some(trees) = &self.trees {
            return Ok(Some((trees.clone(), Arc::clone(chunk))));
        }
        let Some(views) = self.views else { return Ok(None) };
        let trees = Trees::of(&views())?;
        let map = self.volume.chunk_map();
        let now = map.find(chunk.start());
        let is_same = |now: &&Arc<MappedChunk>| now.start() == chunk.start() && now.chunk() == chunk.chunk();
        // Its slots may be others: a device may have been replaced.
        Ok(now.filter(is_same).map(|now| (trees, Arc::clone(now))))
    }

    /// Makes what was mended durable.
    pub(crate) fn flush(&self) {
        let written = self.written.lock();
        for state in self
            .devices
            .values()
            .filter(|state| written.contains(&state.slot.uuid()))
        {
            let flushed = state.slot.device().map(buttress_device::Device::flush);
            if let Some(Err(error)) = flushed {
                let lost = format!(
                    "what was mended on device {} may be lost: {error}",
                    state.slot.id()
                );
                self.ledger.lock().cannot_walk(lost);
            }
        }
    }
}

/// Where a stripe begins on its device.
pub(crate) fn physical_of(chunk: &MappedChunk, stripe: usize) -> Option<Physical> {
    Some(chunk.chunk().stripes.get(stripe)?.physical)
}
