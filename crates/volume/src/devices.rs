//! The devices of a volume: one slot for each, given or missing.
//!
//! A slot is made when a device is given, or when a chunk or a device item names one that was not. Chunks hold
//! their slots directly, so that a read takes no lock to get from a stripe to its device. A slot is found by
//! uuid; where a device item names a known id with another uuid, or the other way round, that is an error
//! rather than a guess.
//!
//! Seed devices carry the fsid of the seed in their superblock; the sprout's chunk tree lists them with that
//! fsid, and they are matched by uuid like any other.
//!
//! A slot counts what its device fails with, and keeps the failure for which the device was left out: from there on it is
//! neither read nor written ([`crate::write`]). A device that was left out does not come back while the volume is open;
//! another one may take its place ([`crate::replacement`]): then its slot is exchanged for another with the same id and uuid.

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

/// How often a device failed since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceErrors {
    /// Failed writes.
    pub writes: u64,
    /// Failed reads.
    pub reads: u64,
    /// Failed flushes.
    pub flushes: u64,
    /// What was read and was wrong, as far as a scrub found it.
    pub corruptions: u64,
    /// Tree blocks of an older generation than expected, likewise.
    pub generations: u64,
}

/// The same, while it is counted.
#[derive(Debug, Default)]
struct ErrorCounters {
    writes: AtomicU64,
    reads: AtomicU64,
    flushes: AtomicU64,
    corruptions: AtomicU64,
    generations: AtomicU64,
}

/// One device of a volume.
#[derive(Debug)]
pub struct DeviceSlot {
    id: DeviceId,
    uuid: Uuid,
    /// The fsid in its superblock, or nil for a missing device.
    fsid: Uuid,
    name: Arc<str>,
    device: Option<Device>,
    stale: Option<Stale>,
    /// Set when the device's superblock is of the commit before the newest, which seems cut off: it may have missed that one.
    in_doubt: Option<Stale>,
    /// Whether the device's own superblock says that no chunk uses it.
    is_idle: bool,
    item: RwLock<Option<DeviceItem>, ItemLock>,
    /// Shared with the slot that takes this one's place.
    errors: Arc<ErrorCounters>,
    /// What it was left out for.
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

    /// A slot for the device of `target` in the place of `source`, with its id, uuid, item and counters.
    pub(crate) fn in_place_of(source: &Self, target: &Self) -> Option<Self> {
        let device = target.device()?.clone();
        Some(Self {
            item: RwLock::new(source.item()),
            errors: Arc::clone(&source.errors),
            ..Self::given(source.id, source.uuid, target.fsid, device, None)
        })
    }

    /// Returns this slot with the newest commit in doubt.
    pub(crate) fn with_doubt(self, in_doubt: Option<Stale>) -> Self {
        Self { in_doubt, ..self }
    }

    /// Returns this slot with what the device's own superblock says of its use.
    pub(crate) fn with_idleness(self, is_idle: bool) -> Self {
        Self { is_idle, ..self }
    }

    /// Whether the device's own superblock says that no chunk uses it.
    pub(crate) const fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// A slot in the place of this one whose device missed no commit after all.
    pub(crate) fn as_current(&self) -> Option<Self> {
        Some(Self {
            item: RwLock::new(self.item()),
            errors: Arc::clone(&self.errors),
            ..Self::given(self.id, self.uuid, self.fsid, self.device()?.clone(), None)
        })
    }

    /// A slot in the place of this one whose device is in doubt: the device missed the newest commit.
    pub(crate) fn as_stale(&self) -> Option<Self> {
        let stale = self.in_doubt?;
        Some(Self {
            item: RwLock::new(self.item()),
            errors: Arc::clone(&self.errors),
            ..Self::given(self.id, self.uuid, self.fsid, self.device()?.clone(), Some(stale))
        })
    }

    /// Whether the device may have missed the newest commit.
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

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> DeviceId {
        self.id
    }

    /// Its uuid.
    #[must_use]
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The fsid in its superblock: another than the volume's for a seed, nil for a missing device.
    #[must_use]
    pub const fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// The name it was opened by, or `missing`.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The device, unless it is missing.
    #[must_use]
    pub const fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Set when the device missed the volume's last commits.
    #[must_use]
    pub const fn stale(&self) -> Option<Stale> {
        self.stale
    }

    /// Returns the state of a device that missed commits and can be brought up to date: the volume lists it.
    #[must_use]
    pub fn behind(&self) -> Option<Stale> {
        let can_be_written = self.device().is_some_and(Device::is_writable);
        self.stale()
            .filter(|_| can_be_written && self.failure().is_none() && self.item().is_some())
    }

    /// The write or flush that failed and for which the device was left out: since then it is neither read nor written.
    #[must_use]
    pub fn failure(&self) -> Option<&IoError> {
        self.failure.get()
    }

    /// Whether the device is written to: it is there, missed no commit, and was not left out.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.device.is_some() && self.stale.is_none() && self.failure().is_none()
    }

    /// The device, unless it is missing or was left out.
    #[must_use]
    pub fn in_use(&self) -> Option<&Device> {
        if buttress_faults::on("volume-failed-device-read") {
            return self.device();
        }
        self.device().filter(|_| self.failure().is_none())
    }

    /// How often the device failed since the volume was opened.
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

    /// Counts errors that a job above found on the device. A writer's next commit adds them to the device's statistics.
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

    /// Leaves the device out from here on.
    pub(crate) fn leave_out(&self, failure: IoError) {
        let _first = self.failure.set(failure);
    }

    /// Its item in the chunk tree, once that was read: as the last commit left it.
    #[must_use]
    pub fn item(&self) -> Option<DeviceItem> {
        *self.item.read()
    }

    /// How large the device should be, by its item.
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

/// The slots of a volume. They are added, exchanged, and removed when no chunk names them.
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

    /// The slot with this id and uuid, made as a missing one where there is none.
    ///
    /// Chunk items and device items may come in any order, and a seed may have the id of a device of its
    /// sprout's: the uuid decides.
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

    /// Puts a slot in the place of another of the same uuid.
    pub(crate) fn exchange(&mut self, old: &Arc<DeviceSlot>, new: &Arc<DeviceSlot>) {
        let place = self.slots.iter_mut().find(|slot| Arc::ptr_eq(slot, old));
        if let Some(place) = place {
            *place = Arc::clone(new);
            self.by_uuid.insert(new.uuid, Arc::clone(new));
        }
    }

    /// Adds the slot of a new device.
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

    /// Notes the device item of the chunk tree. A second item of one device must be the same.
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
