//! The target of pending logs: a real log with changes, replayed.
//!
//! An input is the number of a volume and changes (see [`crate::mutation`]) to the blocks of its
//! log alone. Logs are the kernel's, from a seed volume, and Buttress's own, made here. The target
//! opens the volume for writing on devices that keep writes in memory, which replays the log.
//!
//! The target requires, for any log:
//!
//! - A refused opening writes nothing, and its error is no defect of the program.
//! - A replayed log is gone, and the volume's accounts of space are correct: every extent has its
//!   references, and free space is free. Files may have any content that the log gave them.
//! - Everything in the replayed volume can be read or gives an error, and can be removed and
//!   committed.

use crate::input::Input;
use crate::mutation::Aims;
use crate::seed_volume::{SeedDevice, SeedVolume};
use crate::{Depth, image, mutation, seeds};
use buttress_check::{Finding, Options as CheckOptions, Step, check};
use buttress_device::overlay::VolatileOverlay;
use buttress_device::{Backend, Device, Engine, MemoryBackend, VirtualClock};
use buttress_format::{ByteCount, FileOffset, Logical, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Error, Filesystem, Location, OpenOptions, Progress};
use buttress_lab::Model;
use buttress_mkfs as mkfs;
use buttress_writer::operations::{NewInode, RenameMode, SetXattr};
use buttress_writer::{AllocateMode, Environment, WritableFilesystem, WriteOptions};
use std::hint::black_box;
use std::sync::{Arc, OnceLock};

/// The size of the volumes that the target makes, in bytes.
const VOLUME_BYTES: usize = 128 << 20;

/// The number of entries of the top directory that the target removes after a replay.
const REMOVED_MAX: usize = 64;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// An environment with a fixed clock and without threads.
#[derive(Debug)]
struct Still;

impl Environment for Still {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn new_uuid(&self) -> Uuid {
        Uuid::from_u128(99)
    }
}

pub(crate) fn options() -> WriteOptions {
    WriteOptions {
        environment: Arc::new(Still),
        ..WriteOptions::default()
    }
}

/// Returns the volumes, each with its log's blocks as the places of changes.
///
/// # Panics
/// Panics if a volume cannot be made.
#[must_use]
pub fn volumes() -> &'static [Aims] {
    static VOLUMES: OnceLock<Vec<Aims>> = OnceLock::new();
    VOLUMES.get_or_init(|| {
        let of_kernel = seeds::volumes().iter();
        let of_kernel = of_kernel.filter(|aims| aims.volume.name.ends_with("-log"));
        let volumes = of_kernel.map(|aims| SeedVolume {
            name: aims.volume.name.clone(),
            devices: aims.volume.devices.clone(),
        });
        let own = [made("many", many_names), made("kinds", all_kinds)];
        volumes.chain(own).map(Aims::of_log).collect()
    })
}

/// Returns the label and uuids of the volumes that the target makes.
pub(crate) fn identity() -> mkfs::Identity {
    mkfs::Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    }
}

/// Makes a volume with a log of Buttress.
fn made(name: &str, fill: fn(&WritableFilesystem)) -> SeedVolume {
    let bytes = Arc::new(MemoryBackend::new(name, vec![0; VOLUME_BYTES]));
    let device = || Device::with_backend(Arc::clone(&bytes) as Arc<dyn Backend>, Engine::Inline);
    mkfs::make(&[device()], &mkfs::Options::default(), &identity()).expect("a volume can be made");
    let filesystem = OpenOptions::new(vec![device()]).open().expect("it can be opened");
    let filesystem = WritableFilesystem::new(filesystem, options()).expect("and for writing");
    fill(&filesystem);
    filesystem.abandon();
    let device = SeedDevice::of_image(bytes.snapshot().as_slice()).expect("memory can be read");
    SeedVolume {
        name: name.to_owned(),
        devices: vec![Arc::new(device)],
    }
}

const NEW: NewInode = NewInode::of_root(0o644);

fn create(filesystem: &WritableFilesystem, directory: Location, name: &str) -> Location {
    let file = filesystem.create(directory, name.as_bytes(), &NEW);
    file.expect("a file can be made")
}

fn write(filesystem: &WritableFilesystem, file: Location, offset: u64, bytes: usize) {
    let content: Vec<u8> = (0..bytes).map(|number| (number * 7 / 5) as u8).collect();
    let written = filesystem.write_at(file, FileOffset::new(offset), &content);
    written.expect("a file can be written");
}

/// Makes a directory with enough names for nodes above the leaves of its log.
fn many_names(filesystem: &WritableFilesystem) {
    let directory = filesystem
        .make_directory(TOP, b"many", &NEW)
        .expect("a directory");
    filesystem.commit().expect("a commit");
    for number in 0..400 {
        create(filesystem, directory, &format!("file {number}"));
    }
    filesystem.log_tree().fsync(directory).expect("a sync");
}

/// Makes one of every kind of item that a log holds.
fn all_kinds(filesystem: &WritableFilesystem) {
    let directory = filesystem.make_directory(TOP, b"old", &NEW).expect("a directory");
    let names = ["written", "renamed", "replaced", "punched", "gone", "small"];
    let [written, renamed, _, punched, _, small] = names.map(|name| {
        let file = create(filesystem, directory, name);
        write(filesystem, file, 0, 40_000);
        file
    });
    filesystem.commit().expect("a commit");
    write(filesystem, written, 8192, 9000);
    let set = filesystem.set_xattr(written, b"user.name", b"value", SetXattr::CreateOrReplace);
    set.expect("an attribute");
    let linked = filesystem.link(written, TOP, b"linked");
    linked.expect("a link");
    let rename = |from: &[u8], to: &[u8]| {
        let renamed = filesystem.rename(directory, from, directory, to, RenameMode::Replace);
        renamed.expect("a rename");
    };
    rename(b"renamed", b"replaced");
    let hole = FileOffset::new(4096)..FileOffset::new(20_480);
    let punched_out = filesystem.allocate(punched, hole, AllocateMode::PunchHole);
    punched_out.expect("a hole");
    filesystem.unlink(directory, b"gone").expect("an unlink");
    filesystem.truncate(small, ByteCount::new(100)).expect("a cut");
    let new = filesystem
        .make_directory(directory, b"new", &NEW)
        .expect("a directory");
    let inside = create(filesystem, new, "inside");
    write(filesystem, inside, 0, 50);
    let link = filesystem.make_symlink(new, b"link", &NEW, b"target");
    link.expect("a symlink");
    for synced in [written, renamed, punched, small, inside, new, directory] {
        filesystem.log_tree().fsync(synced).expect("a sync");
    }
}

/// The target of a changed log, replayed.
pub fn log(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let volumes = volumes();
    let aims = &volumes[usize::from(input.byte()) % volumes.len()];
    let overlays = mutation::apply(aims, &mut input);
    let kept: Vec<Arc<VolatileOverlay>> = overlays
        .into_iter()
        .map(|overlay| Arc::new(VolatileOverlay::new(Arc::new(overlay))))
        .collect();
    let Some(filesystem) = open(&kept) else {
        return Depth::Refused;
    };
    let writable = match WritableFilesystem::new(filesystem, options()) {
        Ok(writable) => writable,
        Err(error) => {
            expect_no_defect(&error);
            let still = open(&kept).expect("a volume whose log was refused can be read");
            assert_ne!(
                still.superblock().log_root,
                Logical::MIN,
                "a refused log is gone: {error}"
            );
            return Depth::Refused;
        }
    };
    drop(writable);
    let filesystem = open(&kept).expect("a volume that was replayed can be opened");
    assert_eq!(
        filesystem.superblock().log_root,
        Logical::MIN,
        "the log is still there"
    );
    expect_accounts("replaying", &filesystem);
    image::read_all(&filesystem);
    change(&kept, filesystem);
    Depth::Passed
}

pub(crate) fn open(kept: &[Arc<VolatileOverlay>]) -> Option<Filesystem> {
    // Simulated devices run everything on this thread, so that an input always gives the same run.
    let clock = VirtualClock::new();
    let device = |kept: &Arc<VolatileOverlay>| {
        buttress_lab::simulated(Arc::clone(kept) as Arc<dyn Backend>, &Model::Null, &clock)
    };
    let options = OpenOptions::new(kept.iter().map(device).collect());
    match options.cache(ByteCount::new(16 << 20)).open() {
        Ok(filesystem) => Some(filesystem),
        Err(error) => {
            black_box(error.to_string());
            None
        }
    }
}

fn expect_no_defect(error: &Error) {
    let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = at {
        let is_defect = matches!(error.downcast_ref::<Error>(), Some(Error::Defect(_)));
        assert!(!is_defect, "a log has the program fail: {error}");
        at = error.source();
    }
    let text = error.to_string();
    assert!(!text.contains("defect"), "a log has the program fail: {text}");
}

/// Asserts that extents, references and free space agree.
fn expect_accounts(after: &str, filesystem: &Filesystem) {
    let Ok(report) = check(filesystem, &CheckOptions::default(), &Progress::new()) else {
        return;
    };
    let is_of_accounts = |code: &str| {
        let mut codes = Finding::CODES.iter();
        codes.any(|(known, _, step)| *known == code && matches!(step, Step::Extents | Step::FreeSpace))
    };
    let wrong: Vec<String> = report
        .findings
        .iter()
        .filter(|found| is_of_accounts(found.finding.code()))
        .map(|found| format!("{:?}", found.finding))
        .collect();
    assert!(wrong.is_empty(), "after {after}: {wrong:#?}");
}

/// Removes the entries of the top directory after a replay, and commits.
fn change(kept: &[Arc<VolatileOverlay>], filesystem: Filesystem) {
    let writable = match WritableFilesystem::new(filesystem, options()) {
        Ok(writable) => writable,
        Err(error) => return expect_no_defect(&error),
    };
    let mut waiting = vec![TOP];
    let mut found = Vec::new();
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = writable.live().list(directory, 0, REMOVED_MAX) else {
            continue;
        };
        for entry in entries.into_iter().take(REMOVED_MAX) {
            if found.len() < REMOVED_MAX {
                waiting.push(entry.target);
                found.push((directory, entry.name));
            }
        }
    }
    for (directory, name) in found.iter().rev() {
        let removed = writable
            .unlink(*directory, name)
            .or_else(|_| writable.remove_directory(*directory, name));
        if let Err(error) = removed {
            black_box(error.to_string());
        }
    }
    match writable.close() {
        Ok(_) => {
            let filesystem = open(kept).expect("a volume that was committed can be opened");
            expect_accounts("removing", &filesystem);
        }
        Err(error) => {
            black_box(error.to_string());
        }
    }
}
