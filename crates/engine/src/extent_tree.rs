//! The extent tree: applies the collected delayed references to it.
//!
//! Each extent has one item with a count and the first references inline. References that do not
//! fit inline are items of their own. A new reference becomes inline while the item has space and
//! the extent has no keyed reference, as in the kernel. The last drop of a reference removes the
//! extent's item and, for data, its checksums. The extent's space becomes pinned.
//!
//! Source: on-disk format documentation, section "Extent item".

use super::block_groups::Share;
use crate::extent_state::{counted, extent_key, inline_form, keyed_key};
use crate::running_parts::ExtentTree;
use buttress_accounts::delayed_references::{Created, ExtentKind, Pending, Reference};
use buttress_format::{
    ExtentFlags, ExtentItem, Generation, Incompat, InlineReference, Key, Logical, TreeBlockInfo, TreeId,
    parse_keyed_references,
};
use buttress_fs::error::defect::{add, take};
use buttress_fs::error::{Corruption, Defect, Result};
use smallvec::SmallVec;

impl InlineLimit {
    const fn of(node_bytes: u32) -> Self {
        // The limit is a sixteenth of a leaf's capacity, without the item header.
        let leaf_capacity = node_bytes.saturating_sub(101);
        Self(((leaf_capacity >> 4) as usize).saturating_sub(25))
    }
}

/// The most bytes to which inline references may grow an extent item.
struct InlineLimit(usize);

fn same_reference(inline: &InlineReference, reference: &Reference) -> bool {
    match (inline, reference) {
        (InlineReference::TreeBlock { root }, Reference::TreeBlock { root: other }) => root == other,
        (InlineReference::SharedBlock { parent }, Reference::SharedBlock { parent: other })
        | (InlineReference::SharedData { parent, .. }, Reference::SharedData { parent: other }) => {
            parent == other
        }
        (InlineReference::ExtentData(data), Reference::Data { root, inode, offset }) => {
            (data.root, data.inode, data.offset) == (*root, *inode, *offset)
        }
        _ => false,
    }
}

impl ExtentTree<'_> {
    /// Inserts an item into the extent tree.
    ///
    /// # Errors
    /// Fails as [`Running::insert`](crate::running::Running::insert) does.
    pub fn insert(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.running
            .core
            .edit_extents(|tree, context| tree.insert(context, key, data))
    }

    /// Inserts or replaces an item of the extent tree.
    ///
    /// # Errors
    /// Fails with an error of the tree.
    pub fn put(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.running
            .core
            .edit_extents(|tree, context| tree.put(context, key, data))
    }

    /// Removes an item of the extent tree.
    ///
    /// # Errors
    /// Fails with an error of the tree.
    pub fn remove(&mut self, key: &Key) -> Result<()> {
        self.running
            .core
            .edit_extents(|tree, context| tree.remove(context, key))
            .map(|_| ())
    }

    /// Applies the delayed references of the first `count` extents.
    pub fn run_references(&mut self, count: usize) -> Result<()> {
        let lost = usize::from(buttress_faults::on("ledger-reference-lost"));
        let generation = self.running.core.generation;
        for (logical, pending) in self
            .running
            .core
            .references
            .take_first(count)
            .into_iter()
            .skip(lost)
        {
            self.running.core.quotas.note_references(&pending, generation);
            match pending.created {
                Some(created) => self.create_extent(logical, &pending, created)?,
                None => self.change_extent(logical, &pending)?,
            }
            self.running.core.references.note_applied(&pending);
        }
        Ok(())
    }

    fn create_extent(&mut self, logical: Logical, pending: &Pending, created: Created) -> Result<()> {
        let owner = created.owner;
        // An extent that this transaction made has no references except the pending ones.
        let references = u64::try_from(pending.sum()).map_err(|_| {
            Defect::new("an extent that was just made has less than no references")
                .with("extent", logical.get())
                .with("references", pending.sum())
        })?;
        if references == 0 {
            let is_data = pending.kind == ExtentKind::Data;
            if is_data {
                // The extent was made and freed within this transaction, so remove the checksums
                // that this transaction added.
                self.running.checksum_tree().remove(logical, pending.length)?;
            }
            if is_data || self.running.core.relocated_blocks.contains(&logical) {
                // The extent was written, and a view of this transaction may have read it.
                let (start, length) = (logical.get(), pending.length.get());
                let generation = self.running.core.generation;
                let shifted = self
                    .running
                    .core
                    .groups
                    .shift(start, length, Share::Allocated, Share::Pinned);
                shifted?;
                self.running.core.pins.add(generation, start, length, generation);
                return Ok(());
            }
            return self
                .running
                .core
                .groups
                .give_back(logical.get(), pending.length.get());
        }
        let skinny = self.running.core.has(Incompat::SKINNY_METADATA);
        let key = extent_key(logical, pending.kind, pending.length, skinny);
        let (flags, level) = match pending.kind {
            ExtentKind::Data => (ExtentFlags::DATA, None),
            ExtentKind::TreeBlock { level } => (ExtentFlags::TREE_BLOCK, Some(level)),
        };
        let flags = if pending.full_backref {
            flags | ExtentFlags::FULL_BACKREF
        } else {
            flags
        };
        let mut item = ExtentItem {
            start: logical,
            length: pending.length,
            references: 0,
            generation: self.running.core.generation,
            flags,
            tree_block_info: level.filter(|_| !skinny).map(|level| TreeBlockInfo {
                first_key: created.first_key.unwrap_or(Key::MIN),
                level,
            }),
            level,
            inline_references: SmallVec::new(),
        };
        if pending.kind == ExtentKind::Data && self.running.core.has(Incompat::SIMPLE_QUOTA) {
            item.inline_references
                .push(InlineReference::Owner { root: owner });
        }
        let generation = self.running.core.generation;
        self.running
            .core
            .quotas
            .note_made(owner, pending.length, generation);
        self.apply_changes(&mut item, pending, false)?;
        self.insert(&key, &item.encode())?;
        let (start, length) = (logical.get(), pending.length.get());
        self.running.core.groups.use_extent(start, length)?;
        Ok(add(
            &mut self.running.core.bytes_used,
            length,
            "bytes in use of the volume",
        )?)
    }

    fn change_extent(&mut self, logical: Logical, pending: &Pending) -> Result<()> {
        let (key, mut item) = self
            .running
            .core
            .extent_item(logical, pending.kind, pending.length)?;
        if pending.full_backref {
            item.flags |= ExtentFlags::FULL_BACKREF;
        }
        let has_keyed = item.references
            > item
                .inline_references
                .iter()
                .fold(0_u64, |sum, inline| sum.saturating_add(u64::from(inline.count())));
        self.apply_changes(&mut item, pending, has_keyed)?;
        if item.references > 0 {
            return self.put(&key, &item.encode());
        }
        self.remove(&key)?;
        let owner = item.inline_references.iter().find_map(|inline| match inline {
            InlineReference::Owner { root } => Some(*root),
            _ => None,
        });
        self.free_extent(logical, pending, owner, item.generation)
    }

    /// Removes an extent without references. The extent's space becomes free once this transaction
    /// is durable.
    fn free_extent(
        &mut self,
        logical: Logical,
        pending: &Pending,
        owner: Option<TreeId>,
        created: Generation,
    ) -> Result<()> {
        let (start, length) = (logical.get(), pending.length.get());
        if pending.kind == ExtentKind::Data {
            self.running.checksum_tree().remove(logical, pending.length)?;
        }
        if let Some(owner) = owner.or(pending.owner) {
            self.running
                .core
                .quotas
                .note_freed(owner, pending.length, created);
        }
        // A block that this transaction made never belonged to a state on disk, except for a copy
        // that a relocation wrote.
        let is_new = created == self.running.core.generation
            && matches!(pending.kind, ExtentKind::TreeBlock { .. })
            && !self.running.core.relocated_blocks.contains(&logical);
        let is_free = is_new || buttress_faults::on("pins-freed-space-reused");
        let to = if is_free { Share::Free } else { Share::Pinned };
        self.running.core.groups.free_extent(start, length, to)?;
        if !buttress_faults::on("ledger-volume-bytes-keep-freed") {
            take(
                &mut self.running.core.bytes_used,
                length,
                "bytes in use of the volume",
            )?;
        }
        if !is_free && !buttress_faults::on("ledger-pin-forgotten") {
            self.running
                .core
                .pins
                .add(self.running.core.generation, start, length, created);
        }
        Ok(())
    }

    /// Applies all changes of reference counts to an extent item and to its keyed references.
    fn apply_changes(&mut self, item: &mut ExtentItem, pending: &Pending, mut has_keyed: bool) -> Result<()> {
        let limit = InlineLimit::of(self.running.core.format.node_bytes).0;
        // Negative changes of references come first, so that the item has space for new references.
        let by_sign = |(reference, change): &(Reference, i64)| (*change > 0, *reference);
        for (reference, change) in pending.changes.sorted_by_key(by_sign) {
            item.references = counted(item.start, item.references, change)?;
            if change_inline(item, &reference, change)? {
                continue;
            }
            if has_keyed && self.change_keyed(item.start, &reference, change)? {
                continue;
            }
            let Ok(count) = u32::try_from(change) else {
                return Err(Corruption::ReferenceMissing {
                    logical: item.start,
                    reference: format!("{reference:?}"),
                }
                .into());
            };
            let inline = inline_form(&reference, count);
            if !has_keyed && item.encode().len().saturating_add(inline_bytes(&inline)) < limit {
                insert_inline(item, inline);
            } else {
                has_keyed = true;
                self.insert_keyed(item.start, &reference, count)?;
            }
        }
        Ok(())
    }

    /// Changes the count of a reference that is an item of its own. Returns false if the reference
    /// does not exist.
    fn change_keyed(&mut self, logical: Logical, reference: &Reference, change: i64) -> Result<bool> {
        let Some((key, count)) = self.find_keyed(logical, reference)? else {
            return Ok(false);
        };
        match counted_by_one(logical, count, change)? {
            0 => self.remove(&key)?,
            count => self.put(&key, &keyed_bytes(reference, count))?,
        }
        Ok(true)
    }

    /// Returns the key and the count of a keyed reference.
    fn find_keyed(&self, logical: Logical, reference: &Reference) -> Result<Option<(Key, u32)>> {
        let mut key = keyed_key(logical, reference);
        let tree = &self.running.core.extent.tree;
        loop {
            let Some(found) = tree.get(&key)? else {
                return Ok(None);
            };
            let references =
                parse_keyed_references(&key, found.data(), self.running.core.format.sector_bytes).map_err(
                    |error| Corruption::Item {
                        tree: TreeId::EXTENT,
                        error,
                    },
                )?;
            if let Some(same) = references.iter().find(|inline| same_reference(inline, reference)) {
                return Ok(Some((key, same.count())));
            }
            // Data references with equal hashes have consecutive key offsets.
            match (reference, key.offset.checked_add(1)) {
                (Reference::Data { .. }, Some(offset)) => key.offset = offset,
                _ => return Ok(None),
            }
        }
    }

    fn insert_keyed(&mut self, logical: Logical, reference: &Reference, count: u32) -> Result<()> {
        let mut key = keyed_key(logical, reference);
        while self.running.core.extent.tree.get(&key)?.is_some() {
            key.offset = key.offset.wrapping_add(1);
        }
        self.insert(&key, &keyed_bytes(reference, count))
    }
}

/// Changes the count of an inline reference. Returns false if the reference does not exist.
fn change_inline(item: &mut ExtentItem, reference: &Reference, change: i64) -> Result<bool> {
    let Some(position) = item
        .inline_references
        .iter()
        .position(|inline| same_reference(inline, reference))
    else {
        return Ok(false);
    };
    let inline = item.inline_references.get(position);
    let count = counted_by_one(item.start, inline.map_or(0, InlineReference::count), change)?;
    if count == 0 {
        item.inline_references.remove(position);
    } else if let Some(inline) = item.inline_references.get_mut(position) {
        *inline = inline_form(reference, count);
    }
    Ok(true)
}

/// Returns the number of references that one item or tree holds after a change. Fails as
/// [`counted`](crate::extent_state::counted) does.
fn counted_by_one(logical: Logical, references: u32, change: i64) -> Result<u32, Corruption> {
    let counted = i64::from(references).checked_add(change);
    let counted = counted.and_then(|counted| u32::try_from(counted).ok());
    counted.ok_or(Corruption::ReferencesTooFew {
        logical,
        references: references.into(),
        change,
    })
}

/// Inserts an inline reference in order of type, and within a type in falling order of value.
fn insert_inline(item: &mut ExtentItem, inline: InlineReference) {
    let rank = |inline: &InlineReference| {
        let owner_first = !matches!(inline, InlineReference::Owner { .. });
        (
            owner_first,
            inline.item_type().0,
            core::cmp::Reverse(inline.sort_value()),
        )
    };
    let position = item
        .inline_references
        .iter()
        .position(|other| rank(other) > rank(&inline))
        .unwrap_or(item.inline_references.len());
    item.inline_references.insert(position, inline);
}

const fn inline_bytes(inline: &InlineReference) -> usize {
    match inline {
        InlineReference::Owner { .. }
        | InlineReference::TreeBlock { .. }
        | InlineReference::SharedBlock { .. } => 9,
        InlineReference::ExtentData(_) => 29,
        InlineReference::SharedData { .. } => 13,
    }
}

fn keyed_bytes(reference: &Reference, count: u32) -> Vec<u8> {
    match reference {
        Reference::TreeBlock { .. } | Reference::SharedBlock { .. } => Vec::new(),
        Reference::SharedData { .. } => count.to_le_bytes().to_vec(),
        Reference::Data { root, inode, offset } => {
            let mut bytes = Vec::with_capacity(28);
            bytes.extend_from_slice(&root.get().to_le_bytes());
            bytes.extend_from_slice(&inode.get().to_le_bytes());
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&count.to_le_bytes());
            bytes
        }
    }
}
