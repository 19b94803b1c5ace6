//! Trimming discards all unused space, and only unused space, also beside writers. Discarded bytes
//! of these devices read as a pattern afterwards.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset, Logical, Profile, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Error, Location, OpenOptions};
use buttress_lab::gate::{GatedBackend, Request, SetOnDrop, WatchedThread};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::operations::NewInode;
use buttress_writer::{AllocateMode, Trimmed, WritableFilesystem, WriteOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const DEVICE_BYTES: usize = 192 << 20;
const ALL: core::ops::Range<Logical> = Logical::MIN..Logical::new(u64::MAX);

/// The content of files that the test keeps; the constant below is the content of files that it
/// removes.
const STAYS: &[u8; 16] = b"this is to stay.";
const GOES: &[u8; 16] = b"this is to go!!!";

struct Disks(Vec<Arc<MemoryBackend>>);

impl Disks {
    fn new(count: usize, data: Profile, metadata: Profile) -> Self {
        let disks = (0..count).map(|_| Arc::new(MemoryBackend::new("memory", vec![0; DEVICE_BYTES])));
        let disks = Self(disks.collect());
        let identity = Identity {
            fsid: Uuid::from_u128(1),
            chunk_tree: Uuid::from_u128(2),
            top_level: Uuid::from_u128(3),
            devices: (0..count)
                .map(|index| Uuid::from_u128(10 + index as u128))
                .collect(),
            time: Timestamp::default(),
        };
        let options = mkfs::Options {
            data: Some(data),
            metadata: Some(metadata),
            ..mkfs::Options::default()
        };
        mkfs::make(&disks.devices(), &options, &identity).unwrap();
        disks
    }

    fn devices(&self) -> Vec<Device> {
        let devices = self.0.iter();
        let devices = devices
            .map(|memory| Device::with_backend(Arc::clone(memory) as Arc<dyn Backend>, Engine::Inline));
        devices.collect()
    }

    fn open(&self) -> WritableFilesystem {
        self.open_with(WriteOptions::default())
    }

    fn open_with(&self, options: WriteOptions) -> WritableFilesystem {
        let filesystem = OpenOptions::new(self.devices()).open().unwrap();
        WritableFilesystem::new(filesystem, options).unwrap()
    }

    /// Returns how many sectors begin with these bytes.
    fn count(&self, bytes: &[u8; 16]) -> usize {
        let sectors = |memory: &Arc<MemoryBackend>| {
            let snapshot = memory.snapshot();
            snapshot
                .chunks(4096)
                .filter(|sector| sector.starts_with(bytes))
                .count()
        };
        self.0.iter().map(sectors).sum()
    }
}

fn write(
    filesystem: &WritableFilesystem,
    name: &str,
    pattern: &[u8; 16],
    bytes: usize,
) -> Result<Location, Error> {
    let file = filesystem.create(ROOT, name.as_bytes(), &NewInode::of_root(0o600))?;
    filesystem.write_at(file, FileOffset::MIN, &pattern.repeat(bytes / 16))?;
    Ok(file)
}

#[track_caller]
fn holds(filesystem: &WritableFilesystem, name: &str, pattern: &[u8; 16], bytes: usize) {
    let file = filesystem
        .view()
        .lookup(ROOT, name.as_bytes())
        .unwrap()
        .unwrap()
        .target;
    let mut content = vec![0; bytes];
    assert_eq!(
        filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut content)
            .unwrap(),
        bytes
    );
    assert!(content == pattern.repeat(bytes / 16), "{name}");
}

#[test]
fn trim_discards_removed_content_and_keeps_the_rest() {
    let profiles = [
        (1, Profile::Single, Profile::Dup),
        (2, Profile::Raid0, Profile::Raid1),
        (2, Profile::Raid1, Profile::Raid1),
        (4, Profile::Raid10, Profile::Raid10),
        (3, Profile::Raid5, Profile::Raid1),
        (4, Profile::Raid6, Profile::Raid1C3),
    ];
    for (count, data, metadata) in profiles {
        let disks = Disks::new(count, data, metadata);
        let filesystem = disks.open();
        for number in 0..40 {
            write(&filesystem, &format!("goes-{number}"), GOES, 256 << 10).unwrap();
            if number % 8 == 0 {
                write(&filesystem, &format!("stays-{number}"), STAYS, 256 << 10).unwrap();
            }
        }
        filesystem.commit().unwrap();
        let (stayed, gone) = (disks.count(STAYS), disks.count(GOES));
        for number in 0..40 {
            filesystem
                .unlink(ROOT, format!("goes-{number}").as_bytes())
                .unwrap();
        }
        let trimmed = filesystem.trims().trim(ALL, ByteCount::ZERO).unwrap();
        assert!(trimmed.block_groups.get() > 10 << 20, "{data:?}: {trimmed:?}");
        assert!(trimmed.unallocated.get() > 10 << 20, "{data:?}: {trimmed:?}");
        assert_eq!(disks.count(STAYS), stayed, "{data:?}");
        let left = disks.count(GOES);
        if data.parity_stripes() == 0 {
            assert_eq!(left, 0, "{data:?}");
        } else {
            // A trim leaves rows that also contain other data unchanged.
            assert!(left < gone / 2, "{data:?}: {left} of {gone}");
        }
        // After a trim, the trimmed space can be used again, and a second trim of the same space
        // changes nothing.
        write(&filesystem, "later", GOES, 1 << 20).unwrap();
        filesystem.commit().unwrap();
        filesystem.close().unwrap();
        let filesystem = disks.open();
        for number in (0..40).step_by(8) {
            holds(&filesystem, &format!("stays-{number}"), STAYS, 256 << 10);
        }
        holds(&filesystem, "later", GOES, 1 << 20);
        filesystem.close().unwrap();
    }
}

#[test]
fn short_ranges_and_other_addresses_are_left_alone() {
    let disks = Disks::new(1, Profile::Single, Profile::Dup);
    let filesystem = disks.open();
    for number in 0..20 {
        write(&filesystem, &format!("goes-{number}"), GOES, 64 << 10).unwrap();
        write(&filesystem, &format!("stays-{number}"), STAYS, 64 << 10).unwrap();
        filesystem.writeback().write_all().unwrap();
    }
    for number in 0..20 {
        filesystem
            .unlink(ROOT, format!("goes-{number}").as_bytes())
            .unwrap();
    }
    filesystem.commit().unwrap();
    let gone = disks.count(GOES);
    assert_eq!(gone, 20 * 16);
    let trimmed = filesystem.trims().trim(ALL, ByteCount::new(128 << 10)).unwrap();
    assert!(trimmed.block_groups.get() > 1 << 20, "{trimmed:?}");
    assert!(disks.count(GOES) > gone / 2, "{} of {gone}", disks.count(GOES));
    let none = filesystem
        .trims()
        .trim(Logical::MIN..Logical::new(64 << 10), ByteCount::ZERO)
        .unwrap();
    assert_eq!(none.block_groups, ByteCount::ZERO);
    assert!(disks.count(GOES) > gone / 2);
    filesystem.trims().trim(ALL, ByteCount::ZERO).unwrap();
    assert_eq!((disks.count(GOES), disks.count(STAYS)), (0, 20 * 16));
    filesystem.close().unwrap();
}

/// A trim keeps the space outside of chunks from being used. An edit that needs a chunk waits for
/// the trim, whether dirty data, preallocation or a snapshot needs that chunk.
#[test]
fn a_trim_causes_no_want_of_space() {
    let written = edits_beside_trim(|filesystem, number| {
        write(filesystem, &format!("{number}"), STAYS, 2 << 20).map(drop)
    });
    let preallocated = edits_beside_trim(|filesystem, number| {
        let file = filesystem.create(ROOT, format!("{number}").as_bytes(), &NewInode::of_root(0o600))?;
        let all = FileOffset::MIN..FileOffset::new(2 << 20);
        filesystem.allocate(file, all, AllocateMode::Allocate)
    });
    assert!(written > 30 && preallocated > 30, "{written} {preallocated}");
    let snapshots = edits_beside_trim(|filesystem, number| {
        let source = SubvolumeId::TOP_LEVEL;
        let name = format!("{number}");
        filesystem
            .subvolumes()
            .snapshot(source, ROOT, name.as_bytes(), true)
            .map(drop)
    });
    assert!(snapshots > 300, "{snapshots}");
}

/// Repeats the edit until it fails, beside a trim that is blocked until the edit waits. Returns how
/// many edits succeeded.
#[track_caller]
fn edits_beside_trim(
    edit: impl Fn(&WritableFilesystem, usize) -> Result<(), Error> + Send + 'static,
) -> usize {
    let disks = Disks::new(1, Profile::Single, Profile::Dup);
    let gate = GatedBackend::new(Arc::clone(&disks.0[0]) as Arc<dyn Backend>);
    let device = Device::with_backend(Arc::clone(&gate) as Arc<dyn Backend>, Engine::Inline);
    let filesystem = OpenOptions::new(vec![device]).open().unwrap();
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    // The test device has no chunk in its last 91 MiB.
    gate.close(|request| matches!(request, Request::Discard { length_bytes, .. } if length_bytes > 80 << 20));
    let of = filesystem.clone();
    let trim = WatchedThread::start(move || of.trims().trim(ALL, ByteCount::ZERO).unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    let done = Arc::new(AtomicUsize::new(0));
    let (of, counter) = (filesystem.clone(), Arc::clone(&done));
    let fill = WatchedThread::start(move || {
        while edit(&of, counter.load(Ordering::Relaxed)).is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    })
    .unwrap();
    // The thread that edits also sleeps while other threads work for its commit; in that case its
    // edit ends soon.
    let waits = loop {
        let edits = done.load(Ordering::Relaxed);
        let waits = fill.comes_to_wait();
        std::thread::sleep(Duration::from_millis(20));
        if !waits || edits == done.load(Ordering::Relaxed) {
            break waits;
        }
    };
    gate.open();
    trim.join().unwrap();
    fill.join().unwrap();
    let edits = done.load(Ordering::Relaxed);
    assert!(waits, "{edits} edits, and none waited");
    filesystem.close().unwrap();
    edits
}

#[test]
fn promised_space_remains_while_full_volume_is_trimmed() {
    let disks = Disks::new(1, Profile::Single, Profile::Dup);
    let filesystem = disks.open();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&is_over);
        let trimmer = scope.spawn(|| {
            let mut trimmed = Trimmed::default();
            let mut times = 0_u32;
            while !is_over.load(Ordering::Relaxed) {
                trimmed = filesystem.trims().trim(ALL, ByteCount::ZERO).unwrap();
                times += 1;
            }
            (times, trimmed)
        });
        for round in 0..6 {
            // Write until the volume is full: all accepted content must reach the device.
            let mut written = Vec::new();
            for number in 0.. {
                let name = format!("{round}-{number}");
                match write(&filesystem, &name, STAYS, 2 << 20) {
                    Ok(_) => written.push(name),
                    Err(error) => {
                        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                        break;
                    }
                }
            }
            assert!(written.len() > 8, "{}", written.len());
            filesystem.commit().unwrap();
            for name in &written {
                holds(&filesystem, name, STAYS, 2 << 20);
            }
            for name in written.iter().map(String::as_str) {
                filesystem.unlink(ROOT, name.as_bytes()).unwrap();
            }
            let half_written = format!("{round}-{}", written.len());
            drop(filesystem.unlink(ROOT, half_written.as_bytes()));
            filesystem.commit().unwrap();
        }
        drop(over);
        let (times, trimmed) = trimmer.join().unwrap();
        assert!(
            times > 0 && trimmed.total() > ByteCount::ZERO,
            "{times} {trimmed:?}"
        );
    });
    filesystem.close().unwrap();
}

#[test]
fn commit_with_discard_discards_freed_ranges() {
    let disks = Disks::new(2, Profile::Raid1, Profile::Raid1);
    let filesystem = disks.open();
    for number in 0..20 {
        write(&filesystem, &format!("goes-{number}"), GOES, 64 << 10).unwrap();
        write(&filesystem, &format!("stays-{number}"), STAYS, 64 << 10).unwrap();
    }
    filesystem.close().unwrap();
    let filled = disks.count(GOES);
    assert_eq!(filled, 2 * 20 * 16);
    let remove = |filesystem: &WritableFilesystem, numbers: core::ops::Range<u32>| {
        for number in numbers {
            filesystem
                .unlink(ROOT, format!("goes-{number}").as_bytes())
                .unwrap();
        }
        filesystem.commit().unwrap();
    };
    let filesystem = disks.open();
    remove(&filesystem, 0..10);
    filesystem.close().unwrap();
    assert_eq!(disks.count(GOES), filled, "nobody asked for it");
    // The test opened the volume again, so its free space is not in memory yet.
    let filesystem = disks.open_with(WriteOptions {
        discard: true,
        ..WriteOptions::default()
    });
    remove(&filesystem, 10..15);
    assert_eq!(disks.count(GOES), filled - 2 * 5 * 16);
    write(&filesystem, "later", STAYS, 1 << 20).unwrap();
    remove(&filesystem, 15..20);
    filesystem.close().unwrap();
    let filesystem = disks.open();
    for number in 0..20 {
        holds(&filesystem, &format!("stays-{number}"), STAYS, 64 << 10);
    }
    holds(&filesystem, "later", STAYS, 1 << 20);
    filesystem.close().unwrap();
}
