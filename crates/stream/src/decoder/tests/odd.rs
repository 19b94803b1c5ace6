//! Decoder tests on streams of other senders: attributes of other commands, and unknown commands.

use super::super::*;
use super::raw;
use crate::encoder::Encoder;
use buttress_format::ErrorKind;
use buttress_format::send::AttributeKind;

/// Builds a version 1 stream of the given commands, with its end command.
fn streamed(commands: &[(u16, &[u8])]) -> Vec<u8> {
    let mut stream = Vec::new();
    Encoder::new(Version::V1).header(&mut stream);
    for (number, payload) in commands {
        stream.extend_from_slice(raw(1, *number, payload).get(STREAM_HEADER_BYTES..).unwrap());
    }
    Encoder::new(Version::V1)
        .encode(&Command::End, &mut stream)
        .unwrap();
    stream
}

#[test]
fn attributes_of_other_commands_and_later_versions_are_oddities() {
    let mut times = b"\x0f\0\x01\0f".to_vec();
    for number in 9..=12_u8 {
        times.extend_from_slice(&[number, 0, 12, 0, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    let stream = streamed(&[
        (11, b"\x10\0\x01\0f\x0f\0\x01\0g"),
        (20, &times),
        (11, b"\x0f\0\x01\0f"),
    ]);
    let mut decoder = Decoder::new(stream.as_slice());
    let unlink = decoder.next_command().unwrap().unwrap();
    assert_eq!(*unlink.command(), Command::Unlink { path: b"g" });
    assert_eq!(unlink.oddity(), Some(Oddity::Superfluous(AttributeKind::PathTo)));
    let times = decoder.next_command().unwrap().unwrap();
    let Command::Utimes { otime, .. } = *times.command() else {
        panic!("{times:?}");
    };
    assert_eq!(otime.map(|time| time.seconds), Some(12));
    assert_eq!(times.oddity(), Some(Oddity::Early(AttributeKind::Otime)));
    assert_eq!(decoder.next_command().unwrap().unwrap().oddity(), None);
}

#[test]
fn end_command_with_attributes_is_refused() {
    let stream = streamed(&[(21, b"\x0f\0\x01\0f")]);
    let error = Decoder::new(stream.as_slice()).next_command().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn unknown_commands_are_skipped_if_asked_and_without_content() {
    let stream = streamed(&[
        (99, b"\x0f\0\x01\0f\xff\xff\x02\0ab"),
        (99, b""),
        (24, b"\x1a\0\x08\0aaaaaaaa"),
        (11, b"\x0f\0\x01\0f"),
    ]);
    let mut decoder = Decoder::new(stream.as_slice());
    let error = decoder.next_command().unwrap_err();
    assert!(
        matches!(error, Error::CommandUnknown { number: 99, .. }),
        "{error}"
    );
    let mut decoder = Decoder::new(stream.as_slice());
    decoder.skip_unknown();
    let frame = decoder.next_command().unwrap().unwrap();
    assert_eq!(*frame.command(), Command::Unlink { path: b"f" });
    assert_eq!(frame.index(), 4);
    let skipped: Vec<u16> = decoder.take_skipped().iter().map(|one| one.number).collect();
    assert_eq!(skipped, [99, 24]);
    assert!(decoder.take_skipped().is_empty());
    let refused: [&[u8]; 5] = [
        b"\x12\0\x08\0aaaaaaaa",
        b"\x0f\0\x01\0f\x13\0\x01\0d",
        b"\x04\0\x08\0aaaaaaaa",
        b"\x0f\0\x09\0f",
        b"\x0f",
    ];
    for payload in refused {
        let stream = streamed(&[(99, payload)]);
        let mut decoder = Decoder::new(stream.as_slice());
        decoder.skip_unknown();
        let error = decoder.next_command().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        // The decoder does not skip a damaged command.
        let mut damaged = stream.clone();
        let last = damaged.len() - 11;
        damaged[last] ^= 1;
        let mut decoder = Decoder::new(damaged.as_slice());
        decoder.skip_unknown();
        assert_eq!(decoder.next_command().unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
