//! Options for making a volume.

use super::VolumeOptions;
use crate::error::Result;
use crate::volume::WritableVolume;
use buttress_device::{Device, OpenOptions as DeviceOptions};
use buttress_format::{ByteCount, ChecksumType, Profile, Uuid};
use buttress_mkfs as mkfs;
use std::fs::OpenOptions as HostOptions;
use std::path::Path;
use std::sync::Arc;

/// Options for making a volume. Made by [`Volume::create`](crate::Volume::create).
#[derive(Clone, Debug, Default)]
pub struct NewVolume {
    options: mkfs::Options,
    fsid: Option<Uuid>,
    device_uuid: Option<Uuid>,
    opening: VolumeOptions,
}

impl NewVolume {
    /// Sets the label, at most 255 bytes.
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        self.options.label = label.as_bytes().to_vec();
        self
    }

    /// Sets the checksum of data and tree blocks; crc32c by default.
    #[must_use]
    pub fn checksum(mut self, checksum: ChecksumType) -> Self {
        self.options.checksum = Some(checksum);
        self
    }

    /// Sets the profiles of data and metadata; single and DUP by default.
    ///
    /// ```
    /// use buttress::{Device, Profile, Volume};
    ///
    /// let devices = (0..2).map(|_| Device::memory(vec![0; 256 << 20])).collect();
    /// let volume = Volume::create().profiles(Profile::Raid1, Profile::Raid1).on_devices(devices)?;
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn profiles(mut self, data: Profile, metadata: Profile) -> Self {
        (self.options.data, self.options.metadata) = (Some(data), Some(metadata));
        self
    }

    /// Sets the uuids of the volume and of its device; random by default.
    #[must_use]
    pub fn uuids(mut self, fsid: Uuid, device: Uuid) -> Self {
        (self.fsid, self.device_uuid) = (Some(fsid), Some(device));
        self
    }

    /// Sets the options with which the new volume is opened. A new volume is always open for
    /// writing.
    #[must_use]
    pub fn open_with(mut self, options: VolumeOptions) -> Self {
        self.opening = options;
        self
    }

    /// Makes the volume in a new image file of `size` bytes, and opens it for writing. The file
    /// takes up space on the host only as the volume uses it. If the volume cannot be made, the
    /// file is removed.
    ///
    /// # Errors
    /// Fails if the path exists already or cannot be created. If `size` is too small, the error
    /// states the smallest size.
    pub fn in_file(self, path: impl AsRef<Path>, size: ByteCount) -> Result<WritableVolume> {
        let path = path.as_ref();
        let at = |error: std::io::Error| crate::Error::from(error).at(path.as_os_str().as_encoded_bytes());
        let file = HostOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(at)?;
        let made = file.set_len(size.get()).map_err(at).and_then(|()| {
            let options = DeviceOptions {
                write: true,
                ..DeviceOptions::default()
            };
            let device = Device::open(path, &options).map_err(buttress_fs::Error::from)?;
            self.on_devices(vec![device])
        });
        if made.is_err() {
            // The call returns the first failure, so an error of the removal is ignored.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Makes the volume on devices that are open for writing, and opens it for writing. Old content
    /// of the devices is lost.
    ///
    /// # Errors
    /// Fails if options contradict each other, if devices are too few or too small, or if a device
    /// fails.
    pub fn on_devices(self, devices: Vec<Device>) -> Result<WritableVolume> {
        let environment = Arc::clone(&self.opening.writing.options.environment);
        let mut time = environment.now();
        time.nanoseconds = 0;
        let identity = mkfs::Identity {
            fsid: self.fsid.unwrap_or_else(|| environment.new_uuid()),
            chunk_tree: environment.new_uuid(),
            top_level: environment.new_uuid(),
            devices: devices
                .iter()
                .map(|_| self.device_uuid.unwrap_or_else(|| environment.new_uuid()))
                .collect(),
            time,
        };
        mkfs::make(&devices, &self.options, &identity)?;
        self.opening.open_writable_devices(devices)
    }
}
