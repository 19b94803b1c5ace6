//! Checks that the owner of a tree block reaches the block.
//!
//! A block without full back references holds keyed references to its children in the name of the
//! tree in its header, so that tree must reach it. The tree reaches the block if one of the block's
//! references is keyed to that tree. If all references to the block are by other trees or by
//! parents, as after a balance, a descent in the owner's tree must lead to the block. A tree that
//! drops a block which others still share first converts the block to full back references.
//!
//! The path to most tree blocks already shows that the owner reaches them: the parent refers to the
//! block in the owner's name, or the path began in the owner's tree. For other blocks only, the
//! check descends the owner's tree through the cache, and keeps nothing in memory.

use crate::context::Check;
use crate::extents::recorded;
use crate::finding::{Finding, Reference};
use crate::roots::{Dropped, Root};
use buttress_format::{
    ExtentItem, Generation, HeaderFlags, InlineReference, ItemType, Key, Logical, ObjectId, TreeBlock,
    TreeId, parse_keyed_references,
};
use buttress_tree::{BlockPointer, ReadAhead, RootPointer, Sectors, Tree};
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

/// The back reference revision that Linux writes since 2.6.31, the newest so far.
const MIXED_REFERENCES: u8 = 1;

/// The trees of a volume, for lookups in them.
pub(crate) struct Owners<'a> {
    check: &'a Check<'a>,
    trees: HashMap<TreeId, RootPointer>,
    /// The drop progress of subvolumes.
    dropped: HashMap<TreeId, Dropped>,
    /// The tree blocks of the volume with more than one reference.
    shared: &'a Sectors,
    /// Subvolumes that are being dropped.
    dead: HashSet<TreeId>,
    /// The last snapshot of each subvolume. A relocation by Linux sets it too.
    last_snapshots: HashMap<TreeId, Generation>,
    /// Whether a relocation is in progress. A relocation converts blocks to full back references
    /// before it removes them from their tree.
    relocates: bool,
    /// Whether the whole root tree is readable. Only then does a missing root item prove that a
    /// tree does not exist.
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
            last_snapshots: subvolumes().map(|root| (root.id(), root.last_snapshot)).collect(),
            relocates: roots.iter().any(Root::is_relocation),
            all_known: OnceLock::new(),
        }
    }

    /// Returns a tree for lookups.
    pub(crate) fn tree(&self, id: TreeId) -> Option<Tree> {
        Some(self.check.forest.tree(*self.trees.get(&id)?))
    }

    /// Returns whether a key is in the dropped part of a tree. Lookups must not descend into blocks
    /// of a dropped tree part: those blocks are free, and other content may have overwritten them.
    pub(crate) fn is_dropped(&self, tree: TreeId, key: &Key) -> bool {
        self.dropped
            .get(&tree)
            .is_some_and(|dropped| dropped.has_key(key))
    }

    /// Checks a block without full back references, reached by `pointer`. `named` is the tree of
    /// the parent's keyed reference, if it has one.
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

    /// Checks that the flags and the revision in a block's header are possible in its tree. A
    /// relocation makes blocks only for trees that can share them.
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

    /// Checks that a block has full back references if it must, and has none if it must not. A tree
    /// holds keyed references to the children of its own blocks. A block gets full back references
    /// when its tree drops it while others share it. A relocation by Linux marks its own blocks. It
    /// also converts blocks of the tree, which stay if the relocation is cut. A tree expects full
    /// back references only of blocks that are marked, or not newer than its last snapshot.
    pub(crate) fn look_at_flags(&self, pointer: &BlockPointer, block: &TreeBlock, full: bool) {
        let header = block.header();
        // Back reference revision 0 has only full back references.
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

    /// Returns whether the tree for which a block was made is the only tree that reaches it, made it
    /// after its last snapshot, and is not being dropped.
    fn is_own(&self, pointer: &BlockPointer, block: &TreeBlock) -> bool {
        !self.relocates
            && pointer.tree == block.header().owner
            && self
                .last_snapshots
                .get(&pointer.tree)
                .is_none_or(|last| block.header().generation > *last)
            && !self.shared.contains(block.logical())
            && !self.dead.contains(&pointer.tree)
    }

    /// Returns whether the tree at `root` reaches this block; true if a block on the path is
    /// unreadable, which the scan of all blocks reports.
    fn leads_to(&self, root: &RootPointer, block: &TreeBlock) -> bool {
        let is_gone = |parent: &BlockPointer, child: &BlockPointer| {
            let dropped = self.dropped.get(&parent.tree);
            dropped.is_some_and(|dropped| dropped.has_child_of(parent.level, child.end_key))
                && !self.shared.contains(parent.logical)
        };
        let tree = self.check.forest.tree(*root);
        // Clamp: the scan reports the unreadable block.
        tree.contains_block(block, is_gone).unwrap_or(true)
    }

    fn all_known(&self) -> bool {
        *self.all_known.get_or_init(|| {
            self.tree(TreeId::ROOT)
                .is_some_and(|tree| tree.range(.., ReadAhead::None).all(|item| item.is_ok()))
        })
    }

    /// Returns whether a keyed reference of `owner` to the block is recorded, through which another
    /// parent may refer to it. Returns true if the extent item is missing or unreadable, which
    /// other steps report.
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
