//! [`Volume`]: the devices, the chunk map and the notices behind one handle.
//!
//! Opening proceeds in steps, because the chunk tree is read through the volume:
//!
//! 1. [`Volume::open`] chooses superblocks, matches devices and maps the system chunks;
//! 2. the layers above read the chunk tree, and pass every device item to [`Volume::add_device`]
//!    and every chunk item to [`Volume::add_chunk`];
//! 3. [`Volume::finish_bootstrap`] checks that enough devices were given;
//! 4. with the raid-stripe-tree feature, [`Volume::set_stripe_resolver`] connects that tree.
//!
//! A writer of the volume adds and removes chunks. A commit replaces the superblock and the device
//! items.
//!
//! Invariants: a device's slot leaves with the device ([`crate::membership`]), or in exchange for
//! another slot. Once a slot is left out of writes, it stays left out. A reader keeps the map and
//! superblock of its start. No lock is held during I/O, except row locks and the lock of writers.

use crate::chunk_map::{Added, ChunkMap, MappedChunk};
use crate::devices::{DeviceSlot, DeviceTable};
use crate::error::{DevicesError, Error, MissingDevice};
use crate::faults::{FaultLog, FaultRecorder, HearFault, HearsFaults};
use crate::notice::Notice;
use crate::open::{self, OpenOptions};
use crate::replacement::{FoundTarget, Guards, Replacement};
use crate::stripe_tree::{StripeResolver, Unconnected};
use crate::write::{ErrorState, RowLocks, WriteRefusal};
use buttress_device::{Device, VirtualClock};
use buttress_format::chunk::Chunk;
use buttress_format::device_item::DeviceItem;
use buttress_format::superblock::{Incompat, Superblock};
use buttress_format::{BlockFormat, ByteCount, Logical, Physical};
use buttress_locks::{Mutex, Rank, RwLock, lock_class};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

lock_class!(SuperblockLock, "superblock", Rank::LEAF);
lock_class!(pub(crate) DevicesLock, "devices", Rank::new(80));
lock_class!(ChunksLock, "chunks", Rank::LEAF);
lock_class!(NoticesLock, "notices", Rank::LEAF);
lock_class!(pub(crate) WritesLock, "writes", Rank::new(58).over_device());
lock_class!(pub(crate) ReplacingLock, "replacing", Rank::LEAF);
lock_class!(pub(crate) HearsFaultsLock, "hears_faults", Rank::LEAF);
lock_class!(pub(crate) FoundLock, "found", Rank::LEAF);
lock_class!(pub(crate) FailingLock, "failing", Rank::new(70));

/// The maximum number of kept notices. A hostile chunk tree could cause one notice for each chunk.
const NOTICES_KEPT: usize = 256;

/// A volume: logical addresses over devices, shared as `Arc<Volume>`.
#[derive(Debug)]
pub struct Volume {
    superblock: RwLock<Arc<Superblock>, SuperblockLock>,
    format: BlockFormat,
    options: OpenOptions,
    devices: RwLock<DeviceTable, DevicesLock>,
    chunks: RwLock<Arc<ChunkMap>, ChunksLock>,
    resolver: OnceLock<Arc<dyn StripeResolver>>,
    notices: Mutex<Vec<Notice>, NoticesLock>,
    recorder: FaultRecorder,
    latch: ErrorState,
    row_locks: RowLocks,
    /// Held shared by writers, and exclusively by changes of the devices that writes go to.
    writes: RwLock<(), WritesLock>,
    /// The replacement in progress.
    replacing: RwLock<Option<Arc<Replacement>>, ReplacingLock>,
    /// The target of a replacement that began before this opening.
    found: Mutex<Option<FoundTarget>, FoundLock>,
    guards: Guards,
    /// The callback that receives every copy that a reader skips.
    hears_faults: RwLock<Option<HearsFaults>, HearsFaultsLock>,
    /// The volume holds this lock while it decides whether it can continue without a device.
    failing: Mutex<(), FailingLock>,
    /// True if the volume may continue without a failed device, as a volume with data may.
    tolerates_failures: bool,
    /// A device whose clock all simulated devices of the volume share.
    clocked: Device,
}

/// The state of a volume before its chunks are known.
pub(crate) struct Start {
    pub(crate) format: BlockFormat,
    pub(crate) options: OpenOptions,
    pub(crate) slots: Vec<DeviceSlot>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) target: Option<FoundTarget>,
    pub(crate) tolerates_failures: bool,
    pub(crate) clocked: Device,
    pub(crate) superblock: Superblock,
}

impl Start {
    /// Makes a volume without chunks.
    pub(crate) fn into_volume(self) -> Volume {
        Volume {
            format: self.format,
            options: self.options,
            devices: RwLock::new(DeviceTable::new(self.slots)),
            chunks: RwLock::default(),
            resolver: OnceLock::new(),
            notices: Mutex::new(self.notices),
            recorder: FaultRecorder::default(),
            latch: ErrorState::default(),
            row_locks: RowLocks::default(),
            writes: RwLock::default(),
            replacing: RwLock::default(),
            found: Mutex::new(self.target),
            guards: Guards::default(),
            hears_faults: RwLock::default(),
            failing: Mutex::default(),
            tolerates_failures: self.tolerates_failures,
            clocked: self.clocked,
            superblock: RwLock::new(Arc::new(self.superblock)),
        }
    }
}

impl Volume {
    /// Opens the volume of the given devices, as far as its superblocks describe it.
    ///
    /// Devices may come in any order. The newest generation leads; see [`crate::open`].
    ///
    /// # Errors
    /// Fails without a valid superblock, with unknown incompat features, bad system chunks, devices
    /// of different volumes or a device given twice. Missing devices are no error yet.
    pub fn open(devices: Vec<Device>, options: OpenOptions) -> Result<Self, Error> {
        let opened = open::choose(devices, options.change)?;
        let volume = Start {
            format: opened.format,
            options,
            slots: opened.slots,
            notices: opened.notices,
            target: opened.target,
            tolerates_failures: true,
            clocked: opened.lead,
            superblock: opened.superblock,
        }
        .into_volume();
        for (key, chunk) in &volume.superblock().system_chunks {
            volume.add_chunk(Logical::new(key.offset), chunk.clone())?;
        }
        Ok(volume)
    }

    /// Makes a volume that does not exist on disk yet, and reads nothing. The caller first passes
    /// its chunks to [`Volume::add_chunk`], including the system chunks. The caller writes the
    /// blocks next, and then the superblocks ([`Volume::write_superblocks`]). A device that fails
    /// before the superblocks are written fails the volume, whatever the profiles tolerate.
    ///
    /// # Errors
    /// Fails without a device, or with two devices of one uuid.
    pub fn create(devices: Vec<(Device, DeviceItem)>, superblock: Superblock) -> Result<Self, Error> {
        let clocked = devices.first().map(|(device, _)| device.clone());
        let clocked = clocked.ok_or(DevicesError::None)?;
        let slot = |(device, item): (Device, DeviceItem)| {
            DeviceSlot::given(item.device, item.uuid, superblock.fsid, device, None)
        };
        let items: Vec<DeviceItem> = devices.iter().map(|(_, item)| *item).collect();
        let slots = devices.into_iter().map(slot).collect();
        let volume = Start {
            format: superblock.block_format(),
            options: OpenOptions::default(),
            slots,
            notices: Vec::new(),
            target: None,
            tolerates_failures: false,
            clocked,
            superblock,
        }
        .into_volume();
        for item in items {
            volume.add_device(item)?;
        }
        Ok(volume)
    }

    /// Returns the superblock in use: the leading device's, or the last commit's.
    #[must_use]
    pub fn superblock(&self) -> Arc<Superblock> {
        Arc::clone(&self.superblock.read())
    }

    /// Replaces the superblock in use, as a commit does. The fields that the checks of tree blocks
    /// use must stay the same: node size, checksum type, uuids.
    pub fn set_superblock(&self, superblock: Superblock) {
        *self.superblock.write() = Arc::new(superblock);
    }

    /// Returns the block format, which the checks of tree blocks use.
    #[must_use]
    pub const fn block_format(&self) -> &BlockFormat {
        &self.format
    }

    /// Returns the options with which the volume was opened.
    #[must_use]
    pub const fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Returns all notices in order: those of the opening, and those of devices that failed since.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.lock().clone()
    }

    /// Returns true if no notice forbids writing.
    #[must_use]
    pub fn may_be_written(&self) -> bool {
        !self.notices.lock().iter().any(Notice::forbids_writing)
    }

    /// Returns the log of copies that reads have skipped.
    #[must_use]
    pub fn faults(&self) -> FaultLog {
        self.recorder.snapshot()
    }

    /// Sets the callback that receives every copy that a reader skips, on the reader's thread. The
    /// callback must not block. `None` removes the callback.
    pub fn tell_faults(&self, hears: Option<Arc<HearFault>>) {
        let before = core::mem::replace(&mut *self.hears_faults.write(), hears.map(HearsFaults));
        drop(before);
    }

    /// Adds a chunk item. `start` is the offset of its key. The caller may add system chunks twice.
    ///
    /// # Errors
    /// Fails if the chunk overlaps another, if its profile does not allow it, or if its stripes
    /// name a known device by another id.
    pub fn add_chunk(&self, start: Logical, chunk: Chunk) -> Result<(), Error> {
        let added = {
            // Held until the map has the chunk, so that the map keeps no exchanged slot.
            let mut table = self.devices.write();
            let stripes = chunk.stripes.iter();
            let devices = stripes
                .map(|stripe| table.find_or_miss(stripe.device, stripe.device_uuid))
                .collect::<Result<Vec<_>, Error>>()?;
            let chunk = MappedChunk::new(start, chunk, devices)?;
            Arc::make_mut(&mut self.chunks.write()).add(chunk)?
        };
        if added == Added::Differs {
            self.notice(Notice::SystemChunkDiffers { logical: start });
        }
        Ok(())
    }

    /// Removes the chunk that begins at `start`. Readers of the old map keep the chunk.
    ///
    /// # Errors
    /// Returns [`WriteRefusal::NoSuchChunk`].
    pub fn remove_chunk(&self, start: Logical) -> Result<(), Error> {
        // Under this lock, no copy of the old chunk map can restore the chunk.
        let _table = self.devices.write();
        if Arc::make_mut(&mut self.chunks.write()).remove(start) {
            Ok(())
        } else {
            Err(WriteRefusal::NoSuchChunk { logical: start }.into())
        }
    }

    /// Replaces a device's item by that of a later commit.
    ///
    /// # Errors
    /// Fails if the item contradicts the known facts of its device.
    pub fn set_device_item(&self, item: DeviceItem) -> Result<(), Error> {
        self.devices.write().set_item(item)
    }

    /// Adds a device item of the chunk tree.
    ///
    /// # Errors
    /// Fails if the item contradicts the known facts of its device.
    pub fn add_device(&self, item: DeviceItem) -> Result<(), Error> {
        self.devices.write().add_item(item)
    }

    /// Checks that the devices suffice. The caller must have added all chunk and device items.
    ///
    /// # Errors
    /// Returns [`DevicesError::Missing`] if a device is missing and the volume is not degraded, or
    /// [`DevicesError::Foreign`] if a seed device was given that the volume does not list.
    pub fn finish_bootstrap(&self) -> Result<(), Error> {
        let slots = self.devices();
        let map = self.chunk_map();
        if let Some(error) = self.missing_instead() {
            return Err(error);
        }
        self.missing_devices()
            .into_iter()
            .for_each(|device| self.notice(Notice::MissingDevice(device)));
        let listed = slots.iter().filter(|slot| slot.item().is_some());
        let found = ByteCount::of(listed.count()).get();
        let counted = self.superblock().num_devices;
        if found != counted {
            self.notice(Notice::DeviceCount {
                superblock: counted,
                found,
            });
        }
        for slot in &slots {
            self.check_device(slot, found > 0)?;
        }
        map.chunks().iter().for_each(|chunk| self.check_chunk(chunk));
        self.refuse_diverged(&slots)?;
        self.settle_idle_devices()?;
        self.settle_doubts()
    }

    /// Refuses devices of one generation whose root tree blocks differ. Superblocks of diverged
    /// devices can be equal by chance, if both histories allocated the same addresses.
    fn refuse_diverged(&self, slots: &[Arc<DeviceSlot>]) -> Result<(), Error> {
        let several = slots.iter().filter(|slot| slot.device().is_some()).count() > 1;
        if !several || buttress_faults::on("volume-diverged-devices-accepted") {
            return Ok(());
        }
        let superblock = self.superblock();
        // While tree blocks get other headers in place, a cut leaves copies of the root that differ.
        if superblock.flags.rewrites_blocks() {
            return Ok(());
        }
        let differing = self.differing_copies(superblock.root, superblock.generation);
        differing.map_or(Ok(()), |(first, second)| {
            Err(Error::from(DevicesError::Diverged {
                first: first.name().to_string(),
                first_generation: superblock.generation,
                second: second.name().to_string(),
                second_generation: superblock.generation,
            }))
        })
    }

    fn check_device(&self, slot: &DeviceSlot, items_known: bool) -> Result<(), Error> {
        let Some(device) = slot.device() else {
            return Ok(());
        };
        match slot.expected_bytes() {
            Some(expected) if expected.get() > device.size_bytes() => {
                self.notice(Notice::DeviceCutShort {
                    device: slot.name().to_string(),
                    id: slot.id(),
                    size_bytes: device.size_bytes(),
                    expected,
                });
            }
            None if items_known && slot.fsid() != self.superblock().fsid => {
                return Err(Error::from(DevicesError::Foreign {
                    first: self.clocked.name().to_owned(),
                    first_fsid: self.superblock().fsid,
                    second: slot.name().to_string(),
                    second_fsid: slot.fsid(),
                }));
            }
            None if items_known => self.notice(Notice::UnlistedDevice {
                device: slot.name().to_string(),
                uuid: slot.uuid(),
            }),
            Some(_) | None => {}
        }
        Ok(())
    }

    fn check_chunk(&self, chunk: &MappedChunk) {
        let profile = chunk.layout().profile();
        let tolerated = usize::from(profile.tolerated_failures());
        if chunk.missing_stripes() > tolerated {
            self.notice(Notice::ChunkBeyondTolerance {
                logical: chunk.start(),
                length: chunk.length(),
                profile: profile.name(),
                missing: chunk.missing_stripes(),
                tolerated,
            });
        }
        for (stripe, slot) in chunk.chunk().stripes.iter().zip(chunk.devices()) {
            let end = stripe.physical.checked_add(chunk.layout().device_extent_bytes());
            // Clamp: an address from disk past all physical addresses is past every device.
            let end = end.unwrap_or(Physical::MAX);
            if let Some(device_bytes) = slot.expected_bytes()
                && end.get() > device_bytes.get()
            {
                self.notice(Notice::StripePastDevice {
                    logical: chunk.start(),
                    device: slot.id(),
                    end,
                    device_bytes,
                });
            }
        }
    }

    /// Connects the RAID stripe tree, which readers of its chunks need. Only the first call counts.
    pub fn set_stripe_resolver(&self, resolver: Arc<dyn StripeResolver>) {
        let _ = self.resolver.set(resolver);
    }

    /// Returns the resolver of the RAID stripe tree, or `None` on a volume without that feature.
    pub(crate) fn resolver(&self) -> Option<&dyn StripeResolver> {
        let incompat = self.superblock.read().incompat;
        if !incompat.contains(Incompat::RAID_STRIPE_TREE) {
            return None;
        }
        Some(self.resolver.get().map_or(&Unconnected, AsRef::as_ref))
    }

    /// Returns the current chunk map.
    #[must_use]
    pub fn chunk_map(&self) -> Arc<ChunkMap> {
        Arc::clone(&self.chunks.read())
    }

    /// Returns all known devices: the given devices first, then missing devices.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<DeviceSlot>> {
        self.devices.read().slots().to_vec()
    }

    /// Returns the virtual clock of simulated devices. All work then runs on the calling thread.
    #[must_use]
    pub fn virtual_clock(&self) -> Option<VirtualClock> {
        self.clocked.virtual_clock()
    }

    /// Advances a simulated clock by computing time. Does nothing on real devices.
    pub fn charge_cpu(&self, duration: Duration) {
        self.clocked.charge_cpu(duration);
    }

    pub(crate) const fn latch(&self) -> &ErrorState {
        &self.latch
    }

    pub(crate) const fn row_locks(&self) -> &RowLocks {
        &self.row_locks
    }

    pub(crate) const fn writes(&self) -> &RwLock<(), WritesLock> {
        &self.writes
    }

    pub(crate) const fn replacing(&self) -> &RwLock<Option<Arc<Replacement>>, ReplacingLock> {
        &self.replacing
    }

    pub(crate) const fn found(&self) -> &Mutex<Option<FoundTarget>, FoundLock> {
        &self.found
    }

    pub(crate) const fn hears_faults(&self) -> &RwLock<Option<HearsFaults>, HearsFaultsLock> {
        &self.hears_faults
    }

    pub(crate) const fn guards(&self) -> &Guards {
        &self.guards
    }

    /// Exchanges a slot in the device table and in the map, while no chunk is added or removed.
    pub(crate) fn exchange_slot(
        &self,
        old: &Arc<DeviceSlot>,
        new: &Arc<DeviceSlot>,
        exchanged: impl FnOnce(&ChunkMap) -> Result<ChunkMap, Error>,
    ) -> Result<(), Error> {
        let mut table = self.devices.write();
        let map = exchanged(&self.chunk_map())?;
        *self.chunks.write() = Arc::new(map);
        table.exchange(old, new);
        Ok(())
    }

    pub(crate) const fn device_table(&self) -> &RwLock<DeviceTable, DevicesLock> {
        &self.devices
    }

    /// Replaces the chunk with the same start. The new chunk has the same device slots.
    pub(crate) fn exchange_chunk(&self, start: Logical, chunk: Chunk) -> Result<(), Error> {
        let _table = self.devices.write();
        let mut chunks = self.chunks.write();
        let known = chunks.find(start).filter(|known| known.start() == start);
        let known = known.ok_or(WriteRefusal::NoSuchChunk { logical: start })?;
        let moved = MappedChunk::new(start, chunk, known.devices().to_vec())?;
        Arc::make_mut(&mut chunks).replace(moved);
        Ok(())
    }

    pub(crate) const fn failing(&self) -> &Mutex<(), FailingLock> {
        &self.failing
    }

    pub(crate) const fn tolerates_failures(&self) -> bool {
        self.tolerates_failures
    }

    pub(crate) const fn recorder(&self) -> &FaultRecorder {
        &self.recorder
    }

    /// Stores a notice. Always stores the first notice that forbids writing, and notices of failed
    /// devices. The limit on the number of notices applies to all others.
    pub(crate) fn notice(&self, notice: Notice) {
        let mut notices = self.notices.lock();
        let is_needed = || {
            matches!(notice, Notice::DeviceLeftOut { .. })
                || notice.forbids_writing() && !notices.iter().any(Notice::forbids_writing)
        };
        if notices.len() < NOTICES_KEPT || is_needed() {
            notices.push(notice);
        }
    }

    /// Returns the missing devices that chunks and device items have named so far.
    #[must_use]
    pub fn missing_devices(&self) -> Vec<MissingDevice> {
        let slots = self.devices();
        let missing = slots.iter().filter(|slot| slot.device().is_none());
        missing.map(|slot| slot.as_missing()).collect()
    }

    /// Returns the error for a volume that cannot open because devices are missing. If devices are
    /// missing without the caller's consent, the error names these devices, not the failure caused
    /// by their absence.
    #[must_use]
    pub fn missing_instead(&self) -> Option<Error> {
        let missing = self.missing_devices();
        (!missing.is_empty() && !self.options.degraded).then(|| DevicesError::Missing(missing).into())
    }
}
