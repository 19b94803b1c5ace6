//! Tests of the order of a commit's requests: which writes must be durable before others, and which
//! may overlap.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset, Profile, SUPERBLOCK_OFFSETS, SubvolumeId, Timestamp, Uuid};
use buttress_fs::Error;
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_lab::gate::{GatedBackend, Request, WatchedThread};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::sync::{Arc, Mutex};

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const MIB: usize = 1 << 20;

fn new_volume(
    devices: usize,
    data: Profile,
    metadata: Profile,
) -> (Vec<Arc<GatedBackend>>, WritableFilesystem) {
    let gates: Vec<Arc<GatedBackend>> = (0..devices)
        .map(|number| {
            let memory = MemoryBackend::new(format!("memory-{number}"), vec![0; 160 * MIB]);
            GatedBackend::new(Arc::new(memory))
        })
        .collect();
    let given = || -> Vec<Device> {
        let backends = gates.iter().map(|gate| Arc::clone(gate) as Arc<dyn Backend>);
        backends
            .map(|backend| Device::with_backend(backend, Engine::Inline))
            .collect()
    };
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: (4..).take(devices).map(Uuid::from_u128).collect(),
        time: Timestamp::default(),
    };
    let options = mkfs::Options {
        data: Some(data),
        metadata: Some(metadata),
        ..mkfs::Options::default()
    };
    mkfs::make(&given(), &options, &identity).unwrap();
    let filesystem = OpenOptions::new(given()).open().unwrap();
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    (gates, filesystem)
}

fn create(filesystem: &WritableFilesystem, name: &str, content: &[u8]) -> Result<Location, Error> {
    let file = filesystem.create(ROOT, name.as_bytes(), &NewInode::of_root(0o600))?;
    filesystem.write_at(file, FileOffset::MIN, content)?;
    filesystem.writeback().write_file(file)?;
    Ok(file)
}

/// A request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Block,
    Primary,
    Copy,
    Flush,
}

/// Records all requests of all devices, in order of arrival.
fn record(gates: &[Arc<GatedBackend>]) -> Arc<Mutex<Vec<(usize, Step)>>> {
    let steps = Arc::new(Mutex::new(Vec::new()));
    for (device, gate) in gates.iter().enumerate() {
        let steps = Arc::clone(&steps);
        gate.close(move |request| {
            let step = match request {
                Request::Read { .. } | Request::Discard { .. } => return false,
                Request::Flush => Step::Flush,
                Request::Write { offset_bytes, .. } => {
                    match SUPERBLOCK_OFFSETS.iter().position(|at| at.get() == offset_bytes) {
                        Some(0) => Step::Primary,
                        Some(_) => Step::Copy,
                        None => Step::Block,
                    }
                }
            };
            steps.lock().unwrap().push((device, step));
            false
        });
    }
    steps
}

/// Checks the order of a commit: blocks on every device, flushes, primaries, flushes, copies,
/// flushes. In the required order, each step ends before the next step begins.
fn is_in_order(devices: usize, steps: &[(usize, Step)]) {
    let mut rest = steps;
    for step in [
        Step::Block,
        Step::Flush,
        Step::Primary,
        Step::Flush,
        Step::Copy,
        Step::Flush,
    ] {
        let length = rest.iter().take_while(|(_, other)| *other == step).count();
        let (now, later) = rest.split_at(length);
        for device in 0..devices {
            assert!(
                now.iter().any(|(on, _)| *on == device),
                "device {device} has no {step:?} before {:?}: {steps:?}",
                later.first()
            );
        }
        rest = later;
    }
    assert_eq!(rest, [], "{steps:?}");
}

fn each_step_ends_on_all_devices(devices: usize, data: Profile, metadata: Profile) {
    let (gates, filesystem) = new_volume(devices, data, metadata);
    for round in 0..3 {
        create(&filesystem, &format!("file-{round}"), &vec![b'c'; 300_000]).unwrap();
        let steps = record(&gates);
        filesystem.commit().unwrap();
        is_in_order(devices, &steps.lock().unwrap());
    }
    filesystem.close().unwrap();
}

#[test]
fn each_step_ends_on_both_devices_of_a_mirror() {
    each_step_ends_on_all_devices(2, Profile::Raid1, Profile::Raid1);
}

#[test]
fn each_step_ends_on_all_devices_with_striped_data() {
    each_step_ends_on_all_devices(3, Profile::Raid0, Profile::Raid1C3);
}

/// Checks that space freed by `end` is not reused while the commit that frees it is in progress.
fn what_is_freed_waits(end: impl Fn(&WritableFilesystem, Location)) {
    let (gates, filesystem) = new_volume(1, Profile::Single, Profile::Single);
    let freed = create(&filesystem, "freed", &vec![b'f'; 16 * MIB]).unwrap();
    // These test files take almost all of the space.
    let mut number = 0;
    loop {
        match create(&filesystem, &format!("other-{number}"), &vec![b'o'; MIB]) {
            Ok(_) => number += 1,
            Err(Error::NoSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    filesystem.commit().unwrap();
    end(&filesystem, freed);
    gates[0].close(|request| matches!(request, Request::Flush));
    let of = filesystem.clone();
    let commit = WatchedThread::start(move || of.commit().map(drop)).unwrap();
    gates[0].wait_for_arrivals(1);

    let of = filesystem.clone();
    let written = WatchedThread::start(move || create(&of, "new", &vec![b'n'; 12 * MIB])).unwrap();
    let waits = written.comes_to_wait();
    gates[0].open();
    commit.join().unwrap().unwrap();
    let file = written.join().unwrap().unwrap();
    assert!(waits, "it was written over what the last durable state has");
    let found = filesystem.live().lookup(ROOT, b"new").unwrap().unwrap();
    assert_eq!(found.target, file);
    filesystem.close().unwrap();
}

#[test]
fn the_space_of_a_removed_file_waits_for_the_commit() {
    what_is_freed_waits(|filesystem, _| filesystem.unlink(ROOT, b"freed").unwrap());
}

#[test]
fn the_space_of_a_file_that_is_cut_waits_for_the_commit() {
    what_is_freed_waits(|filesystem, file| filesystem.truncate(file, ByteCount::ZERO).unwrap());
}
