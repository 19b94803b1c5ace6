//! Readahead for streams: a separate thread reads a stream and verifies its commands, while another
//! thread executes them.
//!
//! The thread reads pieces of 1 MiB, cuts them between two commands and computes the commands'
//! checksums. A [`Decoder`](super::Decoder) uses the pieces without copying them, and does not
//! verify a command again. The decoder handles every error: after the first problem, the thread
//! delivers unverified pieces. Errors and their positions are therefore the same as without the
//! read-ahead thread.
//!
//! At most [`PIECES`] pieces are queued, and the thread reuses their buffers.
//!
//! Left out: inputs that may block a reader, such as pipes and sockets, because dropping a
//! [`ReadAhead`] joins its thread.

use super::verify;
use crate::error::Place;
use buttress_exact::Exact as _;
use buttress_format::send::{COMMAND_HEADER_BYTES, CommandKind, MAGIC, STREAM_HEADER_BYTES, Version};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::io::{self, Read};
use std::thread::JoinHandle;

/// Size of a read-ahead piece in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Largest number of queued pieces.
const PIECES: usize = 4;

/// A part of the input, with the length of its verified beginning.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    /// Length of the verified beginning: whole headers and commands with correct checksums, in
    /// bytes.
    pub(super) checked_bytes: usize,
}

/// An input that a thread reads ahead of its consumer.
#[derive(Debug)]
pub struct ReadAhead {
    /// Queue of pieces; `None` during drop, so that the thread finds its queue closed.
    pieces: Option<Receiver<io::Result<Piece>>>,
    /// The next piece, if a caller has peeked at it.
    next: Option<io::Result<Piece>>,
    used: Sender<Vec<u8>>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Starts a thread that reads `input`, which must never block on another process.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn start(input: impl Read + Send + 'static) -> io::Result<Self> {
        let (hand_over, pieces) = bounded(PIECES);
        let (used, free) = bounded(PIECES);
        let ahead = Ahead {
            input,
            free,
            walk: Walk::Header,
        };
        let thread = std::thread::Builder::new()
            .name("buttress-stream".to_owned())
            .spawn(move || ahead.run(&hand_over))?;
        Ok(Self {
            pieces: Some(pieces),
            next: None,
            used,
            thread: Some(thread),
        })
    }

    /// Returns the next piece and gives the buffer `used` back; `None` at the end of the input.
    pub(super) fn next(&mut self, used: Vec<u8>) -> io::Result<Option<Piece>> {
        if used.capacity() > 0 {
            // If the queue of used buffers is full, the thread drops this buffer.
            let _ = self.used.try_send(used);
        }
        if let Some(next) = self.next.take() {
            return next.map(Some);
        }
        if let Some(piece) = self.pieces.as_ref().and_then(|pieces| pieces.recv().ok()) {
            return piece.map(Some);
        }
        match self.thread.take().map(JoinHandle::join) {
            // The thread stopped early, so this is not the end of the input.
            Some(Err(_)) => Err(io::Error::other("the thread that reads ahead panicked")),
            Some(Ok(())) | None => Ok(None),
        }
    }

    /// Returns the next piece without consuming it, if the thread has read it already.
    pub(super) fn peek(&mut self) -> Option<&[u8]> {
        if self.next.is_none() {
            self.next = self.pieces.as_ref().and_then(|pieces| pieces.try_recv().ok());
        }
        match &self.next {
            Some(Ok(piece)) => Some(&piece.bytes),
            _ => None,
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.pieces.take();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// The kind of data that the thread expects next in the input.
#[derive(Clone, Copy, Debug)]
enum Walk {
    Header,
    Commands(Version),
    /// After an error in the input, any bytes can follow.
    Unknown,
}

/// State of the read-ahead thread.
struct Ahead<R> {
    input: R,
    free: Receiver<Vec<u8>>,
    walk: Walk,
}

impl<R: Read> Ahead<R> {
    fn run(mut self, hand_over: &Sender<io::Result<Piece>>) {
        // Bytes of an incomplete command at the end of the previous piece.
        let mut rest = Vec::new();
        loop {
            let mut bytes = self.free.try_recv().unwrap_or_default();
            bytes.clear();
            bytes.append(&mut rest);
            let read = self.read_more(&mut bytes);
            let checked_bytes = self.check(&bytes);
            let is_last = matches!(read, Ok(false));
            if read.is_ok() && !is_last && !matches!(self.walk, Walk::Unknown) {
                rest.extend_from_slice(bytes.get(checked_bytes..).unwrap_or_default());
                bytes.truncate(checked_bytes);
            } else if !is_last {
                // After a failed command or an error, the command boundaries are unknown.
                self.walk = Walk::Unknown;
            }
            let piece = Piece { bytes, checked_bytes };
            if hand_over.send(Ok(piece)).is_err() {
                return;
            }
            let ended = match read {
                Ok(goes_on) => !goes_on,
                Err(error) => hand_over.send(Err(error)).is_err(),
            };
            if ended {
                return;
            }
        }
    }

    /// Appends a piece of the input to `bytes`. Returns false at the end of the input.
    fn read_more(&mut self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        bytes.reserve_exact(PIECE_BYTES);
        let piece_bytes = PIECE_BYTES as u64;
        let read = self.input.by_ref().take(piece_bytes).read_to_end(bytes)?;
        Ok(read == PIECE_BYTES)
    }

    /// Returns the length of the beginning of `bytes` that holds whole headers and correct
    /// commands.
    fn check(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        loop {
            let (length, next) = match self.walk {
                Walk::Header => stream_header(rest),
                Walk::Commands(version) => command(rest, version),
                Walk::Unknown => (None, Walk::Unknown),
            };
            self.walk = next;
            let Some(after) = length.and_then(|length| rest.get(length..)) else {
                return bytes.len().saturating_sub(rest.len());
            };
            rest = after;
        }
    }
}

/// Returns the length of a stream header, if it is complete and correct, and the kind of data that
/// follows.
fn stream_header(bytes: &[u8]) -> (Option<usize>, Walk) {
    let Some((magic, rest)) = bytes.split_first_chunk::<{ MAGIC.len() }>() else {
        return (None, Walk::Header);
    };
    let Some(number) = rest.first_chunk() else {
        return (None, Walk::Header);
    };
    match Version::from_raw(u32::from_le_bytes(*number)) {
        Some(version) if *magic == MAGIC => (Some(STREAM_HEADER_BYTES), Walk::Commands(version)),
        _ => (None, Walk::Unknown),
    }
}

/// Returns the length of a command, if it is complete and correct, and the kind of data that
/// follows.
fn command(bytes: &[u8], version: Version) -> (Option<usize>, Walk) {
    let here = Walk::Commands(version);
    let Some([l0, l1, l2, l3, k0, k1, checksum @ ..]) = bytes.first_chunk::<COMMAND_HEADER_BYTES>() else {
        return (None, here);
    };
    let payload_bytes = (u32::from_le_bytes([*l0, *l1, *l2, *l3])).narrow::<usize>();
    if payload_bytes > version.payload_bytes_max() {
        return (None, Walk::Unknown);
    }
    let length = COMMAND_HEADER_BYTES.saturating_add(payload_bytes);
    let Some(whole) = bytes.get(..length) else {
        return (None, here);
    };
    if verify(Place::default(), u32::from_le_bytes(*checksum), whole).is_err() {
        return (None, Walk::Unknown);
    }
    let kind = CommandKind::from_raw(u16::from_le_bytes([*k0, *k1]));
    let next = if kind == Some(CommandKind::End) {
        Walk::Header
    } else {
        here
    };
    (Some(length), next)
}
