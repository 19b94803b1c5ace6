//! Tests of the request queue against a byte vector, through every engine. Random batches of reads,
//! awaited in any order or dropped, with writes between them, must return the byte vector's bytes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]
#![allow(clippy::cast_possible_truncation, reason = "small numbers of the test's own")]
#![allow(clippy::arithmetic_side_effects, reason = "small numbers of the test's own")]

use std::io::Write as _;
use std::sync::Arc;

use buttress_device::{
    Backend, Device, Engine, MemoryBackend, Offset, OpenOptions, ReadRequest, VirtualClock, WriteRequest,
};
use buttress_lab::{Fault, FaultyBackend, Model};
use buttress_oracle::needs::Missing;
use buttress_oracle::skip::skip;
use bytes::Bytes;
use proptest::prelude::*;

const SIZE: usize = 3 << 20;

#[derive(Clone, Debug)]
enum Step {
    /// A batch of requests (offset, length, awaited), and the index at which the waiting begins.
    Batch(Vec<(u64, usize, bool)>, usize),
    Read(u64, usize),
    Write(u64, Vec<u8>),
    /// Writes of (offset, bytes) that do not overlap, and the number of them that are awaited. The
    /// simulated power cut drops all other writes.
    Writes(Vec<(u64, Vec<u8>)>, usize),
    Zero(u64, u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let unit = prop_oneof![Just(1_u64), Just(512), Just(4096), Just(16384)];
    let request =
        (unit.clone(), 0..SIZE as u64, 0..20_u64, any::<bool>()).prop_map(|(unit, at, count, waited)| {
            let offset = at / unit * unit;
            let length = (count * unit).min(SIZE as u64 - offset);
            (offset, length as usize, waited)
        });
    // The requests are neighbours, so that the plug merges them.
    let run = (0..64_u64, 1..24_usize).prop_map(|(block, count)| {
        (0..count as u64)
            .map(|i| ((block + i) * 16384, 16384, i % 7 != 3))
            .rev()
            .collect::<Vec<_>>()
    });
    let piece = (0..SIZE as u64 / 4096, 1..80_usize, any::<bool>(), any::<u8>()).prop_map(
        |(block, sectors, crooked, byte)| {
            let skew = if crooked { 513 } else { 0 };
            let length = (sectors * 4096).min(SIZE - block as usize * 4096) - skew;
            let bytes = (0..length)
                .map(|i| (i as u8).wrapping_mul(31) ^ byte)
                .collect::<Vec<u8>>();
            (block * 4096 + skew as u64, bytes)
        },
    );
    let writes = proptest::collection::vec(piece, 0..24).prop_map(|pieces| {
        let mut kept: Vec<(u64, Vec<u8>)> = Vec::new();
        for (at, bytes) in pieces {
            let end = at + bytes.len() as u64;
            if kept
                .iter()
                .all(|(other, with)| end <= *other || *other + with.len() as u64 <= at)
            {
                kept.push((at, bytes));
            }
        }
        kept
    });
    let batch = prop_oneof![proptest::collection::vec(request, 0..12), run];
    prop_oneof![
        4 => (batch, 0..12_usize).prop_map(|(batch, first)| Step::Batch(batch, first)),
        1 => (0..SIZE as u64, 0..40_000_usize).prop_map(|(at, length)| Step::Read(at, length.min(SIZE - at as usize))),
        1 => (0..SIZE as u64, proptest::collection::vec(any::<u8>(), 0..5000)).prop_map(|(at, mut bytes)| {
            bytes.truncate(SIZE - at as usize);
            Step::Write(at, bytes)
        }),
        2 => (writes, 0..24_usize).prop_map(|(writes, waited)| Step::Writes(writes, waited)),
        1 => (0..SIZE as u64, 0..70_000_u64).prop_map(|(at, length)| Step::Zero(at, length.min(SIZE as u64 - at))),
    ]
}

fn check(device: &Device, model: &mut [u8], steps: &[Step]) {
    for step in steps {
        match step {
            Step::Batch(batch, first) => {
                let requests: Vec<ReadRequest> = batch
                    .iter()
                    .map(|&(offset_bytes, length, _)| ReadRequest { offset_bytes, length })
                    .collect();
                let mut pending: Vec<_> = device.start_reads(&requests).into_iter().zip(batch).collect();
                assert_eq!(pending.len(), batch.len());
                let first = first % pending.len().max(1);
                pending.rotate_left(first);
                for (read, &(offset, length, waited)) in pending {
                    if waited {
                        let bytes = read.wait().unwrap();
                        assert!(
                            bytes[..] == model[offset as usize..][..length],
                            "{offset} {length}"
                        );
                    }
                }
            }
            Step::Read(offset, length) => {
                let bytes = device.read(*offset, *length).unwrap();
                assert!(bytes[..] == model[*offset as usize..][..*length]);
            }
            Step::Write(offset, bytes) => {
                device.write(*offset, bytes).unwrap();
                model[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Step::Writes(writes, waited) => {
                let requests: Vec<WriteRequest> = writes
                    .iter()
                    .map(|(offset_bytes, bytes)| WriteRequest {
                        offset_bytes: *offset_bytes,
                        bytes: Bytes::copy_from_slice(bytes),
                    })
                    .collect();
                let mut pending = device.start_writes(&requests);
                let dropped = pending.split_off((*waited).min(pending.len()));
                drop(dropped);
                for write in pending {
                    write.wait().unwrap();
                }
                for (offset, bytes) in writes {
                    model[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            Step::Zero(offset, length) => {
                device.zero(*offset, *length).unwrap();
                model[*offset as usize..][..*length as usize].fill(0);
            }
        }
    }
    device.flush().unwrap();
    assert!(device.read(0, model.len()).unwrap()[..] == *model);
}

fn content() -> Vec<u8> {
    (0..SIZE as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

fn image() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&content()).unwrap();
    file
}

fn open(file: &tempfile::NamedTempFile, engine: Engine, direct: bool, partition: Offset) -> Device {
    let options = OpenOptions {
        write: true,
        direct,
        engine,
        depth: 5,
        partition,
        ..OpenOptions::default()
    };
    Device::open(file.path(), &options).unwrap()
}

/// Makes a test case with a direct device if the file system below has O_DIRECT.
fn has_direct(file: &tempfile::NamedTempFile) -> bool {
    let found = Device::open(
        file.path(),
        &OpenOptions {
            direct: true,
            ..OpenOptions::default()
        },
    )
    .is_ok();
    if !found {
        skip(&Missing::new(
            "direct-io",
            "the file system of the test's files has no O_DIRECT",
        ));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_engine_gives_the_bytes_of_the_model(steps in proptest::collection::vec(any_step(), 1..12)) {
        check_every_engine(&steps);
    }
}

/// Runs the steps on files through every engine, and on devices in memory.
fn check_every_engine(steps: &[Step]) {
    for engine in [Engine::Threads, Engine::IoUring, Engine::Inline] {
        let file = image();
        check(&open(&file, engine, false, Offset::Whole), &mut content(), steps);
        if has_direct(&file) {
            let file = image();
            check(&open(&file, engine, true, Offset::Whole), &mut content(), steps);
        }
    }
    for model in [
        Model::spinning_7200(),
        Model::sata_ssd(),
        Model::nvme_ssd(),
        Model::Null,
    ] {
        let memory = Arc::new(MemoryBackend::new("memory", content()));
        let device = buttress_lab::simulated(memory, &model, &VirtualClock::new());
        check(&device, &mut content(), steps);
    }
    check(&Device::memory(content()), &mut content(), steps);
}

/// Random writes are seldom neighbours. The writes of this test are, so that the plug merges them.
#[test]
fn every_engine_gives_the_bytes_of_neighbouring_writes() {
    for (start, length) in [(0, 4096), (8192, 16_384), (513, 700)] {
        let neighbours = (0..20).map(|index| (start + index * length as u64, vec![index as u8 + 1; length]));
        check_every_engine(&[Step::Writes(neighbours.collect(), 20)]);
    }
}

#[test]
fn io_uring_runs_or_says_why_not() {
    let file = image();
    let device = open(&file, Engine::IoUring, false, Offset::Whole);
    match device.engine() {
        Engine::IoUring => assert!(device.notices().is_empty()),
        Engine::Threads => {
            assert!(device.notices()[0].contains("io_uring"), "{:?}", device.notices());
            skip(&Missing::new("io-uring", &device.notices()[0]));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_window_is_read_through_every_engine() {
    let model = content();
    for engine in [Engine::Threads, Engine::IoUring, Engine::Inline] {
        for direct in [false, true] {
            let file = image();
            if direct && !has_direct(&file) {
                continue;
            }
            // The offset 512 is not aligned to a 4096-byte sector, so the direct ring must not
            // submit the request unchanged.
            for start in [512, 4096] {
                let device = open(&file, engine, direct, Offset::Bytes(start));
                assert_eq!(device.size_bytes(), SIZE as u64 - start);
                let requests: Vec<_> = (0..40)
                    .map(|i| ReadRequest {
                        offset_bytes: i * 65536,
                        length: 65536,
                    })
                    .collect();
                for (read, request) in device.start_reads(&requests).into_iter().zip(&requests) {
                    let at = (request.offset_bytes + start) as usize;
                    assert!(read.wait().unwrap()[..] == model[at..][..65536]);
                }
                drop(device);
            }
        }
    }
}

#[test]
fn one_bad_sector_fails_its_own_request_only() {
    let size = 1 << 20;
    for engine in [Engine::Threads, Engine::Inline] {
        let memory = Arc::new(MemoryBackend::new("memory", vec![7; size]));
        let faulty = FaultyBackend::new(memory as Arc<dyn Backend>, 0);
        faulty.inject(Fault::FailReads(33_000..33_001));
        let device = Device::with_backend(faulty, engine);
        let requests: Vec<_> = (0..8)
            .map(|i| ReadRequest {
                offset_bytes: i * 16384,
                length: 16384,
            })
            .collect();
        let results: Vec<_> = device
            .start_reads(requests)
            .into_iter()
            .map(|read| read.wait())
            .collect();
        for (index, result) in results.iter().enumerate() {
            assert_eq!(result.is_err(), index == 2, "request {index}");
        }
        let error = results[2].as_ref().unwrap_err();
        assert_eq!((error.offset_bytes, error.length_bytes), (32768, 16384));
        assert_eq!(device.statistics().reads.merged, 7);
    }
}

/// Returns writes of adjacent blocks.
fn blocks(count: usize, bytes: usize) -> Vec<WriteRequest> {
    (0..count)
        .map(|index| WriteRequest {
            offset_bytes: (index * bytes) as u64,
            bytes: Bytes::from(vec![index as u8 + 1; bytes]),
        })
        .collect()
}

#[test]
fn neighbouring_writes_become_one_request_and_fail_alone() {
    for engine in [Engine::Threads, Engine::Inline] {
        let memory = Arc::new(MemoryBackend::new("memory", vec![0; 1 << 20]));
        let faulty = FaultyBackend::new(Arc::clone(&memory) as Arc<dyn Backend>, 0);
        faulty.inject(Fault::FailWrites(33_000..33_001));
        let device = Device::with_backend(faulty, engine);
        let results: Vec<_> = device
            .start_writes(blocks(8, 16384))
            .into_iter()
            .map(|write| write.wait())
            .collect();
        for (index, result) in results.iter().enumerate() {
            assert_eq!(result.is_err(), index == 2, "request {index}");
            let written = memory.snapshot()[index * 16384];
            assert_eq!(written, if index == 2 { 0 } else { index as u8 + 1 });
        }
        let error = results[2].as_ref().unwrap_err();
        assert_eq!((error.offset_bytes, error.length_bytes), (32768, 16384));
        let statistics = device.statistics();
        assert_eq!((statistics.writes.requests, statistics.writes.merged), (1, 7));
        assert_eq!((statistics.writes.bytes, statistics.reads.requests), (131_072, 0));
    }
}

/// Returns the expected content of a file after blocks were written. The test fills each block with
/// its own byte, and the blocks begin `apart` bytes from each other.
fn file_with_blocks(engine: Engine, direct: bool, bytes: usize, apart: usize) -> Vec<u8> {
    let file = image();
    let device = open(&file, engine, direct, Offset::Whole);
    let blocks = blocks(12, bytes).into_iter().enumerate();
    let requests: Vec<_> = blocks
        .map(|(index, block)| WriteRequest {
            offset_bytes: (700 + index * apart) as u64,
            ..block
        })
        .collect();
    for write in device.start_writes(requests) {
        write.wait().unwrap();
    }
    device.flush().unwrap();
    drop(device);
    std::fs::read(file.path()).unwrap()
}

#[test]
fn blocks_reach_the_file_whole_and_nothing_beside_them_changes() {
    let direct = has_direct(&image());
    for engine in [Engine::Threads, Engine::IoUring, Engine::Inline] {
        for is_direct in [false, true].into_iter().filter(|is_direct| direct || !is_direct) {
            // The blocks of this test are adjacent, which merges them into one request, or separate
            // within sectors.
            for (bytes, apart) in [(4096, 4096), (300, 1000), (5000, 9000)] {
                let mut expected = content();
                for index in 0..12 {
                    let at = 700 + index * apart;
                    expected[at..at + bytes].fill(index as u8 + 1);
                }
                let found = file_with_blocks(engine, is_direct, bytes, apart);
                assert!(found == expected, "{engine}, direct {is_direct}, {bytes} bytes");
            }
        }
    }
}

#[test]
fn writes_to_read_only_devices_and_beyond_the_end_fail() {
    let file = image();
    let device = Device::open(file.path(), &OpenOptions::default()).unwrap();
    let error = device
        .start_writes(blocks(1, 512))
        .pop()
        .unwrap()
        .wait()
        .unwrap_err();
    assert_eq!(error.kind, std::io::ErrorKind::ReadOnlyFilesystem);
    let device = Device::memory(vec![0; 1000]);
    let results: Vec<_> = device
        .start_writes(blocks(2, 512))
        .into_iter()
        .map(|write| write.wait().is_ok())
        .collect();
    assert_eq!(results, [true, false]);
}

#[test]
fn a_batch_of_writes_keeps_a_simulated_disk_busy_in_order() {
    let time = |batched: bool| {
        let memory = Arc::new(MemoryBackend::new("memory", vec![0; 64 << 20]));
        let clock = VirtualClock::new();
        let device = buttress_lab::simulated(memory, &Model::spinning_7200(), &clock);
        // The test's requests are far apart and in descending order.
        let requests: Vec<_> = (0..32_u64)
            .rev()
            .map(|index| WriteRequest {
                offset_bytes: index * (2 << 20),
                bytes: Bytes::from(vec![1; 4096]),
            })
            .collect();
        if batched {
            for write in device.start_writes(&requests) {
                write.wait().unwrap();
            }
        } else {
            for request in &requests {
                device.write(request.offset_bytes, &request.bytes).unwrap();
            }
        }
        device.flush().unwrap();
        assert_eq!(device.statistics().writes.requests, 32);
        clock.now()
    };
    let (batch, single) = (time(true), time(false));
    assert!(batch < single, "{batch:?} and {single:?}");
}

#[test]
fn ranges_outside_the_device_fail_by_themselves() {
    let device = Device::memory(vec![1; 1000]);
    let requests = [(0, 1000), (1, 1000), (u64::MAX, 2), (1000, 0), (2000, 0)];
    let requests = requests.map(|(offset_bytes, length)| ReadRequest { offset_bytes, length });
    let results: Vec<_> = device
        .start_reads(requests)
        .into_iter()
        .map(|read| read.wait().is_ok())
        .collect();
    assert_eq!(results, [true, false, false, true, false]);
    let error = device.read(1, 1000).unwrap_err();
    assert_eq!(error.kind, std::io::ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains("[1, 1001)"), "{error}");
    assert!(error.to_string().contains("1000 bytes"), "{error}");
}

#[test]
fn dropped_reads_are_cancelled_and_kept_reads_complete() {
    let file = image();
    for engine in [Engine::Threads, Engine::IoUring] {
        let device = open(&file, engine, false, Offset::Whole);
        for round in 0..50_u64 {
            // The requests are 128 KiB apart, so none is merged, and too large for the page-cache
            // shortcut.
            let requests: Vec<_> = (0..16)
                .map(|i| ReadRequest {
                    offset_bytes: i * 196_608,
                    length: 131_072,
                })
                .collect();
            let mut reads = device.start_reads(&requests);
            let kept = reads.swap_remove((round % 16) as usize);
            drop(reads);
            assert_eq!(kept.wait().unwrap().len(), 131_072);
        }
        drop(device);
    }
    // On a simulated disk, no request begins before a caller waits.
    let memory = Arc::new(MemoryBackend::new("memory", content()));
    let device = buttress_lab::simulated(memory, &Model::spinning_7200(), &VirtualClock::new());
    let requests: Vec<_> = (0..16)
        .map(|i| ReadRequest {
            offset_bytes: i * 131_072,
            length: 4096,
        })
        .collect();
    let mut reads = device.start_reads(&requests);
    let kept = reads.pop().unwrap();
    drop(reads);
    kept.wait().unwrap();
    let statistics = device.statistics();
    assert_eq!(statistics.reads.requests + statistics.cancelled, 16);
    assert!(statistics.cancelled >= 14, "{statistics:?}");
}

#[test]
fn devices_may_be_closed_while_reads_are_pending() {
    let file = image();
    for engine in [Engine::Threads, Engine::IoUring] {
        for _ in 0..30 {
            let device = open(&file, engine, false, Offset::Whole);
            let requests: Vec<_> = (0..20)
                .map(|i| ReadRequest {
                    offset_bytes: i * 131_072,
                    length: 131_072,
                })
                .collect();
            let mut reads = device.start_reads(&requests);
            drop(device);
            let last = reads.pop().unwrap();
            drop(reads);
            assert_eq!(last.wait().unwrap().len(), 131_072);
        }
    }
}

#[test]
fn many_threads_read_at_once() {
    let file = image();
    let model = content();
    for engine in [Engine::Threads, Engine::IoUring] {
        let device = open(&file, engine, false, Offset::Whole);
        std::thread::scope(|scope| {
            for thread in 0..6_usize {
                let (device, model) = (&device, &model);
                scope.spawn(move || {
                    for round in 0..40_usize {
                        let requests: Vec<_> = (0..9)
                            .map(|i| (thread * 7919 + round * 104_729 + i * 131_072) % (SIZE - 100_000))
                            .map(|at| ReadRequest {
                                offset_bytes: at as u64,
                                length: 80_000,
                            })
                            .collect();
                        for (read, request) in device.start_reads(&requests).into_iter().zip(&requests) {
                            let expected = &model[request.offset_bytes as usize..][..80_000];
                            assert!(read.wait().unwrap()[..] == *expected);
                        }
                    }
                });
            }
        });
        // Reads from the page cache count as copies, not as requests.
        let statistics = device.statistics();
        assert_eq!(
            statistics.reads.bytes + statistics.copies.bytes,
            6 * 40 * 9 * 80_000
        );
    }
}
