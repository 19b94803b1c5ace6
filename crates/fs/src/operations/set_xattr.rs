//! Setting and removing extended attributes.
//!
//! Attributes whose names have the same hash share an item. A value that changes keeps its place where it is alone in
//! its item, else it goes to the end, as in the kernel. Some attributes mean more: access control lists change the mode
//! and are not stored when they say no more than it; the property of compression changes flags.
//!
//! Source: setxattr(2), removexattr(2) for meaning and errors; on-disk format documentation, section "XATTR_ITEM".

use super::Operation;
use super::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use super::property::{COMPRESSION_NAME, CompressionProperty, PREFIX, flags_with, is_for};
use crate::error::{Error, Name, Result};
use crate::location::Location;
use crate::lookup::NAME_LIMIT;
use crate::transaction::WritableFilesystem;
use crate::transaction::starting::Need;
use buttress_format::inode::MODE_PERMISSION_MASK;
use buttress_format::limits::{packed_item_bytes_max, xattr_bytes_max};
use buttress_format::{DirItem, DirItems, FileKind, InodeItem};

/// Items that an attribute takes: its own, the inode's.
const XATTR_ITEMS: u64 = 3;

/// Whether an attribute may be there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// Either way.
    #[default]
    CreateOrReplace,
    /// It must not be there (`XATTR_CREATE`).
    Create,
    /// It must be there (`XATTR_REPLACE`).
    Replace,
}

impl WritableFilesystem {
    /// Sets an attribute. The name is the full one, `user.…`.
    ///
    /// # Errors
    /// [`Error::InodeNotFound`]; [`Error::Exists`] and [`Error::AttributeNotFound`] as `how` asks;
    /// [`Error::AttributeTooLarge`] for a value that does not fit into a leaf, or not beside the other attributes of the
    /// same hash; [`Error::NotPermitted`] for an immutable or append-only inode; [`Error::ReadOnlySubvolume`];
    /// [`Error::Invalid`] for a name without a known prefix, or a value that an attribute with a meaning cannot have.
    pub fn set_xattr(&self, location: Location, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        check_xattr_name(name)?;
        self.operate(Need::items(XATTR_ITEMS), |operation| {
            let item = operation.require_xattr_change(location)?;
            let present = operation.xattr(location, name)?;
            match (how, &present) {
                (SetXattr::Create, Some(_)) => {
                    return Err(Error::Exists {
                        name: Name::from(name),
                    });
                }
                (SetXattr::Replace, None) => {
                    return Err(Error::AttributeNotFound {
                        name: Name::from(name),
                    });
                }
                _ => {}
            }
            match name {
                ACCESS_NAME => operation.set_access_list(location, &item, value),
                DEFAULT_NAME => operation.set_default_list(location, &item, value),
                COMPRESSION_NAME => operation.set_compression(location, &item, value),
                _ => operation.set_plain(location, name, value),
            }
        })
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// [`Error::AttributeNotFound`], and those of [`WritableFilesystem::set_xattr`].
    pub fn remove_xattr(&self, location: Location, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        self.operate(Need::freeing(XATTR_ITEMS), |operation| {
            operation.require_xattr_change(location)?;
            if operation.xattr(location, name)?.is_none() {
                return Err(Error::AttributeNotFound {
                    name: Name::from(name),
                });
            }
            operation.remove_xattr_item(location, name)?;
            operation.touch_inode(location)?;
            if name == COMPRESSION_NAME {
                operation.change_inode(location, |item| item.flags = flags_with(None, item.flags))?;
            }
            Ok(())
        })
    }
}

/// Refuses names that no attribute can have, and name spaces that btrfs does not have.
fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_LIMIT {
        return Err(Error::NameTooLong {
            length_bytes: name.len(),
            limit_bytes: NAME_LIMIT,
        });
    }
    let is_known = [&b"user."[..], b"trusted.", b"security."]
        .iter()
        .any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
        || [ACCESS_NAME, DEFAULT_NAME, COMPRESSION_NAME].contains(&name);
    if is_known && !name.contains(&0) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: if name.starts_with(PREFIX) {
            "a property that btrfs does not have"
        } else {
            "an attribute outside of user., trusted., security. and the access control lists"
        },
    })
}

impl Operation<'_> {
    fn require_xattr_change(&mut self, location: Location) -> Result<InodeItem> {
        self.require_writable(location)?;
        let item = self.inode(location)?;
        self.require_changeable(location, &item)?;
        Ok(item)
    }

    fn set_plain(&mut self, location: Location, name: &[u8], value: &[u8]) -> Result<()> {
        self.check_xattr_room(location, name, value)?;
        self.put_xattr(location, name, value)?;
        self.touch_inode(location)
    }

    fn set_access_list(&mut self, location: Location, item: &InodeItem, value: &[u8]) -> Result<()> {
        if item.kind() == FileKind::Symlink {
            return Err(Error::AttributesUnsupported { location });
        }
        let Some(list) = Acl::parse(value)? else {
            self.remove_xattr_item(location, ACCESS_NAME)?;
            return self.touch_inode(location);
        };
        let (bits, is_all) = list.to_mode();
        let mode = (item.mode & !(MODE_PERMISSION_MASK & 0o777)) | bits;
        if is_all {
            self.remove_xattr_item(location, ACCESS_NAME)?;
        } else {
            let value = list.encode();
            self.check_xattr_room(location, ACCESS_NAME, &value)?;
            self.put_xattr(location, ACCESS_NAME, &value)?;
        }
        self.touch_inode(location)?;
        self.change_inode(location, |item| item.mode = mode)
    }

    fn set_default_list(&mut self, location: Location, item: &InodeItem, value: &[u8]) -> Result<()> {
        let list = Acl::parse(value)?;
        if item.kind() != FileKind::Directory {
            return match list {
                None => Ok(()),
                Some(_) => Err(Error::NotADirectory {
                    path: location.to_string().into(),
                }),
            };
        }
        match list {
            Some(list) => {
                let value = list.encode();
                self.check_xattr_room(location, DEFAULT_NAME, &value)?;
                self.put_xattr(location, DEFAULT_NAME, &value)?;
            }
            None => self.remove_xattr_item(location, DEFAULT_NAME)?,
        }
        self.touch_inode(location)
    }

    fn set_compression(&mut self, location: Location, item: &InodeItem, value: &[u8]) -> Result<()> {
        let property = match value {
            b"" => None,
            value => Some(CompressionProperty::parse(value)?),
        };
        if !is_for(item.kind()) {
            return Err(Error::Invalid {
                what: "compression of what is neither a file nor a directory",
            });
        }
        if property.is_some() {
            self.check_xattr_room(location, COMPRESSION_NAME, value)?;
            self.put_xattr(location, COMPRESSION_NAME, value)?;
        } else {
            self.remove_xattr_item(location, COMPRESSION_NAME)?;
        }
        self.require_feature_of(COMPRESSION_NAME, value);
        self.touch_inode(location)?;
        self.change_inode(location, |item| item.flags = flags_with(property, item.flags))
    }

    /// Marks the volume as using the feature that an attribute's value stands for.
    pub(super) fn require_feature_of(&mut self, name: &[u8], value: &[u8]) {
        if name == COMPRESSION_NAME
            && let Ok(property) = CompressionProperty::parse(value)
            && let Some(feature) = property.feature()
        {
            self.edit().use_feature(feature);
        }
    }

    /// Refuses a value that would not fit.
    fn check_xattr_room(&mut self, location: Location, name: &[u8], value: &[u8]) -> Result<()> {
        let too_large = || Error::AttributeTooLarge {
            name: Name::from(name),
        };
        let node_bytes = self.node_bytes();
        if name.len().saturating_add(value.len()) > xattr_bytes_max(node_bytes) {
            return Err(too_large());
        }
        let key = DirItem::xattr_key(location.inode, name);
        let Some(item) = self.get(location.subvolume.tree(), &key)? else {
            return Ok(());
        };
        let others_bytes = DirItems::parse(&key, item.data())
            .into_iter()
            .flatten()
            .filter(|entry| entry.name != name)
            .map(|entry| entry.encoded_bytes())
            .fold(0_usize, usize::saturating_add);
        drop(item);
        let own_bytes = self.xattr_entry(name, value).encoded_bytes();
        if others_bytes > 0 && others_bytes.saturating_add(own_bytes) > packed_item_bytes_max(node_bytes) {
            return Err(too_large());
        }
        Ok(())
    }

    /// Puts an attribute in, in place of one of the same name. The inode is not touched.
    pub(super) fn put_xattr(&mut self, location: Location, name: &[u8], value: &[u8]) -> Result<()> {
        let entry = self.xattr_entry(name, value);
        let key = DirItem::xattr_key(location.inode, name);
        self.append(location.subvolume.tree(), &key, &mut |data| {
            DirItems::remove(data, name);
            DirItems::push(data, &entry).map_err(|_| Error::AttributeTooLarge {
                name: Name::from(name),
            })
        })?;
        self.forget_inherited(location, name);
        Ok(())
    }

    /// Takes an attribute away, if it is there. The inode is not touched.
    pub(super) fn remove_xattr_item(&mut self, location: Location, name: &[u8]) -> Result<()> {
        let key = DirItem::xattr_key(location.inode, name);
        self.shrink(location.subvolume.tree(), &key, &mut |data| {
            DirItems::remove(data, name)
        })?;
        self.forget_inherited(location, name);
        Ok(())
    }

    fn forget_inherited(&mut self, location: Location, name: &[u8]) {
        if [DEFAULT_NAME, COMPRESSION_NAME].contains(&name) {
            self.look().inodes.set_inherited(location, None);
        }
    }
}
