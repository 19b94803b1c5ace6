//! Listings: the entries of one directory, and everything below a directory.

use crate::error::{Error, Result};
use buttress_format::FileKind;
use buttress_fs::{Filesystem, Location, Metadata, Name, WalkItem};
use std::ffi::OsStr;
#[cfg(not(unix))]
use std::ffi::OsString;

/// The entries of a directory, without `.` and `..`. An unreadable entry is an item with the error,
/// and the listing continues after it if possible.
#[derive(Debug)]
pub struct ReadDir {
    view: Filesystem,
    entries: buttress_fs::ReadDir,
}

impl ReadDir {
    pub(crate) const fn new(view: Filesystem, entries: buttress_fs::ReadDir) -> Self {
        Self { view, entries }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirectoryEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = match self.entries.next()? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error.into())),
        };
        Some(Ok(DirectoryEntry {
            view: self.view.clone(),
            #[cfg(not(unix))]
            unicode_name: String::from_utf8_lossy(&entry.name).into_owned().into(),
            name: entry.name,
            kind: entry.kind,
            target: entry.target,
        }))
    }
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirectoryEntry {
    view: Filesystem,
    name: Vec<u8>,
    /// The name with U+FFFD for bytes that are not UTF-8.
    #[cfg(not(unix))]
    unicode_name: OsString,
    kind: FileKind,
    target: Location,
}

impl DirectoryEntry {
    /// Returns the name. A volume may contain any name: escape the name before it goes to a
    /// terminal, as [`DirectoryEntry::shown`] does.
    ///
    /// On systems other than Unix, names are Unicode, and U+FFFD replaces bytes that are not UTF-8.
    /// [`DirectoryEntry::name_bytes`] returns the unchanged name.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        #[cfg(unix)]
        {
            std::os::unix::ffi::OsStrExt::from_bytes(&self.name)
        }
        #[cfg(not(unix))]
        &self.unicode_name
    }

    /// Returns the name's bytes.
    #[must_use]
    pub fn name_bytes(&self) -> &[u8] {
        &self.name
    }

    /// Returns the name for display: characters that could control a terminal are escaped.
    #[must_use]
    pub fn shown(&self) -> String {
        Name(self.name.clone()).to_string()
    }

    /// Returns the file type.
    #[must_use]
    pub const fn kind(&self) -> FileKind {
        self.kind
    }

    /// Returns whether the entry is the root of a subvolume.
    #[must_use]
    pub fn is_subvolume(&self) -> bool {
        self.target.is_subvolume_root() && self.target.placeholder().is_none()
    }

    /// Returns the attributes as `lstat(2)` does, as of the moment at which the listing began.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("data", "0123456789")?;
    /// for entry in root.read_dir("")? {
    ///     let entry = entry?;
    ///     println!("{} {}", entry.shown(), entry.metadata()?.size);
    /// }
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the inode cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        let metadata = self.view.metadata(self.target);
        metadata.map_err(|error| Error::from(error).at(&self.name))
    }
}

/// The entries of a directory and of all directories below it. An unreadable part is an item with
/// the error, and the walk continues.
#[derive(Debug)]
pub struct Walk {
    walk: buttress_fs::Walk,
}

impl Walk {
    pub(super) const fn new(walk: buttress_fs::Walk) -> Self {
        Self { walk }
    }
}

impl Iterator for Walk {
    type Item = Result<Found>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.walk.next()? {
                WalkItem::Entry(entry) => {
                    return Some(Ok(Found {
                        path: entry.path(),
                        hard_link: entry.hard_link.as_deref().map(<[u8]>::to_vec),
                        metadata: entry.record.metadata,
                    }));
                }
                WalkItem::Failed(failed) => return Some(Err(Error::from(failed.error).at(&failed.path))),
                WalkItem::Enter(_) | WalkItem::Leave(_) => {}
            }
        }
    }
}

/// An item of a walk.
#[derive(Clone, Debug)]
pub struct Found {
    /// The path from the start of the walk, without slashes at its ends; empty for the start
    /// itself.
    pub path: Vec<u8>,
    /// For another name of a file that the walk already returned: the earlier path.
    pub hard_link: Option<Vec<u8>>,
    /// The attributes, as `lstat(2)` returns them.
    pub metadata: Metadata,
}

impl Found {
    /// Returns the path for display: characters that could control a terminal are escaped.
    #[must_use]
    pub fn shown(&self) -> String {
        Name(self.path.clone()).to_string()
    }
}
