//! Write-back of dirty data into extents.
//!
//! 1. Small content becomes an inline extent. Content that is not stored inline is cut into runs.
//!    The write-back takes out parts that may be overwritten in place; the other parts become
//!    extents, compressed on all cores.
//! 2. Under the edit lock, the write-back allocates space.
//! 3. The write-back writes the data to the devices while its checksums are computed. No lock is
//!    held except, in some calls, the file lock.
//! 4. Under the edit lock, items, references and checksums are inserted, some extents at a time.
//!    After the content has extents, the inode's size follows.
//!
//! Until step 4 no tree refers to the new extents, so a crash or an error leaves the file
//! unchanged. [`super::in_flight`] takes dirty data out of memory before the write-back, and puts
//! it back after an error.

use super::allocation::writes_of;
use super::compressing::{CompressionPlan, NewExtent, PartOfExtent, length_of, with_compressor};
use super::content::Content;
use super::in_place::{InPlace, may_be_in_place};
use super::insertion::Insertion;
use super::items::change_bytes;
use super::stored::Stored;
use super::sums::{Sums, take_sums};
use crate::areas::WriteBack;
use crate::operations::Access;
use crate::operations::Operation;
use buttress_engine::data_extents::DataOwner;
use buttress_engine::pending_times::PendingTimes;
use buttress_engine::reservation::Need;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::limits::inline_content_bytes_max;
use buttress_format::{
    ByteCount, Compression, ExtentSlice, FileExtent, FileExtentBody, FileOffset, Incompat, InodeFlags,
    InodeItem,
};
use buttress_fs::error::{Error, Result};
use buttress_volume::ExtentWrite;
use bytes::Bytes;
use core::ops::Range;

/// The number of extents that are inserted under one hold of the edit lock.
pub(super) const STEP_EXTENTS: usize = 64;

/// The most items that inserting one extent changes in separate leaves: items of the file, and
/// items of checksums.
pub(super) const EXTENT_ITEMS: u64 = 3;

/// Content of a file, in pieces with their file offsets.
pub(super) type Pieces = Vec<(u64, Bytes)>;

impl WriteBack<'_> {
    /// Frees space that was allocated for extents which were not inserted.
    pub(super) fn give_back_insertions(&self, insertions: impl IntoIterator<Item = Insertion>) {
        let placed = insertions.into_iter().filter_map(|insertion| match insertion {
            Insertion::New(placed) => Some(placed),
            Insertion::Written(_) => None,
        });
        self.give_back_extents(placed.collect());
    }
}

impl Content<'_> {
    /// Returns the file's inode item, if the file still exists. Other calls may remove the file, or
    /// its subvolume, while the edit lock is free.
    pub(super) fn require_still_there(&self, operation: &mut Access<'_>) -> Result<InodeItem> {
        operation.require_subvolume(self.location.subvolume)?;
        operation.inode(self.location)
    }

    /// Discards all dirty data of the file.
    pub(super) fn discard(&mut self) {
        {
            let mut waiting = self.file.waiting.write();
            drop(waiting.begin_write_back());
            waiting.end_write_back();
        }
        self.change_pending(|pending| *pending = PendingTimes::default());
        self.state.unreserved = 0;
        let reserved = self.state.reserved;
        self.unreserve(reserved);
    }

    /// Does steps 1 to 4 of a write-back, for all pieces. Returns the bytes that were written in
    /// place.
    pub(super) fn write_pieces(&mut self, item: &InodeItem, pieces: &Pieces) -> Result<u64> {
        self.filesystem.require_writing()?;
        let size = self.size()?;
        let plan = self.compression_plan(item)?;
        if let [(0, content)] = pieces.as_slice()
            && self.write_inline(item, size, content, plan.as_ref())?
        {
            return Ok(0);
        }
        let (insertions, sums, failed) = self.write_extents(item, pieces, plan.as_ref())?;
        let in_place = insertions.iter().map(bytes_in_place).fold(0, u64::exact_add);
        let mut inserted = 0_usize;
        self.insert(item, size, &insertions, sums, failed, &mut inserted)
            .inspect_err(|_| {
                self.filesystem
                    .writeback()
                    .give_back_insertions(insertions.into_iter().skip(inserted));
            })?;
        Ok(in_place)
    }

    /// Performs steps 1 to 3 of a write-back.
    fn write_extents(
        &self,
        item: &InodeItem,
        pieces: &Pieces,
        plan: Option<&CompressionPlan>,
    ) -> Result<(Vec<Insertion>, Vec<Sums>, bool)> {
        // From the check for in-place writes until the write ends, no commit freezes a state that
        // shares the overwritten data.
        let locks = may_be_in_place(item) && !buttress_faults::on("in-place-unlocked");
        let _in_place = locks.then(|| self.filesystem.data().in_place.read());
        let mut insertions = Vec::new();
        let mut writes = Vec::new();
        let mut extents: Vec<NewExtent> = Vec::new();
        let mut failed = false;
        for run in runs(pieces) {
            let range = range_of(run);
            let parts = self
                .filesystem
                .read_under_lock(|operation| operation.in_place_parts(self.location, item, &range))?;
            let mut at = range.start;
            for part in parts {
                let (made, gave_up) = self
                    .filesystem
                    .writeback()
                    .make_extents(&cut(run, &(at..part.range.start)), plan);
                extents.extend(made);
                failed |= gave_up;
                at = part.range.end;
                writes.extend(writes_in_place(run, &part));
                insertions.push(Insertion::Written(part));
            }
            let (made, gave_up) = self
                .filesystem
                .writeback()
                .make_extents(&cut(run, &(at..range.end)), plan);
            extents.extend(made);
            failed |= gave_up;
        }
        let placed = self.filesystem.writeback().place_extents(&extents)?;
        writes.extend(writes_of(&placed));
        let has_checksums = !item.flags.contains(InodeFlags::NODATASUM);
        match self
            .filesystem
            .writeback()
            .write_extents_out(&writes, has_checksums)
        {
            Ok(sums) => {
                insertions.extend(placed.into_iter().map(Insertion::New));
                insertions.sort_unstable_by_key(|insertion| insertion.range().start);
                Ok((insertions, sums, failed))
            }
            Err(error) => {
                self.filesystem.writeback().give_back_extents(placed);
                Err(error)
            }
        }
    }

    /// Performs step 4 of a write-back: inserts the new extents into the trees, and counts them.
    pub(super) fn insert(
        &self,
        item: &InodeItem,
        size: u64,
        insertions: &[Insertion],
        sums: Vec<Sums>,
        failed: bool,
        inserted: &mut usize,
    ) -> Result<()> {
        let location = self.location;
        // File offsets below this one have extent items, or need none.
        let mut covered = self.align_up(item.size.get());
        let mut sums = sums;
        let mut steps = insertions.chunks(STEP_EXTENTS).peekable();
        loop {
            let step = steps.next().unwrap_or_default();
            let is_last = steps.peek().is_none();
            let items = u64_of(step.len()).saturating_mul(EXTENT_ITEMS);
            let own_sums = take_sums(&mut sums, step, is_last);
            self.filesystem
                .operate(Need::promised(items.saturating_add(4)), |operation| {
                    operation.be_upkeep();
                    self.require_still_there(operation)?;
                    for insertion in step {
                        operation.file_items().reach_range(location, &insertion.range())?;
                    }
                    for sums in &own_sums {
                        operation.reach_checksums(sums.logical)?;
                    }
                    let mut counted = (0_u64, 0_u64);
                    for insertion in step {
                        let (more, less) = self.insert_one(operation, insertion)?;
                        counted = (counted.0.saturating_add(more), counted.1.saturating_add(less));
                    }
                    for sums in &own_sums {
                        operation
                            .edit()
                            .checksum_tree()
                            .insert(sums.logical, &sums.sums)?;
                    }
                    let end = step.last().map_or(size, |last| last.range().end);
                    let new_size = if is_last {
                        size
                    } else {
                        size.min(end).max(item.size.get())
                    };
                    let new_end = self.align_up(new_size);
                    if new_end > covered {
                        operation.file_items().fill_holes(location, &(covered..new_end))?;
                        covered = new_end;
                    }
                    self.settle(operation, new_size, counted, failed)
                })?;
            *inserted = inserted.saturating_add(step.len());
            if is_last {
                return Ok(());
            }
        }
    }

    /// Inserts one extent. Returns how much this extent adds to and subtracts from `nbytes`.
    pub(super) fn insert_one(
        &self,
        operation: &mut Operation<'_>,
        insertion: &Insertion,
    ) -> Result<(u64, u64)> {
        let location = self.location;
        let placed = match insertion {
            Insertion::New(placed) => placed,
            Insertion::Written(part) if part.is_preallocated => {
                operation.file_items().mark_written(location, &part.range)?;
                return Ok((0, 0));
            }
            Insertion::Written(_) => return Ok((0, 0)),
        };
        let extent = &placed.extent;
        if extent.compression != Compression::None {
            require_feature(operation, extent.compression);
        }
        let end = extent.start.saturating_add(extent.length);
        let gone = operation
            .file_items()
            .drop_range(location, &(extent.start..end))?;
        let length = ByteCount::new(extent.length);
        let part = extent.part.unwrap_or(PartOfExtent {
            ram_bytes: extent.length,
            offset: 0,
        });
        let stored = Stored {
            start: extent.start,
            end,
            extent: FileExtent {
                generation: operation.generation(),
                ram_bytes: ByteCount::new(part.ram_bytes),
                compression: extent.compression,
                other_encoding: 0,
                body: FileExtentBody::Regular(ExtentSlice {
                    disk: placed.range.logical,
                    disk_bytes: placed.range.length,
                    offset: ByteCount::new(part.offset),
                    num_bytes: length,
                }),
            },
            inline_bytes: None,
        };
        operation.file_items().insert_extent(location, &stored)?;
        let owner = DataOwner {
            root: location.subvolume.tree(),
            inode: location.inode,
            offset: extent.start.wrapping_sub(part.offset),
        };
        operation.edit().core.create_data_extent(placed.range, owner);
        Ok((extent.length, gone))
    }

    /// Updates the inode item, and merges its pending times.
    pub(super) fn settle(
        &self,
        operation: &mut Operation<'_>,
        size: u64,
        (more, less): (u64, u64),
        failed: bool,
    ) -> Result<()> {
        let mut counted = Ok(());
        operation.change_inode(self.location, |item| {
            item.size = ByteCount::new(size);
            counted = change_bytes(item, more, less);
            if failed {
                item.flags.remove(InodeFlags::COMPRESS);
                item.flags.insert(InodeFlags::NOCOMPRESS);
            }
        })?;
        Ok(counted?)
    }

    fn inline_bytes_max(&self) -> usize {
        let most = self.filesystem.data().options.max_inline.get().narrow::<usize>();
        most.min(inline_content_bytes_max(
            self.filesystem.forest().block_format().node_bytes,
        ))
    }

    /// Returns whether content of this length is stored inline as it is. Content of a whole sector
    /// is never stored inline.
    pub(super) fn fits_inline(&self, length: usize) -> bool {
        let sector_bytes = self.sector_bytes.narrow::<usize>();
        let is_small = length <= self.inline_bytes_max() || buttress_faults::on("inline-limit-ignored");
        is_small && length < sector_bytes
    }

    /// Stores all content of a small file inline. Returns false if the content must not be inline.
    fn write_inline(
        &self,
        item: &InodeItem,
        size: u64,
        content: &Bytes,
        plan: Option<&CompressionPlan>,
    ) -> Result<bool> {
        let most = self.inline_bytes_max();
        let sector_bytes = self.sector_bytes.narrow::<usize>();
        let length = size.narrow::<usize>();
        let Some(content) = content.get(..length).filter(|content| !content.is_empty()) else {
            return Ok(false);
        };
        let stays_out = self.state.never_inline || item.flags.contains(InodeFlags::PREALLOC);
        if length > sector_bytes || stays_out {
            return Ok(false);
        }
        let compressed = plan.and_then(|plan| {
            let method = plan.method;
            let stored =
                with_compressor(|compressor| compressor.compress_inline(method, content, sector_bytes, most));
            Some((method.compression(), stored?))
        });
        let (compression, stored) = match &compressed {
            Some((compression, stored)) => (*compression, stored.as_slice()),
            None if self.fits_inline(length) => (Compression::None, content),
            None => return Ok(false),
        };
        self.put_inline(size, compression, stored)?;
        Ok(true)
    }

    /// Stores all content of a file inline, in its stored form.
    pub(super) fn put_inline(&self, size: u64, compression: Compression, stored: &[u8]) -> Result<()> {
        let location = self.location;
        self.filesystem.operate(Need::promised(6), |operation| {
            operation.be_upkeep();
            self.require_still_there(operation)?;
            operation
                .file_items()
                .reach_range(location, &(0..self.sector_bytes))?;
            if compression != Compression::None {
                require_feature(operation, compression);
            }
            let gone = operation
                .file_items()
                .drop_range(location, &(0..self.sector_bytes))?;
            operation
                .edit()
                .inode_items()
                .note_changed_extents(location, &(0..self.sector_bytes))?;
            let extent = FileExtent {
                generation: operation.generation(),
                ram_bytes: ByteCount::new(size),
                compression,
                other_encoding: 0,
                body: FileExtentBody::Inline(stored),
            };
            let key = FileExtent::key(location.inode, FileOffset::MIN);
            operation
                .edit()
                .insert(location.subvolume.tree(), &key, &extent.encode())?;
            self.settle(operation, size, (size, gone), false)
        })
    }
}

/// Returns whether an error means that the file or its subvolume was removed, so that the file's
/// content is obsolete.
pub(super) const fn is_of_gone_file(error: &Error) -> bool {
    matches!(
        error,
        Error::InodeNotFound { .. } | Error::SubvolumeNotFound { .. }
    )
}

/// Sets the volume's feature flag for this compression.
pub(super) fn require_feature(operation: &mut Operation<'_>, compression: Compression) {
    if buttress_faults::on("compression-feature-unmarked") {
        return;
    }
    let feature = match compression {
        Compression::Lzo => Incompat::COMPRESS_LZO,
        Compression::Zstd => Incompat::COMPRESS_ZSTD,
        Compression::None | Compression::Zlib => return,
    };
    operation.edit().use_feature(feature);
}

/// Returns runs of pieces that follow each other without a gap.
pub(super) fn runs(pieces: &[(u64, Bytes)]) -> impl Iterator<Item = &[(u64, Bytes)]> {
    pieces.chunk_by(|(start, bytes), (next, _)| start.saturating_add(length_of(bytes)) == *next)
}

fn range_of(run: &[(u64, Bytes)]) -> Range<u64> {
    let start = run.first().map_or(0, |(start, _)| *start);
    let end = run
        .last()
        .map_or(0, |(start, bytes)| start.saturating_add(length_of(bytes)));
    start..end
}

/// Returns the part of a run of dirty data that is inside a range.
fn cut(run: &[(u64, Bytes)], range: &Range<u64>) -> Pieces {
    run.iter()
        .filter_map(|(start, bytes)| {
            let end = start.saturating_add(length_of(bytes));
            let (from, to) = (range.start.max(*start), range.end.min(end));
            let inside = usize::try_from(from.checked_sub(*start)?).ok()?
                ..usize::try_from(to.checked_sub(*start)?).ok()?;
            (from < to).then(|| (from, bytes.slice(inside)))
        })
        .collect()
}

/// Returns how many bytes of an insertion were written in place.
fn bytes_in_place(insertion: &Insertion) -> u64 {
    match insertion {
        Insertion::New(_) => 0,
        Insertion::Written(part) => part.range.end.exact_sub(part.range.start),
    }
}

/// Returns the writes of a part that is overwritten in place.
fn writes_in_place(run: &[(u64, Bytes)], part: &InPlace) -> Vec<ExtentWrite> {
    let pieces = cut(run, &part.range);
    let place = |(start, bytes): (u64, Bytes)| {
        let inside = start.saturating_sub(part.range.start);
        ExtentWrite {
            logical: part.logical.saturating_add(ByteCount::new(inside)),
            bytes,
        }
    };
    pieces.into_iter().map(place).collect()
}
