//! What all errors of the project have in common: their kind, and the refusal of features.
//!
//! Errors are of four kinds that are never mixed. Each crate's error type says which by a method `kind`.

use core::fmt;

/// The kind of an error: what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Bytes on disk break a rule of the format.
    Corrupt,
    /// The volume is in order, but uses what this version does not know.
    Unsupported,
    /// A device failed or is missing.
    Io,
    /// The caller asked for what is not there or not allowed.
    Caller,
}

/// Where the name of a feature comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureSet {
    /// Features that a reader must know.
    Incompat,
    /// Features that a writer must know.
    CompatRo,
}

impl fmt::Display for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Incompat => "incompat",
            Self::CompatRo => "compat_ro",
        })
    }
}

/// Features of a volume that this version cannot handle, by the names that btrfs-progs gives them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the volume uses {set} features that this version does not support: {}", names.join(", "))]
pub struct Unsupported {
    /// The set that the features belong to.
    pub set: FeatureSet,
    /// Their names, at least one; bits without a name read `UNKNOWN_FLAG_0x…`.
    pub names: Vec<String>,
}

impl Unsupported {
    /// Always [`ErrorKind::Unsupported`].
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::Unsupported
    }
}
