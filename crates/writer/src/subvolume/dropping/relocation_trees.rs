//! Relocation trees that an interrupted balance of Linux left.
//!
//! A relocation tree is a snapshot of a subvolume, in which Linux moves the blocks of a block group. Linux then exchanges subtrees of
//! the subvolume for the moved ones (a *merge*), and drops the relocation tree. Each exchange is part of one transaction. A subvolume
//! therefore has all of its content at each commit, whether its merge has begun, has ended, or never comes.
//!
//! Buttress drops the trees without a merge, when a volume is opened for writing. Blocks that Linux did not exchange stay in the old
//! block group, and the resumed balance moves that group again. An operation or a relocation never meets a relocation tree.
//!
//! | field of the root item | with references: the merge | without references: the drop |
//! |---|---|---|
//! | drop progress | the first key that is not merged; all blocks exist | the first remaining child |
//! | key offset | the subvolume | the subvolume |
//!
//! Invariants:
//! - All references of a relocation tree are by address, and its root refers to itself. Each block of the tree is looked up.
//! - A block without other references has full back references, unless its owner's keyed references were never converted.
//!
//! Source: on-disk format documentation, section "Root item"; images of Linux 6.18, cut during balances.

use super::{Memory, Stop};
use crate::WritableFilesystem;
use buttress_engine::running::Running;
use buttress_format::{ItemType, Key, TreeId};
use buttress_fs::error::Result;
use buttress_fs::progress::Progress;

const TREE: TreeId = TreeId::TREE_RELOCATION;

/// Begins the drop of a relocation tree whose merge has begun: the recorded progress is that of the merge.
pub(super) fn end_merge(running: &mut Running, tree: TreeId) -> Result<()> {
    if tree != TREE || running.root_item(tree)?.references == 0 {
        return Ok(());
    }
    let item = running.root_item_mut(tree)?;
    item.references = 0;
    if buttress_faults::on("relocation-tree-merge-taken-for-drop") {
        return Ok(());
    }
    item.drop_progress = Key::MIN;
    item.drop_level = 0;
    Ok(())
}

impl WritableFilesystem {
    /// Drops the relocation trees of an interrupted balance of Linux. The volume must not be written while one exists.
    ///
    /// # Errors
    /// Fails for a damaged tree, or for lack of space.
    pub(crate) fn drop_relocation_trees(&self) -> Result<()> {
        while self.has_relocation_tree()? {
            let mut memory = Memory::default();
            while self.drop_some(TREE, &Progress::new(), &mut memory)? != Stop::Gone {}
        }
        Ok(())
    }

    fn has_relocation_tree(&self) -> Result<bool> {
        self.look(|operation| {
            let wanted = Key::new(TREE.object_id(), ItemType::ROOT_ITEM, u64::MAX);
            let found = operation.look().at_or_before(TreeId::ROOT, &wanted)?;
            Ok(found.is_some_and(|found| {
                let key = found.key();
                key.objectid == wanted.objectid && key.item_type == wanted.item_type
            }))
        })
    }
}
