//! What can be wrong with a manifest, and where.

use std::io;

use buttress_build::PathProblem;

/// Something is wrong at a line of a manifest.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ManifestError {
    /// The line, counted from 1: of the value where that can be told, else of the table.
    pub line: u64,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It breaks a rule of TOML, or has keys or values that there are not.
    #[error("{0}")]
    Toml(String),
    /// A line is not UTF-8.
    #[error("not UTF-8; write names that are not UTF-8 in base64, with the key path-base64")]
    NotText,
    /// A table is larger than is taken.
    #[error(
        "the table is too long (expected at most {0} bytes); put large content into a separate file (key source)"
    )]
    Large(usize),
    /// The head does not say which version this is.
    #[error("the manifest does not begin with \"manifest = 1\"")]
    NoVersion,
    /// A version that is not known.
    #[error("unknown version of the format (found {0}, expected 1)")]
    Version(i64),
    /// A table that there is not.
    #[error(
        "unknown table [[{0}]] (expected rule, directory, subvolume, snapshot, file, symlink, hard-link, device, fifo, socket or remove)"
    )]
    NoTable(String),
    /// A key that the table does not have.
    #[error("[[{table}]]: unknown key {key}")]
    NoKey {
        /// The table.
        table: String,
        /// The key.
        key: &'static str,
    },
    /// A key is missing.
    #[error("[[{table}]]: the key {key} is missing")]
    Missing {
        /// The table.
        table: String,
        /// The key.
        key: &'static str,
    },
    /// Two keys that do not go together.
    #[error("{0} and {1} cannot be combined")]
    Both(&'static str, &'static str),
    /// A value that cannot be.
    #[error("{key}: invalid value (found {found}, {wanted})")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it could be.
        wanted: &'static str,
    },
    /// A path.
    #[error("{key} {path:?}: {problem}")]
    Path {
        /// The key.
        key: &'static str,
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: PathProblem,
    },
    /// Something is described twice.
    #[error("{path:?} is already in line {line}")]
    Twice {
        /// Its path.
        path: String,
        /// Where first.
        line: u64,
    },
    /// A rule after what it should apply to.
    #[error("a rule must come before all other tables")]
    LateRule,
    /// A file without content.
    #[error("the file has no content; add source, text or base64, or a table [contents] at the beginning")]
    NoContent,
    /// A file of the host, or of an image that contents are taken from.
    #[error("{place}: {cause}")]
    Content {
        /// The file.
        place: String,
        /// Why it cannot be used.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file is not as long as the manifest says.
    #[error("{place}: wrong length (found {found} bytes, expected {wanted} by the key size)")]
    Size {
        /// The file.
        place: String,
        /// How long it is.
        found: u64,
        /// How long it should be.
        wanted: u64,
    },
    /// Reading.
    #[error("reading: {0}")]
    Io(#[source] io::Error),
}
