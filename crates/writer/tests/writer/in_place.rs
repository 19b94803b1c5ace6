//! Tests of overwrites in place with a concurrent snapshot: the snapshot waits for the write, and
//! then keeps its content.
//!
//! The critical moment: a commit in progress delays a snapshot after the snapshot has written dirty
//! data back. Only after the commit does a write find that the file owns its extent alone. The
//! write is in flight to the device when the test makes the snapshot.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Filesystem, Location, OpenOptions};
use buttress_lab::gate::{GatedBackend, Request, WatchedThread};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::operations::NewInode;
use buttress_writer::{AllocateMode, DataOptions, WritableFilesystem, WriteOptions};
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const BYTES: usize = 16 << 10;
const OLD: u8 = b'o';
const NEW: u8 = b'n';

fn device(backend: &Arc<GatedBackend>) -> Device {
    Device::with_backend(Arc::clone(backend) as Arc<dyn Backend>, Engine::Inline)
}

fn new_volume(data: DataOptions) -> (Arc<GatedBackend>, WritableFilesystem) {
    let memory = MemoryBackend::new("memory", vec![0; 256 << 20]);
    let gate = GatedBackend::new(Arc::new(memory));
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device(&gate)], &mkfs::Options::default(), &identity).unwrap();
    let options = WriteOptions {
        data,
        ..WriteOptions::default()
    };
    let filesystem = OpenOptions::new(vec![device(&gate)]).open().unwrap();
    (gate, WritableFilesystem::new(filesystem, options).unwrap())
}

fn content_of(filesystem: &Filesystem, subvolume: SubvolumeId) -> Vec<u8> {
    let found = filesystem
        .lookup(Location::root_of(subvolume), b"file")
        .unwrap()
        .unwrap();
    let file = filesystem.open_file(found.target).unwrap();
    let mut content = vec![0; BYTES];
    assert_eq!(file.read_at(FileOffset::new(0), &mut content).unwrap(), BYTES);
    content
}

/// Takes a snapshot of a file during an overwrite in place; `make` allocates the file's extents.
fn snapshot_comes_between(data: DataOptions, make: impl FnOnce(&WritableFilesystem, Location)) {
    let (gate, filesystem) = new_volume(data);
    let file = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o644))
        .unwrap();
    make(&filesystem, file);
    filesystem.commit().unwrap();

    // A commit blocks at its first flush.
    filesystem
        .create(ROOT, b"other", &NewInode::of_root(0o644))
        .unwrap();
    gate.close(|request| matches!(request, Request::Flush));
    let of = filesystem.clone();
    let commit = WatchedThread::start(move || of.commit().unwrap()).unwrap();
    gate.wait_for_arrivals(1);

    // A snapshot of this file has nothing to write back, and waits for the commit that overwrites
    // in place.
    let of = filesystem.clone();
    let take = move || {
        of.subvolumes()
            .snapshot(SubvolumeId::TOP_LEVEL, ROOT, b"snapshot", true)
            .unwrap()
    };
    let snapshot = WatchedThread::start(take).unwrap();
    assert!(snapshot.comes_to_wait(), "two commits at once");

    // The content of the file is in flight; the gate now passes all other requests.
    let is_content = |bytes: &[u8]| bytes.len() >= 4096 && bytes.iter().all(|byte| *byte == NEW);
    let is_either = move |request: Request<'_>| match request {
        Request::Flush => true,
        Request::Write { bytes, .. } => is_content(bytes),
        Request::Read { .. } | Request::Discard { .. } => false,
    };
    gate.close(is_either);
    let of = filesystem.clone();
    let write = WatchedThread::start(move || {
        of.write_at(file, FileOffset::new(0), &[NEW; BYTES]).unwrap();
        of.writeback().write_file(file).unwrap();
    })
    .unwrap();
    gate.wait_for_arrivals(2);
    gate.close(move |request| matches!(request, Request::Write { bytes, .. } if is_content(bytes)));
    commit.join().unwrap();

    let waits = snapshot.comes_to_wait();
    gate.open();
    write.join().unwrap();
    let id = snapshot.join().unwrap();
    assert!(waits, "the snapshot came between looking and writing in place");
    let before = content_of(&filesystem.view(), id);
    let again = [b'x'; BYTES];
    filesystem.write_at(file, FileOffset::new(0), &again).unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    let found = OpenOptions::new(vec![device(&gate)]).open().unwrap();
    assert!(content_of(&found, id) == before, "the snapshot's content changed");
    assert!(content_of(&found, SubvolumeId::TOP_LEVEL) == again);
}

#[test]
fn a_snapshot_waits_for_content_that_is_overwritten() {
    let data = DataOptions {
        copy_on_write: false,
        ..DataOptions::default()
    };
    snapshot_comes_between(data, |filesystem, file| {
        filesystem
            .write_at(file, FileOffset::new(0), &[OLD; BYTES])
            .unwrap();
    });
}

#[test]
fn a_snapshot_waits_for_content_that_goes_into_preallocated_room() {
    snapshot_comes_between(DataOptions::default(), |filesystem, file| {
        let range = FileOffset::new(0)..FileOffset::new(BYTES as u64);
        filesystem.allocate(file, range, AllocateMode::Allocate).unwrap();
    });
}
