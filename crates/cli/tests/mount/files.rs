//! Tests of `buttress mount` and `umount`: a mount behaves as a file system, keeps its content, and
//! leaves a sound volume however it ends.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use buttress_oracle::skip::skips;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom as Seek, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use crate::mounting;

use mounting::{Mounted, buttress, no_fuse, sound, text};

fn errno(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn names_come_and_go() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let path = |name: &str| mounted.path(name);
    fs::create_dir(path("d")).unwrap();
    fs::write(path("d/a"), b"content").unwrap();
    fs::hard_link(path("d/a"), path("b")).unwrap();
    assert_eq!(fs::metadata(path("b")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("d/a", path("s")).unwrap();
    assert_eq!(fs::read(path("s")).unwrap(), b"content");
    rustix::fs::mknodat(CWD, path("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    let device = rustix::fs::makedev(259, 0x1_2345);
    rustix::fs::mknodat(
        CWD,
        path("device"),
        rustix::fs::FileType::BlockDevice,
        Mode::RUSR,
        device,
    )
    .unwrap();
    assert_eq!(fs::metadata(path("device")).unwrap().rdev(), device);

    assert_eq!(
        errno(fs::remove_dir(path("d"))),
        Some(Errno::NOTEMPTY.raw_os_error())
    );
    assert_eq!(
        errno(File::create_new(path("b"))),
        Some(Errno::EXIST.raw_os_error())
    );
    let long = |length: usize| path(&"n".repeat(length));
    assert_eq!(
        errno(File::open(long(256))),
        Some(Errno::NAMETOOLONG.raw_os_error())
    );
    fs::write(long(255), b"").unwrap();

    let rename =
        |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags);
    assert_eq!(rename("b", "s", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("b", "s", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_link(path("b")).unwrap(), Path::new("d/a"));
    rename("d/a", "d/moved", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::metadata(path("d/a")).unwrap().rdev(), 0);
    fs::remove_file(path("d/a")).unwrap();

    // An unnamed file gets a name.
    let unnamed = OpenOptions::new()
        .write(true)
        .custom_flags(i32::try_from(OFlags::TMPFILE.bits()).unwrap())
        .open(&mounted.at)
        .unwrap();
    (&unnamed).write_all(b"unnamed").unwrap();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
    rustix::fs::linkat(CWD, own, CWD, path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(path("named")).unwrap(), b"unnamed");
    drop(unnamed);
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn unlinked_files_stay_while_they_are_open() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let mut open = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.path("gone"))
        .unwrap();
    open.write_all(b"still here").unwrap();
    fs::write(mounted.path("replaced"), b"older").unwrap();
    let replaced = File::open(mounted.path("replaced")).unwrap();
    fs::remove_file(mounted.path("gone")).unwrap();
    fs::write(mounted.path("new"), b"newer").unwrap();
    fs::rename(mounted.path("new"), mounted.path("replaced")).unwrap();
    assert_eq!(
        (
            open.metadata().unwrap().nlink(),
            replaced.metadata().unwrap().nlink()
        ),
        (0, 0)
    );
    let mut bytes = [0; 10];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"still here");
    open.set_len(5).unwrap();
    open.sync_all().unwrap();
    let mut older = String::new();
    (&replaced).read_to_string(&mut older).unwrap();
    assert_eq!(older, "older");
    drop((open, replaced));
    mounted.umount();
    mounted.expect_sound();
    let listed = sound(&["ls", mounted.image()]);
    assert_eq!(text(&listed.stdout), "replaced\n");
}

#[test]
fn content_holes_and_copies() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let open = |name: &str| {
        let path = mounted.path(name);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap()
    };
    let file = open("file");
    let content: Vec<u8> = (0..3 << 20)
        .map(|at: u32| (at / 7 % 251).to_le_bytes()[0])
        .collect();
    file.write_all_at(&content, 1 << 20).unwrap();
    // The file shows allocated space at once, although the device has nothing yet: otherwise tar
    // and cp would treat it as a hole.
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (4 << 20, (3 << 20) / 512));
    assert_eq!(rustix::fs::seek(&file, Seek::Data(0)), Ok(1 << 20));
    assert_eq!(rustix::fs::seek(&file, Seek::Hole(1 << 20)), Ok(4 << 20));
    assert_eq!(rustix::fs::seek(&file, Seek::Data(4 << 20)), Err(Errno::NXIO));
    rustix::fs::fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        2 << 20,
        1 << 20,
    )
    .unwrap();
    assert_eq!(rustix::fs::seek(&file, Seek::Hole(1 << 20)), Ok(2 << 20));
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(
        rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096),
        Err(Errno::OPNOTSUPP)
    );
    file.sync_all().unwrap();
    let copy = open("copy");
    let copied = rustix::fs::copy_file_range(&file, Some(&mut 0), &copy, Some(&mut 0), 4 << 20);
    assert_eq!(copied, Ok(4 << 20));
    copy.sync_all().unwrap();
    let read = |name: &str| fs::read(mounted.path(name)).unwrap();
    assert_eq!(read("copy"), read("file"));
    assert_eq!(read("copy")[1 << 20..2 << 20], content[..1 << 20]);
    let mut append = OpenOptions::new()
        .append(true)
        .open(mounted.path("copy"))
        .unwrap();
    append.write_all(b"end").unwrap();
    assert!(read("copy").ends_with(b"end"));
    drop((file, copy, append));
    let before = fs::read(mounted.path("copy")).unwrap();
    mounted.umount();
    mounted.expect_sound();
    // The copy shares extents as far as possible.
    let shared = sound(&["fiemap", "-v", &format!("{}:/copy", mounted.image())]);
    assert!(
        text(&shared.stdout).contains("shared"),
        "{}",
        text(&shared.stdout)
    );
    mounted.mount("ro");
    assert_eq!(fs::read(mounted.path("copy")).unwrap(), before);
    assert_eq!(
        errno(File::create(mounted.path("x"))),
        Some(Errno::ROFS.raw_os_error())
    );
    mounted.umount();
}

#[test]
fn attributes_times_and_rights() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), rustix::fs::StatxFlags::BTIME).unwrap();
    assert!(statx.stx_btime.tv_sec > 1_700_000_000, "a time of birth");
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: -5,
            tv_nsec: 7,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: 1 << 33,
            tv_nsec: 999_999_999,
        },
    };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.atime(), found.atime_nsec()), (-5, 7));
    assert_eq!((found.mtime(), found.mtime_nsec()), (1 << 33, 999_999_999));

    rustix::fs::setxattr(&path, "user.one", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(
        rustix::fs::setxattr(&path, "user.one", b"2", XattrFlags::CREATE),
        Err(Errno::EXIST)
    );
    assert_eq!(
        rustix::fs::setxattr(&path, "user.two", b"2", XattrFlags::REPLACE),
        Err(Errno::NODATA)
    );
    let mut space = [0_u8; 64];
    assert_eq!(rustix::fs::getxattr(&path, "user.one", &mut space[..]), Ok(1));
    assert_eq!(
        rustix::fs::getxattr(&path, "other.one", &mut space[..]),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(rustix::fs::removexattr(&path, "user.none"), Err(Errno::NODATA));

    // A write removes a file's capabilities, and a change of owner clears its set-id bits.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut open = OpenOptions::new().append(true).open(&path).unwrap();
    open.write_all(b"y").unwrap();
    rustix::fs::setxattr(&path, "security.capability", &capability, XattrFlags::empty()).unwrap();
    open.write_all(b"z").unwrap();
    let left = rustix::fs::getxattr(&path, "security.capability", &mut space[..]);
    assert_eq!(left, Err(Errno::NODATA));
    rustix::fs::chmod(&path, Mode::from_raw_mode(0o6755)).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
    drop(open);

    // The times of an append-only file can still be changed.
    let chattr = |flag: &str| Command::new("chattr").arg(flag).arg(&path).status().unwrap();
    assert!(chattr("+a").success());
    let now = rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let touched = rustix::fs::Timestamps {
        last_access: now,
        last_modification: now,
    };
    rustix::fs::utimensat(CWD, &path, &touched, AtFlags::empty()).unwrap();
    let refused = rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty());
    assert_eq!(refused, Err(Errno::PERM));
    assert_eq!(
        errno(OpenOptions::new().write(true).open(&path)),
        Some(Errno::PERM.raw_os_error())
    );
    assert!(OpenOptions::new().append(true).open(&path).is_ok());
    assert!(chattr("-a").success());
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn a_listing_goes_on_while_its_directory_changes() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let name = |number: u32| format!("file number {number} with a longer name");
    for number in 0..1000 {
        File::create(mounted.path(&name(number))).unwrap();
    }
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(&mounted.at).unwrap() {
        let entry = entry.unwrap();
        let is_new = seen.insert(entry.file_name());
        assert!(is_new, "{} is listed once", entry.file_name().display());
        // If an entry is renamed, it moves after all other entries, where the listing must not meet
        // it repeatedly.
        let renamed = mounted.path(&format!("new {}", seen.len()));
        fs::rename(entry.path(), renamed).unwrap();
    }
    assert_eq!(seen, (0..1000).map(|number| name(number).into()).collect());
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn a_killed_server_loses_nothing_that_was_synced() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    // The kernel closes the server's files in random order, so repeat the test.
    for round in 1..=5 {
        mounted.mount("rw");
        let mut file = File::create(mounted.path("synced")).unwrap();
        file.write_all(&vec![round; 100_000]).unwrap();
        file.sync_all().unwrap();
        drop(file);
        mounted.signal(rustix::process::Signal::KILL);
        mounted.wait_until_gone();
        mounted.mount("rw");
        assert_eq!(fs::read(mounted.path("synced")).unwrap(), vec![round; 100_000]);
        mounted.umount();
    }
    mounted.expect_sound();
}

#[test]
fn a_server_that_is_asked_to_end_commits() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    fs::write(mounted.path("written"), b"and not synced").unwrap();
    mounted.signal(rustix::process::Signal::TERM);
    mounted.wait_until_gone();
    // The server may still be in its last commit, and holds the image until that commit's end.
    while !buttress(&["mount", "-o", "rw", mounted.image(), mounted.directory()])
        .status
        .success()
    {}
    assert_eq!(fs::read(mounted.path("written")).unwrap(), b"and not synced");
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn a_plain_umount_can_be_followed_by_a_mount_at_once() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    for round in 0..5 {
        mounted.mount("rw");
        // A separate process writes. A program that another test starts inherits this process's
        // open files until its `exec`; they would keep the mount busy.
        let mut writes = Command::new("dd");
        writes.args(["if=/dev/zero", "bs=1M", "count=1", "status=none"]);
        writes.arg(format!("of={}", mounted.path(&round.to_string()).display()));
        assert!(writes.status().unwrap().success());
        rustix::mount::unmount(&mounted.at, rustix::mount::UnmountFlags::empty()).unwrap();
    }
    mounted.mount("ro");
    assert_eq!(fs::read_dir(&mounted.at).unwrap().count(), 5);
    mounted.umount();
}

#[test]
fn subvolumes_are_directories_with_numbers_of_their_own() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    sound(&["subvolume", "create", &format!("{}:/sub", mounted.image())]);
    mounted.mount("rw");
    fs::write(mounted.path("top"), b"t").unwrap();
    fs::write(mounted.path("sub/inside"), b"i").unwrap();
    let number = |name: &str| fs::metadata(mounted.path(name)).unwrap().ino();
    let numbers = BTreeSet::from([number("."), number("sub"), number("top"), number("sub/inside")]);
    assert_eq!(numbers.len(), 4, "{numbers:?}");
    let crossing = rustix::fs::linkat(
        CWD,
        mounted.path("top"),
        CWD,
        mounted.path("sub/top"),
        AtFlags::empty(),
    );
    assert_eq!(crossing, Err(Errno::XDEV));
    fs::rename(mounted.path("sub"), mounted.path("renamed")).unwrap();
    assert_eq!(fs::read(mounted.path("renamed/inside")).unwrap(), b"i");
    let full = fs::remove_dir(mounted.path("renamed"));
    assert_eq!(errno(full), Some(Errno::NOTEMPTY.raw_os_error()));
    fs::remove_file(mounted.path("renamed/inside")).unwrap();
    fs::remove_dir(mounted.path("renamed")).unwrap();
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn a_full_volume_says_so() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let mut file = File::create(mounted.path("large")).unwrap();
    let piece = vec![1; 1 << 20];
    let full = loop {
        if let Err(error) = file.write_all(&piece) {
            break error;
        }
    };
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    drop(file);
    fs::remove_file(mounted.path("large")).unwrap();
    mounted.umount();
    mounted.expect_sound();
}

/// The kernel releases a removed file after the removing call has returned.
#[test]
fn space_of_removed_files_is_there_for_the_next() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    // Two files of this size exceed the volume's space.
    let most = 220 << 20;
    for turn in 0..3 {
        let path = mounted.path("large");
        let file = File::create_new(&path).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, most)
            .unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        drop(file);
        fs::remove_file(&path).unwrap();
        let mut file = File::create_new(&path).unwrap();
        for _ in 0..most >> 20 {
            file.write_all(&vec![1; 1 << 20])
                .unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        }
        drop(file);
        fs::remove_file(&path).unwrap();
    }
    mounted.umount();
    mounted.expect_sound();
}

/// Allocates all free space to a new file.
fn fill_up(path: &Path) -> File {
    let file = File::create_new(path).unwrap();
    let (mut end, mut piece) = (0_u64, 64_u64 << 20);
    while piece >= 4096 {
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), end, piece) {
            Ok(()) => end += piece,
            Err(_) => piece /= 2,
        }
    }
    file
}

/// The freed space must also be available to copied data that cannot be shared.
#[test]
fn space_of_removed_files_is_there_for_copies() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    fs::write(mounted.path("source"), vec![7; 8 << 20]).unwrap();
    let source = File::open(mounted.path("source")).unwrap();
    for turn in 0..8 {
        let target = File::create(mounted.path("target")).unwrap();
        drop(fill_up(&mounted.path("large")));
        fs::remove_file(mounted.path("large")).unwrap();
        // An unaligned source offset makes the copy allocate space.
        let copied = rustix::fs::copy_file_range(&source, Some(&mut 1), &target, Some(&mut 0), 4 << 20)
            .unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        assert_eq!(copied, 4 << 20, "turn {turn}");
        drop(target);
        fs::remove_file(mounted.path("target")).unwrap();
    }
    drop(source);
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn a_log_is_not_written_into_the_image() {
    if skips(no_fuse()) {
        return;
    }
    let volume = Mounted::new();
    let before = fs::read(&volume.image).unwrap();
    let image = volume.image();
    for options in ["ro", "rw"] {
        let refused = buttress(&["mount", "--log", image, "-o", options, image, volume.directory()]);
        assert!(!refused.status.success(), "{options}");
        assert!(
            text(&refused.stderr).contains("volume.img"),
            "{}",
            text(&refused.stderr)
        );
    }
    assert!(fs::read(&volume.image).unwrap() == before, "the image changed");
}

/// The kernel caches attributes, so the server notifies it of changes by calls that are no
/// attribute calls.
#[test]
fn attributes_changed_by_commands_and_direct_writes_are_current() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw,allow_other");
    fs::set_permissions(
        mounted.at.parent().unwrap(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let file = File::create_new(mounted.path("file")).unwrap();
    let before = file.metadata().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let flags = rustix::fs::ioctl_getflags(&file).unwrap();
    rustix::fs::ioctl_setflags(&file, flags | rustix::fs::IFlags::NODUMP).unwrap();
    let after = file.metadata().unwrap();
    assert_ne!(
        (before.ctime(), before.ctime_nsec()),
        (after.ctime(), after.ctime_nsec())
    );

    let nobody = 65_534;
    std::os::unix::fs::chown(mounted.path("file"), Some(nobody), Some(nobody)).unwrap();
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o6777)).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o6777);
    let path = mounted.path("file");
    let written = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(nobody)).unwrap();
        let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
        let open = OpenOptions::new().write(true).custom_flags(direct).open(path)?;
        let buffer = vec![7_u8; 8192];
        let start = buffer.as_ptr().align_offset(4096);
        open.write_at(&buffer[start..start + 4096], 0)
    });
    assert_eq!(written.join().unwrap().unwrap(), 4096);
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o777);

    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o6777)).unwrap();
    let path = mounted.path("file");
    let allocated = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(nobody)).unwrap();
        let open = OpenOptions::new().write(true).open(path).unwrap();
        rustix::fs::fallocate(&open, FallocateFlags::empty(), 0, 20_000)
    });
    allocated.join().unwrap().unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o777);
    drop(file);
    mounted.umount();
    mounted.expect_sound();
}

/// Returns whether a call succeeds without the server, which is stopped during the call. `waiting`
/// counts the requests in flight.
fn needs_no_server(mounted: &Mounted, waiting: &Path, call: impl FnOnce() + Send) -> bool {
    let count = || {
        fs::read_to_string(waiting)
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    // Wait until the server has finished the work of earlier calls.
    while count() > 0 {
        std::thread::yield_now();
    }
    mounted.signal(rustix::process::Signal::STOP);
    std::thread::scope(|scope| {
        let called = scope.spawn(call);
        let needs_none = loop {
            if called.is_finished() {
                break true;
            }
            if count() > 0 {
                break false;
            }
            std::thread::yield_now();
        };
        mounted.signal(rustix::process::Signal::CONT);
        needs_none
    })
}

/// After its write-back, the kernel may cache a file's attributes for long, however new it is.
/// Closing a file sends no request.
#[test]
fn attributes_are_cached_after_the_write_back() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let connections = tempfile::tempdir().unwrap();
    let mount = rustix::mount::mount(
        "none",
        connections.path(),
        "fusectl",
        rustix::mount::MountFlags::empty(),
        None,
    );
    mount.unwrap();
    let number = rustix::fs::minor(fs::metadata(&mounted.at).unwrap().dev());
    let waiting = connections.path().join(number.to_string()).join("waiting");
    let path = mounted.path("file");
    fs::write(&path, vec![1; 100_000]).unwrap();
    sound(&["filesystem", "sync", mounted.directory()]);
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 200);
    let short = std::time::Duration::from_millis(1200);
    std::thread::sleep(short);
    assert!(needs_no_server(&mounted, &waiting, || {
        assert_eq!(fs::metadata(&path).unwrap().blocks(), 200);
    }));
    // The allocated space of a file with dirty data may change soon. While the file is open, an
    // idle mount does not commit.
    let held = File::options().write(true).open(&path).unwrap();
    fs::write(&path, vec![2; 50_000]).unwrap();
    let written = std::time::Instant::now();
    fs::metadata(&path).unwrap();
    std::thread::sleep(short);
    let asks = !needs_no_server(&mounted, &waiting, || {
        fs::metadata(&path).unwrap();
    });
    let blocks = fs::metadata(&path).unwrap().blocks();
    assert!(asks, "{:?} after the write, {blocks} blocks", written.elapsed());

    // The kernel learns that FLUSH is unsupported with the first closed file.
    drop(File::open(&path).unwrap());
    let file = File::open(&path).unwrap();
    let other = file.try_clone().unwrap();
    assert!(needs_no_server(&mounted, &waiting, || drop(other)));
    drop((file, held));
    rustix::mount::unmount(connections.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    mounted.umount();
    mounted.expect_sound();
}
