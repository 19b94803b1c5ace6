//! Relocation trees that a power cut during a balance of Linux left: their end, when a volume is
//! opened for writing.
//!
//! The engine merges the trees ([`buttress_engine::relocation`]). The dropper then frees each as a
//! deleted subvolume. A relocation tree refers to everything by address, so its drop converts no
//! block. The data relocation tree keeps new copies of data in inodes without names, which go at
//! last: by then, the subvolumes have taken what they need.

use super::dead_roots::DeadTree;
use crate::areas::Subvolumes;
use crate::operations::orphan::unless_damaged;
use buttress_format::{SubvolumeId, TreeId};
use buttress_fs::error::Result;
use buttress_fs::progress::Progress;

impl Subvolumes<'_> {
    /// Merges and drops the relocation trees of a cut balance, and removes the inodes of the data
    /// relocation tree. A damaged tree remains, and the others end.
    ///
    /// # Errors
    /// Fails with [`NoSpace`](buttress_fs::Error::NoSpace), and with an error of a device.
    pub(crate) fn end_relocation_trees(&self) -> Result<()> {
        let relocations = self.filesystem.relocations();
        let trees = relocations.trees()?;
        for tree in trees.iter().filter(|tree| tree.item.references > 0) {
            unless_damaged(relocations.merge(tree))?;
        }
        for tree in trees {
            let dead = DeadTree {
                tree: TreeId::TREE_RELOCATION,
                mirrored: Some(tree.mirrored),
            };
            unless_damaged(self.drop_tree(dead, &Progress::new()))?;
        }
        let data = SubvolumeId::new(TreeId::DATA_RELOCATION.get());
        unless_damaged(self.filesystem.orphans().clean(data)).map(drop)
    }
}
