//! Extended attributes, as `listxattr(2)` and `getxattr(2)` return them.
//!
//! An item holds all attributes whose names have the same hash. Items lie in the order of the hash.
//! POSIX ACLs are stored in the form of the system call, under `system.posix_acl_access` and
//! `system.posix_acl_default`. The properties of btrfs (`btrfs.compression`) are extended
//! attributes like any other. Names in `trusted.` are listed as for a privileged caller.
//!
//! Source: on-disk format documentation, section "XATTR_ITEM".

use crate::error::{Corruption, Error, Result};
use crate::filesystem::Filesystem;
use crate::location::Location;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, DirItems, ItemType, Key, TreeId, name_hash};
use buttress_tree::ReadAhead;

/// The maximum size of all attributes of one inode in bytes, far beyond the limits of the system
/// calls.
pub const ATTRIBUTES_LIMIT: usize = 16 << 20;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// The full name, `user.…`.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// Returns the error for an inode with more extended attributes than the limit.
pub fn too_big(location: Location) -> Error {
    Error::TooBig {
        what: "extended attributes",
        location,
        limit: ByteCount::of(ATTRIBUTES_LIMIT),
    }
}

/// Appends the attributes of one item.
pub fn append_xattrs(tree: TreeId, key: &Key, data: &[u8], xattrs: &mut Vec<Xattr>) -> Result<()> {
    for entry in DirItems::parse(key, data).map_err(|error| Corruption::Item { tree, error })? {
        xattrs.push(Xattr {
            name: entry.name.to_vec(),
            value: entry.data.to_vec(),
        });
    }
    Ok(())
}

impl Filesystem {
    /// Returns all extended attributes, in the order of `listxattr(2)`.
    ///
    /// # Errors
    /// Returns [`Error::TooBig`] above 16 MiB. Also fails if the tree cannot be read. An inode that
    /// does not exist has no attributes.
    pub fn xattrs(&self, location: Location) -> Result<Vec<Xattr>> {
        let mut xattrs = Vec::new();
        if location.placeholder().is_some() {
            return Ok(xattrs);
        }
        let tree = self.subvolume_tree(location.subvolume)?;
        let first = Key::new(location.inode.object_id(), ItemType::XATTR_ITEM, 0);
        let last = Key::new(location.inode.object_id(), ItemType::XATTR_ITEM, u64::MAX);
        let mut total_bytes = 0_usize;
        for item in tree.range(first..=last, ReadAhead::None) {
            let item = item?;
            total_bytes = total_bytes.exact_add(item.data().len());
            if total_bytes > ATTRIBUTES_LIMIT {
                return Err(too_big(location));
            }
            append_xattrs(location.subvolume.tree(), &item.key(), item.data(), &mut xattrs)?;
        }
        Ok(xattrs)
    }

    /// Returns the value of one attribute, or `None`.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    pub fn xattr(&self, location: Location, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if location.placeholder().is_some() {
            return Ok(None);
        }
        let tree = self.subvolume_tree(location.subvolume)?;
        let key = Key::new(location.inode.object_id(), ItemType::XATTR_ITEM, name_hash(name));
        let Some(item) = tree.get(&key)? else {
            return Ok(None);
        };
        let mut xattrs = Vec::new();
        append_xattrs(location.subvolume.tree(), &item.key(), item.data(), &mut xattrs)?;
        Ok(xattrs
            .into_iter()
            .find(|xattr| xattr.name == name)
            .map(|xattr| xattr.value))
    }
}
