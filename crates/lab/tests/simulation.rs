//! Simulated disks against their data sheets (docs/internals/simulated-disks.md), and the rules of
//! virtual time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(clippy::arithmetic_side_effects, reason = "small numbers of the test's own")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use buttress_device::{
    Backend, Device, MemoryBackend, PendingRead, QueueStatistics, ReadRequest, VirtualClock,
};
use buttress_lab::Model;

/// A terabyte of zeros: the models' figures need the whole drive.
#[derive(Debug)]
struct Zeros(u64);

impl Backend for Zeros {
    fn name(&self) -> &str {
        "zeros"
    }
    fn size_bytes(&self) -> u64 {
        self.0
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn read_vectored_at(&self, _: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        buffers.iter_mut().for_each(|buffer| buffer.fill(0));
        Ok(())
    }
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

const TERABYTE: u64 = 1_000_000_000_000;

fn disk(model: &Model) -> Device {
    buttress_lab::simulated(Arc::new(Zeros(TERABYTE)), model, &VirtualClock::new())
}

fn now(device: &Device) -> Duration {
    device.virtual_clock().unwrap().now()
}

fn request(offset_bytes: u64, length: usize) -> ReadRequest {
    ReadRequest { offset_bytes, length }
}

/// Reads `total` bytes from `start` on, `length` at a time, with `depth` queued requests. Returns
/// the measured rate in bytes a second.
fn sequential_rate(device: &Device, start: u64, length: usize, depth: usize, total: u64) -> f64 {
    let begin = now(device);
    let mut pending = std::collections::VecDeque::new();
    let mut offset = start;
    while offset < start + total || !pending.is_empty() {
        while pending.len() < depth && offset < start + total {
            pending.push_back(device.start_read(request(offset, length)));
            offset += length as u64;
        }
        if let Some(read) = pending.pop_front() {
            read.wait().unwrap();
        }
    }
    total as f64 / (now(device) - begin).as_secs_f64()
}

/// Returns pseudo-random offsets over the whole drive, in multiples of `unit`.
fn offsets(unit: u64) -> impl Iterator<Item = u64> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % (TERABYTE / unit - 64) * unit
    })
}

/// Reads at random with `depth` queued requests, and polls after each `poll` of time. Returns the
/// measured rate in reads a second.
fn random_rate(device: &Device, length: usize, depth: usize, count: usize, poll: Duration) -> f64 {
    let begin = now(device);
    let mut pending: Vec<PendingRead> = Vec::new();
    for offset in offsets(length as u64).take(count) {
        pending.push(device.start_read(request(offset, length)));
        while pending.len() == depth {
            // The caller takes all finished requests, as a busy program would. If no request is
            // finished, virtual time has to pass.
            let (done, rest): (Vec<_>, Vec<_>) = pending.into_iter().partition(PendingRead::is_ready);
            if done.is_empty() {
                device.charge_cpu(poll);
            }
            done.into_iter().for_each(|read| drop(read.wait().unwrap()));
            pending = rest;
        }
    }
    pending.into_iter().for_each(|read| drop(read.wait().unwrap()));
    count as f64 / (now(device) - begin).as_secs_f64()
}

fn near(value: f64, expected: f64, percent: f64) {
    let off = (value / expected - 1.0) * 100.0;
    assert!(off.abs() <= percent, "{value} is {off:.1} % off {expected}");
}

#[test]
fn the_spinning_disk_streams_at_its_rate() {
    let device = disk(&Model::spinning_7200());
    for (length, depth) in [(1 << 20, 1), (1 << 20, 4), (128 << 10, 1), (16 << 10, 8)] {
        near(
            sequential_rate(&device, 1 << 30, length, depth, 128 << 20),
            175e6,
            2.0,
        );
    }
    near(
        sequential_rate(&device, TERABYTE - (1 << 30), 1 << 20, 2, 128 << 20),
        83e6,
        3.0,
    );
}

/// At depth 1 a read takes the mean seek of 8.5 ms, half a revolution of 4.17 ms, and 0.1 ms for 16
/// KiB: 78 reads a second.
#[test]
fn the_spinning_disk_reads_at_random_as_its_sheet_adds_up() {
    let model = Model::spinning_7200();
    let single = random_rate(&disk(&model), 16 << 10, 1, 2000, Duration::from_micros(100));
    near(single, 1.0 / 0.01278, 4.0);
    let queued = random_rate(&disk(&model), 16 << 10, 32, 2000, Duration::from_micros(100));
    assert!(
        queued > 1.8 * single && queued < 4.0 * single,
        "{queued} against {single}"
    );
}

#[test]
fn the_on_drive_cache_serves_what_was_just_read_on() {
    let device = disk(&Model::spinning_7200());
    device.read(1 << 30, 16 << 10).unwrap();
    // During this time the drive reads ahead, up to the end of its segment.
    device.charge_cpu(Duration::from_millis(30));
    let begin = now(&device);
    device.read((1 << 30) + (64 << 10), 16 << 10).unwrap();
    let taken = now(&device) - begin;
    assert!(taken < Duration::from_micros(100), "{taken:?}");
    // Read-ahead does not help a distant read, or a read shortly before.
    let begin = now(&device);
    device.read((1 << 30) - (1 << 20), 16 << 10).unwrap();
    assert!(now(&device) - begin > Duration::from_millis(1));
}

#[test]
fn a_slow_region_holds_up_what_touches_it_and_what_waits_behind() {
    let longer = Duration::from_millis(500);
    let device = disk(&Model::nvme_ssd().slow_in(1 << 20..(1 << 20) + 4096, longer));
    let timed = |offset: u64, length: usize| {
        let begin = now(&device);
        device.read(offset, length).unwrap();
        now(&device) - begin
    };
    assert!(timed(0, 1 << 20) < Duration::from_millis(5), "before it");
    assert!(
        timed((1 << 20) + 4096, 1 << 20) < Duration::from_millis(5),
        "behind it"
    );
    assert!(timed((1 << 20) - 4096, 8192) >= longer, "over its beginning");
    assert!(timed((1 << 20) + 4095, 1) >= longer, "its last byte");
    // A request behind the slow one waits for it.
    let begin = now(&device);
    let slow = device.start_read(ReadRequest {
        offset_bytes: 1 << 20,
        length: 4096,
    });
    device.read(64 << 20, 4096).unwrap();
    assert!(now(&device) - begin >= longer);
    slow.wait().unwrap();
}

#[test]
fn the_ssds_meet_their_sheets() {
    for (model, rate, single, queued) in [
        (Model::sata_ssd(), 540e6, 10e3, 98e3),
        (Model::nvme_ssd(), 3200e6, 14e3, 380e3),
    ] {
        near(
            sequential_rate(&disk(&model), 0, 1 << 20, 16, 256 << 20),
            rate,
            5.0,
        );
        near(
            random_rate(&disk(&model), 4096, 1, 2000, Duration::from_nanos(200)),
            single,
            3.0,
        );
        near(
            random_rate(&disk(&model), 4096, 32, 20_000, Duration::from_nanos(200)),
            queued,
            10.0,
        );
    }
    let write_rate = |model: &Model| {
        let device = disk(model);
        offsets(4096)
            .take(1000)
            .for_each(|offset| device.write(offset, &[0; 4096]).unwrap());
        1000.0 / now(&device).as_secs_f64()
    };
    near(write_rate(&Model::sata_ssd()), 40e3, 3.0);
    near(write_rate(&Model::nvme_ssd()), 50e3, 3.0);
}

#[test]
fn the_null_drive_takes_no_time() {
    let device = disk(&Model::Null);
    random_rate(&device, 4096, 8, 100, Duration::ZERO);
    device.write(0, &[1; 100]).unwrap();
    assert_eq!(now(&device), Duration::ZERO);
}

#[test]
fn the_clock_moves_only_when_somebody_waits_or_computes() {
    let device = disk(&Model::spinning_7200());
    let reads = device.start_reads(
        offsets(4096)
            .take(20)
            .map(|at| request(at, 4096))
            .collect::<Vec<_>>(),
    );
    assert_eq!(now(&device), Duration::ZERO);
    assert!(reads.iter().all(|read| !read.is_ready()));
    let mut last = now(&device);
    for read in reads {
        read.wait().unwrap();
        assert!(now(&device) >= last);
        last = now(&device);
    }
    assert!(last > Duration::from_millis(50));
}

/// Requests that started before the computation are finished after it, if the computation took
/// longer.
#[test]
fn queued_reads_are_served_while_the_caller_computes() {
    let model = Model::spinning_7200();
    let alone = disk(&model);
    alone.read(500_000_000_000, 4096).unwrap();
    let reading = now(&alone);

    let device = disk(&model);
    let read = device.start_read(request(500_000_000_000, 4096));
    device.charge_cpu(reading / 2);
    assert!(!read.is_ready());
    device.charge_cpu(reading);
    assert!(read.is_ready());
    let before = now(&device);
    read.wait().unwrap();
    assert_eq!(now(&device), before, "waiting cost nothing");
    assert_eq!(device.statistics().reads.waited, reading);
}

#[test]
fn disks_that_share_a_clock_work_side_by_side() {
    let model = Model::spinning_7200();
    let clock = VirtualClock::new();
    let disks = [(); 4].map(|()| buttress_lab::simulated(Arc::new(Zeros(TERABYTE)), &model, &clock));
    let reads: Vec<_> = disks
        .iter()
        .map(|disk| disk.start_read(request(1 << 38, 1 << 20)))
        .collect();
    reads.into_iter().for_each(|read| drop(read.wait().unwrap()));
    let alone = disk(&model);
    alone.read(1 << 38, 1 << 20).unwrap();
    assert_eq!(clock.now(), now(&alone));
}

#[test]
fn merging_neighbours_is_counted_and_gives_large_requests() {
    let device = disk(&Model::spinning_7200());
    // The requests cover 4 MiB in descending order: 256 requests of 16 KiB merge into 4 of 1 MiB.
    let requests: Vec<_> = (0..256).rev().map(|i| request(i * 16384, 16384)).collect();
    device
        .start_reads(requests)
        .into_iter()
        .for_each(|read| drop(read.wait().unwrap()));
    let statistics = device.statistics();
    assert_eq!((statistics.reads.requests, statistics.reads.merged), (4, 252));
    assert!((statistics.reads.request_kibibytes() - 1024.0).abs() < 1e-9);
    assert_eq!(statistics.elapsed, now(&device));
}

/// Runs reads, writes and computation, mixed by a fixed pattern.
fn run(model: &Model) -> (Duration, QueueStatistics) {
    let device = disk(model);
    let mut kept = Vec::new();
    for (index, offset) in offsets(16384).take(600).enumerate() {
        match index % 7 {
            0 => device.write(offset, &[1; 16384]).unwrap(),
            1 => device.charge_cpu(Duration::from_micros(offset % 3000)),
            2 => drop(device.start_read(request(offset, 4096))),
            3 => kept.clear(),
            4 => kept.extend(device.start_reads([request(offset, 16384), request(offset + 16384, 16384)])),
            _ => drop(device.read(offset / 1000, 65536).unwrap()),
        }
    }
    (now(&device), device.statistics())
}

#[test]
fn two_runs_give_equal_figures() {
    for model in [
        Model::spinning_7200(),
        Model::sata_ssd(),
        Model::nvme_ssd(),
        Model::Null,
    ] {
        assert_eq!(run(&model), run(&model));
    }
}

#[test]
fn writes_take_effect_and_time() {
    let memory = Arc::new(MemoryBackend::new("memory", vec![0; 1 << 20]));
    let device = buttress_lab::simulated(
        Arc::clone(&memory) as Arc<dyn Backend>,
        &Model::spinning_7200(),
        &VirtualClock::new(),
    );
    device.write(4096, &[5; 4096]).unwrap();
    assert_eq!(memory.snapshot()[4096..8192], [5; 4096]);
    let written = now(&device);
    assert!(written > Duration::from_micros(20));
    let pending = device.start_read(request(500_000, 4096));
    device.flush().unwrap();
    assert!(pending.is_ready(), "a flush lets the queue run dry");
    assert_eq!(device.statistics().writes.requests, 1);
}
