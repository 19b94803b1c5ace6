//! The blocks of a dump that is being reduced.
//!
//! A reduction removes items from leaves and pointers from nodes, and then drops all blocks to which
//! nothing leads. If the first key of a block changes, the keys in its parents change with it.
//! Damaged blocks stay as they are, because the damage may be the finding.

use crate::block::{self, LEVEL_MAX};
use crate::error::Result;
use crate::reading::DumpItem;
use crate::walking::Walk;
use crate::writing::ClusterWriter;
use buttress_exact::Exact as _;
use buttress_format::superblock::Superblock;
use buttress_format::{Key, TreeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A part that can be removed: the number of an item or pointer in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    block: u64,
    slot: usize,
}

/// The parts that a step of the reduction tries to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Blocks to which no root leads.
    Loose,
    /// The items of the root tree, each of which can lead to a tree.
    Roots,
    /// The pointers of all nodes of a level.
    Pointers(u8),
    /// The items of all other leaves.
    Items,
}

/// The blocks, with the superblock that leads to them.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    superblock: DumpItem,
    roots: Vec<(u64, u8)>,
    parsed: Superblock,
    /// The bytes of each block, which trials share.
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Blocks {
    pub(super) fn new(superblock: DumpItem, parsed: Superblock, blocks: BTreeMap<u64, Vec<u8>>) -> Self {
        let roots = vec![
            (parsed.chunk_root.get(), parsed.chunk_root_level),
            (parsed.root.get(), parsed.root_level),
            (parsed.log_root.get(), parsed.log_root_level),
        ];
        let blocks = blocks
            .into_iter()
            .map(|(logical, bytes)| (logical, Arc::new(bytes)));
        Self {
            superblock,
            roots,
            parsed,
            blocks: blocks.collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the dump of the blocks.
    pub(super) fn dump(&self, level: u32, threads: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut clusters = ClusterWriter::new(&mut bytes, level, threads);
        clusters.push(self.superblock.clone())?;
        // The chunk tree comes first, as in every dump.
        let is_chunk_tree = |bytes: &[u8]| block::owner(bytes) == Some(TreeId::CHUNK);
        for first in [true, false] {
            let blocks = self
                .blocks
                .iter()
                .filter(|(_, bytes)| is_chunk_tree(bytes) == first);
            for (logical, bytes) in blocks {
                clusters.push(DumpItem {
                    logical: *logical,
                    bytes: bytes.to_vec(),
                })?;
            }
        }
        clusters.finish()?;
        Ok(bytes)
    }

    /// Returns the blocks to which the superblock leads.
    fn reachable(&self) -> BTreeSet<u64> {
        let mut walk = Walk::default();
        for (logical, level) in &self.roots {
            walk.add(*logical, *level);
        }
        let read = |logical| self.blocks.get(&logical).map(|bytes| bytes.as_slice());
        walk.run(read).into_iter().collect()
    }

    /// Returns the parts of a kind, in order.
    pub(super) fn parts(&self, kind: Kind) -> Vec<Part> {
        let reachable = self.reachable();
        let mut parts = Vec::new();
        for (logical, bytes) in &self.blocks {
            let is_loose = !reachable.contains(logical);
            let is_root_tree = block::owner(bytes) == Some(TreeId::ROOT);
            let level = block::level(bytes);
            let slots = match kind {
                Kind::Loose => usize::from(is_loose),
                Kind::Roots if level == Some(0) && is_root_tree => block::heads(bytes).len(),
                Kind::Items if level == Some(0) && !is_root_tree => block::heads(bytes).len(),
                Kind::Pointers(wanted) if level == Some(wanted) => block::pointers(bytes).len(),
                _ => 0,
            };
            let is_wanted = (kind == Kind::Loose || !is_loose) && self.is_changeable(bytes);
            let slots = if is_wanted || kind == Kind::Loose {
                slots
            } else {
                0
            };
            parts.extend((0..slots).map(|slot| Part {
                block: *logical,
                slot,
            }));
        }
        parts
    }

    /// Returns whether a block may change: its checksum is right, and all items are inside.
    fn is_changeable(&self, bytes: &[u8]) -> bool {
        let is_leaf = block::level(bytes) == Some(0);
        block::is_whole(bytes, self.parsed.checksum_type)
            && (!is_leaf || block::heads(bytes).iter().all(|head| head.item.is_some()))
    }

    /// Returns the blocks without some parts, or `None` if a block would become empty below a
    /// parent.
    pub(super) fn without(&self, kind: Kind, parts: &[Part]) -> Option<Self> {
        let mut changed = self.clone();
        let mut by_block: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        for part in parts {
            by_block.entry(part.block).or_default().insert(part.slot);
        }
        if kind == Kind::Loose {
            changed
                .blocks
                .retain(|logical, _| !by_block.contains_key(logical));
            return Some(changed);
        }
        let parents = self.parents();
        for (logical, slots) in by_block {
            let bytes = Arc::make_mut(changed.blocks.get_mut(&logical)?);
            let before = first_key(bytes);
            remove_slots(bytes, &slots)?;
            block::seal(bytes, self.parsed.checksum_type);
            let after = first_key(bytes);
            if after.is_none() && (parents.contains_key(&logical) || block::level(bytes) != Some(0)) {
                return None;
            }
            if let (Some(before), Some(after)) = (before, after) {
                changed.change_key(&parents, logical, &before, &after, LEVEL_MAX);
            }
        }
        let reachable = changed.reachable();
        let was_loose = |logical: &u64| !parents.contains_key(logical) && self.blocks.contains_key(logical);
        let loose: BTreeSet<u64> = self.loose().into_iter().filter(was_loose).collect();
        changed
            .blocks
            .retain(|logical, _| reachable.contains(logical) || loose.contains(logical));
        Some(changed)
    }

    fn loose(&self) -> Vec<u64> {
        let reachable = self.reachable();
        let all = self.blocks.keys().copied();
        all.filter(|logical| !reachable.contains(logical)).collect()
    }

    /// Returns the nodes that name each block.
    fn parents(&self) -> HashMap<u64, Vec<u64>> {
        let mut parents: HashMap<u64, Vec<u64>> = HashMap::new();
        for (logical, bytes) in &self.blocks {
            if block::level(bytes).is_some_and(|level| level > 0) && self.is_changeable(bytes) {
                for child in block::children(bytes) {
                    parents.entry(child).or_default().push(*logical);
                }
            }
        }
        parents
    }

    /// Changes the key of a block in its parents, where it was right before.
    fn change_key(
        &mut self,
        parents: &HashMap<u64, Vec<u64>>,
        logical: u64,
        before: &Key,
        after: &Key,
        levels: u8,
    ) {
        let Some(below) = levels.checked_sub(1).filter(|_| before != after) else {
            return;
        };
        for parent in parents.get(&logical).into_iter().flatten() {
            let checksum = self.parsed.checksum_type;
            let Some(node) = self.blocks.get_mut(parent).map(Arc::make_mut) else {
                continue;
            };
            let pointers = block::pointers(node).into_iter().enumerate();
            let mut is_first = false;
            for (slot, pointer) in
                pointers.filter(|(_, pointer)| pointer.address == logical && pointer.key == *before)
            {
                block::set_key(node, pointer.at, after);
                is_first |= slot == 0;
            }
            block::seal(node, checksum);
            if is_first {
                self.change_key(parents, *parent, before, after, below);
            }
        }
    }
}

fn first_key(bytes: &[u8]) -> Option<Key> {
    match block::level(bytes)? {
        0 => block::items(bytes).next().map(|item| item.key),
        _ => block::pointers(bytes).first().map(|pointer| pointer.key),
    }
}

/// Removes items or pointers from a block. A node keeps at least one pointer.
fn remove_slots(bytes: &mut [u8], slots: &BTreeSet<usize>) -> Option<()> {
    if block::level(bytes) == Some(0) {
        let old = bytes.to_vec();
        let items = block::items(&old).enumerate();
        let kept = items.filter(|(slot, _)| !slots.contains(slot));
        let kept = kept.map(|(_, item)| Some((item.key, old.get(item.range)?.to_vec())));
        let kept: Vec<(Key, Vec<u8>)> = kept.collect::<Option<_>>()?;
        return block::repack(bytes, &kept).ok();
    }
    let pointers = block::pointers(bytes);
    let kept: Vec<Vec<u8>> = pointers
        .iter()
        .enumerate()
        .filter(|(slot, _)| !slots.contains(slot))
        .filter_map(|(_, pointer)| {
            let end = pointer.at.exact_add(block::POINTER_BYTES);
            bytes.get(pointer.at..end).map(<[u8]>::to_vec)
        })
        .collect();
    if kept.is_empty() {
        return None;
    }
    let count = u32::try_from(kept.len()).ok()?;
    let all = kept.concat();
    bytes.get_mut(block::HEADER_BYTES..)?.fill(0);
    bytes
        .get_mut(block::HEADER_BYTES..)?
        .get_mut(..all.len())?
        .copy_from_slice(&all);
    bytes.get_mut(96..100)?.copy_from_slice(&count.to_le_bytes());
    Some(())
}
