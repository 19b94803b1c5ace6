//! The errors of manifests, with their lines.

use std::io;

use buttress_build::PathProblem;

/// A problem at a line of a manifest.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ManifestError {
    /// The line of the manifest, counted from 1. If the line of the value is not known, the number
    /// is the line of its table.
    pub line: u64,
    /// The problem.
    pub problem: Problem,
}

/// The problem of a manifest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The text violates TOML, or has unknown keys or values.
    #[error("{0}")]
    Toml(String),
    /// A line of the manifest is not UTF-8.
    #[error("not UTF-8; write names that are not UTF-8 in base64, with the key path-base64")]
    NotText,
    /// A table exceeds the size limit.
    #[error(
        "the table is too long (expected at most {0} bytes); put large content into a separate file (key source)"
    )]
    Large(usize),
    /// The head of the manifest does not state its version.
    #[error("the manifest does not begin with \"manifest = 1\"")]
    NoVersion,
    /// The manifest's version is unknown.
    #[error("unknown version of the format (found {0}, expected 1)")]
    Version(i64),
    /// The table's name is unknown.
    #[error(
        "unknown table [[{0}]] (expected rule, directory, subvolume, snapshot, file, symlink, hard-link, device, fifo, socket or remove)"
    )]
    NoTable(String),
    /// The table cannot have this key.
    #[error("[[{table}]]: unknown key {key}")]
    NoKey {
        /// The table.
        table: String,
        /// The key.
        key: &'static str,
    },
    /// A required key is missing.
    #[error("[[{table}]]: the key {key} is missing")]
    Missing {
        /// The table.
        table: String,
        /// The key.
        key: &'static str,
    },
    /// Two keys exclude each other.
    #[error("{0} and {1} cannot be combined")]
    Both(&'static str, &'static str),
    /// A value is invalid.
    #[error("{key}: invalid value (found {found}, {wanted})")]
    Value {
        /// The key.
        key: &'static str,
        /// The value of the key.
        found: String,
        /// The valid values.
        wanted: &'static str,
    },
    /// A path in the manifest is invalid.
    #[error("{key} {path:?}: {problem}")]
    Path {
        /// The key.
        key: &'static str,
        /// The path.
        path: String,
        /// The problem of the path.
        problem: PathProblem,
    },
    /// A path is described twice.
    #[error("{path:?} is already in line {line}")]
    Twice {
        /// The path.
        path: String,
        /// The line of the first description.
        line: u64,
    },
    /// A rule follows a table to which it should apply.
    #[error("a rule must come before all other tables")]
    LateRule,
    /// A file has no content.
    #[error("the file has no content; add source, text or base64, or a table [contents] at the beginning")]
    NoContent,
    /// The content of a file of the host or of an image cannot be used.
    #[error("{place}: {cause}")]
    Content {
        /// The file.
        place: String,
        /// The reason.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The length of a file differs from the manifest.
    #[error(
        "{place}: wrong length (found {found} bytes, expected {wanted}); correct the content, or `size` in the manifest"
    )]
    Size {
        /// The file.
        place: String,
        /// The length of the file.
        found: u64,
        /// The length according to the manifest.
        wanted: u64,
    },
    /// The manifest cannot be read.
    #[error("reading: {0}")]
    Io(#[source] io::Error),
}
