//! Errors of a view of streams.

use crate::command::Command;
use crate::error::Place;
use buttress_exact::Defect;
use buttress_format::send::CommandKind;
use buttress_format::{CompressionError, ErrorKind, Uuid};
use core::fmt;
use std::io;

/// The result of a call on a view.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Reason why a view cannot show a stream, or a part of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a complete stream.
    #[error("{file}: {error}")]
    Stream {
        /// Name of the file.
        file: String,
        /// Error of the decoder, with its position.
        #[source]
        error: crate::Error,
    },
    /// The view refuses a command; a receiver would stop here.
    #[error("{file}: {place}: {command}: {problem}")]
    Refused {
        /// Name of the file.
        file: String,
        /// Position of the command in the file.
        place: Place,
        /// Kind of the command.
        command: CommandKind,
        /// Reason for the refusal.
        problem: Problem,
    },
    /// The view cannot read file data from the stream file again.
    #[error("{file}: cannot read {length_bytes} bytes of file data at byte {offset}: {error}")]
    Read {
        /// Name of the file.
        file: String,
        /// Offset of the data in the file.
        offset: u64,
        /// Number of bytes to read.
        length_bytes: u64,
        /// Error of an operating system call.
        #[source]
        error: io::Error,
    },
    /// The data of an encoded write does not decode.
    #[error("{file}: the encoded data at byte {offset} cannot be decoded: {error}")]
    Decode {
        /// Name of the file.
        file: String,
        /// Offset of the encoded data in the file.
        offset: u64,
        /// Error of the decompressor.
        #[source]
        error: CompressionError,
    },
    /// A path from the caller does not exist.
    #[error("{}: {problem}", Shown(path))]
    Path {
        /// Path from the caller.
        path: Vec<u8>,
        /// Problem with the path of a stream command.
        problem: Problem,
    },
    /// The streams do not contain the content of a file.
    #[error(
        "{}: its content is not in the stream, which was made without file data (--no-data)",
        Shown(path)
    )]
    NoData {
        /// Path of the file.
        path: Vec<u8>,
    },
    /// The caller cancelled.
    #[error(transparent)]
    Cancelled(buttress_fs::Error),
    /// An invariant of this program is broken. The view reports it instead of possibly wrong
    /// content.
    #[error(transparent)]
    Defect(#[from] Box<Defect>),
}

impl From<Defect> for Error {
    fn from(defect: Defect) -> Self {
        Self::Defect(Box::new(defect))
    }
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Stream { error, .. } => error.kind(),
            Self::Refused { problem, .. } => problem.kind(),
            Self::Decode { .. } | Self::Defect(_) => ErrorKind::Corrupt,
            Self::Read { .. } => ErrorKind::Io,
            Self::Path { .. } | Self::NoData { .. } | Self::Cancelled(_) => ErrorKind::Caller,
        }
    }

    /// Builds the error of a stream command that the view refuses.
    pub(super) fn refused(file: &str, place: Place, command: &Command<'_>, problem: Problem) -> Self {
        Self::Refused {
            file: file.to_owned(),
            place,
            command: command.kind(),
            problem,
        }
    }
}

/// Problem with the form of a path in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// The path begins with a slash.
    #[error("it is absolute")]
    Absolute,
    /// The path has two consecutive slashes, or ends with a slash.
    #[error("a name in it is empty")]
    EmptyName,
    /// A component of the path is `.` or `..`.
    #[error("it contains `.` or `..`")]
    Dots,
    /// A component of the path contains a zero byte.
    #[error("a name in it contains a zero byte")]
    ZeroByte,
    /// A component of the path is too long.
    #[error("a name in it is too long (found {name_bytes} bytes, expected at most 255)")]
    NameTooLong {
        /// Length of the component in bytes.
        name_bytes: usize,
    },
    /// The path is empty and so names the subvolume itself.
    #[error("it names the subvolume itself")]
    Root,
}

/// Reason why the view refuses a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// No subvolume began before the command.
    #[error("no subvolume command comes before it")]
    NoSubvolume,
    /// A path in the stream has a form that streams do not allow.
    #[error("path {}: {problem}", Shown(path))]
    PathInvalid {
        /// Path in the command.
        path: Vec<u8>,
        /// Problem with the path.
        problem: PathProblem,
    },
    /// A path does not exist.
    #[error("{}: no such file or directory", Shown(path))]
    NotFound {
        /// The path, up to the missing component.
        path: Vec<u8>,
    },
    /// A component of a path, or a required directory, is not a directory.
    #[error("{}: a {found}, not a directory", Shown(path))]
    NotDirectory {
        /// The path, up to the component that is not a directory.
        path: Vec<u8>,
        /// Kind of the inode found at the path.
        found: &'static str,
    },
    /// The path of the command already exists.
    #[error("{}: already exists, as a {found}", Shown(path))]
    Exists {
        /// Path in the command.
        path: Vec<u8>,
        /// Kind of the inode found there.
        found: &'static str,
    },
    /// A directory to be removed or replaced is not empty.
    #[error("{}: the directory is not empty ({names} names)", Shown(path))]
    NotEmpty {
        /// Path of the directory.
        path: Vec<u8>,
        /// Number of names in the directory.
        names: usize,
    },
    /// The command does not apply to this kind of file.
    #[error("{}: wrong file type (found a {found}, expected {wanted})", Shown(path))]
    WrongKind {
        /// Path of the file.
        path: Vec<u8>,
        /// Kind of the file.
        found: &'static str,
        /// Kind of file that the command needs.
        wanted: &'static str,
    },
    /// A directory would be moved below itself.
    #[error("{}: cannot be moved into itself, to {}", Shown(from), Shown(to))]
    IntoItself {
        /// Path of the directory.
        from: Vec<u8>,
        /// Target of the move.
        to: Vec<u8>,
    },
    /// The inode has no extended attribute of this name.
    #[error("{}: no extended attribute {}", Shown(path), Shown(name))]
    XattrMissing {
        /// Path of the inode.
        path: Vec<u8>,
        /// Name of the extended attribute.
        name: Vec<u8>,
    },
    /// The name of an extended attribute is empty or too long.
    #[error(
        "the name of an extended attribute has an invalid length (found {name_bytes} bytes, expected 1 to 255)"
    )]
    XattrName {
        /// Length of the name in bytes.
        name_bytes: usize,
    },
    /// A range ends after the largest possible end of file.
    #[error("a range of {length} bytes at {offset} ends past the largest file size, 2^63 - 1 bytes")]
    RangeTooLarge {
        /// Offset of the range in the file.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
    },
    /// A number is larger than its field in an inode.
    #[error("{field} {value} is out of range")]
    OutOfRange {
        /// Name of the inode's field.
        field: &'static str,
        /// Value in the command.
        value: u64,
    },
    /// The command cannot create a node of the type in the mode.
    #[error("mode {mode:o} is not the mode of a device, pipe or socket")]
    NodeMode {
        /// Mode in the command.
        mode: u64,
    },
    /// The mode of fallocate has a bit that streams do not define.
    #[error("fallocate mode {mode:#x} is not supported")]
    FallocateMode {
        /// Mode in the command.
        mode: u32,
    },
    /// The series lacks the parent snapshot of a stream.
    #[error(
        "its parent snapshot with uuid {wanted} is in no earlier stream; {}",
        Given(given)
    )]
    ParentUnknown {
        /// UUID of the parent snapshot.
        wanted: Uuid,
        /// UUIDs of the earlier streams.
        given: Vec<Uuid>,
    },
    /// The series lacks the clone source snapshot.
    #[error(
        "its clone source with uuid {wanted} is in no earlier stream; {}",
        Given(given)
    )]
    CloneSourceUnknown {
        /// UUID of the clone source snapshot.
        wanted: Uuid,
        /// UUIDs of the streams so far, the current one first.
        given: Vec<Uuid>,
    },
    /// The range to clone exceeds its source file.
    #[error(
        "{length} bytes at {offset} of {} are past its size of {size} bytes",
        Shown(path)
    )]
    CloneRange {
        /// Path of the source file.
        path: Vec<u8>,
        /// Offset of the range in the source file.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
        /// Size of the source file in bytes.
        size: u64,
    },
    /// A clone overlaps its own source range in the same file.
    #[error("{length} bytes cloned from {source_offset} to {offset} of the same file overlap")]
    CloneOverlap {
        /// Offset of the source range.
        source_offset: u64,
        /// Offset of the target range.
        offset: u64,
        /// Length of the cloned range and of its source, in bytes.
        length: u64,
    },
    /// Nested clones have so many pieces that their memory would be unbounded.
    #[error("nested clones consist of too many pieces (limit {pieces_max})")]
    ClonesTooDeep {
        /// Largest total number of pieces that such clones may copy.
        pieces_max: u64,
    },
    /// Encoded data has an unknown compression.
    #[error("unknown compression number {number}")]
    CompressionUnknown {
        /// Number of the compression.
        number: u32,
    },
    /// Encoded data is encrypted.
    #[error("encryption number {number} is not supported")]
    Encrypted {
        /// Number of the encryption.
        number: u32,
    },
    /// The sizes of an encoded write contradict each other.
    #[error(
        "invalid lengths of encoded data (found {file_bytes} bytes at {skip} of {unencoded} decoded and {encoded} encoded bytes, expected at most 128 KiB each)"
    )]
    EncodedSizes {
        /// Number of decoded bytes that belong to the file.
        file_bytes: u64,
        /// Offset of these bytes in the decoded data.
        skip: u64,
        /// Length of the decoded data in bytes.
        unencoded: u64,
        /// Length of the encoded data in bytes.
        encoded: u64,
    },
    /// Encoded data does not decode. The view detects this only if the caller asked to decode.
    #[error("the encoded data cannot be decoded: {0}")]
    Encoded(CompressionError),
}

impl Problem {
    /// Returns the kind of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        if self.is_unsupported() {
            ErrorKind::Unsupported
        } else if self.is_order_of_streams() {
            ErrorKind::Caller
        } else {
            ErrorKind::Corrupt
        }
    }

    const fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::FallocateMode { .. } | Self::CompressionUnknown { .. } | Self::Encrypted { .. }
        )
    }

    const fn is_order_of_streams(&self) -> bool {
        matches!(self, Self::ParentUnknown { .. } | Self::CloneSourceUnknown { .. })
    }
}

/// Formats a path or name in messages, from the subvolume's root.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            f.write_str("/")
        } else {
            self.0.escape_ascii().fmt(f)
        }
    }
}

/// Formats the uuids of the given parent streams.
struct Given<'a>(&'a [Uuid]);

/// Largest number of uuids in a message.
const GIVEN_SHOWN: usize = 8;

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("give the stream of this snapshot first");
        }
        f.write_str("there are ")?;
        for (number, uuid) in self.0.iter().take(GIVEN_SHOWN).enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{uuid}")?;
        }
        if self.0.len() > GIVEN_SHOWN {
            write!(f, " and {} more", self.0.len().saturating_sub(GIVEN_SHOWN))?;
        }
        Ok(())
    }
}
