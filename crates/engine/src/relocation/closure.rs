//! The closure of a relocation batch: all tree blocks that must change for extents to get other
//! addresses.
//!
//! A leaf changes if it refers to a moved extent. A node changes if a block below it does, up to
//! the roots. A reference by address names the block above. If a reference names a tree, the
//! closure searches that tree for the pointer. A pointer in memory needs no copy: that block has no
//! address yet, and it changes in place.
//!
//! Computing the closure changes nothing. The computation collects blocks that are not in memory,
//! so that the caller reads all of them at once.
//!
//! Invariants: the caller holds the lock of commits and the edit lock, and no delayed reference waits.

use super::extents::Extent;
use super::users::{CountedLeaves, KeyedData, User};
use crate::running::Running;
use crate::running_parts::ChecksumTree;
use buttress_accounts::delayed_references::{ExtentKind, Reference};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, Key, Logical, TreeBlock, TreeId};
use buttress_fs::checksums::ExpectedChecksums;
use buttress_fs::error::{Corruption, Defect, Result};
use buttress_tree::{BlockPointer, Holder};
use std::collections::{BTreeMap, BTreeSet};

/// A tree block that the relocation changes.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) block: TreeBlock,
    pub(super) extent: Extent,
}

/// An extent of file data whose content has a new place.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    pub(super) from: Logical,
    pub(super) length: ByteCount,
    pub(super) to: Logical,
    /// The checksums with which the moved content was verified.
    pub(super) sums: ExpectedChecksums,
}

/// An extent of file data that gets another address.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) moved: Moved,
    pub(super) extent: Extent,
}

/// The closure. The closure of a batch of a relocation; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Closure {
    /// Tree blocks that get a copy, by address.
    pub(super) blocks: BTreeMap<Logical, Block>,
    /// Data extents that get another address, by their old address.
    pub(super) data: BTreeMap<Logical, Data>,
    /// Blocks, each with its tree, whose pointer is the root pointer or in a block in memory.
    pub(super) pointers: BTreeSet<(TreeId, Logical)>,
    /// The keys of file extent items in leaves in memory, or in trees of the volume itself.
    pub(super) items: BTreeSet<(TreeId, Key)>,
    /// Extents that changed since their content was copied; the next pass moves them.
    pub(super) changed: Vec<Moved>,
    /// For each changed block, the blocks above it that also change.
    above: BTreeMap<Logical, Vec<Logical>>,
    queue: Vec<Logical>,
    missing: Vec<BlockPointer>,
}

/// The outcome of computing the closure of a relocation.
pub(super) enum Computed {
    Closure(Box<Closure>),
    /// The blocks that the caller must read, without the edit lock, before it retries.
    Missing(Vec<BlockPointer>),
    /// The closure is too large, so the caller must divide the batch.
    TooLarge,
}

impl Closure {
    /// Computes the closure of extents whose content was copied, and of tree blocks of subvolumes.
    /// A batch of several extents may change at most `blocks_max` blocks.
    pub(super) fn compute(
        running: &mut Running,
        moved: &[Moved],
        blocks: &[Logical],
        blocks_max: usize,
    ) -> Result<Computed> {
        let mut closure = Self::default();
        for moved in moved {
            let added = closure.add_data(running, moved);
            closure.note_missing(added)?;
        }
        closure.queue.extend_from_slice(blocks);
        let is_single = moved.len().exact_add(blocks.len()) <= 1;
        while let Some(next) = closure.queue.pop() {
            let added = closure.add_block(running, next);
            closure.note_missing(added)?;
            if closure.blocks.len() > blocks_max && !is_single {
                return Ok(Computed::TooLarge);
            }
        }
        match core::mem::take(&mut closure.missing) {
            missing if missing.is_empty() => Ok(Computed::Closure(Box::new(closure))),
            missing => Ok(Computed::Missing(missing)),
        }
    }

    fn note_missing(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => Ok(()),
            Err(error) => match error.missing_block() {
                Some(pointer) => {
                    self.missing.push(pointer);
                    Ok(())
                }
                None => Err(error),
            },
        }
    }

    fn add_data(&mut self, running: &mut Running, moved: &Moved) -> Result<()> {
        let Some(extent) = running.core.extent_with_references(moved.from)? else {
            self.changed.push(moved.clone());
            return Ok(());
        };
        let is_same = extent.kind() == ExtentKind::Data
            && extent.item.length == moved.length
            && running.checksum_tree().sums_of(moved.from, moved.length)? == moved.sums;
        if !is_same {
            self.changed.push(moved.clone());
            return Ok(());
        }
        let counted_leaves = CountedLeaves::of(&extent);
        let mut result = Ok(());
        for (reference, count) in &extent.references {
            match *reference {
                Reference::SharedData { parent } => self.queue.push(parent),
                Reference::Data { root, inode, offset } => {
                    let keyed = KeyedData {
                        root,
                        inode,
                        offset,
                        count: *count,
                    };
                    let added = self.add_users(running, &extent, &counted_leaves, &keyed);
                    result = result.and(self.note_missing(added));
                }
                Reference::TreeBlock { .. } | Reference::SharedBlock { .. } => {
                    return Err(Defect::new("an extent of data has references of a tree block")
                        .with("extent", moved.from.get())
                        .into());
                }
            }
        }
        result?;
        let data = Data {
            moved: moved.clone(),
            extent,
        };
        self.data.insert(moved.from, data);
        Ok(())
    }

    /// Adds the tree leaves whose items make up one keyed reference to an extent.
    fn add_users(
        &mut self,
        running: &mut Running,
        extent: &Extent,
        counted_leaves: &CountedLeaves,
        reference: &KeyedData,
    ) -> Result<()> {
        let root = reference.root;
        for user in reference.users(running, extent, counted_leaves)? {
            match user {
                User::Leaf(leaf) => self.queue.push(leaf),
                User::Item(key) => {
                    self.items.insert((root, key));
                }
            }
        }
        Ok(())
    }

    fn add_block(&mut self, running: &mut Running, logical: Logical) -> Result<()> {
        if self.blocks.contains_key(&logical) {
            return Ok(());
        }
        let node_bytes = running.core.node_bytes();
        let extent = running.core.expect_extent(logical, node_bytes)?;
        let ExtentKind::TreeBlock { level } = extent.kind() else {
            return Err(Corruption::ExtentMissing {
                logical,
                length: node_bytes,
            }
            .into());
        };
        let block = running.core.forest.read_block(&extent.pointer())?;
        // Clamp: the root of an empty tree is found by its level alone.
        let first_key = block.key(0).unwrap_or(Key::MIN);
        let mut result = Ok(());
        for (reference, _) in &extent.references {
            let added = match *reference {
                Reference::SharedBlock { parent } => {
                    self.go_up(logical, parent);
                    Ok(())
                }
                Reference::TreeBlock { root } => self.add_holder(running, root, logical, level, &first_key),
                Reference::Data { .. } | Reference::SharedData { .. } => {
                    return Err(Defect::new("a tree block has references of data")
                        .with("block", logical.get())
                        .into());
                }
            };
            result = result.and(self.note_missing(added));
        }
        result?;
        self.blocks.insert(logical, Block { block, extent });
        Ok(())
    }

    fn go_up(&mut self, block: Logical, parent: Logical) {
        self.queue.push(parent);
        self.above.entry(block).or_default().push(parent);
    }

    /// Returns the trees that must look up a block of the closure before they change it. Others
    /// share the block, or it has full back references. A tree expects neither of blocks that are
    /// newer than its last snapshot.
    pub(super) fn trees_to_mark(&self) -> BTreeSet<TreeId> {
        let mut by_level: Vec<(u8, Logical)> = self
            .blocks
            .iter()
            .map(|(logical, block)| (block.block.level(), *logical))
            .collect();
        by_level.sort_unstable();
        let mut shared = BTreeSet::new();
        if buttress_faults::on("relocation-snapshot-unmarked") {
            by_level.clear();
        }
        for (_, logical) in by_level {
            let block = self.blocks.get(&logical);
            let is_special = |block: &Block| block.extent.references.len() > 1 || block.extent.is_full();
            if block.is_some_and(is_special) || shared.contains(&logical) {
                shared.insert(logical);
                shared.extend(self.above.get(&logical).into_iter().flatten().copied());
            }
        }
        let pointers = self.pointers.iter().filter(|(_, block)| shared.contains(block));
        pointers.map(|(tree, _)| *tree).collect()
    }

    /// Returns the number of places of trees that the change of the closure edits, for a
    /// reservation.
    pub(super) fn places(&self) -> u64 {
        let blocks = u64_of(self.blocks.len());
        let data = u64_of(self.data.len());
        let items = u64_of(self.items.len());
        // Each moved data extent changes two records of extents, and two runs of checksums.
        blocks
            .exact_add(data)
            .exact_mul(2)
            .exact_add(data.exact_mul(2))
            .exact_add(items)
    }

    /// Returns the number of places with one more for the copy of each block.
    pub(super) fn places_with_copies(&self) -> u64 {
        self.places().exact_add(u64_of(self.blocks.len()))
    }

    fn add_holder(
        &mut self,
        running: &mut Running,
        root: TreeId,
        logical: Logical,
        level: u8,
        first_key: &Key,
    ) -> Result<()> {
        if !root.holds_files() {
            return Err(Corruption::ReferenceMissing {
                logical,
                reference: format!("tree {root}, which shares no blocks"),
            }
            .into());
        }
        let tree = running.open_tree(root)?.tree.clone();
        match tree.with(|tree| tree.holder(logical, level, first_key))? {
            Some(Holder::Root | Holder::Memory) => {
                self.pointers.insert((root, logical));
                Ok(())
            }
            Some(Holder::Block(block)) => {
                self.go_up(logical, block.0.logical);
                Ok(())
            }
            None => Err(Corruption::BackReferenceDangling {
                logical,
                reference: format!("tree {root} level {level}"),
            }
            .into()),
        }
    }
}

impl ChecksumTree<'_> {
    /// The checksums of an extent, as the newest version of the checksum tree has them.
    pub(super) fn sums_of(&mut self, logical: Logical, length: ByteCount) -> Result<ExpectedChecksums> {
        let (checksum_type, sector_bytes) = (
            self.running.core.format.checksum_type,
            self.running.core.format.sector_bytes,
        );
        let tree = self.running.view(TreeId::CHECKSUM)?;
        ExpectedChecksums::in_tree(&tree, checksum_type, sector_bytes, logical, length.exact_usize())
    }
}
