//! Listings: the entries of one directory, and everything below one.

use crate::error::{Error, Result};
use buttress_format::FileKind;
use buttress_fs::{Filesystem, Location, Metadata, Name, WalkItem};
use std::ffi::OsStr;
#[cfg(not(unix))]
use std::ffi::OsString;

/// The entries of a directory, without `.` and `..`. What cannot be read is an item that says so; the listing goes on
/// behind it where it can.
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
    /// The name. It comes from the volume: escape it before it goes to a terminal, as [`DirectoryEntry::shown`] does.
    ///
    /// Names of systems other than Unix are Unicode. There U+FFFD takes the place of bytes that are not UTF-8;
    /// [`DirectoryEntry::name_bytes`] has the name as it is.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        #[cfg(unix)]
        {
            std::os::unix::ffi::OsStrExt::from_bytes(&self.name)
        }
        #[cfg(not(unix))]
        &self.unicode_name
    }

    /// The name's bytes.
    #[must_use]
    pub fn name_bytes(&self) -> &[u8] {
        &self.name
    }

    /// The name for people: what could command a terminal is escaped.
    #[must_use]
    pub fn shown(&self) -> String {
        Name(self.name.clone()).to_string()
    }

    /// The kind of file.
    #[must_use]
    pub const fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether it is the root of a subvolume.
    #[must_use]
    pub fn is_subvolume(&self) -> bool {
        self.target.is_subvolume_root() && self.target.placeholder().is_none()
    }

    /// What `stat(2)` says, of a symbolic link itself; as of the moment at which the listing began.
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
    /// The inode cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        let metadata = self.view.metadata(self.target);
        metadata.map_err(|error| Error::from(error).at(&self.name))
    }
}

/// Everything below a directory. What cannot be read is an item that says so, and the walk goes on.
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

/// Something that a walk found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its path from where the walk began, without slashes at its ends; empty for the beginning itself.
    pub path: Vec<u8>,
    /// For a further name of a file that came already: the path under which it came.
    pub hard_link: Option<Vec<u8>>,
    /// What `stat(2)` says.
    pub metadata: Metadata,
}

impl Found {
    /// The path for people: what could command a terminal is escaped.
    #[must_use]
    pub fn shown(&self) -> String {
        Name(self.path.clone()).to_string()
    }
}
