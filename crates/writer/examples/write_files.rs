//! Measures the time of writes to an empty volume in an image: `cargo run --release --example
//! write_files IMAGE files|sequential|zstd|random [COUNT]`.
//!
//! `files` creates COUNT files of 2,000 bytes in four directories and removes them. `sequential`
//! and `zstd` write COUNT MiB of one file. `random` overwrites COUNT blocks of 4 KiB of one file.
//! Each mode of this example ends with a commit. The output shows wall-clock time and, in brackets,
//! the time of all processors.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a measurement with numbers of its own"
)]

use buttress_device::Device;
use buttress_format::compression::CompressionMethod;
use buttress_format::{Compression, FileOffset, SubvolumeId};
use buttress_fs::{Location, OpenOptions};
use buttress_writer::operations::NewInode;
use buttress_writer::{DataOptions, WritableFilesystem, WriteOptions};
use std::time::Instant;

/// Returns the processor time of all threads of this process, in seconds.
fn cpu_seconds() -> f64 {
    let status = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = status.rsplit(')').next().unwrap().split(' ').collect();
    let ticks: u64 = fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap();
    ticks as f64 / 100.0
}

fn timed<T>(what: &str, body: impl FnOnce() -> T) -> T {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let result = body();
    println!(
        "{what}: {:.2} s ({:.2})",
        start.elapsed().as_secs_f64(),
        cpu_seconds() - cpu
    );
    result
}

fn noise(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn files(filesystem: &WritableFilesystem, root: Location, count: usize) {
    let new = NewInode::of_root(0o644);
    let directories: Vec<Location> = (0..4)
        .map(|number| {
            filesystem
                .make_directory(root, format!("d{number}").as_bytes(), &new)
                .unwrap()
        })
        .collect();
    let content = [7; 2000];
    timed("create and write", || {
        for number in 0..count {
            let name = format!("f{number:07}");
            let file = filesystem
                .create(directories[number % 4], name.as_bytes(), &new)
                .unwrap();
            filesystem.write_at(file, FileOffset::new(0), &content).unwrap();
        }
    });
    timed("write back", || filesystem.writeback().write_all().unwrap());
    timed("commit", || filesystem.commit().unwrap());
    timed("unlink", || {
        for number in 0..count {
            let name = format!("f{number:07}");
            filesystem
                .unlink(directories[number % 4], name.as_bytes())
                .unwrap();
        }
    });
    timed("commit", || filesystem.commit().unwrap());
}

fn sequential(filesystem: &WritableFilesystem, root: Location, mib: usize) -> Location {
    let file = filesystem
        .create(root, b"file", &NewInode::of_root(0o644))
        .unwrap();
    // A part of each block is noise; the rest compresses.
    let mut state = 1;
    let block: Vec<u8> = (0..1 << 20)
        .map(|at| {
            if at % 4096 < 1400 {
                noise(&mut state) as u8
            } else {
                b'x'
            }
        })
        .collect();
    timed("write", || {
        for _ in 0..mib {
            filesystem.append(file, &block).unwrap();
        }
    });
    timed("commit", || filesystem.commit().unwrap());
    file
}

fn random(filesystem: &WritableFilesystem, root: Location, count: usize) {
    let file = sequential(filesystem, root, 1024);
    let mut state = 7;
    let block = [3; 4096];
    timed("overwrite", || {
        for _ in 0..count {
            let at = noise(&mut state) % (1 << 18) * 4096;
            filesystem.write_at(file, FileOffset::new(at), &block).unwrap();
        }
    });
    timed("commit", || filesystem.commit().unwrap());
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let options = buttress_device::OpenOptions {
        write: true,
        ..buttress_device::OpenOptions::default()
    };
    let device = Device::open(&words[1], &options).unwrap();
    let filesystem = OpenOptions::new(vec![device]).open().unwrap();
    let what = words[2].as_str();
    let options = WriteOptions {
        data: DataOptions {
            compression: (what == "zstd").then(|| CompressionMethod::new(Compression::Zstd)),
            ..DataOptions::default()
        },
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(filesystem, options).unwrap();
    let count: usize = words.get(3).map_or(100_000, |count| count.parse().unwrap());
    let root = filesystem.view().root_directory(SubvolumeId::TOP_LEVEL);
    match what {
        "files" => files(&filesystem, root, count),
        "random" => random(&filesystem, root, count),
        _ => {
            sequential(&filesystem, root, count);
        }
    }
}
