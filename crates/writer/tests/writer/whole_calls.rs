//! Tests of calls that readers see completely or not at all, and of failed calls. Gates in the
//! device pause each call at its critical moment.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, ErrorKind, FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Location, OpenOptions};
use buttress_lab::gate::{GatedBackend, Request, WatchedThread};
use buttress_lab::{Fault, FaultyBackend};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::operations::{NewInode, ReceivedUuid, SetXattr};
use buttress_writer::{AllocateMode, WritableFilesystem, WriteOptions};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

fn new_volume() -> (Arc<GatedBackend>, WritableFilesystem) {
    let gate = GatedBackend::new(Arc::new(new_memory()));
    let filesystem = new_volume_on(&gate);
    (gate, filesystem)
}

fn new_memory() -> MemoryBackend {
    MemoryBackend::new("memory", vec![0; 256 << 20])
}

fn new_volume_on(gate: &Arc<GatedBackend>) -> WritableFilesystem {
    let device = || Device::with_backend(Arc::clone(gate) as Arc<dyn Backend>, Engine::Inline);
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device()], &mkfs::Options::default(), &identity).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).open().unwrap();
    WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap()
}

fn create(filesystem: &WritableFilesystem, directory: Location, name: &[u8], content: &[u8]) -> Location {
    let file = filesystem
        .create(directory, name, &NewInode::of_root(0o644))
        .unwrap();
    filesystem.write_at(file, FileOffset::MIN, content).unwrap();
    file
}

fn content_of(filesystem: &WritableFilesystem, file: Location) -> Vec<u8> {
    let mut content = vec![0xEE; 1 << 20];
    let read = filesystem
        .live()
        .read_at(file, FileOffset::MIN, &mut content)
        .unwrap();
    content.truncate(read);
    content
}

/// Zeroing a range and changing the size are two steps, with a write-back between them.
#[test]
fn a_range_of_zeros_past_the_end_is_seen_whole() {
    let (gate, filesystem) = new_volume();
    let file = create(&filesystem, ROOT, b"file", &vec![b'o'; 20_000]);
    filesystem.commit().unwrap();
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let zero = WatchedThread::start(move || {
        let range = FileOffset::new(10_000)..FileOffset::new(30_000);
        of.allocate(file, range, AllocateMode::ZeroRange).unwrap();
    })
    .unwrap();
    gate.wait_for_arrivals(1);
    let of = filesystem.clone();
    let read = WatchedThread::start(move || content_of(&of, file)).unwrap();
    let _ = read.comes_to_wait();
    gate.open();
    let seen = read.join().unwrap();
    zero.join().unwrap();
    let before = vec![b'o'; 20_000];
    let after = [&[b'o'; 10_000][..], &vec![0; 20_000]].concat();
    assert!(seen == before || seen == after, "{} bytes, half done", seen.len());
    assert!(content_of(&filesystem, file) == after);
    filesystem.close().unwrap();
}

/// A hole with bounds inside sectors takes several steps: whole sectors are removed, then zeros are
/// written at the ends.
#[test]
fn a_hole_is_in_a_snapshot_as_a_whole_or_not_at_all() {
    let (gate, filesystem) = new_volume();
    let source = filesystem.subvolumes().create(ROOT, b"source").unwrap();
    let file = create(
        &filesystem,
        Location::root_of(source),
        b"file",
        &vec![b'o'; 20_000],
    );
    filesystem.commit().unwrap();
    filesystem
        .create(ROOT, b"other", &NewInode::of_root(0o644))
        .unwrap();

    // A commit is writing its tree blocks. The snapshot, which has no dirty data to write back,
    // waits for the commit.
    let is_tree_block = |bytes: &[u8]| bytes.len() >= 16_384;
    let is_of_hole = |bytes: &[u8]| bytes.len() == 4096 && bytes.last() == Some(&b'o');
    gate.close(move |request| {
        matches!(request, Request::Write { bytes, .. } if is_tree_block(bytes) || is_of_hole(bytes))
    });
    let of = filesystem.clone();
    let commit = WatchedThread::start(move || of.commit().map(drop)).unwrap();
    gate.wait_for_arrivals(1);
    let of = filesystem.clone();
    let snapshot =
        WatchedThread::start(move || of.subvolumes().snapshot(source, ROOT, b"snapshot", true)).unwrap();
    let _ = snapshot.comes_to_wait();
    let of = filesystem.clone();
    let punch = WatchedThread::start(move || {
        let range = FileOffset::MIN..FileOffset::new(9029);
        of.allocate(file, range, AllocateMode::PunchHole)
    })
    .unwrap();
    let _ = punch.comes_to_wait();
    gate.close(move |request| matches!(request, Request::Write { bytes, .. } if is_of_hole(bytes)));
    commit.join().unwrap().unwrap();
    let id = snapshot.join().unwrap().unwrap();
    gate.open();
    punch.join().unwrap().unwrap();

    let seen = content_of(&filesystem, Location::new(id, file.inode));
    let before = vec![b'o'; 20_000];
    let after = [&[0; 9029][..], &[b'o'; 20_000 - 9029]].concat();
    assert!(seen == before || seen == after, "the snapshot has half a hole");
    assert!(content_of(&filesystem, file) == after);
    filesystem.close().unwrap();
}

/// If the source of a clone is removed during its write-back, the target keeps its content,
/// including dirty data.
fn clone_without_source(in_subvolume: bool) {
    let (gate, filesystem) = new_volume();
    let target = create(&filesystem, ROOT, b"target", &vec![b'o'; 40_960]);
    let id = filesystem.subvolumes().create(ROOT, b"subvolume").unwrap();
    filesystem.commit().unwrap();
    let source_directory = if in_subvolume { Location::root_of(id) } else { ROOT };
    let source = create(&filesystem, source_directory, b"source", &vec![b's'; 40_960]);
    filesystem
        .write_at(target, FileOffset::new(4096), &[b'n'; 8192])
        .unwrap();
    let expected = content_of(&filesystem, target);
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let clone = WatchedThread::start(move || {
        let range = FileOffset::MIN..FileOffset::new(40_960);
        of.clone_range(source, range, target, FileOffset::MIN)
    })
    .unwrap();
    gate.wait_for_arrivals(1);
    let of = filesystem.clone();
    // The call removes the name at once; then the removal of the inode waits for the file lock.
    let remove = WatchedThread::start(move || match in_subvolume {
        true => of.subvolumes().delete(id),
        false => of.unlink(ROOT, b"source"),
    })
    .unwrap();
    let _ = remove.comes_to_wait();
    gate.open();
    remove.join().unwrap().unwrap();
    let error = clone.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Caller);
    assert!(content_of(&filesystem, target) == expected);
    filesystem.writeback().write_all().unwrap();
    assert!(
        content_of(&filesystem, target) == expected,
        "after the write-back"
    );
    filesystem.close().unwrap();
}

/// During a truncation, readers see the new size before the content after it is removed. If the
/// file is removed between the two steps, the call returns no error.
#[test]
fn a_file_that_goes_while_it_is_cut_was_cut_before() {
    let (gate, filesystem) = new_volume();
    let file = create(&filesystem, ROOT, b"file", &vec![b'o'; 40_960]);
    filesystem.commit().unwrap();
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let cut = WatchedThread::start(move || of.truncate(file, ByteCount::new(10_000))).unwrap();
    gate.wait_for_arrivals(1);
    assert_eq!(content_of(&filesystem, file).len(), 10_000);
    let of = filesystem.clone();
    let remove = WatchedThread::start(move || of.unlink(ROOT, b"file")).unwrap();
    let _ = remove.comes_to_wait();
    gate.open();
    remove.join().unwrap().unwrap();
    cut.join().unwrap().unwrap();
    let error = filesystem.live().metadata(file).unwrap_err();
    assert_eq!(error.errno(), 2, "{error}");
    filesystem.close().unwrap();
}

/// A copy without sharing runs in visible pieces. If the file is removed after one of the pieces,
/// the copy is short, without an error.
#[test]
fn removal_during_copy_makes_short_copy() {
    const PIECE: usize = 1 << 20;
    let (gate, filesystem) = new_volume();
    let source = create(&filesystem, ROOT, b"source", &vec![b's'; 2 * PIECE]);
    let target = create(&filesystem, ROOT, b"target", b"o");
    filesystem.commit().unwrap();
    let (come, comes) = mpsc::channel();
    let pieces = Mutex::new(BTreeSet::new());
    // The second piece of the source has been read when this request arrives.
    gate.close(move |request| {
        let Request::Read {
            offset_bytes,
            length_bytes,
        } = request
        else {
            return false;
        };
        let mut pieces = pieces.lock().unwrap();
        let is_piece = ByteCount::new(length_bytes) == ByteCount::of(PIECE);
        let is_second = is_piece && pieces.insert(offset_bytes) && pieces.len() == 2;
        if is_second {
            come.send(()).unwrap();
        }
        is_second || (is_piece && pieces.len() == 2 && pieces.last() == Some(&offset_bytes))
    });
    let of = filesystem.clone();
    let copy = WatchedThread::start(move || {
        let range = FileOffset::MIN..FileOffset::new(2 << 20);
        of.copy_range(source, range, target, FileOffset::new(1))
    })
    .unwrap();
    comes.recv().unwrap();
    let of = filesystem.clone();
    let remove = WatchedThread::start(move || of.unlink(ROOT, b"target")).unwrap();
    let _ = remove.comes_to_wait();
    gate.open();
    remove.join().unwrap().unwrap();
    assert_eq!(copy.join().unwrap().unwrap(), ByteCount::of(PIECE));
    filesystem.close().unwrap();
}

#[test]
fn a_clone_that_finds_no_source_leaves_the_target_as_it_was() {
    clone_without_source(false);
}

#[test]
fn a_clone_out_of_a_deleted_subvolume_leaves_the_target_as_it_was() {
    clone_without_source(true);
}

/// A deleted subvolume's tree exists until it is dropped.
#[test]
fn what_lies_in_a_deleted_subvolume_is_found_by_no_read() {
    let (_, filesystem) = new_volume();
    let new = NewInode::of_root(0o755);
    for looks_before in [true, false] {
        let id = filesystem.subvolumes().create(ROOT, b"subvolume").unwrap();
        let root = Location::root_of(id);
        let directory = filesystem.make_directory(root, b"directory", &new).unwrap();
        let file = create(&filesystem, directory, b"file", &[1; 9000]);
        filesystem
            .set_xattr(file, b"user.x", b"1", SetXattr::Create)
            .unwrap();
        let link = filesystem.make_symlink(root, b"link", &new, b"to").unwrap();
        filesystem.commit().unwrap();
        let mut content = [0; 10];
        if looks_before {
            filesystem
                .live()
                .read_at(file, FileOffset::MIN, &mut content)
                .unwrap();
            filesystem.live().list(directory, 0, 9).unwrap();
        }
        filesystem.subvolumes().delete(id).unwrap();
        // A refused call must not load the inode for other calls either.
        filesystem
            .create(directory, b"other", &NewInode::of_root(0o600))
            .unwrap_err();
        let errors = [
            filesystem.live().lookup(directory, b"file").unwrap_err(),
            filesystem.live().list(directory, 0, 9).unwrap_err(),
            filesystem.live().list(root, 0, 9).unwrap_err(),
            filesystem.live().metadata(root).unwrap_err(),
            filesystem.live().metadata(directory).unwrap_err(),
            filesystem.live().metadata(file).unwrap_err(),
            filesystem
                .live()
                .read_at(file, FileOffset::MIN, &mut content)
                .unwrap_err(),
            filesystem.live().read_link(link).unwrap_err(),
            filesystem.live().xattrs(file).unwrap_err(),
            filesystem.live().xattr(file, b"user.x").unwrap_err(),
            filesystem.open_inode(file).map(drop).unwrap_err(),
        ];
        for (number, error) in errors.iter().enumerate() {
            assert_eq!(
                (error.kind(), error.errno()),
                (ErrorKind::Caller, 2),
                "{number}: {error}"
            );
        }
    }
    filesystem.close().unwrap();
}

/// Makes a file whose content of `bytes` bytes is in flight, blocked at a gate.
fn in_flight(bytes: usize) -> (Arc<GatedBackend>, WritableFilesystem, Location, WatchedThread<()>) {
    let (gate, filesystem) = new_volume();
    let file = create(&filesystem, ROOT, b"file", &vec![b'o'; bytes]);
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let write_back = WatchedThread::start(move || of.writeback().write_file(file).unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    (gate, filesystem, file, write_back)
}

/// A write of whole sectors, or after the end, waits for no device while the file is written back.
#[test]
fn write_does_not_wait_for_write_back_of_its_file() {
    let (gate, filesystem, file, write_back) = in_flight(60_000);
    let of = filesystem.clone();
    let write = WatchedThread::start(move || {
        of.write_at(file, FileOffset::new(8192), &[b'n'; 4096]).unwrap();
        of.write_at(file, FileOffset::new(65_536), &[b'e'; 100]).unwrap();
        of.append(file, b"end").unwrap();
        (content_of(&of, file), of.live().metadata(file).unwrap().size)
    })
    .unwrap();
    let waits = write.comes_to_wait();
    gate.open();
    let (seen, size) = write.join().unwrap();
    assert!(!waits, "a write waited for the write-back of its file");
    write_back.join().unwrap();
    let mut expected = vec![b'o'; 60_000];
    expected[8192..12_288].fill(b'n');
    expected.resize(65_536, 0);
    expected.extend([b'e'; 100]);
    expected.extend(b"end");
    assert!(seen == expected && size == ByteCount::of(expected.len()));
    assert!(content_of(&filesystem, file) == expected, "after the write-back");
    filesystem.commit().unwrap();
    assert!(content_of(&filesystem, file) == expected, "after the commit");
    let view = filesystem.view();
    let mut stored = vec![0; expected.len() + 1];
    let read = view
        .open_file(file)
        .unwrap()
        .read_at(FileOffset::MIN, &mut stored)
        .unwrap();
    assert!(stored[..read] == expected[..], "what extents have");
    filesystem.close().unwrap();
}

/// If a write covers a part of a sector in flight, the rest of the sector comes from the data in
/// flight, not from old extents.
#[test]
fn a_write_of_part_of_a_sector_has_the_rest_of_what_is_in_flight() {
    for offset in [100, 59_990] {
        let (gate, filesystem, file, write_back) = in_flight(60_000);
        let of = filesystem.clone();
        let write = WatchedThread::start(move || {
            of.write_at(file, FileOffset::new(offset), &[b'n'; 50]).unwrap();
        })
        .unwrap();
        let _ = write.comes_to_wait();
        gate.open();
        write.join().unwrap();
        write_back.join().unwrap();
        let mut expected = vec![b'o'; 60_000];
        let at = usize::try_from(offset).unwrap();
        expected.resize(expected.len().max(at + 50), 0);
        expected[at..at + 50].fill(b'n');
        assert!(content_of(&filesystem, file) == expected, "at {offset}");
        filesystem.commit().unwrap();
        assert!(
            content_of(&filesystem, file) == expected,
            "at {offset}, committed"
        );
        filesystem.close().unwrap();
    }
}

/// Content that was written during a failed write-back is newer than the content that becomes dirty
/// again.
#[test]
fn write_during_failed_write_back_stays_newest() {
    let faults = FaultyBackend::new(Arc::new(new_memory()), 1);
    let gate = GatedBackend::new(Arc::clone(&faults) as Arc<dyn Backend>);
    let filesystem = new_volume_on(&gate);
    let file = create(&filesystem, ROOT, b"file", &vec![b'o'; 60_000]);
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let write_back = WatchedThread::start(move || of.writeback().write_file(file)).unwrap();
    gate.wait_for_arrivals(1);
    faults.inject(Fault::FailWrites(0..256 << 20));
    filesystem
        .write_at(file, FileOffset::new(4096), &[b'n'; 4096])
        .unwrap();
    gate.open();
    assert!(write_back.join().unwrap().is_err());
    let mut expected = vec![b'o'; 60_000];
    expected[4096..8192].fill(b'n');
    assert!(content_of(&filesystem, file) == expected);
}

/// Making a subvolume read-only waits for a hole punch in progress: content seen afterwards no
/// longer changes.
#[test]
fn read_only_subvolume_no_longer_changes() {
    let (gate, filesystem) = new_volume();
    let id = filesystem.subvolumes().create(ROOT, b"subvolume").unwrap();
    let file = create(&filesystem, Location::root_of(id), b"file", &vec![b'o'; 20_000]);
    filesystem.commit().unwrap();
    let is_of_hole = |bytes: &[u8]| bytes.len() == 4096 && bytes.last() == Some(&b'o');
    gate.close(move |request| matches!(request, Request::Write { bytes, .. } if is_of_hole(bytes)));
    let of = filesystem.clone();
    let punch = WatchedThread::start(move || {
        let range = FileOffset::MIN..FileOffset::new(9029);
        of.allocate(file, range, AllocateMode::PunchHole)
    })
    .unwrap();
    gate.wait_for_arrivals(1);
    let of = filesystem.clone();
    let set = WatchedThread::start(move || {
        of.subvolumes()
            .set_read_only(id, true, ReceivedUuid::Refuse)
            .unwrap();
        content_of(&of, file)
    })
    .unwrap();
    let _ = set.comes_to_wait();
    gate.open();
    let seen = set.join().unwrap();
    punch.join().unwrap().unwrap();
    assert!(content_of(&filesystem, file) == seen, "it changed afterwards");
    filesystem.close().unwrap();
}
