//! Edits by inode, for programs that keep locations in a volume instead of paths.

use super::WritableVolume;
use crate::error::Result;
use buttress_format::{DeviceId, QgroupId, SubvolumeId};
use buttress_fs::{FileAttributes, Location, NodeKind};
use buttress_writer::operations::{AttributeChanges, NewInode, ReceivedUuid, RenameMode, SetXattr};

/// Calls that take a [`Location`] and a name in it. The calls of
/// [`WritableSubvolume`](crate::WritableSubvolume) take paths, and give new inodes the owner of the
/// options. The creating calls of this module take a [`NewInode`].
///
/// ```
/// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
/// # let root = volume.root();
/// use buttress::NewInode;
///
/// let new = NewInode {
///     mode: 0o644,
///     umask: 0o022,
///     uid: 1000,
///     gid: 1000,
/// };
/// let letter = volume.create_file(root.location(), b"letter", &new)?;
/// volume.open_file(letter)?.append(b"Dear Bob")?;
/// assert_eq!(root.read("letter")?, b"Dear Bob");
/// # Ok::<(), buttress::Error>(())
/// ```
///
/// # Errors
/// Each call fails for an invalid name, a name that exists or does not exist, a location that is no
/// directory, a read-only subvolume, and a volume without space.
#[expect(
    clippy::missing_errors_doc,
    reason = "the head of the block lists the errors of all its calls"
)]
impl WritableVolume {
    /// Creates an empty regular file.
    pub fn create_file(&self, directory: Location, name: &[u8], new: &NewInode) -> Result<Location> {
        Ok(self.writer.create(directory, name, new)?)
    }

    /// Creates an empty directory.
    pub fn create_dir(&self, directory: Location, name: &[u8], new: &NewInode) -> Result<Location> {
        Ok(self.writer.make_directory(directory, name, new)?)
    }

    /// Creates a fifo, a socket or a device node.
    pub fn create_node(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        kind: NodeKind,
    ) -> Result<Location> {
        Ok(self.writer.make_node(directory, name, new, kind)?)
    }

    /// Creates a symbolic link to `target`, which must not be empty.
    pub fn create_symlink(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        target: &[u8],
    ) -> Result<Location> {
        Ok(self.writer.make_symlink(directory, name, new, target)?)
    }

    /// Adds a hard link: another name of an inode.
    pub fn link(&self, inode: Location, directory: Location, name: &[u8]) -> Result<()> {
        Ok(self.writer.link(inode, directory, name)?)
    }

    /// Removes a name of anything except a directory.
    pub fn unlink(&self, directory: Location, name: &[u8]) -> Result<()> {
        Ok(self.writer.unlink(directory, name)?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, directory: Location, name: &[u8]) -> Result<()> {
        Ok(self.writer.remove_directory(directory, name)?)
    }

    /// Renames an entry, within a directory or to another directory.
    pub fn rename(
        &self,
        old_directory: Location,
        old_name: &[u8],
        new_directory: Location,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let writer = &self.writer;
        Ok(writer.rename(old_directory, old_name, new_directory, new_name, mode)?)
    }

    /// Changes mode, owner and times.
    pub fn set_attributes(&self, location: Location, changes: &AttributeChanges) -> Result<()> {
        Ok(self.writer.set_attributes(location, changes)?)
    }

    /// Sets the flags that `chattr(1)` sets.
    pub fn set_flags(&self, location: Location, flags: FileAttributes) -> Result<()> {
        Ok(self.writer.set_flags(location, flags)?)
    }

    /// Sets an extended attribute, by its full name.
    pub fn set_xattr(&self, location: Location, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        Ok(self.writer.set_xattr(location, name, value, how)?)
    }

    /// Removes an extended attribute, by its full name.
    pub fn remove_xattr(&self, location: Location, name: &[u8]) -> Result<()> {
        Ok(self.writer.remove_xattr(location, name)?)
    }

    /// Makes an inode durable, as `fsync(2)` does.
    pub fn sync_inode(&self, location: Location) -> Result<()> {
        self.writer.log_tree().fsync(location)?;
        Ok(())
    }

    /// Makes an inode durable, except its times, as `fdatasync(2)` does.
    pub fn sync_inode_data(&self, location: Location) -> Result<()> {
        self.writer.log_tree().fdatasync(location)?;
        Ok(())
    }

    /// Creates an empty subvolume.
    pub fn create_subvolume(&self, directory: Location, name: &[u8]) -> Result<SubvolumeId> {
        Ok(self.writer.subvolumes().create(directory, name)?)
    }

    /// Creates a snapshot of a subvolume.
    pub fn create_snapshot(
        &self,
        source: SubvolumeId,
        directory: Location,
        name: &[u8],
        read_only: bool,
    ) -> Result<SubvolumeId> {
        Ok(self
            .writer
            .subvolumes()
            .snapshot(source, directory, name, read_only)?)
    }

    /// Creates an empty subvolume, whose quota group becomes a member of `groups`. Without any, it
    /// joins the groups that Linux chooses: with simple quotas those of the subvolume that contains
    /// `directory`, otherwise none. Without quotas, the groups have no effect.
    pub fn create_subvolume_in_groups(
        &self,
        directory: Location,
        name: &[u8],
        groups: &[QgroupId],
    ) -> Result<SubvolumeId> {
        Ok(self
            .writer
            .subvolumes()
            .create_in_groups(directory, name, groups)?)
    }

    /// Creates a snapshot of a subvolume. Its quota group becomes a member of `groups`, as for
    /// [`create_subvolume_in_groups`](Self::create_subvolume_in_groups).
    pub fn create_snapshot_in_groups(
        &self,
        source: SubvolumeId,
        directory: Location,
        name: &[u8],
        read_only: bool,
        groups: &[QgroupId],
    ) -> Result<SubvolumeId> {
        let made = self
            .writer
            .subvolumes()
            .snapshot_in_groups(source, directory, name, read_only, groups);
        Ok(made?)
    }

    /// Deletes a subvolume. [`drop_deleted_subvolumes`](Self::drop_deleted_subvolumes) frees the
    /// space of a deleted subvolume.
    pub fn delete_subvolume(&self, id: SubvolumeId) -> Result<()> {
        Ok(self.writer.subvolumes().delete(id)?)
    }

    /// Returns the deleted subvolumes whose space is not freed yet.
    pub fn deleted_subvolumes(&self) -> Result<Vec<SubvolumeId>> {
        Ok(self.writer.subvolumes().deleted()?)
    }

    /// Makes a subvolume read-only or writable.
    pub fn set_read_only(&self, id: SubvolumeId, read_only: bool, received: ReceivedUuid) -> Result<()> {
        Ok(self.writer.subvolumes().set_read_only(id, read_only, received)?)
    }

    /// Resets the error counts of a device.
    pub fn reset_device_statistics(&self, device: DeviceId) -> Result<()> {
        Ok(self.writer.reset_device_statistics(device)?)
    }
}
