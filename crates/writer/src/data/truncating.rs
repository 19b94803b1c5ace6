//! Changes of a file's size: shrinking cuts the file, and growing adds a hole.

use super::content::Content;
use super::write_back::is_of_gone_file;
use super::writing::FILE_BYTES_MAX;
use crate::WritableFilesystem;
use crate::operations::Operation;
use buttress_engine::reservation::Need;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, FileExtent, FileOffset, ItemType};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use buttress_tree::ReadAhead;
use core::ops::Range;

/// The number of file extent items that are removed under one hold of the edit lock.
const STEP_ITEMS: usize = 1000;

/// The places of a truncation step: the ends of the run of items, and the extent that the new end
/// cuts in two.
const STEP_PLACES: u64 = 4;

impl WritableFilesystem {
    /// Sets the size of a file, as `ftruncate(2)` does. New bytes are a hole.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::write_at`] does. An append-only file returns an error.
    pub fn truncate(&self, location: Location, size: ByteCount) -> Result<()> {
        self.quotas().with_current(|| {
            self.contents()
                .with_in_steps(location, |content| content.resize(size.get()))
        })
    }

    /// Sets the size of a file, as `truncate(2)` does by path. A file that has this size already
    /// keeps its times.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::truncate`] does.
    pub fn truncate_by_path(&self, location: Location, size: ByteCount) -> Result<()> {
        self.quotas().with_current(|| {
            self.contents().with_in_steps(location, |content| {
                content.require_changeable()?;
                if content.size()? == size.get() {
                    return Ok(());
                }
                content.resize(size.get())
            })
        })
    }
}

impl Content<'_> {
    fn resize(&mut self, size: u64) -> Result<()> {
        self.require_changeable()?;
        if size > FILE_BYTES_MAX {
            return Err(Error::Invalid {
                what: "the file would be longer than 2^63 - 1 bytes",
            });
        }
        let old = self.size()?;
        if size < old {
            self.shrink(size)?;
        } else if size > old {
            self.grow(size)?;
        }
        self.filesystem.count_change();
        self.touch();
        self.write_back()
    }

    /// Inline content becomes dirty if it cannot stay inline in the larger file; the write-back
    /// stores it as an extent.
    pub(super) fn grow(&mut self, size: u64) -> Result<()> {
        let has_first = self.with_dirty(|pending| pending.has(0));
        if !has_first && self.size()? <= self.sector_bytes {
            self.reserve(self.sector_bytes)?;
        }
        self.load_inline()?;
        self.set_size(size);
        Ok(())
    }

    /// Removes the file's content after its new end. Before the cut, removes dirty data after the
    /// new end, and zeroes the remaining bytes of the last sector. Once the inode item has the new
    /// size, the truncation removes extents, last ones first.
    fn shrink(&mut self, size: u64) -> Result<()> {
        let (at, end) = (self.align_down(size), self.align_up(size));
        let zeroes = !buttress_faults::on("truncate-keeps-tail");
        let layout = self.file.layout.write();
        if at < end && zeroes {
            self.zero_part(size..end)?;
        }
        if size > 0 && zeroes {
            self.load_inline()?;
            self.change_dirty(|pending| pending.zero(&(size..end)));
        }
        let forgotten = self.change_dirty(|pending| pending.remove(&(end..u64::MAX)));
        self.set_size(size);
        // Readers no longer observe the extents after the new end, although these extents are still
        // in the tree.
        drop(layout);
        self.forget(forgotten);
        self.touch();
        self.write_back()?;
        self.remove_extents(&(end..u64::MAX))
    }

    /// Zeroes a part of one sector in dirty data, unless that part is already zero.
    pub(super) fn zero_part(&mut self, part: Range<u64>) -> Result<()> {
        let at = self.align_down(part.start);
        if !self.with_dirty(|pending| pending.has(at)) {
            let mut sector = vec![0; self.sector_bytes.narrow::<usize>()];
            self.read_items(at, &mut sector)?;
            let inside = |place: u64| place.saturating_sub(at).narrow::<usize>();
            let bytes = sector
                .get(inside(part.start)..inside(part.end))
                .unwrap_or_default();
            if bytes.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            self.reserve_for(&(at..at.saturating_add(self.sector_bytes)))?;
            self.change_dirty(|pending| pending.write(at, &sector, self.sector_bytes));
        }
        self.change_dirty(|pending| pending.zero(&part));
        Ok(())
    }

    /// Removes the extents in a range of whole sectors, last ones first, in several steps. If
    /// another call removes the file during the truncation, its extents go too, and the truncation
    /// counts as earlier.
    pub(super) fn remove_extents(&self, range: &Range<u64>) -> Result<()> {
        match self.remove_extents_in_steps(range) {
            Err(error)
                if is_of_gone_file(&error) && !buttress_faults::on("truncate-fails-when-file-goes") =>
            {
                Ok(())
            }
            removed => removed,
        }
    }

    fn remove_extents_in_steps(&self, range: &Range<u64>) -> Result<()> {
        let mut end = range.end;
        while range.start < end {
            let from = self.step_start(&(range.start..end))?;
            self.filesystem.operate(Need::freeing(STEP_PLACES), |operation| {
                operation.be_upkeep();
                self.require_still_there(operation)?;
                remove(operation, self.location, &(from..end))
            })?;
            end = from;
        }
        Ok(())
    }

    /// Returns the start of the last extents in a range, which the next step of the truncation
    /// removes.
    fn step_start(&self, range: &Range<u64>) -> Result<u64> {
        let tree = self.location.subvolume.tree();
        let first = FileExtent::key(self.location.inode, FileOffset::new(range.start));
        let last = FileExtent::key(self.location.inode, FileOffset::new(range.end.saturating_sub(1)));
        let view = self
            .filesystem
            .read_under_lock(|operation| operation.view_of(tree))?;
        let mut cursor = view.cursor(ReadAhead::Backward);
        cursor.seek_at_or_before(&last)?;
        for _ in 0..STEP_ITEMS {
            let inside = cursor
                .key()
                .is_some_and(|key| key >= first && key.item_type == ItemType::EXTENT_DATA);
            if !inside || !cursor.previous()? {
                return Ok(range.start);
            }
        }
        let key = cursor.key().filter(|key| *key > first);
        Ok(key.map_or(range.start, |key| key.offset))
    }
}

/// Removes a file's extents in a range, and inserts hole items there if the volume lacks the
/// no-holes feature.
fn remove(operation: &mut Operation<'_>, location: Location, range: &Range<u64>) -> Result<()> {
    operation.file_items().reach_range(location, range)?;
    let gone = operation.file_items().drop_range(location, range)?;
    if gone > 0 {
        operation.file_items().count_bytes(location, 0, gone)?;
    }
    let size = operation.inode(location)?.size.get();
    let sector_bytes = u64::from(operation.lookups().core().format.sector_bytes);
    let size_end = size.checked_next_multiple_of(sector_bytes).unwrap_or(size);
    if range.start < size_end {
        operation
            .file_items()
            .fill_holes(location, &(range.start..range.end.min(size_end)))?;
    }
    Ok(())
}
