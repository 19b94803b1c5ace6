//! Random calls, and their execution on one side.

use super::SECTOR;
use buttress_oracle::content::Random;
use buttress_oracle::ioctls;
use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) const DIRECTORIES: [&str; 3] = [".", "d0", "d1"];
pub(crate) const FILES: [&str; 3] = ["f0", "f1", "f2"];
pub(crate) const LINKS: [&str; 2] = ["s0", "s1"];

/// A call with all of its random arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub(crate) what: &'static str,
    pub(crate) path: String,
    pub(crate) other: String,
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) times: [Option<Timespec>; 2],
}

const CALL_KINDS: [&str; 43] = [
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
    "direct read",
    "direct read",
    "mapped write",
    "mapped write",
    "allocate",
    "allocate",
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

/// Returns the calls that begin each history, so that most later calls find their files.
pub(crate) fn first_calls() -> Vec<Call> {
    let call = |what, path: &str| Call {
        what,
        path: path.to_owned(),
        at: 3000,
        length: 15_000,
        ..Call::default()
    };
    vec![
        call("mkdir", "d0"),
        call("mkdir", "d1"),
        call("symlink", "./s0"),
        call("create", "./f0"),
        call("create", "./f1"),
        call("create", "d0/f0"),
        call("create", "d1/f2"),
        call("write", "./f0"),
        call("write", "d1/f2"),
    ]
}

pub(crate) fn choose(random: &mut Random) -> Call {
    let kinds = u64::try_from(CALL_KINDS.len()).unwrap();
    let what = CALL_KINDS[usize::try_from(random.below(kinds)).unwrap()];
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

pub(crate) fn open(path: &Path, flags: OFlags) -> Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o640)).map(File::from)
}

fn io<T>(result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| Errno::from_io_error(&error).unwrap())
}

/// Opens a file whose next read comes from the file system: the page cache has none of it, and
/// unsent content is synced first.
fn open_to_read(path: &Path, flags: OFlags, syncs: bool) -> Result<File> {
    let file = open(path, OFlags::RDWR | flags)?;
    if syncs {
        rustix::fs::fdatasync(&file)?;
    }
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(file)
}

/// Calls a function with a sector-aligned buffer for direct I/O.
fn with_aligned<T>(call: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut memory = vec![b'd'; 2 * SECTOR];
    let start = memory.as_ptr().align_offset(SECTOR);
    call(&mut memory[start..start + SECTOR])
}

/// Reads or writes the first byte by a memory map. Before the unmap, the written data may be synced
/// and the file's times may be set.
#[allow(unsafe_code, reason = "mmap(2) has no safe form")]
fn by_map(file: &File, writes: Option<&Call>) -> Result<()> {
    let kinds = match writes {
        Some(_) => ProtFlags::READ | ProtFlags::WRITE,
        None => ProtFlags::READ,
    };
    // SAFETY: the map is used for one byte of a file that no other process changes, and is unmapped
    // before the return.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), SECTOR, kinds, MapFlags::SHARED, file, 0)?;
        let byte = at.cast::<u8>();
        if let Some(call) = writes {
            byte.write_volatile(b'm');
            if call.at & 1 != 0 {
                rustix::mm::msync(at, SECTOR, MsyncFlags::SYNC)?;
            }
            if call.at & 2 == 0 {
                set_times_of(file, call)?;
            }
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

fn set_times_of(file: &File, call: &Call) -> Result<()> {
    let omitted = special(rustix::fs::UTIME_OMIT);
    let [accessed, modified] = call.times.map(|time| time.unwrap_or(omitted));
    let times = Timestamps {
        last_access: accessed,
        last_modification: modified,
    };
    rustix::fs::futimens(file, &times)
}

const fn special(tv_nsec: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec }
}

/// Returns the fallocate(2) flags of an `allocate` call.
pub(crate) fn allocate_flags(call: &Call) -> FallocateFlags {
    let flags = [
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::ZERO_RANGE,
        FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    ];
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let index = usize::try_from(call.at & 7).unwrap();
    flags.get(index).copied().unwrap_or(punch)
}

/// Returns whether a file has an extent in a range.
pub(crate) fn has_extent(file: &File, start: u64, length: u64) -> Result<bool> {
    const FIEMAP: u32 = 0xc020_660b;
    let mut data = [0; 4096];
    data[..8].copy_from_slice(&start.to_ne_bytes());
    data[8..16].copy_from_slice(&length.to_ne_bytes());
    // If the array has no space for extents, the kernel only counts them.
    ioctls::numbered(file, FIEMAP, &mut data)?;
    Ok(data[20..24] != [0; 4])
}

/// Copies whole sectors, which both sides share, or parts of sectors, which neither side can share.
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
    let is_direct = call.what == "direct read";
    // Linux serves a direct read of dirty content from its page cache, depending on whether its
    // write-back is complete.
    let syncs = kept_back || is_direct || call.at & 2 != 0;
    let file = open_to_read(&path, OFlags::empty(), syncs)?;
    // At the end of a file the kernel sends no request.
    if io(file.metadata())?.len() == 0 {
        return Ok(());
    }
    if call.what == "mapped read" {
        return by_map(&file, None);
    }
    if is_direct {
        let file = open(&path, OFlags::RDONLY | OFlags::DIRECT)?;
        // In this call, the whole request is aligned to sectors, or only its buffer is.
        let length = if call.at & 1 == 0 { SECTOR } else { 100 };
        let at = if call.at & 4 == 0 { 0 } else { call.at & !4095 };
        return with_aligned(|sector| io(file.read_at(&mut sector[..length], at)).map(drop));
    }
    io(file.read_at(&mut [0; 10], 0)).map(drop)
}

fn write(root: &Path, call: &Call, kept_back: bool) -> Result<()> {
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
            let file = open_to_read(&path, OFlags::empty(), kept_back)?;
            match io(file.metadata())?.len() {
                0 => Ok(()),
                _ => by_map(&file, Some(call)),
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

/// Truncates a file by its path.
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
        // The kernel has cached the link's target, and refuses the call.
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

/// Makes a call on one side; returns the result that must agree.
pub(crate) fn make(root: &Path, call: &Call, kept_back: bool) -> Result<String> {
    let path = root.join(&call.path);
    match call.what {
        "write" | "append" | "direct write" | "mapped write" => write(root, call, kept_back)?,
        "read" | "direct read" | "mapped read" => read(root, call, kept_back)?,
        "list" => drop(io(fs::read_dir(&path))?.count()),
        "read link" => drop(io(fs::read_link(&path))?),
        "allocate" => {
            let file = open(&path, OFlags::RDWR)?;
            rustix::fs::fallocate(&file, allocate_flags(call), call.at, call.length)?;
        }
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
