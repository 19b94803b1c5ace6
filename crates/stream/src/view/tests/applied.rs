//! Tests of content, attributes and clones, and of streams that build on earlier streams.

use super::support::*;
use crate::command::Command;
use crate::view::{Error, Node, NodeId, Problem, Times};
use buttress_format::send::EncodedCompression;
use buttress_format::{ByteCount, ErrorKind, FileOffset, InodeNumber, Timestamp};

#[test]
fn content_is_read_from_where_it_lies() {
    let series = full(&[
        mkfile("f"),
        write("f", 2, b"hello world"),
        write("f", 6, b"-"),
        truncate("f", 20),
        mkfile("cut"),
        write("cut", 0, b"0123456789"),
        truncate("cut", 4),
        truncate("cut", 6),
    ]);
    let tree = &last(&series).tree;
    assert_eq!(content(&series, tree, "f"), b"\0\0hell- world\0\0\0\0\0\0\0");
    assert_eq!(data_ranges(tree, "f"), [(2, 13)]);
    assert_eq!(
        content(&series, tree, "cut"),
        b"0123\0\0",
        "what was cut off does not come back"
    );
    assert_eq!(last(&series).data_bytes, ByteCount::new(22));
}

#[test]
fn fallocate_makes_holes_and_room() {
    let series = full(&[
        mkfile("f"),
        write("f", 0, &[b'x'; 10]),
        fallocate("f", 0x03, 2, 3),
        fallocate("f", 0x10, 8, 4),
        mkfile("room"),
        fallocate("room", 0, 0, 5),
        fallocate("room", 1, 5, 50),
    ]);
    let tree = &last(&series).tree;
    assert_eq!(content(&series, tree, "f"), b"xx\0\0\0xxx\0\0\0\0");
    assert_eq!(data_ranges(tree, "f"), [(0, 2), (5, 8)]);
    assert_eq!(content(&series, tree, "room"), [0; 5]);
    for mode in [0x02, 0x08, 0x20, 0x40, 0x80, u32::MAX] {
        let problem = refusal(&[mkfile("f"), fallocate("f", mode, 0, 1)]);
        assert_eq!(problem, Problem::FallocateMode { mode });
    }
}

#[test]
fn ranges_beyond_the_largest_file_are_refused() {
    let cases = [
        write("f", u64::MAX, b"x"),
        write("f", i64::MAX as u64, b"x"),
        truncate("f", 1 << 63),
        fallocate("f", 0, u64::MAX, u64::MAX),
        clone(("f", u64::MAX), 1, 1, ("f", 0)),
        clone(("f", 0), 1, 1, ("f", u64::MAX)),
    ];
    for command in cases {
        let problem = refusal(&[mkfile("f"), write("f", 0, b"1"), command]);
        assert!(matches!(problem, Problem::RangeTooLarge { .. }), "{problem}");
    }
    let series = full(&[mkfile("f"), truncate("f", i64::MAX as u64)]);
    let tree = &last(&series).tree;
    let mut reader = series.content(tree, tree.find(b"f").unwrap(), b"f").unwrap();
    assert_eq!(reader.next_chunk().unwrap().length.get(), i64::MAX as u64);
    assert!(reader.next_chunk().is_none());
}

/// Encoded write that stores `data`; its decoded range `[skip, skip + file_bytes)` belongs to the
/// file.
fn encoded<'a>(compression: u32, data: &'a [u8], unencoded: u64, skip: u64, file_bytes: u64) -> Command<'a> {
    Command::EncodedWrite {
        path: b"f",
        offset: FileOffset::new(3),
        unencoded_file_bytes: ByteCount::new(file_bytes),
        unencoded_bytes: ByteCount::new(unencoded),
        unencoded_offset: ByteCount::new(skip),
        compression: Some(compression),
        encryption: Some(0),
        data,
    }
}

/// A zstd frame with one block of 200 bytes `a` (run-length encoded), without checksum.
/// Source: RFC 8878, sections 3.1.1.1 and 3.1.1.2.
const ZSTD: [u8; 10] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 200, 0x43, 0x06, 0, b'a'];

#[test]
fn encoded_data_is_decoded_where_it_is_read() {
    let zstd = EncodedCompression::Zstd.to_raw();
    let series = full(&[
        mkfile("f"),
        encoded(zstd, &ZSTD, 200, 150, 50),
        write("f", 10, b"b"),
    ]);
    let tree = &last(&series).tree;
    let expected = [b"\0\0\0aaaaaaab".as_slice(), &[b'a'; 42]].concat();
    assert_eq!(content(&series, tree, "f"), expected);

    let series = full(&[mkfile("f"), encoded(0, b"0123456789", 10, 4, 5)]);
    assert_eq!(content(&series, &last(&series).tree, "f"), b"\0\0\x0045678");
}

#[test]
fn encoded_data_that_cannot_be_is_refused() {
    let zstd = EncodedCompression::Zstd.to_raw();
    let refused = |command| refusal(&[mkfile("f"), command]);
    assert_eq!(
        refused(encoded(8, &ZSTD, 200, 0, 200)),
        Problem::CompressionUnknown { number: 8 }
    );
    for (unencoded, skip, file_bytes) in [(200, 1, 200), (200, u64::MAX, 1), (1 << 18, 0, 1), (0, 0, 1)] {
        let problem = refused(encoded(zstd, &ZSTD, unencoded, skip, file_bytes));
        assert!(matches!(problem, Problem::EncodedSizes { .. }), "{problem}");
    }
    let problem = refused(encoded(0, b"0123", 10, 0, 5));
    assert!(matches!(problem, Problem::EncodedSizes { .. }), "{problem}");
    let problem = refused(encoded(zstd, &ZSTD[..8], 200, 0, 200));
    assert!(matches!(problem, Problem::Encoded(_)), "{problem}");
}

#[test]
fn attributes_are_set() {
    let chown = |path: &'static str, uid, gid| Command::Chown {
        path: path.as_bytes(),
        uid,
        gid,
    };
    let chmod = |path: &'static str, mode| Command::Chmod {
        path: path.as_bytes(),
        mode,
    };
    let xattr = |name: &'static str, value: &'static [u8]| Command::SetXattr {
        path: b"f",
        name: name.as_bytes(),
        value,
    };
    let series = full(&[
        Command::Mkfile {
            path: b"f",
            inode: Some(InodeNumber::new(257)),
        },
        chmod("f", 0o106_755),
        xattr("user.b", b"1"),
        xattr("user.a", b""),
        xattr("user.b", b"2"),
        xattr("user.gone", b"3"),
        xattr("security.capability", b"4"),
        Command::RemoveXattr {
            path: b"f",
            name: b"user.gone",
        },
        chown("f", 1000, 2000),
        utimes("f", -5, 999_999_999),
        Command::FileAttributes {
            path: b"f",
            attributes: 0x10,
        },
        chmod("", 0o700),
    ]);
    let tree = &last(&series).tree;
    let inode = tree.inode(tree.find(b"f").unwrap()).unwrap();
    assert_eq!(
        inode.mode(),
        0o100_755,
        "a new owner takes set-user-id and set-group-id away"
    );
    assert_eq!((inode.uid, inode.gid, inode.flags), (1000, 2000, Some(0x10)));
    assert_eq!(inode.number, Some(InodeNumber::new(257)));
    let mut xattrs = inode.xattrs();
    xattrs.sort_unstable();
    assert_eq!(
        xattrs,
        [(b"user.a".as_slice(), b"".as_slice()), (b"user.b", b"2")]
    );
    let time = |seconds| Timestamp {
        seconds,
        nanoseconds: 999_999_999,
    };
    let times = Times {
        accessed: time(-5),
        modified: time(-4),
        changed: time(-3),
        created: Some(time(-2)),
    };
    assert_eq!(inode.times, times);
    assert_eq!(tree.inode(NodeId::ROOT).unwrap().mode(), 0o040_700);

    let refused = [
        chown("f", 1 << 32, 0),
        chown("f", 0, u64::MAX),
        utimes("f", 0, 1_000_000_000),
        xattr("", b""),
        Command::RemoveXattr {
            path: b"f",
            name: b"user.no",
        },
    ];
    for command in refused {
        let problem = refusal(&[mkfile("f"), command]);
        let expected = matches!(
            problem,
            Problem::OutOfRange { .. } | Problem::XattrName { .. } | Problem::XattrMissing { .. }
        );
        assert!(expected, "{command:?}: {problem}");
    }
    let problem = refusal(&[symlink("l", "x"), chmod("l", 0o777)]);
    assert!(matches!(problem, Problem::WrongKind { .. }), "{problem}");
}

#[test]
fn nodes_have_their_kind_and_number() {
    let node = |path: &'static str, mode, device| Command::Mknod {
        path: path.as_bytes(),
        inode: None,
        mode,
        device,
    };
    let series = full(&[
        node("c", 0o020_620, 0x0012_3456_789a & 0xffff_ffff),
        node("b", 0o060_600, 0x0801),
        Command::Mkfifo {
            path: b"p",
            inode: None,
            device: None,
            mode: None,
        },
        Command::Mksock {
            path: b"s",
            inode: None,
            device: None,
            mode: None,
        },
    ]);
    let tree = &last(&series).tree;
    let inode = |path: &str| tree.inode(tree.find(path.as_bytes()).unwrap()).unwrap();
    // The device number is 0x3456789a: minor 0x9a and 0x345 above it, major 0x678.
    assert!(matches!(
        inode("c").node,
        Node::Device {
            block: false,
            major: 0x678,
            minor: 0x3_459a
        }
    ));
    assert!(matches!(
        inode("b").node,
        Node::Device {
            block: true,
            major: 8,
            minor: 1
        }
    ));
    let modes = ["c", "b", "p", "s"].map(|path| inode(path).mode());
    assert_eq!(modes, [0o020_620, 0o060_600, 0o010_600, 0o140_600]);
    assert_eq!(
        refusal(&[node("x", 0o100_600, 0)]),
        Problem::NodeMode { mode: 0o100_600 }
    );
}

#[test]
fn successors_build_on_and_clone_from_what_came_before() {
    let streams = [
        stream(
            1,
            None,
            &[mkfile("f"), write("f", 0, b"first content"), mkdir("d")],
        ),
        stream(
            2,
            Some(1),
            &[
                write("f", 0, b"second"),
                mkfile("d/g"),
                clone(("d/g", 1), 5, 1, ("f", 0)),
            ],
        ),
        // The third stream builds on the first, renames a file, and clones from the second.
        stream(
            3,
            Some(1),
            &[
                rename("f", "d/h"),
                mkfile("f"),
                clone(("f", 0), 5, 2, ("d/g", 1)),
                clone(("f", 5), 8, 3, ("d/h", 5)),
            ],
        ),
    ];
    let check = |series: &crate::view::Series| {
        let [one, two, three] = series.snapshots() else {
            panic!("three snapshots");
        };
        assert_eq!(content(series, &one.tree, "f"), b"first content");
        assert!(one.tree.find(b"d/g").is_err());
        assert_eq!(content(series, &two.tree, "f"), b"secondcontent");
        assert_eq!(content(series, &two.tree, "d/g"), b"\0first");
        assert_eq!(content(series, &three.tree, "d/h"), b"first content");
        assert_eq!(content(series, &three.tree, "f"), b"first content");
        assert_eq!((three.parent, three.uuid), (Some(uuid(1)), uuid(3)));
    };
    check(&series(&streams).unwrap());
    // In this test, one file holds all streams.
    let series = series(&[streams.concat()]).unwrap();
    check(&series);
    let numbers: Vec<_> = series
        .snapshots()
        .iter()
        .map(|snapshot| snapshot.stream)
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn several_subvolumes_may_share_one_end() {
    let (one, two) = (
        stream(1, None, &[mkfile("a")]),
        stream(2, Some(1), &[mkfile("b")]),
    );
    // Between the streams, `send -e` omits the end command (10 bytes) and the header (17 bytes).
    let joined = [&one[..one.len() - 10], &two[17..]].concat();
    let series = series(&[joined]).unwrap();
    let names: Vec<_> = series
        .snapshots()
        .iter()
        .map(|snapshot| paths(&snapshot.tree).len())
        .collect();
    assert_eq!(names, [2, 3]);
}

#[test]
fn a_missing_predecessor_is_named_with_what_there_is() {
    let only_second = series(&[stream(2, Some(1), &[])]).unwrap_err();
    assert_eq!(only_second.kind(), ErrorKind::Caller);
    let text = only_second.to_string();
    assert!(text.contains(&uuid(1).to_string()), "{text}");
    assert!(text.starts_with("s0: command 1 at byte 17: snapshot: "), "{text}");

    let both = [stream(1, None, &[]), stream(3, Some(2), &[])];
    let text = series(&both).unwrap_err().to_string();
    assert!(
        text.contains(&uuid(1).to_string()) && text.contains(&uuid(2).to_string()),
        "{text}"
    );

    let problem = refusal(&[mkfile("f"), clone(("f", 0), 1, 9, ("f", 0))]);
    assert_eq!(
        problem,
        Problem::CloneSourceUnknown {
            wanted: uuid(9),
            given: vec![uuid(1)],
        }
    );
}

#[test]
fn clones_that_the_system_refuses_are_refused() {
    let made = [mkfile("f"), write("f", 0, b"0123456789"), mkdir("d")];
    let cases = [
        (clone(("f", 20), 5, 1, ("f", 6)), "past its size of 10 bytes"),
        (clone(("f", 3), 5, 1, ("f", 0)), "overlap"),
        (clone(("f", 20), 5, 1, ("d", 0)), "found a directory"),
        (clone(("f", 20), 5, 1, ("no", 0)), "no such file or directory"),
        (clone(("d", 0), 5, 1, ("f", 0)), "found a directory"),
    ];
    for (command, expected) in cases {
        let commands: Vec<_> = made.into_iter().chain([command]).collect();
        let text = refusal(&commands).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn content_that_was_not_sent_is_refused_by_name() {
    let update = Command::UpdateExtent {
        path: b"f",
        offset: FileOffset::new(0),
        length: ByteCount::new(5),
    };
    let series = full(&[
        mkfile("f"),
        update,
        truncate("f", 5),
        mkfile("g"),
        clone(("g", 0), 2, 1, ("f", 0)),
    ]);
    let tree = &last(&series).tree;
    for path in [b"f", b"g"] {
        let error = series.content(tree, tree.find(path).unwrap(), path).unwrap_err();
        assert!(
            matches!(&error, Error::NoData { path: named } if named == path),
            "{error}"
        );
    }
}
