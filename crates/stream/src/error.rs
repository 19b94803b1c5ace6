//! Errors of streams, one variant per check, in the four kinds of [`ErrorKind`].
//!
//! Each error about bytes reports a [`Place`]: the offset in the input and the number of the
//! command.

use buttress_format::ErrorKind;
use buttress_format::send::{AttributeKind, CommandKind, Version};
use core::fmt;

/// The result of a call on streams.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A position in the input of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Offset of the header of the stream or command in the input, in bytes.
    pub offset: u64,
    /// Number of the command in its stream, from 1; 0 means the header of the stream.
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

/// Error of reading or writing a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a stream, or are incomplete.
    #[error("{place}: {problem}")]
    Corrupt {
        /// Position of the problem in the input.
        place: Place,
        /// Problem with the bytes.
        problem: StreamProblem,
    },
    /// The stream has an unknown version.
    #[error("{place}: unsupported stream version (found {version}, expected at most 3)")]
    VersionUnknown {
        /// Position of the stream header in the input.
        place: Place,
        /// Version that the header states.
        version: u32,
    },
    /// A command has an unknown number.
    #[error(
        "{place}: unknown command number {number}{} in a stream of version {version}",
        InParentheses(CommandKind::from_raw(*number))
    )]
    CommandUnknown {
        /// Position of the command in the input.
        place: Place,
        /// Number of the command.
        number: u16,
        /// The version of the stream.
        version: Version,
    },
    /// The decoder should skip a command with an unknown number, but the command would change the
    /// content of a file.
    #[error(
        "{place}: unknown command number {number} in a stream of version {version} has the attribute {attribute}, so skipping it would change the content of a file"
    )]
    CommandNotSkipped {
        /// Position of the command in the input.
        place: Place,
        /// Number of the command.
        number: u16,
        /// The version of the stream.
        version: Version,
        /// An attribute of the command that only commands about content have.
        attribute: AttributeKind,
    },
    /// An attribute has an unknown number.
    #[error(
        "{place}: {command}: unknown attribute number {number}{} in a stream of version {version}",
        InParentheses(AttributeKind::from_raw(*number))
    )]
    AttributeUnknown {
        /// Position of the command in the input.
        place: Place,
        /// Kind of the command that has the attribute.
        command: CommandKind,
        /// Number of the attribute.
        number: u16,
        /// The version of the stream.
        version: Version,
    },
    /// The input failed.
    #[error("cannot read the stream at byte {offset}: {error}")]
    Read {
        /// Number of bytes read before the failure.
        offset: u64,
        /// Error of the input.
        #[source]
        error: std::io::Error,
    },
    /// The encoder cannot encode a command.
    #[error("{command} cannot be encoded: {problem}")]
    Encode {
        /// Kind of the command.
        command: CommandKind,
        /// Reason for the failure.
        problem: EncodeProblem,
    },
}

impl Error {
    /// Returns the kind of the error.
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

/// Problem with the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamProblem {
    /// The input has no bytes.
    #[error("the stream is empty")]
    Empty,
    /// The input ends inside a header or a payload.
    #[error("the stream is truncated (found {found_bytes} of {expected_bytes} bytes of the {part})")]
    CutShort {
        /// Part of the stream in which the input ends.
        part: Part,
        /// Expected length of the part in bytes.
        expected_bytes: usize,
        /// Number of bytes of the part that the input holds.
        found_bytes: usize,
    },
    /// The input ends between two commands, without an end command.
    #[error("the stream is truncated: the end command is missing")]
    EndMissing,
    /// The first bytes are not the magic of a stream.
    #[error("not a send stream (found {} at its beginning)", Hex(found))]
    Magic {
        /// First 13 bytes of the input.
        found: [u8; 13],
    },
    /// A payload is longer than the version allows.
    #[error(
        "the payload is too long (found {found_bytes} bytes, expected at most {maximum_bytes} in version {version})"
    )]
    PayloadLength {
        /// Payload length that the command header states, in bytes.
        found_bytes: u32,
        /// Largest payload that the version allows, in bytes.
        maximum_bytes: usize,
        /// The version of the stream.
        version: Version,
    },
    /// The checksum of a command does not match its bytes.
    #[error("wrong checksum of {bytes} bytes (found {stored:#010x}, computed {computed:#010x})")]
    Checksum {
        /// Checksum in the header of the command.
        stored: u32,
        /// Checksum computed over header and payload.
        computed: u32,
        /// Length of header and payload in bytes.
        bytes: usize,
    },
    /// The attributes of a command are wrong.
    #[error("{command}: {problem}")]
    Command {
        /// Kind of the command.
        command: CommandKind,
        /// Problem with its attributes.
        problem: CommandProblem,
    },
}

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The stream header: magic and version.
    StreamHeader,
    /// The command header: length, number and checksum.
    CommandHeader,
    /// The attributes after a command header.
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

/// Problem with the attributes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandProblem {
    /// The command lacks a mandatory attribute.
    #[error("attribute {attribute} is missing")]
    AttributeMissing {
        /// The missing attribute.
        attribute: AttributeKind,
    },
    /// An attribute of a fixed size has another size.
    #[error(
        "attribute {attribute} has the wrong length (found {found_bytes} bytes, expected {expected_bytes})"
    )]
    AttributeLength {
        /// The attribute.
        attribute: AttributeKind,
        /// Size of the attribute's type in bytes.
        expected_bytes: usize,
        /// Size of the attribute in the stream, in bytes.
        found_bytes: usize,
    },
    /// A command has the same attribute twice.
    #[error("attribute {attribute} is repeated at byte {offset} of the payload")]
    AttributeRepeated {
        /// The attribute.
        attribute: AttributeKind,
        /// Offset of its second occurrence in the payload.
        offset: usize,
    },
    /// The end command has an attribute.
    #[error("attribute {attribute} at byte {offset} of the payload does not belong to this command")]
    AttributeForeign {
        /// The attribute.
        attribute: AttributeKind,
        /// Offset of the attribute in the payload.
        offset: usize,
    },
    /// An attribute extends beyond the end of the payload.
    #[error(
        "attribute number {number} at byte {offset} of the payload is incomplete (found {left_bytes} bytes, expected {needed_bytes})"
    )]
    AttributeCutShort {
        /// Number of the attribute.
        number: u16,
        /// Offset of the attribute in the payload.
        offset: usize,
        /// Bytes that the attribute needs, header included.
        needed_bytes: usize,
        /// Bytes of the payload from `offset` on.
        left_bytes: usize,
    },
    /// The last bytes of the payload are too few for an attribute.
    #[error("incomplete attribute at byte {offset} of the payload (found {left_bytes} bytes)")]
    Rest {
        /// Offset of these bytes in the payload.
        offset: usize,
        /// Number of these unexpected bytes.
        left_bytes: usize,
    },
}

/// Reason why the encoder cannot encode a stream command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeProblem {
    /// The version of the stream does not define the command.
    #[error("the command needs stream version {needed} (found version {version})")]
    Version {
        /// First version that defines the command.
        needed: Version,
        /// The version of the stream.
        version: Version,
    },
    /// An attribute is too long for its length field.
    #[error(
        "attribute {attribute} is too long (found {found_bytes} bytes, expected at most {maximum_bytes})"
    )]
    AttributeLength {
        /// The attribute.
        attribute: AttributeKind,
        /// Length of the attribute in bytes.
        found_bytes: usize,
        /// Largest length that an attribute may have, in bytes.
        maximum_bytes: usize,
    },
    /// The payload would be longer than the version allows.
    #[error(
        "the payload is too long (found {found_bytes} bytes, expected at most {maximum_bytes} in version {version})"
    )]
    PayloadLength {
        /// Length of the payload in bytes.
        found_bytes: usize,
        /// Largest payload that the version allows, in bytes.
        maximum_bytes: usize,
        /// The version of the stream.
        version: Version,
    },
    /// The caller announced data for a command that has none, or that already contains data.
    #[error("only write and encoded_write, without data of their own, can have data appended")]
    NoData,
    /// The caller appended more or fewer data bytes than it announced.
    #[error("wrong amount of appended data (found {appended_bytes} bytes, expected {announced_bytes})")]
    DataLength {
        /// Number of bytes that the caller appended.
        appended_bytes: usize,
        /// Number of bytes that the caller announced.
        announced_bytes: usize,
    },
}

/// Formats a name in parentheses, if there is one.
struct InParentheses<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for InParentheses<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

/// Formats bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
