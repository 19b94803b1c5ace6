//! Measures how fast streams are decoded and encoded in memory: a stream of large writes, and one
//! of small commands.
//!
//! `cargo run --release -p buttress-stream --example decode [MIB]`
#![allow(clippy::arithmetic_side_effects, reason = "it computes with its own numbers")]

use buttress_format::{FileOffset, InodeNumber, Timestamp};
use buttress_stream::{Command, Decoder, Encoder, Result, Version};
use std::hint::black_box;
use std::time::Instant;

/// Number of rounds per measurement; the best round counts, because other load can only slow a
/// round down.
const ROUNDS: u32 = 9;

fn main() -> Result<()> {
    let mib = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let bytes = mib.unwrap_or(64_usize) << 20;
    for (name, version, commands) in [
        ("writes of 48 KiB, version 1", Version::V1, writes(Version::V1)),
        ("writes of 128 KiB, version 2", Version::V2, writes(Version::V2)),
        ("small files, version 2", Version::V2, small_file()),
    ] {
        let mut stream = Vec::with_capacity(bytes + (1 << 20));
        let (mut count, mut encoded, mut decoded) = (0, f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            count = encode(Encoder::new(version), &commands, bytes, &mut stream)?;
            encoded = encoded.min(began.elapsed().as_secs_f64());
            let began = Instant::now();
            let mut decoder = Decoder::new(stream.as_slice());
            while let Some(frame) = decoder.next_command()? {
                black_box(frame.command());
            }
            decoded = decoded.min(began.elapsed().as_secs_f64());
        }
        let rate = |seconds: f64| stream.len() as f64 / seconds / 1e9;
        let each = |seconds: f64| seconds / f64::from(count) * 1e9;
        println!(
            "{name}: {count} commands; encoded at {:.2} GB/s, {:.0} ns each; decoded at {:.2} GB/s, {:.0} ns each",
            rate(encoded),
            each(encoded),
            rate(decoded),
            each(decoded)
        );
    }
    Ok(())
}

/// Fills `stream` with `commands`, repeated until it has at least `bytes` bytes, and returns the
/// number of commands.
fn encode(encoder: Encoder, commands: &[Command<'_>], bytes: usize, stream: &mut Vec<u8>) -> Result<u32> {
    stream.clear();
    encoder.header(stream);
    let mut count = 1;
    while stream.len() < bytes {
        for command in commands {
            encoder.encode(command, stream)?;
            count += 1;
        }
    }
    encoder.encode(&Command::End, stream)?;
    Ok(count)
}

fn writes(version: Version) -> Vec<Command<'static>> {
    vec![Command::Write {
        path: b"directory/file",
        offset: FileOffset::new(0),
        data: vec![7; version.write_bytes_max()].leak(),
    }]
}

/// Returns the commands that the kernel sends for a file of 2,000 bytes.
fn small_file() -> Vec<Command<'static>> {
    let (made, path) = (b"o123456-7-0", b"directory/file_123456");
    let time = Timestamp {
        seconds: 1_795_225_678,
        nanoseconds: 5,
    };
    vec![
        Command::Mkfile {
            path: made,
            inode: Some(InodeNumber::new(123_456)),
        },
        Command::Rename { from: made, to: path },
        Command::Write {
            path,
            offset: FileOffset::new(0),
            data: &[7; 2000],
        },
        Command::Chown { path, uid: 0, gid: 0 },
        Command::Chmod { path, mode: 0o644 },
        Command::Utimes {
            path,
            atime: time,
            mtime: time,
            ctime: time,
            otime: Some(time),
        },
    ]
}
