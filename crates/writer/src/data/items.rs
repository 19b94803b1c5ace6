//! File extent items: inserted, replaced, cut, split; and holes.
//!
//! All functions of this module take file ranges of whole sectors. Each extent item holds one
//! reference to its extent on disk. Cutting an item keeps its reference to the extent, splitting
//! adds one, removing drops one. An extent item adds its length in the file to the inode's
//! `nbytes`; inline content adds its size, and a hole adds nothing.

use super::stored::{Stored, hole};
use crate::operations::Access;
use crate::operations::areas::FileItems;
use buttress_format::{ByteCount, FileExtent, FileOffset, Incompat, InodeItem, ItemType, Key};
use buttress_fs::error::{Defect, Result};
use buttress_fs::location::Location;
use core::ops::Range;

impl Access<'_> {
    /// Returns whether an extent belongs to this file alone: no other file refers to it, and no
    /// snapshot shares the item.
    pub(crate) fn is_exclusive(&mut self, location: Location, stored: &Stored) -> Result<bool> {
        if buttress_faults::on("in-place-into-shared") {
            return Ok(true);
        }
        let tree = location.subvolume.tree();
        let last_snapshot = self.lookups().root_item(tree)?.last_snapshot;
        if stored.extent.generation <= last_snapshot {
            return Ok(false);
        }
        let Some(disk) = stored.disk() else {
            return Ok(false);
        };
        let references = self.lookups().data_references(disk)?;
        if references <= 1 {
            return Ok(true);
        }
        // An extent that was written in parts has several items in this file.
        let owner = stored.owner(tree, location.inode);
        let mut at = owner.offset.min(stored.start);
        let end = owner.offset.saturating_add(stored.extent.ram_bytes.get());
        let mut own = 0_u64;
        while at < end
            && let Some(next) = self.extent_from(location, at)?
            && next.start < end
        {
            let is_same = next.disk() == Some(disk) && next.owner(tree, location.inode) == owner;
            own = own.saturating_add(u64::from(is_same));
            at = next.end;
        }
        Ok(own == references)
    }

    /// Returns the item that covers `at`, or the first item after it.
    pub(crate) fn extent_from(&mut self, location: Location, at: u64) -> Result<Option<Stored>> {
        let tree = location.subvolume.tree();
        let sector_bytes = self.lookups().core().format.sector_bytes;
        let wanted = FileExtent::key(location.inode, FileOffset::new(at));
        let is_ours = |key: &Key| key.objectid == wanted.objectid && key.item_type == ItemType::EXTENT_DATA;
        // No item begins before offset zero.
        let before = match at {
            0 => None,
            _ => self.lookups().at_or_before(tree, &wanted)?,
        };
        if let Some(item) = before.filter(|item| is_ours(&item.key())) {
            let stored = Stored::parse(tree, &item.key(), item.data(), sector_bytes)?;
            if stored.end > at {
                return Ok(Some(stored));
            }
        }
        let after = self.lookups().at_or_after(tree, &wanted)?;
        let after = after.filter(|item| is_ours(&item.key()));
        after
            .map(|item| Stored::parse(tree, &item.key(), item.data(), sector_bytes))
            .transpose()
    }
}

impl FileItems<'_, '_> {
    /// Loads the paths to the file's items at both ends of a range.
    pub(crate) fn reach_range(&mut self, location: Location, range: &Range<u64>) -> Result<()> {
        let at = |offset| FileExtent::key(location.inode, FileOffset::new(offset));
        self.operation
            .reach(location.subvolume.tree(), &[at(range.start), at(range.end)])
    }

    /// Removes the file's items in `range`, and the extent references of these items. Returns the
    /// bytes that the removed items had added to the inode's `nbytes`.
    pub(crate) fn drop_range(&mut self, location: Location, range: &Range<u64>) -> Result<u64> {
        if range.start >= range.end {
            return Ok(0);
        }
        let mut counted = 0_u64;
        let first = self.operation.extent_from(location, range.start)?;
        let Some(first) = first.filter(|first| first.start < range.end) else {
            return Ok(0);
        };
        self.operation
            .edit()
            .inode_items()
            .note_changed_extents(location, range)?;
        if first.start < range.start {
            counted = counted.saturating_add(self.cut_first(location, &first, range)?);
        }
        if let Some(last) = self.operation.extent_from(location, range.end)?
            && last.start >= range.start
            && last.start < range.end
        {
            // Inline content is one sector, so an inline extent never extends past the end of a
            // range.
            let rest = last.part(&(range.end..last.end));
            self.operation.edit().remove(
                location.subvolume.tree(),
                &FileExtent::key(location.inode, FileOffset::new(last.start)),
            )?;
            self.insert_extent(location, &rest)?;
            counted = counted.saturating_add(last.counted_bytes().saturating_sub(rest.counted_bytes()));
        }
        Ok(counted.saturating_add(self.remove_whole(location, range)?))
    }

    /// Cuts a file extent item that begins before the range and extends into it.
    fn cut_first(&mut self, location: Location, first: &Stored, range: &Range<u64>) -> Result<u64> {
        let tree = location.subvolume.tree();
        let head = first.part(&(first.start..range.start));
        let key = FileExtent::key(location.inode, FileOffset::new(first.start));
        let bytes = head.extent.encode();
        self.operation.edit().put(tree, &key, &bytes)?;
        let mut kept = head.counted_bytes();
        if first.end > range.end {
            let tail = first.part(&(range.end..first.end));
            self.insert_extent(location, &tail)?;
            kept = kept.saturating_add(tail.counted_bytes());
            if let Some(disk) = first.disk() {
                let owner = first.owner(tree, location.inode);
                self.operation.edit().core.add_data_reference(disk, owner);
            }
        }
        Ok(first.counted_bytes().saturating_sub(kept))
    }

    /// Removes the items that begin in the range. None of these items may extend past the range.
    fn remove_whole(&mut self, location: Location, range: &Range<u64>) -> Result<u64> {
        let tree = location.subvolume.tree();
        let sector_bytes = self.operation.lookups().core().format.sector_bytes;
        let key = |at| FileExtent::key(location.inode, FileOffset::new(at));
        let mut removed: Vec<Result<Stored>> = Vec::new();
        self.operation
            .edit()
            .remove_range(tree, key(range.start)..key(range.end), &mut |key, data| {
                removed.push(Stored::parse(tree, key, data, sector_bytes));
            })?;
        let mut counted = 0_u64;
        for stored in removed {
            let stored = stored?;
            counted = counted.saturating_add(stored.counted_bytes());
            if let Some(disk) = stored.disk() {
                let owner = stored.owner(tree, location.inode);
                self.operation.edit().core.drop_data_reference(disk, owner);
            }
        }
        Ok(counted)
    }

    /// Inserts an extent item in a range without items. The caller adds the references to the
    /// extent.
    pub(crate) fn insert_extent(&mut self, location: Location, stored: &Stored) -> Result<()> {
        let range = stored.start..stored.end;
        self.operation
            .edit()
            .inode_items()
            .note_changed_extents(location, &range)?;
        let key = FileExtent::key(location.inode, FileOffset::new(stored.start));
        let bytes = stored.extent.encode();
        self.operation
            .edit()
            .insert(location.subvolume.tree(), &key, &bytes)
    }

    /// Inserts hole items into every gap of `range`, on volumes whose holes have items.
    pub(crate) fn fill_holes(&mut self, location: Location, range: &Range<u64>) -> Result<()> {
        self.operation
            .edit()
            .inode_items()
            .note_changed_extents(location, range)?;
        if self.operation.has(Incompat::NO_HOLES) || buttress_faults::on("holes-without-items") {
            return Ok(());
        }
        let generation = self.operation.generation();
        let mut at = range.start;
        while at < range.end {
            let next = self.operation.extent_from(location, at)?;
            let (gap_end, go_on) = match &next {
                Some(next) if next.start <= at => (at, next.end),
                Some(next) => (next.start.min(range.end), next.end),
                None => (range.end, range.end),
            };
            if at < gap_end {
                let key = FileExtent::key(location.inode, FileOffset::new(at));
                let bytes = hole(&(at..gap_end), generation).encode();
                self.operation
                    .edit()
                    .insert(location.subvolume.tree(), &key, &bytes)?;
            }
            at = go_on;
        }
        Ok(())
    }

    /// Changes the inode's `nbytes`: adds `more`, subtracts `less`.
    pub(crate) fn count_bytes(&mut self, location: Location, more: u64, less: u64) -> Result<()> {
        let mut counted = Ok(());
        self.operation
            .change_inode(location, |item| counted = change_bytes(item, more, less))?;
        Ok(counted?)
    }
}

/// Changes an inode's `nbytes`: adds `more`, subtracts `less`. Inodes of older programs may count
/// fewer bytes than they have; such a count ends at zero. In tests, where only this program wrote
/// the volume, a count that is too small is a defect.
pub(crate) fn change_bytes(item: &mut InodeItem, more: u64, less: u64) -> Result<(), Defect> {
    let less = match buttress_faults::on("ledger-inode-bytes-keep-cut") {
        true => 0,
        false => less,
    };
    let counted = item.nbytes.get().checked_add(more);
    let rest = counted.and_then(|counted| counted.checked_sub(less));
    item.nbytes = ByteCount::new(rest.unwrap_or(0));
    if rest.is_some() || !cfg!(debug_assertions) {
        return Ok(());
    }
    let what = "more goes of what an inode counts for its content than there is";
    let counted = counted.unwrap_or(u64::MAX);
    Err(Defect::new(what).with("counted", counted).with("goes", less))
}
