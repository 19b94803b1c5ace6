//! Functions for both kinds of open volumes (read-only and writable), and reads of inodes in either
//! kind. A writable volume is read live.

use buttress_fs::{DirEntry, Filesystem, Follow, Location, Metadata, Result, Xattr};
use buttress_writer::Shown;
#[cfg(feature = "write")]
use buttress_writer::WritableFilesystem;

/// How a volume is open.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    Reading(Shown),
    #[cfg(feature = "write")]
    Writing(WritableFilesystem),
}

macro_rules! either {
    ($self:ident, $call:ident($($argument:expr),*)) => {
        match $self {
            Access::Reading(shown) => shown.filesystem.$call($($argument),*),
            #[cfg(feature = "write")]
            Access::Writing(writer) => writer.live().$call($($argument),*),
        }
    };
}

impl Access {
    /// Returns the current state of the volume, which never changes.
    pub(crate) fn view(&self) -> Filesystem {
        match self {
            Self::Reading(shown) => shown.filesystem.clone(),
            #[cfg(feature = "write")]
            Self::Writing(writer) => writer.view(),
        }
    }

    pub(crate) fn resolve(&self, root: Location, path: &[u8], follow: Follow) -> Result<Location> {
        either!(self, resolve(root, path, follow))
    }

    pub(crate) fn lookup(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        either!(self, lookup(directory, name))
    }

    pub(crate) fn metadata(&self, location: Location) -> Result<Metadata> {
        either!(self, metadata(location))
    }

    pub(crate) fn read_link(&self, location: Location) -> Result<Vec<u8>> {
        either!(self, read_link(location))
    }

    pub(crate) fn xattrs(&self, location: Location) -> Result<Vec<Xattr>> {
        either!(self, xattrs(location))
    }

    pub(crate) fn xattr(&self, location: Location, name: &[u8]) -> Result<Option<Vec<u8>>> {
        either!(self, xattr(location, name))
    }
}
