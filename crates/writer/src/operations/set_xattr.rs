//! Setting and removing extended attributes.
//!
//! Extended attributes whose names have the same hash share an item. A changed value that is alone
//! in its item keeps its position. A changed value in a shared item moves to the end, as in the
//! kernel. Some extended attributes have side effects when they are set. An access control list
//! changes the mode, and is not stored if it says no more than the mode. Setting the compression
//! property changes inode flags.
//!
//! Source: setxattr(2), removexattr(2) for meaning and errors; on-disk format documentation,
//! section "XATTR_ITEM".

use crate::WritableFilesystem;
use crate::operations::areas::Xattrs;
use buttress_engine::reservation::Need;
use buttress_format::limits::{item_bytes_max, xattr_bytes_max};
use buttress_format::{DirItem, DirItems, FileKind, InodeFlags, InodeItem};
use buttress_fs::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use buttress_fs::error::{Error, Name, Result};
use buttress_fs::location::Location;
use buttress_fs::lookup::NAME_LIMIT;
use buttress_fs::property::{COMPRESSION_NAME, CompressionProperty, PREFIX, flags_with, is_for};

/// The items that setting an extended attribute edits: its own item and the inode item.
const XATTR_ITEMS: u64 = 3;

/// The prefix of user attributes' names.
const USER: &[u8] = b"user.";

/// Whether the extended attribute may exist before the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// The attribute may exist or not.
    #[default]
    CreateOrReplace,
    /// The attribute must not exist (`XATTR_CREATE`).
    Create,
    /// The attribute must exist (`XATTR_REPLACE`).
    Replace,
}

impl WritableFilesystem {
    /// Sets an extended attribute by its full name, such as `user.…`. For access control lists,
    /// `how` has no effect. An empty value removes an access control list or the compression
    /// property.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`]; [`Error::Exists`] and [`Error::AttributeNotFound`]
    /// according to `how`. Fails with [`Error::AttributeTooLarge`] for a value that does not fit
    /// into a leaf, or not beside other attributes of the same hash. Fails with
    /// [`Error::NotPermitted`] for an immutable or append-only inode, and for `user.` on an inode
    /// that is neither a file nor a directory. Fails with [`Error::ReadOnlySubvolume`];
    /// [`Error::AttributesUnsupported`] for an unknown prefix; [`Error::Invalid`] for an invalid
    /// value of an attribute with side effects.
    pub fn set_xattr(&self, location: Location, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        check_xattr_name(name)?;
        self.operate_beside_data(Need::places(XATTR_ITEMS), |operation| {
            let item = operation.xattrs().require_change(location, name)?;
            match name {
                ACCESS_NAME => operation
                    .xattrs()
                    .set_access_list(location, &item, Acl::parse(value)?),
                DEFAULT_NAME => operation
                    .xattrs()
                    .set_default_list(location, &item, Acl::parse(value)?),
                COMPRESSION_NAME => operation.xattrs().set_compression(location, &item, value, how),
                _ => operation.xattrs().set_plain(location, name, value, how),
            }
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Fails with [`Error::AttributeNotFound`], except for access control lists, or as
    /// [`WritableFilesystem::set_xattr`] does.
    pub fn remove_xattr(&self, location: Location, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        self.operate(Need::freeing(XATTR_ITEMS), |operation| {
            let item = operation.xattrs().require_change(location, name)?;
            match name {
                ACCESS_NAME => operation.xattrs().set_access_list(location, &item, None),
                DEFAULT_NAME => operation.xattrs().set_default_list(location, &item, None),
                COMPRESSION_NAME => {
                    operation
                        .xattrs()
                        .set_compression(location, &item, b"", SetXattr::Replace)
                }
                _ => operation.xattrs().remove_plain(location, name),
            }
        })
    }
}

/// Returns an error for an invalid attribute name.
fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_LIMIT {
        return Err(Error::NameTooLong {
            length_bytes: name.len(),
            limit_bytes: NAME_LIMIT,
        });
    }
    if name.is_empty() || name.contains(&0) {
        return Err(Error::Invalid {
            what: "the attribute's name is empty or contains a zero byte",
        });
    }
    Ok(())
}

/// Returns an error for a name space that btrfs does not have.
fn check_name_space(location: Location, name: &[u8]) -> Result<()> {
    let known = [USER, b"trusted.", b"security.", PREFIX];
    if [ACCESS_NAME, DEFAULT_NAME].contains(&name) {
        return Ok(());
    }
    if !known.iter().any(|prefix| name.starts_with(prefix)) {
        return Err(Error::AttributesUnsupported { location });
    }
    if known.contains(&name) || name.starts_with(PREFIX) && name != COMPRESSION_NAME {
        return Err(Error::Invalid {
            what: "the attribute's name is only a prefix, or names an unknown btrfs property",
        });
    }
    Ok(())
}

impl Xattrs<'_, '_> {
    fn require_change(&mut self, location: Location, name: &[u8]) -> Result<InodeItem> {
        let item = self.operation.inode(location)?;
        self.operation.require_changeable(location, &item)?;
        let holds_content = matches!(item.kind(), FileKind::Regular | FileKind::Directory);
        if name.starts_with(USER) && !holds_content {
            return Err(Error::NotPermitted {
                location,
                why: "only files and directories can have user.* attributes",
            });
        }
        self.operation.require_writable(location)?;
        check_name_space(location, name)?;
        Ok(item)
    }

    /// Returns an error if the attribute's existence contradicts `how`.
    fn require_presence(&mut self, location: Location, name: &[u8], how: SetXattr) -> Result<()> {
        let is_present = self.operation.xattr(location, name)?.is_some();
        let name = || Name::from(name);
        match how {
            SetXattr::Create if is_present => Err(Error::Exists { name: name() }),
            SetXattr::Replace if !is_present => Err(Error::AttributeNotFound { name: name() }),
            _ => Ok(()),
        }
    }

    fn set_plain(&mut self, location: Location, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.require_presence(location, name, how)?;
        self.check_room(location, name, value)?;
        self.put(location, name, value)?;
        self.operation.touch_inode(location)
    }

    fn remove_plain(&mut self, location: Location, name: &[u8]) -> Result<()> {
        self.require_presence(location, name, SetXattr::Replace)?;
        self.remove_item(location, name)?;
        self.operation.touch_inode(location)
    }

    fn set_access_list(&mut self, location: Location, item: &InodeItem, list: Option<Acl>) -> Result<()> {
        if item.kind() == FileKind::Symlink {
            return Err(Error::AttributesUnsupported { location });
        }
        let Some(list) = list else {
            self.remove_item(location, ACCESS_NAME)?;
            return self.operation.touch_inode(location);
        };
        list.check()?;
        let (bits, is_all) = list.to_mode();
        let mode = (item.mode & !0o777) | bits;
        if is_all {
            self.remove_item(location, ACCESS_NAME)?;
        } else {
            let value = list.encode();
            self.check_room(location, ACCESS_NAME, &value)?;
            self.put(location, ACCESS_NAME, &value)?;
        }
        self.operation.touch_inode(location)?;
        self.operation.change_inode(location, |item| item.mode = mode)
    }

    fn set_default_list(&mut self, location: Location, item: &InodeItem, list: Option<Acl>) -> Result<()> {
        match (item.kind(), list) {
            (FileKind::Symlink, _) => return Err(Error::AttributesUnsupported { location }),
            (FileKind::Directory, Some(list)) => {
                list.check()?;
                let value = list.encode();
                self.check_room(location, DEFAULT_NAME, &value)?;
                self.put(location, DEFAULT_NAME, &value)?;
            }
            (FileKind::Directory, None) => self.remove_item(location, DEFAULT_NAME)?,
            (_, Some(_)) => {
                return Err(Error::AccessDenied {
                    location,
                    why: "only directories can have default access control lists",
                });
            }
            (_, None) => return Ok(()),
        }
        self.operation.touch_inode(location)
    }

    fn set_compression(
        &mut self,
        location: Location,
        item: &InodeItem,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let property = match value {
            // Removing the value is always valid.
            b"" => None,
            value => {
                let in_place = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
                if item.flags.intersects(in_place) {
                    return Err(Error::Invalid {
                        what: "an inode with nodatacow or nodatasum cannot be compressed",
                    });
                }
                Some(CompressionProperty::parse(value)?)
            }
        };
        if !is_for(item.kind()) {
            // The kernel accepts the compression property on inodes that are neither files nor
            // directories, and does nothing.
            return Ok(());
        }
        if property.is_some() {
            self.require_presence(location, COMPRESSION_NAME, how)?;
            self.check_room(location, COMPRESSION_NAME, value)?;
            self.put(location, COMPRESSION_NAME, value)?;
        } else {
            if how == SetXattr::Replace {
                self.require_presence(location, COMPRESSION_NAME, how)?;
            }
            self.remove_item(location, COMPRESSION_NAME)?;
        }
        self.require_feature_of(COMPRESSION_NAME, value);
        self.operation.touch_inode(location)?;
        self.operation
            .change_inode(location, |item| item.flags = flags_with(property, item.flags))
    }

    /// Sets the volume's feature flag that an attribute's value requires.
    pub(super) fn require_feature_of(&mut self, name: &[u8], value: &[u8]) {
        if name == COMPRESSION_NAME
            && let Ok(property) = CompressionProperty::parse(value)
            && let Some(feature) = property.feature()
        {
            self.operation.edit().use_feature(feature);
        }
    }

    /// Returns an error for a value that does not fit into the item of its hash.
    fn check_room(&mut self, location: Location, name: &[u8], value: &[u8]) -> Result<()> {
        let too_large = || Error::AttributeTooLarge {
            name: Name::from(name),
        };
        let node_bytes = self.operation.node_bytes();
        if name.len().saturating_add(value.len()) > xattr_bytes_max(node_bytes) {
            return Err(too_large());
        }
        let key = DirItem::xattr_key(location.inode, name);
        self.operation.reach(location.subvolume.tree(), &[key])?;
        let Some(item) = self.operation.get(location.subvolume.tree(), &key)? else {
            return Ok(());
        };
        let others_bytes = DirItems::parse(&key, item.data())
            .into_iter()
            .flatten()
            .filter(|entry| entry.name != name)
            .map(|entry| entry.encoded_bytes())
            .fold(0_usize, usize::saturating_add);
        drop(item);
        let own_bytes = self.operation.xattr_entry(name, value).encoded_bytes();
        if others_bytes > 0 && others_bytes.saturating_add(own_bytes) > item_bytes_max(node_bytes) {
            return Err(too_large());
        }
        Ok(())
    }

    /// Adds an extended attribute, or replaces one of the same name. The inode item does not
    /// change.
    pub(super) fn put(&mut self, location: Location, name: &[u8], value: &[u8]) -> Result<()> {
        let entry = self.operation.xattr_entry(name, value);
        let key = DirItem::xattr_key(location.inode, name);
        self.operation
            .append(location.subvolume.tree(), &key, &mut |data| {
                if !buttress_faults::on("xattr-keeps-old-value") {
                    DirItems::remove(data, name);
                }
                DirItems::push(data, &entry).map_err(|_| Error::AttributeTooLarge {
                    name: Name::from(name),
                })
            })?;
        self.forget_inherited(location, name);
        Ok(())
    }

    /// Removes an extended attribute, if it exists. Removing the item does not change the inode.
    pub(crate) fn remove_item(&mut self, location: Location, name: &[u8]) -> Result<()> {
        let key = DirItem::xattr_key(location.inode, name);
        self.operation
            .shrink(location.subvolume.tree(), &key, &mut |data| {
                DirItems::remove(data, name)
            })?;
        self.forget_inherited(location, name);
        Ok(())
    }

    fn forget_inherited(&mut self, location: Location, name: &[u8]) {
        if [DEFAULT_NAME, COMPRESSION_NAME].contains(&name) {
            self.operation.lookups().inodes().set_inherited(location, None);
        }
    }
}
