//! Attributes and extended attributes, by path.

use super::WritableSubvolume;
use crate::error::{Error, Result};
use crate::path::VolumePath;
use buttress_format::Timestamp;
use buttress_fs::Follow;
use buttress_writer::operations::{AttributeChanges, SetXattr};

/// Times to be set; `None` keeps a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The time of the last access.
    pub accessed: Option<Timestamp>,
    /// The time of the last change of content.
    pub modified: Option<Timestamp>,
}

impl WritableSubvolume {
    /// Sets permission bits, as `chmod(2)` does.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("script", "#!/bin/sh")?;
    /// root.set_permissions("script", 0o755)?;
    /// assert_eq!(root.metadata("script")?.mode & 0o7777, 0o755);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path does not exist, the volume or the subvolume is read-only, or `mode` has
    /// bits that are no permissions.
    pub fn set_permissions(&self, path: impl VolumePath, mode: u32) -> Result<()> {
        let changes = AttributeChanges {
            mode: Some(mode),
            ..AttributeChanges::default()
        };
        self.change(&path.volume_path(), Follow::All, &changes)
    }

    /// Sets owner and group. Changing the attributes of a symbolic link does not follow the link. A
    /// file loses its set-id bits and capabilities.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("file", "")?;
    /// root.set_owner("file", 1000, 100)?;
    /// assert_eq!(root.metadata("file")?.uid, 1000);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or the volume or the subvolume is read-only.
    pub fn set_owner(&self, path: impl VolumePath, uid: u32, gid: u32) -> Result<()> {
        let changes = AttributeChanges {
            uid: Some(uid),
            gid: Some(gid),
            ..AttributeChanges::default()
        };
        self.change(&path.volume_path(), Follow::NotLast, &changes)
    }

    /// Sets times. A symbolic link is not followed.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::{Times, Timestamp};
    ///
    /// root.write("file", "")?;
    /// let epoch = Timestamp { seconds: 0, nanoseconds: 0 };
    /// root.set_times("file", Times { modified: Some(epoch), ..Times::default() })?;
    /// assert_eq!(root.metadata("file")?.modified, epoch);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or the volume or the subvolume is read-only.
    pub fn set_times(&self, path: impl VolumePath, times: Times) -> Result<()> {
        let changes = AttributeChanges {
            accessed: times.accessed,
            modified: times.modified,
            ..AttributeChanges::default()
        };
        self.change(&path.volume_path(), Follow::NotLast, &changes)
    }

    fn change(&self, path: &[u8], follow: Follow, changes: &AttributeChanges) -> Result<()> {
        let writer = self.volume.writer();
        let location = self.resolve(path, follow)?;
        let changed = writer.set_attributes(location, changes);
        changed.map_err(|error| Error::from(error).at(path))
    }

    /// Sets an extended attribute by its full name (`user.…`).
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("photo", "")?;
    /// root.set_xattr("photo", "user.stars", b"5")?;
    /// assert_eq!(root.xattr("photo", "user.stars")?, Some(b"5".to_vec()));
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path leads nowhere, the volume or the subvolume is read-only, or the value is
    /// too long or invalid for this attribute.
    pub fn set_xattr(&self, path: impl VolumePath, name: &str, value: &[u8]) -> Result<()> {
        let path = path.volume_path();
        let writer = self.volume.writer();
        let location = self.resolve(&path, Follow::All)?;
        let set = writer.set_xattr(location, name.as_bytes(), value, SetXattr::CreateOrReplace);
        set.map_err(|error| Error::from(error).at(&path))
    }

    /// Removes an extended attribute.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("photo", "")?;
    /// root.set_xattr("photo", "user.stars", b"5")?;
    /// root.remove_xattr("photo", "user.stars")?;
    /// assert_eq!(root.xattr("photo", "user.stars")?, None);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path or the attribute does not exist, or the volume or the subvolume is
    /// read-only.
    pub fn remove_xattr(&self, path: impl VolumePath, name: &str) -> Result<()> {
        let path = path.volume_path();
        let writer = self.volume.writer();
        let location = self.resolve(&path, Follow::All)?;
        let removed = writer.remove_xattr(location, name.as_bytes());
        removed.map_err(|error| Error::from(error).at(&path))
    }
}
