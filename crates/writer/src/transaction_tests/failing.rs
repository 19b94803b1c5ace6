//! Tests of devices that fail during writes: the placement of new chunks, and the device
//! statistics.

use crate::operations::NewInode;
use crate::{WritableFilesystem, WriteOptions};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{
    DeviceId, DeviceStatistics, FileOffset, Profile, SubvolumeId, Timestamp, TreeId, Uuid,
};
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_lab::{Fault, FaultyBackend};
use buttress_mkfs::{self as mkfs, Identity};
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const MIB: usize = 1 << 20;

/// Returns the devices of an empty RAID1.
fn mirror(devices: usize) -> Vec<Arc<FaultyBackend>> {
    let backends: Vec<Arc<FaultyBackend>> = (0..devices)
        .map(|number| {
            let memory = MemoryBackend::new(format!("memory-{number}"), vec![0; 160 * MIB]);
            FaultyBackend::new(Arc::new(memory) as Arc<dyn Backend>, 1)
        })
        .collect();
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: (4..).take(devices).map(Uuid::from_u128).collect(),
        time: Timestamp::default(),
    };
    let options = mkfs::Options {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
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
    WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap()
}

/// Each device fails in turn: without the failure, a chunk of two copies would use two of the three.
#[test]
fn no_chunk_is_made_on_a_device_that_was_left_out() {
    (0..3).for_each(no_chunk_is_made_without);
}

#[track_caller]
fn no_chunk_is_made_without(failed: usize) {
    let backends = mirror(3);
    let filesystem = open(&backends);
    let before: Vec<_> = chunks(&filesystem).into_iter().map(|(start, _)| start).collect();
    let file = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o600))
        .unwrap();
    backends[failed].inject(Fault::FailWritesFrom(0));
    filesystem.commit().unwrap();
    let slots = filesystem.forest().volume().devices();
    assert!(slots[failed].failure().is_some(), "it gets superblocks at least");
    let others: Vec<u64> = slots
        .iter()
        .filter(|slot| slot.failure().is_none())
        .map(|slot| slot.id().get())
        .collect();
    assert_eq!(others.len(), 2);
    for at in 0..64 {
        let content = vec![b'x'; MIB];
        filesystem
            .write_at(file, FileOffset::new(at * (MIB as u64)), &content)
            .unwrap();
    }
    filesystem.commit().unwrap();
    let made: Vec<_> = chunks(&filesystem)
        .into_iter()
        .filter(|(start, _)| !before.contains(start))
        .collect();
    assert!(!made.is_empty(), "everything had room");
    for (start, devices) in made {
        assert_eq!(devices, others, "chunk {start}");
    }
}

/// Returns the chunks, each with its devices.
fn chunks(filesystem: &WritableFilesystem) -> Vec<(u64, Vec<u64>)> {
    let map = filesystem.forest().volume().chunk_map();
    map.chunks()
        .iter()
        .map(|chunk| {
            let mut devices: Vec<u64> = chunk.devices().iter().map(|slot| slot.id().get()).collect();
            devices.sort_unstable();
            (chunk.start().get(), devices)
        })
        .collect()
}

fn statistics(filesystem: &WritableFilesystem, device: u64) -> DeviceStatistics {
    let key = DeviceStatistics::key(DeviceId::new(device));
    let tree = filesystem.view().tree(TreeId::DEVICE).unwrap();
    let item = tree.get(&key).unwrap().unwrap();
    DeviceStatistics::parse(&key, item.data()).unwrap()
}

/// The statistics add the error counts of a session once to the counts of earlier sessions.
#[test]
fn errors_add_up_in_the_statistics() {
    let backends = mirror(2);
    let filesystem = open(&backends);
    let file = filesystem
        .create(ROOT, b"file", &NewInode::of_root(0o600))
        .unwrap();
    filesystem
        .write_at(file, FileOffset::MIN, &vec![b'x'; 8 * MIB])
        .unwrap();
    filesystem.close().unwrap();
    let mut expected = 0;
    for session in 0..3 {
        let filesystem = open(&backends);
        assert_eq!(
            statistics(&filesystem, 1).read_errors,
            expected,
            "session {session}"
        );
        backends[0].inject(Fault::FailReads(0..u64::MAX));
        let view = filesystem.view();
        let mut content = Vec::new();
        let mut reader = view.open_file(file).unwrap().reader();
        std::io::copy(&mut reader, &mut content).unwrap();
        assert_eq!(content.len(), 8 * MIB);
        backends[0].heal();
        let counted = filesystem.forest().volume().devices()[0].errors().reads;
        assert!(
            counted > 0,
            "session {session}: nothing was read from the first device"
        );
        expected += counted;
        filesystem.commit().unwrap();
        assert_eq!(
            statistics(&filesystem, 1).read_errors,
            expected,
            "session {session}"
        );
        let generation = filesystem.committed_generation();
        assert_eq!(
            filesystem.commit().unwrap(),
            generation,
            "nothing is left to commit"
        );
        assert_eq!(
            statistics(&filesystem, 2),
            DeviceStatistics {
                device: DeviceId::new(2),
                ..DeviceStatistics::default()
            }
        );
        assert!(filesystem.notices().is_empty(), "{:?}", filesystem.notices());
        drop((reader, view));
        filesystem.close().unwrap();
    }
}
