//! The relocation trees that a power cut during a balance of Linux left: their merge.
//!
//! A relocation tree mirrors a subvolume. It shares the subvolume's blocks, except copies of blocks
//! that have to leave a block group. Linux merges each relocation tree into its subvolume: copies
//! and originals change places. Subvolumes that shared an original then share its copy. Without the
//! merge of the last of them, both would stay, each with a part of the users.
//!
//! | root item | state | here |
//! |---|---|---|
//! | references | the merge was about to begin, or was cut | the merge skips blocks that changed places |
//! | no references | copies that nothing uses yet, or originals | there is nothing to merge |
//!
//! A step lets some blocks change places in one transaction. The relocation tree's nodes above
//! these blocks get copies at once, because a reference to their children names their address
//! ([`swapping`](super::swapping)). The subvolume's nodes change in memory, as in any edit. After
//! the merge, the caller drops the relocation tree.
//!
//! Invariants:
//! - A block of the subvolume changes places only if it is not newer than the relocation tree's
//!   last snapshot. The block and its copy then hold the same items.
//! - A crash between two steps leaves a merge that Linux and this program continue.
//!
//! Left out: merges beside writers. A merge runs while a volume is being opened.

use super::linux_tree::RelocationTree;
use super::swapping::{Plan, SWAPS_AT_ONCE};
use crate::areas::Relocations;
use crate::need::Need;
use crate::own_trees::root_key;
use crate::running::Running;
use crate::running_parts::RelocationStep;
use crate::trees::{LiveTree, OpenTree};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ItemType, Key, RootItem, TreeId};
use buttress_fs::error::{Corruption, Error, Result, WritingRefusal};
use buttress_fs::filesystem::root_pointer;
use buttress_locks::Excused;
use buttress_tree::EditableTree;
use core::ops::ControlFlow;

/// The places of a step besides the blocks that change places: the root item.
const STEP_PLACES: u64 = 2;

impl Relocations<'_> {
    /// Returns the relocation trees that a cut balance of Linux left, in order of subvolume.
    ///
    /// # Errors
    /// Fails if the root tree cannot be read, or holds a root item that fails its check.
    pub fn trees(&self) -> Result<Vec<RelocationTree>> {
        let start = self.engine.start_reading();
        let (_, trees) = self
            .engine
            .retry(start, |handle| handle.relocation_step().trees())?;
        Ok(trees)
    }

    /// Returns an error if relocation trees of Linux remain: blocks that they share cannot move.
    pub(super) fn refuse_with_trees(&self) -> Result<()> {
        match self.trees()?.is_empty() {
            true => Ok(()),
            false => Err(Error::WritingRefused(WritingRefusal::State {
                name: "relocation trees of an interrupted balance, which the last opening could not end",
                remedy: "free space and open it again, or run `buttress check`",
            })),
        }
    }

    /// Lets copies and originals change places, until the subvolume has all copies. The relocation
    /// tree then has no references. Commits several times.
    ///
    /// # Errors
    /// Fails with [`Error::NoSpace`], or with an error of a device or a tree. Blocks that changed
    /// places stay there.
    pub fn merge(&self, tree: &RelocationTree) -> Result<()> {
        let mut from = Some(Key::MIN);
        while let Some(start) = from {
            from = self.merge_step(tree.mirrored, start)?;
            self.engine.commit_metadata()?;
        }
        Ok(())
    }

    /// Does one step of a merge, from a key on. Returns the key at which the next step begins.
    fn merge_step(&self, mirrored: u64, from: Key) -> Result<Option<Key>> {
        // Nothing else uses a volume that is being opened.
        let _excused = Excused::from_device_rule();
        let places = u64_of(SWAPS_AT_ONCE).exact_mul(2).exact_add(STEP_PLACES);
        let mut handle = self.engine.start(Need::freeing(places))?;
        let found = handle.relocation_step().tree(mirrored)?;
        let Some(tree) = found.filter(|tree| tree.item.references > 0) else {
            return Ok(None);
        };
        let plan = match handle.relocation_step().takes_merges(mirrored)? {
            true => Plan::find(&mut handle, &tree, from)?,
            false => None,
        };
        match plan {
            Some((plan, next)) => {
                handle.renamer().swap_blocks(tree, &plan)?;
                Ok(Some(next))
            }
            None => {
                handle.relocation_step().end_merge(tree)?;
                Ok(None)
            }
        }
    }
}

impl RelocationTree {
    /// Writes the root item of the tree.
    pub(super) fn put(&self, running: &mut Running) -> Result<()> {
        let key = root_key(TreeId::TREE_RELOCATION, self.mirrored);
        running.put(TreeId::ROOT, &key, &self.item.to_bytes())
    }
}

impl RelocationStep<'_> {
    fn trees(&self) -> Result<Vec<RelocationTree>> {
        let mut found = Vec::new();
        let object = TreeId::TREE_RELOCATION.object_id();
        let sector_bytes = self.running.core.format.sector_bytes;
        let mut failure = None;
        let root_tree = &self.running.root_tree()?.tree;
        root_tree.scan(&root_key(TreeId::TREE_RELOCATION, 0), |key, data| {
            if key.objectid != object || key.item_type != ItemType::ROOT_ITEM {
                return ControlFlow::Break(());
            }
            match RootItem::parse(key, data, sector_bytes) {
                Ok(item) => found.push(RelocationTree {
                    mirrored: key.offset,
                    item,
                }),
                Err(error) => failure = Some(error),
            }
            ControlFlow::Continue(())
        })?;
        match failure {
            Some(error) => Err(Corruption::Item {
                tree: TreeId::ROOT,
                error,
            }
            .into()),
            None => Ok(found),
        }
    }

    fn tree(&self, mirrored: u64) -> Result<Option<RelocationTree>> {
        let trees = self.trees()?;
        Ok(trees.into_iter().find(|tree| tree.mirrored == mirrored))
    }

    /// Returns whether a relocation tree can be merged into the tree that it mirrors. A deleted
    /// subvolume is dropped with its originals.
    fn takes_merges(&mut self, mirrored: u64) -> Result<bool> {
        let id = TreeId::new(mirrored);
        if !id.holds_files() {
            return Ok(false);
        }
        match self.running.root_item(id) {
            Ok(item) => Ok(item.references > 0),
            Err(Error::TreeNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records in the root item that only dropping the relocation tree is left.
    fn end_merge(&mut self, mut tree: RelocationTree) -> Result<()> {
        tree.item.references = 0;
        tree.item.drop_progress = Key::MIN;
        tree.item.drop_level = 0;
        tree.put(self.running)
    }

    /// Opens one of the relocation trees as [`TreeId::TREE_RELOCATION`], so that it can be dropped.
    ///
    /// # Errors
    /// Fails with [`Error::TreeNotFound`] if the tree does not exist, or if its merge has not ended.
    /// Fails if the root tree cannot be read.
    pub fn open_tree(&mut self, mirrored: u64) -> Result<()> {
        let id = TreeId::TREE_RELOCATION;
        let trees = &self.running.trees;
        if trees.get(id).is_some_and(|open| open.item_offset == mirrored) {
            return Ok(());
        }
        let found = self.tree(mirrored)?;
        let tree = found
            .filter(|tree| tree.item.references == 0)
            .ok_or(Error::TreeNotFound { tree: id })?;
        let opened = self.running.core.forest.tree(root_pointer(id, &tree.item));
        self.running.trees.remove(id);
        self.running.trees.insert(
            id,
            OpenTree {
                tree: LiveTree::new(EditableTree::open(&opened)),
                item: Some(tree.item),
                item_offset: mirrored,
                item_changed: false,
            },
        );
        Ok(())
    }
}
