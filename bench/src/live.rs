//! Calls of the library on a writable volume in memory: the time of each call with one, two and
//! eight threads, and beside a writer.
//!
//! The table has no other side, because the kernel's calls go through a mount. If a call of a view
//! does the same work, the table has a row for it, too. The figures come from one process, so its
//! threads share the machine's cores, which limit the gain of more threads.
//!
//! Every file has 4 KiB in its own extent. "dirty" files have dirty data.

mod exclusive;
pub(crate) mod holds;

use crate::Scale;
use anyhow::{Context, Result, anyhow};
use buttress::mkfs::Identity;
use buttress::unstable::device::MemoryBackend;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    Backend, ByteCount, Device, DeviceEngine as Engine, FileOffset, Location, NewInode, RenameMode, SetXattr,
    SubvolumeId, Timestamp, Uuid, mkfs,
};
use exclusive::Exclusive;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const FILE_BYTES: usize = 4096;
const THREADS: [usize; 3] = [1, 2, 8];

/// The number of files in a directory.
const DIRECTORY_FILES: usize = 1000;

/// The number of entries that a listing requests.
const LISTED: usize = 64;

/// The number of files with dirty data.
const DIRTY: usize = 500;

struct Volume {
    filesystem: WritableFilesystem,
    directories: Vec<Location>,
    files: Vec<Location>,
}

/// The chosen rows, and their measurements.
struct Rows {
    /// Parts of the chosen rows' names; empty for all rows.
    wanted: Vec<String>,
    measured: RefCell<Vec<Exclusive>>,
}

impl Rows {
    fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| name.contains(wanted.as_str()))
    }
}

/// A call, with its thread's number and its own number.
type Call<'a> = &'a (dyn Fn(usize, usize) -> Result<()> + Sync);

fn open(bytes: usize) -> Result<WritableFilesystem> {
    open_with(bytes, ByteCount::new(1 << 30), WriteOptions::default())
}

fn open_with(bytes: usize, cache: ByteCount, options: WriteOptions) -> Result<WritableFilesystem> {
    // A fill writes every page of the memory now. The kernel gives memory that was only allocated at
    // its first write, and this time would count for the write-back and for commits.
    let memory: Arc<dyn Backend> = Arc::new(MemoryBackend::new("memory", vec![0xa5; bytes]));
    let device = || Device::with_backend(Arc::clone(&memory), Engine::Inline);
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device()], &mkfs::Options::default(), &identity)?;
    let filesystem = OpenOptions::new(vec![device()]).cache(cache).open()?;
    Ok(WritableFilesystem::new(filesystem, options)?)
}

impl Volume {
    fn new(count: usize) -> Result<Self> {
        let filesystem = open((256 << 20) + count * 24_000)?;
        let (mut directories, mut files) = (Vec::new(), Vec::new());
        let new = NewInode::of_root(0o644);
        for number in 0..count {
            if number % DIRECTORY_FILES == 0 {
                let name = format!("directory-{number}");
                directories.push(filesystem.make_directory(ROOT, name.as_bytes(), &new)?);
            }
            let directory = *directories.last().context("a directory")?;
            let file = filesystem.create(directory, name_of(number).as_bytes(), &new)?;
            filesystem.write_at(file, FileOffset::MIN, &[b'x'; FILE_BYTES])?;
            filesystem.set_xattr(file, b"user.bench", b"value", SetXattr::CreateOrReplace)?;
            files.push(file);
        }
        filesystem.commit()?;
        Ok(Self {
            filesystem,
            directories,
            files,
        })
    }

    /// Returns one of the files, a different one for each call.
    fn file(&self, thread: usize, call: usize) -> Location {
        self.files[(thread * 7919 + call * 104_729) % self.files.len()]
    }

    fn directory(&self, thread: usize, call: usize) -> usize {
        (thread * 31 + call * 7) % self.directories.len()
    }
}

fn name_of(number: usize) -> String {
    format!("file-{number}")
}

/// Returns the microseconds that a thread waits for a call.
fn time(threads: usize, calls: usize, call: Call<'_>) -> Result<f64> {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || (0..calls).try_for_each(|number| call(thread, number))))
            .collect();
        started
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(begin.elapsed().as_secs_f64() * 1e6 / calls as f64)
}

/// Measures one row: each number of threads alone, and one thread beside a writer.
fn row(volume: &Volume, rows: &Rows, name: &str, calls: usize, call: Call<'_>) -> Result<()> {
    if !rows.wants(name) {
        return Ok(());
    }
    let mut cells = Vec::new();
    let mut alone = f64::NAN;
    for threads in THREADS {
        let micros = time(threads, calls / threads, call)?;
        if threads == 1 {
            alone = micros;
        }
        let gain = alone / micros * threads as f64;
        cells.push(format!("{micros:.2} | {gain:.2}"));
    }
    let (is_done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let beside = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(volume, &is_done, &written));
        let micros = time(1, calls / 2, call);
        is_done.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        micros
    })?;
    println!("| {name} | {} | {beside:.2} |", cells.join(" | "));
    let exclusive = exclusive::measure(name, alone, calls / 4, call)?;
    rows.measured.borrow_mut().push(exclusive);
    Ok(())
}

/// Writes files repeatedly, with a commit from time to time.
fn write_until(volume: &Volume, is_done: &AtomicBool, written: &AtomicU64) -> Result<()> {
    let filesystem = &volume.filesystem;
    while !is_done.load(Ordering::Relaxed) {
        let call = usize::try_from(written.fetch_add(1, Ordering::Relaxed))?;
        filesystem.write_at(volume.file(99, call), FileOffset::MIN, &[b'w'; FILE_BYTES])?;
        if call % 2000 == 1999 {
            filesystem.commit()?;
        }
    }
    Ok(())
}

/// Prints the table for this number of files.
fn table(count: usize, calls: usize, wanted: &[&str]) -> Result<()> {
    let volume = Volume::new(count)?;
    let filesystem = &volume.filesystem;
    println!("\n{count} files; microseconds of a call, and how many times one thread's rate that is\n");
    println!("| call | 1 thread | | 2 threads | | 8 threads | | beside a writer |");
    println!("|---|---|---|---|---|---|---|---|");
    let view = filesystem.view();
    let rows = Rows {
        wanted: wanted.iter().map(|&name| name.to_owned()).collect(),
        measured: RefCell::new(Vec::new()),
    };
    row(&volume, &rows, "stat", calls, &|thread, call| {
        filesystem.live().metadata(volume.file(thread, call))?;
        Ok(())
    })?;
    row(&volume, &rows, "stat of a view", calls, &|thread, call| {
        view.metadata(volume.file(thread, call))?;
        Ok(())
    })?;
    row(&volume, &rows, "look-up", calls, &|thread, call| {
        let directory = volume.directory(thread, call);
        let name = name_of(directory * DIRECTORY_FILES + call % DIRECTORY_FILES.min(volume.files.len()));
        filesystem
            .live()
            .lookup(volume.directories[directory], name.as_bytes())?;
        Ok(())
    })?;
    row(&volume, &rows, "64 entries", calls / 16, &|thread, call| {
        let directory = volume.directories[volume.directory(thread, call)];
        let from = (call * 37 % DIRECTORY_FILES) as u64;
        filesystem.live().list(directory, from, LISTED)?;
        Ok(())
    })?;
    row(&volume, &rows, "an attribute", calls, &|thread, call| {
        filesystem
            .live()
            .xattr(volume.file(thread, call), b"user.bench")?;
        Ok(())
    })?;
    row(&volume, &rows, "4 KiB of a clean file", calls, &|thread, call| {
        let mut buffer = [0; FILE_BYTES];
        filesystem
            .live()
            .read_at(volume.file(thread, call), FileOffset::MIN, &mut buffer)?;
        Ok(())
    })?;
    row(
        &volume,
        &rows,
        "4 KiB of a view's file",
        calls,
        &|thread, call| {
            let mut buffer = [0; FILE_BYTES];
            let file = view.open_file(volume.file(thread, call))?;
            file.read_at(FileOffset::MIN, &mut buffer)?;
            Ok(())
        },
    )?;
    drop(view);
    for file in volume.files.iter().take(DIRTY) {
        filesystem.write_at(*file, FileOffset::MIN, &[b'd'; FILE_BYTES])?;
    }
    row(
        &volume,
        &rows,
        "4 KiB of a dirty file",
        calls * 4,
        &|thread, call| {
            let mut buffer = [0; FILE_BYTES];
            let file = volume.files[(thread * 131 + call) % DIRTY.min(volume.files.len())];
            filesystem.live().read_at(file, FileOffset::MIN, &mut buffer)?;
            Ok(())
        },
    )?;
    changes(&volume, &rows, calls / 4)?;
    exclusive::print(&rows.measured.into_inner());
    let _ = volume.filesystem.abandon();
    Ok(())
}

/// Measures the rows of calls that change the volume, with a directory for each thread.
fn changes(volume: &Volume, rows: &Rows, calls: usize) -> Result<()> {
    let filesystem = &volume.filesystem;
    row(volume, rows, "writing 4 KiB", calls * 32, &|thread, call| {
        // Each thread writes separate files.
        let file = volume.files[(thread * 64 + call % 64) % volume.files.len()];
        filesystem.write_at(file, FileOffset::MIN, &[b'y'; FILE_BYTES])?;
        Ok(())
    })?;
    let new = NewInode::of_root(0o600);
    let round = AtomicU64::new(0);
    let directory = |thread: usize| volume.directories[thread % volume.directories.len()];
    row(volume, rows, "creating a file", calls / 2, &|thread, _| {
        let name = format!("new-{}", round.fetch_add(1, Ordering::Relaxed));
        filesystem.create(directory(thread), name.as_bytes(), &new)?;
        Ok(())
    })?;
    // Each thread renames its own file back and forth.
    let threads = THREADS.iter().copied().max().unwrap_or(1);
    for thread in 0..threads {
        filesystem.create(directory(thread), format!("one-{thread}").as_bytes(), &new)?;
    }
    let turns: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    row(volume, rows, "renaming a file", calls / 2, &|thread, _| {
        let is_back = turns[thread].fetch_add(1, Ordering::Relaxed) % 2 == 1;
        let (one, two) = (format!("one-{thread}"), format!("two-{thread}"));
        let (from, to) = if is_back { (two, one) } else { (one, two) };
        let place = directory(thread);
        filesystem.rename(place, from.as_bytes(), place, to.as_bytes(), RenameMode::Replace)?;
        Ok(())
    })?;
    row(volume, rows, "creating and unlinking", calls / 2, &|thread, _| {
        let name = format!("gone-{}", round.fetch_add(1, Ordering::Relaxed));
        filesystem.create(directory(thread), name.as_bytes(), &new)?;
        filesystem.unlink(directory(thread), name.as_bytes())?;
        Ok(())
    })?;
    row(volume, rows, "setting an attribute", calls, &|thread, call| {
        let value = call.to_le_bytes();
        let file = volume.files[(thread * 64 + call % 64) % volume.files.len()];
        filesystem.set_xattr(file, b"user.bench", &value, SetXattr::CreateOrReplace)?;
        Ok(())
    })
}

/// Prints the tables: of calls whose names contain one of `wanted`, or, if `wanted` is empty, of
/// all calls and of lock holds.
pub(crate) fn run(scale: Scale, wanted: &[&str]) -> Result<()> {
    let is_tiny = scale.name == crate::TINY.name;
    let sizes: &[usize] = if is_tiny { &[500] } else { &[20_000, 150_000] };
    let calls = if is_tiny { 400 } else { 200_000 };
    sizes.iter().try_for_each(|count| table(*count, calls, wanted))?;
    if wanted.is_empty() {
        holds::run(scale)?;
    }
    Ok(())
}
