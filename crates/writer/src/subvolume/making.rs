//! Making subvolumes: empty ones, and snapshots in constant time.
//!
//! A snapshot is a copy of its source's root block under a tree id of its own. The snapshot shares
//! all blocks below the root, and each child of the root gets one more reference. Making a snapshot
//! reads and writes nothing else, so its cost does not depend on the subvolume's size. Changes of
//! the source in the running transaction are committed first, so that the shared blocks are on
//! disk.
//!
//! This module makes trees, root items, root references and uuids; [`crate::operations`] makes the
//! directory entry.
//!
//! Source: on-disk format documentation, sections "Root item", "Root reference", "UUID tree".

use buttress_engine::cow::Form;
use buttress_engine::freezing::Prepared;
use buttress_engine::lookups::Lookups;
use buttress_engine::running::Running;
use buttress_engine::trees::{LiveTree, OpenTree};
use buttress_format::{
    ByteCount, Generation, InodeFlags, InodeItem, InodeNumber, InodeRefs, ItemType, Key, ObjectId, RootFlags,
    RootItem, RootRef, SubvolumeId, Timestamp, TreeBlock, TreeId, Uuid, UuidItem, uuid_key,
};
use buttress_fs::error::{Error, Result};
use buttress_tree::{BlockPointer, EditableTree};

/// The mode of a new subvolume's root directory.
const DIRECTORY_MODE: u32 = 0o040_755;

/// The flag of the inode item inside root items that marks its flags field as valid.
const ROOT_ITEM_INODE_FLAGS: u64 = 1 << 31;

/// The time and uuids of a new subvolume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSubvolume {
    pub(crate) uuid: Uuid,
    pub(crate) now: Timestamp,
}

/// Returns the next subvolume id. Subvolume ids are never reused while the volume is open, so
/// cached state of a deleted subvolume stays unused.
fn free_subvolume_id(running: &mut Running) -> Result<SubvolumeId> {
    let number = running.inode_items().free_number(TreeId::ROOT)?;
    TreeId::new(number.get())
        .as_subvolume()
        .ok_or(Error::TooMany { what: "subvolumes" })
}

/// Makes the tree of an empty subvolume, with its root directory.
pub(crate) fn make_subvolume_tree(running: &mut Running, new: &NewSubvolume) -> Result<SubvolumeId> {
    let id = free_subvolume_id(running)?;
    let generation = running.core.generation;
    let tree = EditableTree::new_empty(
        &running.core.forest,
        id.tree(),
        generation,
        running.core.chunk_tree_uuid,
    );
    let item = new_root_item(new, generation, running.core.node_bytes());
    add_root(running, id, tree, item, 0)?;
    let root = InodeNumber::ROOT_DIRECTORY;
    let directory = InodeItem {
        generation,
        transid: generation,
        nlink: 1,
        mode: DIRECTORY_MODE,
        atime: new.now,
        ctime: new.now,
        mtime: new.now,
        otime: new.now,
        ..InodeItem::empty(NO_TIME)
    };
    running.insert(id.tree(), &InodeItem::key(root), &directory.to_bytes())?;
    let key = Key::new(root.object_id(), ItemType::INODE_REF, root.get());
    let mut names = Vec::new();
    InodeRefs::push(&mut names, 0, b"..")?;
    running.insert(id.tree(), &key, &names)?;
    running.quota_tree().make_group(id)?;
    Ok(id)
}

/// Makes the tree of a snapshot. The source's tree was committed, or is being committed; `root` is
/// its root block.
pub(crate) fn make_snapshot_tree(
    running: &mut Running,
    source: SubvolumeId,
    root: &TreeBlock,
    new: &NewSubvolume,
    read_only: bool,
) -> Result<SubvolumeId> {
    let id = free_subvolume_id(running)?;
    let generation = running.core.generation;
    let open = running.open_tree(source.tree())?;
    if open.tree.is_dirty() {
        return Err(Error::SnapshotOfDirty { subvolume: source });
    }
    let tree = EditableTree::from_copied_root(&open.tree.view(), id.tree(), generation)?;
    open.item_changed = true;
    let Some(item) = open.item.as_mut() else {
        return Err(Error::SubvolumeNotFound { subvolume: source });
    };
    item.last_snapshot = generation;
    let item = snapshot_root_item(item, new, generation, read_only);
    running.core.refer_below(root, Form::Keyed(id.tree()), 1)?;
    // A later drop treats blocks that are not newer than this generation as blocks of the
    // snapshot's source. The first blocks that the snapshot alone has are written with this
    // transaction's generation.
    let newest_of_source = generation.get().saturating_sub(1);
    add_root(running, id, tree, item, newest_of_source)?;
    running.quota_tree().make_group(id)?;
    Ok(id)
}

/// Makes a subvolume findable by its own uuid and by its received uuid.
pub(crate) fn add_uuids(running: &mut Running, id: SubvolumeId) -> Result<()> {
    let item = running.root_item(id.tree())?;
    let (own, received) = (item.uuid, item.received_uuid);
    add_uuid(running, own, ItemType::UUID_KEY_SUBVOL, id)?;
    add_uuid(running, received, ItemType::UUID_KEY_RECEIVED_SUBVOL, id)
}

/// Returns the root block of a subvolume in the commit in progress, or in the last commit.
pub(crate) fn committed_root(
    mut look: Lookups<'_>,
    subvolume: SubvolumeId,
    committing: Option<&Prepared>,
) -> Result<TreeBlock> {
    let tree = subvolume.tree();
    let checksum_type = look.reborrow().core().format.checksum_type;
    if let Some(root) = committing.and_then(|prepared| prepared.root_block(tree, checksum_type)) {
        return Ok(root);
    }
    let root = *look.reborrow().view(tree)?.root();
    Ok(look.core().forest.read_block(&BlockPointer::root(&root))?)
}

/// Adds a new tree. The root item of the new tree is inserted at once, so that no other tree gets
/// its id.
pub(crate) fn add_root(
    running: &mut Running,
    id: SubvolumeId,
    tree: EditableTree,
    item: RootItem,
    item_offset: u64,
) -> Result<()> {
    let key = Key::new(id.tree().object_id(), ItemType::ROOT_ITEM, item_offset);
    running.insert(TreeId::ROOT, &key, &item.to_bytes())?;
    running.trees.insert(
        id.tree(),
        OpenTree {
            tree: LiveTree::new(tree),
            item: Some(item),
            item_offset,
            item_changed: true,
        },
    );
    Ok(())
}

/// Inserts the root references of a subvolume's place, on both sides.
pub(crate) fn add_root_reference(
    running: &mut Running,
    child: SubvolumeId,
    parent: SubvolumeId,
    reference: &RootRef,
) -> Result<()> {
    let bytes = reference.encode()?;
    let [forward, backward] = root_reference_keys(child, parent);
    running.insert(TreeId::ROOT, &backward, &bytes)?;
    running.insert(TreeId::ROOT, &forward, &bytes)
}

/// Removes the two root references that record a subvolume's place.
pub(crate) fn remove_root_reference(
    running: &mut Running,
    child: SubvolumeId,
    parent: SubvolumeId,
) -> Result<()> {
    let [forward, backward] = root_reference_keys(child, parent);
    running.remove(TreeId::ROOT, &forward)?;
    running.remove(TreeId::ROOT, &backward)?;
    Ok(())
}

/// Marks a subvolume without an entry as deleted, so that its tree will be dropped.
pub(crate) fn kill_root(running: &mut Running, id: SubvolumeId) -> Result<()> {
    running.open_tree(id.tree())?.tree.set_deleted();
    let item = running.root_item_mut(id.tree())?;
    item.references = 0;
    item.flags.insert(RootFlags::DEAD);
    item.drop_progress = Key::MIN;
    item.drop_level = 0;
    let (uuid, received) = (item.uuid, item.received_uuid);
    remove_uuid(running, uuid, ItemType::UUID_KEY_SUBVOL, id)?;
    remove_uuid(running, received, ItemType::UUID_KEY_RECEIVED_SUBVOL, id)?;
    let orphan = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, id.get());
    running.put(TreeId::ROOT, &orphan, &[])
}

/// Returns whether the volume has a uuid tree.
fn has_uuid_tree(running: &mut Running) -> Result<bool> {
    match running.open_tree(TreeId::UUID) {
        Ok(_) => Ok(true),
        Err(Error::TreeNotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Adds a subvolume to the uuid tree's item of a uuid.
pub(crate) fn add_uuid(
    running: &mut Running,
    uuid: Uuid,
    item_type: ItemType,
    id: SubvolumeId,
) -> Result<()> {
    if uuid.is_nil() || !has_uuid_tree(running)? {
        return Ok(());
    }
    let key = uuid_key(uuid, item_type);
    let mut ids = uuids(running, &key)?;
    if !ids.chunks_exact(8).any(|other| other == id.get().to_le_bytes()) {
        UuidItem::push(&mut ids, id.tree());
    }
    running.put(TreeId::UUID, &key, &ids)
}

/// Removes a subvolume from the uuid tree's item of a uuid.
pub(crate) fn remove_uuid(
    running: &mut Running,
    uuid: Uuid,
    item_type: ItemType,
    id: SubvolumeId,
) -> Result<()> {
    if uuid.is_nil() || !has_uuid_tree(running)? {
        return Ok(());
    }
    let key = uuid_key(uuid, item_type);
    let mut ids = uuids(running, &key)?;
    if !UuidItem::remove(&mut ids, id.tree()) {
        return Ok(());
    }
    if ids.is_empty() {
        running.remove(TreeId::UUID, &key)?;
        return Ok(());
    }
    running.put(TreeId::UUID, &key, &ids)
}

fn uuids(running: &mut Running, key: &Key) -> Result<Vec<u8>> {
    let found = running.get(TreeId::UUID, key)?;
    Ok(found.map_or_else(Vec::new, |item| item.data().to_vec()))
}

/// Returns the keys of a subvolume's two root references: the forward reference in its parent, and
/// its own back reference.
pub(crate) fn root_reference_keys(child: SubvolumeId, parent: SubvolumeId) -> [Key; 2] {
    let (child, parent) = (child.tree(), parent.tree());
    [
        Key::new(parent.object_id(), ItemType::ROOT_REF, child.get()),
        Key::new(child.object_id(), ItemType::ROOT_BACKREF, parent.get()),
    ]
}

const NO_TIME: Timestamp = Timestamp {
    seconds: 0,
    nanoseconds: 0,
};

/// Returns the root item of a snapshot, without the address of its root.
fn snapshot_root_item(
    source: &RootItem,
    new: &NewSubvolume,
    generation: Generation,
    read_only: bool,
) -> RootItem {
    let mut item = RootItem {
        drop_progress: Key::MIN,
        drop_level: 0,
        parent_uuid: match buttress_faults::on("snapshot-without-parent") {
            true => Uuid::nil(),
            false => source.uuid,
        },
        uuid: new.uuid,
        otransid: match buttress_faults::on("snapshot-born-with-its-source") {
            true => source.otransid,
            false => generation,
        },
        otime: new.now,
        references: 1,
        ..source.clone()
    };
    item.flags.set(RootFlags::RDONLY, read_only);
    if !read_only && !buttress_faults::on("snapshot-keeps-received-uuid") {
        item.received_uuid = Uuid::nil();
        (item.stransid, item.rtransid) = (Generation::MIN, Generation::MIN);
        (item.stime, item.rtime) = (NO_TIME, NO_TIME);
    }
    item
}

/// Returns the root item of an empty subvolume.
fn new_root_item(new: &NewSubvolume, generation: Generation, node_bytes: ByteCount) -> RootItem {
    RootItem {
        inode: InodeItem {
            generation: Generation::new(1),
            size: ByteCount::new(3),
            nbytes: node_bytes,
            nlink: 1,
            mode: DIRECTORY_MODE,
            flags: InodeFlags::from_bits_retain(ROOT_ITEM_INODE_FLAGS),
            ..InodeItem::empty(NO_TIME)
        },
        root_directory: InodeNumber::ROOT_DIRECTORY,
        bytes_used: node_bytes,
        references: 1,
        uuid: new.uuid,
        ctransid: generation,
        otransid: generation,
        ctime: new.now,
        otime: new.now,
        ..RootItem::empty(generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver finds an incremental stream's parent by the received uuid, so a changed subvolume
    /// must not have a received uuid.
    #[test]
    fn only_a_read_only_snapshot_passes_for_what_was_received() {
        let new = |number| NewSubvolume {
            uuid: Uuid::from_bytes([number; 16]),
            now: Timestamp::default(),
        };
        let received = RootItem {
            received_uuid: Uuid::from_bytes([9; 16]),
            stransid: Generation::new(4),
            rtransid: Generation::new(5),
            ..new_root_item(&new(1), Generation::new(5), ByteCount::new(16384))
        };
        let read_only = snapshot_root_item(&received, &new(2), Generation::new(6), true);
        assert_eq!(read_only.received_uuid, received.received_uuid);
        assert_eq!(read_only.stransid, received.stransid);
        let writable = snapshot_root_item(&received, &new(3), Generation::new(6), false);
        assert_eq!(writable.received_uuid, Uuid::nil());
        assert_eq!(
            (writable.stransid, writable.rtransid),
            (Generation::MIN, Generation::MIN)
        );
        assert_eq!(writable.parent_uuid, received.uuid);
    }
}
