//! The running transaction: the newest version of every tree that was opened, and what its edits left to do.
//!
//! [`Running`] is what the edit lock protects. It is in two parts so that an edit of one tree can reach what edits of
//! any tree need: [`Core`] (the extent tree, delayed references, block groups, pins) and the other trees.
//!
//! Invariants: a tree in [`Running::trees`] is the newest version; its root item here is newer than the one in the root
//! tree where `item_changed` is set or the root has moved. The root and chunk trees have no root item: the superblock
//! names them.

use super::block_groups::{BlockGroups, Group};
use super::chunks::Devices;
use super::cow::{CowOnlyTree, ShareableTree};
use super::pins::{Hold, Pins, Readers};
use super::quotas::Quotas;
use super::replacement::Replacing;
use super::reserved_ahead::ReservedAhead;
use crate::inode_table::InodeTable;
use crate::removed_names::NameChanges;
use crate::trees::{LiveTree, OpenTrees};
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_format::superblock::SYSTEM_CHUNK_ARRAY_BYTES;
use buttress_format::{
    BlockFormat, ByteCount, Chunk, CompatRo, DEVICE_RESERVED_BYTES, Generation, Incompat, ItemType, Key,
    Logical, Profile, RootItem, Superblock, Timestamp, TreeId, Uuid,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::root_pointer;
use buttress_locks::Excused;
use buttress_tree::{Blocking, EditContext, EditableTree, Forest, NonBlocking, OwnedItem, Tree};
use buttress_volume::Returning;
use std::ops::Range;
use std::sync::Arc;

/// A tree that was opened for writing.
#[derive(Debug)]
pub struct OpenTree {
    /// The newest version.
    pub tree: LiveTree,
    /// `None` for the root tree and the chunk tree.
    pub item: Option<RootItem>,
    /// The offset of the root item's key.
    pub item_offset: u64,
    /// Whether the root item differs from the one in the root tree.
    pub item_changed: bool,
}

impl OpenTree {
    /// Whether snapshots share blocks of the tree.
    pub fn last_snapshot(&self) -> Generation {
        self.item
            .as_ref()
            .map_or(Generation::MIN, |item| item.last_snapshot)
    }
}

/// What edits of any tree need.
#[derive(Debug)]
pub struct Core {
    /// The cache of tree blocks.
    pub forest: Arc<Forest>,
    /// Formats of blocks and features, as checks of items want them.
    pub format: BlockFormat,
    pub(crate) compat_ro: CompatRo,
    /// The uuid that blocks carry of the tree that maps them.
    pub chunk_tree_uuid: Uuid,
    /// The generation of the running transaction.
    pub generation: Generation,
    /// The last generation that is durable.
    pub durable: Generation,
    /// The extent tree.
    pub extent: OpenTree,
    /// Changes of reference counts that no tree has yet.
    pub references: DelayedReferences,
    /// Block groups.
    pub groups: BlockGroups,
    pub(crate) devices: Devices,
    /// Freed space that must wait.
    pub pins: Pins,
    pub(crate) quotas: Quotas,
    /// Bytes of all extents, for the superblock.
    pub bytes_used: u64,
    /// The chunks that hold the chunk tree, for the superblock.
    pub system_chunks: Vec<(Key, Chunk)>,
    /// The volume's label.
    pub label: Vec<u8>,
    /// Whether a field of the superblock alone changed.
    pub superblock_changed: bool,
    /// Room promised to data that is not yet written back.
    pub reserved_data_bytes: u64,
    /// What of that no file has yet.
    pub ahead: Arc<ReservedAhead>,
    /// While a commit that settles has release the lock: ranges that the free-space tree does not know of yet.
    pub unrecorded_ranges: u64,
    /// Nodes that commits gave addresses to since the volume was opened.
    pub nodes_addressed: u64,
    /// The replacement of a device that is under way.
    pub replacing: Option<Replacing>,
    /// Why the host gave no space when it was asked last; `None` where it did.
    pub host_failure: Option<buttress_device::IoError>,
    /// The last address that a full host was asked for.
    pub asked_host_at: u64,
    /// Whether this transaction made a chunk: the last commit knows nothing of it, so no log can refer to it.
    pub has_new_chunk: bool,
}

impl Core {
    /// A hold on what the running transaction leads to. While a commit is under way, the last durable generation is older than
    /// the one that this transaction follows.
    pub fn hold(&self, readers: &Arc<Readers>) -> Hold {
        let follows = Generation::new(self.generation.get().saturating_sub(1));
        readers.hold(match buttress_faults::on("view-holds-durable") {
            true => self.durable,
            false => follows,
        })
    }

    /// Takes the outcome of a change to a ledger that nobody can be told of: what is wrong stops writing, before anything that
    /// follows from it is on the devices.
    pub fn settle(&self, changed: Result<()>) {
        if let Err(error) = changed {
            self.forest.volume().stop_writing(&error);
        }
    }

    /// Returns whether the volume has a feature.
    pub const fn has(&self, feature: Incompat) -> bool {
        self.format.incompat.contains(feature)
    }

    /// Returns the length of a tree block, in bytes.
    pub fn node_bytes(&self) -> ByteCount {
        ByteCount::new(u64::from(self.format.node_bytes))
    }

    /// Whether new chunks of a profile may use a device: it is there, up to date, open for writing, and failed no write. A
    /// device that is being brought up to date gets what is written to such a chunk; until its superblock is written, the
    /// chunk must do without it.
    pub fn device_takes_chunks(&self, uuid: Uuid, profile: Profile) -> bool {
        let volume = self.forest.volume();
        // Moved stripes are known by their chunk's start, which a new chunk may have again.
        let is_new = |returning: &Returning| {
            let start = Logical::new(self.next_chunk_start());
            returning.moved.keys().all(|(moved, _)| *moved < start)
        };
        let returning = volume.replacement().filter(|replacement| {
            replacement.returning().is_some_and(is_new) && profile.tolerated_failures() > 0
        });
        let target = returning.as_ref().map(|returning| returning.target());
        volume.devices().iter().chain(target).any(|slot| {
            let is_used = slot.is_written() || buttress_faults::on("chunk-on-failed-device");
            slot.uuid() == uuid && is_used && slot.device().is_some_and(|device| device.is_writable())
        })
    }

    /// Returns the start of the next new chunk.
    pub fn next_chunk_start(&self) -> u64 {
        let ends = self.groups.iter().map(Group::end);
        ends.max().unwrap_or(DEVICE_RESERVED_BYTES)
    }

    /// Whether the superblock can name one more system chunk.
    pub fn system_array_has_space(&self) -> bool {
        let taken = self.system_chunks.iter().fold(0_usize, |sum, (_, chunk)| {
            sum.saturating_add(Superblock::system_chunk_bytes(chunk))
        });
        let one_more = self
            .system_chunks
            .iter()
            .map(|(_, chunk)| Superblock::system_chunk_bytes(chunk))
            .max()
            .unwrap_or(0);
        taken.saturating_add(one_more) <= SYSTEM_CHUNK_ARRAY_BYTES
    }

    /// Returns the length of a sector, in bytes.
    pub const fn sector_bytes(&self) -> u64 {
        self.format.sector_bytes as u64
    }
}

/// The running transaction.
#[derive(Debug)]
pub struct Running {
    /// The parts that edits of any tree need.
    pub core: Core,
    /// All open trees but the extent tree.
    pub trees: OpenTrees,
    /// Inodes whose items are newer than their trees have them.
    pub inodes: InodeTable,
    /// Names that went, as logs have to know them.
    pub names: NameChanges,
}

impl Running {
    /// The tree that block group items lie in.
    pub fn block_group_tree(&self) -> TreeId {
        if self.core.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            TreeId::BLOCK_GROUP
        } else {
            TreeId::EXTENT
        }
    }

    pub(crate) fn has_free_space_tree(&self) -> bool {
        self.core.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
    }

    /// The open tree, opened if it was not.
    pub fn open_tree(&mut self, id: TreeId) -> Result<&mut OpenTree> {
        if id == TreeId::EXTENT {
            return Ok(&mut self.core.extent);
        }
        if !self.trees.contains(id) {
            let opened = self.find_tree(id)?;
            self.trees.insert(id, opened);
        }
        self.trees.get_mut(id).ok_or(Error::TreeNotFound { tree: id })
    }

    /// Reads the newest root item of a tree.
    fn find_tree(&self, id: TreeId) -> Result<OpenTree> {
        let wanted = Key::new(id.object_id(), ItemType::ROOT_ITEM, u64::MAX);
        let found = self.root_tree()?.tree.at_or_before(&wanted)?;
        let Some(found) = found.filter(|found| {
            let key = found.key();
            key.objectid == id.object_id() && key.item_type == ItemType::ROOT_ITEM
        }) else {
            return Err(Error::TreeNotFound { tree: id });
        };
        let item =
            RootItem::parse(&found.key(), found.data(), self.core.format.sector_bytes).map_err(|error| {
                Corruption::Item {
                    tree: TreeId::ROOT,
                    error,
                }
            })?;
        let tree = self.core.forest.tree(root_pointer(id, &item));
        let tree = LiveTree::new(EditableTree::open(&tree));
        if id.as_subvolume().is_some() && item.references == 0 {
            tree.set_deleted();
        }
        Ok(OpenTree {
            tree,
            item: Some(item),
            item_offset: found.key().offset,
            item_changed: false,
        })
    }

    pub(crate) fn root_tree(&self) -> Result<&OpenTree> {
        self.trees
            .get(TreeId::ROOT)
            .ok_or(Error::TreeNotFound { tree: TreeId::ROOT })
    }

    /// The root item of a tree that has one, to be changed.
    pub fn root_item_mut(&mut self, id: TreeId) -> Result<&mut RootItem> {
        let open = self.open_tree(id)?;
        open.item_changed = true;
        open.tree.forget_writable();
        open.item.as_mut().ok_or(Error::TreeNotFound { tree: id })
    }

    /// Records in its root item when a tree was changed.
    pub fn note_change_of_root(&mut self, id: TreeId, now: Timestamp) -> Result<()> {
        let generation = self.core.generation;
        let open = self.open_tree(id)?;
        open.item_changed = true;
        let item = open.item.as_mut().ok_or(Error::TreeNotFound { tree: id })?;
        item.ctransid = generation;
        item.ctime = now;
        Ok(())
    }

    /// The root item of a tree that has one.
    pub fn root_item(&mut self, id: TreeId) -> Result<&RootItem> {
        self.open_tree(id)?
            .item
            .as_ref()
            .ok_or(Error::TreeNotFound { tree: id })
    }

    /// Edits one tree.
    pub fn edit<T>(
        &mut self,
        id: TreeId,
        edit: impl FnOnce(&mut EditableTree, &mut dyn EditContext) -> buttress_tree::Result<T>,
    ) -> Result<T> {
        if id == TreeId::EXTENT {
            return self.core.edit_extents(edit);
        }
        let _whole = whole_edit();
        self.open_tree(id)?;
        let Self { core, trees, .. } = self;
        let Some(open) = trees.get_mut(id) else {
            return Err(Error::TreeNotFound { tree: id });
        };
        let result = if id.holds_files() {
            let mut context = ShareableTree::new(core, id, open.last_snapshot());
            open.tree.edit(|tree| edit(tree, &mut context))
        } else {
            let mut context = CowOnlyTree::new(core.generation, core.node_bytes(), &mut core.references);
            open.tree.edit(|tree| edit(tree, &mut context))
        };
        result.map_err(own_error)
    }

    /// Marks the volume as using a feature that readers must know.
    pub fn use_feature(&mut self, feature: Incompat) {
        if !self.core.has(feature) {
            self.core.format.incompat |= feature;
            self.core.superblock_changed = true;
        }
    }

    /// The newest version of a tree, held.
    pub fn view(&mut self, id: TreeId) -> Result<Tree> {
        Ok(self.open_tree(id)?.tree.view())
    }

    /// The item with this very key.
    pub fn get(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.get(key)?)
    }

    /// The last item whose key is not above `key`.
    pub fn at_or_before(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.at_or_before(key)?)
    }

    /// The first item whose key is not below `key`.
    pub fn at_or_after(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.at_or_after(key)?)
    }

    /// Inserts an item.
    ///
    /// # Errors
    /// An item with this key exists; an error of the tree.
    pub fn insert(&mut self, id: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.edit(id, |tree, context| tree.insert(context, key, data))
    }

    /// Inserts an item, or replaces the one with this key.
    ///
    /// # Errors
    /// An error of the tree.
    pub fn put(&mut self, id: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.edit(id, |tree, context| tree.put(context, key, data))
    }

    /// Changes an item in place; false when there is none.
    pub fn update(&mut self, id: TreeId, key: &Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        self.edit(id, |tree, context| tree.update(context, key, change))
    }

    /// Removes an item. Returns whether there was one.
    ///
    /// # Errors
    /// An error of the tree.
    pub fn remove(&mut self, id: TreeId, key: &Key) -> Result<bool> {
        self.edit(id, |tree, context| tree.remove(context, key))
    }

    /// Removes all items with keys in `range`; returns how many there were.
    pub fn remove_range(
        &mut self,
        id: TreeId,
        range: Range<Key>,
        removed: &mut dyn FnMut(&Key, &[u8]),
    ) -> Result<u64> {
        self.edit(id, |tree, context| tree.remove_range(context, range, removed))
    }

    /// Inserts an item into the extent tree.
    ///
    /// # Errors
    /// As for [`Running::insert`].
    pub fn extent_insert(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.core
            .edit_extents(|tree, context| tree.insert(context, key, data))
    }

    /// Inserts or replaces an item of the extent tree.
    ///
    /// # Errors
    /// An error of the tree.
    pub fn extent_put(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.core
            .edit_extents(|tree, context| tree.put(context, key, data))
    }

    /// Removes an item of the extent tree.
    ///
    /// # Errors
    /// An error of the tree.
    pub fn extent_remove(&mut self, key: &Key) -> Result<()> {
        self.core
            .edit_extents(|tree, context| tree.remove(context, key))
            .map(|_| ())
    }
}

impl Core {
    fn edit_extents<T>(
        &mut self,
        edit: impl FnOnce(&mut EditableTree, &mut dyn EditContext) -> buttress_tree::Result<T>,
    ) -> Result<T> {
        let _whole = whole_edit();
        let mut context = CowOnlyTree::new(self.generation, self.node_bytes(), &mut self.references);
        let edited = self.extent.tree.edit(|tree| edit(tree, &mut context));
        edited.map_err(own_error)
    }
}

/// An edit is done whole: it reads what it finds missing. Nobody edits during a look; if somebody does, better it reads under
/// the lock than that it ends half-way.
fn whole_edit() -> (Blocking, Excused) {
    debug_assert!(!NonBlocking::is_held(), "an edit during a look");
    (NonBlocking::lift(), Excused::from_device_rule())
}

/// An error of this crate that an edit of a tree was ended with comes back as itself.
fn own_error(error: buttress_tree::Error) -> Error {
    match error.cause() {
        buttress_tree::error::Cause::Context(context) => match context.downcast_ref::<Error>() {
            Some(own) => own.clone(),
            None => error.into(),
        },
        _ => error.into(),
    }
}
