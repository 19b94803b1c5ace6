//! Facts about a volume as a whole, and about its devices.

use super::Volume;
use crate::error::Result;
use buttress_format::{ByteCount, ChecksumType, DeviceId, DeviceStatistics, Generation, TreeId, Uuid};
use buttress_volume::FaultLog;

/// Facts from the superblock about a volume. Returned by [`Volume::info`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// The volume's uuid.
    pub fsid: Uuid,
    /// The label; at most 255 bytes, and not always UTF-8.
    pub label: Vec<u8>,
    /// The generation of the last commit.
    pub generation: Generation,
    /// The checksum of tree blocks and data.
    pub checksum: ChecksumType,
    /// The size of data blocks.
    pub sector_bytes: ByteCount,
    /// The size of tree blocks.
    pub node_bytes: ByteCount,
    /// The sum of all devices' sizes.
    pub size: ByteCount,
    /// Bytes of data and metadata in use. Each byte counts once, whatever the profile.
    pub used: ByteCount,
    /// The number of devices, including missing ones.
    pub device_count: u64,
}

/// A device of a volume. Returned by [`Volume::devices`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device's id, from 1.
    pub id: DeviceId,
    /// The device's uuid.
    pub uuid: Uuid,
    /// The name for messages: the path, or a description of a missing device.
    pub name: String,
    /// The path that the device was opened with; `None` for a missing device.
    pub path: Option<String>,
    /// The size in the chunk tree. `None` if the chunk tree has no item of the device.
    pub size: Option<ByteCount>,
    /// The size of the image file or block device. `None` for a missing device.
    pub device_size: Option<ByteCount>,
    /// Bytes of the device that chunks cover. `None` if the chunk tree has no item of the device.
    pub allocated: Option<ByteCount>,
    /// The superblock's generation of a writable device that missed commits. A resynchronisation
    /// brings such a device up to date.
    pub behind_since: Option<Generation>,
}

impl Volume {
    /// Returns the facts that the superblock records about the volume.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// let info = volume.info();
    /// assert_eq!(info.size.get(), 256 << 20);
    /// assert_eq!(info.device_count, 1);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn info(&self) -> VolumeInfo {
        let superblock = self.view().superblock();
        VolumeInfo {
            fsid: superblock.fsid,
            label: superblock.label.clone(),
            generation: superblock.generation,
            checksum: superblock.checksum_type,
            sector_bytes: ByteCount::new(superblock.sector_bytes.into()),
            node_bytes: ByteCount::new(superblock.node_bytes.into()),
            size: superblock.total_bytes,
            used: superblock.bytes_used,
            device_count: superblock.num_devices,
        }
    }

    /// Returns the devices in the order of their ids, including missing ones.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// let devices = volume.devices();
    /// assert_eq!(devices[0].id.get(), 1);
    /// assert!(devices[0].path.is_some());
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let slots = self.view().volume().devices();
        let mut devices: Vec<DeviceInfo> = slots
            .iter()
            .map(|slot| {
                let item = slot.item();
                let device = slot.device();
                DeviceInfo {
                    id: slot.id(),
                    uuid: slot.uuid(),
                    name: slot.name().to_string(),
                    path: device.map(|device| device.name().to_owned()),
                    size: item.as_ref().map(|item| item.total_bytes),
                    device_size: device.map(|device| ByteCount::new(device.size_bytes())),
                    allocated: item.as_ref().map(|item| item.bytes_used),
                    behind_since: slot.behind().map(|stale| stale.generation),
                }
            })
            .collect();
        devices.sort_by_key(|device| device.id);
        devices
    }

    /// Returns the error counts of each device, in the order of device ids. A device without an
    /// item in the device tree has not failed.
    ///
    /// # Errors
    /// Fails if the device tree cannot be read, or an item of it is corrupt.
    pub fn device_statistics(&self) -> Result<Vec<(DeviceId, DeviceStatistics)>> {
        let view = self.view();
        let tree = view.tree(TreeId::DEVICE)?;
        let rows = self.devices().into_iter().map(|device| {
            let key = DeviceStatistics::key(device.id);
            let item = tree.get(&key).map_err(buttress_fs::Error::from)?;
            let parsed = item.map(|item| DeviceStatistics::parse(&key, item.data()));
            let parsed = parsed.transpose().map_err(|error| buttress_fs::Corruption::Item {
                tree: TreeId::DEVICE,
                error,
            });
            // The device has no statistics item, so it has not failed.
            Ok((
                device.id,
                parsed.map_err(buttress_fs::Error::from)?.unwrap_or_default(),
            ))
        });
        rows.collect()
    }

    /// Returns the log of bad copies that reads since the opening replaced by another copy.
    #[must_use]
    pub fn faults(&self) -> FaultLog {
        self.view().volume().faults()
    }

    /// Returns whether another handle belongs to the same open volume.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        std::sync::Arc::ptr_eq(self.view().volume(), other.view().volume())
    }
}
