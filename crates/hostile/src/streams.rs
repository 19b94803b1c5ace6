//! Targets for send streams.
//!
//! An input is a byte of choices (the pieces in which the decoder reads, and whether it stops at
//! the first end) and the stream. The target `stream` decodes the stream unchanged. The target
//! `stream_mended` first repairs magic, version, command numbers, lengths beyond the end, every
//! checksum, and a missing end.
//!
//! A decoded command must print, encode again, and decode to the same command. Equal bytes in other
//! pieces must give equal commands and the same error.

use crate::Depth;
use crate::input::Input;
use crate::seeds;
use buttress_format::crc32c;
use buttress_format::send::{
    COMMAND_CHECKSUM_OFFSET, COMMAND_HEADER_BYTES, CommandKind, MAGIC, STREAM_HEADER_BYTES, Version,
};
use buttress_stream::{Command, Decoder, Encoder, Frame, Oddity, Streams, TextDump};
use std::fs;
use std::io::{self, Read};

/// The target of an unchanged stream.
pub fn stream(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    run(input.rest(), choices)
}

/// The target of a stream whose immediately rejected fields are repaired.
pub fn stream_mended(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    run(&mend(input.rest()), choices)
}

/// Returns the input with which a stream target decodes `stream` as a whole.
#[must_use]
pub fn encode(stream: &[u8]) -> Vec<u8> {
    [&[0], stream].concat()
}

/// Returns the committed streams of the crate `buttress-stream`: one for each command, and some of
/// the kernel's.
///
/// # Panics
/// A committed file cannot be read.
#[must_use]
pub fn samples() -> Vec<Vec<u8>> {
    let folder = seeds::folder().join("../crates/stream/tests/golden");
    let files = fs::read_dir(folder).expect("the golden streams are in the repository");
    files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "stream"))
        .map(|path| fs::read(path).expect("a golden stream can be read"))
        .collect()
}

/// A reader that returns a bounded number of bytes at once.
struct Pieces<'a> {
    bytes: &'a [u8],
    piece_bytes: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.piece_bytes.min(out.len());
        self.bytes.read(&mut out[..length])
    }
}

fn run(bytes: &[u8], choices: u8) -> Depth {
    let streams = if choices & 0x80 == 0 {
        Streams::All
    } else {
        Streams::First
    };
    let mut whole = Decoder::with_streams(bytes, streams);
    let pieces = Pieces {
        bytes,
        piece_bytes: usize::from(choices & 0x7f) + 1,
    };
    let mut pieces = Decoder::with_streams(pieces, streams);
    let mut dump = TextDump::utc();
    let mut commands = 0_u64;
    loop {
        let one = whole.next_command();
        let other = pieces.next_command();
        match (one, other) {
            (Ok(Some(frame)), Ok(Some(again))) => {
                assert_eq!(frame.command(), again.command(), "pieces give another command");
                assert_eq!(frame.place(), again.place());
                show(&frame, &mut dump);
                commands += 1;
            }
            (Ok(None), Ok(None)) => return Depth::Passed,
            (Err(error), Err(again)) => {
                assert_eq!(error.to_string(), again.to_string(), "pieces give another error");
                return Depth::passed(commands > 0);
            }
            (one, other) => panic!("{one:?}, but in pieces {other:?}"),
        }
    }
}

/// Prints, encodes and decodes a decoded command, which must give the same command.
fn show(frame: &Frame<'_>, dump: &mut TextDump) {
    let mut text = Vec::new();
    dump.line(frame.command(), &mut text);
    assert!(text.is_ascii(), "a line of a dump is not ASCII");
    let ends = usize::from(*frame.command() != Command::End);
    assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), ends);

    // Only the stream's own version has a place for an attribute of a later version.
    let version = match frame.oddity() {
        Some(Oddity::Early(attribute)) => attribute.version(),
        _ => frame.version(),
    };
    let encoder = Encoder::new(version);
    let mut stream = Vec::new();
    encoder.header(&mut stream);
    if let Err(error) = encoder.encode(frame.command(), &mut stream) {
        panic!("a decoded command cannot be encoded: {error}");
    }
    let mut again = Decoder::new(stream.as_slice());
    match again.next_command() {
        Ok(Some(again)) => assert_eq!(again.command(), frame.command()),
        other => panic!("an encoded command gives {other:?}"),
    }
}

/// Returns the stream with correct headers and checksums.
#[must_use]
pub(crate) fn mend(bytes: &[u8]) -> Vec<u8> {
    let mut stream = bytes.to_vec();
    stream.resize(stream.len().max(STREAM_HEADER_BYTES), 0);
    stream[..MAGIC.len()].copy_from_slice(&MAGIC);
    let version = Version::ALL[usize::from(stream[MAGIC.len()].wrapping_sub(1)) % Version::ALL.len()];
    stream[MAGIC.len()..STREAM_HEADER_BYTES].copy_from_slice(&version.to_raw().to_le_bytes());
    let mut at = STREAM_HEADER_BYTES;
    let mut last = None;
    while stream.len() - at >= COMMAND_HEADER_BYTES {
        let kind = mended_kind(&stream[at..], version);
        last = Some(kind);
        at = mend_command(&mut stream, at, kind);
        if kind == CommandKind::End {
            break;
        }
    }
    if last != Some(CommandKind::End) {
        stream.truncate(at);
        stream.resize(at + COMMAND_HEADER_BYTES, 0);
        mend_command(&mut stream, at, CommandKind::End);
    }
    stream
}

/// Returns a command kind of this version whose number is nearest to the given one.
fn mended_kind(command: &[u8], version: Version) -> CommandKind {
    let known: Vec<_> = CommandKind::ALL
        .into_iter()
        .filter(|kind| kind.version() <= version)
        .collect();
    known[usize::from(command[4].wrapping_sub(1)) % known.len()]
}

/// Repairs number, length and checksum of the command at `at`, and returns its end.
fn mend_command(stream: &mut [u8], at: usize, kind: CommandKind) -> usize {
    let rest = stream.len() - at - COMMAND_HEADER_BYTES;
    let claimed = stream[at..]
        .first_chunk()
        .map_or(0, |field| u32::from_le_bytes(*field));
    let payload_bytes = usize::try_from(claimed).unwrap_or(usize::MAX).min(rest);
    let end = at + COMMAND_HEADER_BYTES + payload_bytes;
    let command = &mut stream[at..end];
    let length = u32::try_from(payload_bytes).unwrap_or(0);
    command[..4].copy_from_slice(&length.to_le_bytes());
    command[4..COMMAND_CHECKSUM_OFFSET].copy_from_slice(&kind.to_raw().to_le_bytes());
    command[COMMAND_CHECKSUM_OFFSET..COMMAND_HEADER_BYTES].fill(0);
    let checksum = crc32c(0, command);
    command[COMMAND_CHECKSUM_OFFSET..COMMAND_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    end
}
