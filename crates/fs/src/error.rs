//! The errors of the file system, of four kinds that are never mixed.
//!
//! - **Corrupt**: bytes on disk break a rule; [`Corruption`] has one variant per check, with the place and the
//!   numbers. Errors of the layers below are carried through unchanged.
//! - **Unsupported**: the feature by name.
//! - **Io**: a device failed, with its name and the offset.
//! - **Caller**: what was asked for is not there, or cannot be done.
//!
//! [`Error::kind`] tells which, and [`Error::errno`] is the one place where errors become numbers of the
//! operating system.

use crate::location::Location;
use buttress_format::{
    ByteCount, ErrorKind, FileOffset, InodeNumber, ItemError, Key, Logical, SubvolumeId, TreeId,
};
use core::fmt;
use std::path::PathBuf;

/// The result of a call on the file system.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Bytes of a name or path as people read them: what is not printable is escaped.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name(pub Vec<u8>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if character.is_control() {
                    write!(f, "{}", character.escape_default())?;
                } else {
                    write!(f, "{character}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

/// An error of the file system.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes on disk that were read without fault break a rule of the format.
    #[error(transparent)]
    Corrupt(#[from] Box<Corruption>),
    /// A tree block could not be had, or a layer below found fault.
    #[error(transparent)]
    Tree(#[from] buttress_tree::Error),
    /// An address could not be read, or the volume could not be put together.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// A device could not be opened.
    #[error(transparent)]
    Io(#[from] buttress_device::IoError),
    /// A file uses an encoding that no btrfs defines so far.
    #[error("{location}, offset {offset}: {encoding} {value} is not supported")]
    UnknownEncoding {
        /// The file.
        location: Location,
        /// Where in the file the extent begins.
        offset: FileOffset,
        /// The field: `encryption` or `encoding`.
        encoding: &'static str,
        /// Its value.
        value: u16,
    },
    /// No such file or directory.
    #[error("{}: no such file or directory", .path.display())]
    NotFound {
        /// The path as it was asked for, up to the name that is missing.
        path: PathBuf,
    },
    /// No subvolume with this id.
    #[error("there is no subvolume with id {subvolume}")]
    SubvolumeNotFound {
        /// The id that was asked for.
        subvolume: SubvolumeId,
    },
    /// No tree with this id.
    #[error("there is no tree with id {tree}")]
    TreeNotFound {
        /// The id that was asked for.
        tree: TreeId,
    },
    /// No inode with this number in the subvolume.
    #[error("{location}: no such inode")]
    InodeNotFound {
        /// What was asked for.
        location: Location,
    },
    /// No extent covers this logical address.
    #[error("no extent covers logical address {logical}")]
    ExtentNotFound {
        /// The address that was asked for.
        logical: Logical,
    },
    /// A name in the middle of a path is not a directory, or a directory was needed.
    #[error("{}: not a directory", .path.display())]
    NotADirectory {
        /// The path up to that name.
        path: PathBuf,
    },
    /// The content of a directory was asked for.
    #[error("{location}: is a directory")]
    IsADirectory {
        /// The directory.
        location: Location,
    },
    /// The target of something that is no symlink was asked for.
    #[error("{location}: not a symbolic link")]
    NotASymlink {
        /// What was asked for.
        location: Location,
    },
    /// The content of a device node, pipe or socket was asked for.
    #[error("{location}: not a regular file")]
    NotAFile {
        /// What was asked for.
        location: Location,
    },
    /// A path leads through more symlinks than the limit.
    #[error("{}: too many levels of symbolic links (limit {limit})", .path.display())]
    TooManySymlinks {
        /// The path as it was asked for.
        path: PathBuf,
        /// The limit.
        limit: u32,
    },
    /// A name in a path, or a whole path, is longer than the system allows.
    #[error("a name or path of {length_bytes} bytes is too long (limit {limit_bytes})")]
    NameTooLong {
        /// Its length.
        length_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// More than the stated amount of memory would be needed to answer.
    #[error("{what} of {location} exceed the limit of {limit}")]
    TooBig {
        /// What grew too large.
        what: &'static str,
        /// Where.
        location: Location,
        /// The limit, with its unit.
        limit: ByteCount,
    },
    /// The job was cancelled by its caller.
    #[error("cancelled")]
    Cancelled,
}

/// A rule of the format that the volume breaks above the level of single items.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corruption {
    /// An item fails its checks although its block passed them.
    #[error("tree {tree}: {error}")]
    Item {
        /// The tree that holds the item.
        tree: TreeId,
        /// The check.
        error: ItemError,
    },
    /// An item that must exist does not.
    #[error("tree {tree}: item {key} is missing ({what})")]
    ItemMissing {
        /// The tree.
        tree: TreeId,
        /// The key.
        key: Key,
        /// What the item would say.
        what: &'static str,
    },
    /// A tree that the volume needs has no root item, or one that cannot be used.
    #[error("tree {tree} has no root item")]
    TreeMissing {
        /// The tree.
        tree: TreeId,
    },
    /// The name of an entry could not be a name.
    #[error("{directory}, index {index}: the entry's name \"{name}\" is not a valid name")]
    NameInvalid {
        /// The directory that holds it.
        directory: Location,
        /// The index of the entry, 0 where it was found by hash.
        index: u64,
        /// The name.
        name: Name,
    },
    /// An entry of a directory points at something that no entry can point at.
    #[error(
        "{directory}: the entry \"{name}\" points at {target}, which is neither an inode nor a subvolume"
    )]
    EntryTargetInvalid {
        /// The directory.
        directory: Location,
        /// The name of the entry.
        name: Name,
        /// The key that it points at.
        target: Key,
    },
    /// An entry's file type differs from the mode of its inode.
    #[error("{directory}: the entry \"{name}\" says {entry_kind}, but inode {inode} has mode {mode:#o}")]
    EntryKindWrong {
        /// The directory.
        directory: Location,
        /// The name.
        name: Name,
        /// The type that the entry holds.
        entry_kind: &'static str,
        /// The inode that it points at.
        inode: InodeNumber,
        /// The mode of the inode.
        mode: u32,
    },
    /// An entry is in the index of a directory but cannot be found by name.
    #[error("{directory}: \"{name}\" has index {index} but no entry by name (DIR_ITEM is missing)")]
    DirItemMissing {
        /// The directory.
        directory: Location,
        /// The name.
        name: Name,
        /// Its index.
        index: u64,
    },
    /// An entry can be found by name but is not in the index of the directory.
    #[error("{directory}: \"{name}\" is not in the index of the directory (DIR_INDEX is missing)")]
    DirIndexMissing {
        /// The directory.
        directory: Location,
        /// The name.
        name: Name,
    },
    /// A directory is entered by an entry that is not the one that the directory itself names: following
    /// such entries could lead in circles.
    #[error("{directory}: \"{name}\" leads to directory {target}, which belongs to another place")]
    DirectoryLinkedTwice {
        /// The directory that holds the entry.
        directory: Location,
        /// The name of the entry.
        name: Name,
        /// The directory that it leads to.
        target: Location,
    },
    /// Directories that do not name their own place are so many that circles cannot be told.
    #[error("{directory}: more than {limit} directories without an INODE_REF; not entered")]
    DirectoriesUnverified {
        /// The first directory over the limit.
        directory: Location,
        /// The limit.
        limit: usize,
    },
    /// A directory lies deeper than any path can reach.
    #[error("{directory}: nested too deeply ({depth} levels, {path_bytes} bytes of path); not entered")]
    DirectoryTooDeep {
        /// The directory.
        directory: Location,
        /// How many levels lie above it.
        depth: usize,
        /// The length of its path.
        path_bytes: usize,
    },
    /// Two extents of a file overlap, or an extent ends beyond 2^64.
    #[error(
        "{location}: the extent [{offset}, +{length}) begins before {previous_end}, where the one before it ends"
    )]
    ExtentOverlap {
        /// The file.
        location: Location,
        /// Where the extent begins.
        offset: FileOffset,
        /// Its length.
        length: ByteCount,
        /// Where the extent before it ends.
        previous_end: FileOffset,
    },
    /// A compressed extent is larger than any that btrfs makes.
    #[error(
        "{location}, offset {offset}: a compressed extent of {disk_bytes} bytes for {ram_bytes} (limit {limit})"
    )]
    CompressedTooLarge {
        /// The file.
        location: Location,
        /// Where the extent begins.
        offset: FileOffset,
        /// Its size on disk.
        disk_bytes: ByteCount,
        /// Its size in memory.
        ram_bytes: ByteCount,
        /// The limit for both.
        limit: ByteCount,
    },
    /// A file range points outside its extent.
    #[error(
        "{location}, offset {offset}: [{extent_offset}, +{length}) lies outside the extent's {ram_bytes} bytes"
    )]
    ExtentOutOfBounds {
        /// The file.
        location: Location,
        /// Where the range begins in the file.
        offset: FileOffset,
        /// Where it begins in the extent.
        extent_offset: ByteCount,
        /// Its length.
        length: ByteCount,
        /// The size of the extent in memory.
        ram_bytes: ByteCount,
    },
    /// A compressed extent does not decompress.
    #[error("{location}, offset {offset}: extent at {logical}: {error}")]
    Decompression {
        /// The file.
        location: Location,
        /// Where the extent begins in the file.
        offset: FileOffset,
        /// Where it lies, 0 for inline.
        logical: Logical,
        /// What is wrong with it.
        error: buttress_format::CompressionError,
    },
    /// Data of a file for which no copy has the right checksum.
    #[error(
        "{location}, offset {offset}: {length} bytes at logical {logical} fail their checksum in every copy"
    )]
    DataChecksum {
        /// The file.
        location: Location,
        /// Where in the file the loss begins.
        offset: FileOffset,
        /// How many bytes are lost.
        length: ByteCount,
        /// Where they lie.
        logical: Logical,
    },
    /// Data of a file that should have checksums and has none.
    #[error(
        "{location}, offset {offset}: no checksums for {length} bytes at logical {logical} \
         (rescue=ignoredatacsums reads them unverified)"
    )]
    DataChecksumMissing {
        /// The file.
        location: Location,
        /// Where in the file.
        offset: FileOffset,
        /// How many bytes.
        length: ByteCount,
        /// Where they lie.
        logical: Logical,
    },
    /// A symlink without a target, or with one that is longer than a path can be.
    #[error("{location}: the symbolic link's target has {length} bytes (1 to {limit} are possible)")]
    SymlinkLength {
        /// The symlink.
        location: Location,
        /// The length of the target.
        length: ByteCount,
        /// The limit.
        limit: u64,
    },
    /// A subvolume is found at a second place, or contains itself.
    #[error("subvolume {subvolume} is reached a second time, from {directory}; not entered")]
    SubvolumeLinkedTwice {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The directory that leads to it.
        directory: Location,
    },
    /// Climbing from an inode or a subvolume to the top does not end.
    #[error("{location}: the path to the top does not end after {limit} steps")]
    ParentLoop {
        /// Where the climb began.
        location: Location,
        /// After how many steps it was given up.
        limit: usize,
    },
    /// References from the extent tree do not lead to what they say.
    #[error("extent {logical}: the reference {reference} leads nowhere")]
    BackReferenceDangling {
        /// The extent.
        logical: Logical,
        /// The reference, as text.
        reference: String,
    },
    /// An extent has more sharers than are followed.
    #[error("extent {logical}: more than {limit} blocks lead to it; its references are not followed further")]
    BackReferencesTooMany {
        /// The extent.
        logical: Logical,
        /// The limit.
        limit: usize,
    },
}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(Box::new(corruption))
    }
}

/// Numbers of the errors of the operating system, as Linux has them on every architecture that matters here.
mod number {
    pub(super) const EIO: i32 = 5;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EINTR: i32 = 4;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ELOOP: i32 = 40;
    pub(super) const EUCLEAN: i32 = 117;
    pub(super) const EOPNOTSUPP: i32 = 95;
}

impl Error {
    /// Which of the four kinds this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Corrupt(_) => ErrorKind::Corrupt,
            Self::Tree(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Io(_) => ErrorKind::Io,
            Self::UnknownEncoding { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Caller,
        }
    }

    /// The number that a system call would fail with: the one place where errors are mapped.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound { .. }
            | Self::SubvolumeNotFound { .. }
            | Self::TreeNotFound { .. }
            | Self::InodeNotFound { .. }
            | Self::ExtentNotFound { .. } => number::ENOENT,
            Self::NotADirectory { .. } => number::ENOTDIR,
            Self::IsADirectory { .. } => number::EISDIR,
            Self::NotASymlink { .. } | Self::NotAFile { .. } => number::EINVAL,
            Self::TooManySymlinks { .. } => number::ELOOP,
            Self::NameTooLong { .. } => number::ENAMETOOLONG,
            Self::TooBig { .. } => number::E2BIG,
            Self::Cancelled => number::EINTR,
            // Lost data is an I/O error to a reader, broken metadata is not.
            Self::Corrupt(corruption) => match **corruption {
                Corruption::DataChecksum { .. }
                | Corruption::DataChecksumMissing { .. }
                | Corruption::Decompression { .. } => number::EIO,
                _ => number::EUCLEAN,
            },
            Self::Tree(_) | Self::Volume(_) | Self::Io(_) | Self::UnknownEncoding { .. } => match self.kind()
            {
                ErrorKind::Corrupt => number::EUCLEAN,
                ErrorKind::Unsupported => number::EOPNOTSUPP,
                ErrorKind::Io => number::EIO,
                ErrorKind::Caller => number::EINVAL,
            },
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_without_control_bytes() {
        assert_eq!(Name(b"a\n\xff\xc3\xa4".to_vec()).to_string(), "a\\n\\xff\u{e4}");
    }

    #[test]
    fn kinds_and_numbers_agree() {
        let lost = Error::from(Corruption::DataChecksum {
            location: Location::root_of(SubvolumeId::TOP_LEVEL),
            offset: FileOffset::new(4096),
            length: ByteCount::new(4096),
            logical: Logical::new(1 << 20),
        });
        assert_eq!((lost.kind(), lost.errno()), (ErrorKind::Corrupt, 5));
        let missing = Error::NotFound {
            path: PathBuf::from("a/b"),
        };
        assert_eq!((missing.kind(), missing.errno()), (ErrorKind::Caller, 2));
        assert_eq!(std::io::Error::from(missing).kind(), std::io::ErrorKind::NotFound);
    }
}
