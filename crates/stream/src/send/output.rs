//! From commands to bytes, in order, while data is still on its way from the disk.
//!
//! Commands that carry file data wait in a queue for their reads, which are all under way at once; what follows
//! them waits behind them, encoded already. What is finished goes to a thread that writes it out, in large pieces.
//!
//! Bounds: [`QUEUE_BYTES_MAX`] of data under way and [`QUEUE_SEGMENTS_MAX`] reads; [`PIECES_MAX`] pieces of
//! [`PIECE_BYTES`] on their way out.

use crate::command::Command;
use crate::encoder::Encoder;
use crate::send::error::{Error, Result};
use crate::send::options::Options;
use buttress_format::send::Version;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{Content, FileReader, PendingStored, Progress};
use crossbeam_channel::{Receiver, Sender};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

/// How much file data may be under way.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// How many reads of files may be under way.
const QUEUE_SEGMENTS_MAX: usize = 256;

/// Size of the pieces that are written out.
const PIECE_BYTES: usize = 1 << 20;

/// How many pieces may wait to be written out.
const PIECES_MAX: usize = 4;

/// A part of the stream.
enum Segment {
    /// Finished commands.
    Bytes(Vec<u8>),
    /// Content of a file, to be sent as writes.
    Content {
        path: Arc<[u8]>,
        reader: Box<FileReader>,
    },
    /// A compressed extent, to be sent as it is stored.
    Stored {
        path: Arc<[u8]>,
        write: StoredWrite,
        pending: PendingStored,
        bytes: usize,
    },
}

/// What an encoded write says besides its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredWrite {
    pub(crate) offset: FileOffset,
    pub(crate) file_bytes: ByteCount,
    pub(crate) unencoded_bytes: ByteCount,
    pub(crate) unencoded_offset: ByteCount,
    pub(crate) compression: u32,
}

/// The stream on its way out.
pub(crate) struct Output<'a> {
    encoder: Encoder,
    version: Version,
    no_data: bool,
    progress: &'a Progress,
    /// Finished bytes that no piece was made of yet.
    finished: Vec<u8>,
    queue: VecDeque<Segment>,
    queued_bytes: usize,
    pieces: Sender<Vec<u8>>,
    used: Receiver<Vec<u8>>,
    /// Commands so far.
    commands: u64,
    /// Bytes handed to the writing thread.
    written: u64,
}

impl core::fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// The writing thread's end.
pub(crate) struct Drain {
    pieces: Receiver<Vec<u8>>,
    used: Sender<Vec<u8>>,
}

impl Drain {
    /// Writes pieces until there are no more, leaving out the first `skip` bytes. Returns how many bytes were
    /// passed over or written.
    ///
    /// # Errors
    /// What the sink says, with how far it got.
    pub(crate) fn run(self, sink: &mut (dyn Write + Send), mut skip: u64) -> Result<u64, Error> {
        let mut offset = 0_u64;
        for mut piece in &self.pieces {
            let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(piece.len());
            skip = skip.saturating_sub(ByteCount::of(skipped).get());
            offset = offset.saturating_add(ByteCount::of(skipped).get());
            let mut rest = piece.get(skipped..).unwrap_or_default();
            while !rest.is_empty() {
                match sink.write(rest) {
                    Ok(0) => {
                        return Err(Error::Output {
                            offset,
                            error: io::ErrorKind::WriteZero.into(),
                        });
                    }
                    Ok(bytes) => {
                        offset = offset.saturating_add(ByteCount::of(bytes).get());
                        rest = rest.get(bytes..).unwrap_or_default();
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Error::Output { offset, error }),
                }
            }
            piece.clear();
            // The other side may be done and gone.
            drop(self.used.try_send(piece));
        }
        sink.flush().map_err(|error| Error::Output { offset, error })?;
        Ok(offset)
    }
}

impl<'a> Output<'a> {
    /// A stream, and the end that writes it out.
    pub(crate) fn new(options: &Options, progress: &'a Progress) -> (Self, Drain) {
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
            written: 0,
        };
        let drain = Drain {
            pieces: received,
            used: returned,
        };
        (output, drain)
    }

    /// Whether encoded writes, large writes and the commands of version 2 may be used.
    pub(crate) fn is_version_2(&self) -> bool {
        self.version >= Version::V2
    }

    /// Whether the places of data are sent instead of data.
    pub(crate) const fn no_data(&self) -> bool {
        self.no_data
    }

    /// How many commands there were.
    pub(crate) const fn commands(&self) -> u64 {
        self.commands
    }

    /// How much data one write command carries at most.
    pub(crate) const fn write_bytes_max(&self) -> usize {
        self.version.write_bytes_max()
    }

    /// The stream's header.
    pub(crate) fn header(&mut self) {
        self.encoder.header(&mut self.finished);
    }

    /// Appends a command.
    pub(crate) fn command(&mut self, command: &Command<'_>) -> Result<()> {
        self.commands = self.commands.saturating_add(1);
        if self.queue.is_empty() {
            self.encoder.encode(command, &mut self.finished)?;
            return self.flush_full();
        }
        if let Some(Segment::Bytes(bytes)) = self.queue.back_mut() {
            self.encoder.encode(command, bytes)?;
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.encoder.encode(command, &mut bytes)?;
        self.queue.push_back(Segment::Bytes(bytes));
        Ok(())
    }

    /// Appends writes for a run of a file, whose reads begin now.
    pub(crate) fn content(&mut self, path: Arc<[u8]>, mut reader: FileReader) -> Result<()> {
        reader.prefetch()?;
        self.queued_bytes = self.queued_bytes.saturating_add(reader.queued_bytes());
        self.queue.push_back(Segment::Content {
            path,
            reader: Box::new(reader),
        });
        self.make_room()
    }

    /// Appends an encoded write, whose read has begun.
    pub(crate) fn stored(
        &mut self,
        path: Arc<[u8]>,
        write: StoredWrite,
        pending: PendingStored,
        bytes: usize,
    ) -> Result<()> {
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
            Some(Segment::Bytes(bytes)) => self.finished.extend_from_slice(&bytes),
            Some(Segment::Content { path, mut reader }) => {
                self.queued_bytes = self.queued_bytes.saturating_sub(reader.queued_bytes());
                self.progress.check()?;
                while let Some(chunk) = reader.next_chunk()? {
                    match chunk.content {
                        Content::Data(bytes) => self.write(&path, chunk.offset, &bytes)?,
                        Content::Hole => {}
                        Content::Damaged(error) => return Err(error.into()),
                    }
                }
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
                self.commands = self.commands.saturating_add(1);
                self.encoder.encode(
                    &Command::EncodedWrite {
                        path: &path,
                        offset: write.offset,
                        unencoded_file_bytes: write.file_bytes,
                        unencoded_bytes: write.unencoded_bytes,
                        unencoded_offset: write.unencoded_offset,
                        compression: Some(write.compression),
                        encryption: None,
                        data: &data,
                    },
                    &mut self.finished,
                )?;
                self.progress.advance(0, ByteCount::of(data.len()));
            }
        }
        self.flush_full()
    }

    /// Finishes the writes of data that is at hand.
    fn write(&mut self, path: &[u8], offset: FileOffset, data: &[u8]) -> Result<()> {
        let mut at = offset;
        for data in data.chunks(self.write_bytes_max()) {
            self.commands = self.commands.saturating_add(1);
            self.encoder.encode(
                &Command::Write {
                    path,
                    offset: at,
                    data,
                },
                &mut self.finished,
            )?;
            at = at.saturating_add(ByteCount::of(data.len()));
            self.flush_full()?;
        }
        self.progress.advance(0, ByteCount::of(data.len()));
        Ok(())
    }

    /// Hands finished bytes over once there are enough for a piece.
    fn flush_full(&mut self) -> Result<()> {
        if self.finished.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let mut next = self.used.try_recv().unwrap_or_default();
        if next.capacity() < PIECE_BYTES {
            next.reserve(
                PIECE_BYTES
                    .saturating_mul(5)
                    .checked_div(4)
                    .unwrap_or(PIECE_BYTES),
            );
        }
        let piece = core::mem::replace(&mut self.finished, next);
        let bytes = ByteCount::of(piece.len()).get();
        self.pieces.send(piece).map_err(|_| Error::Output {
            offset: self.written,
            error: io::ErrorKind::BrokenPipe.into(),
        })?;
        self.written = self.written.saturating_add(bytes);
        Ok(())
    }

    /// Finishes all that is in the queue and hands it over.
    pub(crate) fn finish(&mut self) -> Result<()> {
        while !self.queue.is_empty() {
            self.finish_first()?;
        }
        self.flush()
    }
}
