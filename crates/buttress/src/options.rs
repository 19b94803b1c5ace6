//! How a volume is opened or made.

use crate::error::Result;
use crate::volume::{Access, Volume};
use buttress_device::{Device, Offset, OpenOptions as DeviceOptions};
use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, ChecksumType, Profile, SubvolumeId, Uuid};
use buttress_fs::{Filesystem, OpenOptions};
use buttress_mkfs as mkfs;
use buttress_scrub::Healer;
use buttress_volume::Rescue;
use buttress_writer::operations::NewInode;
use buttress_writer::{
    DataOptions, Environment, SystemEnvironment, WritableFilesystem, WriteOptions, open_replayed,
};
use std::fs::OpenOptions as HostOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whose new files are, unless the options say otherwise: root's, with the usual umask, whoever runs the program, so that
/// the same program makes the same volume everywhere.
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
    new_files: NewInode,
    data: DataOptions,
    environment: Arc<dyn Environment>,
    replay_log: bool,
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
            new_files: NEW_FILES,
            data: DataOptions::default(),
            environment: Arc::new(SystemEnvironment),
            replay_log: true,
            heal: true,
        }
    }
}

impl VolumeOptions {
    /// Whether the volume can be changed. Nothing else may then have it open for writing: another process of this library,
    /// a loop device that is mounted, the kernel.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

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

    /// Whether a bad copy that a reader passes over is rewritten from a good one, in the background, as it is by default on
    /// a volume that is open for writing. [`Volume::healed`] says what was.
    #[must_use]
    pub fn heal(mut self, heal: bool) -> Self {
        self.heal = heal;
        self
    }

    /// How much memory cached tree blocks and waiting changes may take; 256 MiB by default.
    #[must_use]
    pub fn cache(mut self, budget: ByteCount) -> Self {
        self.cache = Some(budget);
        self
    }

    /// Whose new files are; root's by default.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.new_files.uid, self.new_files.gid) = (uid, gid);
        self
    }

    /// Permission bits that new files do not get; `0o022` by default.
    #[must_use]
    pub fn umask(mut self, umask: u32) -> Self {
        self.new_files.umask = umask & 0o777;
        self
    }

    /// How new content is compressed; not at all by default.
    #[must_use]
    pub fn compress(mut self, method: CompressionMethod) -> Self {
        self.data.compression = Some(method);
        self
    }

    /// Where times and uuids come from; the system by default. With one that always says the same, the same calls give the
    /// same bytes.
    #[must_use]
    pub fn environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = environment;
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
        let (access, healer) = if self.write {
            let filesystem: Filesystem = options.open()?;
            let options = WriteOptions {
                environment: self.environment,
                data: self.data,
                ..WriteOptions::default()
            };
            let filesystem = WritableFilesystem::new(filesystem, options)?;
            let healer = match self.heal {
                true => Healer::start_where_redundant(&filesystem).map(Arc::new),
                false => None,
            };
            (Access::Writing(filesystem), healer)
        } else {
            let rescue = Rescue {
                no_log_replay: !self.replay_log,
                ..Rescue::default()
            };
            (Access::Reading(open_replayed(options.rescue(rescue))?), None)
        };
        Ok(Volume::new(
            access,
            healer,
            self.new_files,
            SubvolumeId::TOP_LEVEL,
        ))
    }
}

/// How to make a volume. Made by [`Volume::create`].
#[derive(Clone, Debug, Default)]
pub struct NewVolume {
    options: mkfs::Options,
    fsid: Option<Uuid>,
    device_uuid: Option<Uuid>,
    opening: VolumeOptions,
}

impl NewVolume {
    /// The label, at most 255 bytes.
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        self.options.label = label.as_bytes().to_vec();
        self
    }

    /// The checksum of everything; crc32c by default.
    #[must_use]
    pub fn checksum(mut self, checksum: ChecksumType) -> Self {
        self.options.checksum = Some(checksum);
        self
    }

    /// How data and metadata are replicated; single and DUP by default.
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

    /// The volume's uuid and that of its device; random ones by default.
    #[must_use]
    pub fn uuids(mut self, fsid: Uuid, device: Uuid) -> Self {
        (self.fsid, self.device_uuid) = (Some(fsid), Some(device));
        self
    }

    /// How the volume is open once it is made: for writing, whatever the options say about that.
    #[must_use]
    pub fn open_with(mut self, options: VolumeOptions) -> Self {
        self.opening = options;
        self
    }

    /// Makes the volume in a new image file of `size` bytes, which takes up no space before it is used, and opens it for
    /// writing. A file that cannot become a volume is removed again.
    ///
    /// # Errors
    /// There is something at the path already; it cannot be made; `size` is too small, in which case the error says how
    /// large it must be.
    pub fn in_file(self, path: impl AsRef<Path>, size: ByteCount) -> Result<Volume> {
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
            // The failure that is told is the first one.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Makes the volume on devices that are open for writing, whatever they hold, and opens it for writing.
    ///
    /// # Errors
    /// Options that do not fit together, devices that are too few or too small, and what a device fails with.
    pub fn on_devices(self, devices: Vec<Device>) -> Result<Volume> {
        let environment = Arc::clone(&self.opening.environment);
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
        self.opening.write(true).open_devices(devices)
    }
}
