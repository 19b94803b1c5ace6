//! Tests of live reads while another thread holds the edit lock, and beside threads that change
//! files.

use crate::data::AllocateMode;
use crate::operations::{NewInode, Operation, RenameMode, SetXattr};
use crate::{WritableFilesystem, WriteOptions};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_engine::reservation::Need;
use buttress_format::{ByteCount, FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::location::Location;
use buttress_fs::lookup::Follow;
use buttress_fs::open::OpenOptions;
use buttress_lab::gate::{SetOnDrop, WatchedThread};
use buttress_mkfs::{self as mkfs, Identity};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

pub(crate) fn new_volume() -> WritableFilesystem {
    let memory: Arc<dyn Backend> = Arc::new(MemoryBackend::new("memory", vec![0; 160 << 20]));
    let device = || Device::with_backend(Arc::clone(&memory), Engine::Inline);
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

/// Reads everything about a directory. Equal results of the reads give equal texts.
fn all_reads(filesystem: &WritableFilesystem, directory: Location) -> String {
    let mut told = String::new();
    for entry in filesystem.live().list(directory, 0, 100).unwrap() {
        let found = filesystem.live().lookup(directory, &entry.name).unwrap().unwrap();
        assert_eq!(found.target, entry.target);
        let way = [b"nested/../", entry.name.as_slice()].concat();
        let resolved = filesystem
            .live()
            .resolve(directory, &way, Follow::NotLast)
            .unwrap();
        assert_eq!(resolved, entry.target);
        let metadata = filesystem.live().metadata(entry.target).unwrap();
        let xattrs = filesystem.live().xattrs(entry.target).unwrap();
        let named = filesystem.live().xattr(entry.target, b"user.name").unwrap();
        let link = filesystem.live().read_link(entry.target).ok();
        let mut content = vec![1; 20_000];
        let read = filesystem
            .live()
            .read_at(entry.target, FileOffset::new(10), &mut content)
            .ok();
        content.truncate(read.unwrap_or(0));
        told += &format!("{entry:?} {metadata:?} {xattrs:?} {named:?} {link:?} {content:?}\n");
    }
    assert!(filesystem.live().lookup(directory, b"nothing").unwrap().is_none());
    told
}

fn fill(filesystem: &WritableFilesystem) -> Location {
    let new = NewInode::of_root(0o644);
    let directory = filesystem.make_directory(ROOT, b"directory", &new).unwrap();
    for (name, bytes) in [(&b"inline"[..], 300), (b"extent", 9000), (b"large", 100_000)] {
        let file = filesystem.create(directory, name, &new).unwrap();
        filesystem
            .write_at(file, FileOffset::MIN, &vec![name[0]; bytes])
            .unwrap();
        filesystem
            .set_xattr(file, b"user.name", name, SetXattr::CreateOrReplace)
            .unwrap();
    }
    filesystem
        .make_symlink(directory, b"link", &new, b"to/somewhere")
        .unwrap();
    filesystem.make_directory(directory, b"nested", &new).unwrap();
    filesystem.commit().unwrap();
    // From here on, dirty data covers extents, and a part of the test file is a hole.
    let large = filesystem
        .live()
        .lookup(directory, b"large")
        .unwrap()
        .unwrap()
        .target;
    let hole = FileOffset::new(4096)..FileOffset::new(12_288);
    filesystem.allocate(large, hole, AllocateMode::PunchHole).unwrap();
    filesystem
        .write_at(large, FileOffset::new(9000), &[b'w'; 500])
        .unwrap();
    directory
}

#[test]
fn reads_do_not_wait_for_edit_lock() {
    let filesystem = new_volume();
    let directory = fill(&filesystem);
    let expected = all_reads(&filesystem, directory);
    let reader = filesystem.clone();
    let held = filesystem.start_unchecked();
    let read = WatchedThread::start(move || all_reads(&reader, directory)).unwrap();
    let waits = read.comes_to_wait();
    drop(held);
    assert_eq!(read.join().unwrap(), expected);
    assert!(!waits, "a read waited for the edit lock");
    filesystem.close().unwrap();
}

/// The operation changes a directory's size twice, and the reader begins between the two changes.
#[test]
fn reader_waits_for_an_operation_in_progress() {
    let filesystem = new_volume();
    let before = filesystem.live().metadata(ROOT).unwrap().size;
    let resize = |operation: &mut Operation<'_>, size: ByteCount| {
        operation.change_inode(ROOT, |item| item.size = size)
    };
    let half_done = ByteCount::new(before.get() + 8);
    let mut reader = None;
    filesystem
        .operate(Need::places(4), |operation| {
            resize(operation, half_done)?;
            let of = filesystem.clone();
            let read = WatchedThread::start(move || of.live().metadata(ROOT).unwrap().size).unwrap();
            let waits = read.comes_to_wait();
            reader = Some((read, waits));
            resize(operation, before)
        })
        .unwrap();
    let (read, waits) = reader.unwrap();
    assert_eq!(read.join().unwrap(), before);
    assert!(waits, "a read did not wait for an operation");
    filesystem.close().unwrap();
}

/// The inode item changes, and then the content, while the reader has the old item and waits for the
/// content.
#[test]
fn stat_begins_again_if_item_and_content_changed() {
    let filesystem = new_volume();
    let file = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o644))
        .unwrap();
    filesystem.write_at(file, FileOffset::MIN, &[b'a'; 4096]).unwrap();
    let content = filesystem.live().inode(file).unwrap().1.unwrap();
    let mut waiting = content.waiting.write();
    let of = filesystem.clone();
    let read = WatchedThread::start(move || of.live().metadata(file).unwrap()).unwrap();
    let waits = read.comes_to_wait();
    let of = filesystem.clone();
    let change = std::thread::spawn(move || {
        of.operate(Need::places(4), |operation| {
            operation.change_inode(file, |item| item.mode ^= 0o777)
        })
    });
    change.join().unwrap().unwrap();
    let written = waiting.size.replace(8192);
    drop(waiting);
    let found = read.join().unwrap();
    // The content has its size back for the write-back.
    content.waiting.write().size = written;
    assert!(waits, "the reader did not wait for the content");
    assert_eq!((found.mode & 0o777, found.size.get()), (0o133, 8192));
    filesystem.close().unwrap();
}

/// Live size and content equal those of a view after the content was written back.
#[test]
fn live_reads_equal_reads_of_view() {
    let filesystem = new_volume();
    let directory = fill(&filesystem);
    filesystem.writeback().write_all().unwrap();
    let view = filesystem.view();
    for entry in filesystem.live().list(directory, 0, 100).unwrap() {
        let of_view = view.lookup(directory, &entry.name).unwrap().unwrap();
        assert_eq!((of_view.target, of_view.kind), (entry.target, entry.kind));
        let (live, shown) = (
            filesystem.live().metadata(entry.target),
            view.metadata(entry.target),
        );
        assert_eq!(format!("{live:?}"), format!("{shown:?}"));
        assert_eq!(
            filesystem.live().xattrs(entry.target).unwrap(),
            view.xattrs(entry.target).unwrap()
        );
        if let Ok(file) = view.open_file(entry.target) {
            for (offset, length) in [(0, 1 << 20), (299, 2), (4000, 10_000), (99_999, 5), (100_000, 5)] {
                let (mut one, mut other) = (vec![7; length], vec![8; length]);
                let offset = FileOffset::new(offset);
                let read = filesystem.live().read_at(entry.target, offset, &mut one).unwrap();
                assert_eq!(read, file.read_at(offset, &mut other).unwrap());
                assert_eq!(one[..read], other[..read]);
            }
        }
    }
    filesystem.close().unwrap();
}

#[test]
fn removed_inode_is_found_by_no_read() {
    let filesystem = new_volume();
    let directory = fill(&filesystem);
    let file = filesystem
        .live()
        .lookup(directory, b"extent")
        .unwrap()
        .unwrap()
        .target;
    let open = filesystem.open_inode(file).unwrap();
    filesystem.unlink(directory, b"extent").unwrap();
    let mut content = [0; 9000];
    assert_eq!(
        filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut content)
            .unwrap(),
        9000
    );
    assert_eq!(content, [b'e'; 9000]);
    assert_eq!(filesystem.live().metadata(file).unwrap().nlink, 0);
    drop(open);
    assert!(
        filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut content)
            .is_err()
    );
    assert!(filesystem.live().metadata(file).is_err());
    filesystem.close().unwrap();
}

/// After `unlink`, a name that threads look up continuously never leads to its earlier file.
#[test]
fn a_name_that_was_looked_up_leads_to_no_file_of_before() {
    let filesystem = new_volume();
    let is_done = AtomicBool::new(false);
    let target = || Some(filesystem.live().lookup(ROOT, b"name").unwrap()?.target);
    let rename = |from: &[u8], to: &[u8]| {
        filesystem
            .rename(ROOT, from, ROOT, to, RenameMode::Replace)
            .unwrap();
    };
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&is_done);
        let reader = scope.spawn(|| {
            let mut newest = None;
            while !is_done.load(Ordering::SeqCst) {
                if let Some(found) = target() {
                    assert!(Some(found.inode) >= newest, "{found} after {newest:?}");
                    newest = Some(found.inode);
                }
            }
        });
        for round in 0..5000 {
            let new = if round % 2 == 0 {
                b"name".as_slice()
            } else {
                b"other"
            };
            let made = filesystem.create(ROOT, new, &NewInode::of_root(0o644)).unwrap();
            if round % 2 == 1 {
                rename(new, b"name");
            }
            assert_eq!(target(), Some(made));
            match round % 3 {
                0 => filesystem.unlink(ROOT, b"name").unwrap(),
                1 => rename(b"name", b"elsewhere"),
                // The next round of the test renames or unlinks this file.
                _ if round % 2 == 0 => continue,
                _ => filesystem.unlink(ROOT, b"name").unwrap(),
            }
            assert_eq!(target(), None);
            if reader.is_finished() {
                break;
            }
        }
        drop(over);
    });
    filesystem.close().unwrap();
}
