//! Subvolumes as directory entries: create, snapshot, delete, default, read-only, and the volume's
//! label.
//!
//! The module `subvolume` makes the trees and root items of subvolumes; this module gives them
//! names. Deleting a subvolume removes its name and marks its tree.
//! [`Subvolumes::drop_deleted`] frees its blocks, at once or after the volume
//! was opened again.
//!
//! Source: on-disk format documentation, sections "ROOT_ITEM", "ROOT_REF"; btrfs-subvolume(8) for
//! refused calls.

use super::Access;
use super::Operation;
use super::entries::check_name;
use super::inherit::NewInodeAttributes;
use super::quota_inheritance::{INHERITANCE_PLACES, Inheritance};
use crate::WritableFilesystem;
use crate::areas::Subvolumes;
use crate::subvolume::making::{self, NewSubvolume, root_reference_keys};
use buttress_engine::entry::{Entry, Target};
use buttress_engine::reservation::Need;
use buttress_engine::tuning::Tuning;
use buttress_exact::Exact as _;
use buttress_format::{
    DirItem, DirItems, FileKind, Incompat, InodeNumber, ItemType, Key, ObjectId, QgroupId, RootFlags,
    RootRef, SubvolumeId, TreeId, Uuid, uuid_key,
};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use buttress_fs::subvolume::{DEFAULT_NAME, SubvolumePlace, default_in, parse_place};
use buttress_tree::OwnedItem;

/// The items of a new subvolume: root item, its directory, references from both sides, entry,
/// uuids, quota group.
pub(super) const SUBVOLUME_ITEMS: u64 = 20;

/// The most bytes of a label, without the zero byte that ends it.
pub const LABEL_BYTES_MAX: usize = 255;

/// The treatment of a received uuid when its subvolume becomes writable. The received uuid asserts
/// that the subvolume equals its original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedUuid {
    /// The received subvolume does not become writable.
    Refuse,
    /// Clear the received uuid.
    Clear,
}

impl Subvolumes<'_> {
    /// Returns an error for a location in a read-only or deleted subvolume.
    ///
    /// # Errors
    /// Fails with [`Error::ReadOnlySubvolume`], [`Error::SubvolumeNotFound`].
    pub fn require_writable(&self, location: Location) -> Result<()> {
        let tree = self.filesystem.live_trees().get(location.subvolume.tree());
        if tree.is_some_and(|tree| tree.is_known_writable()) {
            return Ok(());
        }
        self.filesystem
            .read_under_lock(|access| access.require_writable(location))
    }

    /// Makes an empty subvolume. As in the kernel, a default access list of `directory` limits the
    /// mode of the new subvolume's root directory. The root directory inherits the compression
    /// property from the root of the subvolume that contains `directory`.
    ///
    /// # Errors
    /// Fails with [`Error::Exists`], or as [`WritableFilesystem::create`] does.
    pub fn create(&self, directory: Location, name: &[u8]) -> Result<SubvolumeId> {
        self.create_in_groups(directory, name, &[])
    }

    /// Makes an empty subvolume as [`create`](Self::create) does. Its quota group
    /// becomes a member of `groups`. Without any, it joins the groups that Linux chooses.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NoGroup`] or [`QuotaRefusal::Levels`] for a group, or as
    /// [`create`](Self::create) does.
    ///
    /// [`QuotaRefusal::NoGroup`]: buttress_fs::QuotaRefusal::NoGroup
    /// [`QuotaRefusal::Levels`]: buttress_fs::QuotaRefusal::Levels
    pub fn create_in_groups(
        &self,
        directory: Location,
        name: &[u8],
        groups: &[QgroupId],
    ) -> Result<SubvolumeId> {
        check_name(name)?;
        let new = self.new_subvolume();
        let inherits = Inheritance {
            container: directory.subvolume,
            source: None,
            groups,
        };
        let need = SUBVOLUME_ITEMS.exact_add(INHERITANCE_PLACES);
        self.filesystem.operate(Need::places(need), |operation| {
            operation.require_new_entry(directory, name)?;
            let inherited_attributes = operation.inherited_by_subvolume(directory)?;
            operation.reach_new_subvolume(directory, name, &new, &inherits)?;
            let id = making::make_subvolume_tree(operation.edit(), &new)?;
            operation.inherit_quotas(id, &inherits)?;
            operation.endow_root(id, &inherited_attributes)?;
            operation.name_subvolume(directory, name, id)?;
            Ok(id)
        })
    }

    /// Makes a snapshot of the source, in the state that this call's commit freezes. Making a
    /// snapshot takes a time that does not depend on the source's size.
    ///
    /// As on Linux, the snapshot is durable when this call returns. The snapshot gets its name
    /// after the commit that froze the source, so a second commit follows, which writes metadata
    /// only.
    ///
    /// # Errors
    /// Fails with [`Error::SubvolumeNotFound`], [`Error::Exists`], or as
    /// [`Engine::commit`](crate::Engine::commit) does.
    pub fn snapshot(
        &self,
        source: SubvolumeId,
        directory: Location,
        name: &[u8],
        read_only: bool,
    ) -> Result<SubvolumeId> {
        self.snapshot_in_groups(source, directory, name, read_only, &[])
    }

    /// Makes a snapshot as [`snapshot`](Self::snapshot) does. Its quota group becomes a member of
    /// `groups`. Without any, it joins the groups that Linux chooses.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NoGroup`] or [`QuotaRefusal::Levels`] for a group, or as
    /// [`snapshot`](Self::snapshot) does.
    ///
    /// [`QuotaRefusal::NoGroup`]: buttress_fs::QuotaRefusal::NoGroup
    /// [`QuotaRefusal::Levels`]: buttress_fs::QuotaRefusal::Levels
    pub fn snapshot_in_groups(
        &self,
        source: SubvolumeId,
        directory: Location,
        name: &[u8],
        read_only: bool,
        groups: &[QgroupId],
    ) -> Result<SubvolumeId> {
        check_name(name)?;
        let new = self.new_subvolume();
        let inherits = Inheritance {
            container: directory.subvolume,
            source: Some(source),
            groups,
        };
        // Each child of the source's root gets a reference, but needs no space for it now.
        let need = Need::places(SUBVOLUME_ITEMS.exact_add(INHERITANCE_PLACES));
        // Fault in the blocks first, so that the work inside the commit is short.
        self.filesystem.read_under_lock(|operation| {
            operation.follows_snapshot_of = Some(source);
            operation.reach_new_subvolume(directory, name, &new, &inherits)?;
            operation.reach_source(source)
        })?;
        let id = self.filesystem.operate_at_commit(need, |operation, committing| {
            operation.require_new_entry(directory, name)?;
            operation.require_subvolume(source)?;
            let root = making::committed_root(operation.lookups(), source, committing)?;
            let id = making::make_snapshot_tree(operation.edit(), source, &root, &new, read_only)?;
            operation.inherit_quotas(id, &inherits)?;
            operation.name_subvolume(directory, name, id)?;
            Ok(id)
        })?;
        self.filesystem.commit_metadata()?;
        Ok(id)
    }

    /// Deletes a subvolume. The next commit removes its name; dropping its tree frees its space.
    ///
    /// # Errors
    /// Fails with [`Error::SubvolumeNotFound`]. Fails with [`Error::HoldsSubvolume`] if the
    /// subvolume contains other subvolumes. Fails with [`Error::NotPermitted`] for the top level
    /// and the default subvolume. Also fails with [`Error::NotPermitted`] if the subvolume's parent
    /// directory or root directory is immutable or append-only. Fails with
    /// [`Error::ReadOnlySubvolume`] if the subvolume's parent directory is in a read-only
    /// subvolume.
    pub fn delete(&self, id: SubvolumeId) -> Result<()> {
        let location = Location::root_of(id);
        let refuse = |why| Err(Error::NotPermitted { location, why });
        if id == SubvolumeId::TOP_LEVEL {
            return refuse("it is the top level");
        }
        self.filesystem
            .operate(Need::freeing(SUBVOLUME_ITEMS), |operation| {
                if operation.default_subvolume()? == id {
                    return refuse("it is the default subvolume");
                }
                let place = operation.place_of(id)?;
                let directory = Location::new(place.parent, place.directory);
                let item = operation.lookups().root_item(id.tree())?;
                let (uuid, received) = (item.uuid, item.received_uuid);
                let parent = operation.require_directory(directory)?;
                operation.require_removing(directory, &parent)?;
                let root = operation.inode(location)?;
                operation.require_changeable(location, &root)?;
                operation.require_no_subvolumes(id)?;
                let index = operation.subvolume_index(directory, &place.name, id)?;
                let Some(index) = index else {
                    return Err(Error::SubvolumeNotFound { subvolume: id });
                };
                operation.reach_entry(directory, &place.name, index)?;
                operation.reach(
                    TreeId::UUID,
                    &[
                        uuid_key(uuid, ItemType::UUID_KEY_SUBVOL),
                        uuid_key(received, ItemType::UUID_KEY_RECEIVED_SUBVOL),
                    ],
                )?;
                operation.reach(TreeId::ROOT, &root_reference_keys(id, place.parent))?;
                let orphan = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, id.get());
                operation.reach(TreeId::ROOT, &[orphan])?;
                operation.remove_entry(directory, &place.name, index)?;
                let tree = directory.subvolume.tree();
                operation.edit().names.note_subvolume(tree, directory.inode);
                operation.shrink_directory(directory, &place.name)?;
                operation.edit().inodes.forget_tree(id.tree());
                making::remove_root_reference(operation.edit(), id, place.parent)?;
                making::kill_root(operation.edit(), id)
            })?;
        self.filesystem.contents().give_up_of(id)
    }

    /// Sets the default subvolume, mounted when no `subvol=` option is given.
    ///
    /// # Errors
    /// Fails with [`Error::SubvolumeNotFound`].
    pub fn set_default(&self, id: SubvolumeId) -> Result<()> {
        self.filesystem.operate(Need::places(2), |operation| {
            operation.require_subvolume(id)?;
            let key = operation.key_of_default();
            let item = DirItem {
                location: Key::new(id.tree().object_id(), ItemType::ROOT_ITEM, u64::MAX),
                transid: operation.generation(),
                kind: FileKind::Directory,
                name: DEFAULT_NAME,
                data: &[],
            };
            let present = operation.get(TreeId::ROOT, &key)?;
            let mut data = present.map_or_else(Vec::new, |item| item.data().to_vec());
            DirItems::remove(&mut data, DEFAULT_NAME);
            DirItems::push(&mut data, &item).map_err(|_| Error::Invalid {
                what: "the entry of the default subvolume",
            })?;
            operation.edit().put(TreeId::ROOT, &key, &data)?;
            operation.edit().use_feature(Incompat::DEFAULT_SUBVOL);
            Ok(())
        })
    }

    /// Makes a subvolume read-only, or writable.
    ///
    /// # Errors
    /// Fails with [`Error::SubvolumeNotFound`]; [`Error::NotPermitted`] for a received subvolume
    /// that would become writable while `received` is [`ReceivedUuid::Refuse`].
    pub fn set_read_only(&self, id: SubvolumeId, read_only: bool, received: ReceivedUuid) -> Result<()> {
        // Calls of several steps end before this lock is acquired, so that no content changes after
        // readers saw the subvolume read-only.
        let _no_steps = self.filesystem.data().several_steps.write();
        self.filesystem.operate(Need::places(4), |operation| {
            operation.require_subvolume(id)?;
            let item = operation.lookups().root_item(id.tree())?;
            let (was_read_only, received_uuid) = (item.is_read_only(), item.received_uuid);
            if was_read_only == read_only {
                return Ok(());
            }
            let loses_claim = !read_only && !received_uuid.is_nil();
            if loses_claim && received == ReceivedUuid::Refuse {
                return Err(Error::NotPermitted {
                    location: Location::root_of(id),
                    why: "it was received, and a change would make it differ from its source; clear its received uuid as well",
                });
            }
            if loses_claim {
                let key = uuid_key(received_uuid, ItemType::UUID_KEY_RECEIVED_SUBVOL);
                operation.reach(TreeId::UUID, &[key])?;
            }
            let item = operation.edit().root_item_mut(id.tree())?;
            item.flags.set(RootFlags::RDONLY, read_only);
            if loses_claim {
                item.received_uuid = Uuid::nil();
                making::remove_uuid(operation
                    .edit(), received_uuid, ItemType::UUID_KEY_RECEIVED_SUBVOL, id)?;
            }
            Ok(())
        })
    }

    pub(super) fn new_subvolume(&self) -> NewSubvolume {
        NewSubvolume {
            uuid: self.filesystem.new_uuid(),
            now: self.filesystem.now(),
        }
    }
}

impl WritableFilesystem {
    /// Sets the volume's label. An empty label removes the label.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] for a label that is longer than [`LABEL_BYTES_MAX`], or
    /// contains a zero byte or a newline.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL_BYTES_MAX || label.iter().any(|byte| matches!(byte, 0 | b'\n')) {
            return Err(Error::Invalid {
                what: "invalid label (expected at most 255 bytes, without line breaks and zero bytes)",
            });
        }
        self.operate(Need::places(0), |operation| {
            let core = &mut operation.edit().core;
            core.label = label.to_vec();
            core.superblock_changed = true;
            Ok(())
        })
    }

    /// Changes fields that only the superblock holds, with the next commit.
    ///
    /// # Errors
    /// Returns the error of `change`, which then has no effect.
    pub fn tune(&self, change: impl Fn(&mut Tuning, usize) -> Result<()>) -> Result<()> {
        self.operate(Need::places(0), |operation| {
            let devices = operation.lookups().core().device_count();
            let mut tuning = operation.lookups().core().tuning;
            change(&mut tuning, devices)?;
            let core = &mut operation.edit().core;
            core.tuning = tuning;
            core.superblock_changed = true;
            Ok(())
        })
    }
}

impl Access<'_> {
    /// Loads the paths to the items of the source that a snapshot reads.
    pub(super) fn reach_source(&mut self, source: SubvolumeId) -> Result<()> {
        let tree = source.tree();
        let received = match self.lookups().root_item(tree) {
            // Making the snapshot later returns the error for a missing tree.
            Err(Error::TreeNotFound { .. }) => return Ok(()),
            item => item?.received_uuid,
        };
        let key = uuid_key(received, ItemType::UUID_KEY_RECEIVED_SUBVOL);
        self.reach(TreeId::UUID, &[key])?;
        let open = &self.lookups().open_tree(tree)?.tree;
        let is_newer = match buttress_faults::on("snapshot-reads-unwritten") {
            true => open.is_dirty(),
            false => open.is_in_memory(),
        };
        // Blocks that a commit is about to write are in memory when the snapshot is made.
        if !is_newer {
            making::committed_root(self.lookups(), source, None)?;
        }
        Ok(())
    }

    /// Loads the paths to a new subvolume's items.
    fn reach_new_subvolume(
        &mut self,
        directory: Location,
        name: &[u8],
        new: &NewSubvolume,
        inherits: &Inheritance<'_>,
    ) -> Result<()> {
        self.reach_new_entry(directory, name)?;
        self.reach_new_inode(TreeId::ROOT)?;
        let id = SubvolumeId::new(self.lookups().next_inode_number(TreeId::ROOT)?);
        self.reach(TreeId::ROOT, &root_reference_keys(id, directory.subvolume))?;
        self.reach_inheritance(id, inherits)?;
        self.reach(TreeId::UUID, &[uuid_key(new.uuid, ItemType::UUID_KEY_SUBVOL)])
    }
}

impl Operation<'_> {
    /// Gives a new subvolume's root directory the inherited attributes.
    fn endow_root(&mut self, id: SubvolumeId, inherited_attributes: &NewInodeAttributes) -> Result<()> {
        let root = Location::root_of(id);
        for (name, value) in &inherited_attributes.xattrs {
            self.xattrs().put(root, name, value)?;
            self.xattrs().require_feature_of(name, value);
        }
        self.change_inode(root, |item| {
            item.mode = inherited_attributes.mode;
            item.flags = inherited_attributes.flags;
        })
    }

    /// Inserts the entry of a subvolume, and its root references on both sides.
    pub(super) fn name_subvolume(&mut self, directory: Location, name: &[u8], id: SubvolumeId) -> Result<()> {
        let index = self.begin().inode_items().free_index(directory)?;
        let entry = Entry {
            target: Target::Subvolume(id),
            kind: FileKind::Directory,
        };
        self.insert_entry(directory, name, entry, index)?;
        let reference = RootRef {
            directory: directory.inode,
            sequence: index,
            name,
        };
        making::add_root_reference(self.edit(), id, directory.subvolume, &reference)?;
        making::add_uuids(self.edit(), id)?;
        self.grow_directory(directory, name)
    }

    /// Returns the key of the entry that names the default subvolume.
    fn key_of_default(&mut self) -> Key {
        let superblock = self.lookups().core().forest.volume().superblock();
        let directory = InodeNumber::new(superblock.root_dir_objectid.get());
        DirItem::key(directory, DEFAULT_NAME)
    }

    /// Returns the current default subvolume.
    fn default_subvolume(&mut self) -> Result<SubvolumeId> {
        let key = self.key_of_default();
        let item = self.get(TreeId::ROOT, &key)?;
        default_in(&key, item.as_ref().map(OwnedItem::data))
    }

    /// Returns the current place of a subvolume: its directory and name.
    fn place_of(&mut self, id: SubvolumeId) -> Result<SubvolumePlace> {
        let first = Key::new(id.tree().object_id(), ItemType::ROOT_BACKREF, 0);
        let found = self.lookups().at_or_after(TreeId::ROOT, &first)?;
        let found = found.filter(|item| {
            let key = item.key();
            (key.objectid, key.item_type) == (first.objectid, first.item_type)
        });
        let item = found.ok_or(Error::SubvolumeNotFound { subvolume: id })?;
        parse_place(&item.key(), item.data())
    }

    /// Returns an error for a subvolume that contains other subvolumes.
    fn require_no_subvolumes(&mut self, id: SubvolumeId) -> Result<()> {
        let first = Key::new(id.tree().object_id(), ItemType::ROOT_REF, 0);
        let found = self.lookups().at_or_after(TreeId::ROOT, &first)?.filter(|item| {
            let key = item.key();
            (key.objectid, key.item_type) == (first.objectid, first.item_type)
        });
        let Some(item) = found else { return Ok(()) };
        let key = item.key();
        let name = parse_place(&key, item.data())?.name;
        Err(Error::HoldsSubvolume {
            subvolume: id,
            nested: SubvolumeId::new(key.offset),
            name: name.as_slice().into(),
        })
    }
}
