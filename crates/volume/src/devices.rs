//! The devices of a volume: one slot for each, given or missing.
//!
//! A slot is made when a device is given, or when a chunk or a device item names one that was not. Chunks hold
//! their slots directly, so that a read takes no lock to get from a stripe to its device. A slot is found by
//! uuid; where a device item names a known id with another uuid, or the other way round, that is an error
//! rather than a guess.
//!
//! Seed devices carry the fsid of the seed in their superblock; the sprout's chunk tree lists them with that
//! fsid, and they are matched by uuid like any other.

use crate::error::{Corruption, Error, MissingDevice, Stale};
use buttress_device::Device;
use buttress_format::device_item::DeviceItem;
use buttress_format::{ByteCount, DeviceId};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use uuid::Uuid;

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
    item: RwLock<Option<DeviceItem>>,
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
            item: RwLock::default(),
        }
    }

    fn missing(id: DeviceId, uuid: Uuid) -> Self {
        Self {
            id,
            uuid,
            fsid: Uuid::nil(),
            name: "missing".into(),
            device: None,
            stale: None,
            item: RwLock::default(),
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

/// The slots of a volume. They are only ever added.
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
