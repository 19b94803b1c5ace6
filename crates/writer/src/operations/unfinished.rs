//! Unfinished subvolumes, which no reader sees until they are complete. Receiving a send stream
//! makes unfinished subvolumes.
//!
//! An unfinished subvolume is a tree with an orphan item and a root item without references. On
//! disk, an unfinished subvolume equals a deleted subvolume that is not yet dropped, except for the
//! missing flag of deleted subvolumes. An unfinished subvolume has no name, and no uuid leads to
//! it. The next opening for writing, by this library or the kernel, drops it. [`Subvolumes::finish`]
//! makes the new subvolume an ordinary subvolume, in one step of one transaction.
//!
//! The caller sets all attributes of the unfinished subvolume's inodes. In an unfinished subvolume,
//! directories pass no attributes on, and the flags of immutable and append-only inodes forbid
//! nothing until the end.
//!
//! New names of an unfinished subvolume may be deferred, so that many go into each leaf at once
//! ([`defer_names`]).
//!
//! [`defer_names`]: Subvolumes::defer_names

use super::Access;
use super::Operation;
use super::entries::check_name;
use super::quota_inheritance::{INHERITANCE_PLACES, Inheritance};
use super::subvolumes::SUBVOLUME_ITEMS;
use crate::WritableFilesystem;
use crate::areas::Subvolumes;
use crate::subvolume::making::{self, root_reference_keys};
use buttress_engine::reservation::Need;
use buttress_engine::waiting_names::WaitingNames;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{
    FileKind, Generation, InodeFlags, ItemType, Key, ObjectId, RootFlags, SubvolumeId, TreeId, Uuid, uuid_key,
};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;

/// The sender's identification of a received subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The uuid that identifies the subvolume in streams.
    pub uuid: Uuid,
    /// The generation of its last change at its sender.
    pub transid: Generation,
}

/// The final properties of an unfinished subvolume.
#[derive(Clone, Debug)]
pub struct FinishedSubvolume {
    /// The subvolume to be finished.
    pub id: SubvolumeId,
    /// The directory that holds the subvolume's name.
    pub directory: Location,
    /// The name.
    pub name: Vec<u8>,
    /// The uuid of the subvolume whose snapshot this subvolume is.
    pub parent: Option<Uuid>,
    /// The sender's identification of the subvolume, if it was received.
    pub received: Option<Received>,
}

impl FinishedSubvolume {
    /// The groups that the subvolume joins with its name. A snapshot has the limits of its source
    /// already.
    const fn inheritance(&self) -> Inheritance<'static> {
        Inheritance {
            container: self.directory.subvolume,
            source: None,
            groups: &[],
        }
    }
}

impl Subvolumes<'_> {
    /// Makes an empty subvolume that no reader sees until it is
    /// [finished](Self::finish).
    ///
    /// # Errors
    /// Fails with [`Error::NoSpace`], or with an error of a tree, or with the error that stopped
    /// writing.
    pub fn begin(&self) -> Result<SubvolumeId> {
        let new = self.new_subvolume();
        self.filesystem
            .operate(Need::places(SUBVOLUME_ITEMS), |operation| {
                operation.reach_unfinished()?;
                let id = making::make_subvolume_tree(operation.edit(), &new)?;
                operation.hide(id)?;
                Ok(id)
            })
    }

    /// Makes an unfinished subvolume as [`begin`](Self::begin) does, as a
    /// snapshot of another subvolume. The source of the snapshot may be unfinished itself. This
    /// call commits the running transaction.
    ///
    /// # Errors
    /// Fails with [`Error::SubvolumeNotFound`], or as [`Engine::commit`](crate::Engine::commit)
    /// does.
    pub fn begin_snapshot(&self, source: SubvolumeId) -> Result<SubvolumeId> {
        self.put_all_names(source)?;
        let new = self.new_subvolume();
        let need = Need::places(SUBVOLUME_ITEMS.exact_add(INHERITANCE_PLACES));
        self.filesystem.read_under_lock(|operation| {
            operation.follows_snapshot_of = Some(source);
            operation.reach_unfinished()?;
            operation.reach_inherited_limits(source)?;
            operation.reach_source(source)
        })?;
        self.filesystem.operate_at_commit(need, |operation, committing| {
            operation.require_subvolume(source)?;
            let root = making::committed_root(operation.lookups(), source, committing)?;
            let id = making::make_snapshot_tree(operation.edit(), source, &root, &new, false)?;
            operation.edit().quota_tree().inherit_limit(source, id)?;
            operation.hide(id)?;
            Ok(id)
        })
    }

    /// Finishes unfinished subvolumes: they become read-only, get their names, and their uuids lead
    /// to them. All of the finished subvolumes become visible together, and durable with the next
    /// commit.
    ///
    /// # Errors
    /// Fails with [`Error::Exists`], or as [`WritableFilesystem::create`] does for the directories.
    /// Fails with [`Error::SubvolumeNotFound`] for a subvolume that does not exist or is already
    /// finished.
    pub fn finish(&self, finished: &[FinishedSubvolume]) -> Result<()> {
        // Writing back dirty data may need more space than is free. An error of write-back must
        // come before any subvolume becomes visible.
        self.filesystem.writeback().write_all()?;
        for one in finished {
            check_name(&one.name)?;
            self.put_all_names(one.id)?;
        }
        let count = u64_of(finished.len());
        let each = SUBVOLUME_ITEMS.exact_add(INHERITANCE_PLACES);
        self.filesystem
            .operate(Need::places(count.saturating_mul(each)), |operation| {
                for one in finished {
                    operation.require_finishable(one)?;
                    operation.reach_finished(one)?;
                }
                finished.iter().try_for_each(|one| operation.finish(one))
            })
    }

    /// Gives up an unfinished subvolume, which then counts as deleted.
    ///
    /// # Errors
    /// Fails with [`Error::SubvolumeNotFound`], or with an error of the tree.
    pub fn discard(&self, id: SubvolumeId) -> Result<()> {
        self.filesystem.operate(Need::freeing(4), |operation| {
            operation.require_unfinished(id)?;
            let running = operation.edit();
            running.root_item_mut(id.tree())?.flags.insert(RootFlags::DEAD);
            let tree = &running.open_tree(id.tree())?.tree;
            tree.set_unfinished(false);
            tree.set_defers_names(false);
            tree.change_names(|names| *names = WaitingNames::default());
            tree.set_deleted();
            running.inodes.forget_tree(id.tree());
            Ok(())
        })?;
        self.filesystem.contents().give_up_of(id)
    }
}

impl WritableFilesystem {
    /// Sets the flags of an inode of an unfinished subvolume, in the form of the inode item. For a
    /// file with content, the method keeps the flags that describe how content is written. Inode
    /// flags that the file system itself controls also stay.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`]; [`Error::SubvolumeNotFound`] for a finished subvolume.
    pub fn set_inode_flags(&self, location: Location, flags: InodeFlags) -> Result<()> {
        self.writeback().write_file(location)?;
        self.operate(Need::places(2), |operation| {
            operation.require_unfinished(location.subvolume)?;
            let item = operation.inode(location)?;
            let mut set = InodeFlags::OF_CHATTR;
            let is_empty_file =
                item.kind() == FileKind::Regular && item.size.get() == 0 && item.nbytes.get() == 0;
            if is_empty_file || item.kind() == FileKind::Directory {
                set |= InodeFlags::OF_CONTENT;
            }
            let new = item.flags.difference(set) | (flags & set);
            if new == item.flags {
                return Ok(());
            }
            operation.change_inode(location, |item| item.flags = new)
        })
    }
}

impl Access<'_> {
    pub(super) fn require_unfinished(&mut self, id: SubvolumeId) -> Result<()> {
        if self.is_unfinished(id)? {
            return Ok(());
        }
        Err(Error::SubvolumeNotFound { subvolume: id })
    }

    /// Reads the tree blocks at which an unfinished subvolume's items are located.
    fn reach_unfinished(&mut self) -> Result<()> {
        self.reach_new_inode(TreeId::ROOT)?;
        let id = self.lookups().next_inode_number(TreeId::ROOT)?;
        self.reach(TreeId::ROOT, &[orphan_key(id)])
    }
}

impl Operation<'_> {
    /// Hides a subvolume that was just made from all readers.
    fn hide(&mut self, id: SubvolumeId) -> Result<()> {
        let running = self.edit();
        let item = running.root_item_mut(id.tree())?;
        item.references = 0;
        item.received_uuid = Uuid::nil();
        running.open_tree(id.tree())?.tree.set_unfinished(true);
        running.put(TreeId::ROOT, &orphan_key(id.get()), &[])
    }

    fn require_finishable(&mut self, finished: &FinishedSubvolume) -> Result<()> {
        self.require_unfinished(finished.id)?;
        self.require_new_entry(finished.directory, &finished.name)?;
        Ok(())
    }

    /// Loads all items that change when a subvolume is finished.
    fn reach_finished(&mut self, finished: &FinishedSubvolume) -> Result<()> {
        let id = finished.id;
        self.reach_new_entry(finished.directory, &finished.name)?;
        self.reach_inheritance(id, &finished.inheritance())?;
        self.reach(TreeId::ROOT, &[orphan_key(id.get())])?;
        self.reach(
            TreeId::ROOT,
            &root_reference_keys(id, finished.directory.subvolume),
        )?;
        let own = self.lookups().root_item(id.tree())?.uuid;
        let received = finished.received.map_or(Uuid::nil(), |received| received.uuid);
        self.reach(
            TreeId::UUID,
            &[
                uuid_key(own, ItemType::UUID_KEY_SUBVOL),
                uuid_key(received, ItemType::UUID_KEY_RECEIVED_SUBVOL),
            ],
        )
    }

    fn finish(&mut self, finished: &FinishedSubvolume) -> Result<()> {
        let (id, now, generation) = (finished.id, self.now(), self.generation());
        self.edit().remove(TreeId::ROOT, &orphan_key(id.get()))?;
        let running = self.edit();
        let tree = &running.open_tree(id.tree())?.tree;
        tree.set_unfinished(false);
        tree.set_defers_names(false);
        let item = running.root_item_mut(id.tree())?;
        item.references = 1;
        item.flags = RootFlags::RDONLY;
        item.parent_uuid = finished.parent.unwrap_or(Uuid::nil());
        if let Some(received) = finished.received {
            item.received_uuid = received.uuid;
            item.stransid = received.transid;
            item.rtransid = generation;
            item.rtime = now;
        }
        self.inherit_quotas(id, &finished.inheritance())?;
        self.name_subvolume(finished.directory, &finished.name, id)
    }
}

/// Returns the key of the orphan item that marks a subvolume to be dropped.
const fn orphan_key(id: u64) -> Key {
    Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, id)
}
