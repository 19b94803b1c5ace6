//! The attributes of `stat(2)` and their changes; extended attributes.

use super::placeholders::refuse_placeholder;
use super::{Access, MountedVolume, resolved};
use crate::vfs::{Changes, Errno, NewTime, Result, SetHow, Shown};
use buttress::{AttributeChanges, ByteCount, FileKind, Location, Metadata, SetXattr};
use core::sync::atomic::Ordering;

pub(super) const CAPABILITY: &[u8] = b"security.capability";
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// Name spaces of extended attributes in btrfs.
const NAME_SPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Returns the mode after a content change by a caller who may not keep the file's privileges.
fn without_privileges(mode: u32) -> u32 {
    let mode = mode & !SET_USER_ID;
    // If a file has no group execution permission, its set-group-id bit has another meaning and
    // stays.
    if mode & GROUP_EXECUTE != 0 {
        mode & !SET_GROUP_ID
    } else {
        mode
    }
}

impl MountedVolume {
    pub(super) fn metadata(&self, location: Location) -> Result<Metadata> {
        Ok(self.shown(location)?.metadata)
    }

    /// Returns the attributes of an inode with their validity.
    pub(super) fn shown(&self, location: Location) -> Result<Shown> {
        let found = match &self.access {
            Access::Reading(filesystem) => filesystem.metadata(location).map(|found| (found, false)),
            Access::Writing(writer) => writer.live().metadata_and_dirty(location),
        };
        let (metadata, is_dirty) = found.map_err(|error| self.failed(&error))?;
        Ok(self.shown_as_mounted(metadata, is_dirty))
    }

    /// Applies the owner and group that the mount options name. `is_dirty`: write-back of dirty
    /// content will change the allocated space of the file without a call.
    pub(super) fn shown_as_mounted(&self, mut metadata: Metadata, is_dirty: bool) -> Shown {
        metadata.uid = self.showing.uid.unwrap_or(metadata.uid);
        metadata.gid = self.showing.gid.unwrap_or(metadata.gid);
        self.show_kept_back(&mut metadata);
        let lasts_s = self.lifetime_s(&metadata, is_dirty);
        Shown { metadata, lasts_s }
    }

    /// Returns the number of seconds for which the kernel may cache attributes, unless a call of
    /// this mount changes them.
    fn lifetime_s(&self, metadata: &Metadata, is_dirty: bool) -> u64 {
        const LONG: u64 = 3600;
        const SHORT: u64 = 1;
        // A placeholder's owner changes with its directory's owner.
        if metadata.location.placeholder().is_some() {
            return 0;
        }
        if metadata.kind != FileKind::Regular {
            return LONG;
        }
        if self.may_get_room(metadata) {
            return 0;
        }
        match is_dirty {
            true => SHORT,
            false => LONG,
        }
    }

    pub(super) fn change_at(&self, location: Location, changes: &Changes) -> Result<Shown> {
        let writer = self.writer()?;
        if let Some(size) = changes.size {
            let size = ByteCount::new(size);
            // A call by path (`truncate(2)`) does not change a file that already has the requested
            // size. For `O_TRUNC`, the kernel sends the same request as for `truncate(2)` to size
            // 0.
            let is_by_path = changes.handle.is_none() && size > ByteCount::ZERO;
            let set = match is_by_path {
                true => writer.truncate_by_path(location, size),
                false => writer.truncate(location, size),
            };
            set.map_err(|error| self.failed(&error))?;
        }
        if changes.drop_privileges {
            self.drop_privileges(location)?;
        }
        // If the kernel sends the time of the call, this time is the current time.
        let now = changes.changed.unwrap_or_else(|| self.now());
        // If a mount option replaces the shown owner, the stored owner stays.
        let mine = |new: Option<u32>, shown: Option<u32>| new.filter(|_| shown.is_none());
        // A `chown(-1, -1)` keeps owner and group, but changes the inode. For `chown(-1, -1)`, the
        // request of the kernel then names neither owner nor group.
        let owner = match changes.is_of_owner_that_stays() {
            true => Some(
                writer
                    .live()
                    .metadata(location)
                    .map_err(|error| self.failed(&error))?
                    .uid,
            ),
            false => mine(changes.uid, self.showing.uid),
        };
        let wanted = AttributeChanges {
            mode: changes.mode.map(|mode| mode & 0o7777),
            uid: owner,
            gid: mine(changes.gid, self.showing.gid),
            accessed: resolved(changes.accessed, now),
            modified: resolved(changes.modified, now),
            changed: changes.changed,
            created: None,
        };
        if wanted != AttributeChanges::default() {
            let is_past = |time: Option<NewTime>| matches!(time, Some(NewTime::At(_)));
            let is_given = wanted.mode.is_some() || wanted.uid.is_some() || wanted.gid.is_some();
            let is_touch = !is_given && !is_past(changes.accessed) && !is_past(changes.modified);
            if self.are_times_of_cache(location, changes) {
                self.set_times_of_cache(location, &wanted)?;
            } else {
                let set = match is_touch {
                    true => writer.touch(location, &wanted),
                    false => writer.set_attributes(location, &wanted),
                };
                set.map_err(|error| self.failed(&error))?;
            }
        }
        self.shown(location)
    }

    /// Clears a file's set-user-id and set-group-id bits, and removes its capabilities.
    pub(super) fn drop_privileges(&self, location: Location) -> Result<()> {
        let writer = self.writer()?;
        let metadata = self.metadata(location)?;
        if metadata.kind != FileKind::Regular {
            return Ok(());
        }
        self.drop_capability(location)?;
        let mode = without_privileges(metadata.permissions());
        if mode != metadata.permissions() {
            let changes = AttributeChanges {
                mode: Some(mode),
                ..AttributeChanges::default()
            };
            writer
                .set_attributes(location, &changes)
                .map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// Removes a file's capabilities, if it has any.
    pub(super) fn drop_capability(&self, location: Location) -> Result<()> {
        let writer = self.writer()?;
        if self.capability(location)?.is_some() {
            writer
                .remove_xattr(location, CAPABILITY)
                .map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// Returns a file's capabilities. The kernel requests capabilities at each first write and each
    /// change of owner. A file without capabilities is therefore searched only once.
    fn capability(&self, location: Location) -> Result<Option<Vec<u8>>> {
        let state = self.capabilities.load(Ordering::SeqCst);
        let node = self.numbers.of(location)?;
        if self.nodes.is_without_capability(node, state) {
            return Ok(None);
        }
        let found = match &self.access {
            Access::Reading(filesystem) => filesystem.xattr(location, CAPABILITY),
            Access::Writing(writer) => writer.live().xattr(location, CAPABILITY),
        };
        let found = found.map_err(|error| self.failed(&error))?;
        if found.is_none() {
            self.nodes.lacks_capability(node, state);
        }
        Ok(found)
    }

    pub(super) fn xattr_at(&self, location: Location, name: &[u8]) -> Result<Vec<u8>> {
        let is_known = NAME_SPACES.iter().any(|space| name.starts_with(space));
        if !is_known && name != ACCESS_LIST && name != DEFAULT_LIST {
            return Err(Errno::OPNOTSUPP);
        }
        if name != ACCESS_LIST && name != DEFAULT_LIST {
            refuse_placeholder(location, Errno::OPNOTSUPP)?;
        }
        if name == CAPABILITY {
            return self.capability(location)?.ok_or(Errno::NODATA);
        }
        let found = match &self.access {
            Access::Reading(filesystem) => filesystem.xattr(location, name),
            Access::Writing(writer) => writer.live().xattr(location, name),
        };
        found.map_err(|error| self.failed(&error))?.ok_or(Errno::NODATA)
    }

    pub(super) fn xattr_names_at(&self, location: Location) -> Result<Vec<Vec<u8>>> {
        let found = match &self.access {
            Access::Reading(filesystem) => filesystem.xattrs(location),
            Access::Writing(writer) => writer.live().xattrs(location),
        };
        let xattrs = found.map_err(|error| self.failed(&error))?;
        Ok(xattrs.into_iter().map(|xattr| xattr.name).collect())
    }

    pub(super) fn set_xattr_at(
        &self,
        location: Location,
        name: &[u8],
        value: &[u8],
        how: SetHow,
        drop_set_group: bool,
    ) -> Result<()> {
        let writer = self.writer()?;
        refuse_placeholder(location, Errno::OPNOTSUPP)?;
        let how = match how {
            SetHow::CreateOrReplace => SetXattr::CreateOrReplace,
            SetHow::Create => SetXattr::Create,
            SetHow::Replace => SetXattr::Replace,
        };
        let set = writer.set_xattr(location, name, value, how);
        if name == CAPABILITY {
            // Increment after the change: a concurrent search that found no capability records the
            // state before, which is then over.
            self.capabilities.fetch_add(1, Ordering::SeqCst);
        }
        set.map_err(|error| self.failed(&error))?;
        if drop_set_group && name == ACCESS_LIST {
            let mode = self.metadata(location)?.permissions();
            if mode & SET_GROUP_ID != 0 {
                let changes = AttributeChanges {
                    mode: Some(mode & !SET_GROUP_ID),
                    ..AttributeChanges::default()
                };
                writer
                    .set_attributes(location, &changes)
                    .map_err(|error| self.failed(&error))?;
            }
        }
        Ok(())
    }

    pub(super) fn remove_xattr_at(&self, location: Location, name: &[u8]) -> Result<()> {
        refuse_placeholder(location, Errno::OPNOTSUPP)?;
        let removed = self.writer()?.remove_xattr(location, name);
        removed.map_err(|error| self.failed(&error))
    }
}
