//! Decoder tests on encoder output: whole, in pieces, cut and damaged.

mod odd;

use super::*;
use crate::command::AttributeSource;
use crate::encoder::Encoder;
use buttress_format::send::AttributeKind;
use buttress_format::{ErrorKind, FileOffset};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io;

/// Attribute values from which the tests can build any command.
#[derive(Clone, Debug)]
struct Values(BTreeMap<AttributeKind, Vec<u8>>);

impl<'a> AttributeSource<'a> for &'a Values {
    fn attribute(&self, kind: AttributeKind) -> Option<&'a [u8]> {
        self.0.get(&kind).map(Vec::as_slice)
    }
}

/// Generates a command of any kind that the version defines, with arbitrary values.
fn any_values(version: Version) -> impl Strategy<Value = (CommandKind, Values)> {
    let kinds: Vec<_> = CommandKind::ALL
        .into_iter()
        .filter(|kind| kind.version() <= version)
        .collect();
    let value = proptest::collection::vec(any::<u8>(), 0..300);
    let values = proptest::collection::vec(value, AttributeKind::ALL.len());
    (proptest::sample::select(kinds), values).prop_map(move |(kind, values)| {
        let values = AttributeKind::ALL.into_iter().zip(values);
        let values = values
            .filter(|(attribute, _)| attribute.version() <= version)
            .map(|(attribute, mut bytes)| {
                if let Some(size) = attribute.value_type().size_bytes() {
                    bytes.resize(size, 0x5a);
                }
                (attribute, bytes)
            });
        (kind, Values(values.collect()))
    })
}

fn stream_of(version: Version, commands: &[(CommandKind, Values)]) -> Vec<u8> {
    let encoder = Encoder::new(version);
    let mut stream = Vec::new();
    encoder.header(&mut stream);
    for (kind, values) in commands.iter().filter(|(kind, _)| *kind != CommandKind::End) {
        let command = Command::from_attributes(*kind, &values).unwrap();
        encoder.encode(&command, &mut stream).unwrap();
    }
    encoder.encode(&Command::End, &mut stream).unwrap();
    stream
}

/// Reader that returns its bytes in pieces of the given sizes, repeatedly, with interruptions
/// between them.
struct Pieces<'a> {
    bytes: &'a [u8],
    sizes: Vec<usize>,
    turn: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.turn += 1;
        if self.turn.is_multiple_of(3) {
            return Err(IoErrorKind::Interrupted.into());
        }
        let size = self.sizes[self.turn % self.sizes.len()];
        let length = size.min(out.len()).min(self.bytes.len());
        let (now, later) = self.bytes.split_at(length);
        out[..length].copy_from_slice(now);
        self.bytes = later;
        Ok(length)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn encoded_commands_are_decoded_from_pieces_of_any_size(
        (version, commands) in proptest::sample::select(&Version::ALL[..]).prop_flat_map(|version| {
            (Just(version), proptest::collection::vec(any_values(version), 0..20))
        }),
        sizes in proptest::collection::vec(1..500_usize, 1..8),
        first_only: bool,
    ) {
        let stream = stream_of(version, &commands);
        let input = Pieces { bytes: &stream, sizes, turn: 0 };
        let streams = if first_only { Streams::First } else { Streams::All };
        let mut decoder = Decoder::with_streams(input, streams);
        let mut again = Vec::new();
        Encoder::new(version).header(&mut again);
        for (kind, values) in commands.iter().filter(|(kind, _)| *kind != CommandKind::End) {
            let frame = decoder.next_command().unwrap().unwrap();
            let expected = Command::from_attributes(*kind, &values).unwrap();
            prop_assert_eq!(frame.command(), &expected);
            prop_assert_eq!(frame.offset(), again.len() as u64);
            Encoder::new(version).encode(frame.command(), &mut again).unwrap();
        }
        let end = *decoder.next_command().unwrap().unwrap().command();
        prop_assert_eq!(end, Command::End);
        prop_assert!(decoder.next_command().unwrap().is_none());
        Encoder::new(version).encode(&Command::End, &mut again).unwrap();
        prop_assert!(again == stream);
    }

    #[test]
    fn a_wrong_byte_is_always_found(
        commands in proptest::collection::vec(any_values(Version::V2), 1..6),
        place: prop::sample::Index,
        change in 1..=255_u8,
    ) {
        let mut stream = stream_of(Version::V2, &commands);
        let at = place.index(stream.len());
        stream[at] ^= change;
        // The versions 1 and 3 are valid too, but frame data differently or have the same checksum.
        prop_assume!(!(13..17).contains(&at));
        let mut decoder = Decoder::new(stream.as_slice());
        let failed = loop {
            match decoder.next_command() {
                Ok(Some(_)) => {}
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        prop_assert!(failed, "byte {}", at);
    }
}

/// Builds a stream of one command with this number, payload and a correct checksum.
fn raw(version: u32, number: u16, payload: &[u8]) -> Vec<u8> {
    let mut stream = MAGIC.to_vec();
    stream.extend_from_slice(&version.to_le_bytes());
    let mut command = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    command.extend_from_slice(&number.to_le_bytes());
    command.extend_from_slice(&[0; 4]);
    command.extend_from_slice(payload);
    let checksum = crc32c(0, &command);
    command[COMMAND_CHECKSUM_OFFSET..COMMAND_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    stream.extend_from_slice(&command);
    stream
}

fn first_error(stream: &[u8]) -> Error {
    let mut decoder = Decoder::new(stream);
    loop {
        match decoder.next_command() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no error"),
            Err(error) => return error,
        }
    }
}

#[test]
fn each_check_says_where_and_what() {
    let long = raw(1, 15, &vec![0; 70_000]);
    let mut wrong = raw(1, 21, b"");
    wrong[23] = 0xff;
    let cases: [(Vec<u8>, &str); 16] = [
        (b"".to_vec(), "stream header at byte 0: the stream is empty"),
        (
            b"btrfs".to_vec(),
            "stream header at byte 0: the stream is truncated (found 5 of 17 bytes of the stream's header)",
        ),
        (
            b"btrfs-strEam\0\x01\0\0\0".to_vec(),
            "stream header at byte 0: not a send stream (found 62747266732d73747245616d00 at its beginning)",
        ),
        (
            raw(4, 21, b""),
            "stream header at byte 0: unsupported stream version (found 4, expected at most 3)",
        ),
        (
            raw(1, 27, b""),
            "command 1 at byte 17: unknown command number 27 in a stream of version 1",
        ),
        (
            raw(1, 23, b""),
            "command 1 at byte 17: unknown command number 23 (fallocate) in a stream of version 1",
        ),
        (
            long,
            "command 1 at byte 17: the payload is too long (found 70000 bytes, expected at most 65526 in version 1)",
        ),
        (
            wrong,
            "command 1 at byte 17: wrong checksum of 10 bytes (found 0x9dc96cff, computed 0x9dc96c50)",
        ),
        (
            raw(1, 11, b"\x0f\0\x01\0f"),
            "command 2 at byte 32: the stream is truncated: the end command is missing",
        ),
        (
            raw(1, 11, b"\x24\0\x01\0f"),
            "command 1 at byte 17: unlink: unknown attribute number 36 in a stream of version 1",
        ),
        (
            raw(1, 11, b"\x0f\0\x01\0f\x0f\0\x01\0f"),
            "command 1 at byte 17: unlink: attribute path is repeated at byte 5 of the payload",
        ),
        (
            raw(1, 11, b"\x0f\0\x02\0f"),
            "command 1 at byte 17: unlink: attribute number 15 at byte 0 of the payload is incomplete (found 5 bytes, expected 6)",
        ),
        (
            raw(1, 11, b"\x0f\0\x02"),
            "command 1 at byte 17: unlink: attribute number 15 at byte 0 of the payload is incomplete (found 3 bytes, expected 4)",
        ),
        (
            raw(1, 11, b"\x0f\0\x01\0f\x0f"),
            "command 1 at byte 17: unlink: incomplete attribute at byte 5 of the payload (found 1 bytes)",
        ),
        (
            raw(1, 11, b""),
            "command 1 at byte 17: unlink: attribute path is missing",
        ),
        (
            raw(1, 18, b"\x0f\0\x01\0f\x05\0\x04\0\0\0\0\0"),
            "command 1 at byte 17: chmod: attribute mode has the wrong length (found 4 bytes, expected 8)",
        ),
    ];
    for (stream, message) in cases {
        let error = first_error(&stream);
        assert_eq!(error.to_string(), message);
        let unsupported = message.contains("unknown") || message.contains("unsupported");
        let expected = if unsupported {
            ErrorKind::Unsupported
        } else {
            ErrorKind::Corrupt
        };
        assert_eq!(error.kind(), expected, "{message}");
    }
}

#[test]
fn attributes_may_come_in_any_order() {
    let mut stream = raw(1, 18, b"\x05\0\x08\0\xa4\x01\0\0\0\0\0\0\x0f\0\x01\0f");
    Encoder::new(Version::V1)
        .encode(&Command::End, &mut stream)
        .unwrap();
    let mut decoder = Decoder::new(stream.as_slice());
    let frame = decoder.next_command().unwrap().unwrap();
    assert_eq!(
        *frame.command(),
        Command::Chmod {
            path: b"f",
            mode: 0o644
        }
    );
}

#[test]
fn streams_follow_each_other_unless_only_the_first_is_wanted() {
    let one = stream_of(Version::V1, &[]);
    let two = stream_of(Version::V2, &[]);
    let both = [one.as_slice(), &two].concat();
    let mut decoder = Decoder::new(both.as_slice());
    for (stream, version, offset) in [(1, Version::V1, 17), (2, Version::V2, 44)] {
        let frame = decoder.next_command().unwrap().unwrap();
        assert_eq!((frame.stream(), frame.version()), (stream, version));
        assert_eq!((frame.index(), frame.offset()), (1, offset));
    }
    assert!(decoder.next_command().unwrap().is_none());

    let mut input = both.as_slice();
    let mut decoder = Decoder::with_streams(&mut input, Streams::First);
    assert!(decoder.next_command().unwrap().is_some());
    assert!(decoder.next_command().unwrap().is_none());
    assert_eq!(input, two, "what follows is left for the next reader");

    let behind = [one.as_slice(), b"x"].concat();
    assert_eq!(
        first_error(&behind).to_string(),
        "stream header at byte 27: the stream is truncated (found 1 of 17 bytes of the stream's header)"
    );
}

/// Reader that fails once at the end of each part, then continues with the next part.
struct Stumbling<'a>(Vec<&'a [u8]>);

impl Read for Stumbling<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(first) = self.0.first_mut() else {
            return Ok(0);
        };
        if first.is_empty() {
            self.0.remove(0);
            return Err(io::Error::other("cable"));
        }
        let length = out.len().min(first.len());
        out[..length].copy_from_slice(&first[..length]);
        *first = &first[length..];
        Ok(length)
    }
}

#[test]
fn a_failed_read_can_be_tried_again() {
    let stream = stream_of(Version::V1, &[]);
    for cut in 0..stream.len() {
        let mut decoder = Decoder::new(Stumbling(vec![&stream[..cut], &stream[cut..]]));
        let error = decoder.next_command().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(
            error.to_string(),
            format!("cannot read the stream at byte {cut}: cable")
        );
        assert_eq!(*decoder.next_command().unwrap().unwrap().command(), Command::End);
    }
}

#[test]
fn a_length_that_is_not_there_takes_no_memory() {
    let mut stream = raw(2, 15, b"");
    stream[17..21].copy_from_slice(&(16_u32 << 20).to_le_bytes());
    let mut decoder = Decoder::new(stream.as_slice());
    assert!(decoder.next_command().is_err());
    assert!(decoder.buffer.len() <= READ_BYTES);
    stream[17..21].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(first_error(&stream).to_string().contains("at most 16777216"));
}

#[test]
fn the_longest_commands_fit() {
    for version in Version::ALL {
        let overhead = version.payload_bytes_max() - if version == Version::V1 { 21 } else { 19 };
        let data = vec![
            1;
            overhead.min(if version == Version::V1 {
                65_505
            } else {
                usize::MAX
            })
        ];
        let write = Command::Write {
            path: b"f",
            offset: FileOffset::new(0),
            data: &data,
        };
        let encoder = Encoder::new(version);
        let mut stream = Vec::new();
        encoder.header(&mut stream);
        encoder.encode(&write, &mut stream).unwrap();
        assert_eq!(stream.len(), 27 + version.payload_bytes_max());
        encoder.encode(&Command::End, &mut stream).unwrap();
        let mut decoder = Decoder::new(stream.as_slice());
        assert!(*decoder.next_command().unwrap().unwrap().command() == write);
        assert!(decoder.buffer.len() <= 2 * (READ_BYTES + version.payload_bytes_max()));
    }
}

/// Returns each command with its bytes and position, and the error that ended the decoding.
fn told<R: Read>(mut decoder: Decoder<R>) -> (Vec<(u64, u64, Vec<u8>)>, String) {
    let mut commands = Vec::new();
    loop {
        match decoder.next_command() {
            Ok(Some(frame)) => commands.push((frame.offset(), frame.index(), frame.bytes().to_vec())),
            Ok(None) => return (commands, String::new()),
            Err(error) => return (commands, error.to_string()),
        }
    }
}

fn ahead(stream: &[u8]) -> Decoder<Empty> {
    Decoder::ahead(ReadAhead::start(io::Cursor::new(stream.to_vec())).unwrap())
}

/// Returns streams of several read-ahead pieces, with commands across piece boundaries.
fn long_streams() -> Vec<u8> {
    let mut streams = Vec::new();
    for version in [Version::V1, Version::V2] {
        let encoder = Encoder::new(version);
        encoder.header(&mut streams);
        for number in 0..90_u64 {
            let length = usize::try_from(number * 7919 % 48_000).unwrap();
            let write = Command::Write {
                path: b"file",
                offset: FileOffset::new(number << 16),
                data: &vec![b'd'; length],
            };
            encoder.encode(&write, &mut streams).unwrap();
        }
        encoder.encode(&Command::End, &mut streams).unwrap();
    }
    streams
}

#[test]
fn reading_ahead_gives_the_same_commands() {
    let streams = long_streams();
    assert!(streams.len() > 3 << 20, "several pieces");
    let (commands, error) = told(ahead(&streams));
    assert_eq!((commands.len(), error.as_str()), (182, ""));
    assert_eq!((commands, error), told(Decoder::new(streams.as_slice())));
}

#[test]
fn checksums_verified_ahead_are_not_computed_again() {
    let mut decoder = ahead(&long_streams());
    decoder.next_command().unwrap();
    // The buffer holds only verified bytes and ends between two commands.
    let offset = decoder.offset() + decoder.unread.len() as u64;
    assert_eq!(decoder.checked, 0..offset);
    let at = decoder.unread.start + 100;
    decoder.buffer[at] ^= 1;
    decoder.next_command().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn damaged_or_cut_streams_give_the_same_error_when_read_ahead(
        change in proptest::option::of((any::<prop::sample::Index>(), 1..=255_u8)),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut streams = long_streams();
        if let Some((at, change)) = change {
            let at = at.index(streams.len());
            streams[at] ^= change;
        }
        if let Some(cut) = cut {
            streams.truncate(cut.index(streams.len()));
        }
        prop_assert!(told(ahead(&streams)) == told(Decoder::new(streams.as_slice())));
    }

    #[test]
    fn small_streams_are_the_same_read_ahead(
        commands in proptest::collection::vec(any_values(Version::V2), 0..6),
        change in proptest::option::of((any::<prop::sample::Index>(), 1..=255_u8)),
    ) {
        let mut stream = stream_of(Version::V2, &commands);
        if let Some((at, change)) = change {
            let at = at.index(stream.len());
            stream[at] ^= change;
        }
        prop_assert_eq!(told(ahead(&stream)), told(Decoder::new(stream.as_slice())));
    }
}

#[test]
fn an_input_that_fails_is_told_where_and_read_on() {
    /// Reader that fails once after a given number of bytes, then continues.
    struct Failing {
        after: u64,
        has_failed: bool,
        input: io::Cursor<Vec<u8>>,
    }
    impl Read for Failing {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let left = self.after.saturating_sub(self.input.position());
            if self.has_failed || left > 0 {
                let length = if self.has_failed {
                    out.len()
                } else {
                    out.len().min(usize::try_from(left).unwrap())
                };
                return self.input.read(&mut out[..length]);
            }
            self.has_failed = true;
            Err(io::Error::other("a bad sector"))
        }
    }
    let input = Failing {
        after: 1_600_001,
        has_failed: false,
        input: io::Cursor::new(long_streams()),
    };
    let mut decoder = Decoder::ahead(ReadAhead::start(input).unwrap());
    let mut errors = Vec::new();
    let mut commands = 0;
    loop {
        match decoder.next_command() {
            Ok(Some(_)) => commands += 1,
            Ok(None) => break,
            Err(Error::Read { offset, .. }) => errors.push(offset),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((commands, errors.as_slice()), (182, &[1_600_001][..]));
}
