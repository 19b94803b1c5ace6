//! Subvolumes and snapshots, by path.

use super::WritableSubvolume;
use crate::error::{Error, Result};
use crate::path::VolumePath;
use crate::subvolume::Subvolume;
use buttress_format::SubvolumeId;
use buttress_writer::operations::ReceivedUuid;

/// Whether a snapshot can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotMode {
    /// It stays as it is; it can be sent.
    ReadOnly,
    /// It can be changed.
    Writable,
}

impl WritableSubvolume {
    /// Makes an empty subvolume.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// let home = root.create_subvolume("home")?;
    /// home.write("letter", "Dear Bob")?;
    /// assert_eq!(root.read_to_string("home/letter")?, "Dear Bob");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is something at the path already; else as [`Self::create`].
    pub fn create_subvolume(&self, path: impl VolumePath) -> Result<Self> {
        let id = self.at_place(&path.volume_path(), |writer, directory, name| {
            Ok(writer.create_subvolume(directory, name)?)
        })?;
        Ok(self.with_id(id))
    }

    /// Makes a snapshot of `source` at a path, which takes the same time at any size. The snapshot and all earlier changes
    /// are durable when this returns.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::SnapshotMode;
    ///
    /// let home = root.create_subvolume("home")?;
    /// home.write("letter", "Dear Bob")?;
    /// let before = root.create_snapshot(&home, "before", SnapshotMode::ReadOnly)?;
    /// home.remove_file("letter")?;
    /// assert_eq!(before.read_to_string("letter")?, "Dear Bob");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is something at the path already; `source` is gone; else as [`WritableVolume::sync`](crate::WritableVolume::sync).
    pub fn create_snapshot(
        &self,
        source: impl AsRef<Subvolume>,
        path: impl VolumePath,
        mode: SnapshotMode,
    ) -> Result<Self> {
        let read_only = mode == SnapshotMode::ReadOnly;
        let id = self.at_place(&path.volume_path(), |writer, directory, name| {
            Ok(writer.snapshot(source.as_ref().id(), directory, name, read_only)?)
        })?;
        Ok(self.with_id(id))
    }

    /// Deletes the subvolume at a path. Its space comes back with
    /// [`WritableVolume::drop_deleted_subvolumes`](crate::WritableVolume::drop_deleted_subvolumes).
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_subvolume("scratch")?;
    /// root.delete_subvolume("scratch")?;
    /// assert!(!root.exists("scratch")?);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is nothing at the path, or no subvolume; others lie in it; it is the default one or the top level.
    pub fn delete_subvolume(&self, path: impl VolumePath) -> Result<()> {
        let path = path.volume_path();
        let id: SubvolumeId = self.subvolume.subvolume(&*path)?.id();
        let deleted = self.volume.writer().delete_subvolume(id);
        deleted.map_err(|error| Error::from(error).at(&path))
    }

    /// Makes this subvolume read-only, or writable. One that was received stays read-only: what it equals would be no
    /// longer true.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// let release = root.create_subvolume("release")?;
    /// release.write("program", "1.0")?;
    /// release.set_read_only(true)?;
    /// assert_eq!(release.write("program", "1.1").unwrap_err().errno(), 30); // EROFS
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// The volume is open for reading only; the subvolume was received.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let writer = self.volume.writer();
        Ok(writer.set_read_only(self.id(), read_only, ReceivedUuid::Refuse)?)
    }
}
