//! The output side of a send: turns commands into bytes, in order, while reads of data are in
//! flight.
//!
//! Commands with file data enter a queue, and all their reads are in flight together. Later
//! commands follow in the queue, already encoded. A separate thread writes finished bytes in large
//! pieces.
//!
//! The length of a command is known before its data is read. A stream can therefore be measured
//! without reading data. A resumed stream reads only the data that it writes.
//!
//! Bounds: [`QUEUE_BYTES_MAX`] for data in flight and the commands after it, [`QUEUE_SEGMENTS_MAX`]
//! for reads, and [`PIECES_MAX`] pieces of [`PIECE_BYTES`] for the writing thread.

use crate::command::Command;
use crate::encoder::Encoder;
use crate::send::error::{Error, Result};
use crate::send::options::{Following, Options};
use buttress_exact::Exact as _;
use buttress_format::send::{CommandKind, Version};
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{Content, File, FileReader, PendingStored, Progress};
use bytes::Bytes;
use core::ops::Range;
use crossbeam_channel::{Receiver, Sender};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

/// Largest amount of file data in flight, in bytes.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// Largest number of file reads in flight.
const QUEUE_SEGMENTS_MAX: usize = 256;

/// Size of an output piece in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Size of one write in bytes; the writing thread checks for cancellation after each write.
const WRITE_BYTES_MAX: usize = 128 << 10;

/// Largest number of queued output pieces.
const PIECES_MAX: usize = 4;

/// Longest hole inside a range of data: the part of a sector after inline content, in bytes.
const ZEROS_MAX: usize = 1 << 20;

/// A part of the stream.
enum Segment {
    /// Finished commands.
    Bytes(Vec<u8>),
    /// Content of a file, to be sent as write commands.
    Content {
        path: Arc<[u8]>,
        range: Range<FileOffset>,
        reader: Box<FileReader>,
    },
    /// A compressed extent, to be sent in stored form.
    Stored {
        path: Arc<[u8]>,
        write: StoredWrite,
        pending: PendingStored,
        bytes: usize,
    },
}

/// Attributes of an encoded write, without its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredWrite {
    pub(crate) offset: FileOffset,
    pub(crate) file_bytes: ByteCount,
    pub(crate) unencoded_bytes: ByteCount,
    pub(crate) unencoded_offset: ByteCount,
    pub(crate) compression: u32,
}

/// The output of a send.
pub(crate) struct Output<'a> {
    encoder: Encoder,
    version: Version,
    no_data: bool,
    progress: &'a Progress,
    /// Finished bytes that are not part of a piece yet.
    finished: Vec<u8>,
    queue: VecDeque<Segment>,
    queued_bytes: usize,
    pieces: Sender<Vec<u8>>,
    used: Receiver<Vec<u8>>,
    /// Number of stream commands so far.
    commands: u64,
    /// Stream position in bytes, including queued and omitted bytes.
    position: u64,
    /// Number of stream bytes to omit; all of them if the stream is only measured.
    skip: u64,
    /// Number of the next finished bytes that are to be omitted.
    cut: usize,
    /// Buffer for commands that are only measured.
    scratch: Vec<u8>,
    /// Trail that the omitted commands must match.
    following: Option<Following>,
}

impl core::fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// State of the writing thread.
pub(crate) struct Drain<'a> {
    pieces: Receiver<Vec<u8>>,
    used: Sender<Vec<u8>>,
    progress: &'a Progress,
    /// Stream position of the next byte to write.
    offset: u64,
}

impl Drain<'_> {
    /// Writes pieces until the queue closes.
    ///
    /// # Errors
    /// The sink's error, with the stream position at which it happened.
    pub(crate) fn run(mut self, sink: &mut (dyn Write + Send)) -> Result<(), Error> {
        while let Ok(mut piece) = self.pieces.recv() {
            self.write(&piece, sink)?;
            piece.clear();
            // If the encoding thread has ended, it needs no buffer back.
            drop(self.used.try_send(piece));
        }
        sink.flush().map_err(|error| Error::Output {
            offset: self.offset,
            error,
        })
    }

    /// Writes a piece, in as many parts as the sink accepts.
    fn write(&mut self, mut rest: &[u8], sink: &mut (dyn Write + Send)) -> Result<(), Error> {
        while !rest.is_empty() {
            // All pieces may be queued while a slow reader delays them, so check for cancellation
            // here too.
            self.progress.check()?;
            let part = rest.get(..WRITE_BYTES_MAX).unwrap_or(rest);
            let written = match sink.write(part) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other,
            };
            let written = written.map_err(|error| Error::Output {
                offset: self.offset,
                error,
            })?;
            self.offset = self.offset.saturating_add(ByteCount::of(written).get());
            self.progress.advance(0, ByteCount::of(written));
            rest = rest.get(written..).ok_or_else(|| Error::Output {
                offset: self.offset,
                error: io::Error::other("the output took more than it was given"),
            })?;
        }
        Ok(())
    }
}

impl<'a> Output<'a> {
    /// Creates an output and the state of its writing thread. The output omits the first `skip`
    /// bytes.
    pub(crate) fn new(options: &Options, skip: u64, progress: &'a Progress) -> (Self, Drain<'a>) {
        let (pieces, received) = crossbeam_channel::bounded(PIECES_MAX);
        let (returned, used) = crossbeam_channel::bounded(PIECES_MAX);
        let output = Self {
            encoder: Encoder::new(options.version),
            version: options.version,
            no_data: options.no_data,
            progress,
            finished: Vec::with_capacity(PIECE_BYTES),
            queue: VecDeque::new(),
            queued_bytes: 0,
            pieces,
            used,
            commands: 0,
            position: 0,
            skip,
            cut: 0,
            scratch: Vec::new(),
            following: options
                .following
                .filter(|following| following.wanted.bytes() > following.so_far.bytes()),
        };
        let drain = Drain {
            pieces: received,
            used: returned,
            progress,
            offset: skip,
        };
        (output, drain)
    }

    /// Returns whether the stream may use encoded writes, large writes and other commands of
    /// version 2.
    pub(crate) fn is_version_2(&self) -> bool {
        self.version >= Version::V2
    }

    /// Returns whether the stream contains ranges of data instead of the data itself.
    pub(crate) const fn no_data(&self) -> bool {
        self.no_data
    }

    /// Returns the number of commands so far.
    pub(crate) const fn commands(&self) -> u64 {
        self.commands
    }

    /// Returns the largest data length of one write command.
    pub(crate) const fn write_bytes_max(&self) -> usize {
        self.version.write_bytes_max()
    }

    /// Returns the stream position in bytes.
    pub(crate) const fn position(&self) -> u64 {
        self.position
    }

    /// Returns the progress along the receiver's trail; `None` without a trail, or once everything
    /// that the receiver has is omitted.
    pub(crate) const fn following(&self) -> Option<Following> {
        self.following
    }

    /// Returns the number of bytes to omit at the start of the stream.
    pub(crate) const fn skipped(&self) -> u64 {
        self.skip
    }

    /// Appends the stream header.
    pub(crate) fn header(&mut self) -> Result<()> {
        let mut header = Vec::new();
        self.encoder.header(&mut header);
        if self.admit(header.len()) {
            self.finished.extend_from_slice(&header);
        }
        if let Some(following) = &mut self.following {
            following.so_far.pass_header(self.version);
        }
        self.compare_trails()
    }

    /// Checks after each command that the commands so far can be the beginning of the receiver's
    /// trail.
    fn compare_trails(&mut self) -> Result<()> {
        let Some(Following { so_far, wanted }) = self.following else {
            return Ok(());
        };
        if so_far.bytes() < wanted.bytes() {
            return Ok(());
        }
        self.following = None;
        if so_far == wanted {
            return Ok(());
        }
        Err(Error::OtherStream {
            wanted,
            bytes: so_far.bytes(),
        })
    }

    /// Advances along the receiver's trail by commands with `data_bytes` bytes of data in total.
    fn follow_data(&mut self, kind: CommandKind, overhead_bytes: usize, data_bytes: usize) -> Result<()> {
        let mut left = data_bytes;
        while left > 0
            && let Some(following) = &mut self.following
        {
            let bytes = match kind {
                CommandKind::Write => left.min(self.version.write_bytes_max()),
                _ => left,
            };
            following
                .so_far
                .pass_data(kind, overhead_bytes.saturating_add(bytes));
            left = left.saturating_sub(bytes);
            self.compare_trails()?;
        }
        Ok(())
    }

    /// Advances the position by `bytes`. Returns whether the output has to write any of these
    /// bytes.
    fn admit(&mut self, bytes: usize) -> bool {
        let start = self.position;
        self.position = start.saturating_add(ByteCount::of(bytes).get());
        if start < self.skip && self.position > self.skip {
            self.cut = self.skip.saturating_sub(start).narrow::<usize>();
        }
        self.position > self.skip
    }

    /// Returns the length of a stream command without its data.
    fn overhead_bytes(&mut self, command: &Command<'_>) -> Result<usize> {
        self.scratch.clear();
        self.encoder.encode(command, &mut self.scratch)?;
        Ok(self.scratch.len())
    }

    /// Appends a command.
    #[inline]
    pub(crate) fn command(&mut self, command: &Command<'_>) -> Result<()> {
        self.commands = self.commands.saturating_add(1);
        if self.position < self.skip {
            let bytes = self.overhead_bytes(command)?;
            if let Some(following) = &mut self.following {
                following.so_far.pass_command(&self.scratch, bytes);
            }
            self.compare_trails()?;
            if !self.admit(bytes) {
                return Ok(());
            }
            self.finished.extend_from_slice(&self.scratch);
            return self.flush_full();
        }
        let to = match self.queue.back_mut() {
            None => &mut self.finished,
            Some(Segment::Bytes(bytes)) => bytes,
            Some(_) => {
                self.queue.push_back(Segment::Bytes(Vec::new()));
                match self.queue.back_mut() {
                    Some(Segment::Bytes(bytes)) => bytes,
                    _ => &mut self.finished,
                }
            }
        };
        let before = to.len();
        self.encoder.encode(command, to)?;
        let bytes = to.len().saturating_sub(before);
        self.admit(bytes);
        if self.queue.is_empty() {
            return self.flush_full();
        }
        // Bytes queued after an unfinished read take memory as well.
        self.queued_bytes = self.queued_bytes.saturating_add(bytes);
        self.make_room()
    }

    /// Appends writes for a file range that is all data, and starts their reads.
    pub(crate) fn content(&mut self, path: Arc<[u8]>, file: &File, range: Range<FileOffset>) -> Result<()> {
        let Some(length) = range
            .end
            .checked_distance_from(range.start)
            .and_then(ByteCount::to_usize)
        else {
            return Ok(());
        };
        let overhead = self.overhead_bytes(&Command::Write {
            path: &path,
            offset: range.start,
            data: &[],
        })?;
        self.follow_data(CommandKind::Write, overhead, length)?;
        let writes = length.div_ceil(self.write_bytes_max());
        self.commands = self.commands.saturating_add(ByteCount::of(writes).get());
        if !self.admit(overhead.saturating_mul(writes).saturating_add(length)) {
            return Ok(());
        }
        let mut reader = file.reader_of(range.clone());
        reader.prefetch()?;
        self.queued_bytes = self.queued_bytes.saturating_add(reader.queued_bytes());
        self.queue.push_back(Segment::Content {
            path,
            range,
            reader: Box::new(reader),
        });
        self.make_room()
    }

    /// Appends an encoded write with `bytes` bytes of data; `start` starts the read.
    pub(crate) fn stored(
        &mut self,
        path: Arc<[u8]>,
        write: StoredWrite,
        bytes: usize,
        start: impl FnOnce() -> Result<PendingStored>,
    ) -> Result<()> {
        self.commands = self.commands.saturating_add(1);
        let overhead = self.overhead_bytes(&write.command(&path, &[]))?;
        self.follow_data(CommandKind::EncodedWrite, overhead, bytes)?;
        if !self.admit(overhead.saturating_add(bytes)) {
            return Ok(());
        }
        let pending = start()?;
        self.queued_bytes = self.queued_bytes.saturating_add(bytes);
        self.queue.push_back(Segment::Stored {
            path,
            write,
            pending,
            bytes,
        });
        self.make_room()
    }

    fn make_room(&mut self) -> Result<()> {
        while self.queued_bytes > QUEUE_BYTES_MAX || self.queue.len() > QUEUE_SEGMENTS_MAX {
            self.finish_first()?;
        }
        Ok(())
    }

    /// Waits for the first segment of the queue and finishes it.
    fn finish_first(&mut self) -> Result<()> {
        match self.queue.pop_front() {
            None => {}
            Some(Segment::Bytes(bytes)) => {
                self.queued_bytes = self.queued_bytes.saturating_sub(bytes.len());
                self.finished.extend_from_slice(&bytes);
            }
            Some(Segment::Content { path, range, reader }) => {
                self.queued_bytes = self.queued_bytes.saturating_sub(reader.queued_bytes());
                self.progress.check()?;
                self.finish_content(&path, range, *reader)?;
            }
            Some(Segment::Stored {
                path,
                write,
                pending,
                bytes,
            }) => {
                self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
                self.progress.check()?;
                let data = pending.wait()?;
                self.encoder
                    .encode(&write.command(&path, &data), &mut self.finished)?;
            }
        }
        self.flush_full()
    }

    /// Finishes the writes of a file range. Each write in the stream is as long as possible,
    /// regardless of extent boundaries.
    fn finish_content(
        &mut self,
        path: &[u8],
        range: Range<FileOffset>,
        mut reader: FileReader,
    ) -> Result<()> {
        let mut chunk: Option<Bytes> = None;
        let mut offset = range.start;
        while let Some(left) = range
            .end
            .checked_distance_from(offset)
            .filter(|left| *left != ByteCount::ZERO)
        {
            let bytes = left.to_usize().unwrap_or(usize::MAX).min(self.write_bytes_max());
            let command = Command::Write {
                path,
                offset,
                data: &[],
            };
            let pending = self.encoder.begin_data(&command, bytes, &mut self.finished)?;
            let mut missing = bytes;
            while missing > 0 {
                let mut data = match chunk.take() {
                    Some(data) => data,
                    None => next_data(&mut reader)?.unwrap_or_else(|| Bytes::from(vec![0; missing])),
                };
                let part = data.split_to(missing.min(data.len()));
                self.finished.extend_from_slice(&part);
                missing = missing.saturating_sub(part.len());
                chunk = (!data.is_empty()).then_some(data);
            }
            self.encoder.finish_data(pending, &mut self.finished)?;
            offset = offset.saturating_add(ByteCount::of(bytes));
            self.flush_full()?;
        }
        Ok(())
    }

    /// Passes finished stream bytes to the writing thread once they fill a piece.
    fn flush_full(&mut self) -> Result<()> {
        if self.finished.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.progress.check()?;
        let mut next = self.used.try_recv().unwrap_or_default();
        if next.capacity() < PIECE_BYTES {
            next.reserve(
                PIECE_BYTES
                    .saturating_mul(5)
                    .checked_div(4)
                    .unwrap_or(PIECE_BYTES),
            );
        }
        let mut piece = core::mem::replace(&mut self.finished, next);
        if self.cut > 0 {
            let cut = self.cut.min(piece.len());
            piece.drain(..cut);
            self.cut = self.cut.saturating_sub(cut);
        }
        // The writing thread ends early only after an error of its own, which is more precise than
        // this `BrokenPipe`.
        self.pieces.send(piece).map_err(|_| Error::Output {
            offset: self.skip,
            error: io::ErrorKind::BrokenPipe.into(),
        })
    }

    /// Finishes all queued segments and passes them to the writing thread.
    pub(crate) fn finish(&mut self) -> Result<()> {
        while !self.queue.is_empty() {
            self.finish_first()?;
        }
        self.flush()
    }
}

impl StoredWrite {
    const fn command<'c>(&self, path: &'c [u8], data: &'c [u8]) -> Command<'c> {
        Command::EncodedWrite {
            path,
            offset: self.offset,
            unencoded_file_bytes: self.file_bytes,
            unencoded_bytes: self.unencoded_bytes,
            unencoded_offset: self.unencoded_offset,
            compression: Some(self.compression),
            encryption: None,
            data,
        }
    }
}

/// Returns the next bytes of a file range that should be all data. Holes in a file range read as
/// zeros.
fn next_data(reader: &mut FileReader) -> Result<Option<Bytes>> {
    while let Some(chunk) = reader.next_chunk()? {
        match chunk.content {
            Content::Data(bytes) if bytes.is_empty() => {}
            Content::Data(bytes) => return Ok(Some(bytes)),
            Content::Hole => {
                let length = chunk.length.to_usize().unwrap_or(usize::MAX).min(ZEROS_MAX);
                return Ok(Some(Bytes::from(vec![0; length])));
            }
            Content::Damaged(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_behind_a_read_do_not_pile_up() {
        let progress = Progress::new();
        let (mut output, drain) = Output::new(&Options::default(), 0, &progress);
        let mut sink = Vec::new();
        let position = std::thread::scope(|scope| {
            let writing = scope.spawn(|| drain.run(&mut sink));
            // In the test, this segment stands for an unfinished read.
            output.queue.push_back(Segment::Bytes(Vec::new()));
            let data = vec![0x5a; 32 << 10];
            for number in 0..2048_u64 {
                let command = Command::Write {
                    path: b"file",
                    offset: FileOffset::new(number << 15),
                    data: &data,
                };
                output.command(&command).unwrap();
                assert!(output.queued_bytes <= QUEUE_BYTES_MAX);
            }
            output.finish().unwrap();
            assert_eq!(output.queued_bytes, 0);
            let position = output.position();
            drop(output);
            writing.join().unwrap().unwrap();
            position
        });
        assert_eq!(position, sink.len() as u64);
    }
}
