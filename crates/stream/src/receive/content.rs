//! Commands that change the content of files.

use super::error::Problem;
use super::making::{Receiver, about};
use super::names::Node;
use super::new_file::NewFile;
use crate::command::Command;
use crate::view::Problem as TreeProblem;
use crate::view::content::{COMPRESSED_BYTES_MAX, decompress};
use buttress_format::send::EncodedCompression;
use buttress_format::{ByteCount, Compression, Decompressor, FileKind, FileOffset, Uuid};
use buttress_fs::Location;
use buttress_fs::inode::kind_name;
use buttress_writer::AllocateMode;
use buttress_writer::data::EncodedExtent;
use bytes::Bytes;
use core::cell::RefCell;
use core::ops::Range;

/// Largest size of a file in bytes.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Mode bit of fallocate(2): keep the file size.
const KEEP_SIZE: u32 = 0x01;
/// Mode bit of fallocate(2): punch a hole.
const PUNCH_HOLE: u32 = 0x02;
/// Mode bit of fallocate(2): make the range read as zeros.
const ZERO_RANGE: u32 = 0x10;

/// The range of an encoded write.
struct EncodedRange<'a> {
    offset: u64,
    file_bytes: u64,
    unencoded_bytes: u64,
    skip: u64,
    compression: EncodedCompression,
    data: &'a [u8],
}

/// Source and target of a cloned range.
struct CloneRange<'a> {
    path: &'a [u8],
    offset: u64,
    length: u64,
    source_uuid: Uuid,
    source_path: &'a [u8],
    source_offset: u64,
}

impl Receiver<'_> {
    /// Executes a content command; returns `false` for any other command.
    pub(super) fn apply_content(&mut self, root: Location, command: &Command<'_>) -> Result<bool, Problem> {
        match *command {
            Command::Write { path, offset, data } => self.write(root, path, offset.get(), data)?,
            Command::EncodedWrite { path, .. } => {
                if let Some(range) = EncodedRange::of(command)? {
                    self.write_encoded(root, path, &range)?;
                }
            }
            Command::Clone {
                path,
                offset,
                length,
                source_uuid,
                source_path,
                source_offset,
                ..
            } => self.clone_range(
                root,
                &CloneRange {
                    path,
                    offset: offset.get(),
                    length: length.get(),
                    source_uuid,
                    source_path,
                    source_offset: source_offset.get(),
                },
            )?,
            Command::Truncate { path, size } => self.truncate(root, path, size)?,
            Command::UpdateExtent { .. } => return Err(Problem::NoData),
            Command::Fallocate {
                path,
                mode,
                offset,
                length,
            } => self.allocate(root, path, mode, offset.get(), length.get())?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the regular file at `path`.
    fn file(&mut self, root: Location, path: &[u8]) -> Result<Location, Problem> {
        let Node { location, kind } = self.find(root, path)?;
        require_file(kind, path)?;
        Ok(location)
    }

    fn write(&mut self, root: Location, path: &[u8], offset: u64, data: &[u8]) -> Result<(), Problem> {
        let location = self.file(root, path)?;
        range_end(offset, data.len() as u64)?;
        if self
            .batch
            .takes_plain(location, offset, data.len(), self.sector_bytes)
        {
            let length = ByteCount::of(data.len());
            return self.push(
                location,
                EncodedExtent {
                    offset: FileOffset::new(offset),
                    length,
                    content_bytes: length,
                    content_offset: ByteCount::ZERO,
                    compression: Compression::None,
                    stored: Bytes::copy_from_slice(data),
                },
            );
        }
        self.flush_batch()?;
        self.write_plain(location, path, offset, data)
    }

    pub(super) fn write_plain(
        &self,
        location: Location,
        path: &[u8],
        offset: u64,
        data: &[u8],
    ) -> Result<(), Problem> {
        self.filesystem
            .write_at(location, FileOffset::new(offset), data)
            .map_err(about(path))
    }

    fn write_encoded(
        &mut self,
        root: Location,
        path: &[u8],
        range: &EncodedRange<'_>,
    ) -> Result<(), Problem> {
        let location = self.file(root, path)?;
        range_end(range.offset, range.file_bytes)?;
        range.check_sizes()?;
        if range.file_bytes == 0 {
            return Ok(());
        }
        if range.compression == EncodedCompression::None {
            let data = range.part_of(range.data)?;
            self.flush_batch()?;
            return self.write_plain(location, path, range.offset, data);
        }
        let stored = self.storable(range).filter(|_| !self.options.force_decompress);
        if let Some(compression) = stored
            && !self.ends_in_content(range)?
        {
            return self.push(location, range.extent(compression));
        }
        self.flush_batch()?;
        let content = self.decode(range)?;
        let data = range.part_of(&content)?;
        self.write_plain(location, path, range.offset, data)
    }

    /// Adds encoded data to the pending new file. Returns false, and adds nothing, if the data
    /// cannot be stored encoded after the file's other content.
    pub(super) fn gather_encoded(&mut self, root: Location, command: &Command<'_>) -> Result<bool, Problem> {
        let is_its_own = |file: &NewFile| command.path().is_some_and(|path| file.is_file(root, path));
        if !self.made_names.wait() || !self.new_file.as_ref().is_some_and(is_its_own) {
            return Ok(false);
        }
        let Some(range) = EncodedRange::of(command)? else {
            return Ok(false);
        };
        if range.file_bytes == 0
            || self.options.force_decompress
            || range.check_sizes().is_err()
            || range_end(range.offset, range.file_bytes).is_err()
        {
            return Ok(false);
        }
        let Some(compression) = self.storable(&range) else {
            return Ok(false);
        };
        let extent = range.extent(compression);
        let (tail, content_bytes) = (range.tail(self.sector_bytes)?, range.content_bytes()?);
        let (encoding, stored) = (range.compression, extent.stored.clone());
        let Some(file) = &mut self.new_file else {
            return Ok(false);
        };
        let Some(number) = file.push_encoded(extent) else {
            return Ok(false);
        };
        if !tail.is_empty() {
            // A background job checks that the data decodes and that its `tail` is zero.
            let job = move || ends_in_zeros(encoding, &stored, content_bytes, tail);
            file.check_later(number, self.filesystem.spawn_job(job));
        }
        Ok(true)
    }

    /// Returns the volume's compression that matches encoded data of the stream, if the volume can
    /// store the data encoded.
    fn storable(&self, range: &EncodedRange<'_>) -> Option<Compression> {
        let own_lzo = u32::try_from(self.sector_bytes)
            .ok()
            .and_then(EncodedCompression::lzo);
        match range.compression {
            EncodedCompression::None => None,
            EncodedCompression::Zlib => Some(Compression::Zlib),
            EncodedCompression::Zstd => Some(Compression::Zstd),
            lzo => (Some(lzo) == own_lzo).then_some(Compression::Lzo),
        }
    }

    /// Returns whether the decoded content has nonzero bytes between the range's end and the end of
    /// its last sector. If these bytes past the end were stored encoded, they would become visible
    /// when the file grows.
    fn ends_in_content(&mut self, range: &EncodedRange<'_>) -> Result<bool, Problem> {
        let tail = range.tail(self.sector_bytes)?;
        if tail.is_empty() {
            return Ok(false);
        }
        let content = self.decode(range)?;
        Ok(!is_zero(&content, &tail))
    }

    fn decode(&mut self, range: &EncodedRange<'_>) -> Result<Vec<u8>, Problem> {
        let mut content = vec![0; range.content_bytes()?];
        decompress(
            &mut self.decompressor,
            range.compression,
            range.data,
            &mut content,
        )
        .map_err(TreeProblem::Encoded)?;
        Ok(content)
    }

    fn truncate(&mut self, root: Location, path: &[u8], size: ByteCount) -> Result<(), Problem> {
        let location = self.file(root, path)?;
        range_end(0, size.get())?;
        self.flush_batch()?;
        let present = self
            .filesystem
            .contents()
            .size_of(location)
            .map_err(about(path))?;
        if present == size.get() {
            return Ok(());
        }
        self.filesystem.truncate(location, size).map_err(about(path))
    }

    fn allocate(
        &mut self,
        root: Location,
        path: &[u8],
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Problem> {
        let location = self.file(root, path)?;
        let end = range_end(offset, length)?;
        let keeps_size = mode & KEEP_SIZE != 0;
        let how = match (mode & !KEEP_SIZE, keeps_size) {
            (0, false) => AllocateMode::Allocate,
            (0, true) => AllocateMode::AllocateKeepSize,
            // Punching a hole keeps the file size, and fallocate(2) requires the `KEEP_SIZE` bit
            // for this.
            (PUNCH_HOLE, true) => AllocateMode::PunchHole,
            (ZERO_RANGE, false) => AllocateMode::ZeroRange,
            (ZERO_RANGE, true) => AllocateMode::ZeroRangeKeepSize,
            _ => return Err(TreeProblem::FallocateMode { mode }.into()),
        };
        self.flush_batch()?;
        self.filesystem
            .allocate(location, FileOffset::new(offset)..FileOffset::new(end), how)
            .map_err(about(path))
    }

    fn clone_range(&mut self, root: Location, range: &CloneRange<'_>) -> Result<(), Problem> {
        self.flush_batch()?;
        let source_root = Location::root_of(self.clone_source(range.source_uuid)?);
        let found = self.find(source_root, range.source_path)?;
        require_file(found.kind, range.source_path)?;
        let (source, target) = (found.location, self.file(root, range.path)?);
        range_end(range.offset, range.length)?;
        let end = range_end(range.source_offset, range.length)?;
        if range.length == 0 {
            return Ok(());
        }
        let from = FileOffset::new(range.source_offset)..FileOffset::new(end);
        let to = FileOffset::new(range.offset);
        let size = self
            .filesystem
            .contents()
            .size_of(source)
            .map_err(about(range.source_path))?;
        if end > size {
            return Err(TreeProblem::CloneRange {
                path: range.source_path.to_vec(),
                offset: range.source_offset,
                length: range.length,
                size,
            }
            .into());
        }
        match self.filesystem.clone_range(source, from.clone(), target, to) {
            // If the volume cannot share a range, copy the range: partial sectors, or checksummed
            // content to a file without checksums.
            Err(buttress_fs::Error::Invalid { .. }) => self
                .filesystem
                .copy_range(source, from, target, to)
                .map(drop)
                .map_err(about(range.path)),
            cloned => cloned.map_err(about(range.path)),
        }
    }
}

impl<'a> EncodedRange<'a> {
    /// Reads the range of an encoded write. Returns `None` for a command that is no encoded write.
    fn of(command: &Command<'a>) -> Result<Option<Self>, Problem> {
        let Command::EncodedWrite {
            offset,
            unencoded_file_bytes,
            unencoded_bytes,
            unencoded_offset,
            compression,
            encryption,
            data,
            ..
        } = *command
        else {
            return Ok(None);
        };
        if let Some(number) = encryption.filter(|number| *number != 0) {
            return Err(TreeProblem::Encrypted { number }.into());
        }
        let number = compression.unwrap_or(0);
        let compression =
            EncodedCompression::from_raw(number).ok_or(TreeProblem::CompressionUnknown { number })?;
        Ok(Some(Self {
            offset: offset.get(),
            file_bytes: unencoded_file_bytes.get(),
            unencoded_bytes: unencoded_bytes.get(),
            skip: unencoded_offset.get(),
            compression,
            data,
        }))
    }

    /// Returns the part of the decoded content between the end of the range and the end of its last
    /// sector.
    fn tail(&self, sector_bytes: u64) -> Result<Range<u64>, Problem> {
        let end = self.end().ok_or_else(|| self.sizes_problem())?;
        let sector_end = end.checked_next_multiple_of(sector_bytes);
        let sector_end = sector_end.ok_or_else(|| self.sizes_problem())?;
        Ok(end..sector_end.min(self.unencoded_bytes).max(end))
    }

    /// Returns the end of the range in the decoded content.
    const fn end(&self) -> Option<u64> {
        self.skip.checked_add(self.file_bytes)
    }

    /// Returns the length of the decoded content.
    fn content_bytes(&self) -> Result<usize, Problem> {
        usize::try_from(self.unencoded_bytes).map_err(|_| self.sizes_problem())
    }

    /// Returns the part of the decoded content that belongs to the range.
    fn part_of<'d>(&self, content: &'d [u8]) -> Result<&'d [u8], Problem> {
        let range = self.end().and_then(|end| in_memory(&(self.skip..end)));
        let part = range.and_then(|range| content.get(range));
        part.ok_or_else(|| self.sizes_problem())
    }

    /// Returns the extent that stores the stream's encoded data.
    fn extent(&self, compression: Compression) -> EncodedExtent {
        EncodedExtent {
            offset: FileOffset::new(self.offset),
            length: ByteCount::new(self.file_bytes),
            content_bytes: ByteCount::new(self.unencoded_bytes),
            content_offset: ByteCount::new(self.skip),
            compression,
            stored: Bytes::copy_from_slice(self.data),
        }
    }

    fn check_sizes(&self) -> Result<(), Problem> {
        let encoded = self.data.len() as u64;
        let fits = self.end().is_some_and(|end| {
            let is_whole = match self.compression {
                EncodedCompression::None => end <= encoded,
                _ => encoded <= COMPRESSED_BYTES_MAX && self.unencoded_bytes <= COMPRESSED_BYTES_MAX,
            };
            is_whole && end <= self.unencoded_bytes
        });
        match fits {
            true => Ok(()),
            false => Err(self.sizes_problem()),
        }
    }

    fn sizes_problem(&self) -> Problem {
        TreeProblem::EncodedSizes {
            file_bytes: self.file_bytes,
            skip: self.skip,
            unencoded: self.unencoded_bytes,
            encoded: self.data.len() as u64,
        }
        .into()
    }
}

thread_local! {
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::default());
}

/// Returns whether encoded data can be decoded, and its content is zero in this range.
fn ends_in_zeros(
    encoding: EncodedCompression,
    stored: &[u8],
    content_bytes: usize,
    tail: Range<u64>,
) -> bool {
    let mut content = vec![0; content_bytes];
    let decoded =
        DECOMPRESSOR.with_borrow_mut(|decompressor| decompress(decompressor, encoding, stored, &mut content));
    decoded.is_ok() && is_zero(&content, &tail)
}

/// Returns whether the content includes this range and is zero there.
fn is_zero(content: &[u8], range: &Range<u64>) -> bool {
    let part = in_memory(range).and_then(|range| content.get(range));
    part.is_some_and(|part| part.iter().all(|byte| *byte == 0))
}

fn in_memory(range: &Range<u64>) -> Option<Range<usize>> {
    Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// Returns the end of a range, if the largest file includes it.
fn range_end(offset: u64, length: u64) -> Result<u64, Problem> {
    offset
        .checked_add(length)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or_else(|| TreeProblem::RangeTooLarge { offset, length }.into())
}

fn require_file(kind: FileKind, path: &[u8]) -> Result<(), Problem> {
    if kind == FileKind::Regular {
        return Ok(());
    }
    Err(TreeProblem::WrongKind {
        path: path.to_vec(),
        found: kind_name(kind),
        wanted: "a regular file",
    }
    .into())
}
