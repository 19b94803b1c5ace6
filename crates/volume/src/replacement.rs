//! A device that is to take another's place, while it is filled; and the moment at which it does.
//!
//! From [`Volume::begin_replacement`] on, what is written to a stripe of the *source* is written to the *target* too, at the
//! same place, superblocks among that: there the target names itself, with id 0, as Linux has it. Nothing is read from the
//! target. A job above copies what the source held before. [`Volume::write_superblocks_and_replace`] then is the commit with
//! which the target becomes the device: it gets superblocks with the source's id and uuid, the source gets none any more.
//!
//! Slots never change their device. The source's slot is exchanged for another one, with the same id and uuid and the same
//! counters of errors, in the table of devices and in the chunks that have a stripe on it. Both are `Arc`s that readers hold
//! while they read: they go on with the slot that they began with, and pay nothing. Writers hold the lock `writes`, shared,
//! from planning to the end; whoever exchanges takes it alone, so that each write goes to the old slots or to the new ones.
//!
//! A target that fails a write is left out, as any device: then the replacement cannot be finished, and the volume loses
//! nothing. While a target is there, or a job [guards](Volume::guard_rows) them, writers lock the rows of all profiles, not
//! only those with parity: a job that holds a row's lock finds its copies alike, and its copy of them stays what they are.

use crate::Volume;
use crate::chunk_map::{ChunkMap, MappedChunk};
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::write::{RowsLocked, WriteRefusal};
use buttress_device::Device;
use buttress_format::device_item::DeviceItem;
use buttress_format::superblock::Superblock;
use buttress_format::{DeviceId, Generation, Logical, Physical};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// The id that the target has until it takes the source's.
pub const TARGET_ID: DeviceId = DeviceId::new(0);

/// The target of a replacement, as it was found among the devices that were given.
#[derive(Clone, Debug)]
pub struct FoundTarget {
    /// The device.
    pub device: Device,
    /// Its own uuid.
    pub uuid: Uuid,
    /// The generation of its superblock: of an older one than the volume's, it missed commits.
    pub generation: Generation,
}

/// A replacement that is under way.
#[derive(Debug)]
pub struct Replacement {
    source: Arc<DeviceSlot>,
    target: Arc<DeviceSlot>,
    returning: Option<Returning>,
}

/// The state of a replacement whose target is its own source: a device that is brought up to date
/// ([`crate::returning`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returning {
    /// The generation of the device's own superblock.
    pub since: Generation,
    /// Stripes that get another place on the device, by the chunk's start and the stripe's index. The device's own
    /// state uses their old place.
    pub moved: BTreeMap<(Logical, usize), Physical>,
}

impl Replacement {
    pub(crate) const fn of_returning(
        source: Arc<DeviceSlot>,
        target: Arc<DeviceSlot>,
        returning: Returning,
    ) -> Self {
        Self {
            source,
            target,
            returning: Some(returning),
        }
    }

    /// Set when source and target are one device, which is brought up to date.
    #[must_use]
    pub const fn returning(&self) -> Option<&Returning> {
        self.returning.as_ref()
    }

    /// Whether a stripe gets another place on the device.
    #[must_use]
    pub fn is_moved(&self, chunk: &MappedChunk, stripe_index: usize) -> bool {
        self.moved_to(chunk, stripe_index).is_some()
    }

    fn moved_to(&self, chunk: &MappedChunk, stripe_index: usize) -> Option<Physical> {
        let moved = &self.returning.as_ref()?.moved;
        moved.get(&(chunk.start(), stripe_index)).copied()
    }

    /// Returns the place on the target of the bytes that are at `physical` on the source. Returns `None` for a place
    /// outside a moved stripe: the old place must not be written.
    #[must_use]
    pub fn place_on_target(
        &self,
        chunk: &MappedChunk,
        stripe_index: usize,
        physical: Physical,
    ) -> Option<Physical> {
        let Some(to) = self.moved_to(chunk, stripe_index) else {
            return Some(physical);
        };
        let stripe = chunk.chunk().stripes.get(stripe_index)?;
        to.checked_add(physical.checked_distance_from(stripe.physical)?)
    }

    /// The slot of the device that is to go; it may be missing.
    #[must_use]
    pub const fn source(&self) -> &Arc<DeviceSlot> {
        &self.source
    }

    /// The slot of the device that is to take its place. No chunk names it.
    #[must_use]
    pub const fn target(&self) -> &Arc<DeviceSlot> {
        &self.target
    }

    /// The target, if what is written to `slot` goes there too.
    pub(crate) fn target_of(&self, slot: &Arc<DeviceSlot>) -> Option<&Arc<DeviceSlot>> {
        (Arc::ptr_eq(slot, &self.source) && !buttress_faults::on("replace-target-unwritten"))
            .then_some(&self.target)
    }

    /// The item in the target's superblocks: the source's, but for id and uuid.
    pub(crate) fn target_item(&self, of_source: &DeviceItem) -> DeviceItem {
        DeviceItem {
            device: TARGET_ID,
            uuid: self.target.uuid(),
            ..*of_source
        }
    }
}

/// How many jobs want writers to lock rows. See [`Volume::guard_rows`].
#[derive(Debug, Default)]
pub(crate) struct Guards(AtomicUsize);

impl Guards {
    pub(crate) fn are_there(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// While this is held, writers lock all rows that they write.
#[derive(Debug)]
pub struct RowGuard {
    volume: Arc<Volume>,
}

impl Drop for RowGuard {
    fn drop(&mut self) {
        self.volume.guards().0.fetch_sub(1, Ordering::Release);
    }
}

impl Volume {
    /// From here on writers lock the rows that they write, of whatever profile, until the guard is dropped: for jobs that
    /// read copies against each other, or copy them, while others write.
    #[must_use]
    pub fn guard_rows(self: &Arc<Self>) -> RowGuard {
        // Writes that began without locks end first.
        let _alone = self.writes().write();
        self.guards().0.fetch_add(1, Ordering::AcqRel);
        RowGuard {
            volume: Arc::clone(self),
        }
    }

    /// Locks the rows of a chunk, by their numbers: where a stripe has a byte at `offset`, the row is
    /// `offset / stripe_bytes`. With a [guard](Self::guard_rows), nobody writes to them until this is let go of.
    #[must_use]
    pub fn lock_rows(&self, chunk: &MappedChunk, rows: Range<u64>) -> RowsLocked<'_> {
        self.row_locks().lock(chunk.start(), rows)
    }

    /// A number that changes whenever one of these rows is written, and is `None` while one is.
    #[must_use]
    pub fn writes_to_rows(&self, chunk: &MappedChunk, rows: Range<u64>) -> Option<u64> {
        self.row_locks().writes_to(chunk.start(), rows)
    }

    /// Runs something while nothing is written to the volume.
    pub fn while_unwritten<T>(&self, run: impl FnOnce() -> T) -> T {
        let _alone = self.writes().write();
        run()
    }

    /// The target of a replacement that was begun earlier, if it is among the devices that were given.
    #[must_use]
    pub fn found_target(&self) -> Option<FoundTarget> {
        self.found().lock().clone()
    }

    /// The replacement that is under way.
    #[must_use]
    pub fn replacement(&self) -> Option<Arc<Replacement>> {
        self.replacing().read().clone()
    }

    /// From here on everything that is written to the device `source` is written to `target`, too.
    ///
    /// # Errors
    /// [`WriteRefusal::NoSuchDevice`]; [`WriteRefusal::Replacing`] where a replacement is under way.
    pub fn begin_replacement(
        &self,
        source: DeviceId,
        target: Device,
        uuid: Uuid,
    ) -> Result<Arc<Replacement>, Error> {
        let _alone = self.writes().write();
        let fsid = self.superblock().fsid;
        let mut slots = self.devices().into_iter();
        let slot = slots.find(|slot| slot.id() == source && (slot.fsid() == fsid || slot.device().is_none()));
        let source = slot.ok_or(WriteRefusal::NoSuchDevice { device: source })?;
        let mut replacing = self.replacing().write();
        if replacing.is_some() {
            return Err(WriteRefusal::Replacing.into());
        }
        let replacement = Arc::new(Replacement {
            target: Arc::new(DeviceSlot::given(TARGET_ID, uuid, fsid, target, None)),
            source,
            returning: None,
        });
        *replacing = Some(Arc::clone(&replacement));
        Ok(replacement)
    }

    /// Gives the replacement up: the target is not written any more.
    pub fn give_up_replacement(&self) {
        let _alone = self.writes().write();
        self.forget_replacement();
    }

    fn forget_replacement(&self) {
        let replacement = self.replacing().write().take();
        let found = self.found().lock().take();
        drop((replacement, found));
    }

    /// As [`write_superblocks`](Self::write_superblocks), with the target in the source's place; from then on it is the
    /// device. All blocks must be durable on the target, as on all others.
    ///
    /// # Errors
    /// [`WriteRefusal::NoTarget`] where there is none, or it failed; a failure of the target, which stops writing; as there.
    pub fn write_superblocks_and_replace(
        &self,
        superblock: &Superblock,
        items: &[DeviceItem],
    ) -> Result<(), Error> {
        let _alone = self.writes().write();
        let replacement = self
            .replacement()
            .filter(|replacement| replacement.target.is_written() && replacement.returning.is_none());
        let replacement = replacement.ok_or(WriteRefusal::NoTarget)?;
        self.write_all_superblocks(superblock, items, Some(&replacement), &[])?;
        self.exchange(&replacement)
    }

    /// Puts a slot for the target in the place of the source's.
    pub(crate) fn exchange(&self, replacement: &Replacement) -> Result<(), Error> {
        let source = &replacement.source;
        let Some(new) = DeviceSlot::in_place_of(source, &replacement.target) else {
            return Err(WriteRefusal::NoTarget.into());
        };
        let new = Arc::new(new);
        self.exchange_slot(source, &new, |map| exchanged(map, source, &new))?;
        self.forget_replacement();
        Ok(())
    }
}

/// The same chunks, with `new` where `source` was.
pub(crate) fn exchanged(
    chunks: &ChunkMap,
    source: &Arc<DeviceSlot>,
    new: &Arc<DeviceSlot>,
) -> Result<ChunkMap, Error> {
    let mut map = ChunkMap::default();
    for chunk in chunks.chunks() {
        let mut devices = chunk.devices().to_vec();
        let mut own = devices
            .iter_mut()
            .filter(|slot| Arc::ptr_eq(slot, source))
            .peekable();
        if own.peek().is_none() {
            map.add_mapped(Arc::clone(chunk));
            continue;
        }
        own.for_each(|slot| *slot = Arc::clone(new));
        let chunk = MappedChunk::new(chunk.start(), chunk.chunk().clone(), devices)?;
        map.add_mapped(Arc::new(chunk));
    }
    Ok(map)
}
