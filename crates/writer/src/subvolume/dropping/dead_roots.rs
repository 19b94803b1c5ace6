//! The tree that is dropped, and its last items: the root item, and the orphan item of a subvolume.

use buttress_engine::running::Running;
use buttress_format::{ItemType, Key, ObjectId, SubvolumeId, TreeId};
use buttress_fs::error::Result;

/// A tree that the dropper frees.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeadTree {
    pub(super) tree: TreeId,
    /// For a relocation tree, the subvolume that it mirrors.
    pub(super) mirrored: Option<u64>,
}

impl DeadTree {
    pub(super) const fn subvolume(id: SubvolumeId) -> Self {
        Self {
            tree: id.tree(),
            mirrored: None,
        }
    }

    /// Opens a relocation tree: all of them have the same id.
    pub(super) fn open(self, running: &mut Running) -> Result<()> {
        self.mirrored
            .map_or(Ok(()), |mirrored| running.relocation_step().open_tree(mirrored))
    }
}

/// Returns the keys of a tree's last items: its root item and the orphan item. A relocation tree
/// has no orphan item.
fn keys_of_dead_root(running: &mut Running, tree: TreeId) -> Result<Vec<Key>> {
    let offset = running.open_tree(tree)?.item_offset;
    let root = Key::new(tree.object_id(), ItemType::ROOT_ITEM, offset);
    let orphan = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, tree.get());
    Ok(match tree {
        TreeId::TREE_RELOCATION => vec![root],
        _ => vec![root, orphan],
    })
}

/// Loads the path to a tree's last items, which must be removed as soon as the tree is empty.
pub(super) fn reach_dead_root(running: &mut Running, tree: TreeId) -> Result<()> {
    // Cache the next subvolume id, since this id may be the highest. The id is not reused while the
    // volume is open, because callers may still name inodes of the subvolume.
    running.inode_items().next_number(TreeId::ROOT)?;
    let keys = keys_of_dead_root(running, tree)?;
    keys.iter().try_for_each(|key| running.reach(TreeId::ROOT, key))
}

/// Removes a tree's root item and orphan item.
pub(super) fn remove_dead_root(running: &mut Running, tree: TreeId) -> Result<()> {
    let keys = keys_of_dead_root(running, tree)?;
    running.trees.remove(tree);
    running.inodes.forget_tree(tree);
    for key in keys {
        running.remove(TreeId::ROOT, &key)?;
    }
    Ok(())
}
