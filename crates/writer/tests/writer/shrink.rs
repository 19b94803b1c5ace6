//! Shrinks beside other edits, and shrinks that end early: the sizes of devices and image files.

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, DeviceId, FileOffset, Profile, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Error, Location, OpenOptions, Progress};
use buttress_lab::gate::{GatedBackend, Request, WatchedThread};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const MIB: u64 = 1 << 20;
const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const DEVICE: DeviceId = DeviceId::new(1);

/// The offset of the primary superblock, in bytes.
const SUPERBLOCK: u64 = 64 << 10;

fn open(backend: &Arc<dyn Backend>) -> WritableFilesystem {
    let device = Device::with_backend(Arc::clone(backend), Engine::Inline);
    let opened = OpenOptions::new(vec![device]).open().unwrap();
    WritableFilesystem::new(opened, WriteOptions::default()).unwrap()
}

fn size(filesystem: &WritableFilesystem) -> u64 {
    filesystem.view().superblock().total_bytes.get()
}

/// A volume of one device with a file of 20 MiB.
fn volume(bytes: u64) -> Arc<dyn Backend> {
    let backend = Arc::new(MemoryBackend::new(
        "memory",
        vec![0; usize::try_from(bytes).unwrap()],
    ));
    let backend = backend as Arc<dyn Backend>;
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    let options = mkfs::Options {
        metadata: Some(Profile::Single),
        ..mkfs::Options::default()
    };
    let device = Device::with_backend(Arc::clone(&backend), Engine::Inline);
    mkfs::make(&[device], &options, &identity).unwrap();
    let filesystem = open(&backend);
    write(&filesystem, b"content", 20 << 20).unwrap();
    filesystem.commit().unwrap();
    backend
}

fn write(filesystem: &WritableFilesystem, name: &[u8], bytes: usize) -> Result<(), Error> {
    let file = filesystem.create(ROOT, name, &NewInode::of_root(0o600))?;
    filesystem.write_at(file, FileOffset::MIN, &vec![7; bytes])?;
    Ok(())
}

/// Returns whether a request writes the primary superblock with this label.
fn writes_label(request: Request<'_>, label: &[u8]) -> bool {
    let Request::Write { offset_bytes, bytes } = request else {
        return false;
    };
    offset_bytes == SUPERBLOCK && bytes.windows(label.len()).any(|part| part == label)
}

#[test]
fn edits_during_the_cut_make_no_chunk_past_the_new_end() {
    let memory = volume(128 * MIB);
    let filesystem = open(&memory);
    filesystem
        .shrinking()
        .shrink(ByteCount::ZERO, &Progress::new())
        .unwrap();
    let least = size(&filesystem);
    filesystem
        .devices()
        .enlarge(DEVICE, ByteCount::new(128 * MIB))
        .unwrap();
    filesystem.close().unwrap();
    let at_cut = GatedBackend::new(memory);
    let at_plan = GatedBackend::new(Arc::clone(&at_cut) as Arc<dyn Backend>);
    let backend = Arc::clone(&at_plan) as Arc<dyn Backend>;
    let filesystem = Arc::new(open(&backend));
    filesystem.set_label(b"before the plan").unwrap();
    at_plan.close(|request| writes_label(request, b"before the plan"));
    at_cut.close(|request| writes_label(request, b"before the cut"));
    let shrunk = Arc::clone(&filesystem);
    let shrinking =
        WatchedThread::start(move || shrunk.shrinking().shrink(ByteCount::ZERO, &Progress::new())).unwrap();
    at_plan.wait_for_arrivals(1);
    filesystem.set_label(b"before the cut").unwrap();
    at_plan.open();
    at_cut.wait_for_arrivals(1);
    let edited = Arc::clone(&filesystem);
    let editing = WatchedThread::start(move || {
        let names = (0..8000).map(|number| format!("inline {number}"));
        names
            .map(|name| write(&edited, name.as_bytes(), 1800))
            .find_map(Result::err)
    });
    let editing = editing.unwrap();
    let _waits = editing.comes_to_wait();
    at_cut.open();
    shrinking.join().unwrap().unwrap();
    let refused = editing.join().unwrap();
    assert!(matches!(refused, Some(Error::NoSpace { .. })), "{refused:?}");
    assert_eq!(size(&filesystem), least);
    drop(filesystem);
    assert_eq!(at_cut.size_bytes(), least);
}

/// Shrinks, and cancels the job at this write after the device has grown. Returns whether the job
/// was cancelled, and the sizes of the device before and after.
fn cancelled_at(backend: &Arc<dyn Backend>, write: usize) -> (bool, u64, u64) {
    let gated = GatedBackend::new(Arc::clone(backend));
    let filesystem = open(&(Arc::clone(&gated) as Arc<dyn Backend>));
    let before = backend.size_bytes();
    let progress = Progress::new();
    let (cancelled, grown) = (progress.clone(), Arc::clone(backend));
    let written = AtomicUsize::new(0);
    gated.close(move |request| {
        let counts = matches!(request, Request::Write { .. }) && grown.size_bytes() > before;
        if counts && written.fetch_add(1, Ordering::Relaxed) == write {
            cancelled.cancel();
        }
        false
    });
    let ended = filesystem.shrinking().shrink(ByteCount::ZERO, &progress);
    let is_cancelled = matches!(ended, Err(Error::Cancelled));
    assert!(is_cancelled || ended.is_ok(), "{ended:?}");
    gated.open();
    assert_eq!(size(&filesystem), gated.size_bytes());
    drop(filesystem);
    (is_cancelled, before, gated.size_bytes())
}

#[test]
fn cancelled_shrink_returns_the_device_to_its_size() {
    let memory = volume(128 * MIB);
    let filesystem = open(&memory);
    for number in 0..8 {
        write(&filesystem, format!("file {number}").as_bytes(), 8 << 20).unwrap();
        filesystem.commit().unwrap();
    }
    for number in (0..8).step_by(2) {
        filesystem
            .unlink(ROOT, format!("file {number}").as_bytes())
            .unwrap();
    }
    filesystem.commit().unwrap();
    filesystem.close().unwrap();
    let mut cancelled = 0;
    for write in [0, 5, 10, 20, 40] {
        let base = resizable(&memory);
        let (is_cancelled, before, after) = cancelled_at(&base, write);
        cancelled += usize::from(is_cancelled);
        assert!(after <= before, "write {write}: {before} bytes, then {after}");
        // The next run ends the shrink.
        let filesystem = open(&base);
        filesystem
            .shrinking()
            .shrink(ByteCount::ZERO, &Progress::new())
            .unwrap();
        let least = size(&filesystem);
        filesystem.close().unwrap();
        assert!(least < 64 * MIB, "write {write}: {least}");
        assert_eq!(base.size_bytes(), least);
    }
    assert!(cancelled > 1, "{cancelled} runs were cancelled");
}

/// Returns a copy of a device that can change its size.
fn resizable(backend: &Arc<dyn Backend>) -> Arc<dyn Backend> {
    let mut bytes = vec![0; usize::try_from(backend.size_bytes()).unwrap()];
    backend.read_vectored_at(0, &mut [bytes.as_mut_slice()]).unwrap();
    Arc::new(MemoryBackend::new("copy", bytes))
}

#[test]
fn shrink_that_fits_no_plan_is_refused_with_numbers() {
    let memory = volume(128 * MIB);
    let filesystem = open(&memory);
    // A range that is kept, as on a device that returns, is free for a plan alone.
    filesystem.keep_range(DEVICE, MIB, 4 << 30);
    let refused = filesystem
        .shrinking()
        .shrink(ByteCount::ZERO, &Progress::new())
        .unwrap_err()
        .to_string();
    let told = "the volume could not be packed in 4 attempts: device 1: no chunk can be made at byte ";
    assert!(refused.contains(told), "{refused}");
    drop(filesystem);
    assert_eq!(memory.size_bytes(), 128 * MIB);
    open(&memory)
        .shrinking()
        .shrink(ByteCount::ZERO, &Progress::new())
        .unwrap();
}
