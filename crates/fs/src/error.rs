//! The errors of the file system, in four kinds that are never mixed.
//!
//! - **Corrupt**: bytes on disk violate a rule. For each check, [`Corruption`] has one variant,
//!   with the place and the numbers. Errors of the layers below are passed through unchanged.
//! - **Unsupported**: the volume or the call needs an unsupported feature, which the error names.
//! - **Io**: a device failed. Such an error names the device and the offset.
//! - **Caller**: the requested object does not exist, or the operation is not possible.
//!
//! [`Error::kind`] returns the kind. Only [`Error::errno`] maps errors to numbers of the operating
//! system.

mod balance_refusal;
mod corruption;
mod quota_refusal;
mod reclaimable;

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
pub use quota_refusal::{QuotaExceeded, QuotaRefusal};
pub use reclaimable::Reclaimable;

/// The result of a call on the file system.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The bytes of a name or path, printed with unprintable characters escaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub Vec<u8>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0).fmt(f)
    }
}

/// Returns a path in the form for messages.
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
    /// Bytes on disk that were read without an error violate a rule of the format.
    #[error(transparent)]
    Corrupt(#[from] Box<Corruption>),
    /// A tree block could not be read, or a layer below found an error.
    #[error(transparent)]
    Tree(#[from] buttress_tree::Error),
    /// An address could not be read, or the volume could not be opened.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// A device could not be opened.
    #[error(transparent)]
    Io(#[from] buttress_device::IoError),
    /// A file uses an encoding that btrfs does not define so far.
    #[error("{location}, offset {offset}: {encoding} {value} is not supported")]
    UnknownEncoding {
        /// The file.
        location: Location,
        /// The offset in the file at which the extent begins.
        offset: FileOffset,
        /// The field: `encryption` or `encoding`.
        encoding: &'static str,
        /// The value of the field.
        value: u16,
    },
    /// The file or directory does not exist.
    #[error("{}: no such file or directory", shown(.path))]
    NotFound {
        /// The requested path, up to the missing name.
        path: PathBuf,
    },
    /// No subvolume has this id.
    #[error("there is no subvolume with id {subvolume}")]
    SubvolumeNotFound {
        /// The requested id.
        subvolume: SubvolumeId,
    },
    /// No tree has this id.
    #[error("there is no tree with id {tree}")]
    TreeNotFound {
        /// The requested tree id.
        tree: TreeId,
    },
    /// The subvolume has no inode with this number.
    #[error("{location}: no such inode")]
    InodeNotFound {
        /// The requested inode.
        location: Location,
    },
    /// No extent covers this logical address.
    #[error("no extent contains logical address {logical}")]
    ExtentNotFound {
        /// The requested address.
        logical: Logical,
    },
    /// A name inside a path is not a directory, or the operation needs a directory.
    #[error("{}: not a directory", shown(.path))]
    NotADirectory {
        /// The path up to that name.
        path: PathBuf,
    },
    /// The caller requested the content of a directory.
    #[error("{location}: is a directory")]
    IsADirectory {
        /// The directory.
        location: Location,
    },
    /// The caller requested the target of an inode that is no symlink.
    #[error("{location}: not a symbolic link")]
    NotASymlink {
        /// The requested inode.
        location: Location,
    },
    /// The caller requested the content of a device node, pipe or socket.
    #[error("{location}: not a regular file")]
    NotAFile {
        /// The requested inode.
        location: Location,
    },
    /// A path contains more symlinks than the limit allows.
    #[error("{}: too many levels of symbolic links (limit {limit})", shown(.path))]
    TooManySymlinks {
        /// The requested path.
        path: PathBuf,
        /// The limit.
        limit: u32,
    },
    /// A name in a path, or a whole path, is longer than the system allows.
    #[error("a name or path of {length_bytes} bytes is too long (limit {limit_bytes})")]
    NameTooLong {
        /// The length in bytes.
        length_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The result would need more memory than the limit.
    #[error("{location}: too many {what} (limit {limit})")]
    TooBig {
        /// The object that grew too large.
        what: &'static str,
        /// The inode to which the object belongs.
        location: Location,
        /// The limit, with its unit.
        limit: ByteCount,
    },
    /// The volume has no space.
    #[error(
        "no space left for {wanted} bytes of {what}{}{}",
        pinned_note(*.pinned_by_readers),
        reclaimable::remedy(.reclaimable.as_ref())
    )]
    NoSpace {
        /// The purpose of the requested space.
        what: &'static str,
        /// The requested number of bytes.
        wanted: ByteCount,
        /// The freed bytes that are pinned because views hold older states.
        pinned_by_readers: ByteCount,
        /// The balance that would return space.
        reclaimable: Option<Reclaimable>,
    },
    /// The superblock's array of system chunks has no space for one more chunk.
    #[error(
        "the superblock has no space for another system chunk: {taken} of {capacity} bytes are in use, \
         and the chunk takes {wanted}; convert system block groups to a profile with fewer stripes first"
    )]
    SystemArrayFull {
        /// The bytes of the array in use.
        taken: ByteCount,
        /// The bytes of the whole array.
        capacity: ByteCount,
        /// The fewest bytes that the new chunk takes.
        wanted: ByteCount,
    },
    /// The devices have no space: the file system that holds an image is full, or its quota is
    /// exhausted. The content of the failed write stays dirty in memory, or the call is refused.
    #[error("{0}; free space there and retry")]
    OutOfHostSpace(buttress_device::IoError),
    /// The volume is in a state, or has a feature, that forbids writing.
    #[error(transparent)]
    WritingRefused(#[from] WritingRefusal),
    /// A balance cannot start, resume or end.
    #[error(transparent)]
    BalanceRefused(#[from] BalanceRefusal),
    /// A change of quotas or of a quota group is refused.
    #[error(transparent)]
    QuotaRefused(#[from] QuotaRefusal),
    /// A quota limit refuses a write.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// The log of changes synced after the last commit cannot be replayed.
    #[error(
        "the pending log (root {logical}) cannot be replayed: {cause}. The volume is readable in the state of its last commit. To write to it, run `buttress rescue zero-log`, which deletes the log and the changes that were synced since this commit"
    )]
    DamagedLog {
        /// The address of the log's root.
        logical: Logical,
        /// The damaged place in the log, and the error there.
        cause: Box<Error>,
    },
    /// An earlier failure has stopped writing. Reading continues.
    #[error(
        "writing has stopped after a failure: {cause}. Uncommitted changes are lost; open the volume again"
    )]
    WritingStopped {
        /// The failure.
        cause: Arc<str>,
    },
    /// A snapshot was requested of a subvolume with uncommitted changes.
    #[error("subvolume {subvolume} has uncommitted changes; commit them before the snapshot")]
    SnapshotOfDirty {
        /// The subvolume.
        subvolume: SubvolumeId,
    },
    /// The name or attribute already exists.
    #[error("\"{name}\" already exists")]
    Exists {
        /// The name.
        name: Name,
    },
    /// A directory to remove or replace has entries, or is a subvolume.
    #[error("{location}: the directory is not empty")]
    NotEmpty {
        /// The directory.
        location: Location,
    },
    /// A subvolume to delete contains another subvolume.
    #[error("subvolume {subvolume} contains subvolume {nested}, \"{name}\"")]
    HoldsSubvolume {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The first of the contained subvolumes.
        nested: SubvolumeId,
        /// The name of this contained subvolume.
        name: Name,
    },
    /// A link or a rename would cross subvolumes.
    #[error("the source and the destination are in different subvolumes")]
    CrossesSubvolumes,
    /// A rule that applies to all callers forbids the change.
    #[error("{location}: not permitted: {why}")]
    NotPermitted {
        /// The inode to change.
        location: Location,
        /// The rule.
        why: &'static str,
    },
    /// A rule on the use of inodes of this kind forbids the change.
    #[error("{location}: access denied: {why}")]
    AccessDenied {
        /// The inode to change.
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
    /// The inode has no attribute with this name.
    #[error("no such attribute: \"{name}\"")]
    AttributeNotFound {
        /// The name.
        name: Name,
    },
    /// The attribute is too large.
    #[error("the attribute \"{name}\" is too large, or there are too many with the same hash")]
    AttributeTooLarge {
        /// The name.
        name: Name,
    },
    /// Inodes of this kind cannot have this attribute.
    #[error("{location}: this type of inode cannot have the attribute")]
    AttributesUnsupported {
        /// The inode.
        location: Location,
    },
    /// Too many names of a directory have the same hash to fit one item.
    #[error("\"{name}\": too many names in the directory have the same hash")]
    HashCollision {
        /// The name.
        name: Name,
    },
    /// The request is invalid.
    #[error("invalid argument: {what}")]
    Invalid {
        /// The invalid part of the request.
        what: &'static str,
    },
    /// A limit of the format is reached.
    #[error("the maximum number of {what} is reached")]
    TooMany {
        /// The objects that exceed the limit.
        what: &'static str,
    },
    /// The accounting of space would exceed its memory limit.
    #[error("too many {what} for space accounting in memory (limit {limit})")]
    AccountingTooBig {
        /// The objects that exceed the limit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// No entry can have this name.
    #[error(transparent)]
    Name(#[from] buttress_format::NameProblem),
    /// A defect: an invariant of this program is broken. The error prevents a write of possibly
    /// wrong data.
    #[error(transparent)]
    Defect(Box<Defect>),
    /// Deleted subvolumes that cannot be dropped, each with its obstacle. All deleted subvolumes
    /// except these were dropped.
    #[error("{}; to find all damage, run `buttress check`", not_dropped(.failures))]
    NotDropped {
        /// The subvolumes that were not dropped and their errors, in the order in which they were
        /// tried.
        failures: Vec<(SubvolumeId, Error)>,
    },
    /// An extent stays in its block group, because no copy of the extent is intact.
    #[error(
        "block group {group}: the extent of {length} bytes at {logical} has no intact copy{}; delete its files or write them \
         again, and retry: {cause}",
        used_by(.users)
    )]
    NotMoved {
        /// The address of the damaged block group.
        group: Logical,
        /// The extent.
        logical: Logical,
        /// The extent's length on disk.
        length: ByteCount,
        /// The first files that use the damaged extent, in all subvolumes.
        users: Vec<Location>,
        /// The error that lists the attempts to read the extent.
        cause: Box<Error>,
    },
    /// Data without an intact copy, from which a job must not make new checksums.
    #[error(
        "the data at {logical} matches its checksum in no copy{}; delete its files or write them again, and retry{}",
        used_by(.users),
        because(.cause.as_deref())
    )]
    DataDamaged {
        /// The address of the first damaged sector.
        logical: Logical,
        /// The first files that use the extent, in all subvolumes.
        users: Vec<Location>,
        /// The error that lists the attempts to read the data, if there was one.
        cause: Option<Box<Error>>,
    },
    /// The job was cancelled by its caller.
    #[error("cancelled")]
    Cancelled,
}

/// The reason why a volume is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WritingRefusal {
    /// Unknown compat_ro features, which only readers may ignore.
    #[error(
        "the volume cannot be written: it has unknown compat_ro features ({})",
        .names.join(", ")
    )]
    CompatRo {
        /// The names of the unsupported features.
        names: Vec<String>,
    },
    /// This version can read a feature of the volume, but not write it.
    #[error("the volume cannot be written: {name} is not supported for writing")]
    Feature {
        /// The feature.
        name: &'static str,
    },
    /// The state of the volume forbids changes.
    #[error("the volume cannot be written: it has {name}; {remedy}")]
    State {
        /// The state.
        name: &'static str,
        /// How the user can end the unfinished state.
        remedy: &'static str,
    },
    /// A device that missed commits has no space for the stripes to be moved.
    #[error(
        "{device} cannot be brought up to date: no space to move its stripes (found {found} bytes of unallocated space that its own state does not use, expected {needed}). The device is unchanged, and the volume continues without it. To replace it, run `buttress replace start` with another device"
    )]
    NoPlaceOnDevice {
        /// The device's name.
        device: String,
        /// The number of stripe bytes that would have to move.
        needed: u64,
        /// The number of bytes available for the stripes.
        found: u64,
    },
    /// The volume is a seed, and sprouts depend on it.
    #[error(
        "the volume cannot be written: it is a seed, on which other volumes may depend. To make a writable volume from it, add a device on a kernel mount. To clear the seed flag, run `buttress tune -f -S 0`"
    )]
    Seed,
    /// The volume is a metadata image, which lacks file data.
    #[error("the volume cannot be written: it is a metadata image without file data. Open it read-only")]
    MetadataImage,
    /// A run of btrfstune was interrupted.
    #[error("the volume cannot be written: a change of {what} was interrupted; {remedy}")]
    Unfinished {
        /// The part of the volume that the change affects.
        what: &'static str,
        /// The way to finish the change.
        remedy: &'static str,
    },
    /// The volume's devices or chunks are faulty.
    #[error("the volume cannot be written: {notice}")]
    Devices {
        /// The notice that describes the fault of the devices or chunks.
        notice: Box<buttress_volume::Notice>,
    },
    /// Only a copy of the superblock is left, because the device was reused for another purpose.
    #[error(
        "the volume cannot be written: {device} seems to contain {found} now; only a superblock copy of btrfs is left on it"
    )]
    Overwritten {
        /// The device's name.
        device: String,
        /// The name of the content that the device seems to hold.
        found: &'static str,
    },
}

fn pinned_note(pinned: ByteCount) -> String {
    if pinned == ByteCount::ZERO {
        String::new()
    } else {
        format!(" ({pinned} freed bytes are pinned by readers of older states)")
    }
}

/// Returns the cause of an error as the end of its message.
fn because(cause: Option<&Error>) -> String {
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
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

/// The operating system's error numbers, which are equal on all supported architectures of Linux.
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
    pub(super) const EBUSY: i32 = 16;
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
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Corrupt(_) | Self::Defect(_) | Self::DataDamaged { .. } => ErrorKind::Corrupt,
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

    /// Returns true if an invariant of this program is broken, in this layer or a lower one.
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

    /// Returns the request for which a device had no space: a disk is full, or a quota is
    /// exhausted. The volume stays writable after this error, and the same call can succeed once
    /// the host has space again.
    #[must_use]
    pub const fn out_of_host_space(&self) -> Option<&buttress_device::IoError> {
        match self {
            Self::OutOfHostSpace(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns true if the volume or its host has no space.
    #[must_use]
    pub const fn is_out_of_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::OutOfHostSpace(_))
    }

    /// Returns the failed request behind the error, if the host lacked space for it.
    fn lacks_host_space(&self) -> Option<&buttress_device::IoError> {
        let failure = match self {
            Self::OutOfHostSpace(failure) => failure,
            Self::Io(failure) | Self::Volume(buttress_volume::Error::Io(failure)) => failure,
            Self::Volume(buttress_volume::Error::Write(WriteRefusal::Needed(needed))) => &needed.failure,
            _ => return None,
        };
        failure.is_out_of_space().then_some(failure)
    }

    /// Returns the block that a lookup under the edit lock is missing. The caller must read the
    /// missing block without the edit lock.
    pub fn missing_block(&self) -> Option<buttress_tree::BlockPointer> {
        match self {
            Self::Tree(error) => error.would_block().copied(),
            _ => None,
        }
    }

    /// Returns the error number of a failed system call. Only `errno` maps errors to numbers of the
    /// operating system.
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
            Self::NoSpace { .. } | Self::SystemArrayFull { .. } | Self::AttributeTooLarge { .. } => {
                number::ENOSPC
            }
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
            Self::QuotaExceeded(_) => number::EDQUOT,
            Self::QuotaRefused(refusal) => match refusal {
                QuotaRefusal::NotEnabled => number::ENOTCONN,
                QuotaRefusal::NoGroup { .. } | QuotaRefusal::NotMember { .. } => number::ENOENT,
                QuotaRefusal::Exists { .. } | QuotaRefusal::IsMember { .. } => number::EEXIST,
                QuotaRefusal::HasMembers { .. } | QuotaRefusal::InUse { .. } => number::EBUSY,
                QuotaRefusal::OfSubvolume { .. } | QuotaRefusal::Levels { .. } | QuotaRefusal::NoRescan => {
                    number::EINVAL
                }
            },
            Self::Defect(_) | Self::DataDamaged { .. } => number::EIO,
            Self::DamagedLog { cause, .. } | Self::NotMoved { cause, .. } => cause.errno(),
            Self::NotDropped { failures } => failures
                .first()
                .map_or(number::EUCLEAN, |(_, error)| error.errno()),
            // Lost data is an I/O error for a reader. An error of broken metadata is not an I/O
            // error.
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
