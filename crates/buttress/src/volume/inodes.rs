//! Reading by inode, for programs that keep locations in a volume instead of paths.

use super::Volume;
use crate::error::Result;
use crate::file::File;
use crate::path::VolumePath;
use buttress_format::{InodeNumber, SubvolumeId};
use buttress_fs::{DirEntry, Follow, InodeRecord, Location, Metadata, WalkOptions, Xattr};

/// Calls that take a [`Location`], which [`Subvolume::locate`](crate::Subvolume::locate) returns. A location is an inode of a
/// subvolume; it stays valid while the inode exists, whatever its names become.
///
/// ```
/// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
/// # let root = volume.root();
/// use buttress::Follow;
///
/// root.write("old", "0123456789")?;
/// let file = root.locate("old", Follow::All)?;
/// root.rename("old", "new")?;
/// assert_eq!(volume.metadata(file)?.size.get(), 10);
/// assert_eq!(volume.paths(file)?, [b"new"]);
/// # Ok::<(), buttress::Error>(())
/// ```
impl Volume {
    /// Returns the inode at a path from a directory. A path with a leading slash begins at the root
    /// of its subvolume.
    ///
    /// # Errors
    /// Fails as [`Subvolume::locate`](crate::Subvolume::locate) does.
    pub fn locate(&self, start: Location, path: impl VolumePath, follow: Follow) -> Result<Location> {
        Ok(self.access.resolve(start, &path.volume_path(), follow)?)
    }

    /// Returns what `stat(2)` reports of an inode.
    ///
    /// # Errors
    /// Fails if the inode does not exist, or cannot be read.
    pub fn metadata(&self, location: Location) -> Result<Metadata> {
        Ok(self.access.metadata(location)?)
    }

    /// Returns everything that the tree holds of an inode except its content: metadata, names,
    /// extended attributes.
    ///
    /// # Errors
    /// Fails as [`metadata`](Self::metadata) does.
    pub fn inode(&self, location: Location) -> Result<InodeRecord> {
        Ok(self.view().inode_record(location)?)
    }

    /// Returns the entry with this name, `None` if the directory has none.
    ///
    /// # Errors
    /// Fails if the location is no directory, or cannot be read.
    pub fn lookup(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        Ok(self.access.lookup(directory, name)?)
    }

    /// Returns the entries of a directory in the current state.
    ///
    /// # Errors
    /// Fails if the location is no directory, or cannot be read. Failures after the first call are
    /// items of the iterator.
    pub fn read_dir(&self, directory: Location) -> Result<impl Iterator<Item = Result<DirEntry>> + use<>> {
        let entries = self.view().read_dir(directory)?;
        Ok(entries.map(|entry| Ok(entry?)))
    }

    /// Walks an inode and everything below it, in its current state. Errors are items of the walk,
    /// which continues.
    #[must_use]
    pub fn walk(&self, start: Location, options: WalkOptions) -> buttress_fs::Walk {
        self.view().walk(start, options)
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// Fails if the location is no regular file, or cannot be read.
    pub fn open_file(&self, location: Location) -> Result<File> {
        File::open(self, location)
    }

    /// Opens a regular file whose record a walk or [`inode`](Self::inode) returned. The recorded
    /// inode saves a lookup.
    ///
    /// # Errors
    /// Fails if the record belongs to no regular file, or its content cannot be read.
    pub fn open_record(&self, record: &InodeRecord) -> Result<File> {
        File::open_record(self, record)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// Fails if the location is no symbolic link, or cannot be read.
    pub fn read_link(&self, location: Location) -> Result<Vec<u8>> {
        Ok(self.access.read_link(location)?)
    }

    /// Returns all extended attributes, in the order of `listxattr(2)`.
    ///
    /// # Errors
    /// Fails if the inode's items cannot be read.
    pub fn xattrs(&self, location: Location) -> Result<Vec<Xattr>> {
        Ok(self.access.xattrs(location)?)
    }

    /// Returns one extended attribute by its full name, `None` if it is not set.
    ///
    /// # Errors
    /// Fails if the attribute cannot be read.
    pub fn xattr(&self, location: Location, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.access.xattr(location, name)?)
    }

    /// Returns all paths of an inode from the root of its subvolume: one for each hard link.
    ///
    /// # Errors
    /// Fails if a name or a directory of the path cannot be read.
    pub fn paths(&self, location: Location) -> Result<Vec<Vec<u8>>> {
        Ok(self.view().inode_paths(location)?)
    }

    /// Returns the path of a directory from the root of its subvolume.
    ///
    /// # Errors
    /// Fails if a directory of the path cannot be read.
    pub fn directory_path(&self, directory: Location) -> Result<Vec<u8>> {
        Ok(self.view().directory_path(directory)?)
    }

    /// Returns the names of an inode: for each hard link the inode of its directory, and the name there.
    ///
    /// # Errors
    /// Fails if the inode's items cannot be read.
    pub fn names(&self, location: Location) -> Result<Vec<(InodeNumber, Vec<u8>)>> {
        Ok(self.view().inode_names(location)?)
    }

    /// Returns the path of a subvolume from the top level.
    ///
    /// # Errors
    /// Fails if the subvolume does not exist, is deleted, or a directory of the path cannot be
    /// read.
    pub fn subvolume_path(&self, id: SubvolumeId) -> Result<Vec<u8>> {
        Ok(self.view().subvolume_path(id)?)
    }
}
