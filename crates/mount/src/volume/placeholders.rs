//! The empty directories in a snapshot that represent the nested subvolumes of its source.
//!
//! They answer as in the kernel, which creates their inodes in memory:
//!
//! | call | answer |
//! |---|---|
//! | `stat` | inode 2, mode 755, the owner of the directory that holds it |
//! | `chmod`, `chown`, `utimes` | succeed, also in a read-only snapshot, and change nothing |
//! | creating a file in it | EACCES for a regular file, EPERM for any other kind, EOPNOTSUPP without a name |
//! | extended attributes | EOPNOTSUPP; access lists do not exist |
//! | control commands | ENOTTY |
//! | `rename` of it | EXDEV to another subvolume, else ENOTEMPTY |
//! | `rename` of a directory over it, `rmdir` | succeed |
//!
//! For placeholders, two answers differ from the kernel's. While a program holds a placeholder
//! open, the kernel shows the changed attributes; this server never shows them. The kernel aborts
//! its transaction when a placeholder is exchanged with another entry; this server refuses the
//! exchange.

use super::MountedVolume;
use crate::vfs::{Changes, Errno, Result, Shown};
use buttress::Location;

/// Returns `refused` if `location` is a placeholder.
pub(super) fn refuse_placeholder(location: Location, refused: Errno) -> Result<()> {
    match location.placeholder() {
        Some(_) => Err(refused),
        None => Ok(()),
    }
}

impl MountedVolume {
    /// Accepts changes of a placeholder's attributes, which are stored nowhere.
    pub(super) fn change_placeholder(&self, location: Location, changes: &Changes) -> Result<Shown> {
        self.writer()?;
        if changes.size.is_some() {
            return Err(Errno(libc::EISDIR));
        }
        self.shown(location)
    }
}
