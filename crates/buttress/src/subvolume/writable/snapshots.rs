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
    /// The snapshot never changes, and can be sent.
    ReadOnly,
    /// The snapshot can be changed.
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
    /// Fails if the path exists already, or as [`Self::create`] does.
    pub fn create_subvolume(&self, path: impl VolumePath) -> Result<Self> {
        let id = self.at_place(&path.volume_path(), |writer, directory, name| {
            Ok(writer.subvolumes().create(directory, name)?)
        })?;
        Ok(self.with_id(id))
    }

    /// Makes a snapshot of `source` at a path. The time to take a snapshot does not depend on the
    /// subvolume's size. The snapshot and all earlier changes are durable when this returns.
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
    /// Fails if the path exists already, or `source` was deleted, or as
    /// [`WritableVolume::sync`](crate::WritableVolume::sync) does.
    pub fn create_snapshot(
        &self,
        source: impl AsRef<Subvolume>,
        path: impl VolumePath,
        mode: SnapshotMode,
    ) -> Result<Self> {
        let read_only = mode == SnapshotMode::ReadOnly;
        let id = self.at_place(&path.volume_path(), |writer, directory, name| {
            Ok(writer
                .subvolumes()
                .snapshot(source.as_ref().id(), directory, name, read_only)?)
        })?;
        Ok(self.with_id(id))
    }

    /// Deletes the subvolume at a path.
    /// [`WritableVolume::drop_deleted_subvolumes`](crate::WritableVolume::drop_deleted_subvolumes)
    /// frees the deleted subvolume's space.
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
    /// Fails if the path leads to no subvolume, or to one that contains others, is the default
    /// subvolume, or is the top level.
    pub fn delete_subvolume(&self, path: impl VolumePath) -> Result<()> {
        let path = path.volume_path();
        let id: SubvolumeId = self.subvolume.subvolume(&*path)?.id();
        let deleted = self.volume.writer().subvolumes().delete(id);
        deleted.map_err(|error| Error::from(error).at(&path))
    }

    /// Makes this subvolume read-only, or writable. A received subvolume stays read-only, because
    /// its received uuid asserts that it equals its original.
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
    /// Fails if the volume is open for reading only, or the subvolume was received.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let writer = self.volume.writer();
        Ok(writer
            .subvolumes()
            .set_read_only(self.id(), read_only, ReceivedUuid::Refuse)?)
    }
}
