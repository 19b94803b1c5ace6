//! [`Volume`]: the devices, the chunk map and what was noticed, behind one handle.
//!
//! Opening goes in steps, since the chunk tree is read through the volume that it describes:
//!
//! 1. [`Volume::open`] chooses superblocks, matches devices and maps the system chunks;
//! 2. the layers above read the chunk tree and hand every device item to [`Volume::add_device`] and every chunk
//!    item to [`Volume::add_chunk`];
//! 3. [`Volume::finish_bootstrap`] says whether the devices suffice;
//! 4. with the raid-stripe-tree feature, [`Volume::set_stripe_resolver`] connects that tree.
//!
//! A writer adds chunks, takes them away, and replaces the superblock and device items when it commits.
//!
//! Invariants: slots are added, exchanged ([`crate::replacement`]), removed when unused ([`crate::membership`]); one that was left out stays left out; a reader works with the map and the
//! superblock as they were when it started; no lock is held over I/O, but for those of what is being
//! written: rows, and where writes go.

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

/// How many notices are kept; a hostile chunk tree could cause one per chunk.
const NOTICES_KEPT: usize = 256;

/// A volume: logical addresses over devices. Shared as `Arc<Volume>`.
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
    /// Shared by what writes; held alone by what changes where writes go.
    writes: RwLock<(), WritesLock>,
    /// The replacement that is under way.
    replacing: RwLock<Option<Arc<Replacement>>, ReplacingLock>,
    /// The target of a replacement that was begun earlier.
    found: Mutex<Option<FoundTarget>, FoundLock>,
    guards: Guards,
    /// Told of every copy that a reader passes over.
    hears_faults: RwLock<Option<HearsFaults>, HearsFaultsLock>,
    /// Held while it is decided whether the volume can do without a device.
    failing: Mutex<(), FailingLock>,
    /// Whether the volume goes on without a device that fails, as one does that holds something already.
    tolerates_failures: bool,
    /// One device of the volume, for its clock: simulated devices of a volume share one.
    clocked: Device,
}

impl Volume {
    /// Opens the volume that the devices make up, as far as its superblocks tell.
    ///
    /// Devices may come in any order; the one of the newest generation leads. See [`crate::open`].
    ///
    /// # Errors
    /// No valid superblock, unknown incompat features, devices of different volumes or one twice, bad system
    /// chunks. A missing device is not an error yet.
    pub fn open(devices: Vec<Device>, options: OpenOptions) -> Result<Self, Error> {
        let opened = open::choose(devices)?;
        let volume = Self {
            format: opened.format,
            options,
            devices: RwLock::new(DeviceTable::new(opened.slots)),
            chunks: RwLock::default(),
            resolver: OnceLock::new(),
            notices: Mutex::new(opened.notices),
            recorder: FaultRecorder::default(),
            latch: ErrorState::default(),
            row_locks: RowLocks::default(),
            writes: RwLock::default(),
            replacing: RwLock::default(),
            found: Mutex::new(opened.target),
            guards: Guards::default(),
            hears_faults: RwLock::default(),
            failing: Mutex::default(),
            tolerates_failures: true,
            clocked: opened.lead,
            superblock: RwLock::new(Arc::new(opened.superblock)),
        };
        for (key, chunk) in &volume.superblock().system_chunks {
            volume.add_chunk(Logical::new(key.offset), chunk.clone())?;
        }
        Ok(volume)
    }

    /// A volume that does not exist yet: nothing is read. Its blocks are written first, then the superblocks
    /// ([`Volume::write_superblocks`]); before that, its system chunks, as all others, are handed to
    /// [`Volume::add_chunk`]. A device that fails meanwhile ends it, whatever the profiles tolerate.
    ///
    /// # Errors
    /// No device, two devices of one uuid.
    pub fn create(devices: Vec<(Device, DeviceItem)>, superblock: Superblock) -> Result<Self, Error> {
        let clocked = devices.first().map(|(device, _)| device.clone());
        let clocked = clocked.ok_or(DevicesError::None)?;
        let slot = |(device, item): (Device, DeviceItem)| {
            DeviceSlot::given(item.device, item.uuid, superblock.fsid, device, None)
        };
        let items: Vec<DeviceItem> = devices.iter().map(|(_, item)| *item).collect();
        let slots = devices.into_iter().map(slot).collect();
        let volume = Self {
            format: superblock.block_format(),
            options: OpenOptions::default(),
            devices: RwLock::new(DeviceTable::new(slots)),
            chunks: RwLock::default(),
            resolver: OnceLock::new(),
            notices: Mutex::default(),
            recorder: FaultRecorder::default(),
            latch: ErrorState::default(),
            row_locks: RowLocks::default(),
            writes: RwLock::default(),
            replacing: RwLock::default(),
            found: Mutex::default(),
            guards: Guards::default(),
            hears_faults: RwLock::default(),
            failing: Mutex::default(),
            tolerates_failures: false,
            clocked,
            superblock: RwLock::new(Arc::new(superblock)),
        };
        for item in items {
            volume.add_device(item)?;
        }
        Ok(volume)
    }

    /// The superblock in use: the leading device's, or that of the last commit.
    #[must_use]
    pub fn superblock(&self) -> Arc<Superblock> {
        Arc::clone(&self.superblock.read())
    }

    /// Puts another superblock in use, as a commit does. What tree blocks are checked by (node size, checksum, uuids)
    /// must be the same.
    pub fn set_superblock(&self, superblock: Superblock) {
        *self.superblock.write() = Arc::new(superblock);
    }

    /// What the checks of tree blocks need to know of the volume.
    #[must_use]
    pub const fn block_format(&self) -> &BlockFormat {
        &self.format
    }

    /// The options that it was opened with.
    #[must_use]
    pub const fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// What was noticed so far, in order: on opening, and of devices that failed since.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.lock().clone()
    }

    /// Whether nothing that was noticed forbids writing.
    #[must_use]
    pub fn may_be_written(&self) -> bool {
        !self.notices.lock().iter().any(Notice::forbids_writing)
    }

    /// What reads passed over so far.
    #[must_use]
    pub fn faults(&self) -> FaultLog {
        self.recorder.snapshot()
    }

    /// From here on every copy that a reader passes over is told, on the reader's thread: whoever hears it must not wait.
    /// `None`: nobody is told any more.
    pub fn tell_faults(&self, hears: Option<Arc<HearFault>>) {
        let before = core::mem::replace(&mut *self.hears_faults.write(), hears.map(HearsFaults));
        drop(before);
    }

    /// Adds a chunk item: `start` is the offset of its key. The same chunk may come twice, as system chunks do.
    ///
    /// # Errors
    /// A chunk that overlaps another, that its profile does not allow, or whose stripes name a known device by
    /// another id.
    pub fn add_chunk(&self, start: Logical, chunk: Chunk) -> Result<(), Error> {
        let added = {
            // Held until the map has the chunk: a slot that is exchanged meanwhile would stay in it.
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

    /// Takes the chunk away that begins at `start`. Whoever reads through the map as it was goes on to find it.
    ///
    /// # Errors
    /// [`WriteRefusal::NoSuchChunk`].
    pub fn remove_chunk(&self, start: Logical) -> Result<(), Error> {
        // A map that is made anew from this one must not bring it back.
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
    /// An item that contradicts what is known of its device.
    pub fn set_device_item(&self, item: DeviceItem) -> Result<(), Error> {
        self.devices.write().set_item(item)
    }

    /// Adds a device item of the chunk tree.
    ///
    /// # Errors
    /// An item that contradicts what is known of its device.
    pub fn add_device(&self, item: DeviceItem) -> Result<(), Error> {
        self.devices.write().add_item(item)
    }

    /// To be called when all chunk and device items were added: checks that the devices suffice.
    ///
    /// # Errors
    /// [`DevicesError::Missing`] when a device is missing and the volume was not opened degraded;
    /// [`DevicesError::Foreign`] when a seed device was given that the volume does not list.
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

    /// Refuses devices of one generation whose root tree blocks differ. Superblocks can be equal by chance, if both
    /// histories allocated the same addresses.
    fn refuse_diverged(&self, slots: &[Arc<DeviceSlot>]) -> Result<(), Error> {
        let several = slots.iter().filter(|slot| slot.device().is_some()).count() > 1;
        if !several || buttress_faults::on("volume-diverged-devices-accepted") {
            return Ok(());
        }
        let superblock = self.superblock();
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
            // Clamp: a place from disk; an end past the last address is past every device.
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

    /// Connects the RAID stripe tree, without which data in its chunks cannot be read. Only the first call has
    /// an effect.
    pub fn set_stripe_resolver(&self, resolver: Arc<dyn StripeResolver>) {
        let _ = self.resolver.set(resolver);
    }

    /// What finds data in chunks of the RAID stripe tree; `None` on a volume without that feature.
    pub(crate) fn resolver(&self) -> Option<&dyn StripeResolver> {
        let incompat = self.superblock.read().incompat;
        if !incompat.contains(Incompat::RAID_STRIPE_TREE) {
            return None;
        }
        Some(self.resolver.get().map_or(&Unconnected, AsRef::as_ref))
    }

    /// The chunk map as it is now.
    #[must_use]
    pub fn chunk_map(&self) -> Arc<ChunkMap> {
        Arc::clone(&self.chunks.read())
    }

    /// The devices known so far: those given first, then missing ones.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<DeviceSlot>> {
        self.devices.read().slots().to_vec()
    }

    /// The virtual clock, when the devices are simulated: then everything is to run on the calling thread.
    #[must_use]
    pub fn virtual_clock(&self) -> Option<VirtualClock> {
        self.clocked.virtual_clock()
    }

    /// Moves a simulated clock on by computing time; does nothing on real devices.
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

    /// Puts a slot in the place of another, in the table and in the map that `exchanged` makes of the one in use. Chunks come
    /// and go before or after, not meanwhile.
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

    /// Puts a chunk in the place of the one with the same start, with the same slots.
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

    /// Keeps a notice. The first that forbids writing, and those of devices that failed, are kept however many there are.
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

    /// The devices that were not given, as far as chunks and device items name them by now.
    #[must_use]
    pub fn missing_devices(&self) -> Vec<MissingDevice> {
        let slots = self.devices();
        let missing = slots.iter().filter(|slot| slot.device().is_none());
        missing.map(|slot| slot.as_missing()).collect()
    }

    /// What to say when the volume cannot be opened any further: that devices are missing, where some are and they were
    /// not renounced, rather than what failed for want of them.
    #[must_use]
    pub fn missing_instead(&self) -> Option<Error> {
        let missing = self.missing_devices();
        (!missing.is_empty() && !self.options.degraded).then(|| DevicesError::Missing(missing).into())
    }
}
