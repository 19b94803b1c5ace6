//! What a source hands over: one [`Entry`] for each name in the tree that is to be built.
//!
//! An entry says what a name is and all that its inode holds, but the content of a regular file: of that it says only how
//! long it is and where the source finds it again ([`FileContent`]). Entries are small, can be written to a spool and read
//! back, and borrow nothing.
//!
//! Several entries may be about one path; then their [`Precedence`] decides, and never the order in which they came:
//!
//! - of two entries that are not directories, or of which one is not, the one of higher precedence stays, and with a
//!   directory goes all below it that is of lower precedence than what took its place;
//! - two directories are one: attributes are those of the higher, what is below both is there;
//! - a [`EntryKind::Whiteout`] takes away its path, and what is below, as far as that is of lower precedence;
//! - an [`EntryKind::Opaque`] takes away what is below its path, as far as that is of lower precedence.
//!
//! Two entries of one path and one precedence are an error. A directory that is needed but that nobody named belongs to
//! root and has mode 0755 and the time of the volume.

use buttress_format::compression::CompressionMethod;

use buttress_format::{ByteCount, InodeFlags, NAME_BYTES_MAX, Timestamp};
use buttress_fs::NodeKind;
use buttress_fs::Xattr;

/// Where a name lies in the tree that is built: components joined by `/`, none of which is empty, `.` or `..`. The root is
/// empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EntryPath(Vec<u8>);

/// Why bytes are no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// It would lead out of the tree.
    #[error("a component is \"..\"")]
    LeadsOut,
    /// No name can hold this byte.
    #[error("it contains a zero byte")]
    ZeroByte,
    /// A component that no directory can hold.
    #[error("a component is too long (found {bytes} bytes, expected at most {NAME_BYTES_MAX})")]
    NameTooLong {
        /// How long it is.
        bytes: usize,
    },
}

impl EntryPath {
    /// The root of the tree.
    #[must_use]
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// Takes a path as archives and people write it: slashes at either end and doubled ones, and components `.`, mean
    /// nothing.
    ///
    /// # Errors
    /// A path that leads out of the tree, or that no directories can hold.
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

    /// The path's bytes, without a slash at either end.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The last component; empty for the root.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// Which of several entries for one path stays: the highest. Counted for each source by itself; a source that was added
/// later always takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Precedence(pub u64);

/// One name of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub path: EntryPath,
    /// Which entry of this path stays.
    pub precedence: Precedence,
    /// What it is.
    pub kind: EntryKind,
    /// What its inode holds besides. Not looked at for hard links, snapshots, whiteouts and the like.
    pub attributes: Attributes,
}

/// What a name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory; with a mark, the root of a subvolume. The root of the tree is the top-level subvolume in any case.
    Directory(Option<SubvolumeMark>),
    /// A snapshot of the subvolume at another path, as it is when the whole tree is built.
    Snapshot {
        /// The subvolume.
        of: EntryPath,
        /// What the snapshot is.
        mark: SubvolumeMark,
    },
    /// A regular file.
    File(FileContent),
    /// A symbolic link to this.
    Symlink(Vec<u8>),
    /// A device, pipe or socket.
    Node(NodeKind),
    /// Another name of what is at this path, of the same source. A chain of them is followed.
    HardLink(EntryPath),
    /// Nothing: takes away what is of lower precedence.
    Whiteout,
    /// Nothing: takes away what is of lower precedence below the directory.
    Opaque,
}

/// What a subvolume is besides a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubvolumeMark {
    /// It cannot be written.
    pub read_only: bool,
    /// It is what is mounted when nothing else is said. At most one is.
    pub default: bool,
}

/// What an inode holds besides its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// The user that owns it.
    pub uid: u32,
    /// The group that owns it.
    pub gid: u32,
    /// When its content changed last.
    pub mtime: Timestamp,
    /// When it was read, changed and made. What is `None` is the same as [`mtime`](Self::mtime): that is what makes images
    /// of equal trees equal, since reading or copying a tree changes these.
    pub atime: Option<Timestamp>,
    /// See [`atime`](Self::atime).
    pub ctime: Option<Timestamp>,
    /// See [`atime`](Self::atime).
    pub otime: Option<Timestamp>,
    /// Extended attributes, in any order, each name once.
    pub xattrs: Vec<Xattr>,
    /// Flags such as [`InodeFlags::NODATACOW`], for this inode alone.
    pub flags: InodeFlags,
    /// How the content is compressed; `None` is what the builder's options say.
    pub compression: Option<Compress>,
    /// Names with one key, of one source, are one inode: hard links whose first name the source does not know. The inode's
    /// attributes are those of the name that comes first in the tree.
    pub link: Option<LinkKey>,
}

/// How content is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compress {
    /// Not at all.
    No,
    /// With this method, where that saves a sector.
    With(CompressionMethod),
}

/// What names of one inode have in common, such as device and inode number of what they were read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey(pub u64, pub u64);

/// The content of a regular file, not read yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileContent {
    /// How long it is, holes included.
    pub size: ByteCount,
    /// How much of the content is data, if the source knows that it has holes. `None` if all of it may be data.
    pub data: Option<DataExtent>,
    /// Where the source finds it: whatever the source wants; kept and given back as it is, so better short.
    pub locator: Vec<u8>,
    /// Contents with one key, of one source, are the same bytes: they are read once and share their extents.
    pub share: Option<ShareKey>,
}

/// How much of a content is data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataExtent {
    /// The bytes of all ranges of data.
    pub bytes: ByteCount,
    /// The number of ranges.
    pub ranges: u64,
}

impl DataExtent {
    /// Returns this with one more range.
    #[must_use]
    pub const fn with_range(self, bytes: u64) -> Self {
        Self {
            bytes: self.bytes.saturating_add(ByteCount::new(bytes)),
            ranges: self.ranges.saturating_add(1),
        }
    }

    /// Returns the most bytes that the data takes in sectors. A range may begin and end in the middle of a sector.
    pub(crate) fn bytes_in_sectors(self, sector_bytes: u32) -> u64 {
        let ends = self
            .ranges
            .saturating_mul(u64::from(sector_bytes).saturating_mul(2));
        self.bytes.get().saturating_add(ends)
    }
}

/// What equal contents have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareKey(pub u128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_as_archives_write_them() {
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
