//! The scan: reads every tree block of the volume once, on all cores, in no order.
//!
//! The scan subtracts each block's references from the [ledger](crate::fingerprint::Ledger), and
//! sums up the facts about inodes in leaves of subvolumes ([`crate::facts`]). The scan walks shared
//! parts of trees once: a *segment* is the set of blocks that are reachable without passing a block
//! with more than one reference. Each segment has its own sum of facts. The sum of a tree is that
//! of all segments it reaches ([`Segments`]), so a snapshot costs only what it does not share.

use crate::context::Check;
use crate::extents::{Extents, block_hash, reference_hash};
use crate::facts;
use crate::finding::{Finding, Reference};
use crate::item_types;
use crate::neighbourhoods::Neighbourhoods;
use crate::owners::Owners;
use crate::quotas::Uses;
use crate::roots::{Dropped, Root};
use crate::segments::{Edges, Found, Segments};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, FileExtent, Incompat, ItemType, Key, Logical, ObjectId, TreeBlock, TreeId};
use buttress_fs::Result;
use buttress_tree::{BlockPointer, Error, Scanner, Sectors, Tree};
use std::collections::HashMap;

/// The result of a scan.
pub(crate) struct BlockScan {
    pub(crate) segments: Segments,
    pub(crate) counts: Counts,
    /// Trees with an unreadable block, and so with missing references.
    pub(crate) complete: bool,
    /// For classic quotas, which segments use which extents.
    pub(crate) uses: Option<Uses>,
}

/// Counts over all blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) tree_bytes: u64,
    pub(crate) file_tree_bytes: u64,
    pub(crate) extent_tree_bytes: u64,
    pub(crate) waste_bytes: u64,
    pub(crate) referenced_bytes: u64,
    /// The number of references to extents of any kind.
    pub(crate) references: u64,
    /// The number of orphan items of each subvolume.
    pub(crate) orphans: HashMap<TreeId, u64>,
    /// For simple quotas, the bytes of tree blocks by the tree that owns them.
    pub(crate) owned: HashMap<u64, u64>,
}

/// The sums of one thread of the block scan.
pub(crate) struct Tally {
    counts: Counts,
    /// Sums over each segment of a tree, by segment number.
    sums: Vec<u64>,
    edges: Edges,
    /// Segments with unreadable blocks.
    damaged: Vec<u32>,
    uses: Option<Uses>,
    /// The tree that owns the last visited block's references to its children.
    naming: Option<TreeId>,
    /// The children of the last visited block that were dropped with a part of its tree.
    dropped: Option<Dropped>,
}

/// Facts about the pointer from a block to its child.
#[derive(Clone, Copy)]
pub(crate) struct Tag {
    segment: u32,
    /// The tree in whose name the parent refers to the child; `None` for a full back reference.
    named: Option<TreeId>,
    /// The drop progress of the tree through which the child was reached.
    dropped: Option<Dropped>,
}

/// The scan as a visitor of blocks.
pub(crate) struct Walk<'a> {
    pub(crate) check: &'a Check<'a>,
    extents: &'a Extents,
    segments: &'a Segments,
    seen: Sectors,
    owners: Owners<'a>,
    pub(crate) no_holes: bool,
    counted_from: Option<u64>,
    with_uses: bool,
}

/// Walks all trees of the volume.
pub(crate) fn run(
    check: &Check<'_>,
    roots: &[Root],
    extents: &Extents,
    counted_from: Option<u64>,
    with_uses: bool,
) -> Result<BlockScan> {
    let segments = Segments::new(roots);
    let walk = Walk {
        check,
        extents,
        segments: &segments,
        seen: Sectors::new(check.sector_bytes),
        owners: Owners::new(check, roots, &extents.shared),
        no_holes: check.superblock().incompat.contains(Incompat::NO_HOLES),
        counted_from,
        with_uses,
    };
    let starts = roots.iter().zip(0_u32..).filter_map(|(root, segment)| {
        let logical = root.pointer.logical;
        let reference = root_reference(root);
        let length = ByteCount::new(check.node_bytes.into());
        let hash = reference_hash(logical, length, &reference);
        extents.ledger.take(logical, hash.get());
        let tag = Tag {
            segment,
            named: name_in(&reference),
            dropped: root.dropped,
        };
        walk.seen.insert(logical).then_some((root.pointer, tag))
    });
    let starts: Vec<_> = starts.collect();
    let tallies = check.forest.survey(starts, &walk);
    check.progress.check()?;
    let mut scan = BlockScan {
        counts: Counts::default(),
        complete: true,
        uses: with_uses.then(Uses::default),
        segments: Segments::new(&[]),
    };
    for tally in tallies {
        scan.complete &= tally.damaged.is_empty();
        scan.counts.add(&tally.counts);
        if let (Some(all), Some(uses)) = (&mut scan.uses, tally.uses) {
            all.add(uses);
        }
        segments.add(tally.sums, tally.edges, &tally.damaged);
    }
    scan.segments = segments;
    Ok(scan)
}

/// Returns the reference of a root to its first block. For a relocation tree, the block's own
/// address is recorded.
pub(crate) fn root_reference(root: &Root) -> Reference {
    if root.is_relocation() {
        Reference::SharedBlock {
            parent: root.pointer.logical,
        }
    } else {
        Reference::TreeBlock { tree: root.id() }
    }
}

/// Returns whether leaves of this tree have file extent items that refer to data.
pub(crate) fn refers_to_data(owner: TreeId) -> bool {
    owner.holds_files() || owner == TreeId::ROOT || owner == TreeId::TREE_RELOCATION
}

/// Returns the reference of a leaf or node of this owner to its children.
pub(crate) fn child_reference(full: bool, block: Logical, owner: TreeId) -> Reference {
    if full {
        Reference::SharedBlock { parent: block }
    } else {
        Reference::TreeBlock { tree: owner }
    }
}

/// Returns the tree of a keyed reference to a tree block.
const fn name_in(reference: &Reference) -> Option<TreeId> {
    match reference {
        Reference::TreeBlock { tree } => Some(*tree),
        _ => None,
    }
}

/// Returns the reference of a file extent item to its data: address, length, reference; `None` for
/// inline content and holes.
pub(crate) fn data_reference(
    key: &Key,
    extent: &FileExtent<'_>,
    full: bool,
    leaf: Logical,
    owner: TreeId,
) -> Option<(Logical, ByteCount, Reference)> {
    let slice = extent.slice().filter(|slice| !slice.is_hole())?;
    let reference = if full {
        Reference::SharedData { parent: leaf }
    } else {
        Reference::Data {
            tree: owner,
            inode: buttress_format::InodeNumber::new(key.objectid.get()),
            offset: key.offset.wrapping_sub(slice.offset.get()),
        }
    };
    Some((slice.disk, slice.disk_bytes, reference))
}

impl Counts {
    fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.tree_bytes, other.tree_bytes);
        add(&mut self.file_tree_bytes, other.file_tree_bytes);
        add(&mut self.extent_tree_bytes, other.extent_tree_bytes);
        add(&mut self.waste_bytes, other.waste_bytes);
        add(&mut self.referenced_bytes, other.referenced_bytes);
        add(&mut self.references, other.references);
        for (tree, count) in &other.orphans {
            add(self.orphans.entry(*tree).or_default(), *count);
        }
        for (tree, bytes) in &other.owned {
            add(self.owned.entry(*tree).or_default(), *bytes);
        }
    }

    /// Counts the orphan items of a tree, which have the greatest keys of a subvolume.
    fn count_orphans(&mut self, tree: TreeId, block: &TreeBlock) {
        let is_orphan = |slot: usize| {
            let key = block.key(slot);
            key.is_some_and(|key| key.objectid == ObjectId::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM)
        };
        let count = (0..block.item_count())
            .rev()
            .take_while(|slot| is_orphan(*slot))
            .count();
        if count > 0 {
            let sum = self.orphans.entry(tree).or_default();
            *sum = sum.saturating_add(ByteCount::of(count).get());
        }
    }

    fn block(&mut self, pointer: &BlockPointer, block: &TreeBlock, counted_from: Option<u64>) {
        let bytes = ByteCount::of(block.bytes().len()).get();
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.tree_bytes, bytes);
        if pointer.tree.as_subvolume().is_some() {
            add(&mut self.file_tree_bytes, bytes);
        } else if pointer.tree == TreeId::EXTENT {
            add(&mut self.extent_tree_bytes, bytes);
        }
        let unit = if block.is_leaf() { 1 } else { 33 };
        let free = ByteCount::of(block.free_space()).get();
        add(&mut self.waste_bytes, free.saturating_mul(unit));
        let references = if block.is_leaf() { 0 } else { block.item_count() };
        add(&mut self.references, ByteCount::of(references).get());
        let header = block.header();
        if counted_from.is_some_and(|from| header.generation.get() >= from) {
            add(self.owned.entry(header.owner.get()).or_default(), bytes);
        }
    }
}

/// Returns whether the drop of a subvolume has already removed a child that ends below `end_key`.
pub(crate) fn is_gone(dropped: Option<Dropped>, parent_level: u8, end_key: Option<Key>) -> bool {
    dropped.is_some_and(|dropped| dropped.has_child_of(parent_level, end_key))
}

impl Walk<'_> {
    /// Checks that a block is in one stripe. Neither the kernel's scrub nor a page of the stripe's
    /// size can hold a block that crosses stripes. Chunks begin at stripe boundaries, except those
    /// that btrfs-convert made from old data.
    fn check_place(&self, logical: Logical) {
        let stripe = 65_536_u64;
        let length = ByteCount::new(self.check.node_bytes.into());
        let last = logical.saturating_add(length).get().saturating_sub(1);
        if logical.get() ^ last < stripe {
            return;
        }
        let map = self.check.volume().chunk_map();
        let start = map.find(logical).map_or(0, |chunk| chunk.start().get());
        let number = |address: u64| address.saturating_sub(start) >> 16;
        if number(logical.get()) != number(last) {
            self.check.find(Finding::BlockCrossesStripe { logical, length });
        }
    }

    /// Returns a tree for lookups.
    pub(crate) fn tree(&self, id: TreeId) -> Option<Tree> {
        self.owners.tree(id)
    }

    /// Returns whether a key is in the part of a tree that was dropped.
    pub(crate) fn is_dropped(&self, tree: TreeId, key: &Key) -> bool {
        self.owners.is_dropped(tree, key)
    }

    /// Returns the ranges of data with checksums.
    pub(crate) const fn covered(&self) -> &Neighbourhoods {
        &self.extents.covered
    }

    /// Returns the ranges of data without checksums.
    pub(crate) const fn bare(&self) -> &Neighbourhoods {
        &self.extents.bare
    }

    fn node(&self, tally: &mut Tally, pointer: &BlockPointer, block: &TreeBlock, full: bool) {
        let ledger = &self.extents.ledger;
        let reference = child_reference(full, block.logical(), block.header().owner);
        tally.naming = name_in(&reference);
        let length = ByteCount::new(self.check.node_bytes.into());
        for slot in 0..block.item_count() {
            let Some(child) = pointer.child(block, slot) else {
                continue;
            };
            if !is_gone(tally.dropped, pointer.level, child.end_key) {
                let hash = reference_hash(child.logical, length, &reference);
                ledger.take(child.logical, hash.get());
            }
        }
    }

    fn leaf(&self, tally: &mut Tally, pointer: &BlockPointer, block: &TreeBlock, full: bool, segment: u32) {
        let header = block.header();
        if refers_to_data(header.owner) {
            self.data(tally, block, full, segment);
        }
        // Blocks that a relocation tree shares with a subvolume may be reached through the
        // relocation tree first.
        if pointer.tree.holds_files() || pointer.tree == TreeId::TREE_RELOCATION {
            let sum = facts::of_leaf(self, pointer, block);
            tally.counts.count_orphans(pointer.tree, block);
            let index = segment.narrow::<usize>();
            if tally.sums.len() <= index {
                tally.sums.resize(index.saturating_add(1), 0);
            }
            if let Some(total) = tally.sums.get_mut(index) {
                *total = total.wrapping_add(sum);
            }
        }
    }

    fn data(&self, tally: &mut Tally, block: &TreeBlock, full: bool, segment: u32) {
        let (logical, owner) = (block.logical(), block.header().owner);
        for item in block.items() {
            if item.key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let Ok(extent) = FileExtent::parse(&item.key, item.data, self.check.sector_bytes) else {
                continue;
            };
            let reference = data_reference(&item.key, &extent, full, logical, owner);
            let Some((address, length, reference)) = reference else {
                continue;
            };
            let hash = reference_hash(address, length, &reference);
            self.extents.ledger.take(address, hash.get());
            let bytes = extent.slice().map_or(0, |slice| slice.num_bytes.get());
            tally.counts.referenced_bytes = tally.counts.referenced_bytes.saturating_add(bytes);
            tally.counts.references = tally.counts.references.saturating_add(1);
            if let Some(uses) = &mut tally.uses {
                uses.data(address, length, segment);
            }
        }
    }

    /// Checks another pointer to a block that was already reached: its expectations must hold too.
    fn reached_again(&self, child: &BlockPointer, first: Option<&Found>) {
        let same = first.is_some_and(|first| *first == Found::of(child));
        if !same && let Err(error) = self.check.forest.read_block(child) {
            self.check.find(damaged(&error));
        }
    }
}

/// Returns the finding of an unreadable block.
pub(crate) fn damaged(error: &Error) -> Finding {
    let pointer = error.pointer();
    Finding::TreeBlockDamaged {
        tree: pointer.tree,
        logical: pointer.logical,
        level: pointer.level,
        reason: error.cause().to_string(),
    }
}

impl Scanner for Walk<'_> {
    type Tally = Tally;
    type Tag = Tag;

    fn begin(&self) -> Tally {
        Tally {
            counts: Counts::default(),
            sums: Vec::new(),
            edges: Edges::default(),
            damaged: Vec::new(),
            uses: self.with_uses.then(Uses::default),
            naming: None,
            dropped: None,
        }
    }

    /// The walk calls this for the children of the last visited block.
    fn wants(&self, tally: &mut Tally, pointer: &BlockPointer, parent: Tag) -> Option<Tag> {
        let parent_level = pointer.level.saturating_add(1);
        if is_gone(tally.dropped, parent_level, pointer.end_key) {
            return None;
        }
        let named = tally.naming;
        let is_new = self.seen.insert(pointer.logical);
        if self.extents.shared.contains(pointer.logical) {
            let (segment, first) = self.segments.of_block(pointer);
            tally.edges.add(parent.segment, segment);
            if !is_new {
                self.reached_again(pointer, Some(&first));
            }
            return is_new.then_some(Tag {
                segment,
                named,
                dropped: parent.dropped,
            });
        }
        if !is_new {
            self.reached_again(pointer, None);
        }
        is_new.then_some(Tag { named, ..parent })
    }

    fn visit(&self, tally: &mut Tally, pointer: &BlockPointer, block: &TreeBlock, tag: Tag) {
        let (logical, header) = (block.logical(), block.header());
        let hash = block_hash(logical, block.level(), header.generation);
        self.extents.ledger.take(logical, hash.get());
        tally.counts.block(pointer, block, self.counted_from);
        if let Some(uses) = &mut tally.uses {
            uses.block(ByteCount::of(block.bytes().len()), tag.segment);
        }
        tally.dropped = tag.dropped.filter(|_| !self.extents.shared.contains(logical));
        let full = self.extents.full.contains(logical);
        Owners::look_at_header(self.check, pointer, block);
        self.owners.look_at_flags(pointer, block, full);
        if !full {
            self.owners.look_at(pointer, block, tag.named);
        }
        item_types::check(self.check, pointer, block);
        self.check_place(logical);
        if block.is_leaf() {
            self.leaf(tally, pointer, block, full, tag.segment);
        } else {
            self.node(tally, pointer, block, full);
        }
        self.check.count(1, ByteCount::of(block.bytes().len()).get());
    }

    fn failed(&self, tally: &mut Tally, error: Error, tag: Tag) {
        self.check.find(damaged(&error));
        tally.damaged.push(tag.segment);
    }

    fn is_cancelled(&self) -> bool {
        self.check.progress.is_cancelled()
    }
}
