//! Tests of mounts with requests by io_uring: their service and their end. Tests of rings need a
//! kernel that offers rings (`enable_uring` of the module fuse). The setting for rings applies to
//! the whole machine: the tests enable it while they run, and restore it afterwards.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use buttress_oracle::needs::{Missing, missing};
use buttress_oracle::skip::skips;
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

mod mounting;

use mounting::{Mounted, no_fuse};

const NEED: &str = "fuse-rings";

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Number of running tests that need rings, and the parameter's value before the first of them.
static WANTED: Mutex<(usize, Vec<u8>)> = Mutex::new((0, Vec::new()));

/// Guard during whose life the kernel offers rings.
struct Offered(());

/// Makes the kernel offer rings. If the machine cannot offer rings, returns `None` and skips the
/// test.
fn rings() -> Option<Offered> {
    if skips(no_fuse().or_else(|| missing(NEED))) {
        return None;
    }
    let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
    if wanted.0 == 0 {
        let before = fs::read(PARAMETER);
        let turned_on = before.and_then(|before| fs::write(PARAMETER, "Y").map(|()| before));
        match turned_on {
            Ok(before) => wanted.1 = before,
            Err(error) => {
                let _ = skips(Some(Missing::new(NEED, format!("{PARAMETER}: {error}"))));
                return None;
            }
        }
    }
    wanted.0 += 1;
    Some(Offered(()))
}

impl Drop for Offered {
    fn drop(&mut self) {
        let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.0 -= 1;
        if wanted.0 == 0 {
            let _ = fs::write(PARAMETER, &wanted.1);
        }
    }
}

/// Returns the number of threads of a mount's server that take requests by rings.
fn ring_threads(mounted: &Mounted) -> usize {
    // After an answer to a request, the server's threads exist.
    fs::metadata(mounted.path(".")).unwrap();
    let _asked = fs::metadata(mounted.path("is not there"));
    let tasks = fs::read_dir(format!("/proc/{}/task", mounted.server())).unwrap();
    let names = tasks.filter_map(|task| fs::read(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with(b"buttress-ring")).count()
}

/// Binds this thread to the first processor that it may use.
fn hold_to_one_processor() {
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|number| all.is_set(*number)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

fn bytes_of(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at / 7 + at / 4096 + seed * 31) as u8)
        .collect()
}

#[test]
fn files_written_through_rings_are_complete() {
    let Some(_offered) = rings() else { return };
    let mounted = Mounted::new();
    mounted.mount("rw");
    assert!(ring_threads(&mounted) > 0);
    // The files are larger than one request, and their lengths are not aligned.
    let length = |number: usize| 3 * (1 << 20) + number * 1234 + 1;
    thread::scope(|scope| {
        for number in 0..8 {
            let mounted = &mounted;
            scope.spawn(move || {
                let folder = mounted.path(&format!("d{number}"));
                fs::create_dir(&folder).unwrap();
                fs::write(folder.join("large"), bytes_of(number, length(number))).unwrap();
                for name in 0..200 {
                    fs::write(folder.join(format!("f{name}")), bytes_of(name, name * 17)).unwrap();
                }
                for name in (0..200).step_by(2) {
                    fs::remove_file(folder.join(format!("f{name}"))).unwrap();
                }
            });
        }
    });
    mounted.umount();
    mounted.expect_sound();
    mounted.mount("ro");
    for number in 0..8 {
        let folder = mounted.path(&format!("d{number}"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 101);
        assert!(fs::read(folder.join("large")).unwrap() == bytes_of(number, length(number)));
        // The test uses direct I/O, which makes the largest requests.
        let direct = OFlags::DIRECT.bits().cast_signed();
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(direct)
            .open(folder.join("large"))
            .unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert!(read == bytes_of(number, length(number)));
        for name in (1..200).step_by(2) {
            assert_eq!(
                fs::read(folder.join(format!("f{name}"))).unwrap(),
                bytes_of(name, name * 17)
            );
        }
    }
    mounted.umount();
}

/// The test makes more direct writes on one processor than it has threads. Each write makes the
/// kernel drop pages that concurrent reads hold, while their requests wait for the same threads.
#[test]
fn waiting_calls_leave_threads_for_requests_of_the_kernel() {
    let Some(_offered) = rings() else { return };
    const WRITERS: usize = 40;
    const BLOCK: usize = 4096;
    let mounted = Mounted::new();
    mounted.mount("rw");
    assert!(ring_threads(&mounted) > 0);
    let path = mounted.path("shared");
    fs::write(&path, vec![0; WRITERS * BLOCK]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let path = &path;
            scope.spawn(move || {
                hold_to_one_processor();
                let direct = OFlags::DIRECT.bits().cast_signed();
                let file = OpenOptions::new()
                    .write(true)
                    .custom_flags(direct)
                    .open(path)
                    .unwrap();
                let mut memory = vec![0_u8; 2 * BLOCK];
                let start = memory.as_ptr().align_offset(BLOCK);
                for round in 1..=50 {
                    memory[start..start + BLOCK].fill(round);
                    file.write_all_at(&memory[start..start + BLOCK], (number * BLOCK) as u64)
                        .unwrap();
                }
            });
            scope.spawn(move || {
                hold_to_one_processor();
                for _ in 0..50 {
                    assert_eq!(fs::read(path).unwrap().len(), WRITERS * BLOCK);
                }
            });
        }
    });
    mounted.umount();
    mounted.mount("ro");
    assert!(fs::read(&path).unwrap() == vec![50; WRITERS * BLOCK]);
    mounted.umount();
    mounted.expect_sound();
}

/// The test makes more searches on one processor than it has threads. Each search makes the kernel
/// send unsent content.
#[test]
fn searches_for_holes_see_what_is_kept_back_or_no_holes() {
    let Some(_offered) = rings() else { return };
    const FILES: u64 = 40;
    const MIB: u64 = 1 << 20;
    let mounted = Mounted::new();
    mounted.mount("rw,writeback_cache");
    assert!(ring_threads(&mounted) > 0);
    thread::scope(|scope| {
        for number in 0..FILES {
            let path = mounted.path(&format!("f{number}"));
            scope.spawn(move || {
                hold_to_one_processor();
                let file = File::create(path).unwrap();
                for round in 1..20 {
                    file.write_all_at(&bytes_of(3, 5000), round * MIB).unwrap();
                    let from = (round - 1) * MIB + 8192;
                    let found = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(from)).unwrap();
                    // If too many searches for holes run at once, the server reports no holes.
                    assert!(found == round * MIB || found == from, "{found} from {from}");
                }
            });
        }
    });
    mounted.umount();
    mounted.expect_sound();
}

/// Aborting the connection is the kernel's own method against a hanging server.
#[test]
fn a_connection_that_is_broken_off_ends_the_server() {
    let Some(_offered) = rings() else { return };
    let mounted = Mounted::new();
    mounted.mount("rw");
    assert!(ring_threads(&mounted) > 0);
    fs::write(mounted.path("synced"), b"content").unwrap();
    File::open(mounted.path("synced")).unwrap().sync_all().unwrap();
    let server = rustix::process::Pid::from_raw(mounted.server()).unwrap();
    let device = fs::metadata(&mounted.at).unwrap().dev();
    // Mount the kernel's directory of connections, because the system may not have it mounted.
    let connections = mounted.at.with_file_name("connections");
    fs::create_dir(&connections).unwrap();
    rustix::mount::mount("connections", &connections, "fusectl", MountFlags::empty(), None).unwrap();
    let abort = connections.join(format!("{}/abort", rustix::fs::minor(device)));
    let unmounted = |path: &Path| rustix::mount::unmount(path, UnmountFlags::DETACH);
    thread::scope(|scope| {
        for number in 0..4 {
            let folder = mounted.path(&format!("d{number}"));
            // Read until the mount fails.
            scope.spawn(move || {
                (0..).all(|name| fs::write(folder.with_extension(name.to_string()), b"content").is_ok())
            });
        }
        let aborted = fs::write(&abort, b"1");
        unmounted(&connections).unwrap();
        if let Err(error) = aborted {
            mounted.signal(rustix::process::Signal::KILL);
            panic!("{}: {error}", abort.display());
        }
    });
    while rustix::process::test_kill_process(server).is_ok() {
        thread::yield_now();
    }
    // The watch process may have unmounted the directory first.
    let _detached = unmounted(&mounted.at);
    mounted.mount("rw");
    assert_eq!(fs::read(mounted.path("synced")).unwrap(), b"content");
    mounted.umount();
    mounted.expect_sound();
}
