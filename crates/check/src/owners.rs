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

use crate::context::Check;
use crate::extents::recorded;
use crate::finding::{Finding, Reference};
use crate::roots::{Dropped, Root};
use crate::sectors::Sectors;
use buttress_format::{
    ExtentItem, HeaderFlags, InlineReference, ItemType, Key, Logical, ObjectId, TreeBlock, TreeId,
    parse_keyed_references,
};
use buttress_tree::{BlockPointer, ReadAhead, RootPointer, Tree};
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

/// The revision of back references that Linux writes since 2.6.31, and the last one so far.
const MIXED_REFERENCES: u8 = 1;

/// The trees of a volume, for going down them.
pub(crate) struct Owners<'a> {
    check: &'a Check<'a>,
    trees: HashMap<TreeId, RootPointer>,
    /// How far the deletion of subvolumes has come.
    dropped: HashMap<TreeId, Dropped>,
    /// Tree blocks with more than one reference.
    shared: &'a Sectors,
    /// Subvolumes that are being deleted.
    dead: HashSet<TreeId>,
    /// Whether a relocation goes on: it gives blocks full back references before it takes them out of their tree.
    relocates: bool,
    /// Whether all of the root tree can be read: only then a tree without a root item is not there.
    all_known: OnceLock<bool>,
}

impl<'a> Owners<'a> {
    pub(crate) fn new(check: &'a Check<'a>, roots: &[Root], shared: &'a Sectors) -> Self {
        let subvolumes = || roots.iter().filter(|root| !root.is_relocation());
        let dead = subvolumes().filter(|root| root.dead).map(Root::id);
        Self {
            check,
            trees: roots.iter().map(|root| (root.id(), root.pointer)).collect(),
            dropped: subvolumes()
                .filter_map(|root| Some((root.id(), root.dropped?)))
                .collect(),
            shared,
            dead: dead.collect(),
            relocates: roots.iter().any(Root::is_relocation),
            all_known: OnceLock::new(),
        }
    }

    /// A tree, for looking something up.
    pub(crate) fn tree(&self, id: TreeId) -> Option<Tree> {
        Some(self.check.forest.tree(*self.trees.get(&id)?))
    }

    /// Returns whether a key is in the part of a tree that was dropped. Lookups must not go there: those blocks are
    /// free, and other content may have overwritten them.
    pub(crate) fn is_dropped(&self, tree: TreeId, key: &Key) -> bool {
        self.dropped
            .get(&tree)
            .is_some_and(|dropped| dropped.has_key(key))
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

    /// Whether the flags and the revision in the header of a block are ones that its tree can have. A relocation makes blocks
    /// only for trees that can share them.
    pub(crate) fn look_at_header(check: &Check<'_>, pointer: &BlockPointer, block: &TreeBlock) {
        let header = block.header();
        let known = HeaderFlags::WRITTEN.union(HeaderFlags::RELOC);
        let may_share = pointer.tree.holds_files() || pointer.tree == TreeId::TREE_RELOCATION;
        let problem = if !known.contains(header.flags) {
            "a flag is unknown"
        } else if header.flags.contains(HeaderFlags::RELOC) && !may_share {
            "the relocation flag is set in a tree without relocated blocks"
        } else if header.backref_revision > MIXED_REFERENCES {
            "unknown revision of back references"
        } else {
            return;
        };
        check.find(Finding::HeaderFlags {
            tree: pointer.tree,
            logical: block.logical(),
            level: block.level(),
            flags: header.flags.bits(),
            revision: header.backref_revision,
            problem,
        });
    }

    /// Whether a block has full back references where it may, and where it must. Each tree refers in its own name to what is
    /// below the blocks that it holds and were made for it; a block is given full back references when its tree lets go of it
    /// while others share it, and by a relocation, which marks what it makes.
    pub(crate) fn look_at_flags(&self, pointer: &BlockPointer, block: &TreeBlock, full: bool) {
        let header = block.header();
        // The first format knows no other kind.
        if header.backref_revision == 0 || pointer.tree == TreeId::DATA_RELOCATION {
            return;
        }
        let relocated = header.flags.contains(HeaderFlags::RELOC) || header.owner == TreeId::TREE_RELOCATION;
        let may_share = pointer.tree.as_subvolume().is_some() || pointer.tree == TreeId::TREE_RELOCATION;
        let problem = if full && !may_share {
            "its extent has full back references, but blocks of this tree are never shared"
        } else if !full && relocated && may_share {
            "it has the relocation flag, but its extent has no full back references"
        } else if full && !relocated && self.is_own(pointer, block) {
            "its extent has full back references, but its owner tree contains the block"
        } else {
            return;
        };
        self.check.find(Finding::BackReferenceFlags {
            logical: block.logical(),
            level: block.level(),
            owner: header.owner,
            problem,
        });
    }

    /// Whether the tree that a block was made for is the only one that holds it, and is not on its way to let go of it.
    fn is_own(&self, pointer: &BlockPointer, block: &TreeBlock) -> bool {
        !self.relocates
            && pointer.tree == block.header().owner
            && !self.shared.contains(block.logical())
            && !self.dead.contains(&pointer.tree)
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
            let dropped = self.dropped.get(&pointer.tree);
            if dropped.is_some_and(|dropped| dropped.has_child_of(pointer.level, child.end_key))
                && !self.shared.contains(pointer.logical)
            {
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
