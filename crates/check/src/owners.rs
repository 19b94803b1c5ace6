//! Whether the owner of a tree block holds it.
//!
//! A block without full back references counts what is below it by name, for the tree that its header names: so that
//! tree must hold it. It does where one of the block's references is by that tree. Where all are by other trees or by
//! the blocks above, as a balance leaves them, going down the owner's tree must lead to the block. A tree that lets
//! go of a block which others still share gives it full back references first.
//!
//! Most blocks are known to be held by the way to them: the block above refers to them in the owner's name, or
//! the way began in the owner's tree. Only for the others the owner's tree is gone down, through the cache; nothing is
//! kept of them.

use crate::census::{dropped, is_dropped};
use crate::context::Check;
use crate::extents::recorded;
use crate::finding::{Finding, Reference};
use crate::roots::Root;
use buttress_format::{
    ExtentItem, InlineReference, ItemType, Key, Logical, ObjectId, TreeBlock, TreeId, parse_keyed_references,
};
use buttress_tree::{BlockPointer, ReadAhead, RootPointer, Tree};
use std::collections::HashMap;
use std::sync::OnceLock;

/// The trees of a volume, for going down them.
pub(crate) struct Owners<'a> {
    check: &'a Check<'a>,
    trees: HashMap<TreeId, RootPointer>,
    /// How far the deletion of trees has come.
    dropped: HashMap<TreeId, (Key, u8)>,
    /// Whether all of the root tree can be read: only then a tree without a root item is not there.
    all_known: OnceLock<bool>,
}

impl<'a> Owners<'a> {
    pub(crate) fn new(check: &'a Check<'a>, roots: &[Root]) -> Self {
        Self {
            check,
            trees: roots.iter().map(|root| (root.id(), root.pointer)).collect(),
            dropped: dropped(roots),
            all_known: OnceLock::new(),
        }
    }

    /// A tree, for looking something up.
    pub(crate) fn tree(&self, id: TreeId) -> Option<Tree> {
        Some(self.check.forest.tree(*self.trees.get(&id)?))
    }

    /// Whether the child of the block at `pointer` that ends below `end_key` is gone with a part of its tree.
    pub(crate) fn is_dropped(&self, tree: TreeId, parent_level: u8, end_key: Option<Key>) -> bool {
        is_dropped(&self.dropped, tree, parent_level, end_key)
    }

    /// A block without full back references, reached by `pointer`, to which the block above refers in the name of
    /// `named`, if in any.
    pub(crate) fn look_at(&self, pointer: &BlockPointer, block: &TreeBlock, named: Option<TreeId>) {
        let owner = block.header().owner;
        if named == Some(owner) || pointer.tree == owner || owner.as_subvolume().is_none() {
            return;
        }
        let problem = match self.trees.get(&owner) {
            Some(root) if self.leads_to(root, block) => return,
            Some(_) => "does not hold it",
            None if self.all_known() => "does not exist",
            None => return,
        };
        if !self.is_named(block.logical(), owner) {
            self.check.find(Finding::OwnerWithoutBlock {
                logical: block.logical(),
                level: block.level(),
                owner,
                problem,
            });
        }
    }

    /// Whether the tree at `root` holds this block. One of which a block on the way cannot be had may: that is found
    /// where all blocks are looked at.
    fn leads_to(&self, root: &RootPointer, block: &TreeBlock) -> bool {
        // What has no key has nothing below it.
        let Some(first) = block.key(0) else {
            return true;
        };
        let mut pointer = BlockPointer::root(root);
        while pointer.level > block.level() {
            let Ok(node) = self.check.forest.read_block(&pointer) else {
                return true;
            };
            let slot = match node.search(&first) {
                Ok(slot) => Some(slot),
                Err(next) => next.checked_sub(1),
            };
            let Some(child) = slot.and_then(|slot| pointer.child(&node, slot)) else {
                return false;
            };
            if self.is_dropped(pointer.tree, pointer.level, child.end_key) {
                return false;
            }
            pointer = child;
        }
        pointer.logical == block.logical()
    }

    fn all_known(&self) -> bool {
        *self.all_known.get_or_init(|| {
            self.tree(TreeId::ROOT)
                .is_some_and(|tree| tree.range(.., ReadAhead::None).all(|item| item.is_ok()))
        })
    }

    /// Whether a reference to a block is recorded for `owner`: another block above it may refer to it so. Where its
    /// extent cannot be read, or is not there, nothing is known of it but that, which is found elsewhere.
    fn is_named(&self, logical: Logical, owner: TreeId) -> bool {
        let Some(tree) = self.tree(TreeId::EXTENT) else {
            return true;
        };
        let wanted = Reference::TreeBlock { tree: owner };
        let names_it = |references: &[InlineReference]| {
            let mut references = references.iter().filter_map(recorded);
            references.any(|(reference, _)| reference == wanted)
        };
        let first = Key::new(ObjectId::new(logical.get()), ItemType(0), 0);
        let last = Key::new(first.objectid, ItemType(u8::MAX), u64::MAX);
        let mut has_extent = false;
        for item in tree.range(first..=last, ReadAhead::None) {
            let Ok(item) = item else { return true };
            let key = item.key();
            let is_there = match key.item_type {
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                    has_extent = true;
                    ExtentItem::parse(&key, item.data(), self.check.format())
                        .is_ok_and(|extent| names_it(&extent.inline_references))
                }
                ItemType::TREE_BLOCK_REF => {
                    parse_keyed_references(&key, item.data(), self.check.sector_bytes)
                        .is_ok_and(|references| names_it(&references))
                }
                _ => false,
            };
            if is_there {
                return true;
            }
        }
        !has_extent
    }
}
