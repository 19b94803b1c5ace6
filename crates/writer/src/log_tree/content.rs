//! The logged content of a file: changed extents, holes in place of removed extents, checksums of
//! new data.
//!
//! The live inode's state records the changes ([`buttress_engine::log_state`]); a file without a
//! state is logged completely. A file extent item is logged whole even if only a part of its range
//! changed, and replaces the log's older items. On volumes whose holes have no items, a changed
//! range may have no item. For a changed range without an item, the log gets a hole item, or a
//! replay would keep the old content.
//!
//! A replay cuts a file at its size. The first log of a file in a transaction therefore contains
//! its preallocated extents after the end.

use super::collecting::{Collector, Stop, Walk};
use super::inode_batch::{Data, Item};
use super::statistics::CommitCause;
use crate::data::stored::{Stored, hole};
use buttress_format::{
    ChecksumItem, Compression, FileExtent, FileExtentBody, FileOffset, InodeFlags, InodeItem, InodeNumber,
    ItemType, Key, Logical, TreeId,
};
use buttress_fs::Location;
use buttress_fs::error::{Corruption, Result};
use core::ops::{ControlFlow, Range};

/// The most extents of one file that are logged at once.
const EXTENTS_MAX: usize = 1 << 16;

impl Collector<'_, '_> {
    /// Collects the extents and checksums of a file or symlink.
    pub(super) fn content(&mut self, inode: InodeNumber, item: &InodeItem) -> Walk {
        let sector_bytes = self.operation.lookups().core().sector_bytes();
        let size_end = item
            .size
            .get()
            .checked_next_multiple_of(sector_bytes)
            .unwrap_or(u64::MAX);
        let is_new = item.generation == self.generation;
        let has_sums = !item.flags.contains(InodeFlags::NODATASUM);
        let mut content = Vec::new();
        for range in self.changed_ranges(inode, size_end) {
            let items = self.extents_in(inode, &range)?;
            let mut covered = range.clone();
            let mut logged: Vec<Item> = Vec::new();
            let mut at = range.start;
            for (key, data) in items {
                let sector_bytes = self.operation.lookups().core().format.sector_bytes;
                let stored = Stored::parse(self.tree(), &key, &data, sector_bytes)?;
                covered.start = covered.start.min(stored.start);
                covered.end = covered.end.max(stored.end);
                let gap = at.min(size_end)..stored.start.min(size_end);
                logged.extend(self.hole_item(inode, &gap, is_new));
                at = at.max(stored.end);
                if has_sums {
                    self.sums_of(&stored)?;
                }
                logged.push((key, data));
            }
            let rest = at.min(size_end)..range.end.min(size_end);
            logged.extend(self.hole_item(inode, &rest, is_new));
            content.push((covered, logged));
        }
        let batch = self.batch.inodes.of(inode);
        batch.content = content;
        Ok(())
    }

    /// Returns the changed file ranges to be logged.
    fn changed_ranges(&mut self, inode: InodeNumber, size_end: u64) -> Vec<Range<u64>> {
        let whole = 0..u64::MAX;
        let location = Location::new(self.subvolume, inode);
        let changed = self
            .operation
            .lookups()
            .inodes()
            .with_log(location, self.generation, |log| log.changed.clone());
        let Some(mut changed) = changed else {
            return core::iter::once(whole).collect();
        };
        if !self.log.has_whole(inode) {
            changed.add(&(size_end..u64::MAX));
        }
        changed.iter().cloned().collect()
    }

    /// Returns the items of a file that overlap a range.
    fn extents_in(&mut self, inode: InodeNumber, range: &Range<u64>) -> Walk<Vec<Item>> {
        let tree = self.tree();
        let sector_bytes = self.operation.lookups().core().format.sector_bytes;
        let start = FileExtent::key(inode, FileOffset::new(range.start));
        let open = self.operation.lookups().open_tree(tree)?.tree.clone();
        let mut from = start;
        if let Some(before) = open.at_or_before(&start)? {
            let key = before.key();
            let is_ours = key.objectid == start.objectid && key.item_type == ItemType::EXTENT_DATA;
            if is_ours && Stored::parse(tree, &key, before.data(), sector_bytes)?.end > range.start {
                from = key;
            }
        }
        let mut items = Vec::new();
        let mut bytes = 0_usize;
        open.scan(&from, |key, data| {
            let is_ours = key.objectid == start.objectid && key.item_type == ItemType::EXTENT_DATA;
            if !is_ours || key.offset >= range.end || items.len() > EXTENTS_MAX {
                return ControlFlow::Break(());
            }
            bytes = bytes.saturating_add(data.len());
            items.push((*key, Data::from_slice(data)));
            ControlFlow::Continue(())
        })?;
        if items.len() > EXTENTS_MAX {
            return Err(Stop::Commit(CommitCause::Much));
        }
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(items)
    }

    /// Returns a hole item for a range in which the last commit may have content.
    fn hole_item(&self, inode: InodeNumber, range: &Range<u64>, is_new: bool) -> Option<Item> {
        let is_wanted = range.start < range.end && !is_new && !buttress_faults::on("log-without-holes");
        is_wanted.then(|| {
            let key = FileExtent::key(inode, FileOffset::new(range.start));
            (key, hole(range, self.generation).encode().into())
        })
    }

    /// Collects the checksums of a new extent.
    fn sums_of(&mut self, stored: &Stored) -> Result<()> {
        let FileExtentBody::Regular(slice) = stored.extent.body else {
            return Ok(());
        };
        if slice.is_hole()
            || stored.extent.generation != self.generation
            || buttress_faults::on("log-without-checksums")
        {
            return Ok(());
        }
        let (start, length) = match stored.extent.compression {
            Compression::None => (slice.disk.saturating_add(slice.offset), slice.num_bytes),
            _ => (slice.disk, slice.disk_bytes),
        };
        let end = start.saturating_add(length);
        let format = &self.operation.lookups().core().format;
        let (sector_bytes, checksum_type) = (format.sector_bytes, format.checksum_type);
        let tree = self.operation.lookups().open_tree(TreeId::CHECKSUM)?.tree.clone();
        let before = tree.at_or_before(&ChecksumItem::key(start))?;
        let from = before
            .map(|item| item.key())
            .filter(|key| key.item_type == ItemType::EXTENT_CSUM);
        let from = from.unwrap_or_else(|| ChecksumItem::key(start));
        let mut found: Vec<(Logical, Vec<u8>)> = Vec::new();
        let mut broken = None;
        tree.scan(&from, |key: &Key, data| {
            if key.item_type != ItemType::EXTENT_CSUM || key.offset >= end.get() {
                return ControlFlow::Break(());
            }
            match ChecksumItem::parse(key, data, sector_bytes, checksum_type) {
                Ok(sums) => found.extend(sums.range(start, end).map(|(at, bytes)| (at, bytes.to_vec()))),
                Err(error) => broken = Some(error),
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = broken {
            let tree = TreeId::CHECKSUM;
            return Err(Corruption::Item { tree, error }.into());
        }
        self.bytes = found
            .iter()
            .fold(self.bytes, |sum, (_, sums)| sum.saturating_add(sums.len()));
        self.batch.sums.extend(found);
        Ok(())
    }
}
