//! Makes random calls, chosen by a seed, on a mount of this program and on the kernel's btrfs. Both
//! sides must give the same results, errno by errno, and the same files at the end. The calls use
//! few names, so that they meet the files of earlier calls: most errors about names and kinds of
//! files occur.
//!
//! Eight threads make calls concurrently. Each thread has its own directory, and all threads share
//! one more. Calls in the shared directory are serialised, in the same order on both sides. No
//! inode has names in both directories.
//!
//! `BUTTRESS_MOUNT_SEED` sets the seed, and `BUTTRESS_MOUNT_CALLS` the number of calls per thread.
//!
//! Two differences are allowed. The kernel's btrfs aborts its transaction when a placeholder of a
//! nested subvolume is exchanged, so the test exchanges no placeholder. In a read-only subvolume
//! the kernel's FUSE compares kinds of files before it asks the server, which would return EROFS.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

mod full;
use crate::mounting;
mod placeholders;

use buttress_oracle::content::Random;
use buttress_oracle::ioctls;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::seeds::{number, seeds};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use mounting::{Mounted, no_fuse};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Result;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const CALLS: usize = 1200;
/// Seeds of earlier differences, and the seed of the first version. The earlier differences were in
/// calls on placeholders, or in read-only subvolumes.
const SEEDS: [u64; 4] = [16, 1, 3, 8];
const THREADS: u64 = 8;
const SHARED: &str = "shared";
const DIRECTORIES: u64 = 2;
const NAMES: u64 = 4;

/// A call with all of its random arguments.
#[derive(Clone, Debug)]
struct Call {
    what: u64,
    from: PathBuf,
    to: PathBuf,
    number: u64,
    length: u64,
}

impl Call {
    fn is_shared(&self) -> bool {
        self.from.starts_with(SHARED) || self.to.starts_with(SHARED)
    }
}

/// Number of the copy call, the only one from a thread's own directory to the shared one.
const COPY: u64 = 25;

fn choose(random: &mut Random, own: &str) -> Call {
    let path = |random: &mut Random, base: &str| {
        let mut path = PathBuf::from(base);
        // Prefer paths near the top, where most files are.
        for _ in 0..random.below(6).saturating_sub(3) {
            path.push(format!("d{}", random.below(DIRECTORIES)));
        }
        match random.below(8) {
            0 => path.join("d0"),
            1 => path.join(format!("d{}", random.below(DIRECTORIES))),
            _ => path.join(format!("n{}", random.below(NAMES))),
        }
    };
    let base = |random: &mut Random| if random.one_in(4) { SHARED } else { own };
    let what = random.below(32);
    let from = base(random);
    let to = if what == COPY { base(random) } else { from };
    Call {
        what,
        from: path(random, from),
        to: path(random, to),
        number: random.below(1 << 18),
        length: 1 + random.below(100_000),
    }
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    rustix::fs::open(
        path,
        flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        Mode::from_raw_mode(0o640),
    )
    .map(File::from)
}

fn io<T>(result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap())
}

fn subvolume(path: &Path, make: impl FnOnce(&File, &[u8]) -> Result<()>) -> Result<()> {
    let directory = open(path.parent().unwrap(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    make(&directory, path.file_name().unwrap().as_bytes())
}

/// Returns whether the path is a placeholder for a nested subvolume in a snapshot.
fn is_placeholder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.ino() == 2 && found.is_dir())
}

/// Returns the properties of a file that must agree.
fn seen(path: &Path) -> Result<String> {
    let found = io(fs::symlink_metadata(path))?;
    // The sizes of directories must agree, too. This comparison ignores times.
    let kind = if is_placeholder(path) {
        "placeholder"
    } else {
        "file"
    };
    Ok(format!(
        "{kind} {:o} {} {} {}:{} {}",
        found.mode(),
        found.nlink(),
        found.size(),
        found.uid(),
        found.gid(),
        found.rdev()
    ))
}

fn content(path: &Path) -> Result<String> {
    let file = open(path, OFlags::RDONLY)?;
    let mut bytes = Vec::new();
    io(std::io::Read::read_to_end(&mut &file, &mut bytes))?;
    let sum = bytes.iter().fold(7_u64, |sum, byte| {
        sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte)
    });
    Ok(format!("{} bytes, {sum:x}", bytes.len()))
}

/// Makes the call; returns the result that must agree.
#[allow(clippy::too_many_lines, reason = "one arm for each call")]
fn call(root: &Path, call: &Call) -> Result<String> {
    let (from, to) = (root.join(&call.from), root.join(&call.to));
    let (at, length) = (call.number, call.length);
    let write = || open(&from, OFlags::RDWR);
    let room = |flags: FallocateFlags| rustix::fs::fallocate(write()?, flags, at, length);
    let rename = |flags: RenameFlags| rustix::fs::renameat_with(CWD, &from, CWD, &to, flags);
    match call.what {
        0 | 1 => io(fs::create_dir(&from))?,
        2 => io(fs::remove_dir(&from))?,
        3 | 4 => drop(open(&from, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?),
        5 => drop(open(&from, OFlags::CREATE | OFlags::RDWR | OFlags::TRUNC)?),
        6 => rustix::fs::unlink(&from)?,
        7 => rename(RenameFlags::empty())?,
        8 => rename(RenameFlags::NOREPLACE)?,
        9 if is_placeholder(&from) || is_placeholder(&to) => return Ok("not exchanged".into()),
        9 => rename(RenameFlags::EXCHANGE)?,
        10 => rename(RenameFlags::WHITEOUT)?,
        11 => rustix::fs::link(&from, &to)?,
        12 => rustix::fs::symlink(&call.to, &from)?,
        13 => return io(fs::read_link(&from)).map(|target| target.display().to_string()),
        14 | 15 => {
            let bytes: Vec<u8> = (0..length)
                .map(|index| (index / 3 + at).to_le_bytes()[0])
                .collect();
            io(write()?.write_all_at(&bytes, at))?;
        }
        16 => rustix::fs::ftruncate(write()?, at)?,
        17 => room(FallocateFlags::empty())?,
        18 => room(FallocateFlags::KEEP_SIZE)?,
        19 => room(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)?,
        20 => room(FallocateFlags::ZERO_RANGE)?,
        21 => rustix::fs::chmodat(
            CWD,
            &from,
            Mode::from_raw_mode(u32::try_from(at & 0o7777).unwrap()),
            AtFlags::empty(),
        )?,
        22 => rustix::fs::chownat(
            CWD,
            &from,
            Some(rustix::fs::Uid::from_raw(u32::try_from(at & 3).unwrap())),
            Some(rustix::fs::Gid::from_raw(u32::try_from(at >> 2 & 3).unwrap())),
            AtFlags::SYMLINK_NOFOLLOW,
        )?,
        23 => {
            let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
            let name = ["user.a", "user.b", "trusted.c", "nonsense"][usize::try_from(at & 3).unwrap()];
            let flag = flags[usize::try_from(at >> 2).unwrap() % 3];
            rustix::fs::lsetxattr(
                &from,
                name,
                &vec![b'v'; usize::try_from(length % 5000).unwrap()],
                flag,
            )?;
        }
        24 => rustix::fs::lremovexattr(&from, ["user.a", "user.b"][usize::try_from(at & 1).unwrap()])?,
        25 => {
            let source = open(&from, OFlags::RDONLY)?;
            let target = open(&to, OFlags::WRONLY)?;
            let copied = rustix::fs::copy_file_range(
                &source,
                Some(&mut (at / 2)),
                &target,
                Some(&mut at.clone()),
                usize::try_from(length).unwrap(),
            )?;
            return Ok(format!("copied {copied}"));
        }
        26 => {
            let file = open(&from, OFlags::RDONLY)?;
            return Ok(format!("{}", rustix::fs::seek(file, SeekFrom::End(-1))?));
        }
        27 => return content(&from),
        28 => subvolume(&from, ioctls::create_subvolume)?,
        29 => {
            let source = open(&to, OFlags::RDONLY)?;
            subvolume(&from, |directory, name| {
                ioctls::snapshot(&source, directory, name, at & 7 == 0)
            })?;
        }
        30 => subvolume(&from, ioctls::delete_subvolume)?,
        _ => rustix::fs::fsync(open(&from, OFlags::RDONLY)?)?,
    }
    seen(&from)
}

/// Lists all files below a directory with their properties and content.
fn listing(root: &Path, below: &Path, out: &mut String) {
    let mut names: Vec<_> = fs::read_dir(root.join(below))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    for name in names {
        let path = below.join(&name);
        let at = root.join(&path);
        writeln!(out, "{}: {:?}", path.display(), seen(&at)).unwrap();
        let kind = fs::symlink_metadata(&at).unwrap().file_type();
        if kind.is_file() {
            writeln!(out, "  {:?}", content(&at)).unwrap();
        } else if kind.is_dir() {
            listing(root, &path, out);
        }
    }
}

fn listed(root: &Path) -> String {
    let mut out = String::new();
    listing(root, Path::new(""), &mut out);
    out
}

/// Returns whether the kernel's FUSE refused a call by the kinds of its files in a read-only
/// subvolume.
fn is_kind_first(call: &Call, found: &Result<String>, expected: &Result<String>) -> bool {
    use rustix::io::Errno;
    let by_kind = [Errno::ISDIR, Errno::NOTDIR, Errno::PERM];
    matches!(call.what, 2 | 6..=11)
        && matches!(found, Err(error) if by_kind.contains(error))
        && *expected == Err(Errno::ROFS)
}

/// Makes the calls of one thread on both sides; returns the number of calls that failed.
fn calls_of(thread: u64, seed: u64, count: usize, roots: [&Path; 2], turn: &Mutex<()>) -> usize {
    let own = format!("own{thread}");
    let mut random = Random::new(seed * THREADS + thread);
    let mut errors = 0;
    for number in 0..count {
        let chosen = choose(&mut random, &own);
        let _turn = chosen.is_shared().then(|| turn.lock().unwrap());
        let [found, expected] = roots.map(|root| call(root, &chosen));
        assert!(
            found == expected || is_kind_first(&chosen, &found, &expected),
            "seed {seed}, thread {thread}, call {number}: {chosen:?}: found {found:?}, expected {expected:?}"
        );
        errors += usize::from(found.is_err());
    }
    errors
}

#[test]
fn calls_end_as_in_the_kernel() {
    if skips(no_fuse()) || skips(kernel_missing()) {
        return;
    }
    let count = number("BUTTRESS_MOUNT_CALLS").unwrap_or(CALLS);
    for seed in seeds("mount_beside_kernel", "BUTTRESS_MOUNT_SEED", &SEEDS) {
        calls_end_as_in_the_kernel_from(seed, count);
    }
}

fn calls_end_as_in_the_kernel_from(seed: u64, count: usize) {
    let (ours, theirs) = (Mounted::sized("4G"), Mounted::sized("4G"));
    ours.mount("rw");
    let kernel = Mount::new(std::slice::from_ref(&theirs.image), "").unwrap();
    let roots = [ours.at.as_path(), kernel.path()];
    for root in roots {
        fs::create_dir(root.join(SHARED)).unwrap();
        for thread in 0..THREADS {
            fs::create_dir(root.join(format!("own{thread}"))).unwrap();
        }
    }
    let turn = Mutex::new(());
    let turn = &turn;
    let errors: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || calls_of(thread, seed, count, roots, turn)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let all = count * usize::try_from(THREADS).unwrap();
    assert!(
        errors > all / 10 && errors < all * 9 / 10,
        "{errors} errors of {all} calls"
    );
    let expected = listed(kernel.path());
    assert_eq!(listed(&ours.at), expected, "seed {seed}");
    kernel.close().unwrap();
    ours.umount();
    ours.expect_sound();
    // The images of both sides have the observed content, except the attributes of placeholders.
    ours.mount("ro");
    let kernel = Mount::new(std::slice::from_ref(&theirs.image), "ro").unwrap();
    assert_eq!(listed(&ours.at), listed(kernel.path()), "seed {seed}");
    kernel.close().unwrap();
    ours.umount();
}
