//! A volume that is made, or open for writing: what changes all of it.

use super::{Access, Volume};
use crate::error::Result;
use crate::options::NewVolume;
use crate::subvolume::Subvolume;
use buttress_fs::Progress;
use buttress_writer::LogStatistics;
use buttress_writer::operations::NewInode;
use std::path::Path;

impl Volume {
    /// Opens the volume on an image file or block device for reading and writing.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`](crate::VolumeOptions::open).
    pub fn open_writable(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().write(true).open(path)
    }

    /// Says how to make a new volume.
    #[must_use]
    pub fn create() -> NewVolume {
        NewVolume::default()
    }

    /// Makes a subvolume the one that is mounted where nothing else is said.
    ///
    /// # Errors
    /// The volume is open for reading only, or the subvolume is gone.
    pub fn set_default_subvolume(&self, subvolume: &Subvolume) -> Result<()> {
        Ok(self.writer()?.set_default_subvolume(subvolume.id())?)
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
    /// The volume is open for reading only; a label that is too long, or holds a line break or a zero byte.
    pub fn set_label(&self, label: &str) -> Result<()> {
        Ok(self.writer()?.set_label(label.as_bytes())?)
    }

    /// Makes all changes durable. When it returns, they are there whatever happens; until then a crash goes back to the
    /// last time, or to a state between. Without it changes are durable after about 30 seconds. Nothing to do on a volume
    /// that is open for reading.
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
        if let Access::Writing(filesystem) = &self.access {
            filesystem.commit()?;
        }
        Ok(())
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
    /// by cause. All are zero on a volume that is open for reading.
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
        match &self.access {
            Access::Reading(_) => LogStatistics::default(),
            Access::Writing(filesystem) => filesystem.log_statistics(),
        }
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
    /// The volume is open for reading only; [`buttress_fs::Error::Cancelled`] within; a tree cannot be read or written.
    pub fn drop_deleted_subvolumes(&self, progress: &Progress) -> Result<()> {
        Ok(self.writer()?.drop_deleted_subvolumes(progress)?)
    }

    /// Returns the attributes of a new inode, with this mode before the umask.
    pub(crate) const fn new_inode(&self, mode: u32) -> NewInode {
        NewInode {
            mode,
            ..self.new_files
        }
    }
}
