//! A snapshot has the times that `stat` showed before it, even of files whose times the kernel has
//! cached (`-o writeback_cache`). Linux's btrfs is the model of these times: it passes the same
//! checks.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::ioctls;
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use mounting::{Mounted, no_fuse, sound, when_not_busy};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A pause that is longer than a tick of any kernel's clock.
const TICK: Duration = Duration::from_millis(25);
const SECTOR: usize = 4096;

fn open(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

/// Access, modification and change times with nanoseconds.
type Times = [(i64, i64); 3];

fn times(directory: &Path) -> BTreeMap<String, Times> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let found = fs::symlink_metadata(entry.path()).unwrap();
            let times = [
                (found.atime(), found.atime_nsec()),
                (found.mtime(), found.mtime_nsec()),
                (found.ctime(), found.ctime_nsec()),
            ];
            (entry.file_name().into_string().unwrap(), times)
        })
        .collect()
}

/// Writes a file's first byte by a memory map, and runs an action before the unmap.
#[allow(unsafe_code, reason = "mmap(2) has no safe form")]
fn with_write_by_map(file: &File, body: impl FnOnce()) {
    let kinds = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the map is used for one byte of a file that no other process changes, and is unmapped
    // before the return.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), SECTOR, kinds, MapFlags::SHARED, file, 0).unwrap();
        at.cast::<u8>().write_volatile(b'm');
        body();
        rustix::mm::munmap(at, SECTOR).unwrap();
    }
}

/// Changes files whose times the kernel has not sent: open and written, mapped, allocated, renamed
/// and linked. Returns the changed files that stay open.
fn change(sub: &Path) -> Vec<File> {
    let path = |name: &str| sub.join(name);
    let files: Vec<File> = ["written", "allocated", "read", "truncated"]
        .iter()
        .map(|name| open(&path(name)))
        .collect();
    for name in ["renamed", "linked", "closed"] {
        open(&path(name)).write_all_at(b"content", 0).unwrap();
    }
    thread::sleep(TICK);
    files
        .iter()
        .for_each(|file| file.write_all_at(&[b'a'; 2 * SECTOR], 0).unwrap());
    thread::sleep(TICK);
    files[0].write_all_at(b"later", 100).unwrap();
    thread::sleep(TICK);
    rustix::fs::fallocate(&files[1], FallocateFlags::ZERO_RANGE, 0, 100).unwrap();
    files[2].read_at(&mut [0; 10], 0).unwrap();
    files[3].set_len(100).unwrap();
    thread::sleep(TICK);
    fs::rename(path("renamed"), path("renamed-2")).unwrap();
    fs::hard_link(path("linked"), path("linked-2")).unwrap();
    thread::sleep(TICK);
    files
}

/// Makes a snapshot of a subvolume with `make`, and compares the times in both.
fn expect_same_times(root: &Path, make: impl Fn(&Path, &Path)) {
    let sub = root.join("sub");
    let files = change(&sub);
    let before = times(&sub);
    thread::sleep(TICK);
    make(&sub, &root.join("snapshot"));
    let found = times(&root.join("snapshot"));
    for (name, times) in &before {
        assert_eq!(&found[name], times, "{name}: access, modification, change");
    }
    // Taking the snapshot changes no times of the source.
    assert_eq!(times(&sub), before);
    drop(files);
}

fn by_ioctl(sub: &Path, snapshot: &Path) {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY;
    let open = |path: &Path| File::from(rustix::fs::open(path, directory, 0.into()).unwrap());
    let name = snapshot.file_name().unwrap().as_encoded_bytes();
    ioctls::snapshot(&open(sub), &open(snapshot.parent().unwrap()), name, true).unwrap();
}

fn by_command(sub: &Path, snapshot: &Path) {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    sound(&["subvolume", "snapshot", "-r", &text(sub), &text(snapshot)]);
}

fn make_source(root: &Path) {
    let root = File::open(root).unwrap();
    ioctls::create_subvolume(&root, b"sub").unwrap();
}

#[test]
fn snapshot_on_linux_has_the_times_of_stat() {
    if skips(kernel_missing()) {
        return;
    }
    let mounted = Mounted::new();
    let kernel = Mount::new(std::slice::from_ref(&mounted.image), "").unwrap();
    make_source(kernel.path());
    expect_same_times(kernel.path(), by_ioctl);
    kernel.close().unwrap();
}

#[test]
fn snapshot_has_the_times_of_stat() {
    if skips(no_fuse()) {
        return;
    }
    for make in [by_ioctl, by_command] {
        for options in ["rw", "rw,writeback_cache"] {
            let mounted = Mounted::new();
            mounted.mount(options);
            make_source(&mounted.at);
            expect_same_times(&mounted.at, make);
            mounted.umount();
            mounted.expect_sound();
        }
    }
}

#[test]
fn snapshot_has_the_time_of_a_write_by_map() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw,writeback_cache");
    make_source(&mounted.at);
    let sub = mounted.path("sub");
    let file = open(&sub.join("mapped"));
    file.write_all_at(&[b'a'; SECTOR], 0).unwrap();
    thread::sleep(TICK);
    with_write_by_map(&file, || {
        let before = times(&sub);
        thread::sleep(TICK);
        by_ioctl(&sub, &mounted.path("snapshot"));
        assert_eq!(times(&mounted.path("snapshot")), before);
    });
    assert_eq!(fs::read(mounted.path("snapshot/mapped")).unwrap()[0], b'm');
    drop(file);
    mounted.umount();
}

/// For a block device the kernel asks for a sync of the volume on each syncfs(2), so also for the
/// one that fetches times.
#[test]
fn snapshot_on_a_block_device_has_the_times_of_stat() {
    if skips(no_fuse()) || skips(kernel_missing()) {
        return;
    }
    let mounted = Mounted::new();
    let device = LoopDevice::attach(&mounted.image).unwrap();
    let path = device.path().to_str().unwrap();
    sound(&["mount", "-o", "rw,writeback_cache", path, mounted.directory()]);
    make_source(&mounted.at);
    expect_same_times(&mounted.at, by_ioctl);
    let unmounted = when_not_busy(Command::new(mounting::PROGRAM).args(["umount", mounted.directory()]));
    assert!(unmounted.status.success());
}
