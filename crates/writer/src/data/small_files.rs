//! Write-back of small files, many at a time.
//!
//! The write-back of one file acquires the edit lock several times, and needs a device request and
//! a checksum task. A batch of small files shares this cost. A batch of small files allocates
//! adjacent space once, writes it by one large request, and adds its checksums as few items.
//! Write-back inserts the items of many small files under one hold of the edit lock. The steps of
//! writing small files are those of `write_back`.
//!
//! The invariants of `write_back` hold here too. A batch of small files holds the file locks of all
//! its files during device I/O. A batch of small files skips files whose lock is held. If a file is
//! removed during the batch, the insertion skips the file's extents and checksums.
//!
//! Left out, and written back separately: a file that is compressed, has no checksums, may be
//! overwritten in place, fits inline, or has many dirty ranges.

use super::allocation::writes_of;
use super::compressing::{NewExtent, plain_extents};
use super::content::Content;
use super::in_place::may_be_in_place;
use super::insertion::{Insertion, Placed};
use super::sums::{Sums, sums_of};
use super::write_back::{EXTENT_ITEMS, Pieces, STEP_EXTENTS, is_of_gone_file, runs};
use crate::areas::WriteBack;
use crate::operations::Access;
use crate::operations::Operation;
use buttress_device::Buffer;
use buttress_engine::reservation::Need;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, InodeFlags, InodeItem, Logical};
use buttress_fs::error::{Defect, Result};
use buttress_fs::location::Location;
use buttress_volume::ExtentWrite;

/// The limit of dirty data below which a file is small.
pub(super) const SMALL_BYTES: u64 = 1 << 20;

/// The maximum dirty data, and the maximum number of files, of a batch of small files.
const BATCH_BYTES: u64 = 4 << 20;
const BATCH_FILES: usize = 512;

/// The size of one write request, in bytes.
const WRITE_BYTES: usize = 1 << 20;

/// The most dirty ranges of a small file.
const RANGES_MAX: usize = 16;

/// The number of a file's items that change beside its extent items.
const FILE_ITEMS: u64 = 4;

/// A file of a batch.
struct SmallFile<'c, 'a> {
    content: &'c mut Content<'a>,
    item: InodeItem,
    size: u64,
    /// The content that is being written.
    pieces: Pieces,
    insertions: Vec<Insertion>,
}

impl WriteBack<'_> {
    /// Returns how many of `files`, from the first on, form a batch of small files.
    pub(super) fn count_small_files(&self, files: &[Location]) -> usize {
        let files = files.get(..BATCH_FILES).unwrap_or(files);
        let mut sum = 0_u64;
        let mut fits = |bytes: &u64| {
            sum = sum.saturating_add(*bytes);
            *bytes < SMALL_BYTES && sum <= BATCH_BYTES
        };
        self.dirty_bytes_of(files)
            .iter()
            .take_while(|bytes| fits(bytes))
            .count()
    }

    /// Writes back small files together. Stops at the first error.
    pub(super) fn write_together(&self, files: &[Location]) -> Result<()> {
        let mut files = files.to_vec();
        files.sort_unstable_by_key(|location| (location.subvolume.tree(), location.inode));
        let files = self.filesystem.data().present(&files);
        let mut busy = Vec::new();
        let mut locked = Vec::with_capacity(files.len());
        for (location, file) in &files {
            match file.lock_if_free() {
                Some(state) if state.is_in_use() => {
                    locked.push((*location, file, state, file.memory_bytes()))
                }
                Some(_) => {}
                None => busy.push(*location),
            }
        }
        let sector_bytes = u64::from(self.filesystem.forest().block_format().sector_bytes);
        let mut contents: Vec<Content<'_>> = locked
            .iter_mut()
            .map(|(location, file, state, _)| Content {
                filesystem: self.filesystem,
                location: *location,
                inode: None,
                file,
                state,
                sector_bytes,
                keeps_times: false,
            })
            .collect();
        let written = self.write_contents(&mut contents);
        drop(contents);
        for (location, file, mut state, before) in locked {
            self.filesystem
                .contents()
                .leave(location, file, &mut state, before);
        }
        written?;
        busy.into_iter()
            .try_for_each(|location| self.write_file(location))
    }

    fn write_contents(&self, contents: &mut [Content<'_>]) -> Result<()> {
        self.filesystem.require_writing()?;
        let items = self.filesystem.read_under_lock(|operation| {
            let items = contents.iter().map(|content| content.item_if_there(operation));
            items.collect::<Result<Vec<_>>>()
        })?;
        let mut files = Vec::with_capacity(contents.len());
        for (content, item) in contents.iter_mut().zip(items) {
            match item {
                Some(item) if content.goes_with_others(&item)? => files.push((content, item)),
                Some(_) => content.write_back()?,
                None => content.discard(),
            }
        }
        let mut begun = Vec::with_capacity(files.len());
        let mut taken = Ok(());
        for (content, item) in files {
            match SmallFile::begin(content, item) {
                Ok(file) => begun.push(file),
                Err(error) => taken = taken.and(Err(error)),
            }
        }
        let mut inserted = 0_usize;
        let written = taken.and_then(|()| self.write_small_files(&mut begun, &mut inserted));
        if written.is_err() {
            begun.drain(inserted..).for_each(SmallFile::give_up);
        }
        written
    }

    /// Does steps 1 to 4 of a write-back. Counts in `inserted` the files whose extents are in the
    /// trees.
    fn write_small_files(&self, files: &mut [SmallFile<'_, '_>], inserted: &mut usize) -> Result<()> {
        let extents: Vec<_> = files.iter().flat_map(SmallFile::extents).collect();
        if extents.is_empty() {
            return Ok(());
        }
        let mut placed = self.place_extents(&extents)?.into_iter();
        let mut all: Vec<Placed> = Vec::new();
        for file in files.iter_mut() {
            file.take_placed(&mut placed);
            all.extend(file.placed().cloned());
        }
        let sums = self.write_extents_out(&joined(writes_of(&all)), true)?;
        drop(all);
        let mut rest = files;
        while !rest.is_empty() {
            let count = count_of_step(rest);
            let (step, later) = rest
                .split_at_mut_checked(count)
                .ok_or_else(|| Defect::new("a step of more files than there are"))?;
            let there = self.insert_small_files(step, &sums)?;
            *inserted = inserted.saturating_add(step.len());
            let ended = step.iter_mut().zip(there);
            let released = ended.fold(0_u64, |sum, (file, is_there)| {
                sum.saturating_add(file.end(is_there))
            });
            self.filesystem.release_data(released);
            rest = later;
        }
        Ok(())
    }

    /// Performs step 4 of a write-back for some files, under one hold of the edit lock. Returns
    /// which of the files still existed.
    fn insert_small_files(&self, step: &[SmallFile<'_, '_>], sums: &[Sums]) -> Result<Vec<bool>> {
        let extents = step
            .iter()
            .map(|file| file.insertions.len())
            .fold(0, usize::saturating_add);
        let count = |count: usize, items: u64| u64_of(count).saturating_mul(items);
        let items = count(extents, EXTENT_ITEMS).saturating_add(count(step.len(), FILE_ITEMS));
        self.filesystem.operate(Need::promised(items), |operation| {
            operation.be_upkeep();
            let mut there = Vec::with_capacity(step.len());
            for file in step {
                there.push(file.content.item_if_there(operation)?.is_some());
            }
            let files = || {
                step.iter()
                    .zip(&there)
                    .filter(|(_, there)| **there)
                    .map(|(file, _)| file)
            };
            for file in files() {
                for insertion in &file.insertions {
                    operation
                        .file_items()
                        .reach_range(file.content.location, &insertion.range())?;
                }
            }
            let sums = sums_of(sums, files().flat_map(|file| &file.insertions));
            for sums in &sums {
                operation.reach_checksums(sums.logical)?;
            }
            for file in files() {
                file.insert(operation)?;
            }
            for sums in &sums {
                operation
                    .edit()
                    .checksum_tree()
                    .insert(sums.logical, &sums.sums)?;
            }
            Ok(there)
        })
    }
}

/// Joins writes into fewer ones, in memory aligned for the devices. Each joined write is awaited,
/// and has its own checksums.
pub(super) fn joined(writes: Vec<ExtentWrite>) -> Vec<ExtentWrite> {
    let mut joined = Vec::new();
    let mut open: Option<(Logical, Buffer)> = None;
    let mut close = |open: Option<(Logical, Buffer)>| {
        joined.extend(open.map(|(logical, buffer)| ExtentWrite {
            logical,
            bytes: buffer.into_bytes(),
        }));
    };
    for write in writes {
        let mut at = write.logical;
        let mut rest = write.bytes.as_ref();
        while !rest.is_empty() {
            let is_next = |(logical, buffer): &(Logical, Buffer)| {
                buffer.room() > 0 && logical.saturating_add(ByteCount::of(buffer.len())) == at
            };
            if !open.as_ref().is_some_and(is_next) {
                close(open.replace((at, Buffer::with_capacity(WRITE_BYTES))));
            }
            let taken = open.as_mut().map_or(0, |(_, buffer)| buffer.push(rest));
            at = at.saturating_add(ByteCount::of(taken));
            rest = rest.get(taken..).unwrap_or_default();
        }
    }
    close(open);
    joined
}

/// Returns how many files are inserted under one hold of the edit lock.
fn count_of_step(files: &[SmallFile<'_, '_>]) -> usize {
    let mut extents = 0_usize;
    let fits = |file: &&SmallFile<'_, '_>| {
        extents = extents.saturating_add(file.insertions.len());
        extents <= STEP_EXTENTS
    };
    files.iter().take_while(fits).count().max(1)
}

impl Content<'_> {
    /// Returns the file's inode item, if the file still exists.
    fn item_if_there(&self, operation: &mut Access<'_>) -> Result<Option<InodeItem>> {
        match self.require_still_there(operation) {
            Ok(item) => Ok(Some(item)),
            Err(error) if is_of_gone_file(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the file's content can be written back in a batch.
    fn goes_with_others(&mut self, item: &InodeItem) -> Result<bool> {
        let ranges = self.with_dirty(|dirty| match dirty.is_empty() {
            true => 0,
            false => dirty.ranges(0, RANGES_MAX.saturating_add(1)).len(),
        });
        let is_plain = !may_be_in_place(item) && !item.flags.contains(InodeFlags::NODATASUM);
        if !is_plain || ranges == 0 || ranges > RANGES_MAX {
            return Ok(false);
        }
        let size = self.size()?.narrow::<usize>();
        Ok(!self.fits_inline(size) && self.compression_plan(item)?.is_none())
    }
}

impl<'c, 'a> SmallFile<'c, 'a> {
    fn begin(content: &'c mut Content<'a>, item: InodeItem) -> Result<Self> {
        let size = content.size()?;
        let pieces = content.file.waiting.write().begin_write_back();
        Ok(Self {
            content,
            item,
            size,
            pieces,
            insertions: Vec::new(),
        })
    }
}

impl SmallFile<'_, '_> {
    fn extents(&self) -> Vec<NewExtent> {
        let made = runs(&self.pieces).flat_map(|run| plain_extents(run.iter().cloned()));
        made.collect()
    }

    /// Takes the placed extents of this file. The placed extents are in the order of files, and an
    /// extent may have several places.
    fn take_placed(&mut self, placed: &mut impl Iterator<Item = Placed>) {
        let pieces = self.pieces.iter();
        let mut left = pieces.fold(0_usize, |sum, (_, piece)| sum.saturating_add(piece.len()));
        while left > 0 {
            let Some(next) = placed.next() else { return };
            left = left.saturating_sub(next.extent.length.narrow::<usize>());
            self.insertions.push(Insertion::New(next));
        }
    }

    fn placed(&self) -> impl Iterator<Item = &Placed> {
        self.insertions.iter().filter_map(|insertion| match insertion {
            Insertion::New(placed) => Some(placed),
            Insertion::Written(_) => None,
        })
    }

    /// Inserts the small file's items into its tree.
    fn insert(&self, operation: &mut Operation<'_>) -> Result<()> {
        let (content, mut counted) = (&*self.content, (0_u64, 0_u64));
        for insertion in &self.insertions {
            let (more, less) = content.insert_one(operation, insertion)?;
            counted = (counted.0.saturating_add(more), counted.1.saturating_add(less));
        }
        // File offsets below this one have extent items, or need none.
        let covered = content.align_up(self.item.size.get());
        let end = content.align_up(self.size);
        if end > covered {
            operation
                .file_items()
                .fill_holes(content.location, &(covered..end))?;
        }
        content.settle(operation, self.size, counted, false)
    }

    /// Ends the write-back of one file: its extents are in the tree, or the file is removed.
    /// Returns the reserved bytes that the ended write-back must release.
    fn end(&mut self, is_there: bool) -> u64 {
        let insertions = core::mem::take(&mut self.insertions);
        if !is_there {
            self.content
                .filesystem
                .writeback()
                .give_back_insertions(insertions);
            self.content.discard();
            return 0;
        }
        self.content.file.waiting.write().end_write_back();
        self.content.state.unreserved = 0;
        let released = core::mem::take(&mut self.content.state.reserved);
        let charged = core::mem::take(&mut self.content.state.charged);
        let tree = self.content.location.subvolume.tree();
        self.content.filesystem.quota_limits().land(tree, charged);
        released
    }

    /// Makes the content of the failed write-back dirty again.
    fn give_up(self) {
        self.content
            .filesystem
            .writeback()
            .give_back_insertions(self.insertions);
        self.content.file.waiting.write().fail_write_back(self.pieces);
    }
}
