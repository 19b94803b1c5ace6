//! A wrong ledger ends the commit before any write, with an error that names the difference.

use crate::operations::NewInode;
use crate::{WritableFilesystem, WriteOptions};
use buttress_accounts::delayed_references::{ExtentKind, Reference};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_engine::core_state::Core;
use buttress_format::{ByteCount, FileOffset, Generation, Logical, SubvolumeId, Timestamp, TreeId, Uuid};
use buttress_fs::Error;
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_mkfs::{self as mkfs, Identity};
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const NODE: u64 = 16384;

fn new_volume() -> (Arc<MemoryBackend>, WritableFilesystem) {
    let memory = Arc::new(MemoryBackend::new("memory", vec![0; 160 << 20]));
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
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    (memory, filesystem)
}

/// Writes some files and commits, then corrupts a ledger by `spoil`. The next commit must fail with
/// the expected error.
#[track_caller]
fn spoilt(spoil: impl FnOnce(&mut Core), said: &[&str]) {
    let (memory, filesystem) = new_volume();
    let write = |name: &str, bytes: usize| {
        let file = filesystem
            .create(ROOT, name.as_bytes(), &NewInode::of_root(0o600))
            .unwrap();
        filesystem
            .write_at(file, FileOffset::MIN, &vec![b'x'; bytes])
            .unwrap();
    };
    for number in 0..20 {
        write(&format!("before-{number}"), 70_000);
    }
    filesystem.commit().unwrap();
    filesystem.unlink(ROOT, b"before-3").unwrap();
    // The file is inline, so no data goes to the device before the commit.
    write("after", 100);
    filesystem.with_core(spoil);
    let before = memory.snapshot();

    let error = filesystem.commit().unwrap_err();
    assert!(matches!(error, Error::Defect(_)), "{error}");
    let told = error.to_string();
    for part in said {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(memory.snapshot() == before, "nothing is written");
    let after = filesystem.commit().unwrap_err();
    assert!(matches!(after, Error::WritingStopped { .. }), "{after}");
    assert!(after.to_string().contains(&told), "{after}");
    // Both committed and later names can still be read.
    assert!(filesystem.live().lookup(ROOT, b"before-4").unwrap().is_some());
    assert!(filesystem.live().lookup(ROOT, b"after").unwrap().is_some());
    filesystem.abandon();
}

#[test]
fn bytes_in_use_of_the_volume() {
    spoilt(
        |core| core.bytes_used += 4096,
        &[
            "the superblock's count of bytes in use",
            "superblock ",
            "block groups ",
        ],
    );
}

#[test]
fn the_shares_of_a_block_group() {
    spoilt(
        |core| {
            let group = core.groups.iter_mut().find(|group| group.free.is_some());
            group.unwrap().pinned_bytes += 4096;
        },
        &["do not add up to its length", "pinned ", "free "],
    );
}

/// Free and used bytes are wrong by the same amount, so only the trees show the error.
#[test]
fn wrong_used_bytes_against_extent_tree_stop_writing() {
    spoilt(
        |core| {
            let group = core
                .groups
                .iter_mut()
                .find(|group| group.used > 0 && group.free.is_some());
            let group = group.unwrap();
            let (start, _) = group.free.as_ref().unwrap().iter().last().unwrap();
            group.free.as_mut().unwrap().remove(start, NODE);
            group.used += NODE;
            core.bytes_used += NODE;
        },
        &["is not what the extent tree has", "used ", "extents "],
    );
}

#[test]
fn delayed_references_that_were_not_applied() {
    spoilt(
        |core| {
            let (logical, length) = (Logical::new(1 << 20), ByteCount::new(NODE));
            let reference = Reference::TreeBlock { root: TreeId::FS };
            let kind = ExtentKind::TreeBlock { level: 0 };
            core.references.change(logical, length, kind, reference, 1);
            let taken = core.references.take_first(usize::MAX);
            for (other, pending) in taken.into_iter().filter(|(other, _)| *other != logical) {
                for (reference, change) in pending.changes {
                    core.references
                        .change(other, pending.length, pending.kind, reference, change);
                }
            }
        },
        &["delayed references were queued", "queued ", "applied "],
    );
}

#[test]
fn pinned_bytes_without_pins_stop_writing() {
    spoilt(
        |core| {
            let generation = Generation::new(core.generation.get() + 1);
            core.pins.add(generation, 1 << 20, 4096, generation);
        },
        &["more or less pinned", "block groups ", "waits "],
    );
}

#[test]
fn a_promise_to_data_that_no_file_has() {
    // The test writes content back before the commit checks the ledgers, so no file is dirty.
    spoilt(
        |core| core.reserved_data_bytes += 4096,
        &["dirty data is counted that no file has", "bytes promised "],
    );
}
