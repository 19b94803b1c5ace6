//! Tests of reads beside writers: each read shows one state of the volume, and no read waits for a
//! device that only a writer uses.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

mod states;
mod used_space;
mod write_back;

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Location, OpenOptions};
use buttress_lab::gate::GatedBackend;
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::operations::NewInode;
use buttress_writer::{DataOptions, WritableFilesystem, WriteOptions};
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const BYTES: usize = 200_000;
const ROUNDS: u64 = 150;

pub(crate) fn identity() -> Identity {
    Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    }
}

pub(crate) fn new_volume(data: DataOptions) -> (Arc<GatedBackend>, WritableFilesystem) {
    let memory = MemoryBackend::new("memory", vec![0; 256 << 20]);
    let gate = GatedBackend::new(Arc::new(memory));
    let device = || Device::with_backend(Arc::clone(&gate) as Arc<dyn Backend>, Engine::Inline);
    mkfs::make(&[device()], &mkfs::Options::default(), &identity()).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).open().unwrap();
    let options = WriteOptions {
        data,
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(filesystem, options).unwrap();
    (gate, filesystem)
}

pub(crate) fn create(filesystem: &WritableFilesystem, name: &str) -> Location {
    filesystem
        .create(ROOT, name.as_bytes(), &NewInode::of_root(0o644))
        .unwrap()
}
