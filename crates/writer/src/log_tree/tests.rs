//! Tests of the cost of syncs, of syncs that join another write, and of devices that fail
//! meanwhile.

mod broken;
mod lasting;
mod ranges;
mod rows;

use super::{CommitCause, Synced};
use crate::operations::{NewInode, RenameMode};
use crate::{Environment, WritableFilesystem, WriteOptions};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset, Profile, SubvolumeId, Timestamp, Uuid};
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_lab::{Fault, FaultyBackend};
use buttress_mkfs::{self as mkfs, Identity};
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const MIB: usize = 1 << 20;

/// A clock whose environment starts no background commits.
#[derive(Debug)]
struct Still;

impl Environment for Still {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn new_uuid(&self) -> Uuid {
        Uuid::from_u128(99)
    }
}

/// A memory backend with a slow flush, so that other syncs wait for it.
#[derive(Debug)]
struct Slow(MemoryBackend);

impl Backend for Slow {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset: u64, buffers: &mut [&mut [u8]]) -> std::io::Result<()> {
        self.0.read_vectored_at(offset, buffers)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn flush(&self) -> std::io::Result<()> {
        std::thread::sleep(core::time::Duration::from_millis(1));
        self.0.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> std::io::Result<()> {
        self.0.discard(offset, length)
    }

    fn zero(&self, offset: u64, length: u64) -> std::io::Result<()> {
        self.0.zero(offset, length)
    }
}

fn made(sizes: &[usize], profile: Option<Profile>) -> Vec<Arc<FaultyBackend>> {
    let memory = |(number, size): (usize, &usize)| {
        let memory = MemoryBackend::new(format!("memory-{number}"), vec![0; *size]);
        FaultyBackend::new(Arc::new(memory) as Arc<dyn Backend>, 1)
    };
    formatted(sizes.iter().enumerate().map(memory).collect(), profile)
}

fn formatted(backends: Vec<Arc<FaultyBackend>>, profile: Option<Profile>) -> Vec<Arc<FaultyBackend>> {
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: (4..).take(backends.len()).map(Uuid::from_u128).collect(),
        time: Timestamp::default(),
    };
    let options = mkfs::Options {
        data: profile,
        metadata: profile,
        ..mkfs::Options::default()
    };
    mkfs::make(&given(&backends), &options, &identity).unwrap();
    backends
}

fn given(backends: &[Arc<FaultyBackend>]) -> Vec<Device> {
    let device = |backend: &Arc<FaultyBackend>| {
        Device::with_backend(Arc::clone(backend) as Arc<dyn Backend>, Engine::Inline)
    };
    backends.iter().map(device).collect()
}

fn open(backends: &[Arc<FaultyBackend>]) -> WritableFilesystem {
    let filesystem = OpenOptions::new(given(backends)).open().unwrap();
    let options = WriteOptions {
        environment: Arc::new(Still),
        ..WriteOptions::default()
    };
    WritableFilesystem::new(filesystem, options).unwrap()
}

const NEW: NewInode = NewInode::of_root(0o644);

fn write(filesystem: &WritableFilesystem, file: Location, byte: u8, bytes: usize) {
    let content = vec![byte; bytes];
    filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
}

/// The last sync of a growing directory costs as much as the first: its cost depends only on new
/// names.
#[test]
fn a_directory_costs_what_is_new() {
    let backends = made(&[512 * MIB], None);
    let filesystem = open(&backends);
    let directory = filesystem.make_directory(ROOT, b"directory", &NEW).unwrap();
    filesystem.commit().unwrap();
    let mut costs = Vec::new();
    for round in 0..60 {
        for number in 0..100 {
            let name = format!("file-{round:03}-{number:03}");
            filesystem.create(directory, name.as_bytes(), &NEW).unwrap();
        }
        let before = filesystem.log_tree().statistics().blocks;
        assert_eq!(filesystem.log_tree().fsync(directory).unwrap(), Synced::Logged);
        costs.push(filesystem.log_tree().statistics().blocks - before);
    }
    let sum = |costs: &[u64]| costs.iter().sum::<u64>();
    let (first, last) = (sum(&costs[..10]), sum(&costs[50..]));
    assert!(last <= first * 13 / 10, "blocks of a sync: {costs:?}");
    filesystem.abandon();
}

#[test]
fn a_sync_with_nothing_to_do_writes_nothing() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    write(&filesystem, file, b'a', 10_000);
    assert_eq!(filesystem.log_tree().fsync(file).unwrap(), Synced::Logged);
    assert_eq!(filesystem.log_tree().fsync(file).unwrap(), Synced::Unneeded);
    assert_eq!(filesystem.log_tree().fdatasync(file).unwrap(), Synced::Unneeded);
    filesystem.commit().unwrap();
    assert_eq!(filesystem.log_tree().fsync(file).unwrap(), Synced::Unneeded);
    let statistics = filesystem.log_tree().statistics();
    assert_eq!(
        (statistics.syncs, statistics.unneeded, statistics.written),
        (4, 3, 1)
    );
    filesystem.close().unwrap();
}

/// Threads sync their own files at once. All synced content survives a crash without a commit.
#[test]
fn syncs_of_many_threads_survive_crash() {
    let backends = made(&[512 * MIB], None);
    let filesystem = open(&backends);
    let files: Vec<Location> = (0..8)
        .map(|number| {
            let name = format!("file-{number}");
            filesystem.create(ROOT, name.as_bytes(), &NEW).unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for file in &files {
            let filesystem = &filesystem;
            scope.spawn(move || {
                for round in 0..20_u8 {
                    write(filesystem, *file, round, 5000 + usize::from(round));
                    filesystem.log_tree().fsync(*file).unwrap();
                }
            });
        }
    });
    let statistics = filesystem.log_tree().statistics();
    assert_eq!(statistics.commits, []);
    assert_eq!(statistics.joined + statistics.written, 160);
    filesystem.abandon();
    let filesystem = open(&backends);
    for file in files {
        let mut content = vec![0; 6000];
        let read = filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut content)
            .unwrap();
        assert_eq!((read, content[0], content[read - 1]), (5019, 19, 19));
    }
    filesystem.close().unwrap();
}

/// A failed write of a block or superblock, or a failed flush, makes that sync fail. Content of
/// earlier syncs survives the failure.
#[test]
fn device_failure_fails_sync_and_keeps_earlier_syncs() {
    for number in 0..4 {
        let backends = made(&[160 * MIB], None);
        let filesystem = open(&backends);
        let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
        write(&filesystem, file, b'a', 10_000);
        filesystem.log_tree().fsync(file).unwrap();
        let other = filesystem.create(ROOT, b"other", &NEW).unwrap();
        write(&filesystem, other, b'b', 10_000);
        filesystem.writeback().write_all().unwrap();
        let (_, writes, flushes) = backends[0].request_counts();
        let fault = match number {
            0 => Fault::FailWritesFrom(writes),
            // The fault hits the primary superblock.
            1 => Fault::FailWrites((64 << 10)..(68 << 10)),
            2 => Fault::FailFlushesFrom(flushes),
            _ => Fault::FailFlushesFrom(flushes + 1),
        };
        backends[0].inject(fault.clone());
        assert!(filesystem.log_tree().fsync(other).is_err(), "{fault:?}");
        assert!(
            filesystem.log_tree().fsync(file).is_err(),
            "{fault:?}: writing has stopped"
        );
        assert!(filesystem.create(ROOT, b"third", &NEW).is_err(), "{fault:?}");
        filesystem.abandon();
        backends[0].heal();
        let filesystem = open(&backends);
        let mut content = vec![0; 10_000];
        assert_eq!(
            filesystem
                .live()
                .read_at(file, FileOffset::MIN, &mut content)
                .unwrap(),
            10_000
        );
        assert_eq!(content, vec![b'a'; 10_000]);
        filesystem.close().unwrap();
    }
}

/// Runs threads that sync until the device fails. Everything that a successful sync promised must
/// survive.
fn expect_promises_kept(fault: impl FnOnce(u64, u64) -> Fault) {
    let slow = Slow(MemoryBackend::new("slow", vec![0; 160 * MIB]));
    let backends = formatted(
        vec![FaultyBackend::new(Arc::new(slow) as Arc<dyn Backend>, 1)],
        None,
    );
    let filesystem = open(&backends);
    let files: Vec<Location> = (0..8)
        .map(|number| {
            let name = format!("file-{number}");
            filesystem.create(ROOT, name.as_bytes(), &NEW).unwrap()
        })
        .collect();
    filesystem.commit().unwrap();
    let work = |file: Location| {
        let mut promised = 0_u64;
        loop {
            let content = (promised + 1).to_le_bytes().repeat(700);
            let written = filesystem.write_at(file, FileOffset::MIN, &content);
            if written.is_err() || filesystem.log_tree().fsync(file).is_err() {
                return promised;
            }
            promised += 1;
        }
    };
    let promised: Vec<u64> = std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(move || work(*file)))
            .collect();
        while filesystem.log_tree().statistics().written < 20 {
            std::thread::yield_now();
        }
        let (_, writes, flushes) = backends[0].request_counts();
        backends[0].inject(fault(writes, flushes));
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    filesystem.abandon();
    backends[0].heal();
    let filesystem = open(&backends);
    for (file, promised) in files.into_iter().zip(promised) {
        let mut found = [0; 8];
        filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut found)
            .unwrap();
        let found = u64::from_le_bytes(found);
        assert!(
            found >= promised,
            "round {promised} was synced, and round {found} is there"
        );
    }
    filesystem.close().unwrap();
}

/// The timing of threads decides which call waits for which when the device fails, so the test
/// repeats.
#[test]
fn nobody_is_promised_what_a_failed_flush_wrote() {
    for _ in 0..3 {
        expect_promises_kept(|_, flushes| Fault::FailFlushesFrom(flushes + 10));
    }
}

/// The first failing write may be at any point of a round.
#[test]
fn nobody_is_promised_what_lies_behind_any_failed_write() {
    for later in [20, 30, 40, 50, 60, 90] {
        expect_promises_kept(move |writes, _| Fault::FailWritesFrom(writes + later));
    }
}

/// The logs of any number of syncs in a transaction take no more space than the few logs that exist
/// at once.
#[test]
fn logs_take_turns_at_the_same_places() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem.commit().unwrap();
    for round in 0..2000_u32 {
        let content = round.to_le_bytes();
        filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
        assert_eq!(
            filesystem.log_tree().fsync(file).unwrap(),
            Synced::Logged,
            "round {round}"
        );
        if round % 500 == 499 {
            // Simulate a crash at this moment, on a copy of the devices.
            let copy: Vec<Arc<FaultyBackend>> = backends
                .iter()
                .map(|backend| {
                    let mut bytes = vec![0; 160 * MIB];
                    backend.read_vectored_at(0, &mut [&mut bytes]).unwrap();
                    let memory = MemoryBackend::new("copy", bytes);
                    FaultyBackend::new(Arc::new(memory) as Arc<dyn Backend>, 1)
                })
                .collect();
            let copied = open(&copy);
            let mut found = [0; 4];
            copied.live().read_at(file, FileOffset::MIN, &mut found).unwrap();
            assert_eq!(u32::from_le_bytes(found), round);
            copied.close().unwrap();
        }
    }
    // Metadata has at most 32 MiB in this test: 2000 logs of two blocks would not all fit.
    assert_eq!(filesystem.log_tree().statistics().commits, []);
    filesystem.abandon();
}

/// If a device fails while a log is written, its superblock has the generation of the devices with
/// the log. In this test, a commit makes the generations differ.
#[test]
fn a_device_left_out_while_logging_makes_the_sync_a_commit() {
    let backends = made(&[160 * MIB; 2], Some(Profile::Raid1));
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem.commit().unwrap();
    write(&filesystem, file, b'a', 10_000);
    filesystem.writeback().write_all().unwrap();
    backends[1].inject(Fault::FailWritesFrom(0));
    assert_eq!(
        filesystem.log_tree().fsync(file).unwrap(),
        Synced::Committed(CommitCause::DeviceLost)
    );
    filesystem.abandon();
}

/// On a full volume, a sync keeps its promise by a log or by a commit.
#[test]
fn sync_on_full_volume_survives_crash() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    let mut number = 0_u64;
    while filesystem
        .write_at(file, FileOffset::new(number * (MIB as u64)), &vec![b'f'; MIB])
        .and_then(|_| filesystem.writeback().write_all())
        .is_ok()
    {
        number += 1;
    }
    let mut names = 0;
    while filesystem
        .create(ROOT, format!("name-{names}").as_bytes(), &NEW)
        .is_ok()
    {
        names += 1;
        if names % 64 == 0 {
            filesystem.log_tree().fsync(ROOT).unwrap();
        }
    }
    filesystem.log_tree().fsync(ROOT).unwrap();
    filesystem.abandon();
    let filesystem = open(&backends);
    assert_eq!(
        filesystem.live().list(ROOT, 0, 1_000_000).unwrap().len(),
        names + 1
    );
    filesystem.close().unwrap();
}

/// A removed inode's number is not reused in the same transaction, because the last commit still
/// has it.
#[test]
fn numbers_of_inodes_are_not_used_again_before_a_commit() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let gone = filesystem.make_directory(ROOT, b"gone", &NEW).unwrap();
    filesystem.close().unwrap();
    let filesystem = open(&backends);
    filesystem.remove_directory(ROOT, b"gone").unwrap();
    let new = filesystem.create(ROOT, b"new", &NEW).unwrap();
    assert_ne!(gone.inode, new.inode);
    filesystem.log_tree().fsync(new).unwrap();
    filesystem.abandon();
    let filesystem = open(&backends);
    assert!(filesystem.live().lookup(ROOT, b"new").unwrap().is_some());
    filesystem.close().unwrap();
}

/// After a rename over a synced file and a crash, the name leads to the old or the new content.
#[test]
fn a_replaced_file_has_its_new_content() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let old = filesystem.create(ROOT, b"file", &NEW).unwrap();
    write(&filesystem, old, b'o', 5000);
    filesystem.commit().unwrap();
    let new = filesystem.create(ROOT, b"file.new", &NEW).unwrap();
    write(&filesystem, new, b'n', 7000);
    filesystem
        .rename(ROOT, b"file.new", ROOT, b"file", RenameMode::Replace)
        .unwrap();
    filesystem.log_tree().fsync(new).unwrap();
    filesystem.abandon();
    let filesystem = open(&backends);
    assert!(filesystem.live().lookup(ROOT, b"file.new").unwrap().is_none());
    let found = filesystem.live().lookup(ROOT, b"file").unwrap().unwrap().target;
    assert_eq!(
        filesystem.live().metadata(found).unwrap().size,
        ByteCount::new(7000)
    );
    filesystem.close().unwrap();
}

/// The last commit lacks a new chunk, so a log cannot refer to that chunk: a sync after the chunk
/// was made is a commit.
#[test]
fn a_log_refers_to_no_new_chunk() {
    let backends = made(&[512 * MIB], None);
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    write(&filesystem, file, b'a', 40 * MIB);
    assert_eq!(
        filesystem.log_tree().fsync(file).unwrap(),
        Synced::Committed(CommitCause::NewChunk)
    );
    write(&filesystem, file, b'b', 5000);
    assert_eq!(filesystem.log_tree().fsync(file).unwrap(), Synced::Logged);
    filesystem.abandon();
}

#[test]
fn a_large_file_is_there_after_a_crash() {
    let backends = made(&[512 * MIB], None);
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    write(&filesystem, file, b'a', 40 * MIB);
    filesystem.log_tree().fsync(file).unwrap();
    filesystem.abandon();
    let filesystem = open(&backends);
    let mut content = vec![0; 40 * MIB];
    assert_eq!(
        filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut content)
            .unwrap(),
        40 * MIB
    );
    assert!(content.iter().all(|byte| *byte == b'a'));
    filesystem.close().unwrap();
}
