//! The devices of a volume: one slot for each device, given or missing.
//!
//! A slot is made for each given device, and for each device that a chunk or a device item names
//! but that was not given. Chunks hold their device slots directly, so a read takes no lock to find
//! a stripe's device. Slots are identified by uuid. If a device item names a known id with another
//! uuid, or a known uuid with another id, opening fails.
//!
//! A seed device carries the fsid of the seed in its superblock. The chunk tree of the seed's
//! sprout lists the seed with that fsid. Seeds are matched by uuid like any other device.
//!
//! A slot counts the errors of its device, and keeps the failure for which the device was left out.
//! A device that was left out receives no reads and writes ([`crate::write`]), and does not return
//! while the volume is open. A replacement exchanges a device's slot for a slot with the same id
//! and uuid ([`crate::replacement`]).

use crate::error::{Corruption, Error, MissingDevice, Stale};
use buttress_device::{Device, IoError, Operation};
use buttress_format::device_item::DeviceItem;
use buttress_format::{ByteCount, DeviceId};
use buttress_locks::{Rank, RwLock, lock_class};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

lock_class!(ItemLock, "item", Rank::LEAF);

/// The number of a device's errors since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceErrors {
    /// The number of failed writes.
    pub writes: u64,
    /// The number of failed reads.
    pub reads: u64,
    /// The number of failed flushes.
    pub flushes: u64,
    /// The number of corrupt blocks that a scrub found.
    pub corruptions: u64,
    /// The number of tree blocks of an older generation than expected that a scrub found.
    pub generations: u64,
}

/// The live counters behind [`DeviceErrors`].
#[derive(Debug, Default)]
struct ErrorCounters {
    writes: AtomicU64,
    reads: AtomicU64,
    flushes: AtomicU64,
    corruptions: AtomicU64,
    generations: AtomicU64,
}

/// A device of a volume.
#[derive(Debug)]
pub struct DeviceSlot {
    id: DeviceId,
    uuid: Uuid,
    /// The fsid in the device's superblock, or nil for a missing device.
    fsid: Uuid,
    name: Arc<str>,
    device: Option<Device>,
    stale: Option<Stale>,
    /// Set if the device's superblock belongs to the commit before the newest, which seems to be
    /// cut off. The device may have missed the newest commit.
    in_doubt: Option<Stale>,
    /// True if the device's own superblock states that no chunk uses the device.
    is_idle: bool,
    item: RwLock<Option<DeviceItem>, ItemLock>,
    /// The device's error counters, shared with the slot that replaces this slot.
    errors: Arc<ErrorCounters>,
    /// The failure for which the device was left out.
    failure: OnceLock<IoError>,
}

impl DeviceSlot {
    pub(crate) fn given(id: DeviceId, uuid: Uuid, fsid: Uuid, device: Device, stale: Option<Stale>) -> Self {
        let name = device.name().into();
        Self {
            id,
            uuid,
            fsid,
            name,
            device: Some(device),
            stale,
            in_doubt: None,
            is_idle: false,
            item: RwLock::default(),
            errors: Arc::default(),
            failure: OnceLock::new(),
        }
    }

    /// Makes a slot for the device of `target` that replaces `source`, with its id, uuid, item and
    /// counters.
    pub(crate) fn in_place_of(source: &Self, target: &Self) -> Option<Self> {
        let device = target.device()?.clone();
        Some(Self {
            item: RwLock::new(source.item()),
            errors: Arc::clone(&source.errors),
            ..Self::given(source.id, source.uuid, target.fsid, device, None)
        })
    }

    /// Marks the device as one that may lack blocks of the newest commit.
    pub(crate) fn with_doubt(self, in_doubt: Option<Stale>) -> Self {
        Self { in_doubt, ..self }
    }

    /// Marks the device as used by a chunk or not, as the device's own superblock states.
    pub(crate) fn with_idleness(self, is_idle: bool) -> Self {
        Self { is_idle, ..self }
    }

    /// Returns true if the device's own superblock states that no chunk uses the device.
    pub(crate) const fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Makes a slot that replaces this one, for a device that missed no commit after all.
    pub(crate) fn as_current(&self) -> Option<Self> {
        Some(Self {
            item: RwLock::new(self.item()),
            errors: Arc::clone(&self.errors),
            ..Self::given(self.id, self.uuid, self.fsid, self.device()?.clone(), None)
        })
    }

    /// Makes a stale slot for a device in doubt that replaces this one: the device has missed the
    /// newest commit.
    pub(crate) fn as_stale(&self) -> Option<Self> {
        let stale = self.in_doubt?;
        Some(Self {
            item: RwLock::new(self.item()),
            errors: Arc::clone(&self.errors),
            ..Self::given(self.id, self.uuid, self.fsid, self.device()?.clone(), Some(stale))
        })
    }

    /// Returns true if the device may have missed the newest commit.
    pub(crate) const fn is_in_doubt(&self) -> bool {
        self.in_doubt.is_some()
    }

    fn missing(id: DeviceId, uuid: Uuid) -> Self {
        Self {
            id,
            uuid,
            fsid: Uuid::nil(),
            name: "missing".into(),
            device: None,
            stale: None,
            in_doubt: None,
            is_idle: false,
            item: RwLock::default(),
            errors: Arc::default(),
            failure: OnceLock::new(),
        }
    }

    /// Returns the device's id.
    #[must_use]
    pub const fn id(&self) -> DeviceId {
        self.id
    }

    /// Returns the device's uuid.
    #[must_use]
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the fsid in the device's superblock. A seed device has another fsid than the volume;
    /// a missing device has the nil uuid.
    #[must_use]
    pub const fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// Returns the name by which the device was opened, or `missing`.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the device, unless it is missing.
    #[must_use]
    pub const fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Returns the generations of a device that missed the volume's last commits.
    #[must_use]
    pub const fn stale(&self) -> Option<Stale> {
        self.stale
    }

    /// Returns the state of a device that the volume lists, that missed commits, and that can be
    /// brought up to date.
    #[must_use]
    pub fn behind(&self) -> Option<Stale> {
        let can_be_written = self.device().is_some_and(Device::is_writable);
        self.stale()
            .filter(|_| can_be_written && self.failure().is_none() && self.item().is_some())
    }

    /// Returns the failed write or flush for which the device was left out. Since that failure, the
    /// device is neither read nor written.
    #[must_use]
    pub fn failure(&self) -> Option<&IoError> {
        self.failure.get()
    }

    /// Returns true if the device is written: it is present, missed no commit, and was not left
    /// out.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.device.is_some() && self.stale.is_none() && self.failure().is_none()
    }

    /// Returns the device, unless it is missing or was left out.
    #[must_use]
    pub fn in_use(&self) -> Option<&Device> {
        if buttress_faults::on("volume-failed-device-read") {
            return self.device();
        }
        self.device().filter(|_| self.failure().is_none())
    }

    /// Returns the number of the device's errors since the volume was opened.
    #[must_use]
    pub fn errors(&self) -> DeviceErrors {
        DeviceErrors {
            writes: self.errors.writes.load(Ordering::Relaxed),
            reads: self.errors.reads.load(Ordering::Relaxed),
            flushes: self.errors.flushes.load(Ordering::Relaxed),
            corruptions: self.errors.corruptions.load(Ordering::Relaxed),
            generations: self.errors.generations.load(Ordering::Relaxed),
        }
    }

    /// Counts errors that a job of a layer above found on the device. The writer's next commit adds
    /// the counted errors to the device statistics.
    pub fn count_errors(&self, errors: DeviceErrors) {
        let pairs = [
            (&self.errors.writes, errors.writes),
            (&self.errors.reads, errors.reads),
            (&self.errors.flushes, errors.flushes),
            (&self.errors.corruptions, errors.corruptions),
            (&self.errors.generations, errors.generations),
        ];
        for (counter, count) in pairs {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts a failed read, write or flush.
    pub(crate) fn count_error(&self, operation: Operation) {
        let counter = match operation {
            Operation::Write | Operation::Zero => &self.errors.writes,
            Operation::Read => &self.errors.reads,
            Operation::Flush => &self.errors.flushes,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves the device out for as long as the volume is open.
    pub(crate) fn leave_out(&self, failure: IoError) {
        let _first = self.failure.set(failure);
    }

    /// Returns the device's item in the chunk tree, as of the last commit, or `None` before it was
    /// read.
    #[must_use]
    pub fn item(&self) -> Option<DeviceItem> {
        *self.item.read()
    }

    /// Returns the device's size according to its item.
    #[must_use]
    pub fn expected_bytes(&self) -> Option<ByteCount> {
        self.item().map(|item| item.total_bytes)
    }

    pub(crate) const fn as_missing(&self) -> MissingDevice {
        MissingDevice {
            device: self.id,
            uuid: self.uuid,
        }
    }
}

/// The table of a volume's device slots. A slot leaves the device table with its device, or in
/// exchange for another slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceTable {
    slots: Vec<Arc<DeviceSlot>>,
    by_uuid: HashMap<Uuid, Arc<DeviceSlot>>,
}

impl DeviceTable {
    pub(crate) fn new(slots: Vec<DeviceSlot>) -> Self {
        let slots: Vec<_> = slots.into_iter().map(Arc::new).collect();
        let by_uuid = slots.iter().map(|slot| (slot.uuid, Arc::clone(slot))).collect();
        Self { slots, by_uuid }
    }

    pub(crate) fn slots(&self) -> &[Arc<DeviceSlot>] {
        &self.slots
    }

    /// Returns the slot with this id and uuid. If none exists, makes a slot for a missing device.
    ///
    /// Chunk items and device items may arrive in any order. A seed may have the same device id as
    /// a device of its sprout, so the uuid identifies the device.
    pub(crate) fn find_or_miss(&mut self, id: DeviceId, uuid: Uuid) -> Result<Arc<DeviceSlot>, Error> {
        match self.by_uuid.get(&uuid) {
            Some(slot) if slot.id == id => Ok(Arc::clone(slot)),
            Some(slot) => Err(Error::from(Corruption::DeviceItemsDisagree {
                device: id,
                uuid,
                other_device: slot.id,
                other_uuid: slot.uuid,
            })),
            None => {
                let slot = Arc::new(DeviceSlot::missing(id, uuid));
                self.slots.push(Arc::clone(&slot));
                self.by_uuid.insert(uuid, Arc::clone(&slot));
                Ok(slot)
            }
        }
    }

    /// Replaces a slot by another slot of the same uuid.
    pub(crate) fn exchange(&mut self, old: &Arc<DeviceSlot>, new: &Arc<DeviceSlot>) {
        let place = self.slots.iter_mut().find(|slot| Arc::ptr_eq(slot, old));
        if let Some(place) = place {
            *place = Arc::clone(new);
            self.by_uuid.insert(new.uuid, Arc::clone(new));
        }
    }

    /// Adds the slot of a new device to the volume's slots.
    pub(crate) fn add(&mut self, slot: &Arc<DeviceSlot>, item: DeviceItem) {
        *slot.item.write() = Some(item);
        self.slots.push(Arc::clone(slot));
        self.by_uuid.insert(slot.uuid, Arc::clone(slot));
    }

    /// Removes the slot of a device that left. Readers keep the slots that they hold.
    pub(crate) fn remove(&mut self, device: Uuid) {
        self.slots.retain(|slot| slot.uuid != device);
        self.by_uuid.remove(&device);
    }

    /// Records a device item of the chunk tree. A second item of one device must be equal to the
    /// first.
    pub(crate) fn add_item(&mut self, item: DeviceItem) -> Result<(), Error> {
        let slot = self.find_or_miss(item.device, item.uuid)?;
        let known = *slot.item.write().get_or_insert(item);
        if known == item {
            Ok(())
        } else {
            Err(Error::from(Corruption::DeviceItemsDisagree {
                device: item.device,
                uuid: item.uuid,
                other_device: slot.id,
                other_uuid: slot.uuid,
            }))
        }
    }

    /// Replaces the item of a known device, as a commit does.
    pub(crate) fn set_item(&mut self, item: DeviceItem) -> Result<(), Error> {
        let slot = self.find_or_miss(item.device, item.uuid)?;
        *slot.item.write() = Some(item);
        Ok(())
    }
}
