//! Golden streams: one small stream per command, compared byte for byte with committed files.
//!
//! Each file in `golden/` is a whole stream: header, subvolume, the command, end. `COMMAND.txt`
//! beside a golden stream is the output of `btrfs receive --dump` of btrfs-progs 6.14 for the
//! stream, in UTC. Commands of version 3 have no text file, because that program does not read this
//! version. With `BUTTRESS_BLESS=1` the test writes the streams instead of comparing them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "golden/samples.rs"]
mod samples;

use buttress_format::send::{CommandKind, Version};
use buttress_stream::{Command, Decoder, Encoder, TextDump};
use samples::{begin, samples};
use std::path::PathBuf;

fn stream_of(command: &Command<'_>) -> Vec<u8> {
    let encoder = Encoder::new(command.kind().version());
    let mut stream = Vec::new();
    encoder.header(&mut stream);
    let begins = matches!(command, Command::Subvolume { .. } | Command::Snapshot { .. });
    let ends = *command == Command::End;
    let (begin, end) = (begin(), Command::End);
    let commands = [
        (!begins).then_some(&begin),
        Some(command),
        (!ends).then_some(&end),
    ];
    for command in commands.into_iter().flatten() {
        encoder.encode(command, &mut stream).unwrap();
    }
    stream
}

fn file(command: &Command<'_>, extension: &str) -> PathBuf {
    let name = format!("{}.{extension}", command.kind());
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &name]
        .iter()
        .collect()
}

#[test]
fn there_is_a_sample_of_every_command_in_order() {
    let kinds: Vec<_> = samples().iter().map(Command::kind).collect();
    assert_eq!(kinds, CommandKind::ALL);
}

#[test]
fn every_command_is_encoded_as_committed() {
    for command in samples() {
        let stream = stream_of(&command);
        let path = file(&command, "stream");
        if std::env::var_os("BUTTRESS_BLESS").is_some() {
            std::fs::write(&path, &stream).unwrap();
        }
        let committed = std::fs::read(&path).unwrap();
        assert!(committed == stream, "{}", command.kind());
    }
}

#[test]
fn every_committed_stream_decodes_to_its_command() {
    for command in samples() {
        let committed = std::fs::read(file(&command, "stream")).unwrap();
        let mut decoder = Decoder::new(committed.as_slice());
        let mut found = false;
        while let Some(frame) = decoder.next_command().unwrap() {
            found |= *frame.command() == command;
            let mut again = Vec::new();
            Encoder::new(frame.version())
                .encode(frame.command(), &mut again)
                .unwrap();
            assert!(again == frame.bytes(), "{}", command.kind());
        }
        assert!(found, "{}", command.kind());
        assert_eq!(decoder.offset(), committed.len() as u64);
    }
}

#[test]
fn every_committed_stream_is_dumped_as_btrfs_progs_did() {
    for command in samples()
        .into_iter()
        .filter(|command| command.kind().version() < Version::V3)
    {
        let stream = std::fs::read(file(&command, "stream")).unwrap();
        let expected = std::fs::read_to_string(file(&command, "txt")).unwrap();
        assert_eq!(dumped_and_encoded_again(&stream).0, expected);
    }
}

/// Five streams of Linux 6.18: full with `--proto 1` and with `--proto 2 --compressed-data`,
/// incremental with both, and one without file data.
#[test]
fn streams_of_the_kernel_have_the_expected_dump_and_encoding() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for name in [
        "full-v1",
        "full-v2",
        "incremental-v1",
        "incremental-v2",
        "no-data-v1",
    ] {
        let stream = std::fs::read(folder.join(format!("kernel-{name}.stream"))).unwrap();
        let expected = std::fs::read_to_string(folder.join(format!("kernel-{name}.txt"))).unwrap();
        let (text, again) = dumped_and_encoded_again(&stream);
        assert_eq!(text, expected, "{name}");
        assert!(again == stream, "{name}");
    }
}

/// Returns the text dump of a stream, and the stream re-encoded from its decoded commands.
fn dumped_and_encoded_again(stream: &[u8]) -> (String, Vec<u8>) {
    let (mut text, mut again) = (Vec::new(), Vec::new());
    let mut dump = TextDump::utc();
    let mut decoder = Decoder::new(stream);
    while let Some(frame) = decoder.next_command().unwrap() {
        let encoder = Encoder::new(frame.version());
        if frame.index() == 1 {
            encoder.header(&mut again);
        }
        encoder.encode(frame.command(), &mut again).unwrap();
        dump.line(frame.command(), &mut text);
    }
    (String::from_utf8(text).unwrap(), again)
}

#[test]
fn a_stream_cut_at_any_byte_is_an_error() {
    for command in samples() {
        let stream = stream_of(&command);
        for cut in 0..stream.len() {
            let mut decoder = Decoder::new(&stream[..cut]);
            let error = loop {
                match decoder.next_command() {
                    Ok(Some(frame)) => assert!(frame.offset() + frame.bytes().len() as u64 <= cut as u64),
                    Ok(None) => panic!("{} cut at {cut} passes for whole", command.kind()),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), buttress_format::ErrorKind::Corrupt, "{error}");
            let again = decoder.next_command().unwrap_err();
            assert_eq!(again.to_string(), error.to_string(), "an error stays the same");
        }
    }
    assert_eq!(Version::ALL.len(), 3, "all versions are among the samples");
}
