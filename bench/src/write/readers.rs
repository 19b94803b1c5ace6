//! The waits of readers while a writer writes and commits.
//!
//! Four threads list and read for some seconds alone, two on a snapshot and two on the newest tree.
//! They then run as long beside a writer, which makes files of 2,000 bytes and commits five times a
//! second. The writer first makes an equal number of files on both sides, then as many as each side
//! can make. A read resolves a path and reads the file; every 64th call lists a directory of 100
//! names instead. The benchmark takes the time of each call. Readers of the newest tree read live.
//! The kernel's side reads from its mount's page cache.

use super::new_image;
use super::steps::{TOP, make_inline_files, open};
use crate::Scale;
use anyhow::{Context, Result};
use buttress::unstable::fs::Filesystem;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{FileOffset, Follow, Location, NewInode, SubvolumeId};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run as run_tool};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The name of the job.
pub(super) const NAME: &str = "readers";

const FILES: u64 = 20_000;
const LISTED_NAMES: usize = 100;
const READERS: u64 = 4;
/// The writer's rate for equal work on both sides, below the capability of each.
const FILES_A_SECOND: u32 = 3000;
/// The number of files that the writer makes between two checks of its pace.
const BURST: u32 = 16;
const COMMIT_EVERY: Duration = Duration::from_millis(200);

/// The calls of readers and of the writer on one side.
trait Side: Sync {
    /// Reads a file, of the snapshot or of the newest tree.
    fn read(&self, of_snapshot: bool, path: &str) -> Result<()>;
    /// Lists the directory of 100 names.
    fn list(&self, of_snapshot: bool) -> Result<()>;
    /// Makes a file.
    fn make(&self, name: &str) -> Result<()>;
    /// Makes all changes durable.
    fn commit(&self) -> Result<()>;
}

struct Ours {
    filesystem: WritableFilesystem,
    view: Filesystem,
    snapshot: Location,
}

impl Ours {
    fn new(image: &Path) -> Result<Self> {
        let filesystem = open(image, WriteOptions::default())?;
        make_inline_files(&filesystem, TOP, FILES)?;
        let listed = filesystem.make_directory(TOP, b"listed", &NewInode::of_root(0o755))?;
        for number in 0..LISTED_NAMES {
            filesystem.create(listed, format!("{number}").as_bytes(), &NewInode::of_root(0o644))?;
        }
        filesystem.make_directory(TOP, b"new", &NewInode::of_root(0o755))?;
        let id = filesystem
            .subvolumes()
            .snapshot(SubvolumeId::TOP_LEVEL, TOP, b"snapshot", true)?;
        filesystem.commit()?;
        Ok(Self {
            view: filesystem.view(),
            filesystem,
            snapshot: Location::root_of(id),
        })
    }

    /// Returns the location of a path of plain names in the newest tree.
    fn place_of(&self, path: &str) -> Result<Location> {
        path.split('/').try_fold(TOP, |directory, name| {
            let entry = self.filesystem.live().lookup(directory, name.as_bytes())?;
            Ok(entry.with_context(|| format!("{path} is not there"))?.target)
        })
    }
}

impl Side for Ours {
    fn read(&self, of_snapshot: bool, path: &str) -> Result<()> {
        let mut content = [0; 4096];
        if of_snapshot {
            let file = self.view.resolve(self.snapshot, path.as_bytes(), Follow::All)?;
            self.view
                .open_file(file)?
                .read_at(FileOffset::new(0), &mut content)?;
        } else {
            let file = self.place_of(path)?;
            self.filesystem
                .live()
                .read_at(file, FileOffset::new(0), &mut content)?;
        }
        Ok(())
    }

    fn list(&self, of_snapshot: bool) -> Result<()> {
        let count = if of_snapshot {
            let listed = self.view.resolve(self.snapshot, b"listed", Follow::All)?;
            self.view.read_dir(listed)?.collect::<Result<Vec<_>, _>>()?.len()
        } else {
            self.filesystem
                .live()
                .list(self.place_of("listed")?, 0, LISTED_NAMES + 1)?
                .len()
        };
        anyhow::ensure!(count == LISTED_NAMES, "{count} names");
        Ok(())
    }

    fn make(&self, name: &str) -> Result<()> {
        let directory = self
            .filesystem
            .live()
            .lookup(TOP, b"new")?
            .context("the directory")?;
        let made = self
            .filesystem
            .create(directory.target, name.as_bytes(), &NewInode::of_root(0o644))?;
        self.filesystem
            .write_at(made, FileOffset::new(0), &[b'y'; 2000])?;
        Ok(())
    }

    fn commit(&self) -> Result<()> {
        self.filesystem.commit()?;
        Ok(())
    }
}

struct Kernel {
    top: PathBuf,
}

impl Kernel {
    fn new(top: &Path) -> Result<Self> {
        for job in 0..4 {
            std::fs::create_dir(top.join(format!("{job}")))?;
        }
        for number in 0..FILES {
            let path = top.join(format!("{}/file_{number}", number % 4));
            File::create(path)?.write_all(&[b'x'; 2000])?;
        }
        std::fs::create_dir(top.join("new"))?;
        std::fs::create_dir(top.join("listed"))?;
        for number in 0..LISTED_NAMES {
            File::create(top.join(format!("listed/{number}")))?;
        }
        run_tool(
            Command::new(newest("btrfs"))
                .args(["-q", "subvolume", "snapshot", "-r"])
                .args([top, top.join("snapshot").as_path()]),
        )?;
        Ok(Self { top: top.to_owned() })
    }

    fn root(&self, of_snapshot: bool) -> PathBuf {
        if of_snapshot {
            self.top.join("snapshot")
        } else {
            self.top.clone()
        }
    }
}

impl Side for Kernel {
    fn read(&self, of_snapshot: bool, path: &str) -> Result<()> {
        let mut content = [0; 4096];
        let _length = File::open(self.root(of_snapshot).join(path))?.read(&mut content)?;
        Ok(())
    }

    fn list(&self, of_snapshot: bool) -> Result<()> {
        let names = std::fs::read_dir(self.root(of_snapshot).join("listed"))?.count();
        anyhow::ensure!(names == LISTED_NAMES, "{names} names");
        Ok(())
    }

    fn make(&self, name: &str) -> Result<()> {
        File::create(self.top.join("new").join(name))?.write_all(&[b'y'; 2000])?;
        Ok(())
    }

    fn commit(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.top)?)?)
    }
}

/// The times of all calls of one kind, and the writer's work during them.
#[derive(Default)]
struct Times {
    snapshot: Vec<Duration>,
    newest: Vec<Duration>,
    made: u64,
    commits: u64,
}

fn reader(side: &dyn Side, number: u64, ended: &AtomicBool) -> Result<Vec<Duration>> {
    let of_snapshot = number.is_multiple_of(2);
    let mut random = Random::new(number);
    let mut times = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let file = random.below(FILES);
        let path = format!("{}/file_{file}", file % 4);
        let start = Instant::now();
        if times.len() % 64 == 63 {
            side.list(of_snapshot)?;
        } else {
            side.read(of_snapshot, &path)?;
        }
        times.push(start.elapsed());
    }
    Ok(times)
}

/// The load beside the readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// A writer that makes a fixed number of files a second.
    Paced,
    /// A writer that makes as many files as it can.
    Unpaced,
}

fn writer(side: &dyn Side, beside: Beside, ended: &AtomicBool) -> Result<(u64, u64)> {
    let (mut made, mut commits) = (0_u32, 0);
    let begin = Instant::now();
    let mut committed = begin;
    while !ended.load(Ordering::Relaxed) {
        side.make(&format!("{beside:?}_{made}"))?;
        made += 1;
        if beside == Beside::Paced && made.is_multiple_of(BURST) {
            let due = begin + Duration::from_secs(1) * made / FILES_A_SECOND;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        if committed.elapsed() >= COMMIT_EVERY {
            side.commit()?;
            commits += 1;
            committed = Instant::now();
        }
    }
    Ok((made.into(), commits))
}

fn phase(side: &dyn Side, beside: Beside, length: Duration) -> Result<Times> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|number| {
                scope.spawn({
                    let ended = &ended;
                    move || reader(side, number, ended)
                })
            })
            .collect();
        let writes = (beside != Beside::Nothing).then(|| scope.spawn(|| writer(side, beside, &ended)));
        std::thread::sleep(length);
        ended.store(true, Ordering::Relaxed);
        let mut times = Times::default();
        for (number, reader) in readers.into_iter().enumerate() {
            let found = reader.join().ok().context("a reader panicked")??;
            if number.is_multiple_of(2) {
                times.snapshot.extend(found);
            } else {
                times.newest.extend(found);
            }
        }
        if let Some(writes) = writes {
            (times.made, times.commits) = writes.join().ok().context("the writer panicked")??;
        }
        Ok(times)
    })
}

fn row(side: &str, tree: &str, times: &Times, mut found: Vec<Duration>) -> String {
    found.sort_unstable();
    let at = |part: f64| {
        let last = found.len().saturating_sub(1);
        let place = (last as f64 * part) as usize;
        found.get(place).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    let writer = match times.made {
        0 => "none".to_owned(),
        made => format!("{made} files, {} commits", times.commits),
    };
    format!(
        "| {side} | {tree} | {writer} | {} | {:.0} | {:.0} | {:.0} |",
        found.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

/// Returns the number of calls on the newest tree in each phase.
fn table(name: &str, side: &dyn Side, length: Duration) -> Result<[usize; 3]> {
    let mut calls = [0; 3];
    for (calls, beside) in calls
        .iter_mut()
        .zip([Beside::Nothing, Beside::Paced, Beside::Unpaced])
    {
        let mut times = phase(side, beside, length)?;
        *calls = times.newest.len();
        let (snapshot, newest) = (
            core::mem::take(&mut times.snapshot),
            core::mem::take(&mut times.newest),
        );
        println!("{}", row(name, "snapshot", &times, snapshot));
        println!("{}", row(name, "newest", &times, newest));
    }
    Ok(calls)
}

/// Runs both sides and prints their table.
pub(super) fn run(scale: Scale) -> Result<()> {
    let length = Duration::from_millis(if scale.draws { 5000 } else { 300 });
    println!(
        "\n| side | tree | writer | calls | median us | 99 % us | longest us |\n|---|---|---|---|---|---|---|"
    );
    let image = new_image("readers", 4)?;
    let ours = Ours::new(&image)?;
    let by_ours = table("buttress", &ours, length)?;
    drop(ours);
    let image = new_image("readers", 4)?;
    let mount = Mount::new(std::slice::from_ref(&image), "")?;
    let by_kernel = table("kernel", &Kernel::new(mount.path())?, length)?;
    mount.close()?;
    let names = ["alone", "beside as many files", "beside as many as each can"];
    for ((name, ours), kernel) in names.into_iter().zip(by_ours).zip(by_kernel) {
        let ratio = ours as f64 / kernel.max(1) as f64;
        println!("newest tree, {name}: {ratio:.2} of the kernel's calls");
    }
    std::fs::remove_file(image)?;
    Ok(())
}
