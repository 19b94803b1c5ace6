//! Extents that several files share, or one file several times: reflink, dedupe, copy.
//!
//! Files share whole sectors by adding items that refer to the same extents. Inline content cannot
//! be shared, so a copy writes it again.

use super::content::Content;
use super::write_back::is_of_gone_file;
use super::writing::{FILE_BYTES_MAX, Source};
use crate::WritableFilesystem;
use crate::operations::areas::FileItems;
use buttress_engine::reservation::Need;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, FileExtentBody, FileKind, FileOffset, InodeFlags};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use core::ops::Range;

/// The number of extents that are shared under one hold of the edit lock.
const STEP_EXTENTS: u64 = 64;

/// The size of the pieces in which content is compared and copied.
const PIECE_BYTES: u64 = 1 << 20;

/// A range of one file that replaces a range of another file.
#[derive(Clone, Copy, Debug)]
struct Share {
    source: u64,
    target: u64,
    length: u64,
}

impl WritableFilesystem {
    /// Shares the extents of a range of `source` with `target`, from `target_offset` on, as
    /// `FICLONERANGE` does. The range's bounds and the target's offset must be whole sectors,
    /// except for an end at the end of the source.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::write_at`] does, also for the source. Fails with
    /// [`Error::Invalid`] for ranges that are not whole sectors, that overlap in one file, or that
    /// end past the source. Fails with [`Error::Invalid`] also if only one of the files has
    /// checksums.
    pub fn clone_range(
        &self,
        source: Location,
        range: Range<FileOffset>,
        target: Location,
        target_offset: FileOffset,
    ) -> Result<()> {
        let share = share_of(&range, target_offset);
        self.quotas().with_current(|| {
            let _steps = self.contents().begin_steps();
            self.contents().with_two(source, target, |mut from, to| {
                to.require_changeable()?;
                require_file(to, source)?;
                let source_size = size_of(&mut from, to)?;
                check(&share, source_size, to, source)?;
                to.share(&mut from, source, &share)?;
                to.touch();
                to.write_back()
            })
        })
    }

    /// Shares the extents of a range of `source` with `target` if both have the same content there,
    /// as `FIDEDUPERANGE` does. Returns whether the content was the same. The call leaves the times
    /// of the files unchanged.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::clone_range`] does, or with an error of reading content.
    pub fn dedupe_range(
        &self,
        source: Location,
        range: Range<FileOffset>,
        target: Location,
        target_offset: FileOffset,
    ) -> Result<bool> {
        let share = share_of(&range, target_offset);
        self.contents().with_two(source, target, |mut from, to| {
            to.require_writable()?;
            require_file(to, source)?;
            let source_size = size_of(&mut from, to)?;
            check(&share, source_size, to, source)?;
            if share.target.saturating_add(share.length) > to.size()? {
                return Err(Error::Invalid {
                    what: "the range to deduplicate ends past the file",
                });
            }
            if !is_same(&mut from, to, &share)? {
                return Ok(false);
            }
            // Sharing inline content would save no extent.
            let (filesystem, target) = (to.filesystem, to.location);
            if !filesystem.lies_in_tree(source)? && !filesystem.lies_in_tree(target)? {
                to.share(&mut from, source, &share)?;
                to.write_back()?;
            }
            Ok(true)
        })
    }

    /// Copies a range of `source` to `target`, as `copy_file_range(2)` does: shares extents if
    /// possible, and writes the rest. Returns the number of copied bytes. The copied bytes are
    /// fewer than requested if the source ends, or if a file is removed after a part was copied.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::write_at`] does, also for the source, or with an error of
    /// reading its content; [`Error::Invalid`] for ranges that overlap in one file.
    pub fn copy_range(
        &self,
        source: Location,
        range: Range<FileOffset>,
        target: Location,
        target_offset: FileOffset,
    ) -> Result<ByteCount> {
        self.quotas()
            .with_current(|| self.copy_range_with(source, &range, target, target_offset, false))
    }

    /// Copies as [`copy_range`](Self::copy_range) does, for a caller that sets the target's times
    /// itself, as for [`write_cached_at`](Self::write_cached_at).
    ///
    /// # Errors
    /// Fails as [`copy_range`](Self::copy_range) does.
    pub fn copy_range_cached(
        &self,
        source: Location,
        range: Range<FileOffset>,
        target: Location,
        target_offset: FileOffset,
    ) -> Result<ByteCount> {
        self.quotas()
            .with_current(|| self.copy_range_with(source, &range, target, target_offset, true))
    }

    fn copy_range_with(
        &self,
        source: Location,
        range: &Range<FileOffset>,
        target: Location,
        target_offset: FileOffset,
        keeps_times: bool,
    ) -> Result<ByteCount> {
        let mut share = share_of(range, target_offset);
        let _steps = self.contents().begin_steps();
        let copied = self.contents().with_two(source, target, |mut from, to| {
            to.keeps_times = keeps_times;
            to.require_changeable()?;
            require_file(to, source)?;
            let source_size = size_of(&mut from, to)?;
            share.length = share.length.min(source_size.saturating_sub(share.source));
            if share.length == 0 {
                return Ok(0);
            }
            if from.is_none() && share.overlaps() {
                return Err(overlapping());
            }
            let whole = Share {
                length: if share.source.saturating_add(share.length) == source_size {
                    share.length
                } else {
                    to.align_down(share.length)
                },
                ..share
            };
            let mut done = 0;
            if whole.length > 0 && check(&whole, source_size, to, source).is_ok() {
                to.share(&mut from, source, &whole)?;
                to.touch();
                to.write_back()?;
                done = whole.length;
            }
            while done < share.length {
                let length = share.length.saturating_sub(done).min(PIECE_BYTES);
                match copy_piece(&mut from, to, &share, done..done.saturating_add(length)) {
                    // Another call removed a file after the first shared part became visible: this
                    // call counts as earlier.
                    Err(error) if done > 0 && is_of_gone_file(&error) => return Ok(done),
                    // As in Linux, a copy that fails later returns the length before the failure.
                    // The caller meets the error when it continues.
                    Err(_) if done > 0 => break,
                    copied => copied?,
                }
                done = done.saturating_add(length);
                if self.data().is_over_limit() && to.write_back().is_err() {
                    break;
                }
            }
            to.touch();
            Ok(done)
        })?;
        self.writeback().write_taken_in()?;
        Ok(ByteCount::new(copied))
    }
}

/// Copies a piece at an offset within the range.
fn copy_piece(
    source: &mut Option<&mut Content<'_>>,
    target: &mut Content<'_>,
    share: &Share,
    part: Range<u64>,
) -> Result<()> {
    let length = part.end.saturating_sub(part.start);
    let mut piece = vec![0; length.narrow::<usize>()];
    read(
        source,
        target,
        share.source.saturating_add(part.start),
        &mut piece,
    )?;
    let at = share.target.saturating_add(part.start);
    target.write(Source::CallAt(at), &piece).map(drop)
}

fn share_of(range: &Range<FileOffset>, target: FileOffset) -> Share {
    Share {
        source: range.start.get(),
        target: target.get(),
        length: range.end.get().saturating_sub(range.start.get()),
    }
}

const fn overlapping() -> Error {
    Error::Invalid {
        what: "the ranges overlap in one file",
    }
}

impl Share {
    const fn overlaps(&self) -> bool {
        self.source.abs_diff(self.target) < self.length
    }
}

fn size_of(source: &mut Option<&mut Content<'_>>, target: &mut Content<'_>) -> Result<u64> {
    match source {
        Some(source) => source.size(),
        None => target.size(),
    }
}

fn read(
    source: &mut Option<&mut Content<'_>>,
    target: &mut Content<'_>,
    at: u64,
    buffer: &mut [u8],
) -> Result<()> {
    match source {
        Some(source) => source.read(at, buffer),
        None => target.read(at, buffer),
    }
    .map(drop)
}

/// Returns an error for a source that has no content.
fn require_file(target: &Content<'_>, source: Location) -> Result<()> {
    let item = target
        .filesystem
        .read_under_lock(|operation| operation.inode(source))?;
    match item.kind() {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsADirectory { location: source }),
        _ => Err(Error::NotAFile { location: source }),
    }
}

/// Returns an error if the range cannot be shared.
fn check(share: &Share, source_size: u64, target: &mut Content<'_>, source: Location) -> Result<()> {
    let source_end = share.source.checked_add(share.length);
    let target_end = share.target.checked_add(share.length);
    let (Some(source_end), Some(target_end)) = (source_end, target_end) else {
        return Err(Error::Invalid {
            what: "the range ends past the largest file size",
        });
    };
    if share.length == 0 || source_end > source_size || target_end > FILE_BYTES_MAX {
        return Err(Error::Invalid {
            what: "the range to share is empty or ends past the file",
        });
    }
    if source == target.location && share.overlaps() {
        return Err(overlapping());
    }
    let is_aligned = |at: u64| target.align_down(at) == at;
    let ends_well = is_aligned(share.length) || source_end == source_size;
    if !is_aligned(share.source) || !is_aligned(share.target) || !ends_well {
        return Err(Error::Invalid {
            what: "the range to share is not aligned to sectors",
        });
    }
    if !is_aligned(share.length) && target_end < target.size()? {
        return Err(Error::Invalid {
            what: "the range to share ends in part of a sector before the end of the target",
        });
    }
    let location = target.location;
    target.filesystem.read_under_lock(|operation| {
        let (from, to) = (operation.inode(source)?, operation.inode(location)?);
        if (from.flags ^ to.flags).contains(InodeFlags::NODATASUM) {
            return Err(Error::Invalid {
                what: "files with and without checksums cannot share extents",
            });
        }
        Ok(())
    })
}

/// Returns whether both ranges have the same content.
fn is_same(source: &mut Option<&mut Content<'_>>, target: &mut Content<'_>, share: &Share) -> Result<bool> {
    let mut done = 0;
    while done < share.length {
        let length = share.length.saturating_sub(done).min(PIECE_BYTES);
        let length_usize = length.narrow::<usize>();
        let (mut one, mut other) = (vec![0; length_usize], vec![0; length_usize]);
        read(source, target, share.source.saturating_add(done), &mut one)?;
        target.read(share.target.saturating_add(done), &mut other)?;
        if one != other && !buttress_faults::on("dedupe-compares-nothing") {
            return Ok(false);
        }
        done = done.saturating_add(length);
    }
    Ok(true)
}

impl Content<'_> {
    /// Inserts the extents of a source file's range into this file. The inode item of the target
    /// gets a new size only at the next write-back of the file.
    fn share(&mut self, source: &mut Option<&mut Content<'_>>, from: Location, share: &Share) -> Result<()> {
        match source {
            Some(source) => source.write_back()?,
            None => self.write_back()?,
        }
        if self.filesystem.lies_in_tree(from)? {
            let mut content = vec![0; share.length.narrow::<usize>()];
            read(source, self, share.source, &mut content)?;
            return self.write(Source::CallAt(share.target), &content).map(drop);
        }
        let end = share.target.saturating_add(share.length);
        let sectors = share.target..self.align_up(end);
        // An inline extent of the target must not stay beside other extents.
        if share.target > 0 && self.size()? > 0 && self.size()? <= self.sector_bytes {
            self.reserve(self.sector_bytes)?;
            self.load_inline()?;
        }
        let _layout = self.file.layout.write();
        if buttress_faults::on("clone-forgets-dirty-data") {
            let forgotten = self.change_dirty(|pending| pending.remove(&sectors));
            self.forget(forgotten);
        }
        // If the files can share nothing, the range keeps its content.
        self.out_of_tree(Self::write_back)?;
        let mut at = 0;
        let length = sectors.end.saturating_sub(sectors.start);
        while at < length {
            at = self
                .filesystem
                .operate(Need::places(STEP_EXTENTS.saturating_mul(2)), |operation| {
                    let rest = Share {
                        source: share.source.saturating_add(at),
                        target: share.target.saturating_add(at),
                        length: length.saturating_sub(at),
                    };
                    self.require_still_there(operation)?;
                    operation.require_subvolume(from.subvolume)?;
                    operation.inode(from)?;
                    operation
                        .file_items()
                        .reach_range(self.location, &(rest.target..sectors.end))?;
                    let done = operation.file_items().share_step(from, self.location, &rest)?;
                    Ok(at.saturating_add(done))
                })?;
        }
        let size = self.size()?;
        self.set_size(size.max(end));
        Ok(())
    }
}

impl FileItems<'_, '_> {
    /// Shares the first extents of a range. Returns how many bytes of the range the call has
    /// shared.
    fn share_step(&mut self, source: Location, target: Location, share: &Share) -> Result<u64> {
        let mut done = 0_u64;
        for _ in 0..STEP_EXTENTS {
            if done >= share.length {
                break;
            }
            let at = share.source.saturating_add(done);
            let end = share.source.saturating_add(share.length);
            let stored = self
                .operation
                .extent_from(source, at)?
                .filter(|stored| stored.start < end);
            let (part, stored) = match stored {
                None => (at..end, None),
                Some(stored) if stored.start > at => (at..stored.start, None),
                Some(stored) => (at..stored.end.min(end), Some(stored)),
            };
            let length = part.end.saturating_sub(part.start);
            let place = share.target.saturating_add(done);
            let range = place..place.saturating_add(length);
            let gone = self.drop_range(target, &range)?;
            let mut come = 0;
            if let Some(stored) = stored.filter(|stored| stored.slice().is_some()) {
                let mut new = stored.part(&part);
                (new.start, new.end) = (range.start, range.end);
                self.insert_extent(target, &new)?;
                if let Some(disk) = new.disk()
                    && !buttress_faults::on("clone-adds-no-reference")
                {
                    let owner = new.owner(target.subvolume.tree(), target.inode);
                    self.operation.edit().core.add_data_reference(disk, owner);
                }
                come = new.counted_bytes();
                // Readers assume that a file without this flag, and with as many bytes as its size,
                // has no gaps.
                if matches!(new.extent.body, FileExtentBody::Preallocated(_)) {
                    self.operation
                        .change_inode(target, |item| item.flags.insert(InodeFlags::PREALLOC))?;
                }
            } else {
                self.fill_holes(target, &range)?;
            }
            self.count_bytes(target, come, gone)?;
            done = done.saturating_add(length);
        }
        Ok(done)
    }
}
