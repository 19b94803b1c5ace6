//! The log of one subvolume in one transaction, in memory.

use super::batch::Batch;
use super::editor::{Editor, LogContext};
use super::gathered::Gathered;
use super::inode_batch::InodeBatches;
use super::inode_set::InodeSet;
use buttress_format::{BlockFormat, FileKind, Generation, InodeItem, InodeNumber};
use buttress_fs::error::{Defect, Error, Result};
use buttress_tree::{BlockPointer, EditableTree};
use std::collections::HashMap;

/// The log of one subvolume in one transaction.
#[derive(Debug, Default)]
pub(super) struct SubvolumeLog {
    pub(super) generation: Generation,
    pub(super) tree: Option<EditableTree>,
    /// Written blocks that the tree no longer uses since it was last frozen.
    pub(super) superseded: Vec<BlockPointer>,
    pub(super) inodes: InodeSet,
    /// Inodes that the log has as a whole.
    pub(super) whole: InodeSet,
    pub(super) names_seen: usize,
    /// For each directory in the log, the number of removed names that it takes into account.
    pub(super) names_seen_by: HashMap<InodeNumber, usize>,
    /// Reusable memory for collecting and reading the inodes of the next sync.
    pub(super) room: InodeBatches,
    pub(super) gathered: Gathered,
    /// Whether the log has changes that are not written.
    pub(super) is_dirty: bool,
    /// Whether an edit failed half-way, so that the log must not be written.
    pub(super) is_broken: bool,
}

impl SubvolumeLog {
    pub(super) fn has(&self, inode: InodeNumber) -> bool {
        self.inodes.has(inode)
    }

    pub(super) fn has_whole(&self, inode: InodeNumber) -> bool {
        self.whole.has(inode)
    }

    pub(super) const fn names_seen(&self) -> usize {
        self.names_seen
    }

    pub(super) fn names_seen_by(&self, directory: InodeNumber) -> usize {
        self.names_seen_by.get(&directory).copied().unwrap_or(0)
    }

    /// Applies a batch to the tree. After an error in a batch, the log must not be written.
    pub(super) fn take_in(&mut self, batch: Batch, format: BlockFormat) -> Result<()> {
        let context = LogContext {
            generation: batch.generation,
            superseded: &mut self.superseded,
        };
        let tree = self
            .tree
            .as_mut()
            .ok_or(Error::from(Defect::new("a log without a tree")))?;
        let mut editor = Editor {
            tree,
            context,
            format,
        };
        for inode in batch.removed.iter().copied() {
            editor.remove_inode(inode)?;
            self.inodes.remove(inode);
            self.whole.remove(inode);
            self.names_seen_by.remove(&inode);
        }
        let (mut known, mut new) = (Vec::new(), Vec::with_capacity(batch.inodes.len()));
        for (inode, of_inode) in batch.inodes.iter() {
            match self.inodes.has(inode) {
                true => known.push((inode, of_inode)),
                false => new.push((inode, of_inode)),
            }
        }
        editor.insert_new(&new)?;
        for (inode, of_inode) in &known {
            editor.update(*inode, of_inode)?;
        }
        for (inode, of_inode) in known.into_iter().chain(new) {
            editor.rest(inode, of_inode)?;
            self.inodes.insert(inode);
            if of_inode.whole {
                self.whole.insert(inode);
                let is_directory = |item: &InodeItem| item.kind() == FileKind::Directory;
                if of_inode.item.as_ref().is_some_and(is_directory) {
                    self.names_seen_by.insert(inode, batch.names_seen);
                }
            }
        }
        for (at, sums) in &batch.sums {
            editor.put_sums(*at, sums)?;
        }
        self.names_seen = batch.names_seen;
        self.room = batch.inodes.cleared();
        self.gathered = batch.gathered;
        Ok(())
    }
}
