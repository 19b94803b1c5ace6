//! The worst case of dirty data takes no unallocated space from a small volume.

use crate::operations::NewInode;
use crate::{WritableFilesystem, WriteOptions};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_engine::block_groups::Purpose;
use buttress_format::{ByteCount, SubvolumeId, Timestamp, Uuid};
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_mkfs::{self as mkfs, Identity};
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// A volume of 300 MiB has 30 MiB of metadata chunks: less than the worst case of 64 MiB of dirty
/// data.
fn small_volume() -> WritableFilesystem {
    let memory = Arc::new(MemoryBackend::new("memory", vec![0; 300 << 20]));
    let device = || Device::with_backend(Arc::clone(&memory) as Arc<dyn Backend>, Engine::Inline);
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device()], &mkfs::Options::default(), &identity).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).open().unwrap();
    let options = WriteOptions {
        memory: Some(ByteCount::new(256 << 20)),
        ..WriteOptions::default()
    };
    WritableFilesystem::new(filesystem, options).unwrap()
}

#[test]
fn dirty_data_takes_no_metadata_chunk_of_a_small_volume() {
    let filesystem = small_volume();
    let metadata = || {
        let handle = filesystem.start_reading();
        handle.core.groups.room(Purpose::Metadata).total_bytes
    };
    let before = metadata();
    let file = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o600))
        .unwrap();
    let part = vec![b'x'; 64 << 10];
    for number in 0..(128 << 20) / (64 << 10) {
        filesystem.append(file, &part).unwrap();
        assert_eq!(metadata(), before, "a chunk was made after {number} parts");
    }
    filesystem.commit().unwrap();
    assert_eq!(metadata(), before);
}
