//! Benchmarks beside the kernel and other tools, both sides in one run.
//!
//! `cargo xtask bench NAME`:
//!
//! - `read`: files read out of volumes, cold and warm, against the kernel's mount ([`read`]);
//! - `send`: sends of snapshots, cold and warm, against the kernel's send ([`send`]);
//! - `send simulated`: sends on simulated disks, beside the seeds' tables ([`send_simulated`]);
//! - `send disk`: sends under each read-ahead mode from this machine's disk, cold ([`send_disk`]);
//! - `receive`: received streams, against the kernel's receive on a loop device ([`receive`]);
//! - `sweep`: a whole tree under each read-ahead mode on the simulated spinning disk ([`sweep`]);
//! - `write`: changes of volumes, against the kernel on a loop device ([`write`]);
//! - `fiemap`: extents of files, cold and warm, against `filefrag` and the ioctl ([`fiemap`]);
//! - `check`: checks of volumes, cold and warm, against `btrfs check` ([`check`]);
//! - `scrub`: scrubs of volumes, cold and warm, against the kernel's scrub; replacements; the queue
//!   under each shape of reads ([`scrub`]);
//! - `relocate`: balances, conversions and removed devices, against the kernel on loop devices
//!   ([`relocate`]);
//! - `convert`: conversions of ext4 in place and back, against btrfs-convert ([`convert`]);
//! - `recovery`: repairs of damaged volumes, against btrfs-progs ([`recovery`]);
//! - `live`: calls of the library on a volume in memory, by several threads and beside a writer,
//!   with their exclusive parts ([`live`]); `live holds`: the length of lock holds under a mixed
//!   load;
//! - `fsync`: durable files and directories, against btrfs, ext4 and xfs on a loop device
//!   ([`fsync`]); `fsync simulated`: on the simulated spinning disk, beside commits
//!   ([`fsync_simulated`]);
//! - `mkfs`: images from a source tree, against mkfs.btrfs, `tar c`, and other file systems' tools;
//!   reads of these images under the kernel's mount ([`mkfs`]);
//! - `mount`: a mounted volume, against the kernel's mount and a FUSE server that answers from
//!   memory ([`mount`]);
//! - `space`: accounts of space over many snapshots, against compsize and `btrfs filesystem du`
//!   ([`space`]);
//! - `tiny`: all benchmarks on tiny volumes, so that they keep working; the figures are
//!   meaningless.
//!
//! The benchmarks make their volumes once and keep them below `target/bench` (or `BUTTRESS_BENCH`).
//! A ratio comes from pairs of runs in direct succession, because a machine's speed drifts less
//! within a pair. `BUTTRESS_BENCH_ROUNDS` sets the number of pairs.

mod cache;
mod check;
mod convert;
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
mod recovery;
mod relocate;
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

/// The sizes of the benchmarks' volumes.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// A short name that distinguishes the volumes of this scale.
    name: &'static str,
    /// The number of files in the source tree.
    source_files: usize,
    /// The bytes of each large file.
    large_bytes: u64,
    /// The number of files in the first step of the original script.
    inline_files: u64,
    /// The number of extents in the volume with many snapshots.
    extents: u64,
    /// The number of snapshots in that volume.
    snapshots: u64,
    /// The number of pairs of runs.
    rounds: usize,
    /// Whether plots are written into the documentation.
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

/// Returns the number of pairs from `BUTTRESS_BENCH_ROUNDS`.
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
        ["relocate", jobs @ ..] => relocate::run_all(full, jobs),
        ["convert", jobs @ ..] => convert::run_all(full, jobs),
        ["recovery", jobs @ ..] => recovery::run_all(full, jobs),
        ["sweep"] => sweep::run(full),
        ["write", jobs @ ..] => write::run_all(full, jobs),
        // Runs a step of our side, in a separate process.
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
        // Runs a server, or a process that makes files.
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
            relocate::run_all(TINY, &[])?;
            convert::run_all(TINY, &[])?;
            recovery::run_all(TINY, &[])?;
            mkfs::run_all(TINY, &[])?;
            mount::run_all(TINY, &[])?;
            space::run_all(TINY, &[])?;
            fiemap::run_all(TINY, &[])
        }
        _ => bail!(
            "usage: cargo xtask bench read [JOB]… | send [simulated|disk|JOB…] | receive [JOB…] | write [JOB…] | sweep | check | scrub [make] [pairs|ROW…|replace|shapes|plot] | live [holds|CALL…] | \
             fsync [simulated|JOB…] | mkfs [JOB…] | mount [JOB…] | space | relocate [JOB…] | convert [JOB…] | recovery [JOB…] | fiemap [JOB…] | tiny"
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
