//! The content of files: the ranges that the receiver needs, and the commands for them.
//!
//! A new file needs every range with data. A file of both snapshots needs only the ranges of extent
//! items that differ, and only where the two files really use different bytes: an extent item may
//! have been split, or rewritten with the same meaning. Each range takes the cheapest form that
//! preserves sharing: a clone, a stored (compressed) extent, or plain writes. New holes are punched
//! (version 2) or overwritten with zeros (version 1 cannot punch). A hole up to the end of the file
//! is truncated.
//!
//! Preallocated ranges count as holes in this module. Only version 1 uses them: if the receiver has
//! the same extent in another file, the range reads as zeros there, and cloning it is cheaper than
//! writing zeros. The kernel's send does the same.
//!
//! `compare` finds the differences with two `map`s; `transmit` sends a range.

mod compare;
mod map;
mod transmit;

use crate::command::Command;
use crate::send::clones::Clones;
use crate::send::error::Result;
use crate::send::items::ExtentChange;
use crate::send::names::Names;
use crate::send::output::Output;
use crate::send::snapshot::Snapshot;
use buttress_format::{ByteCount, Compression, FileOffset, InodeItem, InodeNumber};
use buttress_fs::{DiskExtent, FileRange, Metadata, RangeKind, StoredReader};
use core::ops::Range;
use map::{Known, align_up};
use std::sync::Arc;

/// State of the file that is being sent.
#[derive(Debug)]
pub(crate) struct Content {
    number: InodeNumber,
    path: Arc<[u8]>,
    metadata: Metadata,
    size: FileOffset,
    /// Inode of the file in the parent, for a file of both snapshots.
    old: Option<Metadata>,
    /// Adjacent ranges of data, to be read together.
    run: Vec<FileRange>,
    /// Size of the receiver's file so far.
    receiver_size: FileOffset,
    /// Range of the file that adjacent differing items cover.
    dirty: Option<Range<FileOffset>>,
    /// Ranges of the file that the differing items describe.
    known: Known,
    /// The receiver's last sector, if its file ends inside this sector and grows. Both snapshots
    /// may have the same bytes on disk after the old end, but a receiver never gets bytes after the
    /// end of a file. Growing the file also turns a hole in this sector into a block of zeros.
    spoilt: Option<Range<FileOffset>>,
    /// Initial end of the receiver's file.
    old_end: FileOffset,
    spoilt_is_due: bool,
    /// True if any data of the file was sent.
    wrote: bool,
}

/// State that all files of a send share.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) new: &'a Snapshot,
    pub(crate) old: Option<&'a Snapshot>,
    /// True if both snapshots are in one volume, so that extent addresses are comparable.
    pub(crate) one_volume: bool,
    pub(crate) clones: Clones<'a>,
    pub(crate) stored: StoredReader,
    pub(crate) compressed_data: bool,
}

/// Output and sources for content.
pub(crate) struct Stream<'s, 'a> {
    pub(crate) sources: &'s mut Sources<'a>,
    pub(crate) names: &'s mut Names<'a>,
    pub(crate) output: &'s mut Output<'a>,
}

impl Stream<'_, '_> {
    /// Returns whether a hole should be cloned, because the stream could otherwise only write
    /// zeros.
    fn clones_holes(&self) -> bool {
        !self.output.is_version_2() && !self.output.no_data()
    }

    /// Returns the extent of a range that should go out in stored form: if it is no longer than the
    /// range's bytes within the file of `size`.
    fn stored_extent<'r>(&self, range: &'r FileRange, size: FileOffset) -> Option<&'r DiskExtent> {
        let RangeKind::Data(extent) = &range.kind else {
            return None;
        };
        let bytes = range.end().min(size).checked_distance_from(range.offset)?;
        let wanted = self.sources.compressed_data && extent.compression != Compression::None;
        (wanted && extent.disk_bytes <= bytes).then_some(extent)
    }

    /// Remembers a preallocated range that reads as zeros on the receiver, if such ranges are
    /// useful.
    fn remember_preallocated(&mut self, inode: InodeNumber, range: &FileRange, file_bytes: ByteCount) {
        if matches!(range.kind, RangeKind::Preallocated(_)) && self.clones_holes() {
            self.sources.clones.remember(inode, range, file_bytes);
        }
    }
}

impl Content {
    /// Begins the content of the file `number`. The receiver has the file at `path`, either empty
    /// or with the content of `old`.
    pub(crate) fn new(
        number: InodeNumber,
        path: Arc<[u8]>,
        old: Option<&InodeItem>,
        new: &InodeItem,
        stream: &mut Stream<'_, '_>,
    ) -> Result<Self> {
        let sector_bytes = stream.sources.new.filesystem().sector_bytes();
        let location = stream.sources.new.location(number);
        let size = FileOffset::new(new.size.get());
        let mut receiver_size = old.map_or(FileOffset::MIN, |old| FileOffset::new(old.size.get()));
        let cut = size < receiver_size;
        if cut {
            // Truncate first, so that clones up to the end of the file also end at the receiver's
            // end of file.
            stream.output.command(&Command::Truncate {
                path: &path,
                size: new.size,
            })?;
            receiver_size = size;
        }
        let last_sector = receiver_size.align_down(u64::from(sector_bytes));
        let grows_from_inside = old.is_some() && receiver_size < size && last_sector < receiver_size;
        let old = old.map(|item| {
            let snapshot = stream.sources.old.unwrap_or(stream.sources.new);
            Metadata::from_item(snapshot.location(number), item, sector_bytes)
        });
        Ok(Self {
            number,
            path,
            metadata: Metadata::from_item(location, new, sector_bytes),
            size,
            old,
            run: Vec::new(),
            receiver_size,
            dirty: None,
            known: Known::default(),
            spoilt: grows_from_inside.then(|| last_sector..align_up(receiver_size, u64::from(sector_bytes))),
            old_end: receiver_size,
            spoilt_is_due: false,
            wrote: cut,
        })
    }

    /// Processes an extent item that differs.
    pub(crate) fn extent(&mut self, change: ExtentChange, stream: &mut Stream<'_, '_>) -> Result<()> {
        let ExtentChange { old, new } = change;
        if self.old.is_none() {
            return new.map_or(Ok(()), |range| self.range(range, stream));
        }
        let covered = match (&old, &new) {
            (None, None) => return Ok(()),
            (Some(range), None) | (None, Some(range)) => range.offset..range.end(),
            (Some(old), Some(new)) => new.offset..old.end().max(new.end()),
        };
        if let Some(spoilt) = self.spoilt.clone()
            && !self.spoilt_is_due
            && spoilt.start <= covered.start
        {
            self.spoilt_is_due = true;
            self.add_dirty(spoilt, stream)?;
            self.known.spoil();
        }
        self.add_dirty(covered, stream)?;
        self.known.add(old, new);
        Ok(())
    }

    /// Adds a range to compare, in offset order. If the range is not adjacent to the previous
    /// range, this function compares the previous range first.
    fn add_dirty(&mut self, range: Range<FileOffset>, stream: &mut Stream<'_, '_>) -> Result<()> {
        match &mut self.dirty {
            Some(dirty) if range.start <= dirty.end => dirty.end = dirty.end.max(range.end),
            _ => {
                self.compare_dirty(stream)?;
                self.dirty = Some(range);
                self.known = Known::default();
            }
        }
        Ok(())
    }

    /// Compares the whole file instead of the differing items, because extent addresses are not
    /// comparable.
    pub(crate) fn everything(&mut self) {
        let end = self
            .old
            .as_ref()
            .map_or(self.size, |old| self.size.max(FileOffset::new(old.size.get())));
        self.dirty = Some(FileOffset::MIN..end);
        self.known.spoil();
    }

    /// Ends the file's differing items. Returns whether any content was sent.
    pub(crate) fn finish(mut self, stream: &mut Stream<'_, '_>) -> Result<bool> {
        if let Some(spoilt) = self.spoilt.clone()
            && !self.spoilt_is_due
        {
            self.add_dirty(spoilt, stream)?;
            self.known.spoil();
        }
        self.compare_dirty(stream)?;
        self.flush_run(stream)?;
        if self.receiver_size != self.size {
            self.wrote = true;
            stream.output.command(&Command::Truncate {
                path: &self.path,
                size: self.metadata.size,
            })?;
        }
        Ok(self.wrote)
    }
}
