//! The target of views into streams: it applies every decoded command, then walks and reads the
//! result.
//!
//! The first byte of an input chooses the rest: a stream, repaired as for [`crate::streams`], or
//! numbers from which commands are drawn. The paths of drawn commands mostly exist, so that many
//! commands succeed.

use crate::Depth;
use crate::input::Input;
use crate::streams;
use buttress_format::{ByteCount, FileOffset, Generation, Timestamp, Uuid};
use buttress_stream::view::{ContentReader, Node, NodeId, Options, Series, Tree};
use buttress_stream::{Command, Encoder, Version};

/// Paths of drawn commands; some do not exist.
const PATHS: [&[u8]; 12] = [
    b"", b"a", b"b", b"c", b"a/a", b"a/b", b"b/a", b"a/b/a", b"a/b/b", b"b/a/c", b"../a", b"/a",
];

/// Offsets and lengths of drawn commands.
const SIZES: [u64; 10] = [
    0,
    1,
    3,
    4096,
    5000,
    1 << 17,
    1 << 40,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

/// The number of chunks that the target reads of each file: a file may validly have 8 EiB of
/// clones.
const CHUNKS_MAX: usize = 64;

/// The number of entries that the target inspects in each snapshot.
const ENTRIES_MAX: usize = 4096;

/// The target of a view into a stream.
pub fn stream_view(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let stream = if input.byte() & 1 == 0 {
        streams::mend(input.rest())
    } else {
        drawn(&mut input)
    };
    let mut series = Series::new(Options {
        decode_data: true,
        ..Options::default()
    });
    let added = series.add("stream", Box::new(stream));
    for snapshot in series.snapshots() {
        look(&series, &snapshot.tree);
    }
    Depth::passed(added.is_ok() || !series.snapshots().is_empty())
}

/// Walks a tree and reads its files; the tree must be sound.
fn look(series: &Series, tree: &Tree) {
    let mut names = 0_usize;
    for entry in tree.walk(NodeId::ROOT).take(ENTRIES_MAX) {
        let inode = tree.inode(entry.id).expect("a name leads to an inode");
        assert_eq!(
            tree.find(&entry.path).ok(),
            Some(entry.id),
            "a path leads elsewhere"
        );
        names += 1;
        std::hint::black_box(inode.xattrs());
        if let Node::File(file) = &inode.node {
            let mut end = 0;
            for (start, next_end) in file.data_ranges().take(CHUNKS_MAX) {
                assert!(start.get() >= end && next_end > start, "ranges of data overlap");
                end = next_end.get();
            }
            assert!(end <= file.size().get(), "data lies beyond the end");
            if let Ok(reader) = series.content(tree, entry.id, &entry.path) {
                read(reader, file.size());
            }
        }
    }
    if names < ENTRIES_MAX {
        assert!(tree.inode_count() <= names, "an inode has no name");
    }
}

fn read(mut reader: ContentReader<'_>, size: ByteCount) {
    let mut position = 0;
    for _ in 0..CHUNKS_MAX {
        let Some(chunk) = reader.next_chunk() else {
            assert_eq!(position, size.get(), "a file ends early");
            return;
        };
        assert_eq!(chunk.offset.get(), position, "chunks leave gaps");
        position += chunk.length.get();
    }
}

/// Returns a stream of drawn commands.
fn drawn(input: &mut Input<'_>) -> Vec<u8> {
    let encoder = Encoder::new(Version::V3);
    let mut stream = Vec::new();
    encoder.header(&mut stream);
    let first = Command::Subvolume {
        path: b"first",
        uuid: Uuid::from_bytes([0; 16]),
        transid: Generation::new(1),
    };
    // Every drawn command can be encoded.
    encoder.encode(&first, &mut stream).expect("it fits");
    while !input.is_empty() {
        encoder.encode(&command(input), &mut stream).expect("it fits");
    }
    encoder.encode(&Command::End, &mut stream).expect("it fits");
    stream
}

fn command<'a>(input: &mut Input<'a>) -> Command<'a> {
    let choice = input.byte();
    let uuid = |number: u8| Uuid::from_bytes([number & 3; 16]);
    let path = input.choose(&PATHS);
    let offset = |input: &mut Input<'a>| FileOffset::new(input.choose(&SIZES));
    let length = |input: &mut Input<'a>| ByteCount::new(input.choose(&SIZES));
    let transid = Generation::new(1);
    match choice % 20 {
        0 | 1 => Command::Mkfile { path, inode: None },
        2 | 3 => Command::Mkdir { path, inode: None },
        4 => Command::Symlink {
            path,
            inode: None,
            target: input.choose(&PATHS),
        },
        5 | 6 => Command::Rename {
            from: path,
            to: input.choose(&PATHS),
        },
        7 => Command::Link {
            path,
            target: input.choose(&PATHS),
        },
        8 => Command::Unlink { path },
        9 => Command::Rmdir { path },
        10 | 11 => Command::Write {
            path,
            offset: offset(input),
            data: input.bytes(usize::from(choice >> 4)),
        },
        12 | 13 => Command::Clone {
            path,
            offset: offset(input),
            length: length(input),
            source_uuid: uuid(choice >> 5),
            source_transid: transid,
            source_path: input.choose(&PATHS),
            source_offset: offset(input),
        },
        14 => Command::Truncate {
            path,
            size: length(input),
        },
        15 => Command::Fallocate {
            path,
            mode: u32::from(choice >> 3),
            offset: offset(input),
            length: length(input),
        },
        16 => Command::SetXattr {
            path,
            name: input.choose(&PATHS),
            value: input.choose(&PATHS),
        },
        17 => Command::EncodedWrite {
            path,
            offset: offset(input),
            unencoded_file_bytes: length(input),
            unencoded_bytes: length(input),
            unencoded_offset: ByteCount::new(u64::from(choice & 1)),
            compression: Some(u32::from(choice >> 5)),
            encryption: None,
            data: input.bytes(20),
        },
        18 => Command::Snapshot {
            path: b"next",
            uuid: uuid(input.byte()),
            transid,
            clone_uuid: uuid(input.byte()),
            clone_transid: transid,
        },
        _ => Command::Utimes {
            path,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            otime: None,
        },
    }
}

/// Returns the input with which the target draws `commands`.
#[must_use]
pub fn encode_drawn(commands: &[u8]) -> Vec<u8> {
    [&[1], commands].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns pseudo-random bytes from a seed (xorshift).
    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    /// A refusal ends a stream, so the target leaves refused commands out and applies the rest.
    #[test]
    fn random_commands_are_carried_out_or_refused() {
        let mut carried_out = 0_usize;
        for seed in buttress_oracle::seeds::seeds("hostile::views", "BUTTRESS_SEED", &Vec::from_iter(1..=60))
        {
            let mut kept: Vec<u8> = Vec::new();
            let bytes = noise(seed, 600);
            for part in bytes.chunks(6) {
                let tried = [kept.as_slice(), part].concat();
                if stream_view(&encode_drawn(&tried)) == Depth::Passed {
                    kept = tried;
                    carried_out += 1;
                }
            }
        }
        assert!(carried_out > 600, "only {carried_out} commands were carried out");
    }
}
