//! The state that all threads of a scrub share.

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

/// A function that returns the last commit's state of a volume with concurrent writers.
pub type Views<'a> = dyn Fn() -> Filesystem + Sync + 'a;

/// A function that returns which parts of a range of addresses were ever written, in a state of the
/// volume.
pub type IsWritten<'a> = dyn Fn(&Filesystem, Logical, ByteCount) -> Vec<Range<Logical>> + Sync + 'a;

/// A device, and its counters.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) slot: Arc<DeviceSlot>,
    pub(crate) counters: Mutex<Counters, CountersLock>,
    pub(crate) limiter: Limiter,
    pub(crate) to_scrub: u64,
}

/// The state that all threads of a scrub share.
pub(crate) struct Job<'a> {
    pub(crate) volume: Arc<Volume>,
    pub(crate) format: BlockFormat,
    pub(crate) options: Options,
    pub(crate) progress: Progress,
    pub(crate) ledger: Mutex<Ledger, LedgerLock>,
    /// Devices that the scrub wrote to.
    pub(crate) written: Mutex<HashSet<Uuid>, WrittenLock>,
    /// The trees of a volume without writers. Beside writers, each chunk of a scrub has trees of
    /// its own. Space that is freed while trees are held is not reused.
    pub(crate) trees: Option<Trees>,
    /// Returns the state of the last commit if there are concurrent writers, else `None`.
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

    /// Returns whether data of a group without checksums was ever written. With concurrent writers,
    /// data whose state is still unknown ([`Job::learn_written`]) counts as written.
    pub(crate) fn is_written(&self, group: &Group, logical: Logical, length: ByteCount) -> bool {
        if let Some(trees) = &self.trees {
            self.learn_written(group, trees);
        }
        let end = logical.exact_add(length);
        let overlaps = |part: &Range<Logical>| part.start < end && logical < part.end;
        let known = group.written.get();
        known.is_none_or(|written| written.iter().any(overlaps))
    }

    /// Finds out which parts of a group's data without checksums were ever written, in the group's
    /// state. The result remains valid after the rows of the group are locked. The caller of the
    /// answering function holds no lock, because the function reads trees.
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

    /// Returns the trees that show which parts of a chunk are in use, and the chunk in the current
    /// map. Returns `None` if the chunk was removed since it was listed. Another chunk may then
    /// have the removed chunk's addresses at other places, and all its data is new.
    ///
    /// The trees are held first: while the trees are held, no chunk in them is removed.
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
        // The chunk's device slots may have changed, because a device may have been replaced.
        Ok(now.filter(is_same).map(|now| (trees, Arc::clone(now))))
    }

    /// Flushes the devices, so that repairs are durable.
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

/// Returns the offset of a stripe on its device.
pub(crate) fn physical_of(chunk: &MappedChunk, stripe: usize) -> Option<Physical> {
    Some(chunk.chunk().stripes.get(stripe)?.physical)
}
