//! What goes wrong with streams, one variant per check, in the four kinds of [`ErrorKind`].
//!
//! What is wrong with bytes says where: the offset in the input and the number of the command, both of which
//! a [`Place`] holds.

use buttress_format::ErrorKind;
use buttress_format::send::{AttributeKind, CommandKind, Version};
use core::fmt;

/// The result of a call on streams.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A place in the input of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Bytes from the beginning of the input to the header of the stream or command.
    pub offset: u64,
    /// Which command of its stream it is, from 1; 0 is the header of the stream.
    pub command: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command {
            0 => write!(f, "stream header at byte {}", self.offset),
            command => write!(f, "command {command} at byte {}", self.offset),
        }
    }
}

/// An error of reading or writing a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a stream, or not whole.
    #[error("{place}: {problem}")]
    Corrupt {
        /// Where.
        place: Place,
        /// What.
        problem: StreamProblem,
    },
    /// The stream is of a version that is not known.
    #[error("{place}: the stream has version {version}; versions up to 3 are supported")]
    VersionUnknown {
        /// Where.
        place: Place,
        /// The version.
        version: u32,
    },
    /// A command has a number that is not known.
    #[error(
        "{place}: command number {number}{} is not known to version {version} of the stream",
        InParentheses(CommandKind::from_raw(*number))
    )]
    CommandUnknown {
        /// Where.
        place: Place,
        /// The number.
        number: u16,
        /// The version of the stream.
        version: Version,
    },
    /// A command with an unknown number was to be skipped, and would change the content of a file.
    #[error(
        "{place}: command number {number} is not known to version {version} of the stream and has the attribute {attribute}: \
         without it a file would have other content, so it cannot be skipped"
    )]
    CommandNotSkipped {
        /// The place of the command in the stream.
        place: Place,
        /// The number.
        number: u16,
        /// The version of the stream.
        version: Version,
        /// The attribute that only commands about content have.
        attribute: AttributeKind,
    },
    /// An attribute has a number that is not known.
    #[error(
        "{place}: {command} has an attribute with number {number}{}, which is not known to version {version} of \
         the stream",
        InParentheses(AttributeKind::from_raw(*number))
    )]
    AttributeUnknown {
        /// Where.
        place: Place,
        /// The command.
        command: CommandKind,
        /// The number.
        number: u16,
        /// The version of the stream.
        version: Version,
    },
    /// The input failed.
    #[error("cannot read the stream at byte {offset}: {error}")]
    Read {
        /// How much of it had been read.
        offset: u64,
        /// The failure.
        #[source]
        error: std::io::Error,
    },
    /// A command cannot be written.
    #[error("{command} cannot be encoded: {problem}")]
    Encode {
        /// The command.
        command: CommandKind,
        /// Why.
        problem: EncodeProblem,
    },
}

impl Error {
    /// The kind of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::VersionUnknown { .. }
            | Self::CommandUnknown { .. }
            | Self::CommandNotSkipped { .. }
            | Self::AttributeUnknown { .. } => ErrorKind::Unsupported,
            Self::Read { .. } => ErrorKind::Io,
            Self::Encode { .. } => ErrorKind::Caller,
        }
    }
}

/// What is wrong with the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamProblem {
    /// There is nothing at all.
    #[error("the stream is empty")]
    Empty,
    /// The input ends inside a header or a payload.
    #[error("the stream is cut short: {found_bytes} of {expected_bytes} bytes of the {part}")]
    CutShort {
        /// Of what.
        part: Part,
        /// How much it should have.
        expected_bytes: usize,
        /// How much there is.
        found_bytes: usize,
    },
    /// The input ends between two commands, and the last one was not the end.
    #[error("the stream is cut short: it ends without its end command")]
    EndMissing,
    /// The first bytes are not those of a stream.
    #[error("not a send stream: it begins with {}", Hex(found))]
    Magic {
        /// The first 13 bytes.
        found: [u8; 13],
    },
    /// A payload is longer than may be.
    #[error(
        "the payload has {found_bytes} bytes; in version {version} of the stream at most {maximum_bytes}"
    )]
    PayloadLength {
        /// How much it claims to have.
        found_bytes: u32,
        /// How much it may have.
        maximum_bytes: usize,
        /// The version of the stream.
        version: Version,
    },
    /// The checksum does not fit.
    #[error("checksum {stored:#010x} is stored, {computed:#010x} is computed over {bytes} bytes")]
    Checksum {
        /// In the header of the command.
        stored: u32,
        /// Over header and payload.
        computed: u32,
        /// The length of both.
        bytes: usize,
    },
    /// A command is not what it should be.
    #[error("{command}: {problem}")]
    Command {
        /// Which.
        command: CommandKind,
        /// What.
        problem: CommandProblem,
    },
}

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Magic and version.
    StreamHeader,
    /// Length, number and checksum of a command.
    CommandHeader,
    /// What follows the header of a command.
    Payload,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::StreamHeader => "stream's header",
            Self::CommandHeader => "command's header",
            Self::Payload => "command's payload",
        })
    }
}

/// What is wrong with the attributes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandProblem {
    /// An attribute that the command must have is not there.
    #[error("attribute {attribute} is missing")]
    AttributeMissing {
        /// Which.
        attribute: AttributeKind,
    },
    /// An attribute of a fixed size has another.
    #[error("attribute {attribute} has {found_bytes} bytes instead of {expected_bytes}")]
    AttributeLength {
        /// Which.
        attribute: AttributeKind,
        /// What its type has.
        expected_bytes: usize,
        /// What it has.
        found_bytes: usize,
    },
    /// An attribute is there twice.
    #[error("attribute {attribute} is there twice, the second time at byte {offset} of the payload")]
    AttributeRepeated {
        /// Which.
        attribute: AttributeKind,
        /// Where it is the second time.
        offset: usize,
    },
    /// The end command has an attribute.
    #[error("attribute {attribute} at byte {offset} of the payload does not belong to it")]
    AttributeForeign {
        /// Which.
        attribute: AttributeKind,
        /// Where in the payload.
        offset: usize,
    },
    /// An attribute goes beyond the end of the payload.
    #[error(
        "attribute number {number} at byte {offset} of the payload needs {needed_bytes} bytes, \
         {left_bytes} are left"
    )]
    AttributeCutShort {
        /// Its number.
        number: u16,
        /// Where in the payload.
        offset: usize,
        /// What it needs with its header.
        needed_bytes: usize,
        /// What there is from `offset` on.
        left_bytes: usize,
    },
    /// A few bytes are left that are too few for an attribute.
    #[error("{left_bytes} bytes are left at byte {offset} of the payload, too few for an attribute")]
    Rest {
        /// Where in the payload.
        offset: usize,
        /// How many.
        left_bytes: usize,
    },
}

/// Why a command cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeProblem {
    /// The version of the stream does not have the command.
    #[error("it needs version {needed} of the stream, which is of version {version}")]
    Version {
        /// The first version that has it.
        needed: Version,
        /// The version of the stream.
        version: Version,
    },
    /// An attribute is longer than its length can say.
    #[error("attribute {attribute} has {found_bytes} bytes, at most {maximum_bytes} can be sent")]
    AttributeLength {
        /// Which.
        attribute: AttributeKind,
        /// What it has.
        found_bytes: usize,
        /// What it may have.
        maximum_bytes: usize,
    },
    /// The payload would be longer than may be.
    #[error(
        "its payload has {found_bytes} bytes, version {version} of the stream has at most {maximum_bytes}"
    )]
    PayloadLength {
        /// What it would have.
        found_bytes: usize,
        /// What it may have.
        maximum_bytes: usize,
        /// The version of the stream.
        version: Version,
    },
    /// Data was announced for a command that has none, or the command came with data already.
    #[error("only write and encoded_write, without data of their own, can have data appended")]
    NoData,
    /// What was appended is not as long as was announced.
    #[error("{appended_bytes} bytes of data were appended, {announced_bytes} were announced")]
    DataLength {
        /// How much came.
        appended_bytes: usize,
        /// How much should have come.
        announced_bytes: usize,
    },
}

/// A name behind its number, where there is one.
struct InParentheses<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for InParentheses<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

/// Bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
