//! How a volume is opened or made.

#[cfg(feature = "write")]
mod new_volume;
#[cfg(feature = "write")]
mod writing;

#[cfg(feature = "write")]
pub use new_volume::NewVolume;

use crate::error::Result;
use crate::volume::{Access, Volume};
use buttress_device::{Device, Offset, OpenOptions as DeviceOptions};
use buttress_format::{ByteCount, SubvolumeId};
use buttress_fs::{Filesystem, OpenOptions};
#[cfg(feature = "scrub")]
use buttress_scrub::Healer;
use buttress_volume::Rescue;
#[cfg(feature = "write")]
use buttress_writer::operations::NewInode;
use buttress_writer::{
    DataOptions, Environment, SystemEnvironment, WritableFilesystem, WriteOptions, open_replayed,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whose new files are, unless the options say otherwise: root's, with the usual umask, whoever runs the program, so that
/// the same program makes the same volume everywhere.
#[cfg(feature = "write")]
const NEW_FILES: NewInode = NewInode {
    mode: 0,
    umask: 0o022,
    uid: 0,
    gid: 0,
};

/// How to open a volume. Made by [`Volume::options`].
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    write: bool,
    further_devices: Vec<PathBuf>,
    partition: Offset,
    overlay: Option<PathBuf>,
    degraded: bool,
    cache: Option<ByteCount>,
    #[cfg(feature = "write")]
    new_files: NewInode,
    data: DataOptions,
    environment: Arc<dyn Environment>,
    replay_log: bool,
    #[cfg(feature = "scrub")]
    heal: bool,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            write: false,
            further_devices: Vec::new(),
            partition: Offset::Whole,
            overlay: None,
            degraded: false,
            cache: None,
            #[cfg(feature = "write")]
            new_files: NEW_FILES,
            data: DataOptions::default(),
            environment: Arc::new(SystemEnvironment),
            replay_log: true,
            #[cfg(feature = "scrub")]
            heal: true,
        }
    }
}

impl VolumeOptions {
    /// A further device of a volume that has several. The order does not matter.
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

    /// The volume lies in this partition, counted from 1, of a disk image with a partition table.
    #[must_use]
    pub fn partition(mut self, number: u32) -> Self {
        self.partition = Offset::Partition(number);
        self
    }

    /// Keeps changes in a file beside the image, which stays as it is. Only for volumes of one device.
    ///
    /// ```no_run
    /// # fn main() -> buttress::Result<()> {
    /// // What is changed lies in the file beside the image, which stays as it is.
    /// let volume = buttress::Volume::options()
    ///     .write(true)
    ///     .overlay("tried.overlay")
    ///     .open("production.img")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn overlay(mut self, path: impl Into<PathBuf>) -> Self {
        self.overlay = Some(path.into());
        self
    }

    /// Goes on where devices are missing, as far as the volume's profiles allow.
    #[must_use]
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }

    /// Whether a volume that is opened for reading shows what was synced after its last commit, replayed in memory, as it
    /// does by default. Without it the last commit is shown. One that is opened for writing is always replayed.
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
        self.replay_log = replay;
        self
    }

    /// How much memory cached tree blocks and waiting changes may take; 256 MiB by default.
    #[must_use]
    pub fn cache(mut self, budget: ByteCount) -> Self {
        self.cache = Some(budget);
        self
    }

    /// Opens the volume on an image file or block device.
    ///
    /// # Errors
    /// What is at the path cannot be opened or holds no btrfs; devices are missing; a feature is not supported; the volume
    /// is in use elsewhere and this is for writing.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Volume> {
        let first = path.as_ref().to_owned();
        let mut devices = Vec::new();
        for path in std::iter::once(&first).chain(&self.further_devices) {
            let options = DeviceOptions {
                write: self.write,
                partition: self.partition,
                overlay: self.overlay.clone(),
                ..DeviceOptions::default()
            };
            devices.push(Device::open(path, &options).map_err(buttress_fs::Error::from)?);
        }
        self.open_devices(devices)
    }

    /// Opens the volume on devices: open files, memory, anything that [`Device`] can be over.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`].
    pub fn open_devices(self, devices: Vec<Device>) -> Result<Volume> {
        let mut options = OpenOptions::new(devices).degraded(self.degraded);
        if let Some(cache) = self.cache {
            options = options.cache(cache);
        }
        if self.write {
            let filesystem: Filesystem = options.open()?;
            let options = WriteOptions {
                environment: self.environment,
                data: self.data,
                ..WriteOptions::default()
            };
            let filesystem = WritableFilesystem::new(filesystem, options)?;
            let opened = Volume::new(
                Access::Writing(filesystem.clone()),
                #[cfg(feature = "write")]
                self.new_files,
                SubvolumeId::TOP_LEVEL,
            );
            #[cfg(feature = "scrub")]
            let opened = match self.heal {
                true => opened.healed_by(Healer::start_where_redundant(&filesystem)),
                false => opened,
            };
            return Ok(opened);
        }
        let rescue = Rescue {
            no_log_replay: !self.replay_log,
            ..Rescue::default()
        };
        let shown = open_replayed(options.rescue(rescue))?;
        Ok(Volume::new(
            Access::Reading(shown),
            #[cfg(feature = "write")]
            self.new_files,
            SubvolumeId::TOP_LEVEL,
        ))
    }
}
