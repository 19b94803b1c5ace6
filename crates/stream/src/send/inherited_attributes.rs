//! Directories that pass attributes on to new entries.
//!
//! A default access list becomes the access list of every new file, and a compression property is
//! inherited too. A new file must have exactly the snapshot's attributes. A file without the
//! attribute must therefore not be created inside such a directory. (If the directory is the root,
//! the send cannot avoid the inheritance, as in the kernel's send: everything is created in the
//! root.)

use crate::send::error::Result;
use crate::send::inode::Attribute;
use crate::send::snapshot::Snapshot;
use buttress_format::InodeNumber;
use std::collections::HashMap;

/// Inherited attributes: the attribute of the directory, then of each new inode, then of new
/// directories.
const PASSED_ON: [(&[u8], &[u8], &[u8]); 2] = [
    (
        b"system.posix_acl_default",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
    ),
    (b"btrfs.compression", b"btrfs.compression", b"btrfs.compression"),
];

/// Flags for the attributes of [`PASSED_ON`] that a directory has.
type Has = [bool; PASSED_ON.len()];

/// Largest number of cached directories; above it the cache starts empty again.
const KNOWN_MAX: usize = 1 << 16;

/// Cache of directories and their inherited attributes.
#[derive(Debug, Default)]
pub(crate) struct InheritedAttributes {
    known: HashMap<InodeNumber, Has>,
}

impl InheritedAttributes {
    /// Records the attributes of a directory that is new to the receiver.
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

    /// Returns whether a directory of `new` would pass on an attribute that `xattrs` of the inode
    /// lacks. The directory may have its new attributes or still its old attributes at the
    /// receiver.
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

/// Reads the attributes that a directory passes on, in either snapshot.
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
