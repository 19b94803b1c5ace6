//! A volume that is open for writing: what changes all of it.

pub(crate) mod devices;
mod inodes;

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
    /// As [`VolumeOptions::open_writable`](crate::VolumeOptions::open_writable).
    pub fn open_writable(path: impl AsRef<Path>) -> Result<WritableVolume> {
        Self::options().open_writable(path)
    }

    /// Makes this volume writable, with the options that count for writing. It was opened with
    /// [`VolumeOptions::on_disk`](crate::VolumeOptions::on_disk), on devices that are open for writing.
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
    /// A device is open for reading only; a feature is not supported for writing; the log cannot be replayed.
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

    /// Says how to make a new volume.
    #[must_use]
    pub fn create() -> NewVolume {
        NewVolume::default()
    }
}

/// An open btrfs volume, for reading and writing. Made by [`Volume::open_writable`], by
/// [`VolumeOptions::open_writable`](crate::VolumeOptions::open_writable) and by [`Volume::create`].
///
/// It dereferences to [`Volume`], so a function that takes `&Volume` cannot change the volume:
///
/// ```compile_fail,E0599
/// fn rename(volume: &buttress::Volume) -> buttress::Result<()> {
///     volume.set_label("photos")
/// }
/// ```
#[derive(Clone, Debug)]
pub struct WritableVolume {
    /// Dropped before the last handle of the writer, which its healer uses.
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
    /// As for [`Volume::default_subvolume`].
    pub fn default_subvolume(&self) -> Result<WritableSubvolume> {
        Ok(self.writable(self.volume.default_subvolume()?))
    }

    /// Returns the subvolume with this id.
    ///
    /// # Errors
    /// As for [`Volume::subvolume_by_id`].
    pub fn subvolume_by_id(&self, id: SubvolumeId) -> Result<WritableSubvolume> {
        Ok(self.writable(self.volume.subvolume_by_id(id)?))
    }

    /// Opens a regular file for reading and writing.
    ///
    /// # Errors
    /// As for [`Volume::open_file`].
    pub fn open_file(&self, location: Location) -> Result<WritableFile> {
        Ok(WritableFile::new(self.clone(), self.volume.open_file(location)?))
    }

    fn writable(&self, subvolume: Subvolume) -> WritableSubvolume {
        WritableSubvolume::new(self.clone(), subvolume)
    }

    /// Makes a subvolume the one that is mounted where nothing else is said.
    ///
    /// # Errors
    /// The subvolume does not exist.
    pub fn set_default_subvolume(&self, subvolume: impl AsRef<Subvolume>) -> Result<()> {
        Ok(self.writer.set_default_subvolume(subvolume.as_ref().id())?)
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
    /// A label that is too long, or holds a line break or a zero byte.
    pub fn set_label(&self, label: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.writer.set_label(label.as_ref())?)
    }

    /// Makes all changes durable. When it returns, they are there whatever happens; until then a crash goes back to the
    /// last time, or to a state between. Without it changes are durable after about 30 seconds.
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
    /// A device failed, or there is no space. After a failed write the volume stays as it was last made durable, can still be
    /// read, and every further change says why it is refused.
    pub fn sync(&self) -> Result<()> {
        self.writer.commit()?;
        Ok(())
    }

    /// Writes dirty content back to the devices, without a commit. Reading by extents sees it then.
    ///
    /// # Errors
    /// A device failed, or there is no space.
    pub fn write_back(&self) -> Result<()> {
        Ok(self.writer.write_back()?)
    }

    /// Returns what the next commit makes durable.
    #[must_use]
    pub fn uncommitted(&self) -> Uncommitted {
        self.writer.uncommitted()
    }

    /// Returns the generation of the last commit.
    #[must_use]
    pub fn committed_generation(&self) -> Generation {
        self.writer.committed_generation()
    }

    /// Gives up everything that is not committed, and returns what that was. The volume takes no more changes.
    pub fn abandon(&self) -> Uncommitted {
        self.writer.clone().abandon()
    }

    /// Discards what nothing uses, on all devices, and returns how much that was. Free ranges shorter than `shortest` are left.
    ///
    /// # Errors
    /// A device failed.
    pub fn trim(&self, range: Range<Logical>, shortest: ByteCount) -> Result<Trimmed> {
        Ok(self.writer.trim(range, shortest)?)
    }

    /// Flushes all devices: what was written to them survives a power cut. A [`sync`](Self::sync) that has nothing to commit need
    /// not flush.
    ///
    /// # Errors
    /// A device failed.
    pub fn flush_devices(&self) -> Result<()> {
        let view = self.view();
        let flushed = view.volume().flush();
        Ok(flushed.map_err(buttress_fs::Error::from)?)
    }

    /// Makes all changes durable and lets go of the volume. Other handles of it keep it open.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// volume.root().write("ledger", "paid")?;
    /// volume.close()?;
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`sync`](Self::sync). Changes that could not be made durable are lost with the last handle.
    pub fn close(self) -> Result<()> {
        self.sync()
    }

    /// Returns counts of syncs since the volume was opened for writing: logged, joined with others, and taken as a whole commit,
    /// by cause.
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
        self.writer.log_statistics()
    }

    /// Gives back the space of deleted subvolumes. Opening and changing a volume do not wait for that.
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
    /// The job was cancelled; a tree cannot be read or written.
    pub fn drop_deleted_subvolumes(&self, progress: &Progress) -> Result<()> {
        Ok(self.writer.drop_deleted_subvolumes(progress)?)
    }

    /// Returns the attributes of a new inode, with this mode before the umask.
    pub(crate) const fn new_inode(&self, mode: u32) -> NewInode {
        NewInode {
            mode,
            ..self.new_files
        }
    }
}
