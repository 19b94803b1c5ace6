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

mod balance_refusal;
mod corruption;

use crate::location::Location;
use buttress_format::printable::Printable;
use buttress_format::{ByteCount, ErrorKind, FileOffset, Logical, SubvolumeId, TreeId};
use buttress_volume::WriteRefusal;
use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use balance_refusal::BalanceRefusal;
pub use buttress_exact::defect::{self, Defect};
pub use corruption::Corruption;

/// The result of a call on the file system.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Bytes of a name or path as people read them: what is not printable is escaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub Vec<u8>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0).fmt(f)
    }
}

/// A path in a message.
fn shown(path: &Path) -> Printable<'_> {
    Printable(path.as_os_str().as_encoded_bytes())
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
    #[error("{}: no such file or directory", shown(.path))]
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
    #[error("{}: not a directory", shown(.path))]
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
    #[error("{}: too many levels of symbolic links (limit {limit})", shown(.path))]
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
    /// There is no space.
    #[error(
        "no space left for {wanted} bytes of {what}{}",
        pinned_note(*.pinned_by_readers)
    )]
    NoSpace {
        /// What the room was for.
        what: &'static str,
        /// How much was asked for.
        wanted: ByteCount,
        /// What was freed, and waits because readers hold older states.
        pinned_by_readers: ByteCount,
    },
    /// The devices have no space: the file system that holds an image is full, or its quota is used up. The content
    /// stays dirty in memory, or the call was refused.
    #[error("{0}; free space there and retry")]
    OutOfHostSpace(buttress_device::IoError),
    /// The volume is in a state, or has a feature, that is not written.
    #[error(transparent)]
    WritingRefused(#[from] WritingRefusal),
    /// A balance cannot start, resume or end.
    #[error(transparent)]
    BalanceRefused(#[from] BalanceRefusal),
    /// The log of what was synced after the last commit cannot be replayed.
    #[error(
        "the log of what was synced after the last commit (root {logical}) cannot be replayed: {cause}; the volume can be \
         read as of that commit, and `buttress rescue zero-log` drops the log, and with it what was synced since"
    )]
    DamagedLog {
        /// Where the log begins.
        logical: Logical,
        /// The place and what is wrong there.
        cause: Box<Error>,
    },
    /// An earlier failure stopped writing; reading goes on.
    #[error(
        "writing has stopped after a failure: {cause}; what was not committed is lost, open the volume again"
    )]
    WritingStopped {
        /// The failure.
        cause: Arc<str>,
    },
    /// A snapshot of a subvolume that has changes which are not committed.
    #[error("subvolume {subvolume} has changes that are not committed; commit before taking a snapshot")]
    SnapshotOfDirty {
        /// The subvolume.
        subvolume: SubvolumeId,
    },
    /// The name, or the attribute, is there already.
    #[error("\"{name}\" exists already")]
    Exists {
        /// The name.
        name: Name,
    },
    /// A directory that should go, or give way, has entries; or it is a subvolume.
    #[error("{location}: the directory is not empty")]
    NotEmpty {
        /// The directory.
        location: Location,
    },
    /// A subvolume that should go holds another one.
    #[error("subvolume {subvolume} holds subvolume {nested}, \"{name}\"")]
    HoldsSubvolume {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The first one in it.
        nested: SubvolumeId,
        /// Its name.
        name: Name,
    },
    /// A name or a move would join two subvolumes.
    #[error("the name would lead from one subvolume into another")]
    CrossesSubvolumes,
    /// A rule that holds for every caller forbids it.
    #[error("{location}: not permitted: {why}")]
    NotPermitted {
        /// What was to be changed.
        location: Location,
        /// The rule.
        why: &'static str,
    },
    /// A rule on what inodes of one kind can have forbids it.
    #[error("{location}: access denied: {why}")]
    AccessDenied {
        /// What was to be changed.
        location: Location,
        /// The rule.
        why: &'static str,
    },
    /// The subvolume is read-only.
    #[error("subvolume {subvolume} is read-only")]
    ReadOnlySubvolume {
        /// The subvolume.
        subvolume: SubvolumeId,
    },
    /// No attribute with this name.
    #[error("there is no attribute \"{name}\"")]
    AttributeNotFound {
        /// The name.
        name: Name,
    },
    /// An attribute that does not fit.
    #[error("the attribute \"{name}\" is too large, or there are too many with the same hash")]
    AttributeTooLarge {
        /// The name.
        name: Name,
    },
    /// An attribute that inodes of this kind cannot have.
    #[error("{location}: inodes of this kind have no such attribute")]
    AttributesUnsupported {
        /// The inode.
        location: Location,
    },
    /// So many names of a directory have the same hash that no other fits beside them.
    #[error("\"{name}\" has the hash of too many other names of the directory")]
    HashCollision {
        /// The name.
        name: Name,
    },
    /// What was asked for makes no sense.
    #[error("invalid: {what}")]
    Invalid {
        /// What.
        what: &'static str,
    },
    /// A limit of the format is reached.
    #[error("the limit on the number of {what} is reached")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
    },
    /// An account of space that would take more memory than its bound.
    #[error("there are more than {limit} {what}: more than the account of space keeps in memory")]
    AccountingTooBig {
        /// What there is too much of.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// A name that no entry can have.
    #[error(transparent)]
    Name(#[from] buttress_format::NameProblem),
    /// Something that this program itself keeps true does not hold: reported instead of writing what may be wrong.
    #[error(transparent)]
    Defect(Box<Defect>),
    /// Deleted subvolumes that cannot be dropped, each with what stands in the way. All others were.
    #[error("{}; `buttress check` tells all that is wrong with the volume", not_dropped(.failures))]
    NotDropped {
        /// The subvolumes and their errors, in the order in which they were tried.
        failures: Vec<(SubvolumeId, Error)>,
    },
    /// An extent that no copy gives intact, so it stays in its block group.
    #[error(
        "block group {group}: the extent of {length} bytes at {logical} has no intact copy{}; delete its files or write them \
         again, and retry: {cause}",
        used_by(.users)
    )]
    NotMoved {
        /// The block group.
        group: Logical,
        /// The extent.
        logical: Logical,
        /// Its length on disk.
        length: ByteCount,
        /// Files that use it, in all subvolumes: the first ones.
        users: Vec<Location>,
        /// The attempts to read it.
        cause: Box<Error>,
    },
    /// The job was cancelled by its caller.
    #[error("cancelled")]
    Cancelled,
}

/// Why a volume is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WritingRefusal {
    /// Features that only readers may ignore.
    #[error(
        "the volume cannot be written: it has compat_ro features that this version does not know ({})",
        .names.join(", ")
    )]
    CompatRo {
        /// Those that are not known, by name.
        names: Vec<String>,
    },
    /// A feature that is read, not written.
    #[error("the volume cannot be written: {name} is not supported for writing")]
    Feature {
        /// The feature.
        name: &'static str,
    },
    /// A state in which it must not be changed.
    #[error("the volume cannot be written: it has {name}; {remedy}")]
    State {
        /// The state.
        name: &'static str,
        /// What ends it.
        remedy: &'static str,
    },
    /// A device that missed commits has no place for the stripes that have to move.
    #[error(
        "{device} is not brought up to date: {needed} bytes of its stripes have to move (found {found} bytes unallocated that its \
         own state does not use); it stays as it was, and the volume continues without it. To replace it, run \
         `buttress replace start` with another device"
    )]
    NoPlaceOnDevice {
        /// The device's name.
        device: String,
        /// Bytes of the stripes that have to move.
        needed: u64,
        /// Bytes that they could move to.
        found: u64,
    },
    /// A seed: sprouts depend on it.
    #[error(
        "the volume cannot be written: it is a seed, and others may have sprouted from it; add a device to it in the \
         kernel's mount for one that can, or take the flag away with `btrfstune -S 0`"
    )]
    Seed,
    /// An image without data.
    #[error(
        "the volume cannot be written: it is an image of metadata, which holds none of the data that its files have; \
         it is there to be looked at"
    )]
    MetadataImage,
    /// btrfstune was cut off half way.
    #[error("the volume cannot be written: a change of {what} was begun and not ended; {remedy}")]
    Unfinished {
        /// What was being changed.
        what: &'static str,
        /// How it is brought to its end.
        remedy: &'static str,
    },
    /// Its devices or chunks are not as they should be.
    #[error("the volume cannot be written: {notice}")]
    Devices {
        /// In what way.
        notice: Box<buttress_volume::Notice>,
    },
    /// Only a copy of the superblock is left, because the device was made into something else.
    #[error(
        "the volume cannot be written: {device} seems to hold {found} now; what is left of btrfs on it is a copy of \
         the superblock"
    )]
    Overwritten {
        /// The device's name.
        device: String,
        /// What it seems to hold.
        found: &'static str,
    },
}

fn pinned_note(pinned: ByteCount) -> String {
    if pinned == ByteCount::ZERO {
        String::new()
    } else {
        format!(" ({pinned} bytes were freed, but wait for readers of older states)")
    }
}

fn used_by(users: &[Location]) -> String {
    if users.is_empty() {
        return String::new();
    }
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    format!(", used by {}", users.join(", "))
}

fn not_dropped(failures: &[(SubvolumeId, Error)]) -> String {
    let told: Vec<String> = failures
        .iter()
        .map(|(subvolume, error)| format!("deleted subvolume {subvolume} cannot be dropped: {error}"))
        .collect();
    told.join("; ")
}

impl From<Defect> for Error {
    fn from(defect: Defect) -> Self {
        Self::Defect(Box::new(defect))
    }
}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(Box::new(corruption))
    }
}

/// Numbers of the errors of the operating system, as Linux has them on every architecture that matters here.
mod number {
    pub(super) const EPERM: i32 = 1;
    pub(super) const EIO: i32 = 5;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EXDEV: i32 = 18;
    pub(super) const EACCES: i32 = 13;
    pub(super) const ENOTEMPTY: i32 = 39;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EOVERFLOW: i32 = 75;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EINTR: i32 = 4;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EDQUOT: i32 = 122;
    pub(super) const EMLINK: i32 = 31;
    pub(super) const ENOTCONN: i32 = 107;
    pub(super) const EINPROGRESS: i32 = 115;
    pub(super) const EROFS: i32 = 30;
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
            Self::Corrupt(_) | Self::Defect(_) => ErrorKind::Corrupt,
            Self::Tree(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Io(_) => ErrorKind::Io,
            Self::UnknownEncoding { .. } | Self::WritingRefused(_) => ErrorKind::Unsupported,
            Self::WritingStopped { .. } => ErrorKind::Io,
            Self::DamagedLog { cause, .. } | Self::NotMoved { cause, .. } => cause.kind(),
            Self::NotDropped { failures } => failures
                .first()
                .map_or(ErrorKind::Corrupt, |(_, error)| error.kind()),
            _ => ErrorKind::Caller,
        }
    }

    /// Returns whether an invariant of this program is broken, in this layer or one below.
    #[must_use]
    pub fn is_defect(&self) -> bool {
        match self {
            Self::Defect(_) => true,
            Self::Tree(error) => error.is_defect(),
            Self::Volume(error) => error.is_defect(),
            Self::DamagedLog { cause, .. } => cause.is_defect(),
            _ => false,
        }
    }

    /// Returns the request for which a device had no space: a disk is full, or a quota is used up. Writing continues
    /// after it, and the same call can succeed once the host has space again.
    #[must_use]
    pub const fn out_of_host_space(&self) -> Option<&buttress_device::IoError> {
        match self {
            Self::OutOfHostSpace(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns whether the volume or its host has no space.
    #[must_use]
    pub const fn is_out_of_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::OutOfHostSpace(_))
    }

    /// The failed request that the error is about, if it was one for want of space on the host.
    fn lacks_host_space(&self) -> Option<&buttress_device::IoError> {
        let failure = match self {
            Self::OutOfHostSpace(failure) => failure,
            Self::Io(failure) | Self::Volume(buttress_volume::Error::Io(failure)) => failure,
            Self::Volume(buttress_volume::Error::Write(WriteRefusal::Needed(needed))) => &needed.failure,
            _ => return None,
        };
        failure.is_out_of_space().then_some(failure)
    }

    /// The block without which a look under the edit lock could not go on: to be read without the lock.
    pub fn missing_block(&self) -> Option<buttress_tree::BlockPointer> {
        match self {
            Self::Tree(error) => error.would_block().copied(),
            _ => None,
        }
    }

    /// The number that a system call would fail with: the one place where errors are mapped.
    #[must_use]
    pub fn errno(&self) -> i32 {
        if let Some(failure) = self.lacks_host_space() {
            return match failure.kind {
                std::io::ErrorKind::QuotaExceeded => number::EDQUOT,
                _ => number::ENOSPC,
            };
        }
        if self.is_defect() {
            return number::EIO;
        }
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
            Self::TooBig { .. } | Self::AccountingTooBig { .. } => number::E2BIG,
            Self::Cancelled => number::EINTR,
            Self::NoSpace { .. } | Self::AttributeTooLarge { .. } => number::ENOSPC,
            Self::Exists { .. } => number::EEXIST,
            Self::NotEmpty { .. } | Self::HoldsSubvolume { .. } => number::ENOTEMPTY,
            Self::CrossesSubvolumes => number::EXDEV,
            Self::NotPermitted { .. } => number::EPERM,
            Self::AccessDenied { .. } => number::EACCES,
            Self::ReadOnlySubvolume { .. } => number::EROFS,
            Self::AttributeNotFound { .. } => number::ENODATA,
            Self::AttributesUnsupported { .. } => number::EOPNOTSUPP,
            Self::HashCollision { .. } => number::EOVERFLOW,
            Self::Invalid { .. } => number::EINVAL,
            Self::TooMany { .. } => number::EMLINK,
            Self::SnapshotOfDirty { .. } => number::EAGAIN,
            Self::Name(_) => number::EINVAL,
            Self::WritingRefused(_) | Self::WritingStopped { .. } => number::EROFS,
            Self::BalanceRefused(refusal) => match refusal {
                BalanceRefusal::InProgress | BalanceRefusal::Running => number::EINPROGRESS,
                BalanceRefusal::NotInProgress => number::ENOTCONN,
                _ => number::EINVAL,
            },
            Self::Defect(_) => number::EIO,
            Self::DamagedLog { cause, .. } | Self::NotMoved { cause, .. } => cause.errno(),
            Self::NotDropped { failures } => failures
                .first()
                .map_or(number::EUCLEAN, |(_, error)| error.errno()),
            // Lost data is an I/O error to a reader, broken metadata is not.
            Self::Corrupt(corruption) => match **corruption {
                Corruption::DataChecksum { .. }
                | Corruption::DataChecksumMissing { .. }
                | Corruption::Decompression { .. } => number::EIO,
                _ => number::EUCLEAN,
            },
            Self::Tree(_)
            | Self::Volume(_)
            | Self::Io(_)
            | Self::OutOfHostSpace(_)
            | Self::UnknownEncoding { .. } => match self.kind() {
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
