//! Locations of files: a subvolume, and an inode in it.

use buttress_format::{InodeNumber, SubvolumeId};
use core::fmt;

/// The number of the inode that stands for a nested subvolume inside a snapshot.
///
/// A snapshot holds the directory entry of a subvolume that was nested in its source, but not the
/// subvolume. The kernel shows an empty directory with this inode number in place of the missing
/// subvolume.
pub const PLACEHOLDER_INODE: InodeNumber = InodeNumber::new(2);

/// An inode of a subvolume, to which a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The subvolume.
    pub subvolume: SubvolumeId,
    /// The inode in the subvolume; [`PLACEHOLDER_INODE`] for a placeholder.
    pub inode: InodeNumber,
    /// For a placeholder, the directory that holds it and determines its owner; otherwise zero.
    placeholder_directory: InodeNumber,
}

impl Location {
    /// Makes the location of `inode` in `subvolume`.
    #[must_use]
    pub const fn new(subvolume: SubvolumeId, inode: InodeNumber) -> Self {
        Self {
            subvolume,
            inode,
            placeholder_directory: InodeNumber::MIN,
        }
    }

    /// Returns the root directory of `subvolume`.
    #[must_use]
    pub const fn root_of(subvolume: SubvolumeId) -> Self {
        Self::new(subvolume, InodeNumber::ROOT_DIRECTORY)
    }

    /// Returns the placeholder in `directory` for an absent subvolume.
    #[must_use]
    pub const fn placeholder_in(directory: Self) -> Self {
        Self {
            subvolume: directory.subvolume,
            inode: PLACEHOLDER_INODE,
            placeholder_directory: directory.inode,
        }
    }

    /// Returns true if this is the root directory of its subvolume.
    #[must_use]
    pub fn is_subvolume_root(self) -> bool {
        self.inode == InodeNumber::ROOT_DIRECTORY
    }

    /// Returns the directory that holds a placeholder.
    #[must_use]
    pub fn placeholder(self) -> Option<Self> {
        (self.placeholder_directory != InodeNumber::MIN)
            .then(|| Self::new(self.subvolume, self.placeholder_directory))
    }
}

/// Prints `subvolume 5, inode 257`.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subvolume {}, inode {}", self.subvolume, self.inode)
    }
}
