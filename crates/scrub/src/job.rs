//! What all threads of a scrub share.

use crate::filling::Trees;
use crate::filling_target::{Filled, Replacing};
use crate::group::{Expected, Group, Piece};
use crate::limit::Limiter;
use crate::mending::Ledger;
use crate::options::Options;
use crate::position::Running;
use crate::report::Counters;
use buttress_format::{BlockFormat, ByteCount, Logical, Physical};
use buttress_fs::{Filesystem, Progress};
use buttress_locks::{Mutex, Rank, lock_class};
use buttress_volume::{DeviceSlot, MappedChunk, RowGuard, Volume};
use core::ops::Range;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use uuid::Uuid;

lock_class!(pub(crate) CountersLock, "counters", Rank::LEAF);
lock_class!(pub(crate) LedgerLock, "ledger", Rank::LEAF);
lock_class!(pub(crate) WrittenLock, "written", Rank::LEAF);
lock_class!(pub(crate) ReplacedLock, "replaced", Rank::LEAF);
lock_class!(pub(crate) RunningLock, "running", Rank::LEAF);

/// Gives the state of the last commit of a volume that others write to.
pub type Views<'a> = dyn Fn() -> Filesystem + Sync + 'a;

/// Tells what of a range of addresses was ever written, as a state of the volume has it.
pub type IsWritten<'a> = dyn Fn(&Filesystem, Logical, ByteCount) -> Vec<Range<Logical>> + Sync + 'a;

/// One device, and what is counted on it.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) slot: Arc<DeviceSlot>,
    pub(crate) counters: Mutex<Counters, CountersLock>,
    pub(crate) limiter: Limiter,
    pub(crate) to_scrub: u64,
}

/// What all threads of a scrub share.
pub(crate) struct Job<'a> {
    pub(crate) volume: Arc<Volume>,
    pub(crate) format: BlockFormat,
    pub(crate) options: Options,
    pub(crate) progress: Progress,
    pub(crate) ledger: Mutex<Ledger, LedgerLock>,
    /// Devices that something was written to.
    pub(crate) written: Mutex<HashSet<Uuid>, WrittenLock>,
    /// Of a volume that nobody writes. Where others write each chunk has its own: what is freed while they are held is not used
    /// again.
    pub(crate) trees: Option<Trees>,
    /// Gives the state of the last commit, where others write.
    pub(crate) views: Option<&'a Views<'a>>,
    pub(crate) guard: Option<RowGuard>,
    pub(crate) replaces: Option<Replacing>,
    pub(crate) replaced: Mutex<Filled, ReplacedLock>,
    pub(crate) devices: HashMap<Uuid, DeviceState>,
    pub(crate) running: Mutex<Running, RunningLock>,
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

    /// Whether data of a group, without checksums, was ever written. Where others write, what is not known by now
    /// ([`Job::learn_written`]) counts as written.
    pub(crate) fn is_written(&self, group: &Group, logical: Logical, length: ByteCount) -> bool {
        if let Some(trees) = &self.trees {
            self.learn_written(group, trees);
        }
        let end = logical.exact_add(length);
        let overlaps = |part: &Range<Logical>| part.start < end && logical < part.end;
        let known = group.written.get();
        known.is_none_or(|written| written.iter().any(overlaps))
    }

    /// Finds out what of a group's data without checksums was ever written, in the state that the group was made of: what is
    /// learned before its rows are locked holds after that, too. Nothing is locked here, for whoever answers reads trees.
    pub(crate) fn learn_written(&self, group: &Group, trees: &Trees) {
        let Some(ask) = self.is_written else { return };
        group.written.get_or_init(|| {
            let bare = group
                .pieces
                .iter()
                .filter(|piece| piece.expected == Expected::Bare);
            let parts = |piece: &Piece| ask(trees.filesystem(), piece.logical, ByteCount::of(piece.length));
            bare.flat_map(parts).collect()
        });
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
        let written = self.written.lock().clone();
        for state in self
            .devices
            .values()
            .filter(|state| written.contains(&state.slot.uuid()))
        {
            let flushed = state.slot.device().map(buttress_device::Device::flush);
            if let Some(Err(error)) = flushed {
                let lost = format!("repairs on device {} may be lost: {error}", state.slot.id());
                self.ledger.lock().cannot_walk(lost);
            }
        }
    }
}

/// Where a stripe begins on its device.
pub(crate) fn physical_of(chunk: &MappedChunk, stripe: usize) -> Option<Physical> {
    Some(chunk.chunk().stripes.get(stripe)?.physical)
}
