//! Commands for file ranges: clones, stored extents, inline content, writes, holes.

use crate::command::Command;
use crate::send::clones::{Candidate, Source};
use crate::send::content::map::{align_up, part_of};
use crate::send::content::{Content, Stream};
use crate::send::error::Result;
use crate::send::output::StoredWrite;
use crate::send::snapshot::Snapshot;
use buttress_format::send::EncodedCompression;
use buttress_format::{ByteCount, Compression, FileOffset};
use buttress_fs::{Content as Chunk, FileRange, InlineContent, RangeKind};
use core::ops::Range;
use std::sync::Arc;

/// Largest number of ranges in one run, which bounds the memory for a file's map.
const RUN_RANGES_MAX: usize = 128;

/// Mode of fallocate(2) that punches a hole and keeps the file size.
const PUNCH_HOLE: u32 = 0x2 | 0x1;

/// Zeros to overwrite new holes.
static ZEROS: [u8; 48 << 10] = [0; 48 << 10];

impl Content {
    /// Makes a range of the receiver's file read as zeros. If no data follows the range, it
    /// truncates the file, which gets its size back later.
    pub(super) fn zero(&mut self, range: Range<FileOffset>, stream: &mut Stream<'_, '_>) -> Result<()> {
        if buttress_faults::on("send-holes-unsent") {
            return Ok(());
        }
        let end = range.end.min(self.receiver_size);
        let Some(length) = end
            .checked_distance_from(range.start)
            .filter(|length| *length != ByteCount::ZERO)
        else {
            return Ok(());
        };
        self.flush_run(stream)?;
        self.wrote = true;
        if stream.output.no_data() {
            return self.update_extent(range.start, length, stream);
        }
        if range.end >= self.receiver_size {
            stream.output.command(&Command::Truncate {
                path: &self.path,
                size: ByteCount::new(range.start.get()),
            })?;
            self.receiver_size = range.start;
            return Ok(());
        }
        if stream.output.is_version_2() {
            return stream.output.command(&Command::Fallocate {
                path: &self.path,
                mode: PUNCH_HOLE,
                offset: range.start,
                length,
            });
        }
        self.write_zeros(range.start..end, stream)
    }

    fn write_zeros(&self, range: Range<FileOffset>, stream: &mut Stream<'_, '_>) -> Result<()> {
        let mut position = range.start;
        while let Some(left) = range
            .end
            .checked_distance_from(position)
            .filter(|left| *left != ByteCount::ZERO)
        {
            let bytes = left.at_most(ZEROS.len());
            stream.output.command(&Command::Write {
                path: &self.path,
                offset: position,
                // Clamp: at most as many were taken.
                data: ZEROS.get(..bytes).unwrap_or_default(),
            })?;
            position = position.saturating_add(ByteCount::of(bytes));
        }
        Ok(())
    }

    /// Makes a preallocated range of the receiver's file read as zeros: by clones if the receiver
    /// has the extent already, else by writing zeros.
    pub(super) fn preallocated(&mut self, range: &FileRange, stream: &mut Stream<'_, '_>) -> Result<()> {
        self.part_by_part(range, stream, |content, part, stream| {
            content.zero(part.offset..part.end(), stream)
        })?;
        stream
            .sources
            .clones
            .remember(self.number, range, self.metadata.size);
        Ok(())
    }

    /// Sends a range of the new file, unless it is a hole.
    pub(super) fn range(&mut self, range: FileRange, stream: &mut Stream<'_, '_>) -> Result<()> {
        let file_bytes = self.metadata.size;
        if range.offset >= self.size {
            return Ok(());
        }
        if range.is_zero() {
            stream.remember_preallocated(self.number, &range, file_bytes);
            return Ok(());
        }
        if stream.output.no_data() {
            let end = range.end().min(self.size);
            let length = end.checked_distance_from(range.offset).unwrap_or(ByteCount::ZERO);
            return self.update_extent(range.offset, length, stream);
        }
        if let RangeKind::Inline(inline) = &range.kind {
            self.flush_run(stream)?;
            return self.inline(range.offset, inline, stream);
        }
        self.part_by_part(&range, stream, Self::data)?;
        stream.sources.clones.remember(self.number, &range, file_bytes);
        Ok(())
    }

    /// Sends the bytes after the old end of the receiver's file in a sector that is equal on disk.
    /// The receiver has zeros in the sector after the old end of its file, and zeros are often
    /// correct.
    pub(super) fn behind_the_end(&mut self, range: FileRange, stream: &mut Stream<'_, '_>) -> Result<()> {
        let wanted = range.offset..range.end().min(self.size);
        if stream.output.no_data() || wanted.is_empty() {
            return self.range(range, stream);
        }
        let sector = self.whole_sector(&range);
        if !self.reads_as_zeros(&range, wanted, stream)? {
            self.last_sector(range, &sector, stream)?;
        }
        // The pieces before and after the old end of the file are not clone sources, but the whole
        // sector is.
        stream
            .sources
            .clones
            .remember(self.number, &sector, self.metadata.size);
        Ok(())
    }

    fn reads_as_zeros(
        &self,
        range: &FileRange,
        wanted: Range<FileOffset>,
        stream: &Stream<'_, '_>,
    ) -> Result<bool> {
        let filesystem = stream.sources.new.filesystem();
        let file = filesystem.open_known(self.metadata.clone(), Some(vec![range.clone()]))?;
        let mut reader = file.reader_of(wanted);
        while let Some(chunk) = reader.next_chunk()? {
            match chunk.content {
                Chunk::Hole => {}
                Chunk::Data(bytes) if bytes.iter().all(|byte| *byte == 0) => {}
                Chunk::Data(_) => return Ok(false),
                Chunk::Damaged(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Joins a range after the old end of the receiver's file with the bytes before that end in the
    /// same sector. Both byte ranges belong to one extent, because extents begin and end at sector
    /// boundaries.
    fn whole_sector(&self, range: &FileRange) -> FileRange {
        let start = self.spoilt.as_ref().map_or(range.offset, |spoilt| spoilt.start);
        let before = range
            .offset
            .checked_distance_from(start)
            .unwrap_or(ByteCount::ZERO);
        let mut sector = range.clone();
        if let RangeKind::Data(extent) = &mut sector.kind
            && let Some(offset) = extent.offset.checked_sub(before)
        {
            extent.offset = offset;
            sector.offset = start;
            sector.length = range.length.saturating_add(before);
        }
        sector
    }

    /// Sends a range after the old end of the receiver's file: by a clone of the whole sector from
    /// a file that has it completely, if there is one.
    fn last_sector(
        &mut self,
        range: FileRange,
        sector: &FileRange,
        stream: &mut Stream<'_, '_>,
    ) -> Result<()> {
        let candidates = stream.sources.clones.candidates(sector)?;
        let source = stream
            .sources
            .clones
            .choose(&candidates, sector, self.metadata.size);
        let end = range.end().min(self.size);
        match source {
            Some(source)
                if source.offset == sector.offset && source.offset.saturating_add(source.length) >= end =>
            {
                self.clone_from(&source, stream)
            }
            _ => self.data(range, stream),
        }
    }

    fn update_extent(
        &mut self,
        offset: FileOffset,
        length: ByteCount,
        stream: &mut Stream<'_, '_>,
    ) -> Result<()> {
        self.written_to(offset.saturating_add(length));
        stream.output.command(&Command::UpdateExtent {
            path: &self.path,
            offset,
            length,
        })
    }

    fn written_to(&mut self, end: FileOffset) {
        self.wrote = true;
        self.receiver_size = self.receiver_size.max(end.min(self.size));
    }

    /// Sends a range in parts: as clones if the receiver has the extent already, and with `other`
    /// elsewhere.
    fn part_by_part(
        &mut self,
        range: &FileRange,
        stream: &mut Stream<'_, '_>,
        other: fn(&mut Self, FileRange, &mut Stream<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let mut candidates = stream.sources.clones.candidates(range)?;
        if self.is_cheaper_whole(range, &candidates, stream) {
            // A clone source that does not cover the start of the range only splits the extent in
            // two.
            let clones = &stream.sources.clones;
            candidates.retain(|candidate| {
                let source = clones.choose(std::slice::from_ref(candidate), range, self.metadata.size);
                source.is_some_and(|source| source.offset == range.offset)
            });
        }
        let mut position = range.offset;
        let end = range.end().min(self.size);
        while position < end {
            let rest = part_of(range, position, range.end());
            let Some(source) = stream
                .sources
                .clones
                .choose(&candidates, &rest, self.metadata.size)
            else {
                return other(self, rest, stream);
            };
            if position < source.offset {
                other(self, part_of(range, position, source.offset), stream)?;
            }
            self.clone_from(&source, stream)?;
            position = source.offset.saturating_add(source.length);
        }
        Ok(())
    }

    /// Returns whether a compressed extent is shorter in one stored piece than in parts around
    /// cloneable ranges. Otherwise, each part would contain the whole stored extent.
    fn is_cheaper_whole(&self, range: &FileRange, candidates: &[Candidate], stream: &Stream<'_, '_>) -> bool {
        let Some(extent) = stream.stored_extent(range, self.size) else {
            return false;
        };
        let mut position = range.offset;
        let end = range.end().min(self.size);
        let mut bytes = ByteCount::ZERO;
        while position < end {
            let rest = part_of(range, position, range.end());
            let source = stream
                .sources
                .clones
                .choose(candidates, &rest, self.metadata.size);
            let data_end = source.map_or(end, |source| source.offset);
            let part = part_of(range, position, data_end);
            let as_stored = stream
                .stored_extent(&part, self.size)
                .map_or(part.length, |extent| extent.disk_bytes);
            bytes = bytes.saturating_add(as_stored);
            position = source.map_or(end, |source| source.offset.saturating_add(source.length));
        }
        bytes > extent.disk_bytes
    }

    fn clone_from(&mut self, source: &Source, stream: &mut Stream<'_, '_>) -> Result<()> {
        self.flush_run(stream)?;
        let Stream {
            sources,
            names,
            output,
        } = stream;
        let (of, source_path): (_, Arc<[u8]>) = match source.snapshot {
            Some(number) => sources.clones.path(number, source.inode)?,
            None if source.inode == self.number => (sources.new, Arc::clone(&self.path)),
            None => (sources.new, names.settled_path(source.inode)?.into()),
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

    /// Sends a range of data as writes or in stored form.
    fn data(&mut self, range: FileRange, stream: &mut Stream<'_, '_>) -> Result<()> {
        if range.offset >= self.size || range.length == ByteCount::ZERO {
            return Ok(());
        }
        if stream.stored_extent(&range, self.size).is_some() {
            self.flush_run(stream)?;
            return self.stored(&range, stream);
        }
        let follows = self.run.last().is_none_or(|last| last.end() == range.offset);
        if !follows || self.run.len() >= RUN_RANGES_MAX {
            self.flush_run(stream)?;
        }
        self.run.push(range);
        Ok(())
    }

    /// Sends a compressed extent in stored form.
    fn stored(&mut self, range: &FileRange, stream: &mut Stream<'_, '_>) -> Result<()> {
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
            compression: encoding(extent.compression, stream.sources.new),
        };
        self.written_to(end);
        let bytes = extent.disk_bytes.exact_usize();
        let metadata = &self.metadata;
        stream.output.stored(Arc::clone(&self.path), write, bytes, || {
            Ok(stream.sources.stored.start(metadata, range.offset, extent)?)
        })
    }

    /// Sends inline content.
    fn inline(
        &mut self,
        offset: FileOffset,
        inline: &InlineContent,
        stream: &mut Stream<'_, '_>,
    ) -> Result<()> {
        let content_end = offset.saturating_add(inline.ram_bytes).min(self.size);
        // Zeros follow the content up to the end of its sector; the receiver may have other bytes
        // there.
        let sector_bytes = u64::from(stream.sources.new.filesystem().sector_bytes());
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
            // The end of the file may truncate the inline content. The length of plain content is
            // its stored length.
            let wanted = file_bytes.at_most(inline.stored.len());
            // Clamp: at most as many were taken.
            return self.write(offset, inline.stored.get(..wanted).unwrap_or_default(), stream);
        }
        let encoded = stream.sources.compressed_data && inline.compression != Compression::None && !padded;
        if encoded && ByteCount::of(inline.stored.len()) <= file_bytes {
            return stream.output.command(&Command::EncodedWrite {
                path: &self.path,
                offset,
                unencoded_file_bytes: file_bytes,
                unencoded_bytes: inline.ram_bytes,
                unencoded_offset: ByteCount::ZERO,
                compression: Some(encoding(inline.compression, stream.sources.new)),
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
        let file = stream
            .sources
            .new
            .filesystem()
            .open_known(self.metadata.clone(), Some(known))?;
        stream.output.content(Arc::clone(&self.path), &file, offset..end)
    }

    fn write(&mut self, offset: FileOffset, data: &[u8], stream: &mut Stream<'_, '_>) -> Result<()> {
        let mut position = offset;
        for data in data.chunks(stream.output.write_bytes_max()) {
            stream.output.command(&Command::Write {
                path: &self.path,
                offset: position,
                data,
            })?;
            position = position.saturating_add(ByteCount::of(data.len()));
        }
        Ok(())
    }

    /// Starts the reads of the gathered run of ranges.
    pub(super) fn flush_run(&mut self, stream: &mut Stream<'_, '_>) -> Result<()> {
        let run = core::mem::take(&mut self.run);
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(());
        };
        let wanted = first.offset..last.end().min(self.size);
        self.written_to(wanted.end);
        let file = stream
            .sources
            .new
            .filesystem()
            .open_known(self.metadata.clone(), Some(run))?;
        stream.output.content(Arc::clone(&self.path), &file, wanted)
    }
}

/// Returns the stream's number of a compression.
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
