//! The decoder of send streams: bytes to commands.
//!
//! [`Decoder`] reads large pieces of its input into one buffer and returns commands that borrow
//! from this buffer: [`Decoder::next_command`] lends a [`Frame`] until its next call. The decoder
//! copies only the bytes of a command that crosses the end of the buffer, to make the command
//! contiguous.
//!
//! Invariants, for any input:
//! - The decoder returns a command only after it has read the whole command and verified its
//!   checksum. Every attribute of a command has a number that the decoder knows. Attributes of the
//!   command occur once and have the size of their type.
//! - The decoder reports the end only after an end command. A stream that is cut off at another
//!   place is an error.
//! - Memory is at most twice the longest command that the format allows, and grows only as bytes
//!   arrive. A damaged length field alone costs no memory.
//! - A call that returns an error does not advance the decoder. The next call returns the same
//!   error or, if the input failed, reads again.
//!
//! A separate thread can read a file [ahead](ReadAhead) of the decoder.
//!
//! Streams of other senders may have attributes that do not belong to a command, or that only later
//! versions have. The frame reports each such attribute as an [`Oddity`]. The decoder can
//! [skip](Decoder::skip_unknown) commands with unknown numbers.
//!
//! An input may contain several streams, each with its own header ([`Streams`]).
//!
//! Left out: whether the commands make sense. The receiver refuses a first command that begins no
//! subvolume, and a path that leaves the subvolume.
//!
//! Source: developer documentation, "Send stream format". The documentation allows a reader to skip
//! unknown attributes; this decoder refuses them by number.

mod ahead;
mod looking;
mod payload;
#[cfg(test)]
mod tests;
mod unknown;

pub use ahead::ReadAhead;
pub use payload::Oddity;
pub use unknown::SkippedCommand;

use crate::command::Command;
use crate::error::{Error, Part, Place, Result, StreamProblem};
use buttress_format::crc32c;
use buttress_format::send::{
    COMMAND_CHECKSUM_OFFSET, COMMAND_HEADER_BYTES, CommandKind, MAGIC, STREAM_HEADER_BYTES, Version,
};
use core::ops::Range;
use std::io::{Empty, ErrorKind as IoErrorKind, Read};

/// Size of one read of the input, and the initial size of the buffer, in bytes.
const READ_BYTES: usize = 1 << 20;

/// Part of the input that a decoder decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Streams {
    /// All streams up to the end of the input.
    #[default]
    All,
    /// Decodes the input up to the first end command. The decoder reads no byte after this command,
    /// so another reader can continue the input there. Decoding up to the first end command costs
    /// two reads for each command.
    First,
}

/// Decoder of one stream, or of several consecutive streams.
#[derive(Debug)]
pub struct Decoder<R> {
    input: R,
    /// Input that a thread reads ahead; if present, it replaces `input`.
    ahead: Option<ReadAhead>,
    /// Byte range of the input whose commands the read-ahead thread has already verified.
    checked: Range<u64>,
    streams: Streams,
    buffer: Vec<u8>,
    /// Range of the buffer that was read and is not decoded yet.
    unread: Range<usize>,
    /// Position in the input of the first byte of `unread`.
    place: Place,
    /// Number of stream headers read so far.
    stream: u64,
    state: State,
    unknown: unknown::Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The decoder expects a stream header or, after the first stream, the end of the input.
    Header,
    /// The decoder expects a command.
    Commands(Version),
    /// The decoder has decoded everything that the caller asked for.
    Done,
}

/// One decoded command with its position in the input.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    place: Place,
    stream: u64,
    version: Version,
    bytes: &'a [u8],
    command: Command<'a>,
    oddity: Option<Oddity>,
}

impl<'a> Frame<'a> {
    /// Returns the command.
    #[must_use]
    pub const fn command(&self) -> &Command<'a> {
        &self.command
    }

    /// Returns the offset of the command's header in the input, in bytes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.place.offset
    }

    /// Returns the number of the command in its stream, from 1.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.place.command
    }

    /// Returns the position of the command in the form that errors report.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Returns the number of the command's stream in the input, from 1.
    #[must_use]
    pub const fn stream(&self) -> u64 {
        self.stream
    }

    /// Returns the version of the command's stream.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the first attribute that does not belong to the command in its stream version.
    #[must_use]
    pub const fn oddity(&self) -> Option<Oddity> {
        self.oddity
    }

    /// Returns the bytes of the command's header and payload.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl Decoder<Empty> {
    /// Creates a decoder of all streams of an input that a thread reads ahead.
    #[must_use]
    pub fn ahead(input: ReadAhead) -> Self {
        Self {
            ahead: Some(input),
            ..Self::new(std::io::empty())
        }
    }
}

impl<R: Read> Decoder<R> {
    /// Creates a decoder of all streams of `input`. The input needs no buffering.
    #[must_use]
    pub fn new(input: R) -> Self {
        Self::with_streams(input, Streams::All)
    }

    /// Creates a decoder of the part of `input` that `streams` selects.
    #[must_use]
    pub fn with_streams(input: R, streams: Streams) -> Self {
        Self {
            input,
            ahead: None,
            checked: 0..0,
            streams,
            buffer: Vec::new(),
            unread: 0..0,
            place: Place::default(),
            stream: 0,
            state: State::Header,
            unknown: unknown::Unknown::default(),
        }
    }

    /// Creates a decoder that starts inside a stream. `input` begins with the command at `place` of
    /// stream number `stream`, which has version `version`.
    #[must_use]
    pub fn going_on(input: R, streams: Streams, place: Place, stream: u64, version: Version) -> Self {
        Self {
            place,
            stream,
            state: State::Commands(version),
            ..Self::with_streams(input, streams)
        }
    }

    /// Returns the number of input bytes decoded so far: the offset of the next header.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.place.offset
    }

    /// Returns the next command, or `None` after the last end command that the caller asked for.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes are not a stream or are truncated;
    /// [`Error::VersionUnknown`], [`Error::CommandUnknown`] and [`Error::AttributeUnknown`];
    /// [`Error::Read`] if the input fails.
    pub fn next_command(&mut self) -> Result<Option<Frame<'_>>> {
        let version = match self.state {
            State::Commands(version) => version,
            State::Header => match self.read_stream_header()? {
                Some(version) => version,
                None => return Ok(None),
            },
            State::Done => return Ok(None),
        };
        let (kind, whole_bytes) = loop {
            let header = self.read_command_header(version)?;
            let whole_bytes = self.require_whole(&header)?;
            match header.kind {
                Some(kind) => break (kind, whole_bytes),
                None => self.skip_command(version, header.number, whole_bytes)?,
            }
        };
        let (start, place) = (self.unread.start, self.place);
        let end = start.saturating_add(whole_bytes);
        let bytes = self.buffer.get(start..end).unwrap_or_default();
        let payload = bytes.get(COMMAND_HEADER_BYTES..).unwrap_or_default();
        let (command, oddity) = payload::parse(place, version, kind, payload)?;

        self.unread.start = end;
        self.place.offset = place.offset.saturating_add(whole_bytes as u64);
        self.place.command = place.command.saturating_add(1);
        if kind == CommandKind::End {
            self.place.command = 0;
            self.state = match self.streams {
                Streams::All => State::Header,
                Streams::First => State::Done,
            };
        }
        Ok(Some(Frame {
            place,
            stream: self.stream,
            version,
            bytes,
            command,
            oddity,
        }))
    }

    /// Reads the whole command into the buffer and verifies its checksum. Returns the length of the
    /// command.
    fn require_whole(&mut self, header: &CommandHeader) -> Result<usize> {
        let whole_bytes = COMMAND_HEADER_BYTES.saturating_add(header.payload_bytes);
        let found_bytes = self.fill(whole_bytes)?;
        if found_bytes < whole_bytes {
            return Err(self.cut_short(
                Part::Payload,
                header.payload_bytes,
                found_bytes,
                COMMAND_HEADER_BYTES,
            ));
        }
        let place = self.place;
        let bytes = self.unread_command(0, whole_bytes)?;
        let offset_end = place.offset.saturating_add(whole_bytes as u64);
        let is_checked = self.checked.start <= place.offset && offset_end <= self.checked.end;
        if !is_checked {
            verify(place, header.checksum, bytes)?;
        }
        Ok(whole_bytes)
    }

    /// Reads the header of a stream. Returns `None` if the input ends after an earlier stream.
    fn read_stream_header(&mut self) -> Result<Option<Version>> {
        let found_bytes = self.fill(STREAM_HEADER_BYTES)?;
        if found_bytes == 0 && self.stream > 0 {
            self.state = State::Done;
            return Ok(None);
        }
        let place = self.place;
        let corrupt = |problem| Error::Corrupt { place, problem };
        if found_bytes == 0 {
            return Err(corrupt(StreamProblem::Empty));
        }
        let Some((magic, rest)) = self.unread_bytes().split_first_chunk::<{ MAGIC.len() }>() else {
            return Err(self.cut_short(Part::StreamHeader, STREAM_HEADER_BYTES, found_bytes, 0));
        };
        if *magic != MAGIC {
            return Err(corrupt(StreamProblem::Magic { found: *magic }));
        }
        let Some(number) = rest.first_chunk() else {
            return Err(self.cut_short(Part::StreamHeader, STREAM_HEADER_BYTES, found_bytes, 0));
        };
        let number = u32::from_le_bytes(*number);
        let version = Version::from_raw(number).ok_or(Error::VersionUnknown {
            place,
            version: number,
        })?;
        self.unread.start = self.unread.start.saturating_add(STREAM_HEADER_BYTES);
        self.place = Place {
            offset: place.offset.saturating_add(STREAM_HEADER_BYTES as u64),
            command: 1,
        };
        self.stream = self.stream.saturating_add(1);
        self.state = State::Commands(version);
        Ok(Some(version))
    }

    /// Reads the header of a command and does not advance to its payload.
    fn read_command_header(&mut self, version: Version) -> Result<CommandHeader> {
        let found_bytes = self.fill(COMMAND_HEADER_BYTES)?;
        let place = self.place;
        let corrupt = |problem| Error::Corrupt { place, problem };
        if found_bytes == 0 {
            return Err(corrupt(StreamProblem::EndMissing));
        }
        let Some([l0, l1, l2, l3, k0, k1, checksum @ ..]) =
            self.unread_bytes().first_chunk::<COMMAND_HEADER_BYTES>()
        else {
            return Err(self.cut_short(Part::CommandHeader, COMMAND_HEADER_BYTES, found_bytes, 0));
        };
        let number = u16::from_le_bytes([*k0, *k1]);
        let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]);
        let kind = CommandKind::from_raw(number).filter(|kind| kind.version() <= version);
        if kind.is_none() && !self.unknown.are_skipped() {
            return Err(Error::CommandUnknown {
                place,
                number,
                version,
            });
        }
        let maximum_bytes = version.payload_bytes_max();
        match usize::try_from(length) {
            Ok(payload_bytes) if payload_bytes <= maximum_bytes => Ok(CommandHeader {
                kind,
                number,
                payload_bytes,
                checksum: u32::from_le_bytes(*checksum),
            }),
            _ => Err(corrupt(StreamProblem::PayloadLength {
                found_bytes: length,
                maximum_bytes,
                version,
            })),
        }
    }

    fn unread_bytes(&self) -> &[u8] {
        self.buffer.get(self.unread.clone()).unwrap_or_default()
    }

    /// Returns the command at `from` in the buffer; [`require_whole`](Self::require_whole) has read
    /// it.
    fn unread_command(&self, from: usize, whole_bytes: usize) -> Result<&[u8]> {
        let bytes = self.unread_bytes().get(from..whole_bytes);
        bytes.ok_or_else(|| self.cut_short(Part::Payload, whole_bytes, self.unread.len(), from))
    }

    fn cut_short(&self, part: Part, expected_bytes: usize, found_bytes: usize, before_bytes: usize) -> Error {
        Error::Corrupt {
            place: self.place,
            problem: StreamProblem::CutShort {
                part,
                expected_bytes,
                found_bytes: found_bytes.saturating_sub(before_bytes),
            },
        }
    }

    /// Reads until the buffer holds `needed_bytes` or the input ends. Returns the number of
    /// available bytes, at most `needed_bytes`.
    #[inline]
    fn fill(&mut self, needed_bytes: usize) -> Result<usize> {
        while self.unread.len() < needed_bytes {
            if self.read_more(needed_bytes)? == 0 {
                break;
            }
        }
        Ok(self.unread.len().min(needed_bytes))
    }

    /// Reads from the input with one call. Returns 0 at the end of the input.
    #[cold]
    fn read_more(&mut self, needed_bytes: usize) -> Result<usize> {
        if self.ahead.is_some() {
            return self.take_piece();
        }
        self.make_room(needed_bytes);
        let missing = needed_bytes.saturating_sub(self.unread.len());
        let free = self.buffer.get_mut(self.unread.end..).unwrap_or_default();
        let room = match self.streams {
            Streams::All => free,
            Streams::First => {
                let length = missing.min(free.len());
                free.get_mut(..length).unwrap_or_default()
            }
        };
        loop {
            match self.input.read(room) {
                Ok(read_bytes) => {
                    // A reader that reports more bytes than the buffer could hold violates its
                    // contract.
                    let read_bytes = read_bytes.min(room.len());
                    self.unread.end = self.unread.end.saturating_add(read_bytes);
                    return Ok(read_bytes);
                }
                Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::Read {
                        offset: self.place.offset.saturating_add(self.unread.len() as u64),
                        error,
                    });
                }
            }
        }
    }

    /// Appends the next read-ahead piece to the unread bytes, or replaces an empty buffer with the
    /// piece.
    fn take_piece(&mut self) -> Result<usize> {
        let offset = self.place.offset.saturating_add(self.unread.len() as u64);
        let mut used = Vec::new();
        if self.unread.is_empty() {
            used = core::mem::take(&mut self.buffer);
            self.unread = 0..0;
        }
        let mut next = self.next_piece(used, offset)?;
        while next.as_ref().is_some_and(|piece| piece.bytes.is_empty()) {
            next = self.next_piece(Vec::new(), offset)?;
        }
        let Some(piece) = next else { return Ok(0) };
        let read_bytes = piece.bytes.len();
        self.checked = offset..offset.saturating_add(piece.checked_bytes as u64);
        if self.unread.is_empty() {
            self.buffer = piece.bytes;
            self.unread = 0..read_bytes;
        } else {
            self.buffer.truncate(self.unread.end);
            self.buffer.drain(..self.unread.start);
            self.buffer.extend_from_slice(&piece.bytes);
            self.unread = 0..self.buffer.len();
        }
        Ok(read_bytes)
    }

    fn next_piece(&mut self, used: Vec<u8>, offset: u64) -> Result<Option<ahead::Piece>> {
        match self.ahead.as_mut().map(|ahead| ahead.next(used)) {
            None => Ok(None),
            Some(next) => next.map_err(|error| Error::Read { offset, error }),
        }
    }

    /// Makes space after the unread bytes: moves them to the front, and grows a buffer that they
    /// fill. The buffer never grows to more than twice the bytes that have arrived.
    fn make_room(&mut self, needed_bytes: usize) {
        let end_needed = self.unread.start.saturating_add(needed_bytes);
        if self.unread.start > 0 && (self.unread.is_empty() || end_needed > self.buffer.len()) {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        if self.unread.end >= self.buffer.len() {
            let size = self.buffer.len().saturating_mul(2).max(READ_BYTES);
            self.buffer.resize(size, 0);
        }
    }
}

struct CommandHeader {
    /// Kind of the command; `None` if its number is unknown and the decoder skips the command.
    kind: Option<CommandKind>,
    number: u16,
    payload_bytes: usize,
    checksum: u32,
}

/// Verifies a whole command against the checksum in its header.
fn verify(place: Place, stored: u32, bytes: &[u8]) -> Result<()> {
    let (mut header, payload) = match bytes.split_first_chunk::<COMMAND_HEADER_BYTES>() {
        Some((header, payload)) => (*header, payload),
        None => ([0; COMMAND_HEADER_BYTES], bytes),
    };
    if let Some(field) = header.get_mut(COMMAND_CHECKSUM_OFFSET..) {
        field.fill(0);
    }
    let computed = crc32c(crc32c(0, &header), payload);
    if computed == stored {
        Ok(())
    } else {
        Err(Error::Corrupt {
            place,
            problem: StreamProblem::Checksum {
                stored,
                computed,
                bytes: bytes.len(),
            },
        })
    }
}
