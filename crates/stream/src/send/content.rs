//! The content of files: which ranges the receiver has to get, and how it gets them.
//!
//! Of a new file, every range that holds data. Of a file of both snapshots, only what its extent items that
//! differ cover, and of that only where the two really use different bytes: an item may have been cut in two, or
//! merely be described anew. Each range goes out in the cheapest way that keeps what is shared shared: as a
//! clone, as a stored (compressed) extent, or as plain writes. What became a hole is punched (version 2) or
//! overwritten by zeros (version 1, which has nothing else); a hole up to the end of the file is cut off.
//!
//! Preallocated ranges are holes here, as they are to the kernel's send.

use crate::command::Command;
use crate::send::clones::{Clones, Source};
use crate::send::error::Result;
use crate::send::items::Difference;
use crate::send::names::Names;
use crate::send::output::{Output, StoredWrite};
use crate::send::snapshot::Snapshot;
use buttress_format::send::EncodedCompression;
use buttress_format::{ByteCount, Compression, FileOffset, InodeItem, InodeNumber};
use buttress_fs::{
    FileExtents, FileRange, FileRangeBuilder, InlineContent, Metadata, RangeKind, StoredReader,
};
use core::ops::Range;
use std::sync::Arc;

/// How many ranges are read as one run: what is kept of a file's map at a time.
const RUN_RANGES_MAX: usize = 128;

/// What `fallocate(2)` calls punching a hole without changing the size.
const PUNCH_HOLE: u32 = 0x2 | 0x1;

/// Zeros for ranges that became holes.
static ZEROS: [u8; 48 << 10] = [0; 48 << 10];

/// The file whose content is sent now.
#[derive(Debug)]
pub(crate) struct Content {
    number: InodeNumber,
    path: Arc<[u8]>,
    metadata: Metadata,
    size: FileOffset,
    /// For a file of both snapshots, its inode in the parent.
    old: Option<Metadata>,
    builder: FileRangeBuilder,
    /// Ranges of data that lie side by side, to be read at once.
    run: Vec<FileRange>,
    /// Up to where the receiver's file reaches.
    receiver_size: FileOffset,
    /// The range that items which differ cover, as far as they are known to join.
    dirty: Option<Range<FileOffset>>,
    /// The receiver's last sector where it ends inside it and the file grows: what both snapshots have there on
    /// disk need not be what the receiver has, as it knows nothing of what lies behind the end of a file.
    spoilt: Option<Range<FileOffset>>,
    spoilt_is_due: bool,
    /// Whether any of its data was sent.
    wrote: bool,
}

/// What all files share.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) new: &'a Snapshot,
    pub(crate) old: Option<&'a Snapshot>,
    pub(crate) clones: Clones<'a>,
    pub(crate) stored: StoredReader,
    pub(crate) compressed_data: bool,
}

impl Content {
    /// The content of the file `number`, which the receiver has at `path`: empty, or as `old` has it.
    pub(crate) fn new(
        sources: &Sources<'_>,
        number: InodeNumber,
        path: Arc<[u8]>,
        old: Option<&InodeItem>,
        new: &InodeItem,
        output: &mut Output<'_>,
    ) -> Result<Self> {
        let sector_bytes = sources.new.filesystem().sector_bytes();
        let location = sources.new.location(number);
        let size = FileOffset::new(new.size.get());
        let mut receiver_size = old.map_or(FileOffset::MIN, |old| FileOffset::new(old.size.get()));
        let cut = size < receiver_size;
        if cut {
            // First of all, so that what is cloned to the end of the file ends there on the receiver too.
            output.command(&Command::Truncate {
                path: &path,
                size: new.size,
            })?;
            receiver_size = size;
        }
        let last_sector = receiver_size.align_down(u64::from(sector_bytes));
        let grows_from_inside = old.is_some() && receiver_size < size && last_sector < receiver_size;
        let old = old.map(|item| {
            let snapshot = sources.old.unwrap_or(sources.new);
            Metadata::from_item(snapshot.location(number), item, sector_bytes)
        });
        Ok(Self {
            number,
            path,
            metadata: Metadata::from_item(location, new, sector_bytes),
            size,
            old,
            builder: FileRangeBuilder::new(location, sector_bytes),
            run: Vec::new(),
            receiver_size,
            dirty: None,
            spoilt: grows_from_inside.then(|| last_sector..align_up(receiver_size, u64::from(sector_bytes))),
            spoilt_is_due: false,
            wrote: cut,
        })
    }

    /// An extent item that differs.
    pub(crate) fn extent(
        &mut self,
        difference: &Difference<'_>,
        sources: &mut Sources<'_>,
        names: &mut Names<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let Some(old) = &self.old else {
            let Some(data) = difference.new else { return Ok(()) };
            let range = self.builder.range(&difference.key, data)?;
            return self.range(range, sources, names, output);
        };
        let mut covered: Option<Range<FileOffset>> = None;
        let sector_bytes = sources.new.filesystem().sector_bytes();
        let sides = [
            (difference.old, old.location),
            (difference.new, self.metadata.location),
        ];
        for (data, location) in sides {
            let Some(data) = data else { continue };
            let range = FileRangeBuilder::new(location, sector_bytes).range(&difference.key, data)?;
            let end = covered.map_or(range.end(), |covered| covered.end.max(range.end()));
            covered = Some(range.offset..end);
        }
        let Some(covered) = covered else { return Ok(()) };
        if let Some(spoilt) = self.spoilt.clone()
            && !self.spoilt_is_due
            && spoilt.start <= covered.start
        {
            self.spoilt_is_due = true;
            self.add_dirty(spoilt, sources, names, output)?;
        }
        self.add_dirty(covered, sources, names, output)
    }

    /// Takes note of a range to compare, and compares the one before it if they do not join. In order of offset.
    fn add_dirty(
        &mut self,
        range: Range<FileOffset>,
        sources: &mut Sources<'_>,
        names: &mut Names<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        match &mut self.dirty {
            Some(dirty) if range.start <= dirty.end => dirty.end = dirty.end.max(range.end),
            _ => {
                self.compare_dirty(sources, names, output)?;
                self.dirty = Some(range);
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
    }

    /// Sends what the two snapshots do not share of the range that differs.
    fn compare_dirty(
        &mut self,
        sources: &mut Sources<'_>,
        names: &mut Names<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let (Some(dirty), Some(old_metadata)) = (self.dirty.take(), self.old.clone()) else {
            return Ok(());
        };
        let sector_bytes = u64::from(sources.new.filesystem().sector_bytes());
        let same_volume = sources.old.is_some_and(|old| old.shares_volume_with(sources.new));
        let old_snapshot = sources.old.unwrap_or(sources.new);
        let mut old = Map::new(
            old_snapshot
                .filesystem()
                .open_known(old_metadata, None)?
                .extents_from(dirty.start)?,
        );
        let mut new = Map::new(
            sources
                .new
                .filesystem()
                .open_known(self.metadata.clone(), None)?
                .extents_from(dirty.start)?,
        );
        let mut position = dirty.start;
        let end = dirty.end.min(self.size);
        // The part of a range that differs, as far as it is known: what the old file had in pieces goes out whole.
        let mut changed: Option<FileRange> = None;
        while position < end {
            let Some(is) = new.at(position)? else { break };
            let was = old.at(position)?;
            // A hole up to the end of the file ends inside a sector, items never do.
            let was_end = was
                .as_ref()
                .map_or(FileOffset::MAX, |was| align_up(was.end(), sector_bytes));
            let mut stop = was_end.min(is.end());
            let spoilt = self
                .spoilt
                .as_ref()
                .is_some_and(|spoilt| spoilt.start <= position);
            if let Some(range) = &self.spoilt
                && !spoilt
            {
                stop = stop.min(range.start);
            }
            // Content inside the tree is one piece.
            let whole = matches!(is.kind, RangeKind::Inline(_));
            let stop = if whole { is.end() } else { stop.min(end) };
            let piece = part_of(&is, position, stop);
            let was_zero = was.as_ref().is_none_or(FileRange::is_zero) || position >= self.receiver_size;
            let same = same_volume
                && !spoilt
                && was.is_some_and(|was| same_bytes(&part_of(&was, position, stop), &piece));
            if !is.is_zero() && !same {
                match &mut changed {
                    Some(before) if before.end() == position && continues(before, &piece) => {
                        before.length = before.length.saturating_add(piece.length);
                    }
                    _ => {
                        if let Some(before) = changed.replace(piece) {
                            self.range(before, sources, names, output)?;
                        }
                    }
                }
            } else if let Some(before) = changed.take() {
                self.range(before, sources, names, output)?;
            }
            if is.is_zero() && (!was_zero || (spoilt && position < self.receiver_size)) {
                self.flush_run(sources, output)?;
                // All of the hole, where the receiver's file ends in it.
                let to_its_end = is.end() >= self.receiver_size;
                let zero_end = if to_its_end { is.end() } else { stop };
                self.zero(position..zero_end, output)?;
            }
            position = stop;
        }
        match changed {
            Some(before) => self.range(before, sources, names, output),
            None => Ok(()),
        }
    }

    /// Makes a range of the receiver's file read as zeros. With nothing else behind it, it is cut off: the file
    /// gets its size back later.
    fn zero(&mut self, range: Range<FileOffset>, output: &mut Output<'_>) -> Result<()> {
        let end = range.end.min(self.receiver_size);
        let Some(length) = end
            .checked_distance_from(range.start)
            .filter(|length| *length != ByteCount::ZERO)
        else {
            return Ok(());
        };
        self.wrote = true;
        if output.no_data() {
            return self.update_extent(range.start, length, output);
        }
        if range.end >= self.receiver_size {
            output.command(&Command::Truncate {
                path: &self.path,
                size: ByteCount::new(range.start.get()),
            })?;
            self.receiver_size = range.start;
            return Ok(());
        }
        if output.is_version_2() {
            return output.command(&Command::Fallocate {
                path: &self.path,
                mode: PUNCH_HOLE,
                offset: range.start,
                length,
            });
        }
        let mut position = range.start;
        while let Some(left) = end
            .checked_distance_from(position)
            .filter(|left| *left != ByteCount::ZERO)
        {
            let bytes = left.to_usize().unwrap_or(usize::MAX).min(ZEROS.len());
            output.command(&Command::Write {
                path: &self.path,
                offset: position,
                data: ZEROS.get(..bytes).unwrap_or_default(),
            })?;
            position = position.saturating_add(ByteCount::of(bytes));
        }
        Ok(())
    }

    /// Sends a range of the new file, if it holds anything.
    fn range(
        &mut self,
        range: FileRange,
        sources: &mut Sources<'_>,
        names: &mut Names<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        if range.is_zero() || range.offset >= self.size {
            return Ok(());
        }
        let file_bytes = self.metadata.size;
        if output.no_data() {
            let end = range.end().min(self.size);
            let length = end.checked_distance_from(range.offset).unwrap_or(ByteCount::ZERO);
            return self.update_extent(range.offset, length, output);
        }
        if let RangeKind::Inline(inline) = &range.kind {
            self.flush_run(sources, output)?;
            return self.inline(range.offset, inline, sources, output);
        }
        self.cloned_or_data(&range, sources, names, output)?;
        sources.clones.remember(self.number, &range, file_bytes);
        Ok(())
    }

    fn update_extent(
        &mut self,
        offset: FileOffset,
        length: ByteCount,
        output: &mut Output<'_>,
    ) -> Result<()> {
        self.written_to(offset.saturating_add(length));
        output.command(&Command::UpdateExtent {
            path: &self.path,
            offset,
            length,
        })
    }

    fn written_to(&mut self, end: FileOffset) {
        self.wrote = true;
        self.receiver_size = self.receiver_size.max(end.min(self.size));
    }

    /// Sends a range part by part: as clones where the receiver has the extent already, else as data.
    fn cloned_or_data(
        &mut self,
        range: &FileRange,
        sources: &mut Sources<'_>,
        names: &mut Names<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let candidates = sources.clones.candidates(range)?;
        let mut position = range.offset;
        let end = range.end().min(self.size);
        while position < end {
            let rest = part_of(range, position, range.end());
            let Some(source) = sources.clones.choose(&candidates, &rest, self.metadata.size) else {
                return self.data(rest, sources, output);
            };
            if position < source.offset {
                self.data(part_of(range, position, source.offset), sources, output)?;
            }
            self.clone_from(&source, sources, names, output)?;
            position = source.offset.saturating_add(source.length);
        }
        Ok(())
    }

    fn clone_from(
        &mut self,
        source: &Source,
        sources: &Sources<'_>,
        names: &mut Names<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        self.flush_run(sources, output)?;
        let from = source.snapshot.and_then(|number| sources.clones.snapshot(number));
        let (of, source_path) = match from {
            Some(snapshot) => {
                let paths = snapshot
                    .filesystem()
                    .inode_paths(snapshot.location(source.inode))?;
                (snapshot, paths.into_iter().next().unwrap_or_default())
            }
            None if source.inode == self.number => (sources.new, self.path.to_vec()),
            None => (sources.new, names.settled_path(source.inode)?),
        };
        self.written_to(source.offset.saturating_add(source.length));
        output.command(&Command::Clone {
            offset: source.offset,
            length: source.length,
            path: &self.path,
            source_uuid: of.stream_uuid(),
            source_transid: of.stream_transid(),
            source_path: &source_path,
            source_offset: source.source_offset,
        })
    }

    /// Sends a range of data as such.
    fn data(&mut self, range: FileRange, sources: &mut Sources<'_>, output: &mut Output<'_>) -> Result<()> {
        if range.offset >= self.size || range.length == ByteCount::ZERO {
            return Ok(());
        }
        if let RangeKind::Data(extent) = &range.kind
            && sources.compressed_data
            && extent.compression != Compression::None
            && extent.disk_bytes <= range.length
        {
            self.flush_run(sources, output)?;
            return self.stored(&range, sources, output);
        }
        let follows = self.run.last().is_none_or(|last| last.end() == range.offset);
        if !follows || self.run.len() >= RUN_RANGES_MAX {
            self.flush_run(sources, output)?;
        }
        self.run.push(range);
        Ok(())
    }

    /// Sends a compressed extent as it is stored.
    fn stored(
        &mut self,
        range: &FileRange,
        sources: &mut Sources<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let RangeKind::Data(extent) = &range.kind else {
            return Ok(());
        };
        let end = range.end().min(self.size);
        let file_bytes = end.checked_distance_from(range.offset).unwrap_or(ByteCount::ZERO);
        let write = StoredWrite {
            offset: range.offset,
            file_bytes,
            unencoded_bytes: extent.ram_bytes,
            unencoded_offset: extent.offset,
            compression: encoding(extent.compression, sources.new),
        };
        self.written_to(end);
        let bytes = extent.disk_bytes.to_usize().unwrap_or(usize::MAX);
        let metadata = &self.metadata;
        output.stored(Arc::clone(&self.path), write, bytes, || {
            Ok(sources.stored.start(metadata, range.offset, extent)?)
        })
    }

    /// Sends content that lies in the tree.
    fn inline(
        &mut self,
        offset: FileOffset,
        inline: &InlineContent,
        sources: &Sources<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let content_end = offset.saturating_add(inline.ram_bytes).min(self.size);
        // Behind the content, to the end of its sector, are zeros; the receiver may have other bytes there.
        let sector_bytes = u64::from(sources.new.filesystem().sector_bytes());
        let end = if content_end < self.receiver_size {
            align_up(content_end, sector_bytes).min(self.size)
        } else {
            content_end
        };
        let padded = end > content_end;
        let file_bytes = content_end
            .checked_distance_from(offset)
            .unwrap_or(ByteCount::ZERO);
        self.written_to(end);
        if inline.compression == Compression::None && !padded {
            let wanted = file_bytes
                .to_usize()
                .unwrap_or(usize::MAX)
                .min(inline.stored.len());
            return self.write(offset, inline.stored.get(..wanted).unwrap_or_default(), output);
        }
        let encoded = sources.compressed_data && inline.compression != Compression::None && !padded;
        if encoded && ByteCount::of(inline.stored.len()) <= file_bytes {
            return output.command(&Command::EncodedWrite {
                path: &self.path,
                offset,
                unencoded_file_bytes: file_bytes,
                unencoded_bytes: inline.ram_bytes,
                unencoded_offset: ByteCount::ZERO,
                compression: Some(encoding(inline.compression, sources.new)),
                encryption: None,
                data: &inline.stored,
            });
        }
        let known = vec![FileRange {
            offset,
            length: file_bytes,
            generation: None,
            kind: RangeKind::Inline(inline.clone()),
        }];
        let file = sources
            .new
            .filesystem()
            .open_known(self.metadata.clone(), Some(known))?;
        output.content(Arc::clone(&self.path), &file, offset..end)
    }

    fn write(&mut self, offset: FileOffset, data: &[u8], output: &mut Output<'_>) -> Result<()> {
        let mut position = offset;
        for data in data.chunks(output.write_bytes_max()) {
            output.command(&Command::Write {
                path: &self.path,
                offset: position,
                data,
            })?;
            position = position.saturating_add(ByteCount::of(data.len()));
        }
        Ok(())
    }

    /// Puts the run under way.
    fn flush_run(&mut self, sources: &Sources<'_>, output: &mut Output<'_>) -> Result<()> {
        let run = core::mem::take(&mut self.run);
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(());
        };
        let wanted = first.offset..last.end().min(self.size);
        self.written_to(wanted.end);
        let file = sources
            .new
            .filesystem()
            .open_known(self.metadata.clone(), Some(run))?;
        output.content(Arc::clone(&self.path), &file, wanted)
    }

    /// The file has no more items that differ. Returns whether any content was sent.
    pub(crate) fn finish(
        mut self,
        sources: &mut Sources<'_>,
        names: &mut Names<'_>,
        output: &mut Output<'_>,
    ) -> Result<bool> {
        if let Some(spoilt) = self.spoilt.clone()
            && !self.spoilt_is_due
        {
            self.add_dirty(spoilt, sources, names, output)?;
        }
        self.compare_dirty(sources, names, output)?;
        self.flush_run(sources, output)?;
        if self.receiver_size != self.size {
            self.wrote = true;
            output.command(&Command::Truncate {
                path: &self.path,
                size: self.metadata.size,
            })?;
        }
        Ok(self.wrote)
    }
}

/// A map of a file that is asked for one place after the other. Holes and preallocated ranges side by side are one
/// hole here.
struct Map {
    ranges: FileExtents,
    current: Option<FileRange>,
    /// The range after the current one, where that had to be known.
    following: Option<FileRange>,
}

impl Map {
    const fn new(ranges: FileExtents) -> Self {
        Self {
            ranges,
            current: None,
            following: None,
        }
    }

    fn next(&mut self) -> Result<Option<FileRange>> {
        match self.following.take() {
            Some(range) => Ok(Some(range)),
            None => Ok(self.ranges.next().transpose()?),
        }
    }

    /// The range that covers `position`, which never goes back; `None` after the last one.
    fn at(&mut self, position: FileOffset) -> Result<Option<FileRange>> {
        loop {
            if let Some(range) = &self.current
                && position < range.end()
            {
                return Ok(Some(range.clone()));
            }
            let Some(mut range) = self.next()? else {
                self.current = None;
                return Ok(None);
            };
            if range.is_zero() {
                range.kind = RangeKind::Hole;
                while let Some(following) = self.next()? {
                    if !following.is_zero() || following.offset != range.end() {
                        self.following = Some(following);
                        break;
                    }
                    range.length = range.length.saturating_add(following.length);
                }
            }
            self.current = Some(range);
        }
    }
}

/// The part `[from, to)` of a range, cut off at the range's ends.
fn part_of(range: &FileRange, from: FileOffset, to: FileOffset) -> FileRange {
    let from = from.max(range.offset);
    let to = to.min(range.end());
    let length = to.checked_distance_from(from).unwrap_or(ByteCount::ZERO);
    let skipped = from
        .checked_distance_from(range.offset)
        .unwrap_or(ByteCount::ZERO);
    let mut part = range.clone();
    part.offset = from;
    part.length = length;
    if let RangeKind::Data(extent) | RangeKind::Preallocated(extent) = &mut part.kind {
        extent.offset = extent.offset.saturating_add(skipped);
    }
    part
}

/// The end of the sector that `offset` lies in, or itself where one ends there.
fn align_up(offset: FileOffset, sector_bytes: u64) -> FileOffset {
    let length = ByteCount::new(offset.get()).checked_align_up(sector_bytes);
    length.map_or(offset, |length| FileOffset::new(length.get()))
}

/// Whether a part of a range of data goes on where the part before it ended.
fn continues(before: &FileRange, piece: &FileRange) -> bool {
    match (&before.kind, &piece.kind) {
        (RangeKind::Data(a), RangeKind::Data(b)) => {
            a.logical == b.logical && a.offset.saturating_add(before.length) == b.offset
        }
        _ => false,
    }
}

/// Whether two ranges at the same place of a file of one volume use the same bytes of the same extent.
fn same_bytes(a: &FileRange, b: &FileRange) -> bool {
    match (&a.kind, &b.kind) {
        (RangeKind::Data(a), RangeKind::Data(b)) => {
            a.logical == b.logical && a.offset == b.offset && a.compression == b.compression
        }
        (RangeKind::Inline(x), RangeKind::Inline(y)) => {
            x.stored == y.stored && x.compression == y.compression && x.ram_bytes == y.ram_bytes
        }
        _ => false,
    }
}

/// How a stream calls a compression.
fn encoding(compression: Compression, of: &Snapshot) -> u32 {
    let encoded = match compression {
        Compression::None => EncodedCompression::None,
        Compression::Zlib => EncodedCompression::Zlib,
        Compression::Zstd => EncodedCompression::Zstd,
        Compression::Lzo => {
            EncodedCompression::lzo(of.filesystem().sector_bytes()).unwrap_or(EncodedCompression::None)
        }
    };
    encoded.to_raw()
}
