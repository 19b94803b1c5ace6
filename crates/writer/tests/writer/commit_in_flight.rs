//! Tests of calls during a commit's writes: the commit's blocks are not on the devices yet, and the
//! next transaction runs.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Error, Location, OpenOptions, Progress};
use buttress_lab::gate::{GatedBackend, Request, WatchedThread};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::operations::NewInode;
use buttress_writer::{Synced, WritableFilesystem, WriteOptions};
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// The number of subvolumes. It exceeds the number of open trees between transactions, and the
/// number of blocks that one batch seals ahead of its write. The cache therefore has the sealed
/// blocks.
const SUBVOLUMES: usize = 1300;

fn device(backend: &Arc<GatedBackend>) -> Device {
    Device::with_backend(Arc::clone(backend) as Arc<dyn Backend>, Engine::Inline)
}

fn new_volume() -> (Arc<GatedBackend>, WritableFilesystem) {
    let memory = MemoryBackend::new("memory", vec![0xd5; 160 << 20]);
    let gate = GatedBackend::new(Arc::new(memory));
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device(&gate)], &mkfs::Options::default(), &identity).unwrap();
    let filesystem = OpenOptions::new(vec![device(&gate)]).open().unwrap();
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    (gate, filesystem)
}

/// Starts a commit that blocks at its first request of one kind.
fn held_up(
    gate: &GatedBackend,
    filesystem: &WritableFilesystem,
    at: impl Fn(Request<'_>) -> bool + Send + 'static,
) -> WatchedThread<()> {
    gate.close(at);
    let of = filesystem.clone();
    let commit = WatchedThread::start(move || of.commit().map(drop).unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    commit
}

fn is_write(request: Request<'_>) -> bool {
    matches!(request, Request::Write { .. })
}

#[test]
fn a_subvolume_is_dropped_when_its_blocks_are_on_the_device() {
    let (gate, filesystem) = new_volume();
    let name = b"subvolume";
    let id = filesystem.subvolumes().create(ROOT, name).unwrap();
    for number in 0..500 {
        let name = format!("file-{number}");
        let directory = Location::root_of(id);
        filesystem
            .create(directory, name.as_bytes(), &NewInode::of_root(0o600))
            .unwrap();
    }
    filesystem.subvolumes().delete(id).unwrap();
    let commit = held_up(&gate, &filesystem, is_write);

    let of = filesystem.clone();
    let dropped = WatchedThread::start(move || of.subvolumes().drop_deleted(&Progress::new())).unwrap();
    assert!(dropped.comes_to_wait(), "it dropped what was not yet written");
    gate.open();
    commit.join().unwrap();
    dropped.join().unwrap().unwrap();
    assert_eq!(filesystem.subvolumes().deleted().unwrap(), []);
    filesystem.commit().unwrap();
}

fn make_subvolumes(filesystem: &WritableFilesystem) -> Vec<SubvolumeId> {
    (0..SUBVOLUMES)
        .map(|number| {
            let name = format!("subvolume-{number}");
            filesystem.subvolumes().create(ROOT, name.as_bytes()).unwrap()
        })
        .collect()
}

#[test]
fn a_snapshot_is_made_of_what_is_on_its_way_to_the_device() {
    let (gate, filesystem) = new_volume();
    let last = *make_subvolumes(&filesystem).last().unwrap();
    let commit = held_up(&gate, &filesystem, is_write);
    let of = filesystem.clone();
    let made = WatchedThread::start(move || of.subvolumes().snapshot(last, ROOT, b"snapshot", true)).unwrap();
    assert!(made.comes_to_wait(), "it read what was not yet written");
    gate.open();
    commit.join().unwrap();
    let id = made.join().unwrap().unwrap();
    let found = filesystem.live().lookup(ROOT, b"snapshot").unwrap().unwrap();
    assert_eq!(found.target, Location::root_of(id));
    filesystem.commit().unwrap();
}

#[test]
fn a_tree_stays_open_until_its_blocks_are_on_the_device() {
    let (gate, filesystem) = new_volume();
    let made = make_subvolumes(&filesystem);
    let commit = held_up(&gate, &filesystem, is_write);
    for id in &made {
        let found = filesystem.live().lookup(Location::root_of(*id), b"file");
        assert!(matches!(found, Ok(None)), "{id}: {found:?}");
    }
    gate.open();
    commit.join().unwrap();
    filesystem.commit().unwrap();
}

/// A commit that still reads blocks for convergence has not written its superblocks. While a commit
/// still converges, a sync logs against the previous commit.
#[test]
fn a_sync_does_not_wait_for_a_commit_that_settles() {
    let (gate, filesystem) = new_volume();
    // This number of subvolumes gives the extent tree leaves that only a commit reads.
    make_subvolumes(&filesystem);
    let file = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o600))
        .unwrap();
    filesystem.close().unwrap();
    // After the new opening, nothing of the volume is in memory.
    let filesystem = OpenOptions::new(vec![device(&gate)]).open().unwrap();
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    let write = |content: u8| {
        filesystem
            .write_at(file, FileOffset::MIN, &[content; 8192])
            .unwrap()
    };
    // The first sync of this test reads the blocks that later syncs need.
    write(b'a');
    assert_eq!(filesystem.log_tree().fsync(file).unwrap(), Synced::Logged);
    write(b'b');
    let commit = held_up(&gate, &filesystem, |request| {
        matches!(request, Request::Read { .. })
    });
    let of = filesystem.clone();
    let synced = WatchedThread::start(move || of.log_tree().fsync(file)).unwrap();
    assert!(!synced.comes_to_wait(), "it waited for the commit");
    assert_eq!(synced.join().unwrap().unwrap(), Synced::Logged);
    gate.open();
    commit.join().unwrap();
    filesystem.close().unwrap();
    let filesystem = OpenOptions::new(vec![device(&gate)]).open().unwrap();
    let mut content = [0; 8192];
    let read = filesystem
        .open_file(file)
        .unwrap()
        .read_at(FileOffset::MIN, &mut content);
    assert_eq!(read.unwrap(), 8192);
    assert_eq!(content, [b'b'; 8192]);
}

/// A view taken during a commit contains the extents that the next transaction allocated.
#[test]
fn a_view_keeps_what_came_while_a_commit_was_under_way() {
    const BYTES: usize = 16 << 20;
    let (gate, filesystem) = new_volume();
    let file = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o600))
        .unwrap();
    let commit = held_up(&gate, &filesystem, |request| matches!(request, Request::Flush));
    filesystem
        .write_at(file, FileOffset::MIN, &vec![b'o'; BYTES])
        .unwrap();
    filesystem.writeback().write_file(file).unwrap();
    let view = filesystem.view();
    gate.open();
    commit.join().unwrap();
    filesystem.unlink(ROOT, b"file").unwrap();
    filesystem.commit().unwrap();
    filesystem.commit().unwrap();

    // This test file takes all remaining space.
    let other = filesystem
        .create(ROOT, b"other", &NewInode::of_root(0o600))
        .unwrap();
    let piece = vec![b'n'; 1 << 20];
    let mut written = 0_u64;
    loop {
        let added = filesystem
            .write_at(other, FileOffset::new(written), &piece)
            .and_then(|()| filesystem.writeback().write_file(other));
        match added {
            Ok(()) => written += 1 << 20,
            Err(Error::NoSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(written > 32 << 20, "{written}");
    let mut content = vec![0; BYTES];
    let read = view
        .open_file(file)
        .unwrap()
        .read_at(FileOffset::MIN, &mut content)
        .unwrap();
    assert_eq!(read, BYTES);
    assert!(
        content.iter().all(|byte| *byte == b'o'),
        "what the view shows was overwritten"
    );
    let _ = filesystem.abandon();
}
