//! The kinds of errors that all crates of the project share, and the refusal of features.
//!
//! Errors are of four kinds that are never mixed. Each crate's error type has a method `kind`.

use core::fmt;

/// The kind of an error, which tells the caller how to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Bytes on disk violate a rule of the format.
    Corrupt,
    /// The volume is valid, but uses a feature that this version does not support.
    Unsupported,
    /// A device failed or is missing.
    Io,
    /// The caller asked for an object that does not exist, or for a forbidden operation.
    Caller,
}

/// The superblock's feature set that a feature belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureSet {
    /// Features that a reader must support.
    Incompat,
    /// Features that a writer must support.
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

/// Features of a volume that this version does not support, by their names in btrfs-progs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the volume uses {set} features that this version does not support: {}", names.join(", "))]
pub struct Unsupported {
    /// The set that the features belong to.
    pub set: FeatureSet,
    /// The names of the features, at least one. Bits without a name read `UNKNOWN_FLAG_0x…`.
    pub names: Vec<String>,
}

impl Unsupported {
    /// Always [`ErrorKind::Unsupported`].
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::Unsupported
    }
}
