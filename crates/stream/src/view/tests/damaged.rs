//! Tests of streams that are cut, changed, or built to exhaust memory.

use super::support::*;
use crate::command::Command;
use crate::encoder::Encoder;
use crate::view::{Error, Options, Problem, Series};
use buttress_format::send::Version;

/// Builds a small chain with most kinds of commands.
fn chain() -> Vec<u8> {
    let first = stream(
        1,
        None,
        &[
            mkdir("d"),
            mkfile("d/f"),
            write("d/f", 0, b"content"),
            symlink("l", "d/f"),
            link("g", "d/f"),
            utimes("d", 1, 2),
        ],
    );
    let second = stream(
        2,
        Some(1),
        &[
            rename("d", "e"),
            clone(("e/f", 7), 7, 1, ("g", 0)),
            unlink("l"),
            truncate("g", 10),
        ],
    );
    [first, second].concat()
}

#[test]
fn cut_at_every_byte_it_is_an_error_or_one_stream_less() {
    let whole = chain();
    let first = stream(1, None, &[]).len();
    for length in 0..whole.len() {
        let mut series = Series::new(Options::default());
        let added = series.add("cut", Box::new(whole[..length].to_vec()));
        match added {
            Ok(()) => {
                assert_eq!(series.snapshots().len(), 1);
                assert!(length > first);
            }
            Err(Error::Stream { error, .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains("truncated") || text.contains("empty"),
                    "{length}: {text}"
                );
            }
            Err(error) => panic!("{length}: {error}"),
        }
    }
    assert_eq!(series(&[whole]).unwrap().snapshots().len(), 2);
}

#[test]
fn any_changed_bit_is_an_error() {
    let whole = chain();
    for place in 0..whole.len() {
        for bit in [0, 3, 7] {
            let mut changed = whole.clone();
            changed[place] ^= 1 << bit;
            // The version in the header is the only part without a checksum.
            let is_version = changed[..17] != whole[..17] && (13..17).contains(&place);
            let refused = series(&[changed]).is_err();
            assert!(
                refused || is_version || place >= first_header_of_second(&whole),
                "byte {place}"
            );
        }
    }
}

/// Returns the offset of the second stream's header, whose version has no checksum either.
fn first_header_of_second(whole: &[u8]) -> usize {
    let magic = buttress_format::send::MAGIC;
    let mut places = whole.windows(magic.len()).enumerate();
    places.rfind(|(_, bytes)| *bytes == magic).unwrap().0
}

#[test]
fn commands_outside_a_subvolume_are_refused() {
    let encoder = Encoder::new(Version::V1);
    let mut bytes = Vec::new();
    encoder.header(&mut bytes);
    encoder.encode(&mkfile("f"), &mut bytes).unwrap();
    let error = series(&[bytes]).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Refused {
                problem: Problem::NoSubvolume,
                ..
            }
        ),
        "{error}"
    );
    for name in [b"".as_slice(), b"/abs", b"../up", b"a/../b"] {
        let mut bytes = Vec::new();
        encoder.header(&mut bytes);
        let command = Command::Subvolume {
            path: name,
            uuid: uuid(1),
            transid: buttress_format::Generation::new(1),
        };
        encoder.encode(&command, &mut bytes).unwrap();
        let error = series(&[bytes]).unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Refused {
                    problem: Problem::PathInvalid { .. },
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_refused_command_changes_nothing_and_earlier_snapshots_stay() {
    let streams = [
        stream(1, None, &[mkfile("f")]),
        stream(2, Some(1), &[unlink("f"), unlink("f")]),
    ];
    let mut series = Series::new(Options::default());
    series.add("one", Box::new(streams[0].clone())).unwrap();
    assert!(series.add("two", Box::new(streams[1].clone())).is_err());
    assert_eq!(series.snapshots().len(), 1);
    assert!(last(&series).tree.find(b"f").is_ok());
}

#[test]
fn a_chain_of_many_snapshots_of_a_large_directory_shares_it() {
    let names: Vec<String> = (0..2000).map(|number| format!("file-{number}")).collect();
    let made: Vec<_> = names.iter().map(|name| mkfile(name)).collect();
    let mut streams = vec![stream(1, None, &made)];
    // The series holds 100,000 states of 2,000 names; copies would not fit into memory.
    for number in 0..1000u32 {
        let parent = if number == 0 { 1 } else { 2 };
        let names = [&names[number as usize], "moved"];
        streams.extend([stream(
            2,
            Some(parent),
            &[rename(names[0], "moved"), rename("moved", names[0])],
        )]);
    }
    let series = series(&[streams.concat()]).unwrap();
    assert_eq!(series.snapshots().len(), 1001);
    assert_eq!(last(&series).tree.inode_count(), 2001);
}
