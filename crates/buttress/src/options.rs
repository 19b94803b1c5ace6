//! Options for opening or making a volume.

#[cfg(feature = "write")]
mod new_volume;
#[cfg(feature = "salvage")]
mod state;
#[cfg(feature = "write")]
mod writing;

#[cfg(feature = "write")]
pub use new_volume::NewVolume;
#[cfg(feature = "write")]
pub(crate) use writing::Writing;

use crate::error::Result;
use crate::volume::{Access, Volume};
use buttress_device::{Device, Offset, OpenOptions as DeviceOptions};
use buttress_format::ByteCount;
use buttress_fs::OpenOptions;
use buttress_volume::Rescue;
use buttress_writer::{Shown, open_replayed};
use std::path::{Path, PathBuf};

/// Options for opening a volume. Made by [`Volume::options`].
#[derive(Clone, Debug, Default)]
pub struct VolumeOptions {
    pub(crate) device_options: DeviceOptions,
    further_devices: Vec<PathBuf>,
    pub(crate) degraded: bool,
    rescue: Rescue,
    pub(crate) cache: Option<ByteCount>,
    reading: Reading,
    #[cfg(feature = "salvage")]
    state: state::WantedState,
    #[cfg(feature = "write")]
    pub(crate) writing: Writing,
}

/// The state of a volume that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reading {
    /// Shows the newest files: a pending log is replayed in memory.
    #[default]
    Files,
    /// Shows the last commit, as it is on the devices.
    OnDisk,
    /// The last commit, even if the root tree cannot be read.
    Inspection,
}

impl VolumeOptions {
    /// Adds a device of a volume that has several. The order of devices does not matter.
    ///
    /// ```no_run
    /// # fn main() -> buttress::Result<()> {
    /// let volume = buttress::Volume::options().device("/dev/sdc").degraded(true).open("/dev/sdb")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn device(mut self, path: impl Into<PathBuf>) -> Self {
        self.further_devices.push(path.into());
        self
    }

    /// Opens the volume in this partition of a disk image, counted from 1.
    #[must_use]
    pub fn partition(mut self, number: u32) -> Self {
        self.device_options.partition = Offset::Partition(number);
        self
    }

    /// Keeps changes in a file beside the image, which stays unchanged. This option works only for
    /// volumes of one device.
    ///
    /// ```no_run
    /// # fn main() -> buttress::Result<()> {
    /// // What is changed lies in the file beside the image, which stays as it is.
    /// let volume = buttress::Volume::options()
    ///     .overlay("tried.overlay")
    ///     .open_writable("production.img")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn overlay(mut self, path: impl Into<PathBuf>) -> Self {
        self.device_options.overlay = Some(path.into());
        self
    }

    /// Sets how devices are opened: direct I/O, another engine, an offset. Replaces the settings of
    /// [`partition`](Self::partition) and [`overlay`](Self::overlay).
    #[must_use]
    pub fn device_options(mut self, options: DeviceOptions) -> Self {
        self.device_options = options;
        self
    }

    /// Opens the volume even if devices are missing, if its profiles allow that.
    #[must_use]
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }

    /// Sets the exceptions for a damaged volume, as the mount option `rescue=` does.
    ///
    /// ```no_run
    /// # fn main() -> buttress::Result<()> {
    /// use buttress::{Rescue, Volume};
    ///
    /// let rescue = Rescue {
    ///     use_backup_root: true,
    ///     ..Rescue::default()
    /// };
    /// let volume = Volume::options().rescue(rescue).open("damaged.img")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn rescue(mut self, rescue: Rescue) -> Self {
        self.rescue = rescue;
        self
    }

    /// Sets whether a volume opened for reading shows changes that were synced after its last
    /// commit, replayed in memory. The default of this option is true. If this option is false, the
    /// volume shows the last commit. Opening for writing always replays the log.
    ///
    /// ```no_run
    /// # fn main() -> buttress::Result<()> {
    /// // A copy of a disk that was in use: as its last commit left it.
    /// let volume = buttress::Volume::options().replay_log(false).open("copied.img")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn replay_log(mut self, replay: bool) -> Self {
        self.rescue.no_log_replay = !replay;
        self
    }

    /// Opens the volume at its last commit, as it is on the devices. A pending log tree of the
    /// volume becomes a notice. Meant for checks, scrubs, and volumes that become writable later.
    #[must_use]
    pub fn on_disk(mut self) -> Self {
        self.reading = Reading::OnDisk;
        self
    }

    /// Opens a volume with these options as [`on_disk`](Self::on_disk) does. An unreadable root
    /// tree becomes a notice, and its subvolumes are then missing.
    #[must_use]
    pub fn for_inspection(mut self) -> Self {
        self.reading = Reading::Inspection;
        self
    }

    /// Sets the memory for cached tree blocks and dirty state, in bytes; 256 MiB by default.
    #[must_use]
    pub fn cache(mut self, budget: ByteCount) -> Self {
        self.cache = Some(budget);
        self
    }

    /// Opens the volume on an image file or block device, for reading.
    ///
    /// # Errors
    /// Fails if the path cannot be opened or holds no btrfs, if devices are missing, or if a
    /// feature is not supported.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Volume> {
        let devices = self.devices(path.as_ref())?;
        self.open_devices(devices)
    }

    /// Opens the devices as the volume options request.
    pub(crate) fn devices(&self, first: &Path) -> Result<Vec<Device>> {
        let further = self.further_devices.iter().map(PathBuf::as_path);
        let devices = std::iter::once(first).chain(further);
        let opened = devices.map(|path| Device::open(path, &self.device_options));
        Ok(opened
            .collect::<Result<_, _>>()
            .map_err(buttress_fs::Error::from)?)
    }

    /// Opens the volume for reading on open devices: files, memory, or any other source of a
    /// [`Device`]. This call ignores the options for opening devices, because the devices are open
    /// already.
    ///
    /// # Errors
    /// Fails as [`VolumeOptions::open`] does.
    pub fn open_devices(self, devices: Vec<Device>) -> Result<Volume> {
        #[cfg(feature = "salvage")]
        if let Some(older) = self.older_state(&devices)? {
            return Ok(older);
        }
        let mut options = OpenOptions::new(devices)
            .degraded(self.degraded)
            .rescue(self.rescue)
            .for_inspection(self.reading == Reading::Inspection);
        if let Some(cache) = self.cache {
            options = options.cache(cache);
        }
        let shown = match self.reading {
            Reading::Files => open_replayed(options)?,
            Reading::OnDisk | Reading::Inspection => {
                let on_disk = options.open()?;
                let filesystem = on_disk.clone();
                Shown { filesystem, on_disk }
            }
        };
        Ok(Volume::new(Access::Reading(shown)))
    }
}
