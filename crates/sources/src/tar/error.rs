//! What can be wrong with an archive, and where.

use std::io;

use buttress_build::PathProblem;
use buttress_format::printable::Printable;

use crate::acl::AclError;

/// Something is wrong at a place in an archive.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset} of the archive: {problem}")]
pub struct TarError {
    /// Where the member's header lies, in the archive as it is without compression.
    pub offset: u64,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The header's checksum.
    #[error("not a tar header: wrong checksum (found {stored}, computed {computed})")]
    Checksum {
        /// As the header has it.
        stored: i64,
        /// As it should be.
        computed: i64,
    },
    /// A field that should be a number.
    #[error("{field} is not a number: \"{}\"", Printable(.text))]
    Number {
        /// The field.
        field: &'static str,
        /// What it holds.
        text: Vec<u8>,
    },
    /// A number below zero where there is none.
    #[error("{field} is {number}")]
    Negative {
        /// The field.
        field: &'static str,
        /// What it holds.
        number: i64,
    },
    /// A number that is too large.
    #[error("{field} is too large (found {number}, expected at most {most})")]
    Large {
        /// The field.
        field: &'static str,
        /// What it holds.
        number: u64,
        /// The largest.
        most: u64,
    },
    /// The archive ends in the middle of a member.
    #[error(
        "incomplete: {what} (found {left} bytes, expected {needed}); the archive is truncated, or the size is wrong"
    )]
    Ends {
        /// What does not fit.
        what: &'static str,
        /// So many it needs.
        needed: u64,
        /// So many there are.
        left: u64,
    },
    /// A name or an extended header larger than is taken.
    #[error("too long: {what} (found {bytes} bytes, expected at most {most})")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A record of an extended header.
    #[error("byte {at} of the extended header: {what}")]
    Record {
        /// Where in the extended header's body.
        at: usize,
        /// What is wrong.
        what: String,
    },
    /// A map of a sparse file.
    #[error("the map of a sparse file: {0}")]
    Sparse(String),
    /// A kind of member that is not known.
    #[error("a member of unknown kind {letter:?}{hint}")]
    Kind {
        /// Its letter.
        letter: char,
        /// What it may be.
        hint: &'static str,
    },
    /// A path.
    #[error("{field} \"{}\": {problem}", shown(.path))]
    Path {
        /// Which field.
        field: &'static str,
        /// The path.
        path: Vec<u8>,
        /// What is wrong with it.
        problem: PathProblem,
    },
    /// An access list.
    #[error(transparent)]
    Acl(#[from] AclError),
    /// A link that leads nowhere.
    #[error("a {0} link without a target")]
    NoTarget(&'static str),
    /// A name of an extended attribute.
    #[error("invalid name \"{}\" of an extended attribute (expected 1 to 255 bytes, without zero bytes)", shown(.0))]
    XattrName(Vec<u8>),
    /// A hard link to what is not there.
    #[error("a hard link to \"{}\", which is not an earlier member", shown(.0))]
    LinkedToNothing(Vec<u8>),
    /// A hard link to a directory.
    #[error("a hard link to \"{}\", which is a directory", shown(.0))]
    LinkedToDirectory(Vec<u8>),
    /// Symbolic links that lead in a circle.
    #[error("\"{}\" is below a loop of symbolic links", shown(.0))]
    LinkLoop(Vec<u8>),
    /// A name that marks what a lower layer has, but names nothing.
    #[error("\"{}\" marks nothing as deleted", shown(.0))]
    Whiteout(Vec<u8>),
    /// A member where snapshots of layers are to be.
    #[error("\"{}\" is in the directory of layer snapshots", shown(.0))]
    AmongSnapshots(Vec<u8>),
    /// Extended headers that belong to no member.
    #[error("an extended header without a member after it")]
    NoMember,
    /// Reading.
    #[error("reading: {0}")]
    Io(#[from] io::Error),
}

/// The beginning of a path, as people read it.
fn shown(path: &[u8]) -> String {
    let (head, more) = path.split_at_checked(200).unwrap_or((path, &[]));
    format!("{}{}", Printable(head), if more.is_empty() { "" } else { "…" })
}
