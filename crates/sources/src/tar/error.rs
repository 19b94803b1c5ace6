//! The errors of archives, with their places.

use std::io;

use buttress_build::PathProblem;
use buttress_format::printable::Printable;

use crate::acl::AclError;

/// A problem at a place in an archive.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset} of the archive: {problem}")]
pub struct TarError {
    /// The offset of the member's header, in the uncompressed archive.
    pub offset: u64,
    /// The problem.
    pub problem: Problem,
}

/// The problem of an archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The checksum of the header is wrong.
    #[error("not a tar header: wrong checksum (found {stored}, computed {computed})")]
    Checksum {
        /// The checksum in the header.
        stored: i64,
        /// The computed checksum.
        computed: i64,
    },
    /// A field holds no number.
    #[error("{field} is not a number: \"{}\"", Printable(.text))]
    Number {
        /// The field.
        field: &'static str,
        /// The content of the field.
        text: Vec<u8>,
    },
    /// A number is negative.
    #[error("{field} is {number}")]
    Negative {
        /// The field.
        field: &'static str,
        /// The number in the field.
        number: i64,
    },
    /// A number in the tar header is too large.
    #[error("{field} is too large (found {number}, expected at most {most})")]
    Large {
        /// The field.
        field: &'static str,
        /// The number in the header's field.
        number: u64,
        /// The largest valid number.
        most: u64,
    },
    /// The archive ends inside a member.
    #[error(
        "cannot read {what}: incomplete (found {left} bytes, expected {needed}); the archive is truncated, or the size is wrong"
    )]
    Ends {
        /// The part that does not fit.
        what: &'static str,
        /// The number of bytes that the part needs.
        needed: u64,
        /// The number of bytes left in the archive.
        left: u64,
    },
    /// A name or an extended header exceeds the size limit.
    #[error("cannot read {what}: too long (found {bytes} bytes, expected at most {most})")]
    TooLong {
        /// The kind of the part.
        what: &'static str,
        /// The size of the extended header in bytes.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A path has too many components.
    #[error("a path leads through too many directories (found {found} components, expected at most {most})")]
    TooDeep {
        /// The number of components.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// A record of an extended header is invalid.
    #[error("byte {at} of the extended header: {what}")]
    Record {
        /// The offset in the extended header's body.
        at: usize,
        /// The problem of the record.
        what: String,
    },
    /// The map of a sparse file is invalid.
    #[error("the map of a sparse file: {0}")]
    Sparse(String),
    /// The kind of a member is unknown.
    #[error("a member of unknown kind {letter:?}{hint}")]
    Kind {
        /// The letter of the kind.
        letter: char,
        /// The probable meaning of the member's unknown kind letter.
        hint: &'static str,
    },
    /// A path is invalid.
    #[error("{field} \"{}\": {problem}", shown(.path))]
    Path {
        /// The field with the path.
        field: &'static str,
        /// The path.
        path: Vec<u8>,
        /// The problem of the path.
        problem: PathProblem,
    },
    /// An access list is invalid.
    #[error(transparent)]
    Acl(#[from] AclError),
    /// A link has no target.
    #[error("a {0} link without a target")]
    NoTarget(&'static str),
    /// The name of an extended attribute is invalid.
    #[error("invalid name \"{}\" of an extended attribute (expected 1 to 255 bytes, without zero bytes)", shown(.0))]
    XattrName(Vec<u8>),
    /// The target of a hard link does not exist.
    #[error("a hard link to \"{}\", which is not an earlier member", shown(.0))]
    LinkedToNothing(Vec<u8>),
    /// The target of a hard link is a directory.
    #[error("a hard link to \"{}\", which is a directory", shown(.0))]
    LinkedToDirectory(Vec<u8>),
    /// The hard links of the archives repeat too many headers of their targets.
    #[error(
        "hard links repeat the headers of their targets too often (found {bytes} bytes, expected at most {most})"
    )]
    RepeatedHeaders {
        /// The size of the repeated headers.
        bytes: u64,
        /// The limit, which depends on the size of the archives.
        most: u64,
    },
    /// Symbolic links form a cycle.
    #[error("\"{}\" is below a loop of symbolic links", shown(.0))]
    LinkLoop(Vec<u8>),
    /// A whiteout mark names no entry.
    #[error("\"{}\" marks nothing as deleted", shown(.0))]
    Whiteout(Vec<u8>),
    /// A member is located in the directory of the layers' snapshots.
    #[error("\"{}\" is in the directory of layer snapshots", shown(.0))]
    AmongSnapshots(Vec<u8>),
    /// Extended headers belong to no member.
    #[error("an extended header without a member after it")]
    NoMember,
    /// The job was cancelled.
    #[error("interrupted while reading")]
    Cancelled,
    /// The archive cannot be read.
    #[error("reading: {0}")]
    Io(#[from] io::Error),
}

/// Returns the beginning of a path in the form for messages.
fn shown(path: &[u8]) -> String {
    let (head, more) = path.split_at_checked(200).unwrap_or((path, &[]));
    format!("{}{}", Printable(head), if more.is_empty() { "" } else { "…" })
}
