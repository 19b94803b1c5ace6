//! Devices of a volume: added, removed, and given another size.

use super::WritableVolume;
use crate::error::Result;
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, DeviceId, Logical};
use buttress_fs::Progress;
use buttress_volume::DeviceSlot;
use buttress_writer::relocation::RelocationOptions;
use buttress_writer::{Emptying, LEAST_DEVICE_BYTES, wipe_superblocks};

pub use buttress_writer::JoinOptions as NewDevice;

impl WritableVolume {
    /// Refuses a device that [`add_device`](Self::add_device) would refuse. Nothing changes.
    ///
    /// # Errors
    /// The device is read-only, smaller than 16 MiB, or a device of the volume already; it seems to
    /// hold something, and [`overwrites`](NewDevice::overwrites) is not set.
    pub fn check_new_device(&self, device: &Device, options: NewDevice) -> Result<()> {
        Ok(self.writer().devices().require_new(device, options)?)
    }

    /// Adds a device, which forgets what it held. New chunks use the enlarged space from then on;
    /// existing content stays in its place.
    ///
    /// ```
    /// use buttress::{Device, NewDevice, Volume};
    ///
    /// # fn main() -> buttress::Result<()> {
    /// let volume = Volume::create().on_devices(vec![Device::memory(vec![0; 256 << 20])])?;
    /// let id = volume.add_device(Device::memory(vec![0; 128 << 20]), NewDevice::default())?;
    /// assert_eq!(id.get(), 2);
    /// assert_eq!(volume.info().device_count, 2);
    /// assert_eq!(volume.info().size.get(), 384 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`check_new_device`](Self::check_new_device); a device fails; another change of
    /// devices is in progress.
    pub fn add_device(&self, device: Device, options: NewDevice) -> Result<DeviceId> {
        Ok(self.writer().devices().add(device, options)?)
    }

    /// Moves the content of a device to other devices, and removes the device, which may be
    /// missing. The superblocks of the removed device are wiped last.
    ///
    /// ```
    /// # use buttress::{Device, NewDevice, Progress, Volume};
    /// # fn main() -> buttress::Result<()> {
    /// # let volume = Volume::create().on_devices(vec![Device::memory(vec![0; 256 << 20])])?;
    /// let id = volume.add_device(Device::memory(vec![0; 128 << 20]), NewDevice::default())?;
    /// volume.remove_device(id, &Progress::new())?;
    /// assert_eq!(volume.info().device_count, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The volume has no such device, or cannot do without it; its content finds no space
    /// elsewhere; the job was cancelled, and the device stays; a device fails.
    pub fn remove_device(&self, device: DeviceId, progress: &Progress) -> Result<()> {
        let emptying = self.writer().devices().begin_removal(device)?;
        self.empty(&emptying, progress)?;
        let slot = emptying.remove()?;
        wipe(&slot)
    }

    /// Gives a device another size, in whole sectors. An image file grows before the volume uses
    /// the new bytes, and is cut after the volume has given them up. A block device must have the
    /// size.
    ///
    /// ```
    /// # use buttress::{Device, Progress, Volume};
    /// # fn main() -> buttress::Result<()> {
    /// # let volume = Volume::create().on_devices(vec![Device::memory(vec![0; 256 << 20])])?;
    /// use buttress::{ByteCount, DeviceId};
    ///
    /// let first = DeviceId::new(1);
    /// volume.resize_device(first, ByteCount::new(512 << 20), &Progress::new())?;
    /// assert_eq!(volume.info().size.get(), 512 << 20);
    /// volume.resize_device(first, ByteCount::new(256 << 20), &Progress::new())?;
    /// assert_eq!(volume.info().size.get(), 256 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - The volume has no such device, or a device fails.
    /// - The size is below 16 MiB, or past the end of a block device.
    /// - Content past the new end finds no space elsewhere.
    /// - The job was cancelled.
    pub fn resize_device(&self, device: DeviceId, size: ByteCount, progress: &Progress) -> Result<()> {
        // A view would keep the old places of moved content, and the job would wait for it.
        let volume = self.writer().forest().volume();
        let slots = volume.devices();
        let slot = slots
            .iter()
            .find(|slot| slot.id() == device && slot.item().is_some());
        let present = slot.filter(|slot| slot.device().is_some());
        let now = present.and_then(|slot| slot.expected_bytes());
        match now {
            Some(now) if size > now => Ok(self.writer().devices().enlarge(device, size)?),
            _ => self.shrink_device(device, size, progress),
        }
    }

    /// Gives a device another size as [`resize_device`](Self::resize_device) does. If the content
    /// past the new end finds no space, packs the volume as [`shrink`](Self::shrink) does. No other
    /// thread may use the volume.
    ///
    /// # Errors
    /// As for [`resize_device`](Self::resize_device). A size below that of
    /// [`plan_shrink`](crate::Volume::plan_shrink) is refused before any change on a volume of one
    /// device.
    pub fn pack_into_size(&self, device: DeviceId, size: ByteCount, progress: &Progress) -> Result<()> {
        let info = self.devices();
        let now = info
            .iter()
            .find(|info| info.id == device)
            .and_then(|info| info.size);
        let Some(_) = now.filter(|now| size < *now) else {
            return self.resize_device(device, size, progress);
        };
        let sector_bytes = u64::from(self.writer().forest().block_format().sector_bytes);
        let size = ByteCount::new(size.get().quotient(sector_bytes).exact_mul(sector_bytes));
        let fits = self.writer().shrinking().require_packed_size(device, size);
        let is_alone = info.iter().filter(|info| info.size.is_some()).count() == 1;
        if is_alone {
            fits.clone()?;
        }
        if size >= LEAST_DEVICE_BYTES || fits.is_err() {
            match self.resize_device(device, size, progress) {
                Err(error) if fits.is_ok() && needs_packing(&error) => {}
                ended => return ended,
            }
        }
        self.writer().shrinking().shrink_device(device, size, progress)?;
        Ok(())
    }

    fn shrink_device(&self, device: DeviceId, size: ByteCount, progress: &Progress) -> Result<()> {
        let emptying = self.writer().devices().begin_cut(device, size)?;
        self.empty(&emptying, progress)?;
        Ok(emptying.cut()?)
    }

    /// Moves content from the part of a device that is being emptied.
    fn empty(&self, emptying: &Emptying<'_>, progress: &Progress) -> Result<()> {
        let chunks = emptying.chunks();
        if chunks.is_empty() {
            return Ok(());
        }
        emptying.require_places()?;
        let groups: Vec<Logical> = chunks.iter().map(|chunk| chunk.chunk).collect();
        let options = RelocationOptions {
            progress: progress.clone(),
            bytes_per_second: None,
            ..RelocationOptions::default()
        };
        self.writer().relocations().relocate(&groups, &options)?;
        Ok(())
    }
}

/// Whether content found no space, so that packing the volume may help.
fn needs_packing(error: &crate::Error) -> bool {
    matches!(
        error.kind(),
        crate::ErrorKind::NoSpace | crate::ErrorKind::Invalid
    )
}

/// Wipes the superblocks of a device that the volume no longer lists. A missing device keeps its
/// superblocks.
fn wipe(slot: &DeviceSlot) -> Result<()> {
    let Some(device) = slot.device().filter(|device| device.is_writable()) else {
        return Ok(());
    };
    let wiped = wipe_superblocks(device, slot.uuid());
    Ok(wiped.map_err(buttress_fs::Error::from)?)
}
