//! Helpers to build streams and to query views.

use crate::command::Command;
use crate::encoder::Encoder;
use crate::view::{Content, Error, Node, Options, Problem, Result, Series, Snapshot, Tree};
use buttress_format::send::Version;
use buttress_format::{ByteCount, FileOffset, Generation, Timestamp, Uuid};

/// Returns the uuid of the snapshot with this number.
pub(super) const fn uuid(number: u8) -> Uuid {
    Uuid::from_bytes([number; 16])
}

/// Builds a stream with these commands between its first and last command, on top of `parent` if
/// given.
pub(super) fn stream(number: u8, parent: Option<u8>, commands: &[Command<'_>]) -> Vec<u8> {
    let encoder = Encoder::new(Version::V3);
    let mut bytes = Vec::new();
    encoder.header(&mut bytes);
    let transid = Generation::new(u64::from(number));
    let first = match parent {
        None => Command::Subvolume {
            path: b"snapshot",
            uuid: uuid(number),
            transid,
        },
        Some(parent) => Command::Snapshot {
            path: b"snapshot",
            uuid: uuid(number),
            transid,
            clone_uuid: uuid(parent),
            clone_transid: Generation::new(u64::from(parent)),
        },
    };
    for command in [&first].into_iter().chain(commands).chain([&Command::End]) {
        encoder.encode(command, &mut bytes).unwrap();
    }
    bytes
}

/// Builds a series of these streams, each in a separate file.
pub(super) fn series(streams: &[Vec<u8>]) -> Result<Series> {
    let mut series = Series::new(Options {
        decode_data: true,
        ..Options::default()
    });
    for (number, stream) in streams.iter().enumerate() {
        series.add(format!("s{number}"), Box::new(stream.clone()))?;
    }
    Ok(series)
}

/// Builds a series of one full stream.
pub(super) fn full(commands: &[Command<'_>]) -> Series {
    series(&[stream(1, None, commands)]).unwrap()
}

/// Returns why the view refuses the last command of a stream; the earlier commands must succeed.
pub(super) fn refusal(commands: &[Command<'_>]) -> Problem {
    let error = series(&[stream(1, None, commands)]).unwrap_err();
    let Error::Refused {
        problem,
        place,
        file,
        command,
    } = error
    else {
        panic!("{error}");
    };
    let (last, before) = commands.split_last().unwrap();
    assert_eq!(place.command, commands.len() as u64 + 1, "{problem}");
    assert_eq!(
        place.offset + 10,
        stream(1, None, before).len() as u64,
        "the place is where the stream without the command ends"
    );
    assert_eq!((file.as_str(), command), ("s0", last.kind()));
    problem
}

/// Returns the last snapshot.
pub(super) fn last(series: &Series) -> &Snapshot {
    series.snapshots().last().unwrap()
}

/// Returns the content of a file; panics at damage.
pub(super) fn content(series: &Series, tree: &Tree, path: &str) -> Vec<u8> {
    let id = tree.find(path.as_bytes()).unwrap();
    let mut reader = series.content(tree, id, path.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_chunk() {
        assert_eq!(chunk.offset.get(), bytes.len() as u64);
        match chunk.content {
            Content::Data(data) => bytes.extend_from_slice(data),
            Content::Hole => bytes.resize(bytes.len() + usize::try_from(chunk.length.get()).unwrap(), 0),
            Content::Damaged(error) => panic!("{error}"),
        }
        assert_eq!(chunk.offset.get() + chunk.length.get(), bytes.len() as u64);
    }
    bytes
}

/// Lists the file ranges that hold data, with adjacent ranges joined.
pub(super) fn data_ranges(tree: &Tree, path: &str) -> Vec<(u64, u64)> {
    let Node::File(file) = &tree.inode(tree.find(path.as_bytes()).unwrap()).unwrap().node else {
        panic!("{path} is no file");
    };
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, end) in file.data_ranges() {
        match ranges.last_mut() {
            Some((_, last)) if *last == start.get() => *last = end.get(),
            _ => ranges.push((start.get(), end.get())),
        }
    }
    ranges
}

/// Lists all paths with their numbers of names.
pub(super) fn paths(tree: &Tree) -> Vec<(String, u32)> {
    tree.walk(crate::view::NodeId::ROOT)
        .map(|entry| {
            let links = tree.inode(entry.id).unwrap().links;
            (String::from_utf8(entry.path).unwrap(), links)
        })
        .collect()
}

pub(super) fn mkfile(path: &str) -> Command<'_> {
    Command::Mkfile {
        path: path.as_bytes(),
        inode: None,
    }
}

pub(super) fn mkdir(path: &str) -> Command<'_> {
    Command::Mkdir {
        path: path.as_bytes(),
        inode: None,
    }
}

pub(super) fn symlink<'a>(path: &'a str, target: &'a str) -> Command<'a> {
    Command::Symlink {
        path: path.as_bytes(),
        inode: None,
        target: target.as_bytes(),
    }
}

pub(super) fn rename<'a>(from: &'a str, to: &'a str) -> Command<'a> {
    Command::Rename {
        from: from.as_bytes(),
        to: to.as_bytes(),
    }
}

pub(super) fn link<'a>(path: &'a str, target: &'a str) -> Command<'a> {
    Command::Link {
        path: path.as_bytes(),
        target: target.as_bytes(),
    }
}

pub(super) fn unlink(path: &str) -> Command<'_> {
    Command::Unlink {
        path: path.as_bytes(),
    }
}

pub(super) fn rmdir(path: &str) -> Command<'_> {
    Command::Rmdir {
        path: path.as_bytes(),
    }
}

pub(super) fn write<'a>(path: &'a str, offset: u64, data: &'a [u8]) -> Command<'a> {
    Command::Write {
        path: path.as_bytes(),
        offset: FileOffset::new(offset),
        data,
    }
}

pub(super) fn truncate(path: &str, size: u64) -> Command<'_> {
    Command::Truncate {
        path: path.as_bytes(),
        size: ByteCount::new(size),
    }
}

/// Clones from snapshot `source`.
pub(super) fn clone<'a>(
    (path, offset): (&'a str, u64),
    length: u64,
    source: u8,
    (source_path, source_offset): (&'a str, u64),
) -> Command<'a> {
    Command::Clone {
        path: path.as_bytes(),
        offset: FileOffset::new(offset),
        length: ByteCount::new(length),
        source_uuid: uuid(source),
        source_transid: Generation::new(1),
        source_path: source_path.as_bytes(),
        source_offset: FileOffset::new(source_offset),
    }
}

pub(super) fn fallocate(path: &str, mode: u32, offset: u64, length: u64) -> Command<'_> {
    Command::Fallocate {
        path: path.as_bytes(),
        mode,
        offset: FileOffset::new(offset),
        length: ByteCount::new(length),
    }
}

/// Builds a command that sets the times to this second and the following ones.
pub(super) fn utimes(path: &str, seconds: i64, nanoseconds: u32) -> Command<'_> {
    let time = |more| Timestamp {
        seconds: seconds + more,
        nanoseconds,
    };
    Command::Utimes {
        path: path.as_bytes(),
        atime: time(0),
        mtime: time(1),
        ctime: time(2),
        otime: Some(time(3)),
    }
}
