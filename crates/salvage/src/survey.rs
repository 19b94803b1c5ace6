//! A survey of a state: how many blocks of its trees can be read.
//!
//! States share most of their blocks. A [`Surveyor`] remembers the counts of subtrees, so the survey
//! of another state reads only the blocks that differ.
//!
//! # Bounds
//!
//! A child is accepted only if its keys are within the range that its parent gives it, so no block
//! has two places in one tree. Memory is 40 bytes for each remembered subtree, at most
//! [`REMEMBERED_MAX`] of them.
//!
//! # Left out
//!
//! File content: a later commit can have overwritten the data of a state whose trees are whole.

use crate::error::Result;
use crate::indexed::is_inside;
use crate::view::View;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_format::{
    Generation, InodeNumber, ItemType, Key, Logical, RootItem, SubvolumeId, Timestamp, TreeId,
};
use buttress_fs::filesystem::root_pointer;
use buttress_fs::{Filesystem, Progress};
use buttress_tree::{BlockPointer, Forest, ReadAhead};
use std::collections::HashMap;
use std::sync::Arc;

/// The largest number of remembered subtrees.
pub const REMEMBERED_MAX: usize = 1 << 21;

/// The largest number of damaged trees that a survey lists.
pub const DAMAGED_MAX: usize = 64;

/// The largest number of root items that are listed.
pub const ROOTS_MAX: usize = 1 << 20;

/// The number of blocks that are requested together.
const REQUESTED: usize = 64;

/// The blocks of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// The number of blocks that were read.
    pub readable: u64,
    /// The number of unreadable blocks. The blocks below an unreadable one are not counted.
    pub unreadable: u64,
}

impl BlockCounts {
    fn add(&mut self, more: Self) {
        self.readable = self.readable.saturating_add(more.readable); // Clamp: a count for display.
        self.unreadable = self.unreadable.saturating_add(more.unreadable); // Clamp: as above.
    }
}

/// The result of a survey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The blocks of all trees.
    pub blocks: BlockCounts,
    /// The blocks of the root tree.
    pub root_tree: BlockCounts,
    /// The first damaged trees, in the order of their ids.
    pub damaged: Vec<(TreeId, BlockCounts)>,
    /// True if the root block of a subvolume cannot be read.
    pub lacks_subvolumes: bool,
    /// The number of subvolumes.
    pub subvolumes: u64,
    /// The time of the newest change of a subvolume.
    pub changed: Option<Timestamp>,
}

impl Survey {
    /// Returns true if every tree block can be read.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.blocks.unreadable == 0
    }
}

/// Returns whether all blocks of the root tree and the root block of each subvolume can be read.
///
/// # Errors
/// Fails if `progress` was cancelled.
pub fn is_usable(filesystem: &Filesystem, progress: &Progress) -> Result<bool> {
    let forest = filesystem.forest();
    let mut roots = Vec::new();
    for visit in filesystem.root_tree().blocks(ReadAhead::None) {
        progress.check()?;
        let Ok(visit) = visit else { return Ok(false) };
        root_items(&visit.block, forest, &mut roots);
    }
    let subvolumes = roots
        .iter()
        .filter(|(tree, item)| tree.as_subvolume().is_some() && item.references != 0);
    let mut count = 0_u64;
    for (tree, item) in subvolumes {
        progress.check()?;
        if forest
            .read_block(&BlockPointer::root(&root_pointer(*tree, item)))
            .is_err()
        {
            return Ok(false);
        }
        count = count.exact_add(1);
    }
    Ok(count > 0)
}

/// Returns the keys and root items of all trees, as far as the root tree can be read, at most
/// [`ROOTS_MAX`].
///
/// # Errors
/// Fails if `progress` was cancelled.
pub fn tree_roots(filesystem: &Filesystem, progress: &Progress) -> Result<Vec<(Key, RootItem)>> {
    let mut found = Vec::new();
    for visit in filesystem.root_tree().blocks(ReadAhead::None) {
        progress.check()?;
        if let Ok(visit) = visit
            && found.len() < ROOTS_MAX
        {
            keyed_root_items(&visit.block, filesystem.forest(), &mut found);
        }
    }
    Ok(found)
}

/// Returns the first directory with entries in a subvolume's tree, if one can be read.
///
/// # Errors
/// Fails if the subvolume's tree cannot be found.
pub fn first_directory(
    filesystem: &Filesystem,
    subvolume: SubvolumeId,
) -> Result<Option<InodeNumber>, buttress_fs::Error> {
    let tree = filesystem.subvolume_tree(subvolume)?;
    for visit in tree.blocks(ReadAhead::None).flatten() {
        let leaf = &visit.block;
        let keys = (0..leaf.item_count()).filter_map(|slot| leaf.item(slot));
        let entry = keys
            .map(|item| item.key)
            .find(|key| key.item_type == ItemType::DIR_INDEX);
        if let Some(key) = entry {
            return Ok(Some(InodeNumber::new(key.objectid.get())));
        }
    }
    Ok(None)
}

/// Surveys states, and remembers the subtrees that they share.
#[derive(Debug, Default)]
pub struct Surveyor {
    known: HashMap<(Logical, Generation), BlockCounts>,
}

impl Surveyor {
    /// Returns a surveyor that knows no subtree. All its views are of the same devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads all tree blocks of a state that no earlier survey has read.
    ///
    /// # Errors
    /// Fails if `progress` was cancelled.
    pub fn survey(&mut self, view: &View, progress: &Progress) -> Result<Survey> {
        let mut survey = Survey::default();
        let forest = view.filesystem.forest();
        let mut roots = Vec::new();
        for visit in view.filesystem.root_tree().blocks(ReadAhead::None) {
            progress.check()?;
            match visit {
                Ok(visit) => {
                    survey.root_tree.readable = survey.root_tree.readable.exact_add(1);
                    root_items(&visit.block, forest, &mut roots);
                }
                Err(_) => survey.root_tree.unreadable = survey.root_tree.unreadable.exact_add(1),
            }
        }
        survey.blocks = survey.root_tree;
        if survey.root_tree.unreadable > 0 {
            survey.damaged.push((TreeId::ROOT, survey.root_tree));
        }
        for (tree, item) in roots {
            let is_subvolume = tree.as_subvolume().is_some();
            // A deleted subvolume has lost a part of its blocks already.
            if is_subvolume && item.references == 0 {
                continue;
            }
            let counts = self.count(forest, &BlockPointer::root(&root_pointer(tree, &item)), progress)?;
            survey.blocks.add(counts);
            if is_subvolume {
                survey.subvolumes = survey.subvolumes.exact_add(1);
                survey.changed = survey.changed.max(Some(item.ctime));
                survey.lacks_subvolumes |= counts.readable == 0;
            }
            if counts.unreadable > 0 && survey.damaged.len() < DAMAGED_MAX {
                survey.damaged.push((tree, counts));
            }
        }
        Ok(survey)
    }

    /// Counts the blocks of a subtree. The level of the pointer bounds the depth.
    fn count(
        &mut self,
        forest: &Arc<Forest>,
        pointer: &BlockPointer,
        progress: &Progress,
    ) -> Result<BlockCounts> {
        let place = (pointer.logical, pointer.generation);
        if let Some(known) = self.known.get(&place) {
            return Ok(*known);
        }
        progress.check()?;
        let mut counts = BlockCounts::default();
        match forest.read_block(pointer) {
            Ok(block) if is_inside(pointer, &block) => {
                counts.readable = 1;
                progress.advance(1, buttress_format::ByteCount::ZERO);
                let children: Vec<BlockPointer> = (0..block.item_count())
                    .map_while(|slot| pointer.child(&block, slot))
                    .collect();
                for group in children.chunks(REQUESTED) {
                    let is_new =
                        |child: &&BlockPointer| !self.known.contains_key(&(child.logical, child.generation));
                    let unknown: Vec<BlockPointer> = group.iter().filter(is_new).copied().collect();
                    // The blocks stay in memory until they are counted.
                    let _read = forest.fault_in(&unknown);
                    for child in group {
                        counts.add(self.count(forest, child, progress)?);
                    }
                }
            }
            Ok(_) | Err(_) => counts.unreadable = 1,
        }
        if self.known.len() < REMEMBERED_MAX {
            self.known.insert(place, counts);
        }
        Ok(counts)
    }
}

/// Appends the root items of a leaf, with the ids of their trees.
fn root_items(leaf: &TreeBlock, forest: &Forest, roots: &mut Vec<(TreeId, RootItem)>) {
    let mut keyed = Vec::new();
    keyed_root_items(leaf, forest, &mut keyed);
    let ids = keyed.into_iter();
    roots.extend(ids.map(|(key, item)| (TreeId::new(key.objectid.get()), item)));
}

/// Appends the root items of a leaf.
fn keyed_root_items(leaf: &TreeBlock, forest: &Forest, roots: &mut Vec<(Key, RootItem)>) {
    for slot in 0..leaf.item_count() {
        let Some(item) = leaf.item(slot) else { continue };
        if item.key.item_type != ItemType::ROOT_ITEM {
            continue;
        }
        let sector_bytes = forest.block_format().sector_bytes;
        // The tree checker has accepted the item.
        if let Ok(root) = RootItem::parse(&item.key, item.data, sector_bytes) {
            roots.push((item.key, root));
        }
    }
}
