//! A volume with one damaged subvolume can be written: the others are cleaned up, and reads of the
//! damaged one return an error.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a panic is how a test fails")]

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, ErrorKind, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Error, Filesystem, Location, OpenOptions, Progress};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::sync::Arc;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

fn open(memory: &Arc<MemoryBackend>) -> Filesystem {
    let device = Device::with_backend(Arc::clone(memory) as Arc<dyn Backend>, Engine::Inline);
    OpenOptions::new(vec![device]).open().unwrap()
}

/// Makes a volume with two subvolumes, each with an unnamed file.
fn volume() -> (Arc<MemoryBackend>, [SubvolumeId; 2]) {
    let memory = Arc::new(MemoryBackend::new("memory", vec![0; 128 << 20]));
    let device = Device::with_backend(Arc::clone(&memory) as Arc<dyn Backend>, Engine::Inline);
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device], &mkfs::Options::default(), &identity).unwrap();
    let filesystem = WritableFilesystem::new(open(&memory), WriteOptions::default()).unwrap();
    let mut held = Vec::new();
    let subvolumes = ["damaged", "sound"].map(|name| {
        let subvolume = filesystem.subvolumes().create(TOP, name.as_bytes()).unwrap();
        let root = Location::root_of(subvolume);
        let new = NewInode::of_root(0o644);
        let file = filesystem.create(root, b"file", &new).unwrap();
        held.push(filesystem.open_inode(file).unwrap());
        filesystem.unlink(root, b"file").unwrap();
        subvolume
    });
    filesystem.commit().unwrap();
    // The test never releases the holds on the files.
    held.into_iter().for_each(std::mem::forget);
    let _abandoned = filesystem.abandon();
    (memory, subvolumes)
}

/// Overwrites all copies of the root block of a subvolume's tree.
fn damage(memory: &Arc<MemoryBackend>, subvolume: SubvolumeId) {
    let filesystem = open(memory);
    let root = filesystem.root_item(subvolume.tree()).unwrap().logical;
    let copies = filesystem.volume().map(root, ByteCount::new(16_384)).unwrap();
    assert_eq!(copies.len(), 2, "metadata is DUP");
    for copy in copies {
        memory.write_at(copy.physical.get(), &[0xaa; 4096]).unwrap();
    }
}

#[test]
fn damaged_subvolume_does_not_block_others() {
    let (memory, [damaged, sound]) = volume();
    damage(&memory, damaged);
    let filesystem = WritableFilesystem::new(open(&memory), WriteOptions::default()).unwrap();
    assert_eq!(
        filesystem.orphans().clean(sound).unwrap(),
        0,
        "the sound one was not cleaned"
    );
    let read = filesystem.live().list(Location::root_of(damaged), 0, 10);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt);
    let new = NewInode::of_root(0o644);
    filesystem.create(TOP, b"saved", &new).unwrap();
    filesystem.close().unwrap();
    let filesystem = open(&memory);
    assert!(filesystem.root_item(damaged.tree()).is_ok());
}

#[test]
fn damaged_deleted_subvolumes_keep_no_other_from_being_dropped() {
    let (memory, [damaged, sound]) = volume();
    let filesystem = WritableFilesystem::new(open(&memory), WriteOptions::default()).unwrap();
    let [first, second, third] = ["first", "second", "third"].map(|name| {
        let subvolume = filesystem.subvolumes().create(TOP, name.as_bytes()).unwrap();
        let new = NewInode::of_root(0o644);
        filesystem
            .create(Location::root_of(subvolume), b"file", &new)
            .unwrap();
        subvolume
    });
    for deleted in [damaged, sound, first, second, third] {
        filesystem.subvolumes().delete(deleted).unwrap();
    }
    filesystem.close().unwrap();
    damage(&memory, damaged);
    damage(&memory, second);

    let filesystem = WritableFilesystem::new(open(&memory), WriteOptions::default()).unwrap();
    let error = filesystem
        .subvolumes()
        .drop_deleted(&Progress::new())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    let Error::NotDropped { failures } = error else {
        panic!("{text}");
    };
    let failed: Vec<SubvolumeId> = failures.iter().map(|(id, _)| *id).collect();
    assert_eq!(failed, [damaged, second]);
    for id in failed {
        assert!(text.contains(&format!("subvolume {id} ")), "{text}");
    }
    assert_eq!(filesystem.subvolumes().deleted().unwrap(), [damaged, second]);
    filesystem.close().unwrap();
    let filesystem = open(&memory);
    let left = filesystem.subvolumes().unwrap().into_iter().map(|info| info.id);
    let expected = [SubvolumeId::TOP_LEVEL, damaged, second];
    assert_eq!(left.collect::<Vec<_>>(), expected);
}
