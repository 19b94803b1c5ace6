//! A volume that is open for writing: calls that change the volume as a whole.

pub(crate) mod devices;
mod inodes;
pub(crate) mod rescuing;
mod tuning;

use super::{Access, Volume};
use crate::error::Result;
use crate::file::WritableFile;
use crate::options::{NewVolume, VolumeOptions, Writing};
use crate::subvolume::{Subvolume, WritableSubvolume};
use buttress_format::{ByteCount, Generation, Logical, SubvolumeId};
use buttress_fs::{Location, Progress};
#[cfg(feature = "scrub")]
use buttress_scrub::Healer;
use buttress_writer::operations::NewInode;
use buttress_writer::{LogStatistics, Trimmed, Uncommitted, WritableFilesystem};
use std::ops::{Deref, Range};
use std::path::Path;

impl Volume {
    /// Opens the volume on an image file or block device for reading and writing.
    ///
    /// # Errors
    /// Fails as [`VolumeOptions::open_writable`](crate::VolumeOptions::open_writable) does.
    pub fn open_writable(path: impl AsRef<Path>) -> Result<WritableVolume> {
        Self::options().open_writable(path)
    }

    /// Makes this volume writable, with the options that apply to writing. The caller must have
    /// opened the volume with [`VolumeOptions::on_disk`](crate::VolumeOptions::on_disk), on devices
    /// that are open for writing.
    ///
    /// ```no_run
    /// # fn main() -> buttress::Result<()> {
    /// use buttress::{DeviceOptions, Volume};
    ///
    /// let devices = DeviceOptions {
    ///     write: true,
    ///     ..DeviceOptions::default()
    /// };
    /// let volume = Volume::options().device_options(devices).on_disk().open("disk.img")?;
    /// if volume.label() == b"scratch" {
    ///     volume.into_writable(Volume::options())?.set_label("used")?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if a device is open for reading only, a feature is not supported for writing, or the
    /// log cannot be replayed.
    pub fn into_writable(self, options: VolumeOptions) -> Result<WritableVolume> {
        let Writing {
            options,
            new_files,
            #[cfg(feature = "scrub")]
            heal,
        } = options.writing;
        let writer = WritableFilesystem::new(self.view(), options)?;
        let volume = Self::new(Access::Writing(writer.clone()));
        #[cfg(feature = "scrub")]
        let volume = match heal {
            true => volume.healed_by(Healer::start_where_redundant(&writer)),
            false => volume,
        };
        Ok(WritableVolume::new(volume, writer, new_files))
    }

    /// Returns options for making a volume.
    #[must_use]
    pub fn create() -> NewVolume {
        NewVolume::default()
    }
}

/// An open btrfs volume, for reading and writing. Made by [`Volume::open_writable`], by
/// [`VolumeOptions::open_writable`](crate::VolumeOptions::open_writable) and by [`Volume::create`].
///
/// [`WritableVolume`] dereferences to [`Volume`], so a function that takes `&Volume` cannot change
/// the volume:
///
/// ```compile_fail,E0599
/// fn rename(volume: &buttress::Volume) -> buttress::Result<()> {
///     volume.set_label("photos")
/// }
/// ```
#[derive(Clone, Debug)]
pub struct WritableVolume {
    /// Declared before the writer's last handle, which its healer uses, so that it is dropped
    /// first.
    volume: Volume,
    writer: WritableFilesystem,
    new_files: NewInode,
}

impl Deref for WritableVolume {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

impl WritableVolume {
    pub(crate) const fn new(volume: Volume, writer: WritableFilesystem, new_files: NewInode) -> Self {
        Self {
            volume,
            writer,
            new_files,
        }
    }

    pub(crate) const fn writer(&self) -> &WritableFilesystem {
        &self.writer
    }

    /// Returns the subvolume in which paths begin: the top level.
    #[must_use]
    pub fn root(&self) -> WritableSubvolume {
        self.writable(self.volume.root())
    }

    /// Returns the default subvolume, mounted when no `subvol=` option is given.
    ///
    /// # Errors
    /// Fails as [`Volume::default_subvolume`] does.
    pub fn default_subvolume(&self) -> Result<WritableSubvolume> {
        Ok(self.writable(self.volume.default_subvolume()?))
    }

    /// Returns the subvolume with this id.
    ///
    /// # Errors
    /// Fails as [`Volume::subvolume_by_id`] does.
    pub fn subvolume_by_id(&self, id: SubvolumeId) -> Result<WritableSubvolume> {
        Ok(self.writable(self.volume.subvolume_by_id(id)?))
    }

    /// Opens a regular file for reading and writing.
    ///
    /// # Errors
    /// Fails as [`Volume::open_file`] does.
    pub fn open_file(&self, location: Location) -> Result<WritableFile> {
        Ok(WritableFile::new(self.clone(), self.volume.open_file(location)?))
    }

    fn writable(&self, subvolume: Subvolume) -> WritableSubvolume {
        WritableSubvolume::new(self.clone(), subvolume)
    }

    /// Sets the default subvolume, mounted when no `subvol=` option is given.
    ///
    /// # Errors
    /// Fails if the subvolume does not exist.
    pub fn set_default_subvolume(&self, subvolume: impl AsRef<Subvolume>) -> Result<()> {
        Ok(self.writer.subvolumes().set_default(subvolume.as_ref().id())?)
    }

    /// Sets the label, at most 255 bytes.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// volume.set_label("photos")?;
    /// assert_eq!(volume.label(), b"photos");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the label is too long, or contains a line break or a zero byte.
    pub fn set_label(&self, label: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.writer.set_label(label.as_ref())?)
    }

    /// Commits all changes. After this call returns, all changes survive a crash. Before this call
    /// returns, a crash leaves the volume at some earlier commit. Without this call, changes become
    /// durable after about 30 seconds.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("ledger", "paid")?;
    /// volume.sync()?; // now it is there whatever happens
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if a device failed, or no space is free. After a failed write, the volume stays at its
    /// last commit. After the failure the volume can still be read, and every later change returns
    /// the cause.
    pub fn sync(&self) -> Result<()> {
        self.writer.commit()?;
        Ok(())
    }

    /// Writes dirty content back to the devices, without a commit. Calls that read extents then see
    /// this content.
    ///
    /// # Errors
    /// Fails if a device failed, or no space is free.
    pub fn write_back(&self) -> Result<()> {
        Ok(self.writer.writeback().write_all()?)
    }

    /// Returns the changes that the next commit makes durable.
    #[must_use]
    pub fn uncommitted(&self) -> Uncommitted {
        self.writer.uncommitted()
    }

    /// Returns the generation of the last commit.
    #[must_use]
    pub fn committed_generation(&self) -> Generation {
        self.writer.committed_generation()
    }

    /// Gives up all uncommitted changes, and returns their counts. After this call, the volume
    /// accepts no more changes.
    pub fn abandon(&self) -> Uncommitted {
        self.writer.clone().abandon()
    }

    /// Discards unused space on all devices, and returns the discarded bytes. Free ranges shorter
    /// than `shortest` are skipped.
    ///
    /// # Errors
    /// Fails if a device failed.
    pub fn trim(&self, range: Range<Logical>, shortest: ByteCount) -> Result<Trimmed> {
        Ok(self.writer.trims().trim(range, shortest)?)
    }

    /// Flushes all devices, so that all bytes written to them survive a power cut. A
    /// [`sync`](Self::sync) without changes does not always flush.
    ///
    /// # Errors
    /// Fails if a device failed.
    pub fn flush_devices(&self) -> Result<()> {
        let view = self.view();
        let flushed = view.volume().flush();
        Ok(flushed.map_err(buttress_fs::Error::from)?)
    }

    /// Commits all changes and drops this handle. Other handles keep the volume open.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// volume.root().write("ledger", "paid")?;
    /// volume.close()?;
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`sync`](Self::sync) does. Changes that could not be committed are lost when the
    /// last handle is dropped.
    pub fn close(self) -> Result<()> {
        self.sync()
    }

    /// Returns counts of syncs since the volume was opened for writing: written to a log, joined to
    /// another sync, or done as a whole commit, by cause.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("ledger", "paid")?;
    /// root.open("ledger")?.sync()?;
    /// assert_eq!(volume.log_statistics().written, 1);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn log_statistics(&self) -> LogStatistics {
        self.writer.log_tree().statistics()
    }

    /// Frees the space of deleted subvolumes. Opening a volume and deleting a subvolume do not wait
    /// until the space is free.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::Progress;
    ///
    /// root.create_subvolume("scratch")?;
    /// root.delete_subvolume("scratch")?;
    /// volume.drop_deleted_subvolumes(&Progress::new())?;
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the job was cancelled, or a tree cannot be read or written.
    pub fn drop_deleted_subvolumes(&self, progress: &Progress) -> Result<()> {
        Ok(self.writer.subvolumes().drop_deleted(progress)?)
    }

    /// Returns the attributes of a new inode, with this mode before the umask.
    pub(crate) const fn new_inode(&self, mode: u32) -> NewInode {
        NewInode {
            mode,
            ..self.new_files
        }
    }
}
