//! What was synced lasts: random operations and syncs in the crash laboratory, cut at random moments with random losses.
//!
//! A small tree of files, hard links and directories is changed at random, and some of it synced. What each inode was after
//! each operation is kept. After a cut the volume is opened, which replays its log, and checked; then of each inode
//!
//! - content is one that it had since its last sync that had returned (since the last commit, if that is later);
//! - names, all of them together, are those that it had at one moment since then: a rename is seen whole, and nothing that
//!   lives is lost;
//! - attributes are those of one such moment;
//!
//! and a directory that was synced has no name less and none more than it had at a moment since. Of the images some are
//! replayed by the kernel as well, which must find the same. The same on volumes without room for data, where syncs may fail.
//!
//! Several threads at once write files of their own and sync them: after a cut each file is as its thread had synced it, or as
//! it did later.
//!
//! `BUTTRESS_CRASH_SEED` and `BUTTRESS_CRASH_CUTS` choose the first seed and the number of cuts of each history;
//! `BUTTRESS_FSYNC_HISTORIES` the number of histories.

use anyhow::{Context, Result, ensure};
use buttress::device::crash::{CrashLab, Outcome};
use buttress::device::{Device, Engine};
use buttress::format::block_group::Profile;
use buttress::writer::mkfs::{Feature, Options};
use buttress::writer::operations::{NewInode, RenameMode, SetXattr};
use buttress::writer::{AllocateMode, DataOptions, WritableFilesystem, WriteOptions};
use buttress::{ByteCount, CompressionMethod, FileOffset, Location, OpenOptions, SubvolumeId};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{expect_equal, of_directory};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_oracle::volumes::scratch;
use buttress_proof::library::manifest;
use buttress_proof::writing::volume::{
    Backends, Ticking, devices, empty, open_checked_but_for_holes, open_for_writing, write_images,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Names that things get: few, so that they are used again.
const NAMES: u64 = 9;

/// The largest content.
const CONTENT_BYTES: u64 = 80_000;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

type Names = BTreeSet<(u64, Vec<u8>)>;

/// An inode at a moment. One that is gone has no names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Snapshot {
    names: Names,
    content: (u64, u32),
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// All inodes at a moment, and each directory's entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Moment {
    inodes: BTreeMap<u64, Snapshot>,
    entries: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
}

fn moment(filesystem: &WritableFilesystem) -> Result<Moment> {
    let mut moment = Moment::default();
    let mut waiting = vec![TOP];
    let mut seen = BTreeSet::new();
    moment.inodes.entry(TOP.inode.get()).or_default();
    while let Some(at) = waiting.pop() {
        let stat = filesystem.metadata(at)?;
        let inode = moment.inodes.entry(at.inode.get()).or_default();
        inode.attributes = filesystem
            .xattrs(at)?
            .into_iter()
            .map(|xattr| (xattr.name, xattr.value))
            .collect();
        if !stat.is_directory() {
            let mut content = vec![0; usize::try_from(stat.size.get())?];
            let read = filesystem.read_at(at, FileOffset::MIN, &mut content)?;
            ensure!(read == content.len(), "{at}: {read} bytes of {}", content.len());
            inode.content = (stat.size.get(), crc32c::crc32c(&content));
            continue;
        }
        let entries = moment.entries.entry(at.inode.get()).or_default();
        for entry in filesystem.list(at, 0, 10_000)? {
            entries.insert(entry.name.clone(), entry.target.inode.get());
            let child = moment.inodes.entry(entry.target.inode.get()).or_default();
            child.names.insert((at.inode.get(), entry.name));
            if seen.insert(entry.target.inode) {
                waiting.push(entry.target);
            }
        }
    }
    Ok(moment)
}

/// A run: its history, and what there was after each operation.
struct Run {
    history: buttress::device::crash::History,
    moments: Vec<Moment>,
    /// Of each operation: the inode that it synced, or a commit.
    syncs: Vec<(usize, Option<u64>)>,
}

impl Run {
    /// What was done in these operations, for a failure's message.
    fn told(&self, from: usize, to: usize) -> String {
        let mut lines = Vec::new();
        for operation in from.max(1)..=to.min(self.moments.len() - 1) {
            let (before, after) = (&self.moments[operation - 1], &self.moments[operation]);
            let of = |moment: &Moment, inode: &u64| moment.inodes.get(inode).cloned();
            let changed: BTreeSet<&u64> = before.inodes.keys().chain(after.inodes.keys()).collect();
            for inode in changed
                .into_iter()
                .filter(|inode| of(before, inode) != of(after, inode))
            {
                lines.push(format!(
                    "{operation}: inode {inode} becomes {:?}",
                    of(after, inode)
                ));
            }
            for (_, synced) in self.syncs.iter().filter(|(number, _)| *number == operation) {
                lines.push(format!("{operation}: sync of {synced:?}"));
            }
        }
        lines.join("\n")
    }
}

/// A thing of the tree, drawn.
fn draw(random: &mut Random, moment: &Moment, wants_directory: Option<bool>) -> Option<(u64, Vec<u8>, u64)> {
    let all: Vec<(u64, Vec<u8>, u64)> = moment
        .entries
        .iter()
        .flat_map(|(directory, entries)| {
            entries
                .iter()
                .map(|(name, inode)| (*directory, name.clone(), *inode))
        })
        .filter(|(_, _, inode)| {
            wants_directory.is_none_or(|wants| moment.entries.contains_key(inode) == wants)
        })
        .collect();
    let index = random.below(u64::try_from(all.len()).ok()?.max(1));
    all.into_iter().nth(usize::try_from(index).ok()?)
}

fn at(inode: u64) -> Location {
    Location::new(SubvolumeId::TOP_LEVEL, buttress::InodeNumber::new(inode))
}

fn draw_directory(random: &mut Random, moment: &Moment) -> Location {
    let index = random.below(moment.entries.len() as u64);
    let found = moment.entries.keys().nth(usize::try_from(index).unwrap_or(0));
    at(found.copied().unwrap_or(TOP.inode.get()))
}

/// One operation. Those that are refused, as moves to below what moves, change nothing. Gives what was synced.
fn step(filesystem: &WritableFilesystem, random: &mut Random, now: &Moment) -> Result<Option<Option<u64>>> {
    let name = format!("n{}", random.below(NAMES)).into_bytes();
    let directory = draw_directory(random, now);
    let new = NewInode::of_root(0o644);
    let offset = FileOffset::new(random.below(CONTENT_BYTES));
    let file = draw(random, now, Some(false));
    let any = draw(random, now, None);
    match random.below(100) {
        0..10 => drop(filesystem.create(directory, &name, &new)),
        10..16 => drop(filesystem.make_directory(directory, &name, &new)),
        16..34 => {
            if let Some((_, _, inode)) = file {
                let seed = random.number();
                let most = if random.one_in(3) { 200 } else { 20_000 };
                let length = 1 + random.below(most);
                let bytes = Random::new(seed).bytes(usize::try_from(length)?, random.one_in(3));
                let offset = if random.one_in(3) { FileOffset::MIN } else { offset };
                filesystem.write_at(at(inode), offset, &bytes)?;
            }
        }
        34..38 => {
            if let Some((_, _, inode)) = file {
                filesystem.truncate(at(inode), ByteCount::new(offset.get()))?;
            }
        }
        38..43 => {
            if let Some((_, _, inode)) = file {
                let end = offset.saturating_add(ByteCount::new(1 + random.below(30_000)));
                let mode = match random.below(3) {
                    0 => AllocateMode::PunchHole,
                    1 => AllocateMode::AllocateKeepSize,
                    _ => AllocateMode::ZeroRange,
                };
                filesystem.allocate(at(inode), offset..end, mode)?;
            }
        }
        43..46 => {
            if let (Some((_, _, from)), Some((_, _, to))) = (file, draw(random, now, Some(false))) {
                let start = FileOffset::new(random.below(5) * 4096);
                let end = start.saturating_add(ByteCount::new(8192));
                drop(filesystem.clone_range(
                    at(from),
                    start..end,
                    at(to),
                    FileOffset::new(random.below(5) * 4096),
                ));
            }
        }
        46..51 => {
            if let Some((_, _, inode)) = file {
                drop(filesystem.link(at(inode), directory, &name));
            }
        }
        51..58 => {
            if let Some((parent, name, inode)) = any {
                match now.entries.contains_key(&inode) {
                    true => drop(filesystem.remove_directory(at(parent), &name)),
                    false => drop(filesystem.unlink(at(parent), &name)),
                }
            }
        }
        58..70 => {
            if let Some((parent, old, _)) = any {
                let mode = match random.below(8) {
                    0 => RenameMode::Exchange,
                    1 => RenameMode::NoReplace,
                    _ => RenameMode::Replace,
                };
                drop(filesystem.rename(at(parent), &old, directory, &name, mode));
            }
        }
        70..74 => {
            if let Some((_, _, inode)) = any {
                let key = format!("user.{}", random.below(3));
                let value = random.number().to_le_bytes();
                match random.one_in(3) {
                    true => drop(filesystem.remove_xattr(at(inode), key.as_bytes())),
                    false => {
                        filesystem.set_xattr(at(inode), key.as_bytes(), &value, SetXattr::CreateOrReplace)?
                    }
                }
            }
        }
        74..97 => {
            let inode = match random.below(3) {
                0 => directory.inode.get(),
                _ => any.map_or(TOP.inode.get(), |(_, _, inode)| inode),
            };
            match random.one_in(4) {
                true => filesystem.fdatasync(at(inode))?,
                false => filesystem.fsync(at(inode))?,
            };
            return Ok(Some(Some(inode)));
        }
        _ => {
            filesystem.commit()?;
            return Ok(Some(None));
        }
    }
    Ok(None)
}

fn is_no_space(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(buttress::fs::Error::NoSpace { .. }))
}

fn run(base: Backends, seed: u64, operations: usize) -> Result<Run> {
    let lab = CrashLab::new();
    let recorded = base
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), Engine::Inline));
    let filesystem = OpenOptions::new(recorded.collect()).open()?;
    let compression = seed
        .is_multiple_of(3)
        .then_some(CompressionMethod::new(buttress::format::Compression::Lzo));
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        data: DataOptions {
            compression,
            ..DataOptions::default()
        },
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(filesystem, options)?;
    let mut random = Random::new(seed);
    let mut moments = vec![moment(&filesystem)?];
    let mut syncs = Vec::new();
    lab.mark(0);
    for operation in 1..=operations {
        let now = moments.last().cloned().unwrap_or_default();
        let synced = match step(&filesystem, &mut random, &now) {
            // It did nothing, or a part of it that is seen.
            Err(error) if is_no_space(&error) => None,
            other => other.with_context(|| format!("operation {operation}"))?,
        };
        moments.push(moment(&filesystem)?);
        syncs.extend(synced.map(|inode| (operation, inode)));
        lab.mark(operation as u64);
    }
    let history = lab.history();
    filesystem.abandon();
    Ok(Run {
        history,
        moments,
        syncs,
    })
}

/// What was found after a crash is what was promised.
fn expect_promised(run: &Run, done: usize, found: &Moment) -> Result<()> {
    let last = (done + 1).min(run.moments.len() - 1);
    let returned = || run.syncs.iter().rev().filter(|(operation, _)| *operation <= done);
    let committed = returned()
        .find(|(_, inode)| inode.is_none())
        .map_or(0, |(operation, _)| *operation);
    let since_of = |inode: u64| {
        let synced = returned().find(|(_, synced)| *synced == Some(inode));
        synced.map_or(committed, |(operation, _)| committed.max(*operation))
    };
    let inodes: BTreeSet<u64> = run.moments[committed..=last]
        .iter()
        .flat_map(|moment| moment.inodes.keys().copied())
        .chain(found.inodes.keys().copied())
        .collect();
    let nothing = Snapshot::default();
    for inode in inodes {
        let since = since_of(inode);
        let at = |moment: &Moment| moment.inodes.get(&inode).cloned().unwrap_or_default();
        let states = || run.moments[since..=last].iter().map(at);
        let is = found.inodes.get(&inode).unwrap_or(&nothing);
        ensure!(
            states().any(|state| state.names == is.names),
            "inode {inode} has the names {:?}, and since operation {since} it never had",
            is.names
        );
        if is.names.is_empty() && inode != TOP.inode.get() {
            continue;
        }
        ensure!(
            states().any(|state| state.content == is.content),
            "inode {inode} has content {:?}, and since operation {since} it never had",
            is.content
        );
        ensure!(
            states().any(|state| state.attributes == is.attributes),
            "inode {inode} has the attributes {:?}, and since operation {since} it never had",
            is.attributes
        );
    }
    expect_entries(run, done, last, found)
}

/// Directories that were synced have each name as it was at a moment since.
fn expect_entries(run: &Run, done: usize, last: usize, found: &Moment) -> Result<()> {
    for (operation, inode) in run.syncs.iter().filter(|(operation, _)| *operation <= done) {
        let Some(inode) = inode else { continue };
        if !run.moments[*operation].entries.contains_key(inode) {
            continue;
        }
        let states = &run.moments[*operation..=last];
        let names: BTreeSet<&Vec<u8>> = states
            .iter()
            .chain([found])
            .filter_map(|moment| moment.entries.get(inode))
            .flat_map(BTreeMap::keys)
            .collect();
        for name in names {
            let of = |moment: &Moment| {
                moment
                    .entries
                    .get(inode)
                    .and_then(|entries| entries.get(name))
                    .copied()
            };
            ensure!(
                states.iter().any(|moment| of(moment) == of(found)),
                "directory {inode}, synced by operation {operation}: {} leads to {:?}, and never did since",
                name.escape_ascii(),
                of(found)
            );
        }
    }
    Ok(())
}

/// How many images the kernel replayed.
static KERNEL_LOOKS: AtomicUsize = AtomicUsize::new(0);

/// The kernel replays the same log, and finds the same.
fn ask_the_kernel(images: &Backends, ours: &WritableFilesystem) -> Result<()> {
    let folder = scratch()?;
    let images = write_images(images, folder.path())?;
    let mount = Mount::new(&images, "noatime").context("the kernel replays")?;
    let mut theirs = of_directory(mount.path())?;
    mount.close()?;
    btrfs_check(&images).context("after the kernel's replay")?;
    let mut found = manifest(&ours.view(), TOP)?;
    for (path, entry) in &mut theirs {
        entry.extra = None;
        if let Some(own) = found.get_mut(path) {
            own.extra = None;
            // Of directories that its replay takes names from, the kernel sets the time.
            if entry.mode & 0o170_000 == 0o040_000 {
                own.modified = entry.modified;
            }
        }
    }
    KERNEL_LOOKS.fetch_add(1, Ordering::Relaxed);
    expect_equal("the kernel's replay", &theirs, &found)
}

fn cut(run: &Run, seed: u64, cuts: u64, asks_kernel: bool) -> Result<()> {
    let mut random = Random::new(seed ^ 0x05_ca1e);
    for number in 0..cuts {
        let cut = usize::try_from(random.below(run.history.len() as u64 + 1))?;
        let outcome = match random.below(6) {
            0 => Outcome::AllKept,
            1 => Outcome::NoneKept,
            _ => Outcome::Drawn {
                seed: random.number(),
            },
        };
        let asks_kernel = random.one_in(8) && asks_kernel && !skips(kernel_missing());
        let told = || {
            format!(
                "seed {seed}, cut {number} at event {cut} of {}, {outcome:?}",
                run.history.len()
            )
        };
        recover(run, cut, outcome, asks_kernel).with_context(told)?;
    }
    Ok(())
}

fn recover(run: &Run, cut: usize, outcome: Outcome, asks_kernel: bool) -> Result<()> {
    let Some(done) = run.history.last_mark(cut) else {
        return Ok(());
    };
    let images = run.history.images_at(cut, outcome);
    let has_log = OpenOptions::new(devices(&images))
        .open()?
        .superblock()
        .log_root
        .get()
        != 0;
    let filesystem = open_for_writing(&images).context("opening it for writing")?;
    let found = moment(&filesystem)?;
    let done = usize::try_from(done)?;
    expect_promised(run, done, &found).with_context(|| {
        let told = run.told(done.saturating_sub(40), done + 1);
        if let Some(folder) = std::env::var_os("BUTTRESS_CRASH_KEEP") {
            // The images as the crash left them, to be looked into.
            let _ = write_images(
                &run.history.images_at(cut, outcome),
                std::path::Path::new(&folder),
            );
        }
        format!("after operation {done}:\n{told}")
    })?;
    if asks_kernel && has_log {
        let untouched = run.history.images_at(cut, outcome);
        ask_the_kernel(&untouched, &filesystem)?;
    }
    // So that there is something to commit.
    filesystem.set_label(b"after the cut")?;
    filesystem.commit()?;
    drop(filesystem);
    open_checked_but_for_holes(&images)?;
    // Cut off again in the middle of the replay, nothing is lost: the log is replayed anew.
    if has_log {
        recover_again(run, cut, outcome, &found)?;
    }
    Ok(())
}

fn recover_again(run: &Run, cut: usize, outcome: Outcome, expected: &Moment) -> Result<()> {
    let lab = CrashLab::new();
    let images = run.history.images_at(cut, outcome);
    let recorded = images
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), Engine::Inline));
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let filesystem = OpenOptions::new(recorded.collect()).open()?;
    drop(WritableFilesystem::new(filesystem, options)?);
    let history = lab.history();
    let mut random = Random::new(cut as u64);
    let cut = usize::try_from(random.below(history.len() as u64 + 1))?;
    let images = history.images_at(
        cut,
        Outcome::Drawn {
            seed: random.number(),
        },
    );
    let again = open_for_writing(&images).context("the second replay")?;
    ensure!(
        moment(&again)? == *expected,
        "the second replay finds something else"
    );
    again.set_label(b"after the cut")?;
    again.commit()?;
    drop(again);
    open_checked_but_for_holes(&images).map(drop)
}

fn histories(devices: &[usize], options: &Options, salt: u64) {
    // The write hole is the kernel's, too, and its check's.
    let asks_kernel = options.data != Some(Profile::Raid5);
    let count = number("BUTTRESS_FSYNC_HISTORIES", 35);
    let cuts = number("BUTTRESS_CRASH_CUTS", 24);
    let first = number("BUTTRESS_CRASH_SEED", 1) + salt * 1_000_003;
    for seed in first..first + count {
        let base = empty(devices, options).unwrap();
        let run = run(base, seed, 80).unwrap();
        cut(&run, seed, cuts, asks_kernel).unwrap();
    }
}

/// Has a file take all the room for data, behind its end, where nobody reads it.
fn fill(base: &Backends) -> Result<()> {
    let filesystem = open_for_writing(base)?;
    let filler = filesystem.create(TOP, b"filler", &NewInode::of_root(0o644))?;
    let mut at = 0;
    for piece in [4_u64 << 20, 256 << 10, 16 << 10] {
        loop {
            let range = FileOffset::new(at)..FileOffset::new(at + piece);
            match filesystem.allocate(filler, range, AllocateMode::AllocateKeepSize) {
                Ok(()) => at += piece,
                Err(buttress::fs::Error::NoSpace { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    filesystem.close()?;
    Ok(())
}

#[test]
fn on_a_full_volume() {
    let count = number("BUTTRESS_FSYNC_HISTORIES", 10);
    let first = number("BUTTRESS_CRASH_SEED", 1) + 6 * 1_000_003;
    for seed in first..first + count {
        let base = empty(&[128 << 20], &Options::default()).unwrap();
        fill(&base).unwrap();
        let run = run(base, seed, 80).unwrap();
        cut(&run, seed, number("BUTTRESS_CRASH_CUTS", 24), true).unwrap();
    }
}

/// Threads, each with a file of its own.
const THREADS: usize = 4;

/// How much each of them writes at once.
const PIECE_BYTES: usize = 6000;

/// A run of several threads: its history, and at each mark the last round that each thread had synced.
struct Threads {
    history: buttress::device::crash::History,
    synced: Vec<[u64; THREADS]>,
}

fn run_threads(base: Backends, seed: u64) -> Result<Threads> {
    let lab = CrashLab::new();
    let recorded = base
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), Engine::Inline));
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(OpenOptions::new(recorded.collect()).open()?, options)?;
    let create = |thread| {
        let name = format!("thread-{thread}");
        filesystem.create(TOP, name.as_bytes(), &NewInode::of_root(0o644))
    };
    let files = (0..THREADS).map(create).collect::<Result<Vec<_>, _>>()?;
    filesystem.commit()?;
    let synced = std::sync::Mutex::new(vec![[0; THREADS]]);
    lab.mark(0);
    let work = |thread: usize, file: Location| -> Result<()> {
        let mut random = Random::new(seed * 1000 + thread as u64);
        for round in 1..=25_u64 {
            let piece: Vec<u8> = round.to_le_bytes().repeat(PIECE_BYTES / 8);
            filesystem.write_at(file, FileOffset::MIN, &piece)?;
            match random.below(12) {
                0 => drop(filesystem.commit()?),
                1..4 => drop(filesystem.fdatasync(file)?),
                _ => drop(filesystem.fsync(file)?),
            }
            let mut synced = synced.lock().expect("no thread panics");
            let mut now = *synced.last().expect("there is a first one");
            now[thread] = round;
            synced.push(now);
            lab.mark(synced.len() as u64 - 1);
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let work = &work;
        let running: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(thread, file)| scope.spawn(move || work(thread, *file)))
            .collect();
        for thread in running {
            thread.join().expect("no thread panics")?;
        }
        Ok(())
    })?;
    let history = lab.history();
    filesystem.abandon();
    Ok(Threads {
        history,
        synced: synced.into_inner()?,
    })
}

/// Each file is as its thread last synced it, or as it synced it later: all of it of one round.
fn expect_rounds(filesystem: &WritableFilesystem, least: &[u64; THREADS]) -> Result<()> {
    for (thread, least) in least.iter().enumerate() {
        let name = format!("thread-{thread}");
        let entry = filesystem.lookup(TOP, name.as_bytes())?;
        let file = entry.with_context(|| format!("{name} is not there"))?.target;
        let mut content = vec![0; PIECE_BYTES + 1];
        let read = filesystem.read_at(file, FileOffset::MIN, &mut content)?;
        let rounds: BTreeSet<u64> = content[..read]
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
            .collect();
        let is_whole = read == 0 || read == PIECE_BYTES && rounds.len() == 1;
        let round = rounds.first().copied().unwrap_or(0);
        ensure!(
            is_whole && round >= *least,
            "{name} has {read} bytes of the rounds {rounds:?}, and had synced round {least}"
        );
    }
    Ok(())
}

fn threads(devices: &[usize], options: &Options, salt: u64) {
    let count = number("BUTTRESS_FSYNC_HISTORIES", 8);
    let first = number("BUTTRESS_CRASH_SEED", 1) + salt * 1_000_003;
    for seed in first..first + count {
        let run = run_threads(empty(devices, options).unwrap(), seed).unwrap();
        let mut random = Random::new(seed ^ 0x7eed);
        for _ in 0..number("BUTTRESS_CRASH_CUTS", 24) {
            let cut = usize::try_from(random.below(run.history.len() as u64 + 1)).unwrap();
            let Some(done) = run.history.last_mark(cut) else {
                continue;
            };
            let seed_of_losses = random.number();
            let images = run
                .history
                .images_at(cut, Outcome::Drawn { seed: seed_of_losses });
            let told = format!("seed {seed}, cut at event {cut}, losses {seed_of_losses}");
            let filesystem = open_for_writing(&images).context(told.clone()).unwrap();
            expect_rounds(&filesystem, &run.synced[done as usize])
                .context(told.clone())
                .unwrap();
            // So that there is something to commit, which mends superblocks that were torn.
            filesystem.set_label(b"after the cut").unwrap();
            filesystem.close().unwrap();
            open_checked_but_for_holes(&images).context(told).unwrap();
        }
    }
}

#[test]
fn by_several_threads() {
    threads(&[128 << 20], &Options::default(), 7);
}

#[test]
fn by_several_threads_on_two_devices() {
    let options = Options {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        ..Options::default()
    };
    threads(&[160 << 20; 2], &options, 8);
}

#[test]
fn on_one_device() {
    histories(&[128 << 20], &Options::default(), 0);
    assert!(
        KERNEL_LOOKS.load(Ordering::Relaxed) > 0 || kernel_missing().is_some(),
        "the kernel looked at nothing"
    );
}

#[test]
fn with_small_nodes() {
    let options = Options {
        node_bytes: Some(4096),
        ..Options::default()
    };
    histories(&[128 << 20], &options, 1);
}

#[test]
fn where_holes_have_items() {
    let options = Options {
        features: vec![(Feature::NoHoles, false)],
        ..Options::default()
    };
    histories(&[128 << 20], &options, 2);
}

#[test]
fn in_mixed_groups() {
    let options = Options {
        features: vec![(Feature::MixedBlockGroups, true)],
        ..Options::default()
    };
    histories(&[72 << 20], &options, 3);
}

#[test]
fn on_two_devices_with_a_copy_on_each() {
    let options = Options {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        ..Options::default()
    };
    histories(&[160 << 20; 2], &options, 4);
}

#[test]
fn on_three_devices_with_parity() {
    let options = Options {
        data: Some(Profile::Raid5),
        metadata: Some(Profile::Raid5),
        ..Options::default()
    };
    histories(&[160 << 20; 3], &options, 5);
}
