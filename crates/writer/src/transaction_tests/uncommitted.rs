//! Tests of closing a volume: which changes are committed, which are lost, and that each loss is
//! reported.

use super::super::{Environment, Uncommitted, WritableFilesystem, WriteOptions};
use crate::operations::{AttributeChanges, NewInode};
use buttress_device::{Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_mkfs::{self as mkfs, Identity};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// The latest time that the volume may record.
const LATEST: Timestamp = Timestamp {
    seconds: 1_000,
    nanoseconds: 5,
};

/// Records reported losses.
#[derive(Debug, Default)]
struct Notes {
    lost: Mutex<Vec<Uncommitted>>,
    uuids: AtomicU64,
}

impl Environment for Notes {
    fn now(&self) -> Timestamp {
        LATEST
    }

    fn new_uuid(&self) -> Uuid {
        Uuid::from_u128(u128::from(self.uuids.fetch_add(1, Ordering::Relaxed)) | 7 << 64)
    }

    fn latest(&self) -> Option<Timestamp> {
        Some(LATEST)
    }

    fn lost(&self, lost: &Uncommitted) {
        self.lost.lock().push(*lost);
    }
}

/// A volume in memory, and the losses that were reported.
struct Volume {
    backend: Arc<MemoryBackend>,
    notes: Arc<Notes>,
}

impl Volume {
    fn new() -> Self {
        let volume = Self {
            backend: Arc::new(MemoryBackend::new("memory", vec![0; 256 << 20])),
            notes: Arc::default(),
        };
        let identity = Identity {
            fsid: Uuid::from_u128(1),
            chunk_tree: Uuid::from_u128(2),
            top_level: Uuid::from_u128(3),
            devices: vec![Uuid::from_u128(4)],
            time: Timestamp::default(),
        };
        mkfs::make(&[volume.device()], &mkfs::Options::default(), &identity).unwrap();
        volume
    }

    fn device(&self) -> Device {
        Device::with_backend(self.backend.clone(), Engine::Inline)
    }

    fn open(&self) -> WritableFilesystem {
        let options = WriteOptions {
            environment: self.notes.clone(),
            ..WriteOptions::default()
        };
        let opened = OpenOptions::new(vec![self.device()]).open().unwrap();
        WritableFilesystem::new(opened, options).unwrap()
    }

    fn names(&self) -> usize {
        let opened = OpenOptions::new(vec![self.device()]).open().unwrap();
        opened.read_dir(ROOT).unwrap().count()
    }

    fn lost(&self) -> Vec<(u64, u64)> {
        let lost = self.notes.lost.lock();
        lost.iter()
            .map(|lost| (lost.changes, lost.content.get()))
            .collect()
    }
}

fn make(filesystem: &WritableFilesystem, name: &[u8], content: &[u8]) {
    let made = filesystem.create(ROOT, name, &NewInode::of_root(0o644)).unwrap();
    filesystem.write_at(made, FileOffset::new(0), content).unwrap();
}

fn counts(filesystem: &WritableFilesystem) -> (u64, u64) {
    let waiting = filesystem.uncommitted();
    (waiting.changes, waiting.content.get())
}

#[test]
fn dropping_last_handle_reports_lost_changes() {
    let volume = Volume::new();
    let filesystem = volume.open();
    assert!(filesystem.uncommitted().is_empty());
    make(&filesystem, b"kept", b"12345");
    filesystem.commit().unwrap();
    assert_eq!(counts(&filesystem), (0, 0));
    make(&filesystem, b"lost", b"1234567");
    filesystem
        .truncate(
            filesystem.live().lookup(ROOT, b"kept").unwrap().unwrap().target,
            ByteCount::new(2),
        )
        .unwrap();
    assert_eq!(counts(&filesystem), (2, 7));
    // A failed call is no change.
    assert!(
        filesystem
            .create(ROOT, b"lost", &NewInode::of_root(0o644))
            .is_err()
    );
    // The test writes the content back, but does not commit it.
    filesystem.writeback().write_all().unwrap();
    assert_eq!(counts(&filesystem), (2, 7));
    let committed = filesystem.committed_generation();
    let other = filesystem.clone();
    drop(filesystem);
    assert!(volume.lost().is_empty(), "another handle is there");
    drop(other);
    assert_eq!(volume.lost(), [(2, 7)]);
    assert_eq!(volume.notes.lost.lock().first().unwrap().committed, committed);
    assert_eq!(volume.names(), 1);
}

#[test]
fn closing_commits_and_abandoning_is_silent() {
    let volume = Volume::new();
    let filesystem = volume.open();
    make(&filesystem, b"a", b"x");
    filesystem.close().unwrap();
    assert_eq!(volume.names(), 1);
    let filesystem = volume.open();
    make(&filesystem, b"b", b"xy");
    let forgotten = filesystem.abandon();
    assert_eq!((forgotten.changes, forgotten.content.get()), (1, 2));
    assert_eq!(volume.names(), 1);
    assert!(volume.lost().is_empty());
    // A view does not keep the volume open for writing, and reports no loss.
    let view = volume.open().view();
    drop(view);
    assert!(volume.lost().is_empty());
}

#[test]
fn commits_that_other_calls_make_count() {
    let volume = Volume::new();
    let filesystem = volume.open();
    make(&filesystem, b"a", b"x");
    // A snapshot commits all earlier changes, and itself.
    filesystem
        .subvolumes()
        .snapshot(SubvolumeId::TOP_LEVEL, ROOT, b"snapshot", true)
        .unwrap();
    assert_eq!(counts(&filesystem), (0, 0));
    make(&filesystem, b"b", b"xyz");
    // A metadata-only commit for lack of space leaves content dirty.
    filesystem.commit_metadata().unwrap();
    assert_eq!(counts(&filesystem), (0, 3));
    drop(filesystem);
    assert_eq!(volume.lost(), [(0, 3)]);
}

#[test]
fn no_later_time_reaches_the_volume() {
    let volume = Volume::new();
    let filesystem = volume.open();
    let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    let made = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o644))
        .unwrap();
    let changes = AttributeChanges {
        accessed: Some(at(2_000, 0)),
        modified: Some(at(1_000, 6)),
        changed: Some(at(999, 999)),
        created: Some(at(i64::MAX, 0)),
        ..AttributeChanges::default()
    };
    filesystem.set_attributes(made, &changes).unwrap();
    let set = filesystem.view().metadata(made).unwrap();
    assert_eq!((set.accessed, set.modified), (LATEST, LATEST));
    assert_eq!((set.changed, set.created), (at(999, 999), Some(LATEST)));
    filesystem.abandon();
}
