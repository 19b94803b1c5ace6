//! Mode, owner, times, and flags of inodes.
//!
//! Source: chmod(2), chown(2), utimensat(2), ioctl_iflags(2) for meaning; btrfs(5), section "File attributes".

use super::Operation;
use super::inherit::SET_GROUP_ID;
use crate::WritableFilesystem;
use buttress_engine::reservation::Need;
use buttress_format::inode::{MODE_PERMISSION_MASK, MODE_TYPE_MASK};
use buttress_format::{ByteCount, Compression, FileKind, InodeFlags, InodeItem, Timestamp};
use buttress_fs::acl::{ACCESS_NAME, Acl};
use buttress_fs::error::{Error, Result};
use buttress_fs::inode::FileAttributes;
use buttress_fs::location::Location;
use buttress_fs::property::{COMPRESSION_NAME, CompressionProperty, flags_with};

const SET_USER_ID: u32 = 0o4000;
const GROUP_EXECUTE: u32 = 0o010;
/// The extended attribute that a change of owner removes together with the set-id bits.
const CAPABILITY_NAME: &[u8] = b"security.capability";

/// The items that a change of attributes edits: the inode and two extended attributes.
const CHANGE_ITEMS: u64 = 4;

/// Changes of an inode's attributes; `None` keeps the current value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The time of the last access.
    pub accessed: Option<Timestamp>,
    /// The time of the last change of content.
    pub modified: Option<Timestamp>,
    /// The time of the last change of the inode; `None` means the time of this operation. No system
    /// call sets the change time, but exact copies need to set it.
    pub changed: Option<Timestamp>,
    /// The creation time of the inode. No system call sets the creation time.
    pub created: Option<Timestamp>,
}

impl WritableFilesystem {
    /// Changes mode, owner or times of an inode. A new owner or group of a file removes its set-id
    /// bits and its capabilities, as `chown(2)` does, unless the call also sets a mode. A change of
    /// mode also changes the inode's access control list. Times after
    /// [`Environment::latest`](crate::Environment::latest) are reduced to that time.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`]; [`Error::NotPermitted`] for an immutable or append-only
    /// inode; [`Error::ReadOnlySubvolume`]; [`Error::Invalid`] for a mode with other bits, or
    /// nanoseconds above 999,999,999.
    pub fn set_attributes(&self, location: Location, changes: &AttributeChanges) -> Result<()> {
        changes.check()?;
        self.set_attributes_where(location, changes, |operation, item| {
            operation.require_changeable(location, item)
        })
    }

    /// Sets times for a call that requests the current time instead of explicit times. Append-only
    /// inodes allow setting the current time.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::set_attributes`] does.
    pub fn touch(&self, location: Location, changes: &AttributeChanges) -> Result<()> {
        let times = AttributeChanges {
            accessed: changes.accessed,
            modified: changes.modified,
            changed: changes.changed,
            ..AttributeChanges::default()
        };
        times.check()?;
        self.set_attributes_where(location, &times, |_, item| {
            if item.flags.contains(InodeFlags::IMMUTABLE) {
                return Err(Error::NotPermitted {
                    location,
                    why: "it is immutable",
                });
            }
            Ok(())
        })
    }

    fn set_attributes_where(
        &self,
        location: Location,
        changes: &AttributeChanges,
        require: impl Fn(&mut Operation<'_>, &InodeItem) -> Result<()>,
    ) -> Result<()> {
        let changes = &changes.no_later_than(self.latest_time());
        self.operate(Need::places(CHANGE_ITEMS), |operation| {
            operation.require_writable(location)?;
            let item = operation.inode(location)?;
            require(operation, &item)?;
            operation.set_attributes(location, &item, changes)
        })
    }

    /// Sets all flags that `chattr` can set, and clears those not in `attributes`.
    ///
    /// For a file with content, the flag against copy-on-write stays unchanged. The compression
    /// flags set and remove the property `btrfs.compression`.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`] or [`Error::ReadOnlySubvolume`]. Fails with
    /// [`Error::AttributesUnsupported`] for other inodes than files and directories, and with
    /// [`Error::Invalid`] for flags that `chattr` cannot set or combine.
    pub fn set_flags(&self, location: Location, attributes: FileAttributes) -> Result<()> {
        // The inode item shows whether the file has content only if the file has no dirty data.
        self.writeback().write_file(location)?;
        self.operate_beside_data(Need::places(CHANGE_ITEMS), |operation| {
            operation.require_writable(location)?;
            let item = operation.inode(location)?;
            if !matches!(item.kind(), FileKind::Regular | FileKind::Directory) {
                return Err(Error::AttributesUnsupported { location });
            }
            operation.set_flags(location, &item, attributes)
        })
    }
}

impl AttributeChanges {
    pub(super) fn check(&self) -> Result<()> {
        if self.mode.is_some_and(|mode| mode & !MODE_PERMISSION_MASK != 0) {
            return Err(Error::Invalid {
                what: "the mode has bits other than permissions",
            });
        }
        let times = [self.accessed, self.modified, self.changed, self.created];
        if times
            .iter()
            .flatten()
            .any(|time| time.nanoseconds >= 1_000_000_000)
        {
            return Err(Error::Invalid {
                what: "the nanoseconds of a time are a second or more",
            });
        }
        Ok(())
    }

    /// Returns the same attribute changes with no time later than `latest`.
    pub(super) fn no_later_than(&self, latest: Option<Timestamp>) -> Self {
        let clamped = |time: Option<Timestamp>| match (time, latest) {
            (Some(time), Some(latest)) => Some(time.min(latest)),
            (time, _) => time,
        };
        Self {
            accessed: clamped(self.accessed),
            modified: clamped(self.modified),
            changed: clamped(self.changed),
            created: clamped(self.created),
            ..*self
        }
    }

    /// Applies all changes to an inode item, except the time of its last change.
    pub(super) fn apply_to(&self, item: &mut InodeItem) {
        item.mode = self.mode_after(item);
        item.uid = self.uid.unwrap_or(item.uid);
        item.gid = self.gid.unwrap_or(item.gid);
        item.atime = self.accessed.unwrap_or(item.atime);
        item.mtime = self.modified.unwrap_or(item.mtime);
        item.otime = self.created.unwrap_or(item.otime);
    }

    /// Returns the mode of an inode after the changes.
    fn mode_after(&self, item: &InodeItem) -> u32 {
        if let Some(mode) = self.mode {
            return (item.mode & MODE_TYPE_MASK) | mode;
        }
        let changes_owner = self.uid.is_some() || self.gid.is_some();
        let mut mode = item.mode;
        if changes_owner && item.kind() != FileKind::Directory {
            mode &= !SET_USER_ID;
            if mode & GROUP_EXECUTE != 0 {
                mode &= !SET_GROUP_ID;
            }
        }
        mode
    }
}

impl Operation<'_> {
    fn set_attributes(
        &mut self,
        location: Location,
        item: &InodeItem,
        changes: &AttributeChanges,
    ) -> Result<()> {
        let mode = changes.mode_after(item);
        // Symlinks have no access control list, so their mode changes alone.
        let has_list = changes.mode.is_some() && item.kind() != FileKind::Symlink;
        let list = match has_list
            .then(|| self.xattr(location, ACCESS_NAME))
            .transpose()?
            .flatten()
        {
            Some(value) => Acl::parse(&value)?,
            None => None,
        };
        let changes_owner = changes.uid.is_some() || changes.gid.is_some();
        if changes_owner
            && item.kind() != FileKind::Directory
            && self.xattr(location, CAPABILITY_NAME)?.is_some()
        {
            self.xattrs().remove_item(location, CAPABILITY_NAME)?;
            self.touch_inode(location)?;
        }
        let now = self.now();
        self.touch_inode(location)?;
        self.change_inode(location, |item| {
            item.mode = mode;
            item.uid = changes.uid.unwrap_or(item.uid);
            item.gid = changes.gid.unwrap_or(item.gid);
            item.atime = changes.accessed.unwrap_or(item.atime);
            item.mtime = changes.modified.unwrap_or(item.mtime);
            item.otime = changes.created.unwrap_or(item.otime);
        })?;
        if let Some(mut list) = list {
            list.follow_mode(mode);
            self.xattrs().put(location, ACCESS_NAME, &list.encode())?;
            self.touch_inode(location)?;
        }
        let changed = changes.changed.unwrap_or(now);
        self.change_inode(location, |item| item.ctime = changed)
    }

    fn set_flags(&mut self, location: Location, item: &InodeItem, attributes: FileAttributes) -> Result<()> {
        let flags = stored_flags(item, attributes)?;
        let compresses = attributes.contains(FileAttributes::COMPRESS);
        let had_property = self.xattr(location, COMPRESSION_NAME)?.is_some();
        if compresses {
            let zlib = CompressionProperty::With(Compression::Zlib);
            self.xattrs().put(
                location,
                COMPRESSION_NAME,
                zlib.inherited_value().unwrap_or_default(),
            )?;
        } else if had_property {
            self.xattrs().remove_item(location, COMPRESSION_NAME)?;
        }
        self.lookups().inodes().set_inherited(location, None);
        self.touch_inode(location)?;
        self.change_inode(location, |item| item.flags = flags)
    }
}

/// Returns the flags of an inode item for `chattr` flags, given the inode's current item.
fn stored_flags(item: &InodeItem, attributes: FileAttributes) -> Result<InodeFlags> {
    let excluding = FileAttributes::COMPRESS | FileAttributes::NOCOMPRESS;
    if attributes.contains(excluding) {
        return Err(Error::Invalid {
            what: "the flags compress and nocompress cannot be combined",
        });
    }
    if attributes.contains(FileAttributes::NOCOW | FileAttributes::COMPRESS) {
        return Err(Error::Invalid {
            what: "the flags compress and nodatacow cannot be combined",
        });
    }
    let had_nocow = item.flags.contains(InodeFlags::NODATACOW);
    let had_compression = item
        .flags
        .intersects(InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS);
    if had_nocow && attributes.intersects(excluding)
        || had_compression && attributes.contains(FileAttributes::NOCOW)
    {
        return Err(Error::Invalid {
            what: "flags of compression and nodatacow cannot be combined; clear one first",
        });
    }
    if attributes.contains(FileAttributes::VERITY) && !item.flags.contains(InodeFlags::VERITY) {
        return Err(Error::Invalid {
            what: "the fs-verity flag cannot be set by this call",
        });
    }
    let mut flags = item.flags;
    for (shown, stored) in [
        (FileAttributes::SYNC, InodeFlags::SYNC),
        (FileAttributes::IMMUTABLE, InodeFlags::IMMUTABLE),
        (FileAttributes::APPEND, InodeFlags::APPEND),
        (FileAttributes::NODUMP, InodeFlags::NODUMP),
        (FileAttributes::NOATIME, InodeFlags::NOATIME),
        (FileAttributes::DIRSYNC, InodeFlags::DIRSYNC),
    ] {
        flags.set(stored, attributes.contains(shown));
    }
    // The kernel keeps this flag for directories only.
    if item.kind() != FileKind::Directory {
        flags.remove(InodeFlags::DIRSYNC);
    }
    let wants_nocow = attributes.contains(FileAttributes::NOCOW);
    match item.kind() {
        // Existing content keeps its compressed or plain form.
        FileKind::Regular if item.size != ByteCount::ZERO => {}
        FileKind::Regular => flags.set(InodeFlags::NODATACOW | InodeFlags::NODATASUM, wants_nocow),
        _ => flags.set(InodeFlags::NODATACOW, wants_nocow),
    }
    let property = if attributes.contains(FileAttributes::NOCOMPRESS) {
        Some(CompressionProperty::Never)
    } else if attributes.contains(FileAttributes::COMPRESS) {
        Some(CompressionProperty::With(Compression::Zlib))
    } else {
        None
    };
    Ok(flags_with(property, flags))
}
