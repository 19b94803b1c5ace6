//! Sequential reads of a file, at the speed of the device and of all cores.
//!
//! A [`FileReader`] keeps a window of the file in flight. Extents are read in batches, verified and
//! decompressed on worker threads, and returned in order. The window of the stream begins small, so
//! that reading a few bytes is cheap. The window doubles with each batch up to `WINDOW_MAX_BYTES`.
//! The reader returns holes as holes, and writes their zeros only if the caller asks for them.
//!
//! Damage in the content does not end the stream. A [`Chunk`] describes the loss with its length,
//! and the following chunks are returned. As a [`std::io::Read`], the reader returns the error
//! once, then continues after the damage.
//!
//! Bounds: at most the window in bytes, and `QUEUE_MAX` in chunks.

use crate::checksums::ChecksumReader;
use crate::content::{Chunk, Chunks, Content, Piece, Planned, inflate_inline, plan};
use crate::error::{Error, Result};
use crate::executor::Task;
use crate::extents::FileExtents;
use crate::file::File;
use buttress_exact::{Defect, Exact as _, copy_into, u64_of};
use buttress_format::{ByteCount, FileOffset};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;

/// The number of bytes that a reader keeps in flight after its first batch.
const WINDOW_MIN_BYTES: usize = 1 << 20;

/// The maximum number of bytes that a reader keeps in flight.
const WINDOW_MAX_BYTES: usize = 16 << 20;

/// The maximum number of chunks in flight.
const QUEUE_MAX: usize = 2048;

/// A stream of a file; see the module's documentation.
#[derive(Debug)]
pub struct FileReader {
    file: File,
    wanted: Range<FileOffset>,
    /// The extent map of the file; `None` before the first chunk and after the last range.
    extents: Option<FileExtents>,
    checksums: Option<ChecksumReader>,
    started: bool,
    /// The offset up to which ranges were planned.
    planned_to: FileOffset,
    /// A partially planned range.
    range: Option<crate::extents::FileRange>,
    queue: VecDeque<Entry>,
    queued_bytes: usize,
    window_bytes: usize,
    ready: VecDeque<Chunk>,
    /// The offset up to which chunks were returned.
    position: FileOffset,
}

#[derive(Debug)]
struct Entry {
    work: Work,
    bytes: usize,
}

#[derive(Debug)]
enum Work {
    Ready(Chunk),
    Task(Task<Chunks>),
}

/// Content whose read the caller of this module started.
#[derive(Debug)]
pub(crate) enum Prefetched {
    /// Content that is available.
    Chunk(Chunk),
    /// Content to wait for.
    Task(Task<Chunks>),
}

impl FileReader {
    /// Makes a reader of a range of a file.
    pub fn new(file: File, wanted: Range<FileOffset>) -> Self {
        let start = wanted.start;
        Self {
            file,
            wanted,
            extents: None,
            checksums: None,
            started: false,
            planned_to: start,
            range: None,
            queue: VecDeque::new(),
            queued_bytes: 0,
            window_bytes: WINDOW_MIN_BYTES,
            ready: VecDeque::new(),
            position: start,
        }
    }

    /// Makes a stream whose reads were all started before.
    pub(crate) fn prefetched(file: File, content: impl IntoIterator<Item = Prefetched>) -> Self {
        let end = FileOffset::new(file.size().get());
        let mut reader = Self::new(file, FileOffset::MIN..end);
        reader.started = true;
        reader.queue = content
            .into_iter()
            .map(|content| match content {
                Prefetched::Chunk(chunk) => Entry {
                    work: Work::Ready(chunk),
                    bytes: 0,
                },
                Prefetched::Task(task) => Entry {
                    work: Work::Task(task),
                    bytes: 0,
                },
            })
            .collect();
        reader
    }

    /// Returns the file.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Starts reading the first part of the content, so that it is available at the first call.
    ///
    /// # Errors
    /// Fails as [`FileReader::next_chunk`] does.
    pub fn prefetch(&mut self) -> Result<()> {
        self.refill()
    }

    /// Returns the approximate number of bytes in flight or not taken yet.
    #[must_use]
    pub const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Returns the next run of the file: content, a hole, or damage. Returns `None` at the end. The
    /// returned runs are in order and without gaps, and end exactly at the end of the requested
    /// range. Damage of the map that loses no bytes has length zero.
    ///
    /// # Errors
    /// Fails if the map of the file or its checksums cannot be read at all. The stream then ends.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>> {
        loop {
            while let Some(chunk) = self.ready.pop_front() {
                if let Some(chunk) = self.in_order(chunk) {
                    return Ok(Some(chunk));
                }
            }
            self.refill()?;
            let Some(entry) = self.queue.pop_front() else {
                return Ok(self.rest());
            };
            self.queued_bytes = self.queued_bytes.exact_sub(entry.bytes);
            match entry.work {
                Work::Ready(chunk) => self.ready.push_back(chunk),
                Work::Task(task) => self.ready.extend(task.take()?),
            }
        }
    }

    /// Inserts a hole before a chunk to fill a gap, and drops bytes that were already returned.
    fn in_order(&mut self, chunk: Chunk) -> Option<Chunk> {
        if chunk.length == ByteCount::ZERO && matches!(chunk.content, Content::Damaged(_)) {
            return Some(chunk);
        }
        if chunk.end() <= self.position {
            return None;
        }
        if let Some(length) = chunk.offset.checked_distance_from(self.position)
            && length != ByteCount::ZERO
        {
            let hole = Chunk {
                offset: self.position,
                length,
                content: Content::Hole,
            };
            self.position = chunk.offset;
            self.ready.push_front(chunk);
            return Some(hole);
        }
        self.position = chunk.end();
        Some(chunk)
    }

    /// Returns the part at the range's end that no extent covered. The remaining part is empty,
    /// unless the extent map ended early.
    fn rest(&mut self) -> Option<Chunk> {
        let length = self.wanted.end.checked_distance_from(self.position)?;
        let offset = core::mem::replace(&mut self.position, self.wanted.end);
        (length != ByteCount::ZERO).then_some(Chunk {
            offset,
            length,
            content: Content::Hole,
        })
    }

    fn start(&mut self) -> Result<()> {
        if !self.started {
            self.started = true;
            if self.wanted.start < self.wanted.end {
                self.checksums = self.file.checksum_reader()?;
                self.extents = Some(if self.wanted.start == FileOffset::MIN {
                    self.file.extents()?
                } else {
                    self.file.extents_from(self.wanted.start)?
                });
            }
        }
        Ok(())
    }

    /// Starts more reads once half of the window is used up.
    fn refill(&mut self) -> Result<()> {
        self.start()?;
        let half = self.window_bytes / 2;
        if self.queued_bytes > half || (!self.queue.is_empty() && self.queue.len() >= QUEUE_MAX / 2) {
            return Ok(());
        }
        let mut planned = Vec::new();
        let mut planned_bytes = self.queued_bytes;
        while planned_bytes < self.window_bytes
            && planned.len().exact_add(self.queue.len()) < QUEUE_MAX
            && self.plan_more(&mut planned, &mut planned_bytes)
        {}
        if !planned.is_empty() {
            self.submit(planned)?;
            self.window_bytes = self.window_bytes.exact_mul(2).min(WINDOW_MAX_BYTES);
        }
        Ok(())
    }

    /// Plans a part of the reader's next range. Returns false at the end of the file or range.
    fn plan_more(&mut self, planned: &mut Vec<Planned>, planned_bytes: &mut usize) -> bool {
        let range = match self.range.take() {
            Some(range) => range,
            None => match self.extents.as_mut().and_then(Iterator::next) {
                Some(Ok(range)) => range,
                Some(Err(error)) => {
                    self.plan_damage(error, planned);
                    return true;
                }
                None => {
                    self.extents = None;
                    return false;
                }
            },
        };
        if range.offset >= self.wanted.end {
            self.extents = None;
            return false;
        }
        // A hole may have any length. Data is planned for one window at a time.
        let from = range.offset.max(self.planned_to).max(self.wanted.start);
        let window = ByteCount::of(self.window_bytes);
        let stop = if range.is_zero() {
            range.end()
        } else {
            from.exact_add(window).min(range.end())
        };
        let before = planned.len();
        let location = self.file.metadata().location;
        let sector_bytes = self.file.filesystem().sector_bytes();
        plan(
            location,
            sector_bytes,
            &range,
            &(from..stop.min(self.wanted.end)),
            planned,
        );
        let bytes: usize = planned.iter().skip(before).map(memory_bytes).sum();
        *planned_bytes = planned_bytes.exact_add(bytes);
        self.planned_to = self.planned_to.max(stop);
        if stop < range.end() {
            self.range = Some(range);
        }
        true
    }

    /// Plans damage for an error of the map, up to the next readable range.
    fn plan_damage(&mut self, error: Error, planned: &mut Vec<Planned>) {
        let from = self.planned_to;
        let next = loop {
            match self.extents.as_mut().and_then(Iterator::next) {
                // The extent map returns the bytes after an error as a hole, but their content is
                // unknown.
                Some(Ok(range))
                    if range.kind == crate::extents::RangeKind::Hole
                        && range.generation.is_none()
                        && range.offset <= from => {}
                Some(Ok(range)) => break Some(range),
                Some(Err(_)) => {}
                None => break None,
            }
        };
        let end = next
            .as_ref()
            .map_or(self.wanted.end, |range| range.offset.min(self.wanted.end));
        if let Some(length) = end.checked_distance_from(from)
            && length != ByteCount::ZERO
        {
            planned.push(Planned::Ready(Chunk::damaged(from, length, error)));
            self.planned_to = end;
        } else {
            planned.push(Planned::Ready(Chunk::damaged(from, ByteCount::ZERO, error)));
        }
        self.range = next;
    }

    /// Starts the planned reads of a reader in one plug, and passes the remaining work to the
    /// workers.
    fn submit(&mut self, planned: Vec<Planned>) -> Result<()> {
        let mut entries: Vec<Option<Work>> = Vec::with_capacity(planned.len());
        let mut sizes = Vec::with_capacity(planned.len());
        let mut pieces: Vec<(usize, Piece)> = Vec::new();
        for planned in planned {
            sizes.push(memory_bytes(&planned));
            let work = match planned {
                Planned::Ready(chunk) => Some(Work::Ready(chunk)),
                Planned::Inline(location, offset, inline, length) => Some(Work::Ready(inflate_inline(
                    self.file.filesystem(),
                    location,
                    offset,
                    &inline,
                    length,
                ))),
                Planned::Read(mut piece) => {
                    let expected = self
                        .checksums
                        .as_mut()
                        .map_or(Ok(()), |checksums| piece.expect(checksums));
                    match expected {
                        Ok(()) => {
                            pieces.push((entries.len(), piece));
                            None
                        }
                        Err(error) => Some(Work::Task(lost_task(&self.file, &piece, &error))),
                    }
                }
            };
            entries.push(work);
        }
        let reads: Vec<_> = pieces.iter().map(|(_, piece)| piece.read()).collect();
        let filesystem = self.file.filesystem().clone();
        let pending = filesystem.volume().start_reads(&reads);
        for ((number, piece), pending) in pieces.into_iter().zip(pending) {
            let worker = filesystem.clone();
            let task = filesystem.executor().spawn(move || piece.wait(&worker, pending));
            if let Some(entry) = entries.get_mut(number) {
                *entry = Some(Work::Task(task));
            }
        }
        for (work, bytes) in entries.into_iter().zip(sizes) {
            // Without its read, a piece of data would look like a hole.
            let work = work.ok_or_else(|| Defect::new("a piece of a file was planned and not read"))?;
            self.queued_bytes = self.queued_bytes.exact_add(bytes);
            self.queue.push_back(Entry { work, bytes });
        }
        Ok(())
    }

    /// Returns the content of the next chunk that fits into `buffer`.
    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let Some(chunk) = self.next_chunk()? else {
            return Ok(0);
        };
        let length = chunk.length.at_most(buffer.len());
        let taken = ByteCount::of(length);
        match &chunk.content {
            Content::Damaged(error) => return Err(error.clone()),
            Content::Hole => buffer.iter_mut().take(length).for_each(|byte| *byte = 0),
            Content::Data(bytes) => {
                let what = "a chunk has fewer bytes than its length";
                let from = bytes.get(..length).ok_or_else(|| {
                    Defect::new(what)
                        .with("length", chunk.length.get())
                        .with("bytes", u64_of(bytes.len()))
                })?;
                copy_into(buffer, 0..length, from, what)?;
            }
        }
        let rest = chunk.length.exact_sub(taken);
        if rest != ByteCount::ZERO {
            let offset = chunk.offset.exact_add(taken);
            let content = match chunk.content {
                // The copied bytes are at least `length` long.
                Content::Data(mut bytes) => Content::Data(bytes.split_off(length)),
                other => other,
            };
            self.position = offset;
            self.ready.push_front(Chunk {
                offset,
                length: rest,
                content,
            });
        }
        Ok(length)
    }
}

fn memory_bytes(planned: &Planned) -> usize {
    match planned {
        Planned::Ready(chunk) => match &chunk.content {
            Content::Data(bytes) => bytes.len(),
            Content::Hole | Content::Damaged(_) => 0,
        },
        Planned::Inline(_, _, inline, _) => inline.stored.len(),
        Planned::Read(piece) => piece.memory_bytes(),
    }
}

fn lost_task(file: &File, piece: &Piece, error: &Error) -> Task<Chunks> {
    let chunks = piece.lost(error);
    file.filesystem().executor().spawn(move || chunks)
}

impl io::Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        Ok(self.read_some(buffer)?)
    }
}
