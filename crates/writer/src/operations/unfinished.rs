//! Subvolumes that nobody sees before they are whole: what receives streams makes them.
//!
//! Such a subvolume is a tree with a root item without references and an orphan item: on disk it looks like one that was
//! deleted and is not dropped yet, except that the flag is missing that deleted ones have. It has no name, no uuid finds it,
//! and whoever opens the volume next for writing, this library or the kernel, drops it. [`finish_subvolumes`] makes it one
//! like any other, in one step of one transaction.
//!
//! Whoever makes it says all about what is in it: directories pass nothing on to what is made in them, and the flags of
//! immutable and append-only inodes forbid nothing before the end.
//!
//! Names that are made in it may wait, so that many go into each leaf at once ([`defer_names`]).
//!
//! [`finish_subvolumes`]: WritableFilesystem::finish_subvolumes
//! [`defer_names`]: WritableFilesystem::defer_names

use super::Access;
use super::Operation;
use super::entries::check_name;
use super::subvolumes::SUBVOLUME_ITEMS;
use crate::WritableFilesystem;
use crate::subvolume::making::{self, root_reference_keys};
use buttress_engine::reservation::Need;
use buttress_engine::waiting_names::WaitingNames;
use buttress_exact::u64_of;
use buttress_format::{
    FileKind, Generation, InodeFlags, ItemType, Key, ObjectId, RootFlags, SubvolumeId, TreeId, Uuid, uuid_key,
};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;

/// Where a subvolume comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The uuid by which streams name it.
    pub uuid: Uuid,
    /// The generation at which it last changed at its sender.
    pub transid: Generation,
}

/// What a subvolume becomes once it is whole.
#[derive(Clone, Debug)]
pub struct FinishedSubvolume {
    /// Which.
    pub id: SubvolumeId,
    /// The directory that it gets its name in.
    pub directory: Location,
    /// The name.
    pub name: Vec<u8>,
    /// The uuid of what it is a snapshot of.
    pub parent: Option<Uuid>,
    /// Where it was received from.
    pub received: Option<Received>,
}

impl WritableFilesystem {
    /// Begins an empty subvolume that nobody sees before it is [finished](Self::finish_subvolumes).
    ///
    /// # Errors
    /// [`Error::NoSpace`]; that trees cannot be read, or that writing has stopped.
    pub fn begin_subvolume(&self) -> Result<SubvolumeId> {
        let new = self.new_subvolume();
        self.operate(Need::places(SUBVOLUME_ITEMS), |operation| {
            operation.reach_unfinished()?;
            let id = making::make_subvolume_tree(operation.edit(), &new)?;
            operation.hide(id)?;
            Ok(id)
        })
    }

    /// As [`begin_subvolume`](Self::begin_subvolume), with what another one holds; that one may be unfinished itself. Commits.
    ///
    /// # Errors
    /// [`Error::SubvolumeNotFound`], and those of [`Engine::commit`](crate::Engine::commit).
    pub fn begin_snapshot(&self, source: SubvolumeId) -> Result<SubvolumeId> {
        self.put_all_names(source)?;
        let new = self.new_subvolume();
        let need = Need::places(SUBVOLUME_ITEMS);
        self.look(|operation| {
            operation.follows_snapshot_of = Some(source);
            operation.reach_unfinished()?;
            operation.reach_source(source)
        })?;
        self.operate_at_commit(need, |operation, committing| {
            operation.require_subvolume(source)?;
            let root = making::committed_root(operation.look(), source, committing)?;
            let id = making::make_snapshot_tree(operation.edit(), source, &root, &new, false)?;
            operation.hide(id)?;
            Ok(id)
        })
    }

    /// Makes subvolumes that were begun here what others are: read-only, with a name, found by their uuids. All of them at
    /// once, and, with the next commit, for good.
    ///
    /// # Errors
    /// [`Error::Exists`] and those of [`WritableFilesystem::create`], of the directories; [`Error::SubvolumeNotFound`] for
    /// one that is none, or is finished.
    pub fn finish_subvolumes(&self, finished: &[FinishedSubvolume]) -> Result<()> {
        // What waits may need more room than there is: that is known before any of them shows.
        self.write_back()?;
        for one in finished {
            check_name(&one.name)?;
            self.put_all_names(one.id)?;
        }
        let count = u64_of(finished.len());
        self.operate(Need::places(count.saturating_mul(SUBVOLUME_ITEMS)), |operation| {
            for one in finished {
                operation.require_finishable(one)?;
                operation.reach_finished(one)?;
            }
            finished.iter().try_for_each(|one| operation.finish(one))
        })
    }

    /// Gives up a subvolume that was begun here: it is one that was deleted.
    ///
    /// # Errors
    /// [`Error::SubvolumeNotFound`]; that the tree cannot be read.
    pub fn discard_subvolume(&self, id: SubvolumeId) -> Result<()> {
        self.operate(Need::freeing(4), |operation| {
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
        self.give_up_content_of(id)
    }

    /// Sets the flags of an inode of an unfinished subvolume as an inode item has them. Of a file with content those stay that
    /// say how content is written; what is not a matter of choice is left alone.
    ///
    /// # Errors
    /// [`Error::InodeNotFound`]; [`Error::SubvolumeNotFound`] for a subvolume that is finished.
    pub fn set_inode_flags(&self, location: Location, flags: InodeFlags) -> Result<()> {
        self.write_back_file(location)?;
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

    /// Goes to where an unfinished subvolume is going to be written down.
    fn reach_unfinished(&mut self) -> Result<()> {
        self.reach_new_inode(TreeId::ROOT)?;
        let id = self.look().next_inode_number(TreeId::ROOT)?;
        self.reach(TreeId::ROOT, &[orphan_key(id)])
    }
}

impl Operation<'_> {
    /// Has nobody see a subvolume that was just made.
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

    /// Goes to all that changes when a subvolume gets its name.
    fn reach_finished(&mut self, finished: &FinishedSubvolume) -> Result<()> {
        let id = finished.id;
        self.reach_new_entry(finished.directory, &finished.name)?;
        self.reach(TreeId::ROOT, &[orphan_key(id.get())])?;
        self.reach(
            TreeId::ROOT,
            &root_reference_keys(id, finished.directory.subvolume),
        )?;
        let own = self.look().root_item(id.tree())?.uuid;
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
        self.name_subvolume(finished.directory, &finished.name, id)
    }
}

/// The key that marks a subvolume as one to be dropped.
const fn orphan_key(id: u64) -> Key {
    Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, id)
}
