//! Tests of mounts with `-o writeback_cache`: the kernel caches written content, which every reader
//! sees, and whose errors are reported.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::ioctls::numbered;
use buttress_oracle::skip::skips;
use mounting::{Mounted, no_fuse, sound, text};
use rustix::fs::{FallocateFlags, IFlags, SeekFrom as Seek};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

const OPTIONS: &str = "rw,writeback_cache";
const MIB: u64 = 1 << 20;

const SNAP_CREATE: u32 = 1 << 30 | 4096 << 16 | 0x94 << 8 | 1;
const SUBVOL_SETFLAGS: u32 = 1 << 30 | 8 << 16 | 0x94 << 8 | 26;
const READ_ONLY: u64 = 1 << 1;

fn content(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at / 7 + at / 4096 + seed * 31) as u8)
        .collect()
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

/// Mounts a volume with the subvolume `sub`.
fn mounted() -> Option<Mounted> {
    if skips(no_fuse()) {
        return None;
    }
    let mounted = Mounted::new();
    mounted.mount(OPTIONS);
    sound(&["subvolume", "create", mounted.path("sub").to_str().unwrap()]);
    Some(mounted)
}

#[test]
fn holes_are_found_around_what_is_kept_back() {
    let Some(mounted) = mounted() else { return };
    let file = open(&mounted.path("file"));
    file.write_all_at(&content(1, 3 * MIB), MIB).unwrap();
    // Programs treat a file without allocated space as a hole.
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.len(), 4 * MIB);
    assert!(metadata.blocks() > 0);
    assert_eq!(rustix::fs::seek(&file, Seek::Data(0)), Ok(MIB));
    assert_eq!(rustix::fs::seek(&file, Seek::Hole(MIB)), Ok(4 * MIB));
    file.write_all_at(b"behind", 8 * MIB).unwrap();
    // The reader of cached content need not be its writer.
    let reader = File::open(mounted.path("file")).unwrap();
    assert_eq!(rustix::fs::seek(&reader, Seek::Data(4 * MIB)), Ok(8 * MIB));
    drop((file, reader));
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn cached_writes_count_in_the_blocks_of_an_empty_file() {
    let Some(mounted) = mounted() else { return };
    let path = mounted.path("empty");
    drop(open(&path));
    // Wait until the kernel has cached the attributes, and knows that no process has the file open.
    while fs::metadata(&path).unwrap().blocks() > 0 {
        std::thread::yield_now();
    }
    let file = open(&path);
    file.write_all_at(&content(2, MIB), 0).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert!(
        found.len() == MIB && found.blocks() > 0,
        "{} blocks",
        found.blocks()
    );
    drop(file);
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn snapshots_and_commands_see_what_is_kept_back() {
    let Some(mounted) = mounted() else { return };
    let path = |name: &str| mounted.path(name).to_str().unwrap().to_owned();
    let file = open(&mounted.path("sub/file"));
    let began = SystemTime::now() - Duration::from_secs(1);
    for (round, snapshot) in ["by-word", "by-ioctl"].into_iter().enumerate() {
        let written = content(round as u64, 2 * MIB + 17);
        file.write_all_at(&written, 0).unwrap();
        if snapshot == "by-word" {
            sound(&["subvolume", "snapshot", "-r", &path("sub"), &path(snapshot)]);
        } else {
            let root = File::open(&mounted.at).unwrap();
            let source = File::open(mounted.path("sub")).unwrap();
            let mut data = [0; 4096];
            let descriptor = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&source)).unwrap();
            data[..8].copy_from_slice(&descriptor.to_ne_bytes());
            data[8..8 + snapshot.len()].copy_from_slice(snapshot.as_bytes());
            numbered(&root, SNAP_CREATE, &mut data).unwrap();
        }
        let inside = mounted.path(snapshot).join("file");
        assert!(fs::read(&inside).unwrap() == written, "{snapshot}");
        assert!(
            fs::metadata(&inside).unwrap().modified().unwrap() >= began,
            "{snapshot}"
        );
    }
    let stream = sound(&["send", &path("by-word")]);
    assert!(stream.stdout.len() as u64 > 2 * MIB);
    file.write_all_at(&content(9, MIB), 8 * MIB).unwrap();
    let extents = text(&sound(&["fiemap", "-v", &path("sub/file")]).stdout);
    assert!(extents.contains("2048.."), "{extents}");
    let shown = sound(&["cat", &path("sub/file")]);
    assert_eq!(shown.stdout.len() as u64, 9 * MIB);
    drop(file);
    mounted.umount();
    mounted.expect_sound();
}

/// Content written before a subvolume became read-only, or a file immutable, is stored.
#[test]
fn read_only_subvolumes_and_immutable_files_keep_earlier_writes() {
    let Some(mounted) = mounted() else { return };
    let written = content(3, MIB + 5);
    let file = open(&mounted.path("sub/file"));
    file.write_all_at(&written, 0).unwrap();
    let subvolume = File::open(mounted.path("sub")).unwrap();
    let mut data = [0; 4096];
    data[..8].copy_from_slice(&READ_ONLY.to_ne_bytes());
    numbered(&subvolume, SUBVOL_SETFLAGS, &mut data).unwrap();
    let fixed = open(&mounted.path("fixed"));
    fixed.write_all_at(&written, 0).unwrap();
    rustix::fs::ioctl_setflags(&fixed, IFlags::IMMUTABLE).unwrap();
    fixed.sync_all().unwrap();
    drop((file, subvolume, fixed));
    mounted.umount();
    mounted.mount("ro");
    for name in ["sub/file", "fixed"] {
        assert!(fs::read(mounted.path(name)).unwrap() == written, "{name}");
    }
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn appends_go_to_the_end_also_of_files_that_take_nothing_else() {
    let Some(mounted) = mounted() else { return };
    let path = mounted.path("log");
    let append = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let (mut one, mut other) = (append(), append());
    let mut expected = Vec::new();
    for number in 0..500_u32 {
        if number == 100 {
            rustix::fs::ioctl_setflags(&one, IFlags::APPEND).unwrap();
        }
        let line = format!("line {number}\n").into_bytes();
        let file = if number % 2 == 0 { &mut one } else { &mut other };
        file.write_all(&line).unwrap();
        if number % 50 == 0 {
            // Later content begins inside a page that was already sent.
            file.sync_all().unwrap();
        }
        expected.extend(line);
    }
    let times = one.metadata().unwrap();
    drop((one, other));
    mounted.umount();
    mounted.mount("ro");
    assert!(fs::read(&path).unwrap() == expected);
    let found = fs::metadata(&path).unwrap();
    assert_eq!(
        (found.mtime(), found.mtime_nsec()),
        (times.mtime(), times.mtime_nsec())
    );
    mounted.umount();
    mounted.expect_sound();
}

/// The kernel reads the rest of a page for a partial write, with a write-only handle.
#[test]
fn parts_of_pages_lie_among_what_was_there() {
    let Some(mounted) = mounted() else { return };
    let mut expected = content(4, 64 * 1024);
    fs::write(mounted.path("file"), &expected).unwrap();
    mounted.umount();
    mounted.mount(OPTIONS);
    let file = OpenOptions::new().write(true).open(mounted.path("file")).unwrap();
    for at in (100..60_000).step_by(5_003) {
        file.write_all_at(b"changed", at as u64).unwrap();
        expected[at..at + 7].copy_from_slice(b"changed");
    }
    file.set_len(50_001).unwrap();
    expected.truncate(50_001);
    // Write beyond the end, and in the middle of unsent content.
    file.write_all_at(b"far", 90_000).unwrap();
    expected.resize(90_000, 0);
    expected.extend(b"far");
    file.write_all_at(&vec![7; 20_000], 10_000).unwrap();
    expected[10_000..30_000].fill(7);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 12_345, 5_000).unwrap();
    expected[12_345..17_345].fill(0);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    expected.resize(100_000, 0);
    file.write_all_at(b"last", 99_990).unwrap();
    expected[99_990..99_994].copy_from_slice(b"last");
    let copy = open(&mounted.path("copy"));
    copy.write_all_at(&[9; 4096], 96_000).unwrap();
    let source = File::open(mounted.path("file")).unwrap();
    let copied = rustix::fs::copy_file_range(&source, Some(&mut 0), &copy, Some(&mut 0), 100_000);
    assert_eq!(copied, Ok(100_000));
    let mut copied = expected.clone();
    copied.resize(100_096, 9);
    let expect = || {
        assert!(fs::read(mounted.path("file")).unwrap() == expected);
        assert!(fs::read(mounted.path("copy")).unwrap() == copied);
    };
    expect();
    drop((file, copy, source));
    mounted.umount();
    mounted.mount("ro");
    expect();
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn times_are_those_that_the_kernel_told() {
    let Some(mounted) = mounted() else { return };
    let times = |number: u32| {
        let found = fs::metadata(mounted.path(&format!("f{number}"))).unwrap();
        (
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec(),
            found.len(),
        )
    };
    for number in 0..200_u32 {
        let mut file = open(&mounted.path(&format!("f{number}")));
        file.write_all(&content(u64::from(number), u64::from(number) * 100))
            .unwrap();
        if number % 3 == 0 {
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(1_000_000, number))
                .unwrap();
        }
        if number % 5 == 0 {
            // In this case, the kernel sent some content and then its times; more content arrives
            // later.
            file.sync_data().unwrap();
            file.write_all(b"more").unwrap();
        }
    }
    let told: Vec<_> = (0..200).map(times).collect();
    assert_eq!((told[3].0, told[3].1), (1_000_000, 3));
    mounted.umount();
    mounted.mount("ro");
    let found: Vec<_> = (0..200).map(times).collect();
    assert_eq!(found, told);
    mounted.umount();
    mounted.expect_sound();
}

/// A sync or close reports that an earlier write found no space.
#[test]
fn errors_come_when_a_file_is_synced() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::sized("128M");
    mounted.mount(OPTIONS);
    let file = open(&mounted.path("large"));
    let piece = content(5, MIB);
    for at in 0..200 {
        file.write_all_at(&piece, at * MIB).unwrap();
    }
    let synced = file.sync_all().map_err(|error| error.raw_os_error());
    assert_eq!(synced, Err(Some(Errno::NOSPC.raw_os_error())));
    drop(file);
    fs::remove_file(mounted.path("large")).unwrap();
    fs::write(mounted.path("small"), b"goes on").unwrap();
    mounted.umount();
    mounted.mount("ro");
    assert_eq!(fs::read(mounted.path("small")).unwrap(), b"goes on");
    mounted.umount();
    mounted.expect_sound();
}

/// A server that is asked to end receives the kernel's unsent content, even of open files.
#[test]
fn a_server_that_is_told_to_end_takes_what_is_kept_back() {
    let Some(mounted) = mounted() else { return };
    let written = content(6, 3 * MIB + 1);
    let file = open(&mounted.path("open"));
    file.write_all_at(&written, 0).unwrap();
    let server = rustix::process::Pid::from_raw(mounted.server()).unwrap();
    mounted.signal(rustix::process::Signal::TERM);
    while rustix::process::test_kill_process(server).is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(file);
    mounted.wait_until_gone();
    mounted.mount("ro");
    assert!(fs::read(mounted.path("open")).unwrap() == written);
    mounted.umount();
    mounted.expect_sound();
}
