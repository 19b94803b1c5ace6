//! The climb from a tree block to the roots that reach it.
//!
//! In each step of a climb, every reference of a block leads to a parent block. A full back
//! reference names the parent. A keyed reference names a tree, and a search of that tree for the
//! block's first key, one level above, finds the parent. The climb ends at a tree block that is the
//! root of the named tree. A parent block may also be shared, so the climb continues from each
//! parent. A climb visits every block once.

use super::extent::{block_of_extent, extent_at, extent_references};
use super::{BLOCKS_MAX, list};
use buttress_format::{InlineReference, Key, Logical, TreeId};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::BlockPointer;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// The largest number of results that a climb remembers.
const REMEMBERED_MAX: usize = 4096;

/// The climbs of one call, and their results so far.
#[derive(Debug)]
pub(super) struct Climb<'a> {
    filesystem: &'a Filesystem,
    known: HashMap<Logical, Arc<[TreeId]>>,
}

impl<'a> Climb<'a> {
    pub(super) fn new(filesystem: &'a Filesystem) -> Self {
        Self {
            filesystem,
            known: HashMap::new(),
        }
    }

    /// Returns the trees that reach a tree block, in order. References that lead nowhere are added
    /// to `failures`.
    pub(super) fn roots_of(&mut self, block: Logical, failures: &mut Vec<Error>) -> Result<Arc<[TreeId]>> {
        if let Some(known) = self.known.get(&block) {
            return Ok(Arc::clone(known));
        }
        let mut roots = BTreeSet::new();
        let mut seen = HashSet::from([block]);
        let mut waiting = vec![block];
        while let Some(current) = waiting.pop() {
            if let Some(known) = self.known.get(&current) {
                roots.extend(known.iter().copied());
                continue;
            }
            let step = self.step(current, &mut roots, failures);
            let parents = match step {
                Ok(parents) => parents,
                Err(error) => {
                    list(failures, error);
                    continue;
                }
            };
            waiting.extend(parents.into_iter().filter(|parent| seen.insert(*parent)));
            if seen.len() > BLOCKS_MAX {
                return Err(Corruption::BackReferencesTooMany {
                    logical: block,
                    limit: BLOCKS_MAX,
                }
                .into());
            }
        }
        let roots: Arc<[TreeId]> = roots.into_iter().collect();
        if self.known.len() >= REMEMBERED_MAX {
            self.known.clear();
        }
        self.known.insert(block, Arc::clone(&roots));
        Ok(roots)
    }

    /// Returns the parents of a block. Trees whose root is this block are added to `roots`.
    fn step(
        &self,
        block: Logical,
        roots: &mut BTreeSet<TreeId>,
        failures: &mut Vec<Error>,
    ) -> Result<Vec<Logical>> {
        let extent = extent_at(self.filesystem, block)?;
        let (Some(level), true) = (extent.item.level, extent.item.start == block) else {
            return Err(Error::ExtentNotFound { logical: block });
        };
        let mut first_key = None;
        let mut parents = Vec::new();
        for reference in extent_references(self.filesystem, &extent)? {
            match reference? {
                InlineReference::TreeBlock { root } => {
                    let key = match first_key {
                        Some(key) => key,
                        None => {
                            // Clamp: an empty block has no first key and sorts before everything.
                            let key = block_of_extent(self.filesystem, &extent)?
                                .key(0)
                                .unwrap_or(Key::MIN);
                            *first_key.insert(key)
                        }
                    };
                    match self.parent_in_tree(root, block, level, &key) {
                        Ok(Some(parent)) => parents.push(parent),
                        Ok(None) => {
                            roots.insert(root);
                        }
                        Err(error) => list(failures, error),
                    }
                }
                // The root of a relocation tree has a reference to itself.
                InlineReference::SharedBlock { parent } if parent != block => parents.push(parent),
                _ => {}
            }
        }
        Ok(parents)
    }

    /// Returns the parent of a block in a tree, or `None` if the block is the tree's root.
    fn parent_in_tree(&self, root: TreeId, block: Logical, level: u8, key: &Key) -> Result<Option<Logical>> {
        let dangling = || Corruption::BackReferenceDangling {
            logical: block,
            reference: format!("tree {root}"),
        };
        let tree = self.filesystem.tree(root).map_err(|_| dangling())?;
        let mut pointer = BlockPointer::root(tree.root());
        if pointer.logical == block {
            return Ok(None);
        }
        while pointer.level > level {
            let node = self.filesystem.forest().read_block(&pointer)?;
            let slot = match node.search(key) {
                Ok(slot) => slot,
                // Clamp: a key before the first key belongs to the first child.
                Err(slot) => slot.saturating_sub(1),
            };
            let child = pointer.child(&node, slot).ok_or_else(dangling)?;
            if child.logical == block && child.level == level {
                return Ok(Some(pointer.logical));
            }
            pointer = child;
        }
        Err(dangling().into())
    }
}
