//! Benchmarks side by side with the kernel and other tools, both sides in one run.
//!
//! `cargo xtask bench NAME`:
//!
//! - `read`: taking files out of volumes, cold and warm, against the kernel's mount ([`read`]);
//! - `send`: sending snapshots, cold and warm, against the kernel's send ([`send`]);
//!   `send simulated`: on simulated disks, beside the seeds' tables ([`send_simulated`]);
//!   `send disk`: under each read-ahead mode from this machine's disk, cold ([`send_disk`]);
//! - `receive`: receiving streams, against the kernel's receive on a loop device ([`receive`]);
//! - `sweep`: a whole tree under each read-ahead mode on the simulated spinning disk ([`sweep`]);
//! - `write`: changing volumes, against the kernel on a loop device ([`write`]);
//! - `fiemap`: extents of files, cold and warm, against `filefrag` and the ioctl ([`fiemap`]);
//! - `check`: checking volumes, cold and warm, against `btrfs check` ([`check`]);
//! - `scrub`: scrubbing volumes, cold and warm, against the kernel's scrub; replacing; the queue under each shape of
//!   reading ([`scrub`]);
//! - `live`: calls of the library on a volume in memory, by several threads and beside a writer, and what of them is
//!   exclusive ([`live`]); `live holds`: how long locks are held while everything goes on at once;
//! - `fsync`: making files and directories durable, against btrfs, ext4 and xfs on a loop device ([`fsync`]);
//!   `fsync simulated`: on the simulated spinning disk, beside commits ([`fsync_simulated`]);
//! - `mkfs`: images from a source tree, against mkfs.btrfs, `tar c`, and the makers of other file
//!   systems; reading the images back under the kernel's mount ([`mkfs`]);
//! - `mount`: a mounted volume, against the kernel's mount and a FUSE server that answers from memory ([`mount`]);
//! - `space`: accounts of space over many snapshots, against compsize and `btrfs filesystem du` ([`space`]);
//! - `tiny`: all of it on tiny volumes, so that no benchmark rots; its figures mean nothing.
//!
//! Volumes are made once and kept below `target/bench` (or `BUTTRESS_BENCH`). Ratios are those of pairs of
//! runs that follow each other: machines drift, pairs less. `BUTTRESS_BENCH_ROUNDS` changes the number of pairs.

mod cache;
mod check;
mod fiemap;
mod fsync;
mod fsync_simulated;
mod images;
mod live;
mod measure;
mod mkfs;
mod mount;
mod plot;
mod read;
mod receive;
mod report;
mod scrub;
mod send;
mod send_disk;
mod send_simulated;
mod space;
mod sweep;
mod write;

use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::skip::is_ci;
use std::process::ExitCode;

/// How large the benchmarks' volumes are.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// A short name that tells the volumes of one scale from another's.
    name: &'static str,
    /// Files in the source tree.
    source_files: usize,
    /// Bytes of each large file.
    large_bytes: u64,
    /// Files of the first step of the seeds' script.
    inline_files: u64,
    /// Extents of the volume with many snapshots.
    extents: u64,
    /// Its snapshots.
    snapshots: u64,
    /// Pairs of runs.
    rounds: usize,
    /// Plots are written into the documentation.
    draws: bool,
}

const FULL: Scale = Scale {
    name: "full",
    source_files: 80_000,
    large_bytes: 8 << 30,
    inline_files: 500_000,
    extents: 1_000_000,
    snapshots: 200,
    rounds: 3,
    draws: true,
};
const TINY: Scale = Scale {
    name: "tiny",
    source_files: 300,
    large_bytes: 16 << 20,
    inline_files: 1000,
    extents: 4000,
    snapshots: 5,
    rounds: 1,
    draws: false,
};

/// How many pairs of runs `BUTTRESS_BENCH_ROUNDS` asks for.
fn rounds() -> Result<Option<usize>> {
    let Some(text) = std::env::var_os("BUTTRESS_BENCH_ROUNDS") else {
        return Ok(None);
    };
    let rounds = text.to_str().and_then(|text| text.parse().ok());
    rounds
        .map(Some)
        .context("BUTTRESS_BENCH_ROUNDS is a number of pairs of runs")
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let full = Scale {
        rounds: rounds()?.unwrap_or(FULL.rounds),
        ..FULL
    };
    match words.as_slice() {
        ["read", jobs @ ..] => read::run_all(full, jobs),
        ["send", "simulated"] => send_simulated::run(full),
        ["send", "disk"] => send_disk::run_all(full),
        ["send", jobs @ ..] => send::run_all(full, jobs),
        ["receive", jobs @ ..] => receive::run_all(full, jobs),
        ["sweep"] => sweep::run(full),
        ["write", jobs @ ..] => write::run_all(full, jobs),
        // One of our steps, in a process of its own.
        ["write-step", scale, step, image, seconds] => {
            let scale = if *scale == TINY.name { TINY } else { FULL };
            write::our_step(scale, step, image, seconds)
        }
        ["check"] => check::run(full),
        ["scrub", jobs @ ..] => scrub::run_all(full, jobs),
        ["live", "holds"] => live::holds::run(full),
        ["live", calls @ ..] => live::run(full, calls),
        ["fsync", "simulated"] => fsync_simulated::run_all(full),
        ["fsync", jobs @ ..] => fsync::run_all(full, jobs),
        ["mkfs", jobs @ ..] => mkfs::run_all(full, jobs),
        ["mount", jobs @ ..] => mount::run_all(full, jobs),
        // A server, or a process that makes files.
        ["mount-part", words @ ..] => mount::part(words),
        ["space", jobs @ ..] => space::run_all(full, jobs),
        ["fiemap", jobs @ ..] => fiemap::run_all(full, jobs),
        ["tiny"] => {
            if let Some(reason) = buttress_oracle::tools::kernel_missing() {
                ensure!(!is_ci(), "{reason}; with CI=true nothing may be skipped");
                println!("benchmarks skipped: {reason}");
                return Ok(());
            }
            println!("tiny volumes: this shows that the benchmarks run; the figures mean nothing\n");
            cache::keep_system();
            live::run(TINY, &[])?;
            fsync::run_all(TINY, &[])?;
            fsync_simulated::run_all(TINY)?;
            read::run_all(TINY, &[])?;
            send::run_all(TINY, &[])?;
            send_simulated::run(TINY)?;
            send_disk::run_all(TINY)?;
            receive::run_all(TINY, &[])?;
            write::run_all(TINY, &[])?;
            sweep::run(TINY)?;
            check::run(TINY)?;
            scrub::run_all(TINY, &[])?;
            mkfs::run_all(TINY, &[])?;
            mount::run_all(TINY, &[])?;
            space::run_all(TINY, &[])?;
            fiemap::run_all(TINY, &[])
        }
        _ => bail!(
            "usage: cargo xtask bench read [JOB]… | send [simulated|disk|JOB…] | receive [JOB…] | write [JOB…] | sweep | check | scrub [make] [pairs|ROW…|replace|shapes|plot] | live [holds|CALL…] | \
             fsync [simulated|JOB…] | mkfs [JOB…] | mount [JOB…] | space | fiemap [JOB…] | tiny"
        ),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
