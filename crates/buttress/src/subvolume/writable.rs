//! Making, renaming and removing files and directories by path.

mod attributes;
mod snapshots;

use super::Subvolume;
use crate::error::{Cause, Error, Result};
use crate::file::WritableFile;
use crate::path::{VolumePath, split};
use crate::volume::WritableVolume;
use buttress_format::{ByteCount, FileKind, FileOffset, SubvolumeId};
use buttress_fs::{DirEntry, Follow, Location};
use buttress_writer::WritableFilesystem;
use buttress_writer::operations::{NodeKind, RenameMode};
use std::ops::Deref;

pub use attributes::Times;
pub use snapshots::SnapshotMode;

/// The number of entries of a directory that are removed before the directory is read again.
const REMOVED_AT_ONCE: usize = 4096;

/// A subvolume or snapshot of a volume that is open for writing. Clones of this handle are cheap.
/// [`WritableSubvolume`] dereferences to [`Subvolume`], which has the calls that read.
///
/// If a snapshot is read-only, calls that change it return an error.
#[derive(Clone, Debug)]
pub struct WritableSubvolume {
    subvolume: Subvolume,
    volume: WritableVolume,
}

impl Deref for WritableSubvolume {
    type Target = Subvolume;

    fn deref(&self) -> &Subvolume {
        &self.subvolume
    }
}

impl AsRef<Subvolume> for WritableSubvolume {
    fn as_ref(&self) -> &Subvolume {
        &self.subvolume
    }
}

impl WritableSubvolume {
    pub(crate) const fn new(volume: WritableVolume, subvolume: Subvolume) -> Self {
        Self { subvolume, volume }
    }

    pub(super) fn with_id(&self, id: SubvolumeId) -> Self {
        let subvolume = Subvolume::new((*self.volume).clone(), id);
        Self::new(self.volume.clone(), subvolume)
    }

    /// Returns the subvolume's volume.
    #[must_use]
    pub const fn volume(&self) -> &WritableVolume {
        &self.volume
    }

    /// Returns the subvolume at a path below this one.
    ///
    /// # Errors
    /// Fails as [`Subvolume::subvolume`] does.
    pub fn subvolume(&self, path: impl VolumePath) -> Result<Self> {
        Ok(self.with_id(self.subvolume.subvolume(path)?.id()))
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// Fails as [`Subvolume::open`] does.
    pub fn open(&self, path: impl VolumePath) -> Result<WritableFile> {
        let path = path.volume_path();
        let location = self.resolve(&path, Follow::All)?;
        self.volume.open_file(location).map_err(|error| error.at(&path))
    }

    /// Makes the current state of a directory or any other inode durable, as `fsync(2)` does. For a
    /// directory, the changes include its added and removed names. If the path ends in a symbolic
    /// link, the call does not follow the link. The cost depends on the changes, not on the size of
    /// the directory.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_dir("mail")?;
    /// root.write("mail/tmp.1", "Dear reader")?;
    /// root.open("mail/tmp.1")?.sync()?;
    /// root.rename("mail/tmp.1", "mail/1")?;
    /// root.sync_path("mail")?; // now it is there, under this name, whatever happens
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Subvolume::metadata`] and [`WritableVolume::sync`] do.
    pub fn sync_path(&self, path: impl VolumePath) -> Result<()> {
        let path = path.volume_path();
        let location = self.resolve(&path, Follow::NotLast)?;
        let synced = self.volume.writer().log_tree().fsync(location);
        synced.map_err(|error| Error::from(error).at(&path))?;
        Ok(())
    }

    /// Makes a file with this content. An existing file keeps its inode and gets the content.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("letter", "Dear Bob")?;
    /// root.write("letter", b"Dear Carol")?;
    /// assert_eq!(root.read("letter")?, b"Dear Carol");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Self::create`] and [`WritableFile::write_at`](crate::WritableFile::write_at) do.
    pub fn write(&self, path: impl VolumePath, content: impl AsRef<[u8]>) -> Result<()> {
        let path = path.volume_path();
        let file = self.create(&*path)?;
        file.write_at(FileOffset::MIN, content.as_ref())
            .map_err(|error| error.at(&path))
    }

    /// Opens a file for writing, and makes it empty. A missing file is created.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use std::io::Write;
    ///
    /// let mut log = root.create("log")?;
    /// writeln!(log, "began").unwrap();
    /// assert_eq!(root.read_to_string("log")?, "began\n");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the directory does not exist, the path leads to anything but a file, the volume or
    /// the subvolume is read-only, or no space is free.
    pub fn create(&self, path: impl VolumePath) -> Result<WritableFile> {
        let path = path.volume_path();
        match self.resolve(&path, Follow::All) {
            Ok(location) => {
                let file = self.volume.open_file(location).map_err(|error| error.at(&path))?;
                file.set_size(ByteCount::ZERO).map_err(|error| error.at(&path))?;
                Ok(file)
            }
            Err(error) if error.is_not_found() => self.create_new(&*path),
            Err(error) => Err(error),
        }
    }

    /// Creates a file that must not exist yet, and opens it.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_new("lock")?;
    /// assert_eq!(root.create_new("lock").unwrap_err().errno(), 17); // EEXIST
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path exists already, or as [`Self::create`] does.
    pub fn create_new(&self, path: impl VolumePath) -> Result<WritableFile> {
        self.at_place(&path.volume_path(), |writer, directory, name| {
            let location = writer.create(directory, name, &self.volume.new_inode(0o666))?;
            self.volume.open_file(location)
        })
    }

    /// Makes a directory.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_dir("home")?;
    /// assert!(root.create_dir("home/ann/letters").is_err(), "home/ann is not there");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path exists already, or as [`Self::create`] does.
    pub fn create_dir(&self, path: impl VolumePath) -> Result<()> {
        self.at_place(&path.volume_path(), |writer, directory, name| {
            writer.make_directory(directory, name, &self.volume.new_inode(0o777))?;
            Ok(())
        })
    }

    /// Makes a directory and all missing directories above it.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_dir_all("home/ann/letters")?;
    /// root.create_dir_all("home/ann/letters")?; // they are there already
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if a part of the path is no directory, or as [`Self::create`] does.
    pub fn create_dir_all(&self, path: impl VolumePath) -> Result<()> {
        let path = path.volume_path();
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends: Vec<usize> = ends.map(|(at, _)| at).chain([path.len()]).collect();
        for end in ends {
            let part = path.get(..end).unwrap_or(&path);
            if split(part).1.is_empty() {
                continue;
            }
            match self.metadata(part) {
                Ok(metadata) if metadata.is_directory() => {}
                Ok(_) => {
                    let error = buttress_fs::Error::NotADirectory {
                        path: buttress_fs::lookup::display_path(part),
                    };
                    return Err(error.into());
                }
                Err(error) if error.is_not_found() => self.create_dir(part)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a symbolic link to `target`, which need not exist.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("target", "found")?;
    /// root.symlink("target", "link")?;
    /// assert_eq!(root.read_to_string("link")?, "found");
    /// assert_eq!(root.read_link("link")?, b"target");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path exists already, or the target is empty or too long, or as [`Self::create`]
    /// does.
    pub fn symlink(&self, target: impl VolumePath, path: impl VolumePath) -> Result<()> {
        let target = target.volume_path();
        self.at_place(&path.volume_path(), |writer, directory, name| {
            writer.make_symlink(directory, name, &self.volume.new_inode(0o777), &target)?;
            Ok(())
        })
    }

    /// Makes a device node, a pipe or a socket.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::{DeviceNumber, NodeKind};
    ///
    /// let null = DeviceNumber { major: 1, minor: 3 };
    /// root.create_node("null", NodeKind::CharacterDevice(null), 0o666)?;
    /// assert_eq!(root.metadata("null")?.device, Some(null));
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path exists already, or the format cannot hold the device number, or as
    /// [`Self::create`] does.
    pub fn create_node(&self, path: impl VolumePath, kind: NodeKind, mode: u32) -> Result<()> {
        self.at_place(&path.volume_path(), |writer, directory, name| {
            writer.make_node(directory, name, &self.volume.new_inode(mode), kind)?;
            Ok(())
        })
    }

    /// Adds another name to a file.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("one", "the same")?;
    /// root.hard_link("one", "two")?;
    /// assert_eq!(root.metadata("two")?.nlink, 2);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if `original` is a directory or does not exist, or `path` exists already, or as
    /// [`Self::create`] does.
    pub fn hard_link(&self, original: impl VolumePath, path: impl VolumePath) -> Result<()> {
        let location = self.resolve(&original.volume_path(), Follow::NotLast)?;
        self.at_place(&path.volume_path(), |writer, directory, name| {
            Ok(writer.link(location, directory, name)?)
        })
    }

    /// Renames a file or directory, as `rename(2)` does: an existing entry of the new name is
    /// replaced.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("config.new", "better")?;
    /// root.write("config", "good")?;
    /// // Whoever looks finds the one or the other, and never nothing.
    /// root.rename("config.new", "config")?;
    /// assert_eq!(root.read_to_string("config")?, "better");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as `rename(2)` does, for instance between subvolumes, or for a directory that would
    /// move into itself.
    pub fn rename(&self, from: impl VolumePath, to: impl VolumePath) -> Result<()> {
        self.rename_with(&from.volume_path(), &to.volume_path(), RenameMode::Replace)
    }

    /// Renames a file or directory if the new name does not exist yet.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("upload.part", "all of it")?;
    /// root.write("upload", "somebody was faster")?;
    /// assert_eq!(root.rename_new("upload.part", "upload").unwrap_err().errno(), 17); // EEXIST
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the new path exists already, or as [`Self::rename`] does.
    pub fn rename_new(&self, from: impl VolumePath, to: impl VolumePath) -> Result<()> {
        self.rename_with(&from.volume_path(), &to.volume_path(), RenameMode::NoReplace)
    }

    /// Exchanges the entries at two paths atomically.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_dir_all("live/site")?;
    /// root.create_dir_all("staged/site-2")?;
    /// root.exchange("live", "staged")?;
    /// assert!(root.exists("live/site-2")?);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if one of the paths leads nowhere, or as [`Self::rename`] does.
    pub fn exchange(&self, one: impl VolumePath, other: impl VolumePath) -> Result<()> {
        self.rename_with(&one.volume_path(), &other.volume_path(), RenameMode::Exchange)
    }

    fn rename_with(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        let (old_directory, old_name) = self.place(from)?;
        self.at_place(to, |writer, directory, name| {
            Ok(writer.rename(old_directory, old_name, directory, name, mode)?)
        })
    }

    /// Copies the content of a file to another file of the volume, which is created or replaced.
    /// Both files share their extents, so the copy costs neither time nor space at any size.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("original", vec![1; 100_000])?;
    /// let copied = root.copy("original", "copy")?;
    /// assert_eq!(copied.get(), 100_000);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Subvolume::open`] and [`Self::create`] do, or if both paths lead to the same
    /// file.
    pub fn copy(&self, from: impl VolumePath, to: impl VolumePath) -> Result<ByteCount> {
        let (from, to) = (from.volume_path(), to.volume_path());
        let source = self.open(&*from)?;
        if let Ok(location) = self.resolve(&to, Follow::All)
            && location == source.location()
        {
            let error = buttress_fs::Error::Invalid {
                what: "a file cannot be copied onto itself",
            };
            return Err(Error::from(error).at(&to));
        }
        let target = self.create(&*to)?;
        let size = source.size()?;
        target
            .copy_range(&source, FileOffset::MIN, size, FileOffset::MIN)
            .map_err(|error| error.at(&to))
    }

    /// Removes a name of anything but a directory.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("old", "")?;
    /// root.remove_file("old")?;
    /// assert!(root.remove_file("old").unwrap_err().is_not_found());
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere or to a directory, or the volume or the subvolume is
    /// read-only.
    pub fn remove_file(&self, path: impl VolumePath) -> Result<()> {
        self.at_place(&path.volume_path(), |writer, directory, name| {
            Ok(writer.unlink(directory, name)?)
        })
    }

    /// Removes an empty directory.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_dir_all("a/b")?;
    /// assert_eq!(root.remove_dir("a").unwrap_err().errno(), 39); // ENOTEMPTY
    /// root.remove_dir("a/b")?;
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, to no directory, to a directory that is not empty, or to a
    /// subvolume.
    pub fn remove_dir(&self, path: impl VolumePath) -> Result<()> {
        self.at_place(&path.volume_path(), |writer, directory, name| {
            Ok(writer.remove_directory(directory, name)?)
        })
    }

    /// Removes a directory with its whole content. If the directory contains a subvolume, the
    /// removal stops at this subvolume.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_dir_all("cache/deep/deeper")?;
    /// root.write("cache/deep/file", "")?;
    /// root.remove_dir_all("cache")?;
    /// assert!(!root.exists("cache")?);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Self::remove_dir`] does. If the call fails, entries that were already removed
    /// stay removed.
    pub fn remove_dir_all(&self, path: impl VolumePath) -> Result<()> {
        let path = path.volume_path();
        let writer = self.volume.writer();
        let (parent, name) = self.place(&path)?;
        let entry = writer.live().lookup(parent, name)?;
        let Some(entry) = entry.filter(|entry| entry.kind == FileKind::Directory) else {
            return self.remove_dir(&*path);
        };
        let mut levels = vec![Level::new(parent, entry)];
        while let Some(level) = levels.last_mut() {
            if level.entries.is_empty() {
                let view = self.volume.view();
                let batch = view.read_dir(level.directory)?.take(REMOVED_AT_ONCE);
                level.entries = batch.collect::<buttress_fs::Result<_>>()?;
            }
            let directory = level.directory;
            match level.entries.pop() {
                // Removing the name of another subvolume's root returns an error.
                Some(entry) if entry.kind == FileKind::Directory && !entry.target.is_subvolume_root() => {
                    levels.push(Level::new(directory, entry));
                }
                Some(entry) if entry.kind == FileKind::Directory => {
                    writer.remove_directory(directory, &entry.name)?;
                }
                Some(entry) => writer.unlink(directory, &entry.name)?,
                None => {
                    if let Some(level) = levels.pop() {
                        let removed = writer.remove_directory(level.parent, &level.name);
                        removed.map_err(|error| Error::from(error).at(&level.name))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the directory for a path's last name, and that name.
    fn place<'a>(&self, path: &'a [u8]) -> Result<(Location, &'a [u8])> {
        let (directory, name) = split(path);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::from(Cause::NoName).at(path));
        }
        Ok((self.resolve(directory, Follow::All)?, name))
    }

    /// Runs `body` on the parent directory and the last name of a path. Errors of `body` include
    /// the path.
    fn at_place<T>(
        &self,
        path: &[u8],
        act: impl FnOnce(&WritableFilesystem, Location, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let writer = self.volume.writer();
        let (directory, name) = self.place(path)?;
        act(writer, directory, name).map_err(|error| error.at(path))
    }
}

/// A directory that is being removed.
struct Level {
    directory: Location,
    /// The parent directory, and the name in it.
    parent: Location,
    name: Vec<u8>,
    /// The entries of the last read that are still to be removed.
    entries: Vec<DirEntry>,
}

impl Level {
    fn new(parent: Location, entry: DirEntry) -> Self {
        Self {
            directory: entry.target,
            parent,
            name: entry.name,
            entries: Vec::new(),
        }
    }
}
