//! Permissions of the caller of a control command, which the kernel does not check.
//!
//! Root and the server's own user have the rights of root; for this mount, the image belongs to the
//! server's user. Modes and owners decide for all other callers. A FUSE request contains the user
//! and one group only, not the other groups of the process, and the server does not evaluate access
//! lists. If other groups or access lists would matter, the answer is no.

use super::super::MountedVolume;
use crate::vfs::{Caller, Errno, Result};
use buttress::{Location, Metadata};

const WRITE_AND_SEARCH: u32 = 0o3;
const READ_AND_SEARCH: u32 = 0o5;
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Returns whether the caller has the rights of root.
pub(super) fn is_privileged(caller: Caller) -> bool {
    caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw()
}

/// Refuses callers without the rights of root.
pub(super) fn require_privileged(caller: Caller) -> Result<()> {
    match is_privileged(caller) {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Refuses callers that do not own the inode.
pub(super) fn require_owner(caller: Caller, metadata: &Metadata) -> Result<()> {
    match is_privileged(caller) || caller.uid == metadata.uid {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Returns whether the mode gives these rights to a caller.
fn mode_allows(caller: Caller, metadata: &Metadata, rights: u32) -> bool {
    let mode = metadata.permissions();
    let has = |shift: u32| (mode >> shift) & rights == rights;
    if caller.uid == metadata.uid {
        has(6)
    } else if caller.gid == metadata.gid {
        has(3)
    } else {
        // A supplementary group of the caller may be the group of the inode.
        has(3) && has(0)
    }
}

impl MountedVolume {
    /// Refuses callers that may not create names in a directory.
    pub(super) fn require_making(&self, caller: Caller, directory: Location) -> Result<()> {
        require_rights(self, caller, directory, WRITE_AND_SEARCH)
    }
}

/// Refuses callers that may not list a directory and search it.
pub(super) fn require_listing(volume: &MountedVolume, caller: Caller, directory: Location) -> Result<()> {
    require_rights(volume, caller, directory, READ_AND_SEARCH)
}

fn require_rights(volume: &MountedVolume, caller: Caller, directory: Location, rights: u32) -> Result<()> {
    let metadata = volume.metadata(directory)?;
    if !metadata.is_directory() {
        return Err(Errno::NOTDIR);
    }
    if is_privileged(caller) {
        return Ok(());
    }
    let has_list = volume.xattr_at(directory, ACCESS_LIST).is_ok();
    let is_owner = caller.uid == metadata.uid;
    match mode_allows(caller, &metadata, rights) && (is_owner || !has_list) {
        true => Ok(()),
        false => Err(Errno::ACCES),
    }
}
