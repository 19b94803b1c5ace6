//! Tests of dirty state: it stays within its share of the budget, and is always committed in the
//! end.

use super::super::{Environment, WritableFilesystem, WriteOptions};
use crate::operations::NewInode;
use buttress_device::{Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_mkfs::{self as mkfs, Identity};
use core::sync::atomic::{AtomicI64, Ordering};
use core::time::Duration;
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const MIB: u64 = 1 << 20;

/// A clock that a test sets.
#[derive(Debug, Default)]
struct Clock {
    seconds: AtomicI64,
    uuids: AtomicI64,
    interval: Option<Duration>,
}

impl Environment for Clock {
    fn now(&self) -> Timestamp {
        Timestamp {
            seconds: self.seconds.load(Ordering::Relaxed),
            nanoseconds: 0,
        }
    }

    fn new_uuid(&self) -> Uuid {
        Uuid::from_u128(u128::from(
            self.uuids.fetch_add(1, Ordering::Relaxed).unsigned_abs(),
        ))
    }

    fn commit_interval(&self) -> Option<Duration> {
        self.interval
    }
}

fn new_volume(bytes: usize, cache: ByteCount, clock: &Arc<Clock>) -> WritableFilesystem {
    let backend = Arc::new(MemoryBackend::new("memory", vec![0; bytes]));
    let device = || Device::with_backend(backend.clone(), Engine::Inline);
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device()], &mkfs::Options::default(), &identity).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).cache(cache).open().unwrap();
    let options = WriteOptions {
        environment: clock.clone(),
        ..WriteOptions::default()
    };
    WritableFilesystem::new(filesystem, options).unwrap()
}

/// Returns the bytes in the cache.
fn cached_bytes(filesystem: &WritableFilesystem) -> u64 {
    let cached = filesystem.forest().cache_statistics();
    cached.block_bytes.get() + cached.ahead_bytes.get()
}

#[test]
fn a_long_run_of_creations_stays_within_the_budget() {
    // The test runs without background commits, and with background commits.
    for interval in [None, Some(Duration::from_secs(1 << 40))] {
        let clock = Arc::new(Clock {
            interval,
            ..Clock::default()
        });
        let cache = ByteCount::new(24 * MIB);
        let filesystem = new_volume(384 << 20, cache, &clock);
        let first = filesystem.committed_generation();
        let content = [b'x'; 2000];
        let limit = filesystem.dirty_limit().get();
        let (mut peak, mut most_cached) = (0, 0);
        for number in 0..25_000 {
            let name = format!("file_{number}");
            let made = filesystem
                .create(ROOT, name.as_bytes(), &NewInode::of_root(0o644))
                .unwrap();
            filesystem.write_at(made, FileOffset::new(0), &content).unwrap();
            peak = peak.max(filesystem.dirty_held().get() + filesystem.data().delalloc_bytes());
            most_cached = most_cached.max(cached_bytes(&filesystem));
        }
        filesystem.commit().unwrap();
        let commits = filesystem.committed_generation().get() - first.get();
        // The read-ahead memory that is not in use belongs to the cache.
        let (whole, cached) = (cache.get(), most_cached);
        assert!(limit + cached <= whole, "{limit} beside {cached} of {whole}");
        // The changes that a commit itself makes are not part of the limit.
        assert!(peak <= limit + limit / 8, "{peak} of {limit}");
        assert!(peak > limit / 4 && cached > 0, "{peak}, {cached}");
        assert!(commits >= 5, "{commits}");
        let view = filesystem.view();
        let found = view.lookup(ROOT, b"file_24999").unwrap().unwrap();
        let file = view.file_of(view.metadata(found.target).unwrap()).unwrap();
        let mut read = [0; 2000];
        assert_eq!(file.read_at(FileOffset::new(0), &mut read).unwrap(), 2000);
        assert_eq!(read, content);
    }
}

#[test]
fn content_is_written_back_beside_writers() {
    let clock = Arc::new(Clock {
        interval: Some(Duration::from_secs(1 << 40)),
        ..Clock::default()
    });
    let filesystem = new_volume(384 << 20, ByteCount::new(32 * MIB), &clock);
    let limit = filesystem.dirty_data_limit().get();
    let files: Vec<Location> = (0..8)
        .map(|number| {
            let name = format!("file_{number}");
            filesystem
                .create(ROOT, name.as_bytes(), &NewInode::of_root(0o644))
                .unwrap()
        })
        .collect();
    // The content exceeds half of the dirty limit but not the limit, so no call has to write back.
    let piece = usize::try_from(limit * 3 / 4).unwrap() / files.len() / 4096 * 4096;
    for file in &files {
        filesystem
            .write_at(*file, FileOffset::MIN, &vec![b'x'; piece])
            .unwrap();
    }
    // Background write-back ends at a quarter of the limit. After that, writes wake the background
    // thread only from half of the limit on.
    while filesystem.data().delalloc_bytes() > limit / 2 {
        std::thread::yield_now();
    }
    let mut read = vec![0; piece];
    for file in &files {
        assert_eq!(
            filesystem
                .live()
                .read_at(*file, FileOffset::MIN, &mut read)
                .unwrap(),
            piece
        );
        assert!(read.iter().all(|byte| *byte == b'x'));
    }
    filesystem.commit().unwrap();

    // The content is below half of the dirty limit, so the commit writes the large files back side
    // by side.
    let large = vec![b'y'; (MIB + 200_000) as usize];
    for file in files.iter().take(3) {
        filesystem.write_at(*file, FileOffset::MIN, &large).unwrap();
    }
    filesystem.commit().unwrap();
    assert!(!filesystem.data().has_dirty());
    let view = filesystem.view();
    for file in files.iter().take(3) {
        let file = view.open_file(*file).unwrap();
        let mut read = vec![0; large.len()];
        assert_eq!(file.read_at(FileOffset::MIN, &mut read).unwrap(), large.len());
        assert!(read == large);
    }
}

#[test]
fn changes_dirty_for_long_are_committed() {
    let clock = Arc::new(Clock::default());
    let filesystem = new_volume(128 << 20, ByteCount::new(32 * MIB), &clock);
    let interval = Duration::from_secs(30);
    let due = |at: i64| {
        clock.seconds.store(at, Ordering::Relaxed);
        filesystem.commit_if_due(interval).unwrap()
    };
    let first = filesystem.committed_generation();
    // No changes are dirty.
    assert!(!due(0) && !due(100));
    let file = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o644))
        .unwrap();
    filesystem.write_at(file, FileOffset::new(0), b"content").unwrap();
    assert!(!due(200) && !due(229));
    assert_eq!(filesystem.committed_generation(), first);
    assert!(due(230));
    assert!(filesystem.committed_generation() > first);
    assert!(!filesystem.data().has_dirty());
    // A caller's own commit restarts the interval of automatic commits, and so does a clock that
    // was set back.
    filesystem.write_at(file, FileOffset::new(0), b"other").unwrap();
    assert!(!due(300));
    filesystem.commit().unwrap();
    filesystem.write_at(file, FileOffset::new(0), b"third").unwrap();
    assert!(!due(331) && !due(10) && !due(39));
    assert!(due(40));
    assert!(!due(1000));
}

#[test]
fn dropping_last_handle_waits_for_commit_in_progress() {
    for _ in 0..20 {
        let clock = Arc::new(Clock {
            interval: Some(Duration::from_secs(1 << 40)),
            ..Clock::default()
        });
        let filesystem = new_volume(128 << 20, ByteCount::new(32 * MIB), &clock);
        filesystem
            .create(ROOT, b"file", &NewInode::of_root(0o644))
            .unwrap();
        let keeper = filesystem.keeper().unwrap();
        keeper.wake();
        let observer = filesystem.observer();
        drop((keeper, filesystem));
        assert!(observer.is_gone());
    }
}
