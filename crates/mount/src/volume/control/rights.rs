//! What a caller of a control command may do. The kernel checks nothing for these.
//!
//! The rights of root are those of root and of the server's own user, whose the image is as far as this mount goes. For all others modes
//! and owners count. A request tells the user and one group only, not the others that a process is in, and an access list
//! is not gone through: where these would matter, the answer is no.

use super::super::MountedVolume;
use crate::vfs::{Caller, Errno, Result};
use buttress::{Location, Metadata};

const WRITE_AND_SEARCH: u32 = 0o3;
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Whether it may do what root may.
pub(super) fn is_privileged(caller: Caller) -> bool {
    caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw()
}

/// Refuses all others.
pub(super) fn require_privileged(caller: Caller) -> Result<()> {
    match is_privileged(caller) {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Refuses who does not own it.
pub(super) fn require_owner(caller: Caller, metadata: &Metadata) -> Result<()> {
    match is_privileged(caller) || caller.uid == metadata.uid {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Whether a mode lets a caller make names in a directory.
fn mode_allows(caller: Caller, metadata: &Metadata) -> bool {
    let mode = metadata.permissions();
    let has = |shift: u32| (mode >> shift) & WRITE_AND_SEARCH == WRITE_AND_SEARCH;
    if caller.uid == metadata.uid {
        has(6)
    } else if caller.gid == metadata.gid {
        has(3)
    } else {
        // It may be in the group otherwise.
        has(3) && has(0)
    }
}

impl MountedVolume {
    /// Refuses who may not make names in a directory.
    pub(super) fn require_making(&self, caller: Caller, directory: Location) -> Result<()> {
        let metadata = self.metadata(directory)?;
        if !metadata.is_directory() {
            return Err(Errno::NOTDIR);
        }
        if is_privileged(caller) {
            return Ok(());
        }
        let has_list = self.xattr_at(directory, ACCESS_LIST).is_ok();
        let is_owner = caller.uid == metadata.uid;
        match mode_allows(caller, &metadata) && (is_owner || !has_list) {
            true => Ok(()),
            false => Err(Errno::ACCES),
        }
    }
}
