//! The errors of sorting and packing.

use std::path::PathBuf;

/// The error of sorting or packing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Data that exceeds the memory could not be spooled.
    #[error("cannot write a spool file in {}: {cause}", folder.display())]
    Spool {
        /// The folder of spool files.
        folder: PathBuf,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// A defect of the caller: its items fit no tree.
    #[error("a defect of the packed items: {what}")]
    Defect {
        /// The violated rule.
        what: &'static str,
    },
    /// The caller's own error: it has no address for the next block, or cannot keep the block.
    #[error(transparent)]
    Caller(Box<dyn std::error::Error + Send + Sync>),
}

/// The result of sorting or packing.
pub type Result<T> = core::result::Result<T, Error>;
