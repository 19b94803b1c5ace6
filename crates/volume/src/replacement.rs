//! Device replacement: a device that is filled in parallel with another, and the commit that
//! exchanges the two.
//!
//! From [`Volume::begin_replacement`] on, writes to a stripe of the *source* also go to the
//! *target*, at the same address. The superblocks of the replaced device are written to the target
//! too. The target's own superblocks have id 0, as in Linux. During a replacement, nothing is read
//! from the target. A job above the volume copies the source's older content.
//! [`Volume::write_superblocks_and_replace`] writes the superblocks of the commit with which the
//! target becomes the device. The replacement's target gets superblocks with the source's id and
//! uuid, and the source gets none.
//!
//! A slot of the device table never changes its device. A replacement exchanges the source's slot,
//! in device table and chunks, for one with the same id, uuid and error counters. The device table
//! and the chunks are `Arc`s. Readers continue without cost with the device slot that they hold.
//! Writers hold the lock `writes` shared, from planning a write to its end. The exchange holds it
//! exclusively, so each write goes to the old slots or to the new ones.
//!
//! A target that fails a write is left out, like any device. A replacement whose target was left
//! out cannot finish, and the volume loses nothing. While a target exists, or a job
//! [guards](Volume::guard_rows) the rows, writers lock the rows of all profiles, not only those
//! with parity. A replacement job that holds a row's lock therefore finds equal copies, which stay
//! unchanged while it copies them.

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

/// The id of the target until it takes over the source's id.
pub const TARGET_ID: DeviceId = DeviceId::new(0);

/// The target of a replacement, found among the given devices.
#[derive(Clone, Debug)]
pub struct FoundTarget {
    /// The target device.
    pub device: Device,
    /// The uuid of the replacement's target device.
    pub uuid: Uuid,
    /// The generation of the target's superblock. If the target's generation is older than the
    /// volume's, the target missed commits.
    pub generation: Generation,
}

/// A replacement in progress.
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
    /// Moved stripes, by the chunk's start and the stripe's index, with their new physical address
    /// on the device. Extents of the device's own state occupy the old addresses of these stripes.
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

    /// Returns the state of a returning device, if source and target are one device.
    #[must_use]
    pub const fn returning(&self) -> Option<&Returning> {
        self.returning.as_ref()
    }

    /// Returns true if a stripe gets another address on the device.
    #[must_use]
    pub fn is_moved(&self, chunk: &MappedChunk, stripe_index: usize) -> bool {
        self.moved_to(chunk, stripe_index).is_some()
    }

    fn moved_to(&self, chunk: &MappedChunk, stripe_index: usize) -> Option<Physical> {
        let moved = &self.returning.as_ref()?.moved;
        moved.get(&(chunk.start(), stripe_index)).copied()
    }

    /// Returns the place on the target of the bytes that are at `physical` on the source. Returns
    /// `None` for a place outside a moved stripe: the old place must not be written.
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

    /// Returns the slot of the device to be replaced, which may be missing.
    #[must_use]
    pub const fn source(&self) -> &Arc<DeviceSlot> {
        &self.source
    }

    /// Returns the slot of the new device. No chunk names the new device.
    #[must_use]
    pub const fn target(&self) -> &Arc<DeviceSlot> {
        &self.target
    }

    /// Returns the target, if writes to `slot` also go to it.
    pub(crate) fn target_of(&self, slot: &Arc<DeviceSlot>) -> Option<&Arc<DeviceSlot>> {
        (Arc::ptr_eq(slot, &self.source) && !buttress_faults::on("replace-target-unwritten"))
            .then_some(&self.target)
    }

    /// Returns the device item for the target's own superblocks: the source's item with the
    /// target's id and uuid.
    pub(crate) fn target_item(&self, of_source: &DeviceItem) -> DeviceItem {
        DeviceItem {
            device: TARGET_ID,
            uuid: self.target.uuid(),
            ..*of_source
        }
    }
}

/// The number of jobs that require writers to lock rows. See [`Volume::guard_rows`].
#[derive(Debug, Default)]
pub(crate) struct Guards(AtomicUsize);

impl Guards {
    pub(crate) fn are_there(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// A guard: while a job holds it, writers lock all rows that they write.
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
    /// Makes writers lock the rows that they write, in all profiles, until the guard is dropped.
    /// The guard serves jobs that compare or copy a chunk's copies while other threads write.
    #[must_use]
    pub fn guard_rows(self: &Arc<Self>) -> RowGuard {
        // Wait for writers that began before row locks were required.
        let _alone = self.writes().write();
        self.guards().0.fetch_add(1, Ordering::AcqRel);
        RowGuard {
            volume: Arc::clone(self),
        }
    }

    /// Locks the rows of a chunk by their indexes. In a stripe, the byte at `offset` belongs to row
    /// `offset / stripe_bytes`. While a [guard](Self::guard_rows) exists, no thread writes to the
    /// locked rows until the result is dropped.
    #[must_use]
    pub fn lock_rows(&self, chunk: &MappedChunk, rows: Range<u64>) -> RowsLocked<'_> {
        self.row_locks().lock(chunk.start(), rows)
    }

    /// Returns a number that changes with each write to one of these rows. Returns `None` while a
    /// thread writes one of these rows.
    #[must_use]
    pub fn writes_to_rows(&self, chunk: &MappedChunk, rows: Range<u64>) -> Option<u64> {
        self.row_locks().writes_to(chunk.start(), rows)
    }

    /// Runs a function while no thread writes to the volume.
    pub fn while_unwritten<T>(&self, run: impl FnOnce() -> T) -> T {
        let _alone = self.writes().write();
        run()
    }

    /// Returns the target of an earlier replacement, if it is among the given devices.
    #[must_use]
    pub fn found_target(&self) -> Option<FoundTarget> {
        self.found().lock().clone()
    }

    /// Returns the replacement in progress.
    #[must_use]
    pub fn replacement(&self) -> Option<Arc<Replacement>> {
        self.replacing().read().clone()
    }

    /// Begins a replacement: all later writes to the device `source` also go to `target`.
    ///
    /// # Errors
    /// Returns [`WriteRefusal::NoSuchDevice`], or [`WriteRefusal::Replacing`] if a replacement is
    /// in progress.
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

    /// Cancels the replacement: the target is no longer written.
    pub fn give_up_replacement(&self) {
        let _alone = self.writes().write();
        self.forget_replacement();
    }

    fn forget_replacement(&self) {
        let replacement = self.replacing().write().take();
        let found = self.found().lock().take();
        drop((replacement, found));
    }

    /// Writes superblocks like [`write_superblocks`](Self::write_superblocks), with the target in
    /// place of the source, which makes the target the device. All blocks of the volume must be
    /// durable, on the target as on all other devices.
    ///
    /// # Errors
    /// Returns [`WriteRefusal::NoTarget`] if no target exists or it failed. A failure of the target
    /// stops writing. Also fails as [`write_superblocks`](Self::write_superblocks) does.
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

    /// Replaces the source's slot by a slot for the target.
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

/// Returns the chunks with `new` in place of `source`.
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
