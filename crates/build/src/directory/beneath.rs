//! Files below an open directory. No component of their paths is followed if it is a symbolic link.
//!
//! Between two accesses, another process can replace any component of a path. Opening one component
//! after another never leaves the open directory, and [`Identity`] recognises a replaced file.

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Flags that open a directory for reading its entries.
pub(super) const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The identity of a file on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Identity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Opens the file at `path` below `top`; for an empty path, `top` itself. A symbolic link on the path
/// or at its end is an error, unless `flags` contain [`OFlags::PATH`], which opens the link itself.
pub(super) fn open_beneath(top: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut above: Option<OwnedFd> = None;
    let mut components = path.split(|byte| *byte == b'/').peekable();
    while let Some(component) = components.next() {
        let is_last = components.peek().is_none();
        let flags = match is_last {
            true => flags,
            false => OFlags::PATH | OFlags::DIRECTORY,
        };
        let name: &[u8] = match component {
            b"" => b".",
            name => name,
        };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = above.as_ref().map_or(top, |above| above.as_fd());
        let opened = openat(from, name, flags, Mode::empty())?;
        if is_last {
            return Ok(opened);
        }
        above = Some(opened);
    }
    Err(Errno::NOENT)
}
