//! Edits of a log's own trees: inserting and removing items.
//!
//! The blocks of a log belong to no extent. Log blocks get their addresses when the log is written.
//! A log block that changes again gets another address. The log's editor records the old address of
//! a changed block. A later log may reuse the old address once the log that no longer needs the
//! block is durable ([`super::writing`]).

use super::inode_batch::{Data, InodeBatch, Item};
use crate::data::stored::{Stored, is_inline};
use buttress_exact::Exact as _;
use buttress_format::{
    BlockFormat, ByteCount, ChecksumItem, DirItem, FileExtent, FileOffset, Generation, InodeItem,
    InodeNumber, ItemType, Key, Logical, ObjectId, TreeBlock, TreeId,
};
use buttress_fs::error::{Corruption, Result};
use buttress_tree::{BlockPointer, ContextError, EditContext, EditableTree};
use core::ops::{ControlFlow, Range};

/// The number of new inodes whose items are inserted together.
const INSERTED_AT_ONCE: usize = 32;

/// The log blocks that were written and that edits have since replaced.
#[derive(Debug)]
pub(super) struct LogContext<'a> {
    pub(super) generation: Generation,
    pub(super) superseded: &'a mut Vec<BlockPointer>,
}

impl EditContext for LogContext<'_> {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn copied(
        &mut self,
        _: TreeId,
        old: &BlockPointer,
        _: &TreeBlock,
    ) -> core::result::Result<(), ContextError> {
        self.superseded.push(*old);
        Ok(())
    }

    /// Log blocks get addresses when they are frozen, so an unfrozen block has none.
    fn dropped(
        &mut self,
        _: TreeId,
        _: &BlockPointer,
        _: &TreeBlock,
    ) -> core::result::Result<(), ContextError> {
        Ok(())
    }
}

/// Edits of one subvolume's log.
pub(super) struct Editor<'a> {
    pub(super) tree: &'a mut EditableTree,
    pub(super) context: LogContext<'a>,
    pub(super) format: BlockFormat,
}

/// Returns whether a key belongs to an item of this type of an inode.
fn is_of(key: &Key, object: ObjectId, item_type: ItemType) -> bool {
    key.objectid == object && key.item_type == item_type
}

impl Editor<'_> {
    fn put(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        Ok(self.tree.put(&mut self.context, key, data)?)
    }

    fn remove(&mut self, key: &Key) -> Result<()> {
        self.tree.remove(&mut self.context, key)?;
        Ok(())
    }

    fn remove_range(&mut self, range: Range<Key>) -> Result<()> {
        self.tree.remove_range(&mut self.context, range, &mut |_, _| {})?;
        Ok(())
    }

    /// Inserts an item unless an identical one exists: an unchanged block is not written again.
    fn put_changed(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        let mut is_same = false;
        self.tree.with_item(key, |present| is_same = present == data)?;
        match is_same {
            true => Ok(()),
            false => self.put(key, data),
        }
    }

    /// Removes all items of an inode.
    pub(super) fn remove_inode(&mut self, inode: InodeNumber) -> Result<()> {
        let end = ObjectId::new(inode.get().saturating_add(1));
        self.remove_range(Key::new(inode.object_id(), ItemType(0), 0)..Key::new(end, ItemType(0), 0))
    }

    /// Inserts the items of inodes that the log lacks, in order.
    pub(super) fn insert_new(&mut self, inodes: &[(InodeNumber, &InodeBatch)]) -> Result<()> {
        // Insert one part of the inodes at a time, which stays in the processor's cache.
        for part in inodes.chunks(INSERTED_AT_ONCE) {
            let head_of = |(inode, batch): &(InodeNumber, &InodeBatch)| {
                let item = batch.item.map(InodeItem::to_bytes);
                (InodeItem::key(*inode), item)
            };
            let heads: Vec<_> = part.iter().map(head_of).collect();
            let mut items: Vec<(Key, &[u8])> = Vec::with_capacity(part.len().saturating_mul(2));
            for ((_, batch), (key, head)) in part.iter().zip(&heads) {
                items.extend(head.as_ref().map(|head| (*key, head.as_slice())));
                let names = batch.names.iter().flatten();
                items.extend(names.map(|(key, data)| (*key, data.as_slice())));
            }
            self.tree.insert_many(&mut self.context, &items)?;
        }
        Ok(())
    }

    /// Updates the names, the attributes and the item of an inode.
    pub(super) fn update(&mut self, inode: InodeNumber, batch: &InodeBatch) -> Result<()> {
        if let Some(item) = batch.item {
            self.put_changed(&InodeItem::key(inode), &item.to_bytes())?;
        }
        let Some(names) = &batch.names else {
            return Ok(());
        };
        let object = inode.object_id();
        let mut old: Vec<Key> = Vec::new();
        self.tree
            .scan(&Key::new(object, ItemType::INODE_REF, 0), |key, _| {
                if key.objectid != object || key.item_type > ItemType::XATTR_ITEM {
                    return ControlFlow::Break(());
                }
                old.push(*key);
                ControlFlow::Continue(())
            })?;
        for key in old {
            let stays = names.binary_search_by_key(&key, |(key, _)| *key).is_ok();
            if !stays && !buttress_faults::on("log-keeps-removed-items") {
                self.remove(&key)?;
            }
        }
        for (key, data) in names {
            self.put_changed(key, data)?;
        }
        Ok(())
    }

    /// Updates the entries and the content of an inode.
    pub(super) fn rest(&mut self, inode: InodeNumber, batch: &InodeBatch) -> Result<()> {
        for index in &batch.gone {
            self.remove(&DirItem::index_key(inode, *index))?;
        }
        for (first, last) in &batch.ranges {
            let key = Key::new(inode.object_id(), ItemType::DIR_LOG_INDEX, *first);
            self.put_changed(&key, &last.to_le_bytes())?;
        }
        let entries: Vec<(Key, &[u8])> = batch
            .entries
            .iter()
            .map(|(key, data)| (*key, data.as_slice()))
            .collect();
        if let Some((first, _)) = entries.first() {
            // A failed sync may have left these items in the log.
            let object = inode.object_id();
            let behind = Key::new(object, ItemType::DIR_INDEX, u64::MAX);
            self.remove_range(*first..behind)?;
            self.tree.insert_many(&mut self.context, &entries)?;
        }
        for (range, items) in &batch.content {
            self.replace_extents(inode, range, items)?;
        }
        Ok(())
    }

    /// Replaces the log's extents in a range.
    fn replace_extents(&mut self, inode: InodeNumber, range: &Range<u64>, items: &[Item]) -> Result<()> {
        let object = inode.object_id();
        let start = FileExtent::key(inode, FileOffset::new(range.start));
        let parse =
            |key: &Key, data: &[u8], sector_bytes| Stored::parse(TreeId::TREE_LOG, key, data, sector_bytes);
        // Cut an item that begins before the range and extends into or past it.
        let before = match range.start {
            0 => None,
            _ => self.tree.at_or_before(&Key::new(
                object,
                ItemType::EXTENT_DATA,
                range.start.saturating_sub(1),
            ))?,
        };
        let mut pieces: Vec<Stored> = Vec::new();
        if let Some(before) = before.filter(|item| is_of(&item.key(), object, ItemType::EXTENT_DATA)) {
            let stored = parse(&before.key(), before.data(), self.format.sector_bytes)?;
            if stored.end > range.start && !is_inline(before.data()) {
                pieces.push(stored.part(&(stored.start..range.start)));
                if stored.end > range.end {
                    pieces.push(stored.part(&(range.end..stored.end)));
                }
            }
        }
        let last = Key::new(object, ItemType::EXTENT_DATA, range.end.saturating_sub(1));
        let last = self.tree.at_or_before(&last)?;
        if let Some(last) =
            last.filter(|item| is_of(&item.key(), object, ItemType::EXTENT_DATA) && item.key() >= start)
        {
            let stored = parse(&last.key(), last.data(), self.format.sector_bytes)?;
            if stored.end > range.end && !is_inline(last.data()) {
                pieces.push(stored.part(&(range.end..stored.end)));
            }
        }
        self.remove_range(start..FileExtent::key(inode, FileOffset::new(range.end)))?;
        for piece in pieces {
            let key = FileExtent::key(inode, FileOffset::new(piece.start));
            self.put(&key, &piece.extent.encode())?;
        }
        let items: Vec<(Key, &[u8])> = items.iter().map(|(key, data)| (*key, data.as_slice())).collect();
        Ok(self.tree.insert_many(&mut self.context, &items)?)
    }

    /// Replaces the log's checksums of these sectors.
    pub(super) fn put_sums(&mut self, at: Logical, sums: &[u8]) -> Result<()> {
        let sum_bytes = self.format.checksum_type.size_bytes();
        let sector_bytes = u64::from(self.format.sector_bytes);
        let sectors = |bytes: usize| ByteCount::of(bytes.checked_div(sum_bytes).unwrap_or(0)).get();
        let length = |bytes: usize| sectors(bytes).saturating_mul(sector_bytes);
        let end = at.get().saturating_add(length(sums.len()));
        let limit = ChecksumItem::bytes_max(self.format.node_bytes, self.format.checksum_type).max(sum_bytes);
        let limit = limit.saturating_sub(limit.checked_rem(sum_bytes).unwrap_or(0));
        let mut start = at.get();
        let mut whole: Vec<u8> = Vec::new();
        for (key, data) in self.sums_near(at, end)? {
            let item_end = key.offset.saturating_add(length(data.len()));
            let bytes_at = |address: u64| {
                let sectors = address
                    .saturating_sub(key.offset)
                    .checked_div(sector_bytes)
                    .unwrap_or(0);
                let sectors = sectors.narrow::<usize>();
                sectors.saturating_mul(sum_bytes).min(data.len())
            };
            if item_end == at.get() && data.len().saturating_add(sums.len()) > limit {
                continue;
            }
            self.remove(&key)?;
            if key.offset < at.get() {
                start = key.offset;
                whole = data.get(..bytes_at(at.get())).unwrap_or_default().to_vec();
            }
            if item_end > end {
                let rest = data.get(bytes_at(end)..).unwrap_or_default();
                self.put(&ChecksumItem::key(Logical::new(end)), rest)?;
            }
        }
        whole.extend_from_slice(sums);
        for part in whole.chunks(limit) {
            self.put(&ChecksumItem::key(Logical::new(start)), part)?;
            start = start.saturating_add(length(part.len()));
        }
        Ok(())
    }

    /// Returns the items with checksums of sectors in a range, or that end at its start.
    fn sums_near(&self, at: Logical, end: u64) -> Result<Vec<Item>> {
        let before = self.tree.at_or_before(&ChecksumItem::key(at))?;
        let from = before
            .map(|item| item.key())
            .filter(|key| key.item_type == ItemType::EXTENT_CSUM);
        let from = from.unwrap_or_else(|| ChecksumItem::key(at));
        let (sector_bytes, checksum_type) = (self.format.sector_bytes, self.format.checksum_type);
        let mut found: Vec<Item> = Vec::new();
        let mut broken = None;
        self.tree.scan(&from, |key, data| {
            if key.item_type != ItemType::EXTENT_CSUM || key.offset >= end {
                return ControlFlow::Break(());
            }
            match ChecksumItem::parse(key, data, sector_bytes, checksum_type) {
                Ok(item) if item.end >= at => found.push((*key, Data::from_slice(data))),
                Ok(_) => {}
                Err(error) => broken = Some(error),
            }
            ControlFlow::Continue(())
        })?;
        match broken {
            None => Ok(found),
            Some(error) => {
                let tree = TreeId::TREE_LOG;
                Err(Corruption::Item { tree, error }.into())
            }
        }
    }
}
