//! The content of files: which ranges the receiver has to get, and how it gets them.
//!
//! Of a new file, every range that holds data. Of a file of both snapshots, only what its extent items that
//! differ cover, and of that only where the two really use different bytes: an item may have been cut in two, or
//! merely be described anew. Each range goes out in the cheapest way that keeps what is shared shared: as a
//! clone, as a stored (compressed) extent, or as plain writes. What became a hole is punched (version 2) or
//! overwritten by zeros (version 1, which has nothing else); a hole up to the end of the file is cut off.
//!
//! Preallocated ranges are holes here. Only version 1 has a use for them: where the receiver has the same extent in
//! another file, it reads as zeros there, and cloning it is cheaper than writing zeros. The kernel does so too.
//!
//! `compare` finds what differs, over two `map`s; `transmit` has the ways to send a range.

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

/// The file whose content is sent now.
#[derive(Debug)]
pub(crate) struct Content {
    number: InodeNumber,
    path: Arc<[u8]>,
    metadata: Metadata,
    size: FileOffset,
    /// For a file of both snapshots, its inode in the parent.
    old: Option<Metadata>,
    /// Ranges of data that lie side by side, to be read at once.
    run: Vec<FileRange>,
    /// Up to where the receiver's file reaches.
    receiver_size: FileOffset,
    /// The range that items which differ cover, as far as they are known to join.
    dirty: Option<Range<FileOffset>>,
    /// What those items said.
    known: Known,
    /// The receiver's last sector, where it ends inside it and the file grows. Both snapshots may have the same bytes
    /// behind that end on disk, while a receiver knows nothing of what lies behind the end of a file; and growing from
    /// there makes a block of zeros of a hole.
    spoilt: Option<Range<FileOffset>>,
    /// Where the receiver's file ended when it was begun.
    old_end: FileOffset,
    spoilt_is_due: bool,
    /// Whether any of its data was sent.
    wrote: bool,
}

/// What all files share.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) new: &'a Snapshot,
    pub(crate) old: Option<&'a Snapshot>,
    /// Whether addresses mean the same in both.
    pub(crate) one_volume: bool,
    pub(crate) clones: Clones<'a>,
    pub(crate) stored: StoredReader,
    pub(crate) compressed_data: bool,
}

/// What content needs on its way out.
pub(crate) struct Stream<'s, 'a> {
    pub(crate) sources: &'s mut Sources<'a>,
    pub(crate) names: &'s mut Names<'a>,
    pub(crate) output: &'s mut Output<'a>,
}

impl Stream<'_, '_> {
    /// Whether a hole is best cloned: where it could only be written as zeros else.
    fn clones_holes(&self) -> bool {
        !self.output.is_version_2() && !self.output.no_data()
    }

    /// The extent of a range that goes out as it is stored: where that is no longer than what the file of `size` has
    /// of it.
    fn stored_extent<'r>(&self, range: &'r FileRange, size: FileOffset) -> Option<&'r DiskExtent> {
        let RangeKind::Data(extent) = &range.kind else {
            return None;
        };
        let bytes = range.end().min(size).checked_distance_from(range.offset)?;
        let wanted = self.sources.compressed_data && extent.compression != Compression::None;
        (wanted && extent.disk_bytes <= bytes).then_some(extent)
    }

    /// Takes note of a preallocated range that reads as zeros on the receiver, where that is of use.
    fn remember_preallocated(&mut self, inode: InodeNumber, range: &FileRange, file_bytes: ByteCount) {
        if matches!(range.kind, RangeKind::Preallocated(_)) && self.clones_holes() {
            self.sources.clones.remember(inode, range, file_bytes);
        }
    }
}

impl Content {
    /// The content of the file `number`, which the receiver has at `path`: empty, or as `old` has it.
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
            // First of all, so that what is cloned to the end of the file ends there on the receiver too.
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

    /// An extent item that differs.
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

    /// Takes note of a range to compare, and compares the one before it if they do not join. In order of offset.
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

    /// All of a file's content, in place of the items that differ: where addresses say nothing.
    pub(crate) fn everything(&mut self) {
        let end = self
            .old
            .as_ref()
            .map_or(self.size, |old| self.size.max(FileOffset::new(old.size.get())));
        self.dirty = Some(FileOffset::MIN..end);
        self.known.spoil();
    }

    /// The file has no more items that differ. Returns whether any content was sent.
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
