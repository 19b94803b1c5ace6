//! What can stop a stream from being looked into.

use crate::command::Command;
use crate::error::Place;
use buttress_exact::Defect;
use buttress_format::send::CommandKind;
use buttress_format::{CompressionError, ErrorKind, Uuid};
use core::fmt;
use std::io;

/// The result of a call on a view.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a stream, or a part of it, cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a whole stream.
    #[error("{file}: {error}")]
    Stream {
        /// Name of the file.
        file: String,
        /// What the decoder found, with its place.
        #[source]
        error: crate::Error,
    },
    /// A command cannot be carried out: a receiver would stop here.
    #[error("{file}: {place}: {command}: {problem}")]
    Refused {
        /// Name of the file.
        file: String,
        /// Where in it.
        place: Place,
        /// Which command.
        command: CommandKind,
        /// Why.
        problem: Problem,
    },
    /// File data cannot be read again from the file of the stream.
    #[error("{file}: cannot read {length_bytes} bytes of file data at byte {offset}: {error}")]
    Read {
        /// Name of the file.
        file: String,
        /// Where in it.
        offset: u64,
        /// How much was wanted.
        length_bytes: u64,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// File data of an encoded write cannot be decoded.
    #[error("{file}: the encoded data at byte {offset} cannot be decoded: {error}")]
    Decode {
        /// Name of the file.
        file: String,
        /// Where the encoded data begins in it.
        offset: u64,
        /// What is wrong with it.
        #[source]
        error: CompressionError,
    },
    /// A path that the caller gave leads nowhere.
    #[error("{}: {problem}", Shown(path))]
    Path {
        /// The path.
        path: Vec<u8>,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The content of a file is not in the streams.
    #[error(
        "{}: its content is not in the stream, which was made without file data (--no-data)",
        Shown(path)
    )]
    NoData {
        /// The file.
        path: Vec<u8>,
    },
    /// The caller cancelled.
    #[error(transparent)]
    Cancelled(buttress_fs::Error),
    /// An invariant of this program is broken: reported instead of content that may be wrong.
    #[error(transparent)]
    Defect(#[from] Box<Defect>),
}

impl From<Defect> for Error {
    fn from(defect: Defect) -> Self {
        Self::Defect(Box::new(defect))
    }
}

impl Error {
    /// The kind of the error.
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

    /// The error of a command that cannot be carried out.
    pub(super) fn refused(file: &str, place: Place, command: &Command<'_>, problem: Problem) -> Self {
        Self::Refused {
            file: file.to_owned(),
            place,
            command: command.kind(),
            problem,
        }
    }
}

/// What is wrong with a path in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// It begins with a slash.
    #[error("it is absolute")]
    Absolute,
    /// Two slashes follow each other, or one ends it.
    #[error("a name in it is empty")]
    EmptyName,
    /// One of its names is `.` or `..`.
    #[error("it holds `.` or `..`")]
    Dots,
    /// One of its names holds a zero byte.
    #[error("a name in it holds a zero byte")]
    ZeroByte,
    /// One of its names is too long.
    #[error("a name in it has {name_bytes} bytes, at most 255 can be")]
    NameTooLong {
        /// How long it is.
        name_bytes: usize,
    },
    /// It is the empty path, which names the subvolume itself.
    #[error("it names the subvolume itself")]
    Root,
}

/// Why a command cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// No subvolume was begun before it.
    #[error("no subvolume was begun before it")]
    NoSubvolume,
    /// A path is not one that a stream may hold.
    #[error("path {}: {problem}", Shown(path))]
    PathInvalid {
        /// The path.
        path: Vec<u8>,
        /// What is wrong with it.
        problem: PathProblem,
    },
    /// A path leads nowhere.
    #[error("{}: there is nothing of this name", Shown(path))]
    NotFound {
        /// The path, up to the name that is missing.
        path: Vec<u8>,
    },
    /// Something that a path goes through, or that must be a directory, is none.
    #[error("{}: this is a {found}, not a directory", Shown(path))]
    NotDirectory {
        /// The path, up to what is no directory.
        path: Vec<u8>,
        /// What it is.
        found: &'static str,
    },
    /// Something is there already.
    #[error("{}: it exists already, and is a {found}", Shown(path))]
    Exists {
        /// The path.
        path: Vec<u8>,
        /// What is there.
        found: &'static str,
    },
    /// A directory that is to go, or to be replaced, holds something.
    #[error("{}: the directory is not empty, it holds {names} names", Shown(path))]
    NotEmpty {
        /// The path.
        path: Vec<u8>,
        /// How many.
        names: usize,
    },
    /// The command does not work on this kind of file.
    #[error("{}: this is a {found}; {wanted} is needed", Shown(path))]
    WrongKind {
        /// The path.
        path: Vec<u8>,
        /// What it is.
        found: &'static str,
        /// What the command works on.
        wanted: &'static str,
    },
    /// A directory would be moved below itself.
    #[error("{} would be moved into itself, to {}", Shown(from), Shown(to))]
    IntoItself {
        /// What would be moved.
        from: Vec<u8>,
        /// Where to.
        to: Vec<u8>,
    },
    /// There is no attribute of this name.
    #[error("{}: there is no extended attribute {}", Shown(path), Shown(name))]
    XattrMissing {
        /// The path.
        path: Vec<u8>,
        /// The name.
        name: Vec<u8>,
    },
    /// The name of an attribute is empty or too long.
    #[error("the name of an extended attribute has {name_bytes} bytes; 1 to 255 can be")]
    XattrName {
        /// How long it is.
        name_bytes: usize,
    },
    /// A range ends beyond what a file can have.
    #[error("a range of {length} bytes at {offset} ends beyond the largest file, of 2^63 - 1 bytes")]
    RangeTooLarge {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u64,
    },
    /// A number is larger than its field in an inode.
    #[error("{field} {value} is out of range")]
    OutOfRange {
        /// Which.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The type in the mode of a node is none that the command can make.
    #[error("mode {mode:o} is not that of a device, pipe or socket")]
    NodeMode {
        /// The mode.
        mode: u64,
    },
    /// A bit of the mode of fallocate has no meaning in a stream.
    #[error("fallocate mode {mode:#x} is not supported")]
    FallocateMode {
        /// The mode.
        mode: u32,
    },
    /// The earlier snapshot that a stream builds on is not among the given ones.
    #[error(
        "it builds on the snapshot with uuid {wanted}, which no stream before it makes; {}",
        Given(given)
    )]
    ParentUnknown {
        /// The uuid that is named.
        wanted: Uuid,
        /// Those of the streams so far.
        given: Vec<Uuid>,
    },
    /// The snapshot that is cloned from is not among the given ones.
    #[error(
        "it clones from the snapshot with uuid {wanted}, which no stream before it makes; {}",
        Given(given)
    )]
    CloneSourceUnknown {
        /// The uuid that is named.
        wanted: Uuid,
        /// Those of the streams so far, the present one first.
        given: Vec<Uuid>,
    },
    /// The range to clone is not in its source.
    #[error(
        "{length} bytes at {offset} of {} are beyond its size of {size} bytes",
        Shown(path)
    )]
    CloneRange {
        /// The source.
        path: Vec<u8>,
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        length: u64,
        /// How long the source is.
        size: u64,
    },
    /// A file's range is cloned over itself.
    #[error(
        "{length} bytes are cloned from {source_offset} to {offset} of the same file, where they overlap"
    )]
    CloneOverlap {
        /// Where from.
        source_offset: u64,
        /// Where to.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// Clones of clones are nested so deeply, and of so many pieces, that memory for them would not be bounded.
    #[error("clones of clones are nested too deeply, in too many pieces: more than {pieces_max}")]
    ClonesTooDeep {
        /// How many pieces all such clones may copy.
        pieces_max: u64,
    },
    /// Encoded data uses an unknown compression.
    #[error("compression number {number} is not known")]
    CompressionUnknown {
        /// Its number.
        number: u32,
    },
    /// Encoded data is encrypted.
    #[error("encryption number {number} is not supported")]
    Encrypted {
        /// Its number.
        number: u32,
    },
    /// The sizes of an encoded write contradict each other.
    #[error(
        "{file_bytes} bytes from {skip} on are used of {unencoded} bytes, encoded in {encoded}; \
         compressed data has at most 128 KiB both ways"
    )]
    EncodedSizes {
        /// How much is the file's.
        file_bytes: u64,
        /// Where that begins in the decoded data.
        skip: u64,
        /// How much decodes.
        unencoded: u64,
        /// From how much.
        encoded: u64,
    },
    /// Encoded data does not decode. Found only where decoding was asked for.
    #[error("the encoded data cannot be decoded: {0}")]
    Encoded(CompressionError),
}

impl Problem {
    /// The kind of the error.
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

/// A path or name in messages, from the subvolume's root.
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

/// The uuids of the streams that were given.
struct Given<'a>(&'a [Uuid]);

/// How many uuids a message lists.
const GIVEN_SHOWN: usize = 8;

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("give the stream that it builds on before it");
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
