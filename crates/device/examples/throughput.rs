//! Measures the request queue on a file: `cargo run --release -p buttress-device --example
//! throughput -- FILE`.
//!
//! Reads the whole file through the page cache (in a second run, the cache is warm). Then the
//! example reads 16 KiB blocks at random, warm and with `O_DIRECT`. The reference for each
//! measurement is plain `pread` into one buffer. The figures in docs/internals/performance.md,
//! section "Device", come from this program.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "a measuring tool on its own numbers"
)]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use buttress_device::{Device, Engine, OpenOptions, QueueStatistics, ReadRequest};

/// The wall clock time, and the CPU time of all threads of this process.
#[derive(Clone, Copy)]
struct Moment {
    wall: Instant,
    cpu: f64,
}

impl Moment {
    fn now() -> Self {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Self {
            wall: Instant::now(),
            cpu: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        }
    }
}

fn rate(name: &str, bytes: u64, started: Moment, statistics: Option<QueueStatistics>) {
    let seconds = started.wall.elapsed().as_secs_f64();
    let cpu = Moment::now().cpu - started.cpu;
    println!(
        "{name:<50} {:>8.0} MB/s {seconds:>7.3} s, CPU {cpu:>7.3} s",
        bytes as f64 / seconds / 1e6
    );
    if let Some(statistics) = statistics {
        println!("    {statistics}");
    }
}

/// Keeps `window` requests in flight, started `batch` at a time, and touches every page of the
/// received bytes.
fn stream(device: &Device, requests: &[ReadRequest], window: usize, batch: usize) -> u64 {
    let mut pending = VecDeque::new();
    let mut batches = requests.chunks(batch);
    let mut sum = 0;
    loop {
        while pending.len() + batch <= window.max(batch) {
            let Some(next) = batches.next() else { break };
            pending.extend(device.start_reads(next));
        }
        let Some(read) = pending.pop_front() else {
            return sum;
        };
        sum += read
            .wait()
            .unwrap()
            .chunks(4096)
            .map(|page| u64::from(page.first().copied().unwrap_or(0)))
            .sum::<u64>();
    }
}

fn random(size: u64, count: usize) -> Vec<ReadRequest> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ReadRequest {
            offset_bytes: state % (size / 16384) * 16384,
            length: 16384,
        }
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn plain(path: &Path, requests: &[ReadRequest]) {
    let file = File::open(path).unwrap();
    let longest = requests.iter().map(|request| request.length).max().unwrap_or(0);
    let mut buffer = vec![0; longest];
    for request in requests {
        file.read_exact_at(buffer.get_mut(..request.length).unwrap(), request.offset_bytes)
            .unwrap();
    }
}

fn main() {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| {
        eprintln!("usage: throughput FILE");
        std::process::exit(2)
    });
    let path = Path::new(&path);
    let open = |engine, direct| {
        Device::open(
            path,
            &OpenOptions {
                engine,
                direct,
                depth: 32,
                ..OpenOptions::default()
            },
        )
        .unwrap()
    };
    let size = open(Engine::Inline, false).size_bytes();
    println!("{}", QueueStatistics::HEADER);
    for length in [1 << 20, 128 << 10, 16 << 10] {
        let requests: Vec<_> = (0..size / length as u64)
            .map(|index| ReadRequest {
                offset_bytes: index * length as u64,
                length,
            })
            .collect();
        let started = Moment::now();
        plain(path, &requests);
        rate(
            &format!("sequential {} KiB, pread, one thread", length >> 10),
            size,
            started,
            None,
        );
        for engine in [Engine::Threads, Engine::IoUring, Engine::Inline] {
            let device = open(engine, false);
            let (window, batch) = ((8 << 20) / length, ((1 << 20) / length).max(1));
            let started = Moment::now();
            stream(&device, &requests, window, batch);
            let name = format!("sequential {} KiB, {engine}, 8 MiB under way", length >> 10);
            rate(&name, size, started, Some(device.statistics()));
        }
    }
    let warm = random(size, 200_000);
    let bytes = |requests: &[ReadRequest]| requests.len() as u64 * 16384;
    let started = Moment::now();
    plain(path, &warm);
    rate("random 16 KiB, warm, pread", bytes(&warm), started, None);
    let device = open(Engine::Threads, false);
    let started = Moment::now();
    warm.iter()
        .for_each(|request| drop(device.read(request.offset_bytes, request.length).unwrap()));
    rate("random 16 KiB, warm, read()", bytes(&warm), started, None);
    for engine in [Engine::Threads, Engine::IoUring] {
        let device = open(engine, false);
        for batch in [1, 32] {
            let started = Moment::now();
            stream(&device, &warm, batch, batch);
            rate(
                &format!("random 16 KiB, warm, {engine}, batches of {batch}"),
                bytes(&warm),
                started,
                None,
            );
        }
    }
    let direct = random(size, 20_000);
    for engine in [Engine::Threads, Engine::IoUring] {
        for depth in [1, 4, 16, 32] {
            let device = Device::open(
                path,
                &OpenOptions {
                    engine,
                    direct: true,
                    depth,
                    ..OpenOptions::default()
                },
            )
            .unwrap();
            let depth = usize::try_from(depth).unwrap();
            let count = (1000 * depth).min(direct.len());
            let requests = direct.get(..count).unwrap();
            let started = Moment::now();
            stream(&device, requests, depth, 1);
            let name = format!("random 16 KiB, O_DIRECT, {engine}, depth {depth}");
            rate(&name, bytes(requests), started, Some(device.statistics()));
        }
    }
}
