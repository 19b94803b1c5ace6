//! Entries: the output of a source, with one [`Entry`] for each name in the tree to build.
//!
//! An entry holds the kind of a name and its inode's attributes. An entry does not hold the content
//! of a regular file, only its length and the place where the source finds it ([`FileContent`]).
//! Entries are small, can be written to a spool and read back, and borrow nothing.
//!
//! Several entries may have one path. For several entries of one path, their [`Precedence`] decides
//! between them, never their order:
//!
//! - of two entries with the same path that are not both directories, the entry with the higher
//!   precedence stays. If the entry that stays replaces a directory, all entries of lower
//!   precedence below the directory disappear;
//! - two directories merge. The attributes of the directory of higher precedence apply, and the
//!   entries below both directories exist;
//! - a [`EntryKind::Whiteout`] removes its path and everything below, if of lower precedence;
//! - an [`EntryKind::Opaque`] removes everything below its path, if of lower precedence.
//!
//! Two entries with the same path and precedence are an error. A directory without an entry belongs
//! to root, and has mode 0755 and the time of the volume.

use buttress_format::compression::CompressionMethod;

use buttress_format::{ByteCount, InodeFlags, NAME_BYTES_MAX, Timestamp};
use buttress_fs::NodeKind;
use buttress_fs::Xattr;

/// The path of a name in the built tree: components joined by `/`, none of which is empty, `.` or
/// `..`. The path of the root is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EntryPath(Vec<u8>);

/// The reason why bytes are no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// The path leads out of the image's tree.
    #[error("a component is \"..\"")]
    LeadsOut,
    /// The path contains a zero byte, which no name can contain.
    #[error("it contains a zero byte")]
    ZeroByte,
    /// A component is too long for a directory.
    #[error("a component is too long (found {bytes} bytes, expected at most {NAME_BYTES_MAX})")]
    NameTooLong {
        /// The length of the component in bytes.
        bytes: usize,
    },
}

impl EntryPath {
    /// Returns the root of the tree.
    #[must_use]
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// Parses a path in the form of archives and users: leading, trailing and doubled slashes and
    /// components `.` are ignored.
    ///
    /// # Errors
    /// Fails if the path leads out of the tree, or if a directory cannot hold a component.
    pub fn new(bytes: &[u8]) -> Result<Self, PathProblem> {
        let mut path = Vec::with_capacity(bytes.len());
        for component in bytes.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err(PathProblem::LeadsOut),
                name if name.contains(&0) => return Err(PathProblem::ZeroByte),
                name if name.len() > NAME_BYTES_MAX => {
                    return Err(PathProblem::NameTooLong { bytes: name.len() });
                }
                name => {
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(name);
                }
            }
        }
        Ok(Self(path))
    }

    /// Returns the path's bytes, without slashes at the beginning and end.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if this entry is the root of the image.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last component; empty for the root.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// The precedence among entries of one path: the highest stays. The precedence compares only
/// entries of one source. A source that was added later always takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Precedence(pub u64);

/// A name of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path of the name.
    pub path: EntryPath,
    /// The precedence among entries of this path.
    pub precedence: Precedence,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The attributes of the inode. Ignored for hard links, snapshots, whiteouts and opaque marks.
    pub attributes: Attributes,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory. A directory with a mark is the root of a subvolume. The root of the tree is
    /// always the top-level subvolume.
    Directory(Option<SubvolumeMark>),
    /// A snapshot of the subvolume at another path, in its final state.
    Snapshot {
        /// The path of the subvolume to snapshot.
        of: EntryPath,
        /// The properties of the snapshot.
        mark: SubvolumeMark,
    },
    /// A regular file.
    File(FileContent),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A device, pipe or socket.
    Node(NodeKind),
    /// Another name of the entry at this path of the same source. A chain of hard links is followed
    /// to its end.
    HardLink(EntryPath),
    /// A whiteout: removes the path's entries of lower precedence.
    Whiteout,
    /// An opaque mark: removes entries of lower precedence below the directory.
    Opaque,
}

impl EntryKind {
    /// Returns true if the root of the tree can have an entry of this kind.
    #[must_use]
    pub const fn can_be_root(&self) -> bool {
        matches!(self, Self::Directory(_) | Self::Opaque | Self::Whiteout)
    }
}

/// The properties of a subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubvolumeMark {
    /// True if the subvolume is read-only.
    pub read_only: bool,
    /// True if the subvolume is the default subvolume, mounted without a `subvol=` option. At most
    /// one subvolume is the default.
    pub default: bool,
}

/// The attributes of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// The user that owns it.
    pub uid: u32,
    /// The group that owns it.
    pub gid: u32,
    /// The time of the last change of the inode's content.
    pub mtime: Timestamp,
    /// The times of access, change and creation. `None` means that the time equals
    /// [`mtime`](Self::mtime). The default makes images of equal trees equal, because reading or
    /// copying a source tree changes these times.
    pub atime: Option<Timestamp>,
    /// The time of change; see [`atime`](Self::atime).
    pub ctime: Option<Timestamp>,
    /// The time of creation; see [`atime`](Self::atime).
    pub otime: Option<Timestamp>,
    /// Extended attributes, in any order, each name once.
    pub xattrs: Vec<Xattr>,
    /// Flags such as [`InodeFlags::NODATACOW`], which apply only to this inode.
    pub flags: InodeFlags,
    /// The compression of the content; `None` means the builder's options.
    pub compression: Option<Compress>,
    /// The key of hard links whose first name the source does not know. Names of one source with
    /// one key are one inode. Names of one inode take its attributes from the first name in the
    /// tree.
    pub link: Option<LinkKey>,
}

/// The compression of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compress {
    /// No compression.
    No,
    /// Compression with this method, if it saves a sector.
    With(CompressionMethod),
}

/// The identity of an inode that several names share, such as its device and inode number at the
/// source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey(pub u64, pub u64);

/// The content of a regular file, not read yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileContent {
    /// The length in bytes, including holes.
    pub size: ByteCount,
    /// The data of the content, if the source knows its holes. `None` if all of the content may be
    /// data.
    pub data: Option<DataExtent>,
    /// The place at which the source finds the content. The source chooses the locator's form, and
    /// receives the locator back unchanged. The locator of a content should be short.
    pub locator: Vec<u8>,
    /// The identity of contents that share their extents. Contents of one source with one key have
    /// the same bytes. Contents with equal keys are read once and share their extents.
    pub share: Option<ShareKey>,
}

/// How much data a content has, in how many ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataExtent {
    /// The total bytes of all data ranges.
    pub bytes: ByteCount,
    /// The number of data ranges of the content.
    pub ranges: u64,
}

impl DataExtent {
    /// Returns this data extent with one more range of `bytes`.
    #[must_use]
    pub const fn with_range(self, bytes: u64) -> Self {
        Self {
            bytes: self.bytes.saturating_add(ByteCount::new(bytes)),
            ranges: self.ranges.saturating_add(1),
        }
    }

    /// Returns the maximum bytes that this data takes in whole sectors. A data range may begin and
    /// end inside a sector.
    pub(crate) fn bytes_in_sectors(self, sector_bytes: u32) -> u64 {
        let ends = self
            .ranges
            .saturating_mul(u64::from(sector_bytes).saturating_mul(2));
        self.bytes.get().saturating_add(ends)
    }
}

/// The identity of equal contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareKey(pub u128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_archive_form_are_normalised() {
        let path = |text: &[u8]| EntryPath::new(text).map(|path| path.as_bytes().to_vec());
        for (text, wanted) in [
            (&b"./"[..], &b""[..]),
            (b"/", b""),
            (b"", b""),
            (b"./usr//bin/", b"usr/bin"),
            (b"/etc/./passwd", b"etc/passwd"),
            (b"...", b"..."),
        ] {
            assert_eq!(path(text).as_deref(), Ok(wanted));
        }
        assert_eq!(path(b"a/../b"), Err(PathProblem::LeadsOut));
        assert_eq!(path(b"a\0b"), Err(PathProblem::ZeroByte));
        let long = vec![b'x'; 256];
        assert_eq!(path(&long), Err(PathProblem::NameTooLong { bytes: 256 }));
        assert_eq!(path(&long[1..]).unwrap().len(), 255);
    }
}
