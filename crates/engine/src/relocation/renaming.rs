//! The change of a closure: copies of all its blocks at new addresses, and changes of everything
//! that names such an address.
//!
//! | what | changes to |
//! |---|---|
//! | a tree block | a copy with the new addresses of what it points to; owner and content stay |
//! | its extent item | one of the copy: the same references, by address to the copies of the blocks above |
//! | references of what a block with full back references points to | by the address of the copy |
//! | an extent of data | one at the new place: the same references; its checksums move along |
//! | pointers and items in memory | the new addresses, in place |
//! | the last snapshot in the root items of trees that share a copy | this transaction, so that the trees know that they share it |
//!
//! Invariants: all steps that can fail come before the first change. A failure after the first
//! change stops writing.

use super::closure::{Block, Closure, Data};
use crate::block_groups::{Found, Purpose};
use crate::need::{Need, NewChunks};
use crate::running_parts::Renamer;
use buttress_accounts::delayed_references::{Created, ExtentKind, Reference};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::file_extent::set_disk;
use buttress_format::{
    ByteCount, FileExtent, Generation, ItemType, Key, KeyPointer, Logical, ObjectId, TreeBlock, TreeId,
};
use buttress_fs::error::{Corruption, Defect, Error, Result};
use buttress_tree::NonBlocking;
use core::ops::ControlFlow;
use std::collections::{BTreeMap, BTreeSet};

/// The new addresses of a closure.
#[derive(Debug)]
pub(super) struct Renaming {
    pub(super) closure: Closure,
    pub(super) blocks: BTreeMap<Logical, Logical>,
    /// Pointers, as node and child, of which the child's full back reference no longer exists. A
    /// tree that is being dropped still has pointers to children that no longer exist. Empty if no
    /// tree is being dropped.
    gone: BTreeSet<(Logical, Logical)>,
    /// The running transaction.
    pub(super) generation: Generation,
    /// [`DelayedReferences::times_taken`](buttress_accounts::delayed_references::DelayedReferences::times_taken)
    /// then.
    references_taken: u64,
}

impl Renamer<'_> {
    /// Prepares the change of addresses in a closure: reserves space, loads the items to change,
    /// and allocates addresses. If a block is missing, the preparation ends before any change.
    /// Returns `None` if the closure needs more space for metadata than exists.
    pub(super) fn prepare_renaming(
        &mut self,
        closure: Closure,
        new_chunks: NewChunks,
    ) -> Result<Option<Renaming>> {
        for (tree, key) in &closure.items {
            self.running.reach(*tree, key)?;
        }
        for data in closure.data.values() {
            for at in [data.moved.from, data.moved.to] {
                self.running
                    .reach(TreeId::CHECKSUM, &crate::checksums::checksum_key(at.get()))?;
            }
        }
        let gone = self.children_gone(&closure)?;
        let need = Need::freeing(closure.places_with_copies());
        if !self.running.reserve(need, new_chunks)? {
            return Ok(None);
        }
        let places = self.take_block_places(closure.blocks.len())?;
        let Some(places) = places else {
            return Ok(None);
        };
        let blocks = closure.blocks.keys().copied().zip(places).collect();
        Ok(Some(Renaming {
            closure,
            blocks,
            gone,
            generation: self.running.core.generation,
            references_taken: self.running.core.references.times_taken(),
        }))
    }

    /// Whether there is still space for what a commit makes of the change.
    pub(super) fn reserve_for(&mut self, renaming: &Renaming) -> Result<bool> {
        self.running
            .reserve_space(Need::freeing(renaming.closure.places()))
    }

    /// Takes addresses for `count` tree blocks. After an error, or without enough space, no address
    /// stays taken.
    pub(super) fn take_block_places(&mut self, count: usize) -> Result<Option<Vec<Logical>>> {
        let mut places = Vec::with_capacity(count);
        let taken = self.take_some_places(count, &mut places);
        if !matches!(taken, Ok(true)) {
            self.give_back_places(&places);
        }
        Ok(taken?.then_some(places))
    }

    fn take_some_places(&mut self, count: usize, places: &mut Vec<Logical>) -> Result<bool> {
        let node_bytes = self.running.core.node_bytes().get();
        while places.len() < count {
            let left = u64_of(count.exact_sub(places.len()));
            let wanted = left.exact_mul(node_bytes);
            let found =
                self.running
                    .core
                    .groups
                    .allocate(Purpose::Metadata, wanted, node_bytes, node_bytes)?;
            match found {
                Found::Range(start, length) => {
                    // At least one, which was asked for.
                    let nodes = length.quotient(node_bytes).max(1);
                    let at = |index: u64| Logical::new(start.exact_add(index.exact_mul(node_bytes)));
                    places.extend((0..nodes).map(at));
                }
                Found::Load(group) => self.running.load_group(group)?,
                Found::Nothing => return Ok(false),
            }
        }
        Ok(true)
    }

    pub(super) fn give_back_places(&mut self, places: &[Logical]) {
        let node_bytes = self.running.core.node_bytes().get();
        for place in places {
            let given = self.running.core.groups.give_back(place.get(), node_bytes);
            self.running.core.settle(given);
        }
    }

    /// Finds pointers of nodes with full back references to children that no longer have such
    /// references.
    fn children_gone(&mut self, closure: &Closure) -> Result<BTreeSet<(Logical, Logical)>> {
        let mut gone = BTreeSet::new();
        if !self.has_dead_subvolumes()? {
            return Ok(gone);
        }
        let full = |(_, block): &(&Logical, &Block)| block.extent.is_full() && !block.block.is_leaf();
        for (parent, block) in closure.blocks.iter().filter(full) {
            for pointer in block.block.pointers() {
                let reference = Reference::SharedBlock { parent: *parent };
                let extent = self.running.core.extent_with_references(pointer.logical)?;
                let refers = |extent: &super::extents::Extent| {
                    extent.references.iter().any(|(other, _)| *other == reference)
                };
                if !extent.as_ref().is_some_and(refers) {
                    gone.insert((*parent, pointer.logical));
                }
            }
        }
        Ok(gone)
    }

    /// Whether a deleted subvolume waits to be dropped, or was dropped in part.
    fn has_dead_subvolumes(&mut self) -> Result<bool> {
        let mut has_any = false;
        let tree = self.running.open_tree(TreeId::ROOT)?.tree.clone();
        tree.scan(&Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, 0), |key, _| {
            has_any = key.objectid == ObjectId::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM;
            ControlFlow::Break(())
        })?;
        Ok(has_any)
    }

    /// Frees the addresses of a change that was given up.
    pub(super) fn give_up_renaming(&mut self, renaming: &Renaming) {
        let places: Vec<Logical> = renaming.blocks.values().copied().collect();
        self.give_back_places(&places);
    }

    /// Whether nothing that the change is about was edited since it was prepared. Others had the
    /// edit lock, and no commit came. A block that is missing ends it.
    pub(super) fn is_unchanged(&mut self, renaming: &Renaming) -> Result<bool> {
        let references = &self.running.core.references;
        if references.times_taken() != renaming.references_taken {
            return Ok(false);
        }
        let closure = &renaming.closure;
        let mut extents = closure.blocks.keys().chain(closure.data.keys());
        if extents.any(|extent| references.get(*extent).is_some()) {
            return Ok(false);
        }
        let full = |(_, block): &(&Logical, &Block)| block.extent.is_full() && !block.block.is_leaf();
        for (parent, block) in closure.blocks.iter().filter(full) {
            let reference = Reference::SharedBlock { parent: *parent };
            let is_changed = |pointer: KeyPointer| {
                let pending = references.get(pointer.logical);
                pending.is_some_and(|pending| pending.changes.iter().any(|(other, _)| *other == reference))
            };
            if block.block.pointers().any(is_changed) {
                return Ok(false);
            }
        }
        let sector_bytes = self.running.core.format.sector_bytes;
        for (tree, key) in &closure.items {
            let open = self.running.open_tree(*tree)?.tree.clone();
            let mut is_same = false;
            open.with_item(key, |data| {
                is_same =
                    disk_of(key, data, sector_bytes).is_some_and(|disk| closure.data.contains_key(&disk));
            })?;
            // It is in memory still: no other leaf of the tree has to change.
            if !is_same || (tree.holds_files() && open.with(|tree| tree.written_leaf(key))?.is_some()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Changes everything. The copies were written.
    ///
    /// # Errors
    /// All of them stop writing.
    pub(super) fn rename_all(&mut self, renaming: &Renaming, copies: Vec<(TreeId, TreeBlock)>) -> Result<()> {
        let _lifted = NonBlocking::lift();
        for (tree, copy) in copies {
            self.running.core.forest.keep_written(tree, copy);
        }
        // No log on the last commit may name a new address.
        self.running.core.has_new_chunk = true;
        self.running
            .core
            .relocated_blocks
            .extend(renaming.blocks.values().copied());
        self.change_all(renaming).inspect_err(|error| {
            self.running.core.forest.volume().stop_writing(error);
        })
    }

    fn change_all(&mut self, renaming: &Renaming) -> Result<()> {
        let closure = &renaming.closure;
        // A live read may follow a new address as soon as an item has it, so checksums are there
        // before.
        for data in closure.data.values() {
            for (start, sums) in data.moved.sums.runs() {
                if buttress_faults::on("relocation-checksums-left") {
                    break;
                }
                let at = data.moved.to.exact_add(ByteCount::of(start));
                self.running.checksum_tree().insert(at, sums)?;
            }
        }
        for (old, block) in &closure.blocks {
            self.move_block_references(renaming, *old, block)?;
        }
        for data in closure.data.values() {
            self.move_data_references(renaming, data)?;
        }
        for (tree, old) in &closure.pointers {
            self.point_to_copy(renaming, *tree, *old)?;
        }
        for tree in closure.trees_to_mark() {
            // A tree takes blocks newer than its last snapshot for its own. Copies that several
            // trees share are treated as if the snapshot had just been made.
            let generation = self.running.core.generation;
            let open = self.running.open_tree(tree)?;
            let item = open.item.as_mut().ok_or(Error::TreeNotFound { tree })?;
            item.last_snapshot = generation;
            open.item_changed = true;
        }
        for (tree, key) in &closure.items {
            self.change_item(renaming, *tree, key)?;
        }
        Ok(())
    }

    fn move_block_references(&mut self, renaming: &Renaming, old: Logical, block: &Block) -> Result<()> {
        let new = *renaming.blocks.get(&old).ok_or_else(|| no_such_block(old))?;
        let (node_bytes, level) = (self.running.core.node_bytes(), block.block.level());
        let owner = block.block.header().owner;
        let created = Created {
            owner,
            first_key: block.block.key(0),
        };
        let kind = ExtentKind::TreeBlock { level };
        let references = &mut self.running.core.references;
        for (index, (reference, _)) in block.extent.references.iter().enumerate() {
            references.let_go(old, node_bytes, level, *reference, owner);
            let moved = renaming.reference(*reference);
            match index {
                0 => references.create(new, node_bytes, kind, created, moved),
                _ => references.change(new, node_bytes, kind, moved, 1),
            }
        }
        if !block.extent.is_full() {
            return Ok(());
        }
        references.set_full_backref(new, node_bytes, level);
        match block.block.is_leaf() {
            true => self.move_references_to_data(renaming, old, new, &block.block),
            false => {
                self.move_references_to_children(renaming, old, new, &block.block);
                Ok(())
            }
        }
    }

    /// Moves the references that a block holds by its own address to children that keep their own
    /// address.
    fn move_references_to_children(
        &mut self,
        renaming: &Renaming,
        old: Logical,
        new: Logical,
        node: &TreeBlock,
    ) {
        let node_bytes = self.running.core.node_bytes();
        let kind = ExtentKind::TreeBlock {
            level: node.level().exact_sub(1),
        };
        for pointer in node.pointers() {
            let child = pointer.logical;
            if renaming.blocks.contains_key(&child) || renaming.gone.contains(&(old, child)) {
                continue;
            }
            let references = &mut self.running.core.references;
            references.change(
                child,
                node_bytes,
                kind,
                Reference::SharedBlock { parent: old },
                -1,
            );
            references.change(child, node_bytes, kind, Reference::SharedBlock { parent: new }, 1);
        }
    }

    /// Moves the references that a block holds by its address to data extents, which keep their own
    /// address.
    fn move_references_to_data(
        &mut self,
        renaming: &Renaming,
        old: Logical,
        new: Logical,
        leaf: &TreeBlock,
    ) -> Result<()> {
        for item in leaf
            .items()
            .filter(|item| item.key.item_type == ItemType::EXTENT_DATA)
        {
            let extent = parse(leaf, &item.key, item.data, self.running.core.format.sector_bytes)?;
            let Some(slice) = extent.slice().filter(|slice| !slice.is_hole()) else {
                continue;
            };
            if renaming.closure.data.contains_key(&slice.disk) {
                continue;
            }
            let references = &mut self.running.core.references;
            let (disk, length) = (slice.disk, slice.disk_bytes);
            references.change(
                disk,
                length,
                ExtentKind::Data,
                Reference::SharedData { parent: old },
                -1,
            );
            references.change(
                disk,
                length,
                ExtentKind::Data,
                Reference::SharedData { parent: new },
                1,
            );
        }
        Ok(())
    }

    fn move_data_references(&mut self, renaming: &Renaming, data: &Data) -> Result<()> {
        let (from, to, length) = (data.moved.from, data.moved.to, data.moved.length);
        let maker = data
            .extent
            .references
            .iter()
            .find_map(|(reference, _)| match reference {
                Reference::Data { root, .. } => Some(*root),
                _ => None,
            });
        let created = Created {
            // Clamp: an extent without a recorded maker counts for no subvolume.
            owner: data.extent.owner.or(maker).unwrap_or(TreeId::MIN),
            first_key: None,
        };
        let mut created = Some(created);
        let references = &mut self.running.core.references;
        for (reference, count) in &data.extent.references {
            let moved = renaming.reference(*reference);
            references.change(
                from,
                length,
                ExtentKind::Data,
                *reference,
                0_i64.exact_sub(*count),
            );
            let more = match created.take() {
                Some(created) => {
                    references.create(to, length, ExtentKind::Data, created, moved);
                    count.exact_sub(1)
                }
                None => *count,
            };
            if more != 0 {
                references.change(to, length, ExtentKind::Data, moved, more);
            }
        }
        match created {
            None => Ok(()),
            Some(_) => Err(Defect::new("an extent without references moves")
                .with("extent", from.get())
                .into()),
        }
    }

    fn point_to_copy(&mut self, renaming: &Renaming, tree: TreeId, old: Logical) -> Result<()> {
        let new = *renaming.blocks.get(&old).ok_or_else(|| no_such_block(old))?;
        let found = renaming.closure.blocks.get(&old);
        let block = &found.ok_or_else(|| no_such_block(old))?.block;
        let generation = self.running.core.generation;
        let open = self.running.open_tree(tree)?;
        // Clamp: the root of an empty tree is found by its level alone.
        let first_key = block.key(0).unwrap_or(Key::MIN);
        let level = block.level();
        let is_renamed = open
            .tree
            .edit(|tree| tree.rename(old, level, &first_key, (new, generation)));
        if !is_renamed {
            return Err(Defect::new("a tree has no pointer to a block that moves")
                .with("tree", tree.get())
                .with("block", old.get())
                .into());
        }
        if open.tree.level() == level
            && let Some(item) = open.item.as_mut()
        {
            item.logical = new;
            item.generation = generation;
            item.generation_v2 = generation;
            open.item_changed = true;
        }
        Ok(())
    }

    fn change_item(&mut self, renaming: &Renaming, tree: TreeId, key: &Key) -> Result<()> {
        let sector_bytes = self.running.core.format.sector_bytes;
        let mut is_set = false;
        let found = self.running.update(tree, key, &mut |data| {
            let disk = disk_of(key, data, sector_bytes);
            let moved = disk.and_then(|disk| renaming.closure.data.get(&disk));
            is_set = moved.is_some_and(|moved| set_disk(data, moved.moved.to));
        })?;
        if found && is_set {
            return Ok(());
        }
        Err(Defect::new("a file extent item is not where its extent moves")
            .with("tree", tree.get())
            .with("inode", key.objectid.get())
            .with("offset", key.offset)
            .into())
    }
}

impl Renaming {
    /// Returns the old addresses of the extents that move.
    pub(super) fn moved(&self) -> BTreeSet<Logical> {
        self.closure.data.keys().copied().collect()
    }

    /// Returns the length on disk of the moved extents.
    pub(super) fn moved_bytes(&self) -> u64 {
        let lengths = self.closure.data.values().map(|data| data.moved.length.get());
        lengths.fold(0, u64::exact_add)
    }

    /// Returns the number of places that the change edits, its copies included.
    pub(super) fn places(&self) -> u64 {
        self.closure.places_with_copies()
    }

    /// Returns whether a change of twice the size has at most `blocks_max` blocks.
    pub(super) fn is_small(&self, blocks_max: usize) -> bool {
        self.blocks.len() <= blocks_max / 2
    }

    /// Returns the same reference as it is after the relocation.
    fn reference(&self, reference: Reference) -> Reference {
        // Clamp: a block that does not move keeps its address.
        let moved = |parent: Logical| self.blocks.get(&parent).copied().unwrap_or(parent);
        match reference {
            Reference::SharedBlock { parent } => Reference::SharedBlock {
                parent: moved(parent),
            },
            Reference::SharedData { parent } => Reference::SharedData {
                parent: moved(parent),
            },
            keyed @ (Reference::TreeBlock { .. } | Reference::Data { .. }) => keyed,
        }
    }
}

pub(super) fn no_such_block(logical: Logical) -> Error {
    Defect::new("a block moves that its closure does not have")
        .with("block", logical.get())
        .into()
}

/// The address of the extent that an item refers to.
fn disk_of(key: &Key, data: &[u8], sector_bytes: u32) -> Option<Logical> {
    let extent = FileExtent::parse(key, data, sector_bytes).ok()?;
    extent.slice().map(|slice| slice.disk)
}

pub(super) fn parse<'d>(
    leaf: &TreeBlock,
    key: &Key,
    data: &'d [u8],
    sector_bytes: u32,
) -> Result<FileExtent<'d>> {
    let parsed = FileExtent::parse(key, data, sector_bytes);
    Ok(parsed.map_err(|error| Corruption::Item {
        tree: leaf.header().owner,
        error,
    })?)
}
