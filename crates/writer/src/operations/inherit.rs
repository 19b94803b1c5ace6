//! Attributes that new inodes inherit from their directory: flags, the compression property,
//! default access control lists, and, with set-group-id, the group.
//!
//! Source: btrfs(5), section "File attributes"; acl(5); inode(7) on set-group-id directories.

use super::Access;
use super::NewInode;
use super::Operation;
use buttress_engine::inherited::Inherited;
use buttress_format::inode::MODE_PERMISSION_MASK;
use buttress_format::{DirItem, DirItems, FileKind, InodeFlags, InodeItem};
use buttress_fs::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use buttress_fs::error::{Corruption, Result};
use buttress_fs::location::Location;
use buttress_fs::property::{COMPRESSION_NAME, CompressionProperty, flags_with, is_for};
use std::sync::Arc;

/// The mode of a new subvolume's root directory, unless an access control list limits it.
const SUBVOLUME_MODE: u32 = 0o040_755;

/// The set-group-id bit of a mode.
pub(super) const SET_GROUP_ID: u32 = 0o2000;

/// Mode, owner, flags and extended attributes of an inode that will be made.
#[derive(Clone, Debug)]
pub(super) struct NewInodeAttributes {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) flags: InodeFlags,
    /// Extended attributes, in the order in which they are set.
    pub(super) xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

impl Access<'_> {
    /// Returns the value of an extended attribute, or `None`.
    pub(crate) fn xattr(&mut self, location: Location, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let tree = location.subvolume.tree();
        let key = DirItem::xattr_key(location.inode, name);
        let Some(item) = self.get(tree, &key)? else {
            return Ok(None);
        };
        let mut entries =
            DirItems::parse(&key, item.data()).map_err(|error| Corruption::Item { tree, error })?;
        Ok(entries
            .find(|entry| entry.name == name)
            .map(|entry| entry.data.to_vec()))
    }
}

impl Operation<'_> {
    /// Returns the attributes that a directory's extended attributes pass on to new inodes.
    fn inherited(&mut self, directory: Location) -> Result<Arc<Inherited>> {
        if let Some(known) = self.lookups().inodes().inherited(directory) {
            return Ok(known);
        }
        let default_acl = match self.xattr(directory, DEFAULT_NAME)? {
            Some(value) => Acl::parse(&value)?,
            None => None,
        };
        let compression = match self.xattr(directory, COMPRESSION_NAME)? {
            // A property with an unknown value is not inherited.
            Some(value) => CompressionProperty::parse(&value).ok(),
            None => None,
        };
        let inherited = Arc::new(Inherited {
            default_acl,
            compression,
        });
        self.lookups()
            .inodes()
            .set_inherited(directory, Some(Arc::clone(&inherited)));
        Ok(inherited)
    }

    /// Returns the attributes of a new inode in `directory`; `kind_bits` are the type bits of its
    /// mode.
    pub(super) fn inherited_attributes(
        &mut self,
        directory: Location,
        parent: &InodeItem,
        kind_bits: u32,
        new: &NewInode,
    ) -> Result<NewInodeAttributes> {
        let kind = FileKind::from_mode(kind_bits).unwrap_or(FileKind::Unknown);
        if self.is_unfinished(directory.subvolume)? {
            return Ok(self.given_attributes(kind_bits, new));
        }
        let inherited = self.inherited(directory)?;
        let mut mode = kind_bits | (new.mode & MODE_PERMISSION_MASK);
        let mut gid = new.gid;
        if parent.mode & SET_GROUP_ID != 0 {
            gid = parent.gid;
            if kind == FileKind::Directory {
                mode |= SET_GROUP_ID;
            }
        }
        let mut flags = inherited_flags(parent.flags, kind);
        if kind == FileKind::Regular {
            flags.insert(self.data_options().flags_of_new_files());
        }
        let mut inherited_attributes = NewInodeAttributes {
            mode,
            uid: new.uid,
            gid,
            flags,
            xattrs: Vec::new(),
        };
        inherited_attributes.take_compression(inherited.compression, kind);
        inherited_attributes.take_lists(inherited.default_acl.as_ref(), kind, new.umask);
        Ok(inherited_attributes)
    }

    /// Returns the attributes of a new inode whose caller sets all of its attributes. A directory
    /// of an unfinished subvolume passes nothing on, because its inodes copy the attributes of
    /// another volume.
    pub(super) fn given_attributes(&mut self, kind_bits: u32, new: &NewInode) -> NewInodeAttributes {
        let is_file = FileKind::from_mode(kind_bits) == Some(FileKind::Regular);
        let options = self.data_options();
        NewInodeAttributes {
            mode: kind_bits | (new.mode & MODE_PERMISSION_MASK),
            uid: new.uid,
            gid: new.gid,
            flags: match is_file {
                true => options.flags_of_new_files(),
                false => InodeFlags::empty(),
            },
            xattrs: Vec::new(),
        }
    }

    /// Returns the attributes of the root directory of a new subvolume in `directory`, as the
    /// kernel sets them. A default access list of `directory` limits the root directory's mode, but
    /// is not inherited. A new subvolume's root directory inherits the compression property of the
    /// subvolume that contains `directory`, but not flags and group.
    pub(super) fn inherited_by_subvolume(&mut self, directory: Location) -> Result<NewInodeAttributes> {
        let around = self.inherited(directory)?;
        let limited = around
            .default_acl
            .clone()
            .map(|mut list| list.limit_by_mode(SUBVOLUME_MODE).0);
        let mut inherited_attributes = NewInodeAttributes {
            mode: limited.unwrap_or(SUBVOLUME_MODE),
            uid: 0,
            gid: 0,
            flags: InodeFlags::empty(),
            xattrs: Vec::new(),
        };
        let above = self.inherited(Location::root_of(directory.subvolume))?;
        inherited_attributes.take_compression(above.compression, FileKind::Directory);
        Ok(inherited_attributes)
    }
}

impl NewInodeAttributes {
    /// Inherits the compression property, if it names an algorithm and applies to this kind of
    /// inode.
    fn take_compression(&mut self, property: Option<CompressionProperty>, kind: FileKind) {
        let takes_property = is_for(kind) && !self.flags.contains(InodeFlags::NODATACOW);
        if let Some(property) = property.filter(|_| takes_property)
            && let Some(value) = property.inherited_value()
        {
            self.flags = flags_with(Some(property), self.flags);
            self.xattrs.push((COMPRESSION_NAME, value.to_vec()));
        }
    }

    /// Derives a new inode's access control lists from its directory's default list. Without a
    /// default list, the umask limits the mode.
    fn take_lists(&mut self, default: Option<&Acl>, kind: FileKind, umask: u32) {
        match default {
            Some(list) if kind != FileKind::Symlink => {
                let mut access = list.clone();
                let (limited, says_more) = access.limit_by_mode(self.mode);
                self.mode = limited;
                if kind == FileKind::Directory {
                    self.xattrs.push((DEFAULT_NAME, list.encode()));
                }
                if says_more {
                    self.xattrs.push((ACCESS_NAME, access.encode()));
                }
            }
            _ if kind == FileKind::Symlink => {}
            _ => self.mode &= !(umask & 0o777),
        }
    }
}

/// Returns the flags that new inodes inherit from a directory.
fn inherited_flags(parent: InodeFlags, kind: FileKind) -> InodeFlags {
    let mut flags = InodeFlags::empty();
    if parent.contains(InodeFlags::NOCOMPRESS) {
        flags.insert(InodeFlags::NOCOMPRESS);
    } else if parent.contains(InodeFlags::COMPRESS) {
        flags.insert(InodeFlags::COMPRESS);
    }
    if parent.contains(InodeFlags::NODATACOW) {
        flags.insert(InodeFlags::NODATACOW);
        if kind == FileKind::Regular {
            flags.insert(InodeFlags::NODATASUM);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_pass_to_files_and_directories() {
        let parent =
            InodeFlags::NODATACOW | InodeFlags::COMPRESS | InodeFlags::IMMUTABLE | InodeFlags::NODUMP;
        let own = InodeFlags::NODATACOW | InodeFlags::COMPRESS;
        assert_eq!(inherited_flags(parent, FileKind::Directory), own);
        assert_eq!(
            inherited_flags(parent, FileKind::Regular),
            own | InodeFlags::NODATASUM
        );
        let both = InodeFlags::NOCOMPRESS | InodeFlags::COMPRESS;
        assert_eq!(inherited_flags(both, FileKind::Regular), InodeFlags::NOCOMPRESS);
    }
}
