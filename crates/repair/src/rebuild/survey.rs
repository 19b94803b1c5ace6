//! The survey: reads every tree block once, and collects the facts about all extents.
//!
//! The survey walks the trees that stay, and the trees that the rebuild replaces. Blocks of replaced
//! trees give no facts: no new record describes them. Their addresses stay reserved, because the
//! volume's first state needs them until the new superblocks exist.
//!
//! # Back references
//!
//! A block's children are recorded either under the tree in the block's header, or under the
//! block's address (*full back references*). The flag for this was in the lost extent items, so the
//! survey chooses it. A block has full back references if its header says that a relocation made it,
//! or if the tree in its header no longer contains it. For all other blocks, the tree in the header
//! records the children. Linux accepts each choice that is consistent: when it changes a block, it
//! reads the flag from the extent item of every block that could be shared.
//!
//! # Order
//!
//! Trees that are half deleted come after the others that stay. The deletion of a tree skips shared
//! blocks as a whole, so the dropped children of a block count only if no other tree has reached this
//! block before.
//!
//! Trees that the rebuild replaces come last. They may be damaged, and a wrong pointer may lead to a
//! block of another tree. The survey visits each block once, so the tree that owns the block comes first.

use super::errors::{failed, refused};
use super::facts::{Encoded, Fact, Size};
use super::roots::{Dropped, Root};
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, Compression, ExtentItem, FileExtent, HeaderFlags, InlineReference, InodeNumber, ItemType, Key,
    Logical, TreeBlock, TreeId, parse_keyed_references,
};
use buttress_fs::{Error, Filesystem, Progress, Result};
use buttress_locks::{Mutex, Rank, lock_class};
use buttress_packing::{Sorted, Sorter, SpoolFolder};
use buttress_tree::{BlockPointer, Scanner, Sectors};
use std::collections::HashMap;

lock_class!(FactsLock, "facts", Rank::LEAF);

/// The number of facts that a thread collects before it passes them on.
const FACTS_AT_ONCE: usize = 4096;

/// Resources of a rebuild.
#[derive(Clone, Debug)]
pub(crate) struct Resources {
    /// The memory of the sorter.
    pub(crate) memory: ByteCount,
    /// The folder of records that exceed the memory.
    pub(crate) folder: SpoolFolder,
}

/// The result of a survey.
#[derive(Debug)]
pub(super) struct Survey {
    /// The facts about all extents that stay.
    pub(super) facts: Sorted,
    /// The sectors of all tree blocks, also of those that only the old extent tree records.
    pub(super) reserved: Sectors,
    /// The addresses of the blocks of replaced trees.
    pub(super) replaced: Vec<u64>,
    /// Whether leaves of the checksum tree may be readable that no readable node names.
    pub(super) hides_checksums: bool,
}

impl Survey {
    /// Reserves the blocks at further addresses.
    pub(super) fn hold(&self, blocks: &[u64], node_bytes: u32, sector_bytes: u32) {
        let step: usize = sector_bytes.narrow();
        for block in blocks {
            for at in (*block..block.exact_add(node_bytes.into())).step_by(step) {
                self.reserved.insert(Logical::new(at));
            }
        }
    }
}

/// The receiver of the facts of all threads.
struct Facts {
    sorter: Sorter,
    failure: Option<buttress_packing::Error>,
}

/// The survey as a visitor of blocks.
struct Walk<'a> {
    filesystem: &'a Filesystem,
    progress: &'a Progress,
    replaced: &'a [TreeId],
    roots: HashMap<TreeId, Root>,
    facts: Mutex<Facts, FactsLock>,
    seen: Sectors,
    reserved: Sectors,
    node_bytes: u32,
    sector_bytes: u32,
}

/// Properties of the path to a block.
#[derive(Clone, Copy)]
struct Tag {
    /// The tree that records the block as a child of its parent; `None` for a full back reference.
    named: Option<TreeId>,
    dropped: Option<Dropped>,
}

/// The facts that one thread has collected, and the state of its last block.
struct Tally {
    facts: Vec<Encoded>,
    /// The pointer to the last visited block, and the tag of its children.
    last: Option<(BlockPointer, Tag)>,
    /// The reason why the survey is incomplete.
    failure: Option<Error>,
    /// The addresses of the blocks of replaced trees.
    replaced: Vec<u64>,
    hides_checksums: bool,
}

/// Surveys all trees. `replaced` are the trees that the rebuild replaces.
///
/// # Errors
/// Fails if a block of another tree cannot be read, because its references are then unknown.
pub(super) fn run(
    filesystem: &Filesystem,
    roots: &[Root],
    replaced: &[TreeId],
    resources: &Resources,
    progress: &Progress,
) -> Result<Survey> {
    let superblock = filesystem.superblock();
    // Clamp: the sorter has a limit of its own.
    let limit = usize::try_from(resources.memory.get()).unwrap_or(usize::MAX);
    let walk = Walk {
        filesystem,
        progress,
        replaced,
        roots: roots.iter().map(|root| (root.id(), *root)).collect(),
        facts: Mutex::new(Facts {
            sorter: Sorter::new(&resources.folder, limit),
            failure: None,
        }),
        seen: Sectors::new(superblock.sector_bytes),
        reserved: Sectors::new(superblock.sector_bytes),
        node_bytes: superblock.node_bytes,
        sector_bytes: superblock.sector_bytes,
    };
    let (mut replaced_blocks, mut hides_checksums) = (Vec::new(), false);
    for part in parts(roots, replaced) {
        let mut tally = walk.begin();
        let starts: Vec<_> = part
            .iter()
            .filter_map(|root| walk.start(&mut tally, root))
            .collect();
        let mut tallies = filesystem.forest().survey(starts, &walk);
        progress.check()?;
        tallies.push(tally);
        for mut tally in tallies {
            if let Some(failure) = tally.failure.take() {
                return Err(failure);
            }
            walk.pass_on(&mut tally);
            replaced_blocks.append(&mut tally.replaced);
            hides_checksums |= tally.hides_checksums;
        }
    }
    let facts = walk.facts.into_inner();
    if let Some(failure) = facts.failure {
        return Err(failed(failure));
    }
    Ok(Survey {
        facts: facts.sorter.finish().map_err(failed)?,
        reserved: walk.reserved,
        replaced: replaced_blocks,
        hides_checksums,
    })
}

/// Returns the roots in the order of their walks.
fn parts(roots: &[Root], replaced: &[TreeId]) -> [Vec<Root>; 3] {
    let (kept, replaced): (Vec<Root>, Vec<Root>) =
        roots.iter().partition(|root| !replaced.contains(&root.id()));
    let (whole, dropped) = kept.into_iter().partition(|root| root.dropped.is_none());
    [whole, dropped, replaced]
}

impl Walk<'_> {
    /// Adds the reference of a root to its first block. Returns the start of the walk, unless the
    /// block was already reached.
    fn start(&self, tally: &mut Tally, root: &Root) -> Option<(buttress_tree::RootPointer, Tag)> {
        let logical = root.pointer.logical;
        if !self.replaced.contains(&root.id()) {
            let fact = match root.is_relocation() {
                true => Fact::SharedBlock { parent: logical },
                false => Fact::TreeBlock { tree: root.id() },
            };
            self.add(tally, logical, &fact);
        }
        let named = (!root.is_relocation()).then_some(root.id());
        let tag = Tag {
            named,
            dropped: root.dropped,
        };
        self.seen.insert(logical).then_some((root.pointer, tag))
    }

    fn add(&self, tally: &mut Tally, logical: Logical, fact: &Fact) {
        tally.facts.push(Encoded::of(logical, fact));
        if tally.facts.len() >= FACTS_AT_ONCE {
            self.pass_on(tally);
        }
    }

    /// Passes the facts of a thread to the sorter.
    fn pass_on(&self, tally: &mut Tally) {
        let mut facts = self.facts.lock();
        for fact in tally.facts.drain(..) {
            if facts.failure.is_some() {
                return;
            }
            if let Err(error) = facts.sorter.push(fact.key(), fact.payload()) {
                facts.failure = Some(error);
            }
        }
    }

    fn reserve(&self, logical: Logical, length: u64) {
        let step = ByteCount::new(self.sector_bytes.into());
        let mut at = logical;
        for _ in 0..length.div_ceil(self.sector_bytes.into()) {
            self.reserved.insert(at);
            // Clamp: a block ends below the end of its chunk.
            at = at.saturating_add(step);
        }
    }

    /// Returns whether the children of a block are recorded under its address.
    fn is_full(&self, pointer: &BlockPointer, block: &TreeBlock, named: Option<TreeId>) -> Result<bool> {
        let header = block.header();
        let may_share = pointer.tree.holds_files() || pointer.tree == TreeId::TREE_RELOCATION;
        if !may_share {
            return Ok(false);
        }
        let is_relocated =
            header.flags.contains(HeaderFlags::RELOC) || header.owner == TreeId::TREE_RELOCATION;
        if is_relocated || header.backref_revision == 0 {
            return Ok(true);
        }
        let owner = header.owner;
        if pointer.tree == owner || named == Some(owner) {
            return Ok(false);
        }
        if let Some(root) = self.roots.get(&owner) {
            let is_gone = |parent: &BlockPointer, child: &BlockPointer| {
                root.dropped
                    .is_some_and(|dropped| dropped.has_child(parent, child))
            };
            let tree = self.filesystem.forest().tree(root.pointer);
            if tree.contains_block(block, is_gone)? {
                return Ok(false);
            }
        }
        // Linux takes a block that is newer than the tree's last snapshot for the tree's own, and
        // does not read its extent item.
        let last_snapshot = self.roots.get(&pointer.tree).map(|root| root.last_snapshot);
        let is_taken_for_own = last_snapshot.is_some_and(|last| header.generation > last);
        if is_taken_for_own && pointer.tree != TreeId::TREE_RELOCATION {
            return Err(refused(
                "a tree block names an owner that does not contain the block",
            ));
        }
        Ok(true)
    }

    /// Adds the facts of a block: the block itself, and its references.
    fn block(&self, tally: &mut Tally, pointer: &BlockPointer, block: &TreeBlock, tag: Tag) -> Result<()> {
        let (logical, header) = (block.logical(), block.header());
        let is_full = self.is_full(pointer, block, tag.named)?;
        let owner = header.owner;
        let named = (!is_full).then_some(owner);
        tally.last = Some((*pointer, Tag { named, ..tag }));
        if self.replaced.contains(&pointer.tree) {
            self.replaced_block(tally, pointer, block);
            return Ok(());
        }
        let fact = Fact::Block {
            level: block.level(),
            generation: header.generation,
            // Clamp: an empty root has the smallest key.
            first_key: block.key(0).unwrap_or(Key::MIN),
            is_full,
        };
        self.add(tally, logical, &fact);
        if block.is_leaf() {
            self.data(tally, block, is_full);
            return Ok(());
        }
        for slot in 0..block.item_count() {
            let Some(child) = pointer.child(block, slot) else {
                continue;
            };
            if tag
                .dropped
                .is_some_and(|dropped| dropped.has_child(pointer, &child))
            {
                continue;
            }
            let fact = match is_full {
                true => Fact::SharedBlock { parent: logical },
                false => Fact::TreeBlock { tree: owner },
            };
            self.add(tally, child.logical, &fact);
        }
        Ok(())
    }

    /// Adds the references of a leaf to data.
    fn data(&self, tally: &mut Tally, block: &TreeBlock, is_full: bool) {
        let (parent, tree) = (block.logical(), block.header().owner);
        if !(tree.holds_files() || tree == TreeId::ROOT || tree == TreeId::TREE_RELOCATION) {
            return;
        }
        for item in block
            .items()
            .filter(|item| item.key.item_type == ItemType::EXTENT_DATA)
        {
            let Ok(extent) = FileExtent::parse(&item.key, item.data, self.sector_bytes) else {
                continue;
            };
            let Some(slice) = extent.slice().filter(|slice| !slice.is_hole()) else {
                continue;
            };
            let is_plain = extent.compression == Compression::None;
            let size = Size {
                length: slice.disk_bytes,
                decoded: if is_plain {
                    extent.ram_bytes
                } else {
                    ByteCount::ZERO
                },
                generation: extent.generation,
            };
            let fact = match is_full {
                true => Fact::SharedData { parent, tree, size },
                false => Fact::Data {
                    tree,
                    inode: InodeNumber::new(item.key.objectid.get()),
                    // A slice near the start of a file can begin before the extent: the format wraps.
                    offset: item.key.offset.wrapping_sub(slice.offset.get()),
                    size,
                },
            };
            self.add(tally, slice.disk, &fact);
        }
    }

    /// Adds what a block of a replaced tree still says: the old records of data, and the references
    /// of the root tree to the files of the v1 cache.
    fn replaced_block(&self, tally: &mut Tally, pointer: &BlockPointer, block: &TreeBlock) {
        if !block.is_leaf() {
            return;
        }
        if pointer.tree == TreeId::ROOT {
            self.data(tally, block, false);
        }
        if pointer.tree != TreeId::EXTENT {
            return;
        }
        for item in block.items() {
            self.old_record(tally, &item.key, item.data);
        }
    }

    /// Adds what an item of the old extent tree says.
    fn old_record(&self, tally: &mut Tally, key: &Key, data: &[u8]) {
        let start = Logical::new(key.objectid.get());
        if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            if let Ok(references) = parse_keyed_references(key, data, self.sector_bytes) {
                self.claims(tally, start, &references);
            }
            return;
        }
        let Ok(extent) = ExtentItem::parse(key, data, self.filesystem.forest().block_format()) else {
            return;
        };
        self.claims(tally, start, &extent.inline_references);
        if !extent.is_data() {
            // A block that no tree reaches may belong to a lost tree.
            self.reserve(start, self.node_bytes.into());
            return;
        }
        let references = extent.inline_references.iter();
        let owner = references.clone().find_map(|reference| match reference {
            InlineReference::Owner { root } => Some(*root),
            _ => None,
        });
        let fact = Fact::Recorded {
            length: extent.length,
            generation: extent.generation,
            owner,
        };
        self.add(tally, extent.start, &fact);
    }

    /// Notes an extent whose old references name a subvolume without a root item.
    fn claims(&self, tally: &mut Tally, start: Logical, references: &[InlineReference]) {
        let is_forsaken = |tree: TreeId| tree.as_subvolume().is_some() && !self.roots.contains_key(&tree);
        let is_claim = references.iter().any(|reference| match reference {
            InlineReference::TreeBlock { root } => is_forsaken(*root),
            InlineReference::ExtentData(reference) => is_forsaken(reference.root),
            _ => false,
        });
        if is_claim {
            self.add(tally, start, &Fact::Claimed);
        }
    }
}

impl Scanner for Walk<'_> {
    type Tally = Tally;
    type Tag = Tag;

    fn begin(&self) -> Tally {
        Tally {
            facts: Vec::new(),
            last: None,
            failure: None,
            replaced: Vec::new(),
            hides_checksums: false,
        }
    }

    /// The scan calls this for the children of the last visited block.
    fn wants(&self, tally: &mut Tally, child: &BlockPointer, _: Tag) -> Option<Tag> {
        let (parent, tag) = tally.last?;
        if tag
            .dropped
            .is_some_and(|dropped| dropped.has_child(&parent, child))
        {
            return None;
        }
        self.seen.insert(child.logical).then_some(tag)
    }

    fn visit(&self, tally: &mut Tally, pointer: &BlockPointer, block: &TreeBlock, tag: Tag) {
        tally.last = None;
        self.reserve(block.logical(), self.node_bytes.into());
        if self.replaced.contains(&pointer.tree) {
            tally.replaced.push(block.logical().get());
        }
        if let Err(error) = self.block(tally, pointer, block, tag) {
            tally.failure.get_or_insert(error);
        }
    }

    fn failed(&self, tally: &mut Tally, error: buttress_tree::Error, _: Tag) {
        let BlockPointer { tree, level, .. } = *error.pointer();
        tally.hides_checksums |= tree == TreeId::CHECKSUM && level > 0;
        // The root tree is replaced, but its items are needed.
        if !self.replaced.contains(&tree) || tree == TreeId::ROOT {
            tally.failure.get_or_insert_with(|| {
                refused("a tree block cannot be read, so the references below it are unknown")
            });
        }
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}
