//! A subvolume: paths, directories, attributes, and all operations on files by their names.
//!
//! - `subvolume`: reading;
//! - `directory`: listings;
//! - `writable`: making, renaming and removing files and directories;
//! - `send`, `receive`: sending and receiving snapshots as streams.

pub(crate) mod directory;
#[cfg(feature = "stream")]
mod receive;
#[cfg(feature = "stream")]
pub(crate) mod send;
#[cfg(feature = "write")]
mod writable;

use crate::error::Result;
use crate::file::File;
use crate::path::VolumePath;
use crate::volume::Volume;
use buttress_format::SubvolumeId;
use buttress_fs::{Follow, Location, Metadata, SubvolumeInfo, WalkOptions, Xattr};
use directory::{ReadDir, Walk};
use std::io::Read as _;

#[cfg(feature = "write")]
pub use writable::{SnapshotMode, Times, WritableSubvolume};

/// A subvolume or snapshot of an open volume, for reading. Clones of this handle are cheap.
///
/// Paths begin at its root and never leave it, except into subvolumes below. The calls are named
/// after those of [`std::fs`], and follow symbolic links in the same cases.
#[derive(Clone, Debug)]
pub struct Subvolume {
    volume: Volume,
    id: SubvolumeId,
}

/// Lets a call that reads a subvolume accept a writable one too.
impl AsRef<Self> for Subvolume {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Subvolume {
    pub(crate) const fn new(volume: Volume, id: SubvolumeId) -> Self {
        Self { volume, id }
    }

    /// Returns the subvolume's id.
    #[must_use]
    pub const fn id(&self) -> SubvolumeId {
        self.id
    }

    /// Returns the subvolume's volume.
    #[must_use]
    pub const fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Returns the place, uuids, times and flags of the subvolume.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// let home = root.create_subvolume("home")?;
    /// assert_eq!(home.info()?.path.as_deref(), Some(&b"home"[..]));
    /// assert!(!home.info()?.is_read_only());
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the subvolume was deleted, or cannot be read.
    pub fn info(&self) -> Result<SubvolumeInfo> {
        Ok(self.volume.view().subvolume(self.id)?)
    }

    /// Returns the subvolume at a path below this one.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_subvolume("home")?;
    /// root.write("file", "")?;
    /// root.subvolume("home")?;
    /// assert!(root.subvolume("file").is_err());
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or to anything but a subvolume.
    pub fn subvolume(&self, path: impl VolumePath) -> Result<Self> {
        let path = path.volume_path();
        let location = self.resolve(&path, Follow::All)?;
        if !location.is_subvolume_root() || location.placeholder().is_some() {
            let error = buttress_fs::Error::Invalid {
                what: "not a subvolume",
            };
            return Err(crate::Error::from(error).at(&path));
        }
        Ok(Self::new(self.volume.clone(), location.subvolume))
    }

    /// Returns the inode of the subvolume's root directory.
    #[must_use]
    pub const fn location(&self) -> Location {
        Location::root_of(self.id)
    }

    /// Returns the inode that a path leads to, for the calls of [`Volume`] that take one.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::Follow;
    ///
    /// root.symlink("data", "link")?;
    /// root.write("data", "0123456789")?;
    /// assert_eq!(root.locate("link", Follow::All)?, root.locate("data", Follow::All)?);
    /// assert_ne!(root.locate("link", Follow::NotLast)?, root.locate("data", Follow::All)?);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, has too many symbolic links, or has a part that cannot be
    /// read.
    pub fn locate(&self, path: impl VolumePath, follow: Follow) -> Result<Location> {
        let path = path.volume_path();
        Ok(self.volume.access().resolve(self.location(), &path, follow)?)
    }

    /// Returns the whole content of a file. A sparse file of an untrusted volume can be larger than
    /// all memory. For such a file, open the file and read only a part.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("data", [1, 2, 3])?;
    /// assert_eq!(root.read("data")?, [1, 2, 3]);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Subvolume::open`] does, or if the content cannot be read.
    pub fn read(&self, path: impl VolumePath) -> Result<Vec<u8>> {
        let path = path.volume_path();
        let mut content = Vec::new();
        self.open(&*path)?
            .read_to_end(&mut content)
            .map_err(|error| crate::Error::from(error).at(&path))?;
        Ok(content)
    }

    /// Returns the whole content of a file as text.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("hosts", "127.0.0.1 localhost")?;
    /// assert!(root.read_to_string("hosts")?.contains("localhost"));
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Subvolume::read`] does, or if the content is not UTF-8.
    pub fn read_to_string(&self, path: impl VolumePath) -> Result<String> {
        let path = path.volume_path();
        let content = self.read(&*path)?;
        String::from_utf8(content).map_err(|error| {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidData, error.utf8_error());
            crate::Error::from(error).at(&path)
        })
    }

    /// Opens a file for reading.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileOffset;
    ///
    /// root.write("data", "0123456789")?;
    /// let file = root.open("data")?;
    /// let mut middle = [0; 3];
    /// file.read_at(FileOffset::new(4), &mut middle)?;
    /// assert_eq!(&middle, b"456");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path does not exist, or is not a regular file.
    pub fn open(&self, path: impl VolumePath) -> Result<File> {
        let path = path.volume_path();
        let location = self.resolve(&path, Follow::All)?;
        File::open(&self.volume, location).map_err(|error| error.at(&path))
    }

    /// Returns the attributes that `stat(2)` returns for a path.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("data", "0123456789")?;
    /// assert_eq!(root.metadata("data")?.size.get(), 10);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or cannot be read.
    pub fn metadata(&self, path: impl VolumePath) -> Result<Metadata> {
        self.metadata_with(&path.volume_path(), Follow::All)
    }

    /// Returns the attributes of a path as `lstat(2)` does: a symbolic link at its end is not
    /// followed.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::FileKind;
    ///
    /// root.symlink("nowhere", "link")?;
    /// assert_eq!(root.symlink_metadata("link")?.kind, FileKind::Symlink);
    /// assert!(root.metadata("link").unwrap_err().is_not_found());
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Subvolume::metadata`] does.
    pub fn symlink_metadata(&self, path: impl VolumePath) -> Result<Metadata> {
        self.metadata_with(&path.volume_path(), Follow::NotLast)
    }

    fn metadata_with(&self, path: &[u8], follow: Follow) -> Result<Metadata> {
        let location = self.resolve(path, follow)?;
        self.volume.metadata(location).map_err(|error| error.at(path))
    }

    /// Returns whether a path leads to anything.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_dir("home")?;
    /// assert!(root.exists("home")?);
    /// assert!(!root.exists("home/ann")?);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if a part of the path cannot be read.
    pub fn exists(&self, path: impl VolumePath) -> Result<bool> {
        match self.resolve(&path.volume_path(), Follow::All) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.symlink("../elsewhere", "link")?;
    /// assert_eq!(root.read_link("link")?, b"../elsewhere");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or not to a symbolic link.
    pub fn read_link(&self, path: impl VolumePath) -> Result<Vec<u8>> {
        let path = path.volume_path();
        let location = self.resolve(&path, Follow::NotLast)?;
        self.volume.read_link(location).map_err(|error| error.at(&path))
    }

    /// Returns the current entries of a directory, in the order in which they were made.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("b", "")?;
    /// root.create_dir("a")?;
    /// let names: Result<Vec<_>, _> = root.read_dir("")?.map(|entry| entry.map(|entry| entry.shown())).collect();
    /// assert_eq!(names?, ["b", "a"]);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or not to a directory. Later errors are items of the
    /// iterator.
    pub fn read_dir(&self, path: impl VolumePath) -> Result<ReadDir> {
        let path = path.volume_path();
        let location = self.resolve(&path, Follow::All)?;
        let view = self.volume.view();
        let entries = view.read_dir(location);
        let entries = entries.map_err(|error| crate::Error::from(error).at(&path))?;
        Ok(ReadDir::new(view, entries))
    }

    /// Returns everything in and below a directory, the directory first, in its current state. The
    /// walk descends into subvolumes below.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_dir_all("home/ann")?;
    /// root.write("home/ann/letter", "Dear Bob")?;
    /// let mut bytes = 0;
    /// for found in root.walk("home")? {
    ///     bytes += found?.metadata.size.get();
    /// }
    /// assert!(bytes >= 8);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere. Later errors are items of the returned iterator, which
    /// continues.
    pub fn walk(&self, path: impl VolumePath) -> Result<Walk> {
        let location = self.resolve(&path.volume_path(), Follow::All)?;
        Ok(Walk::new(
            self.volume.walk(location, WalkOptions::without_content()),
        ))
    }

    /// Returns all extended attributes of the target of a path.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("photo", "")?;
    /// root.set_xattr("photo", "user.stars", b"5")?;
    /// let xattrs = root.xattrs("photo")?;
    /// assert_eq!(xattrs[0].name, b"user.stars");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or the attributes cannot be read.
    pub fn xattrs(&self, path: impl VolumePath) -> Result<Vec<Xattr>> {
        let path = path.volume_path();
        let location = self.resolve(&path, Follow::All)?;
        self.volume.xattrs(location).map_err(|error| error.at(&path))
    }

    /// Returns one extended attribute by its full name (`user.…`); `None` if it is not set.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("photo", "")?;
    /// assert_eq!(root.xattr("photo", "user.stars")?, None);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or the attribute cannot be read.
    pub fn xattr(&self, path: impl VolumePath, name: &str) -> Result<Option<Vec<u8>>> {
        let path = path.volume_path();
        let location = self.resolve(&path, Follow::All)?;
        let value = self.volume.xattr(location, name.as_bytes());
        value.map_err(|error| error.at(&path))
    }

    fn resolve(&self, path: &[u8], follow: Follow) -> Result<Location> {
        self.locate(path, follow).map_err(|error| error.at(path))
    }
}
