//! Which directories pass attributes on to what is made in them.
//!
//! A default access list becomes the access list of every new file, and a compression property becomes theirs too.
//! The snapshot says what each file has; so what does not have the attribute itself must not be made inside such
//! a directory. (Nothing can be done where it is the root, as in the kernel's send: all is made in there.)

use crate::send::error::Result;
use crate::send::inode::Attribute;
use crate::send::snapshot::Snapshot;
use buttress_format::InodeNumber;
use std::collections::HashMap;

/// The attributes that directories pass on, and what they become: of every new inode, and of new directories.
const PASSED_ON: [(&[u8], &[u8], &[u8]); 2] = [
    (
        b"system.posix_acl_default",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
    ),
    (b"btrfs.compression", b"btrfs.compression", b"btrfs.compression"),
];

/// Which of [`PASSED_ON`] a directory has.
type Has = [bool; PASSED_ON.len()];

/// How many directories are remembered; above that the memory starts afresh.
const KNOWN_MAX: usize = 1 << 16;

/// What is known of directories.
#[derive(Debug, Default)]
pub(crate) struct InheritedAttributes {
    known: HashMap<InodeNumber, Has>,
}

impl InheritedAttributes {
    /// Takes note of the attributes of a directory that the receiver did not have before.
    pub(crate) fn remember(&mut self, directory: InodeNumber, xattrs: &[Attribute]) {
        let has = PASSED_ON.map(|(name, _, _)| has(xattrs, name));
        self.insert(directory, has);
    }

    fn insert(&mut self, directory: InodeNumber, has: Has) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(directory, has);
    }

    /// Whether a directory of `new`, as it is or as the receiver may still have it, would pass on what the inode
    /// with `xattrs` is not to have.
    pub(crate) fn would_inherit(
        &mut self,
        directory: InodeNumber,
        is_directory: bool,
        xattrs: &[Attribute],
        new: &Snapshot,
        old: Option<&Snapshot>,
    ) -> Result<bool> {
        if directory == InodeNumber::ROOT_DIRECTORY {
            return Ok(false);
        }
        let passed_on = match self.known.get(&directory) {
            Some(&known) => known,
            None => {
                let found = look_up(directory, new, old)?;
                self.insert(directory, found);
                found
            }
        };
        Ok(PASSED_ON
            .iter()
            .zip(passed_on)
            .any(|((_, inode, directory), passed_on)| {
                passed_on && !(has(xattrs, inode) && (!is_directory || has(xattrs, directory)))
            }))
    }
}

fn has(xattrs: &[Attribute], name: &[u8]) -> bool {
    xattrs.iter().any(|xattr| xattr.name == name)
}

/// Which attributes a directory passes on, in either snapshot.
fn look_up(directory: InodeNumber, new: &Snapshot, old: Option<&Snapshot>) -> Result<Has> {
    let mut found = Has::default();
    for snapshot in [Some(new), old].into_iter().flatten() {
        let location = snapshot.location(directory);
        for (found, (name, _, _)) in found.iter_mut().zip(PASSED_ON) {
            *found = *found || snapshot.filesystem().xattr(location, name)?.is_some();
        }
    }
    Ok(found)
}
