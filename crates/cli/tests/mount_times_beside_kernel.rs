//! The same random histories on a mount of ours and on the kernel's btrfs: after each call the same files have the same times.
//!
//! A time is compared by the call that set it, or by its value where a call gave one. Between two calls the clock moves on by more than a
//! tick, so both sides agree in which times each call changed, in their order, and in which are equal.
//!
//! Left out, because a FUSE server cannot do it ([docs/mount.md], "Times"): reads that the kernel answers from its caches, and those at the
//! end of a file. Left out as differences that are known and open (same place): direct reads, writes to maps, holes that are punched.
//!
//! `BUTTRESS_MOUNT_SEED` and `BUTTRESS_TIMES_HISTORIES` say with which seed the first history begins, and how many there are.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

mod mounting;

use buttress_oracle::content::Random;
use buttress_oracle::ioctls;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use mounting::{Mounted, no_fuse};
use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, StatxFlags, Timespec,
    Timestamps, XattrFlags,
};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

const HISTORIES: u64 = 24;
const CALLS: u64 = 40;
/// More than a tick of any kernel's clock.
const TICK: Duration = Duration::from_millis(11);
const SECTOR: usize = 4096;

/// How both are mounted.
const MOUNTS: [(&str, &str); 6] = [
    ("rw", ""),
    ("rw,writeback_cache", "relatime"),
    ("rw,strictatime", "strictatime"),
    ("rw,noatime", "noatime"),
    ("rw,nodiratime", "nodiratime"),
    ("rw,lazytime", "lazytime"),
];

const DIRECTORIES: [&str; 3] = [".", "d0", "d1"];
const FILES: [&str; 3] = ["f0", "f1", "f2"];
const LINKS: [&str; 2] = ["s0", "s1"];

/// A call, with all that was chosen for it.
#[derive(Clone, Debug)]
struct Call {
    what: &'static str,
    path: String,
    other: String,
    at: u64,
    length: u64,
    times: [Option<Timespec>; 2],
}

const CALL_KINDS: [&str; 37] = [
    "create",
    "create",
    "write",
    "write",
    "write",
    "append",
    "direct write",
    "write",
    "read",
    "read",
    "read",
    "read",
    "mapped read",
    "list",
    "read link",
    "symlink",
    "mkdir",
    "rmdir",
    "link",
    "unlink",
    "rename",
    "exchange",
    "utimens",
    "utimens",
    "touch",
    "truncate",
    "ftruncate",
    "open to truncate",
    "chmod",
    "chown",
    "chown nobody",
    "xattr",
    "no xattr",
    "copy",
    "copy",
    "fsync",
    "flags",
];

fn choose(random: &mut Random) -> Call {
    let what = CALL_KINDS[usize::try_from(random.below(37)).unwrap()];
    let one = |random: &mut Random, of: &[&str]| {
        of[usize::try_from(random.below(u64::try_from(of.len()).unwrap())).unwrap()].to_owned()
    };
    let path = |random: &mut Random| {
        let directory = one(random, &DIRECTORIES);
        let is_any = matches!(
            what,
            "utimens"
                | "touch"
                | "chown"
                | "chown nobody"
                | "rename"
                | "link"
                | "xattr"
                | "no xattr"
                | "fsync"
        );
        match what {
            "mkdir" | "rmdir" => one(random, &DIRECTORIES[1..]),
            "list" => directory,
            "read link" | "symlink" => format!("{directory}/{}", one(random, &LINKS)),
            _ if is_any && random.one_in(4) => format!("{directory}/{}", one(random, &LINKS)),
            _ if is_any && random.one_in(4) => directory,
            _ => format!("{directory}/{}", one(random, &FILES)),
        }
    };
    let time = |random: &mut Random| {
        let seconds = i64::try_from(random.below(1_500_000_000)).unwrap() - 200_000_000;
        let far = if random.one_in(4) { 4_000_000_000 } else { 0 };
        let given = Timespec {
            tv_sec: seconds + far,
            tv_nsec: i64::try_from(random.below(1_000_000_000)).unwrap(),
        };
        (!random.one_in(3)).then_some(given)
    };
    let directory = one(random, &DIRECTORIES);
    Call {
        what,
        path: path(random),
        other: format!("{directory}/{}", one(random, &FILES)),
        at: random.below(20_000),
        length: 1 + random.below(20_000),
        times: [time(random), time(random)],
    }
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o640)).map(File::from)
}

fn io<T>(result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| Errno::from_io_error(&error).unwrap())
}

/// A file whose next read comes from the file system: the page cache has nothing of it. What the kernel keeps back has to go first.
fn open_to_read(path: &Path, flags: OFlags, syncs: bool) -> Result<File> {
    let file = open(path, OFlags::RDWR | flags)?;
    if syncs {
        rustix::fs::fdatasync(&file)?;
    }
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(file)
}

/// A sector whose place in memory direct calls take.
fn with_aligned<T>(call: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut memory = vec![b'd'; 2 * SECTOR];
    let start = memory.as_ptr().align_offset(SECTOR);
    call(&mut memory[start..start + SECTOR])
}

/// Reads or writes the first byte by a map.
#[allow(unsafe_code, reason = "mmap(2) has no safe form")]
fn by_map(file: &File, writes: bool) -> Result<()> {
    let kinds = if writes {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::READ
    };
    // SAFETY: the map is used for one byte of a file that nobody else changes, and goes before this returns.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), SECTOR, kinds, MapFlags::SHARED, file, 0)?;
        let byte = at.cast::<u8>();
        if writes {
            byte.write_volatile(b'm');
            rustix::mm::msync(at, SECTOR, MsyncFlags::SYNC)?;
        } else {
            byte.read_volatile();
        }
        rustix::mm::munmap(at, SECTOR)
    }
}

fn utimens(path: &Path, times: [Timespec; 2]) -> Result<()> {
    let times = Timestamps {
        last_access: times[0],
        last_modification: times[1],
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

const fn special(tv_nsec: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec }
}

fn allocate(file: &File, call: &Call) -> Result<()> {
    let flags = [
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocateFlags::ZERO_RANGE,
    ];
    let flag = flags[usize::try_from(call.at & 3).unwrap()];
    rustix::fs::fallocate(file, flag, call.at, call.length)
}

/// Copies within whole sectors, which both share, or where neither can.
fn copy(source: &File, target: &File, call: &Call) -> Result<String> {
    let aligned = call.at & !4095;
    let (mut from, mut to, length) = match call.at & 1 {
        0 => (aligned, aligned, call.length & !4095),
        _ => (aligned + 100, aligned + 4196, call.length),
    };
    if from + length > io(source.metadata())?.len() {
        return Err(Errno::INVAL);
    }
    let length = usize::try_from(length).unwrap();
    let copied = rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), length)?;
    Ok(format!("copied {copied}"))
}

fn read(root: &Path, call: &Call, kept_back: bool) -> Result<()> {
    let path = root.join(&call.path);
    let syncs = kept_back || call.at & 2 != 0;
    let is_direct = call.what == "direct read";
    let file = open_to_read(&path, OFlags::empty(), syncs)?;
    // At the end of a file the kernel does not ask.
    if io(file.metadata())?.len() == 0 {
        return Ok(());
    }
    if call.what == "mapped read" {
        return by_map(&file, false);
    }
    if is_direct {
        let file = open(&path, OFlags::RDONLY | OFlags::DIRECT)?;
        return with_aligned(|sector| io(file.read_at(sector, 0)).map(drop));
    }
    io(file.read_at(&mut [0; 10], 0)).map(drop)
}

fn write(root: &Path, call: &Call) -> Result<()> {
    let path = root.join(&call.path);
    let bytes = vec![b'w'; usize::try_from(call.length).unwrap()];
    match call.what {
        "write" => io(open(&path, OFlags::WRONLY)?.write_all_at(&bytes, call.at)),
        "append" => io(std::io::Write::write_all(
            &mut open(&path, OFlags::WRONLY | OFlags::APPEND)?,
            &bytes,
        )),
        "direct write" => {
            let file = open(&path, OFlags::WRONLY | OFlags::DIRECT)?;
            with_aligned(|sector| io(file.write_all_at(sector, call.at & !4095)))
        }
        _ => {
            let file = open(&path, OFlags::RDWR)?;
            match io(file.metadata())?.len() {
                0 => Ok(()),
                _ => by_map(&file, true),
            }
        }
    }
}

fn change_name(root: &Path, call: &Call) -> Result<()> {
    let (path, other) = (root.join(&call.path), root.join(&call.other));
    match call.what {
        "create" => open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).map(drop),
        "symlink" => rustix::fs::symlink("f0", &path),
        "mkdir" => io(fs::create_dir(&path)),
        "rmdir" => io(fs::remove_dir(&path)),
        "link" => rustix::fs::link(&path, &other),
        "unlink" => rustix::fs::unlink(&path),
        "rename" => rustix::fs::rename(&path, &other),
        _ => rustix::fs::renameat_with(CWD, &path, CWD, &other, RenameFlags::EXCHANGE),
    }
}

/// Gives a file another size by its path.
#[allow(unsafe_code, reason = "no crate at hand has truncate(2)")]
fn truncate(path: &Path, size: u64) -> Result<()> {
    unsafe extern "C" {
        fn truncate(path: *const std::ffi::c_char, size: i64) -> i32;
    }
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte, and lives until the call returns.
    match unsafe { truncate(path.as_ptr(), i64::try_from(size).unwrap()) } {
        0 => Ok(()),
        _ => io(Err(std::io::Error::last_os_error())),
    }
}

fn change_attributes(root: &Path, call: &Call) -> Result<()> {
    let path = root.join(&call.path);
    let number = u32::try_from(call.at).unwrap();
    let follows = matches!(call.what, "truncate" | "chmod");
    if follows && io(fs::symlink_metadata(&path))?.is_symlink() {
        // The kernel has the target in a cache.
        return Err(Errno::LOOP);
    }
    match call.what {
        "utimens" => {
            let omitted = special(rustix::fs::UTIME_OMIT);
            utimens(&path, call.times.map(|time| time.unwrap_or(omitted)))
        }
        "touch" => {
            let now = special(rustix::fs::UTIME_NOW);
            let omitted = special(rustix::fs::UTIME_OMIT);
            utimens(&path, [now, if number & 1 == 0 { now } else { omitted }])
        }
        "truncate" => {
            let size = io(fs::metadata(&path))?.len();
            let size = if number & 1 == 0 { size.max(1) } else { call.at };
            truncate(&path, size)
        }
        "ftruncate" => rustix::fs::ftruncate(open(&path, OFlags::WRONLY)?, call.at),
        "open to truncate" => open(&path, OFlags::WRONLY | OFlags::TRUNC).map(drop),
        "chmod" => rustix::fs::chmodat(
            CWD,
            &path,
            Mode::from_raw_mode(0o600 | number & 0o77),
            AtFlags::empty(),
        ),
        "chown" => {
            let (user, group) = (
                rustix::fs::Uid::from_raw(number & 3),
                rustix::fs::Gid::from_raw(0),
            );
            rustix::fs::chownat(CWD, &path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
        }
        "chown nobody" => rustix::fs::chownat(CWD, &path, None, None, AtFlags::SYMLINK_NOFOLLOW),
        "xattr" => rustix::fs::lsetxattr(&path, "trusted.x", &number.to_ne_bytes(), XattrFlags::empty()),
        "no xattr" => rustix::fs::lremovexattr(&path, "trusted.x"),
        _ => {
            let flags = if number & 1 == 0 {
                IFlags::NOATIME
            } else {
                IFlags::empty()
            };
            rustix::fs::ioctl_setflags(open(&path, OFlags::RDONLY)?, flags)
        }
    }
}

/// Makes a call on one side; gives what is to be the same on the other.
fn make(root: &Path, call: &Call, kept_back: bool) -> Result<String> {
    let path = root.join(&call.path);
    match call.what {
        "write" | "append" | "direct write" | "mapped write" => write(root, call)?,
        "read" | "direct read" | "mapped read" => read(root, call, kept_back)?,
        "list" => drop(io(fs::read_dir(&path))?.count()),
        "read link" => drop(io(fs::read_link(&path))?),
        "allocate" => allocate(&open(&path, OFlags::RDWR)?, call)?,
        "copy" => {
            let source = open_to_read(&path, OFlags::empty(), kept_back)?;
            return copy(&source, &open(&root.join(&call.other), OFlags::RDWR)?, call);
        }
        "fsync" => rustix::fs::fsync(open(&path, OFlags::RDONLY)?)?,
        "create" | "symlink" | "mkdir" | "rmdir" | "link" | "unlink" | "rename" | "exchange" => {
            change_name(root, call)?;
        }
        _ => change_attributes(root, call)?,
    }
    Ok(String::new())
}

/// When a time was set: by which call, or where a call gave it, what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Call(usize),
    Given(i64, u32),
}

/// The moments at which calls began.
struct Moments(Vec<Duration>);

impl Moments {
    /// A call begins. A clock that is a tick late shows this moment or a later one.
    fn begin_call(&mut self) {
        std::thread::sleep(TICK);
        self.0
            .push(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap());
        std::thread::sleep(TICK);
    }

    fn when(&self, seconds: i64, nanoseconds: u32) -> When {
        const HOUR: u64 = 3600;
        let given = When::Given(seconds, nanoseconds);
        let Ok(whole) = u64::try_from(seconds) else {
            return given;
        };
        let time = Duration::new(whole, nanoseconds);
        if time < self.0[0] || whole > self.0[0].as_secs() + HOUR {
            return given;
        }
        When::Call(self.0.partition_point(|moment| *moment <= time) - 1)
    }
}

type Seen = BTreeMap<String, [When; 4]>;

/// The times of all that there may be.
fn seen(root: &Path, moments: &Moments) -> Seen {
    let mut all = Seen::new();
    for directory in DIRECTORIES {
        for name in FILES.iter().chain(&LINKS).chain(&["."]) {
            let path = format!("{directory}/{name}");
            let found = rustix::fs::statx(
                CWD,
                root.join(&path),
                AtFlags::SYMLINK_NOFOLLOW,
                StatxFlags::BASIC_STATS | StatxFlags::BTIME,
            );
            let Ok(found) = found else { continue };
            let times = [found.stx_atime, found.stx_mtime, found.stx_ctime, found.stx_btime];
            all.insert(path, times.map(|time| moments.when(time.tv_sec, time.tv_nsec)));
        }
    }
    all
}

/// Both sides of a comparison.
struct Sides<'a> {
    roots: [&'a Path; 2],
    kept_back: bool,
    moments: Moments,
    /// What the kernel has in caches that answer for us.
    cached: BTreeSet<String>,
    /// How many calls changed something.
    changes: usize,
}

impl Sides<'_> {
    fn compare(&self, below: &str, context: &str) -> Seen {
        let [ours, theirs] = self.roots.map(|root| seen(&root.join(below), &self.moments));
        assert_eq!(ours, theirs, "{context}: access, modification, change, birth");
        ours
    }

    /// Whether a call's access may be answered by what the kernel has: then the call is left out.
    fn is_answered_by_caches(&mut self, call: &Call) -> bool {
        match call.what {
            "list" | "read link" => !self.cached.insert(call.path.clone()),
            "flags" => self.kept_back,
            _ => false,
        }
    }

    fn history(&mut self, seed: u64) {
        let name = format!("history{seed}");
        self.moments.begin_call();
        for root in self.roots {
            let directory = open(root, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
            ioctls::create_subvolume(&directory, name.as_bytes()).unwrap();
        }
        self.cached.clear();
        let mut random = Random::new(seed);
        let mut before = self.compare(&name, "an empty subvolume");
        for number in 0..CALLS {
            let call = choose(&mut random);
            if self.is_answered_by_caches(&call) {
                continue;
            }
            self.moments.begin_call();
            let kept_back = self.kept_back;
            let [ours, theirs] = self.roots.map(|root| make(&root.join(&name), &call, kept_back));
            let context = format!("seed {seed}, call {number}, {call:?}, before it {before:?}");
            assert_eq!(ours, theirs, "{context}");
            let after = self.compare(&name, &context);
            self.changes += usize::from(after != before);
            before = after;
        }
        self.snapshot(&name, &before);
    }

    /// A snapshot has the times of its source, whatever of it was not written back.
    fn snapshot(&mut self, name: &str, expected: &Seen) {
        self.moments.begin_call();
        let copy = format!("{name}-snapshot");
        for root in self.roots {
            let source = open(&root.join(name), OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
            let directory = open(root, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
            ioctls::snapshot(&source, &directory, copy.as_bytes(), true).unwrap();
        }
        let found = self.compare(&copy, &copy);
        assert_eq!(&found, expected, "{copy}");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn times_change_as_on_the_kernels_mount() {
    if skips(no_fuse()) || skips(kernel_missing()) {
        return;
    }
    let first = number("BUTTRESS_MOUNT_SEED", 1);
    let count = number("BUTTRESS_TIMES_HISTORIES", HISTORIES);
    let (mut changes, mut done) = (0, 0);
    for (group, (our_options, their_options)) in (0_u64..).zip(MOUNTS) {
        let seeds = (first..first + count).filter(|seed| seed % 6 == group);
        let (ours, theirs) = (Mounted::new(), Mounted::new());
        ours.mount(our_options);
        let kernel = Mount::new(std::slice::from_ref(&theirs.image), their_options).unwrap();
        let mut sides = Sides {
            roots: [ours.at.as_path(), kernel.path()],
            kept_back: our_options.contains("writeback_cache"),
            moments: Moments(Vec::new()),
            cached: BTreeSet::new(),
            changes: 0,
        };
        let names: Vec<_> = seeds
            .inspect(|seed| sides.history(*seed))
            .map(|seed| format!("history{seed}"))
            .collect();
        let shown: Vec<_> = names.iter().map(|name| sides.compare(name, name)).collect();
        let (moments, counted) = (sides.moments, sides.changes);
        kernel.close().unwrap();
        ours.umount();
        ours.expect_sound();
        // What is on the image is what was seen.
        ours.mount("ro");
        for (name, shown) in names.iter().zip(&shown) {
            assert_eq!(&seen(&ours.path(name), &moments), shown, "{name}, mounted again");
        }
        ours.umount();
        changes += counted;
        done += names.len();
    }
    println!("{done} histories, {changes} calls that changed times");
    assert!(changes >= done * 3, "{changes} changes in {done} histories");
}
