//! Space ahead of content, holes and zeros, as by `fallocate(2)`.

use super::content::Content;
use super::stored::Stored;
use super::writing::FILE_BYTES_MAX;
use crate::WritableFilesystem;
use crate::operations::Access;
use crate::operations::areas::FileItems;
use buttress_engine::data_extents::{DataOwner, DataRange};
use buttress_engine::reservation::Need;
use buttress_format::{
    ByteCount, Compression, ExtentSlice, FileExtent, FileExtentBody, FileOffset, InodeFlags,
};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use core::ops::Range;

/// The greatest length of a preallocated extent, in bytes.
const EXTENT_BYTES_MAX: u64 = 256 << 20;

/// The effect of an allocation call on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Preallocating changes holes to preallocated extents and keeps existing content. The file
    /// grows to the range's end.
    Allocate,
    /// As [`Allocate`](Self::Allocate), but the call does not extend the file's size.
    AllocateKeepSize,
    /// The range becomes a hole; its content is removed. Punching a hole keeps the file's size.
    PunchHole,
    /// The range reads as zeros and is allocated. The file grows to the range's end.
    ZeroRange,
    /// Like [`ZeroRange`](Self::ZeroRange), but the file keeps its size.
    ZeroRangeKeepSize,
}

impl WritableFilesystem {
    /// Allocates, clears or zeroes a range of a file, as `fallocate(2)` does.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::write_at`] does, or with [`Error::Invalid`] for an empty
    /// range. An append-only file allows allocation, but no holes. After [`Error::NoSpace`], a part
    /// of the range may be allocated.
    pub fn allocate(&self, location: Location, range: Range<FileOffset>, mode: AllocateMode) -> Result<()> {
        self.allocate_in_quota(location, range, mode, false)
    }

    /// Changes a range as [`allocate`](Self::allocate) does, for a caller that sets the file's
    /// times itself, as for [`write_cached_at`](Self::write_cached_at).
    ///
    /// # Errors
    /// Fails as [`allocate`](Self::allocate) does.
    pub fn allocate_cached(
        &self,
        location: Location,
        range: Range<FileOffset>,
        mode: AllocateMode,
    ) -> Result<()> {
        self.allocate_in_quota(location, range, mode, true)
    }

    fn allocate_in_quota(
        &self,
        location: Location,
        range: Range<FileOffset>,
        mode: AllocateMode,
        keeps_times: bool,
    ) -> Result<()> {
        self.quotas().know_use(location.subvolume)?;
        self.quotas()
            .with_current(|| self.allocate_with(location, range.clone(), mode, keeps_times))
    }

    fn allocate_with(
        &self,
        location: Location,
        range: Range<FileOffset>,
        mode: AllocateMode,
        keeps_times: bool,
    ) -> Result<()> {
        let range = range.start.get()..range.end.get();
        if range.start >= range.end || range.end > FILE_BYTES_MAX {
            return Err(Error::Invalid {
                what: "the range is empty, or ends past 2^63 - 1",
            });
        }
        self.contents().with_in_steps(location, |content| {
            content.keeps_times = keeps_times;
            match mode {
                AllocateMode::Allocate => content.allocate(&range, true),
                AllocateMode::AllocateKeepSize => content.allocate(&range, false),
                AllocateMode::PunchHole => content.punch(&range),
                AllocateMode::ZeroRange => content.zero(&range, true),
                AllocateMode::ZeroRangeKeepSize => content.zero(&range, false),
            }
        })
    }
}

impl Content<'_> {
    fn allocate(&mut self, range: &Range<u64>, grows: bool) -> Result<()> {
        self.require_writable()?;
        self.give_room(range)?;
        self.filesystem.count_change();
        self.touch();
        self.finish(range, grows)
    }

    /// Sets the file's new size after its items changed.
    fn finish(&mut self, range: &Range<u64>, grows: bool) -> Result<()> {
        let size = self.size()?;
        if grows && range.end > size {
            self.grow(range.end)?;
        }
        self.write_back()
    }

    /// Preallocates all holes of a range.
    fn give_room(&mut self, range: &Range<u64>) -> Result<()> {
        let sectors = self.align_down(range.start)..self.align_up(range.end);
        if self.size()? <= self.sector_bytes {
            self.reserve(self.sector_bytes)?;
        }
        self.load_inline()?;
        self.out_of_tree(Self::write_back)?;
        let wanted = self.filesystem.read_under_lock(|operation| {
            let mut sum = 0_u64;
            let mut at = sectors.start;
            while let Some(gap) = operation.next_gap(self.location, &(at..sectors.end))? {
                sum = sum.saturating_add(gap.end.saturating_sub(gap.start));
                at = gap.end;
            }
            Ok(sum)
        })?;
        // Check that the whole range fits before allocating any of it. Release the reservation for
        // data before the allocation, because it also keeps metadata for many possible extents.
        self.reserve(wanted)?;
        if buttress_faults::on("quota-charges-allocation-twice") {
            self.release(wanted);
        } else {
            self.unreserve(wanted);
        }
        let mut at = sectors.start;
        let result = loop {
            let step = self.filesystem.operate(Need::places(6), |operation| {
                operation.be_upkeep();
                self.require_still_there(operation)?;
                operation.file_items().fill_gap(self.location, &(at..sectors.end))
            });
            match step {
                Ok(Some(end)) => at = end,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let reserved = self.state.reserved;
        self.unreserve(reserved);
        result
    }

    fn punch(&mut self, range: &Range<u64>) -> Result<()> {
        self.require_changeable()?;
        // As on Linux, a hole that stays a hole changes no time.
        if self.is_hole(range)? {
            return Ok(());
        }
        let size = self.size()?;
        let layout = self.file.layout.write();
        self.clear(range, size)?;
        drop(layout);
        self.filesystem.count_change();
        self.touch();
        self.write_back()
    }

    /// Returns whether the sectors of a range have neither content nor space.
    fn is_hole(&mut self, range: &Range<u64>) -> Result<bool> {
        let sectors = self.align_down(range.start)..self.align_up(range.end);
        let dirty = self.waiting_ranges(sectors.start, 1);
        if dirty.first().is_some_and(|dirty| dirty.start < sectors.end) {
            return Ok(false);
        }
        self.filesystem.read_under_lock(|operation| {
            let mut at = sectors.start;
            // Adjacent holes may have an item each.
            while at < sectors.end {
                match operation.next_gap(self.location, &(at..sectors.end))? {
                    Some(gap) if gap.start == at => at = gap.end,
                    _ => return Ok(false),
                }
            }
            Ok(true)
        })
    }

    /// Zeroes a range: parts of sectors in memory, whole sectors as holes. Returns the range of
    /// whole sectors. The caller blocks readers of the range during this change.
    fn clear(&mut self, range: &Range<u64>, size: u64) -> Result<Range<u64>> {
        let end = end_to_clear(self, range, size);
        let whole = self.align_up(range.start)..self.align_down(end);
        if size <= self.sector_bytes && size > 0 {
            self.reserve_for(&(0..self.sector_bytes))?;
            self.load_inline()?;
        }
        if whole.start > whole.end {
            // The range is within one sector.
            self.zero_part(range.start..end)?;
            return Ok(whole.start..whole.start);
        }
        if range.start < whole.start && range.start < size {
            self.zero_part(range.start..whole.start)?;
        }
        if whole.end < end {
            self.zero_part(whole.end..end)?;
        }
        let forgotten = self.change_dirty(|pending| pending.remove(&whole));
        self.forget(forgotten);
        self.remove_extents(&whole)?;
        Ok(whole)
    }

    fn zero(&mut self, range: &Range<u64>, grows: bool) -> Result<()> {
        self.require_changeable()?;
        let size = self.size()?;
        self.write_back()?;
        require_room(self, range, size)?;
        // Hold the layout lock until the file has its new size, so that readers observe extents and
        // size together or not at all.
        let mut layout = Some(self.file.layout.write());
        let whole = self.clear(range, size)?;
        if buttress_faults::on("live-zero-range-half-seen") {
            layout = None;
        }
        if whole.start < whole.end {
            self.give_room(&whole)?;
        }
        if grows && range.end > size {
            self.grow(range.end)?;
        }
        drop(layout);
        self.filesystem.count_change();
        self.touch();
        self.write_back()
    }
}

impl Access<'_> {
    /// Returns the first part of a file range that has no space on disk.
    fn next_gap(&mut self, location: Location, range: &Range<u64>) -> Result<Option<Range<u64>>> {
        let mut at = range.start;
        while at < range.end {
            let Some(stored) = self
                .extent_from(location, at)?
                .filter(|stored| stored.start < range.end)
            else {
                return Ok(Some(at..range.end));
            };
            if stored.start > at {
                return Ok(Some(at..stored.start));
            }
            let is_hole = stored.slice().is_none() && stored.inline_bytes.is_none();
            if is_hole {
                return Ok(Some(at..stored.end.min(range.end)));
            }
            at = stored.end;
        }
        Ok(None)
    }
}

impl FileItems<'_, '_> {
    /// Preallocates the first gap of a range, or a part of it. Returns the end of the preallocated
    /// part.
    fn fill_gap(&mut self, location: Location, range: &Range<u64>) -> Result<Option<u64>> {
        let Some(gap) = self.operation.next_gap(location, range)? else {
            return Ok(None);
        };
        let wanted = gap.end.saturating_sub(gap.start).min(EXTENT_BYTES_MAX);
        // The allocation must not use space promised to other calls.
        let tree = location.subvolume.tree();
        self.operation.ledgers().core.quota_limits.allow(tree, wanted)?;
        self.operation.ledgers().data_space().reserve(wanted)?;
        self.operation.ledgers().data_space().release(wanted);
        let disk = self
            .operation
            .ledgers()
            .data_space()
            .allocate(ByteCount::new(wanted))?;
        // The preallocation has allocated space, so the operation must not be retried.
        self.operation.begin();
        let limits = &self.operation.ledgers().core.quota_limits;
        limits.note_allocated(tree, disk.length.get());
        let end = gap.start.saturating_add(disk.length.get());
        self.put_room(location, &(gap.start..end), disk)?;
        Ok(Some(end))
    }

    fn put_room(&mut self, location: Location, range: &Range<u64>, disk: DataRange) -> Result<()> {
        let gone = self.drop_range(location, range)?;
        let stored = Stored {
            start: range.start,
            end: range.end,
            extent: FileExtent {
                generation: self.operation.generation(),
                ram_bytes: disk.length,
                compression: Compression::None,
                other_encoding: 0,
                body: FileExtentBody::Preallocated(ExtentSlice {
                    disk: disk.logical,
                    disk_bytes: disk.length,
                    offset: ByteCount::ZERO,
                    num_bytes: disk.length,
                }),
            },
            inline_bytes: None,
        };
        self.insert_extent(location, &stored)?;
        let owner = DataOwner {
            root: location.subvolume.tree(),
            inode: location.inode,
            offset: range.start,
        };
        self.operation.edit().core.create_data_extent(disk, owner);
        self.count_bytes(location, disk.length.get(), gone)?;
        self.operation
            .change_inode(location, |item| item.flags.insert(InodeFlags::PREALLOC))
    }
}

/// Returns the end of a range to zero. Content after the end of the file need not be preserved.
fn end_to_clear(content: &Content, range: &Range<u64>, size: u64) -> u64 {
    match range.end >= size {
        true => content.align_up(range.end),
        false => range.end,
    }
}

/// Checks that the whole sectors of a range get space, before their content is removed.
fn require_room(content: &mut Content, range: &Range<u64>, size: u64) -> Result<()> {
    let end = content.align_down(end_to_clear(content, range, size));
    if let Some(wanted) = end.checked_sub(content.align_up(range.start)) {
        content.reserve(wanted)?;
        content.unreserve(wanted);
    }
    Ok(())
}
