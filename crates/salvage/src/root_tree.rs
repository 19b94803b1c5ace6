//! The items of a root tree whose blocks are lost, from older blocks and from the roots that a scan
//! finds.
//!
//! 1. Items in blocks of the root tree that can be read stay as they are.
//! 2. For a lost block, items of its keys come from older leaves of the root tree, the newest first.
//!    A leaf has all items of its keys at its time. Therefore, an item counts only if no newer leaf
//!    covers its key.
//! 3. A root item from an older leaf can have an older root. The superblock names the last roots of
//!    the extent tree and of three other trees. For every other tree, the newest root counts that the
//!    extent tree still has, and whose blocks are all there.
//!
//! # Invariants
//!
//! - Each root that is returned was read, with all blocks below it. The trees that account for space
//!   are the exception: they can be written again.
//! - The search writes nothing. A tree without a root is listed with the reason.
//!
//! # Left out
//!
//! Space caches of version 1. Their items describe free space of an older commit, and Linux makes
//! them again.

use crate::error::Result;
use crate::identity::Identity;
use crate::index::BlockIndex;
use crate::indexed::{IndexedTrees, Walked};
use crate::states::{State, newest_tops, superblocks};
use buttress_device::Device;
use buttress_format::{BackupTree, Generation, ItemType, Key, ObjectId, RootItem, TreeId};
use buttress_fs::Progress;
use buttress_fs::filesystem::root_pointer;
use buttress_tree::{BlockPointer, RootPointer};
use core::ops::{ControlFlow, RangeInclusive};
use std::collections::BTreeMap;

/// The largest number of older leaves that are read.
const LEAVES_MAX: usize = 1 << 14;

/// The largest number of items of a root tree.
const ITEMS_MAX: usize = 1 << 20;

/// The largest number of older roots of one tree that are tried.
const ROOTS_MAX: usize = 64;

/// The evidence for the root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootEvidence {
    /// A readable block of the root tree has the root item.
    RootItem,
    /// The superblock names the root.
    Superblock,
    /// The newest root that the scan found. No later root is known.
    Newest,
    /// An older root. Blocks of a newer one are lost, so the last changes are lost.
    Older,
}

/// The reason why a tree has no root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootProblem {
    /// No root of the tree is whole.
    #[error("no root of it has all of its blocks")]
    NoRoot,
    /// The extent tree has none of its roots, so the tree was deleted.
    #[error("its roots are free")]
    Deleted,
    /// Two roots of the newest generation are whole.
    #[error("generation {generation} has two roots, and nothing shows which one was committed")]
    Ambiguous {
        /// The generation.
        generation: Generation,
    },
    /// Blocks are newer than all root items, so the tree is new and its item is lost.
    #[error("it is newer than all root items that are left")]
    NoItem,
}

/// The root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredRoot {
    /// The root.
    pub pointer: RootPointer,
    /// The evidence for it.
    pub evidence: RootEvidence,
}

/// The items of a root tree.
#[derive(Clone, Debug)]
pub struct RecoveredRoots {
    /// The items, with the roots in them.
    pub items: BTreeMap<Key, Vec<u8>>,
    /// The roots of all trees, by the keys of their items.
    pub roots: BTreeMap<Key, RecoveredRoot>,
    /// The trees without a root, each with the reason.
    pub unproven: Vec<(TreeId, RootProblem)>,
    /// True if every block of the root tree was found.
    pub has_root_tree: bool,
}

/// Returns whether a tree can be written again from all other trees.
const fn accounts_for_space(tree: TreeId) -> bool {
    matches!(tree, TreeId::EXTENT | TreeId::FREE_SPACE | TreeId::BLOCK_GROUP)
}

/// Recovers the items of a state's root tree.
///
/// # Errors
/// Fails if the index cannot be read, or if `progress` was cancelled.
pub fn recover_roots(
    devices: &[Device],
    identity: &Identity,
    index: &BlockIndex,
    state: &State,
    progress: &Progress,
) -> Result<RecoveredRoots> {
    let root = RootPointer {
        tree: TreeId::ROOT,
        logical: state.root.logical,
        generation: state.root.generation,
        level: state.root.level,
    };
    let mut search = Search {
        trees: IndexedTrees::new(devices, identity, index),
        index,
        sector_bytes: identity.sector_bytes,
        generation: state.generation(),
        found: RecoveredRoots {
            items: BTreeMap::new(),
            roots: BTreeMap::new(),
            unproven: Vec::new(),
            has_root_tree: false,
        },
        covered: Vec::new(),
        named: backup_of(devices, identity, state),
    };
    let missing = search.readable(&root)?;
    search.found.has_root_tree = missing.is_empty();
    let lost: Vec<Lost> = missing.iter().map(Lost::below).collect();
    search.older_leaves(&lost, progress)?;
    search.forget_space_caches(&lost);
    search.settle_roots(&lost, progress)?;
    search.new_trees(&lost, progress)?;
    Ok(search.found)
}

/// Returns the roots that the superblock names for a state.
fn backup_of(devices: &[Device], identity: &Identity, state: &State) -> BTreeMap<TreeId, BackupTree> {
    let all = superblocks(devices, identity.fsid);
    let mut backups = all.iter().flat_map(|(_, found)| &found.backup_roots);
    let own = backups.find(|backup| backup.tree_root == state.root);
    let named = own.map(|own| {
        [
            (TreeId::EXTENT, own.extent_root),
            (TreeId::FS, own.fs_root),
            (TreeId::DEVICE, own.dev_root),
            (TreeId::CHECKSUM, own.csum_root),
        ]
    });
    let named = named.into_iter().flatten();
    named.filter(|(_, root)| root.logical.get() != 0).collect()
}

/// The keys of a lost block.
#[derive(Clone, Copy, Debug)]
struct Lost {
    first: Key,
    end: Option<Key>,
}

impl Lost {
    fn below(pointer: &BlockPointer) -> Self {
        Self {
            first: pointer.first_key.unwrap_or(Key::MIN), // Clamp: a root has no lower bound.
            end: pointer.end_key,
        }
    }

    fn has(&self, key: &Key) -> bool {
        self.first <= *key && self.end.is_none_or(|end| *key < end)
    }
}

struct Search<'a> {
    trees: IndexedTrees<'a>,
    index: &'a BlockIndex,
    sector_bytes: u32,
    generation: Generation,
    found: RecoveredRoots,
    /// The keys of the older leaves that were read, with their generations.
    covered: Vec<(RangeInclusive<Key>, Generation)>,
    named: BTreeMap<TreeId, BackupTree>,
}

impl Search<'_> {
    /// Collects the items that can be read. Returns the pointers to the missing blocks.
    fn readable(&mut self, root: &RootPointer) -> Result<Vec<BlockPointer>> {
        let items = &mut self.found.items;
        let mut take = |key: &Key, data: &[u8]| {
            items.insert(*key, data.to_vec());
            match items.len() < ITEMS_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        self.trees.items(root, &(Key::MIN..=Key::MAX), &mut take)?;
        self.trees.missing(root, LEAVES_MAX)
    }

    /// Collects the items of lost blocks from older leaves.
    fn older_leaves(&mut self, lost: &[Lost], progress: &Progress) -> Result<()> {
        if lost.is_empty() {
            return Ok(());
        }
        let mut records = Vec::new();
        for position in self.trees.reader().of_tree(TreeId::ROOT, 0..1)? {
            let record = self.trees.reader().ordered(position)?;
            if record.is_sound() && record.items > 0 && record.generation <= self.generation {
                records.push(record);
            }
        }
        records.sort_unstable_by_key(|record| {
            (
                core::cmp::Reverse(record.generation),
                record.first_key,
                record.logical,
            )
        });
        records.dedup_by_key(|record| (record.generation, record.logical));
        for record in records.iter().take(LEAVES_MAX) {
            progress.check()?;
            let Some(leaf) = self.trees.block_of(record) else {
                continue;
            };
            let newer = |key: &Key| {
                let mut covered = self.covered.iter();
                covered.any(|(keys, generation)| *generation > record.generation && keys.contains(key))
            };
            for item in (0..leaf.item_count()).filter_map(|slot| leaf.item(slot)) {
                let is_lost = lost.iter().any(|lost| lost.has(&item.key));
                let is_new = is_lost && !newer(&item.key) && self.found.items.len() < ITEMS_MAX;
                if is_new && !self.found.items.contains_key(&item.key) {
                    self.found.items.insert(item.key, item.data.to_vec());
                }
            }
            self.covered
                .push((record.first_key..=record.last_key, record.generation));
        }
        Ok(())
    }

    /// Drops the items of space caches that are not those of the last commit.
    fn forget_space_caches(&mut self, lost: &[Lost]) {
        let is_cache = |key: &Key| {
            let is_inode = matches!(key.item_type, ItemType::INODE_ITEM | ItemType::EXTENT_DATA);
            let is_own = is_inode && key.objectid >= ObjectId::FIRST_FREE;
            key.objectid == ObjectId::FREE_SPACE || is_own
        };
        let is_old = |key: &Key| lost.iter().any(|lost| lost.has(key));
        self.found.items.retain(|key, _| !(is_cache(key) && is_old(key)));
    }

    /// Sets the root in each root item from an older leaf.
    fn settle_roots(&mut self, lost: &[Lost], progress: &Progress) -> Result<()> {
        let keys: Vec<Key> = self.found.items.keys().copied().collect();
        for key in keys {
            if key.item_type != ItemType::ROOT_ITEM {
                continue;
            }
            progress.check()?;
            let tree = TreeId::new(key.objectid.get());
            let Some(data) = self.found.items.get(&key) else {
                continue;
            };
            let Ok(item) = RootItem::parse(&key, data, self.sector_bytes) else {
                self.found.unproven.push((tree, RootProblem::NoRoot));
                continue;
            };
            let own = root_pointer(tree, &item);
            let is_old = lost.iter().any(|lost| lost.has(&key));
            let root = match (is_old, own.logical.get() == 0) {
                (false, _) | (_, true) => Ok(RecoveredRoot {
                    pointer: own,
                    evidence: RootEvidence::RootItem,
                }),
                (true, false) => self.root_of(tree, &own)?,
            };
            match root {
                Ok(root) => {
                    self.found.items.insert(key, with_root(item, &root.pointer));
                    self.found.roots.insert(key, root);
                }
                Err(RootProblem::Deleted) if tree.as_subvolume().is_some() => self.forget(tree),
                Err(problem) => self.found.unproven.push((tree, problem)),
            }
        }
        Ok(())
    }

    /// Drops the items of a subvolume that was deleted after the last root item that is left.
    fn forget(&mut self, tree: TreeId) {
        let is_own = |key: &Key| {
            let names = matches!(
                key.item_type,
                ItemType::ROOT_REF | ItemType::ROOT_BACKREF | ItemType::ORPHAN_ITEM
            );
            key.objectid == tree.object_id() || (names && key.offset == tree.get())
        };
        self.found.items.retain(|key, _| !is_own(key));
    }

    /// Returns the last root of a tree. `known` is the root in an older root item.
    fn root_of(
        &mut self,
        tree: TreeId,
        known: &RootPointer,
    ) -> Result<core::result::Result<RecoveredRoot, RootProblem>> {
        let pointer = |root: &BackupTree| RootPointer {
            tree,
            logical: root.logical,
            generation: root.generation,
            level: root.level,
        };
        let needs_blocks = !accounts_for_space(tree);
        if let Some(named) = self.named.get(&tree).map(pointer)
            && (!needs_blocks || self.is_whole(&named)?)
        {
            return Ok(Ok(RecoveredRoot {
                pointer: named,
                evidence: RootEvidence::Superblock,
            }));
        }
        let mut candidates: BTreeMap<Generation, Vec<RootPointer>> = BTreeMap::new();
        for (generation, roots) in newest_tops(self.index, tree)? {
            if (known.generation..=self.generation).contains(&generation) {
                candidates.insert(generation, roots.iter().map(pointer).collect());
            }
        }
        candidates.insert(known.generation, vec![*known]);
        let (mut evidence, mut is_deleted) = (RootEvidence::Newest, true);
        for (generation, roots) in candidates.into_iter().rev().take(ROOTS_MAX) {
            let (mut whole, mut is_lost) = (Vec::new(), false);
            for root in roots {
                // A free root is no later state of the tree.
                if self.is_allocated(&root)? == Some(false) {
                    continue;
                }
                is_deleted = false;
                match !needs_blocks || self.is_whole(&root)? {
                    true => whole.push(root),
                    false => is_lost = true,
                }
            }
            match whole.as_slice() {
                [] if is_lost => evidence = RootEvidence::Older,
                [] => {}
                [root] => {
                    return Ok(Ok(RecoveredRoot {
                        pointer: *root,
                        evidence,
                    }));
                }
                [root, ..] if !needs_blocks => {
                    return Ok(Ok(RecoveredRoot {
                        pointer: *root,
                        evidence,
                    }));
                }
                _ => return Ok(Err(RootProblem::Ambiguous { generation })),
            }
        }
        Ok(Err(match is_deleted {
            true => RootProblem::Deleted,
            false => RootProblem::NoRoot,
        }))
    }

    /// Returns whether the extent tree of the commit has an extent for a root. A transaction can write
    /// the root of a tree several times, and all of them except one are free afterwards. Returns `None`
    /// if the extent tree does not tell.
    fn is_allocated(&mut self, root: &RootPointer) -> Result<Option<bool>> {
        let Some(extents) = self.named.get(&TreeId::EXTENT) else {
            return Ok(None);
        };
        let extents = RootPointer {
            tree: TreeId::EXTENT,
            logical: extents.logical,
            generation: extents.generation,
            level: extents.level,
        };
        let key = |item_type, offset| Key::new(ObjectId::new(root.logical.get()), item_type, offset);
        let keys = key(ItemType::EXTENT_ITEM, 0)..=key(ItemType::METADATA_ITEM, u64::MAX);
        let mut is_allocated = false;
        let mut take = |key: &Key, _: &[u8]| {
            is_allocated = matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM);
            ControlFlow::Break(())
        };
        let walked = self.trees.items(&extents, &keys, &mut take)?;
        Ok((is_allocated || walked == Walked::Whole).then_some(is_allocated))
    }

    fn is_whole(&mut self, root: &RootPointer) -> Result<bool> {
        Ok(self.trees.missing(root, 1)?.is_empty())
    }

    /// Lists the subvolumes that are newer than all root items.
    fn new_trees(&mut self, lost: &[Lost], progress: &Progress) -> Result<()> {
        let (mut position, records) = (0, self.index.records());
        while position < records && !lost.is_empty() {
            progress.check()?;
            let tree = self.trees.reader().ordered(position)?.owner;
            let next = self.trees.reader().of_tree(tree, 0..u8::MAX)?.end;
            // A damaged order of records must not lead back.
            position = next.max(position.saturating_add(1)); // Clamp: the index has fewer records.
            let first = Key::new(tree.object_id(), ItemType::ROOT_ITEM, 0);
            let last = Key {
                offset: u64::MAX,
                ..first
            };
            let is_known = self.found.items.range(first..=last).next().is_some();
            if tree.as_subvolume().is_none() || is_known || !lost.iter().any(|lost| lost.has(&first)) {
                continue;
            }
            let tops = newest_tops(self.index, tree)?;
            let newest = tops.range(..=self.generation).next_back();
            let covered = self.covered.iter();
            let covered = covered.filter(|(keys, _)| keys.contains(&first) || keys.contains(&last));
            let known = covered.map(|(_, generation)| *generation).max();
            if newest.is_some_and(|(newest, _)| known.is_none_or(|known| *newest > known)) {
                self.found.unproven.push((tree, RootProblem::NoItem));
            }
        }
        Ok(())
    }
}

/// Returns a root item with a root.
fn with_root(item: RootItem, root: &RootPointer) -> Vec<u8> {
    let has_later_fields = item.generation_v2 == item.generation;
    let item = RootItem {
        logical: root.logical,
        level: root.level,
        generation: root.generation,
        generation_v2: match has_later_fields {
            true => root.generation,
            false => item.generation_v2,
        },
        ..item
    };
    item.to_bytes().to_vec()
}
