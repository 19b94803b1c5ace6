//! Devices join the volume, leave it, and change their size.
//!
//! | call | commits | after the commit |
//! |---|---|---|
//! | [`MemberDevices::add`] | the device's item, the number of devices, the total size | nothing |
//! | [`Emptying::remove`] | the same without the device | the caller wipes the device's superblocks |
//! | [`MemberDevices::enlarge`] | the device's item with the new size, the total size | nothing |
//! | [`MemberDevices::fix_sizes`] | items that exceed their devices, the total size | nothing |
//! | [`Emptying::cut`] | the same | superblock copies past the new end are wiped |
//!
//! Invariants:
//!
//! - No new chunk takes a place on a part of a device that is being emptied ([`Emptying`]).
//! - A device leaves, or is cut, only when neither the running transaction nor the last durable
//!   state has a device extent on the removed part.
//! - Only one change of the devices is in progress at a time (`exclusive`).
//!
//! A crash during the change leaves the volume as before the commit or as after it.
//! [`buttress_volume::membership`] says why a new device belongs to both states. A removed device
//! keeps the superblock of the commit before its removal until the caller wipes it; no later commit
//! lists the device.
//!
//! The module `joining` adds devices, `emptying` removes parts of devices, and `sizes` repairs recorded
//! sizes.
//!
//! This module leaves out the size of image files, and moving content from a device, which is a job
//! in a higher layer.

mod emptying;
mod joining;
mod sizes;

use crate::areas::MemberDevices;
use crate::device_space::DeviceSpaceLeft;
use crate::exclusive::Change;
use crate::need::Need;
use crate::reservation::Handle;
use crate::running::Running;
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, DEVICE_RESERVED_BYTES, DeviceId, DeviceStatistics, ItemType, Key, ObjectId, TreeId,
};
use buttress_fs::error::{Error, Result};
use buttress_tree::NonBlocking;
use buttress_volume::{DeviceSlot, MembershipRefusal, WriteRefusal};
use std::sync::Arc;

pub use emptying::{ChunkInTheWay, Emptying};
pub(crate) use emptying::{cut_file, require_no_chunk_past};
pub use joining::JoinOptions;
pub use sizes::SizeFix;
pub(crate) use sizes::fixes_of_devices;

/// The least size of a device, which holds the reserved first MiB and one chunk of each kind.
pub const LEAST_DEVICE_BYTES: ByteCount = ByteCount::new(16 << 20);

/// The number of places that a change of one device edits: its item in the chunk tree, its
/// statistics in the device tree.
const PLACES: u64 = 2;

impl MemberDevices<'_> {
    /// Records a larger size of a device, and commits. The device must already have the additional
    /// bytes.
    ///
    /// # Errors
    /// The device is missing, belongs to a seed, or ends before the new size; another change of
    /// devices runs; the commit fails.
    pub fn grow(&self, device: DeviceId, size: ByteCount) -> Result<()> {
        let _alone = self.engine.begin_change(Change::Resize)?;
        self.grow_to(device, size)
    }

    /// Grows a device as [`grow`](Self::grow) does. An image file that is shorter
    /// grows before. No other change of the devices runs meanwhile, so that none cuts the file.
    ///
    /// # Errors
    /// As for [`grow`](Self::grow). The file then has its former length, unless the commit failed,
    /// which stops writing.
    pub fn enlarge(&self, device: DeviceId, size: ByteCount) -> Result<()> {
        let _alone = self.engine.begin_change(Change::Resize)?;
        let slot = self.member(device)?;
        let Some(own) = slot.device() else {
            return self.grow_to(device, size);
        };
        let before = own.size_bytes();
        let was_whole = slot.expected_bytes().is_some_and(|bytes| bytes.get() <= before);
        if before < size.get() {
            own.set_size(size.get())?;
        }
        let recorded = self.record_larger(device, size);
        if recorded.is_err() && before < size.get() && was_whole {
            // No state of the volume uses the added bytes. The first error matters more than a file
            // that stays longer.
            let _longer = own.set_size(before);
        }
        recorded?;
        self.engine.commit_metadata().map(drop)
    }

    fn grow_to(&self, device: DeviceId, size: ByteCount) -> Result<()> {
        self.record_larger(device, size)?;
        self.engine.commit_metadata().map(drop)
    }

    /// Records a larger size in the running transaction. An error leaves the transaction as it was,
    /// unless writing stopped.
    fn record_larger(&self, device: DeviceId, size: ByteCount) -> Result<()> {
        let slot = self.member(device)?;
        let size = self.require_size(&slot, size)?;
        self.set_bytes(device, size)
    }

    /// The slot of one of the volume's own devices.
    pub(crate) fn member(&self, device: DeviceId) -> Result<Arc<DeviceSlot>> {
        let volume = self.engine.forest().volume();
        let fsid = volume.superblock().fsid;
        let slots = volume.devices();
        let mut with_id = slots.iter().filter(|slot| slot.id() == device);
        let is_own = |slot: &&Arc<DeviceSlot>| slot.fsid() == fsid || slot.device().is_none();
        if let Some(slot) = with_id.clone().find(is_own) {
            return Ok(Arc::clone(slot));
        }
        Err(match with_id.next() {
            Some(seed) => buttress_volume::Error::from(WriteRefusal::Seed {
                device: Arc::clone(seed.name()),
            })
            .into(),
            None => no_such(device),
        })
    }

    /// Refuses a size that exceeds the device, or that is too small. Returns the size rounded down
    /// to whole sectors.
    fn require_size(&self, slot: &DeviceSlot, size: ByteCount) -> Result<ByteCount> {
        let missing = || refused(MembershipRefusal::Missing { device: slot.id() });
        let device = slot.device().ok_or_else(missing)?;
        require_current(slot)?;
        let name = || device.name().to_owned();
        let size = whole_sectors(size.get(), self.engine.forest().block_format().sector_bytes);
        if size < LEAST_DEVICE_BYTES {
            return Err(refused(MembershipRefusal::TooSmall {
                device: name(),
                size,
                least: LEAST_DEVICE_BYTES,
            }));
        }
        if size.get() > device.size_bytes() {
            return Err(refused(MembershipRefusal::PastEnd {
                device: name(),
                size: ByteCount::new(device.size_bytes()),
                wanted: size,
            }));
        }
        Ok(size)
    }

    /// Records the changed size of a device in the running transaction.
    pub(crate) fn set_bytes(&self, device: DeviceId, size: ByteCount) -> Result<()> {
        // Hold off trims, because a trim later frees ranges that it has taken of the unallocated
        // space.
        let no_trim = self.engine.hold_off_trims();
        let key = item_key(device);
        let handle = self.engine.start_without_trim(&no_trim, Need::freeing(PLACES))?;
        self.edit_in(handle, device, |running| {
            let room = running.core.devices.room_mut(device);
            let room = room.ok_or_else(|| no_such(device))?;
            room.set_size(size);
            let item = room.item;
            running.put(TreeId::CHUNK, &key, &item.to_bytes())
        })
    }

    /// Edits the trees' items and the running transaction's values for one device.
    fn edit(&self, device: DeviceId, edit: impl FnOnce(&mut Running) -> Result<()>) -> Result<()> {
        let handle = self.engine.start(Need::freeing(PLACES))?;
        self.edit_in(handle, device, edit)
    }

    /// Edits devices as [`edit`](Self::edit) does, through a handle. Edits of
    /// devices cannot be undone: an error of `edit` stops writing.
    fn edit_in<'a>(
        &'a self,
        handle: Handle<'a>,
        device: DeviceId,
        edit: impl FnOnce(&mut Running) -> Result<()>,
    ) -> Result<()> {
        let (mut handle, ()) = self.engine.retry(handle, |handle| {
            handle.reach(TreeId::CHUNK, &item_key(device))?;
            handle.reach(TreeId::DEVICE, &DeviceStatistics::key(device))
        })?;
        let edited = NonBlocking::lifted(|| edit(&mut handle));
        handle.core.superblock_changed = true;
        drop(handle);
        edited.inspect_err(|error| self.engine.forest().volume().stop_writing(error))
    }
}

impl DeviceSpaceLeft {
    /// Changes the size of the device. The part of the device that is cut off has no device
    /// extents.
    fn set_size(&mut self, size: ByteCount) {
        let (old, new) = (self.item.total_bytes.get(), size.get());
        // Clamp: a device grows or shrinks, so one of the two differences is zero.
        let (cut, added) = (old.saturating_sub(new), new.saturating_sub(old));
        self.free.remove(new, cut);
        self.free.add(old.max(DEVICE_RESERVED_BYTES), added);
        self.item.total_bytes = size;
    }
}

/// Refuses a device that missed commits. Its own superblock and trees may reach its former end.
pub(crate) fn require_current(slot: &DeviceSlot) -> Result<()> {
    if slot.device().is_some()
        && !slot.is_written()
        && !buttress_faults::on("membership-cuts-outdated-device")
    {
        let device = slot.name().to_string();
        return Err(refused(MembershipRefusal::Outdated { device }));
    }
    Ok(())
}

fn item_key(device: DeviceId) -> Key {
    Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, device.get())
}

fn whole_sectors(bytes: u64, sector_bytes: u32) -> ByteCount {
    ByteCount::new(bytes.exact_sub(bytes.remainder(u64::from(sector_bytes))))
}

fn no_such(device: DeviceId) -> Error {
    buttress_volume::Error::from(WriteRefusal::NoSuchDevice { device }).into()
}

fn refused(refusal: MembershipRefusal) -> Error {
    buttress_volume::Error::from(refusal).into()
}
