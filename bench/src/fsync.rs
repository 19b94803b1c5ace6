//! `fsync` and `fdatasync`, against the kernel's btrfs, ext4 and xfs on a loop device, on images in
//! memory and on disk.
//!
//! - `directory`: the script of the kernel's directory-logging change. It adds files to a directory
//!   and syncs the directory after every hundred; the table has a histogram of the syncs' times;
//! - `overwrite`: 4 KiB anywhere in a large file, each synced;
//! - `append`: lines of a log file, each made durable with `fdatasync`;
//! - `mail`: create, write 4 KiB, sync, rename, sync the directory;
//! - `threads`: separate files with a sync after each write, by 1, 2, 8 and 32 threads;
//! - `joined`: the same calls by Buttress alone, on a device whose flush takes a millisecond;
//! - `account`: the bytes and flushes of one sync at the device, both sides on a loop device.
//!
//! Every side makes the same calls in one process. Buttress works on the image file, the kernel on
//! a loop device over an image. `BUTTRESS_BENCH_FILES` sets the number of the directory's files,
//! `BUTTRESS_BENCH_PLACES` (`memory`, `disk`) the places of the images, and `BUTTRESS_BENCH_SIDES`
//! (`buttress`, `btrfs`, `ext4`, `xfs`) the sides.

use crate::Scale;
use crate::images::folder;
use crate::report::{median, sorted};
use anyhow::{Context, Result, bail, ensure};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{DeviceOptions, FileOffset, Location, NewInode, RenameMode, SubvolumeId};
use buttress_device::{Backend, Device, Engine};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::tools::{newest, run};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of files between two syncs of the directory, as in the original script.
const SYNC_EVERY: usize = 100;

const BLOCK: usize = 4096;

/// The system calls that all sides of the benchmark make.
pub(crate) trait Calls: Sync {
    type Handle: Send + Sync;
    fn directory(&self, name: &str) -> Result<Self::Handle>;
    fn create(&self, directory: &Self::Handle, name: &str) -> Result<Self::Handle>;
    fn write(&self, file: &Self::Handle, offset: u64, bytes: &[u8]) -> Result<()>;
    fn sync(&self, what: &Self::Handle, only_data: bool) -> Result<()>;
    fn rename(&self, directory: &Self::Handle, from: &str, to: &str) -> Result<()>;
    /// Commits all changes so far.
    fn settle(&self) -> Result<()>;
}

/// A mounted file system of the kernel.
struct Kernel {
    device: LoopDevice,
    top: tempfile::TempDir,
}

struct Opened {
    file: File,
    path: PathBuf,
}

impl Kernel {
    fn new(kind: &str, image: &Path) -> Result<Self> {
        // Only btrfs's own programs may be in another folder than the system's.
        let name = format!("mkfs.{kind}");
        let program = if kind == "btrfs" {
            newest(&name)
        } else {
            name.into()
        };
        let quiet: &[&str] = if kind == "ext4" {
            &["-q", "-F"]
        } else {
            &["-q", "-f"]
        };
        run(Command::new(program).args(quiet).arg(image))?;
        let device = LoopDevice::attach(image)?;
        let top = tempfile::tempdir()?;
        run(Command::new("mount")
            .args(["-t", kind])
            .arg(device.path())
            .arg(top.path()))?;
        Ok(Self { device, top })
    }

    fn close(self) -> Result<()> {
        run(Command::new("umount").arg(self.top.path())).map(drop)
    }
}

impl Calls for Kernel {
    type Handle = Opened;

    fn directory(&self, name: &str) -> Result<Opened> {
        let path = self.top.path().join(name);
        std::fs::create_dir(&path)?;
        Ok(Opened {
            file: File::open(&path)?,
            path,
        })
    }

    fn create(&self, directory: &Opened, name: &str) -> Result<Opened> {
        let path = directory.path.join(name);
        Ok(Opened {
            file: File::create_new(&path)?,
            path,
        })
    }

    fn write(&self, file: &Opened, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(file.file.write_all_at(bytes, offset)?)
    }

    fn sync(&self, what: &Opened, only_data: bool) -> Result<()> {
        let synced = match only_data {
            true => what.file.sync_data(),
            false => what.file.sync_all(),
        };
        Ok(synced?)
    }

    fn rename(&self, directory: &Opened, from: &str, to: &str) -> Result<()> {
        Ok(std::fs::rename(
            directory.path.join(from),
            directory.path.join(to),
        )?)
    }

    fn settle(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.top.path())?)?)
    }
}

/// The side of Buttress.
pub(crate) struct Ours(WritableFilesystem);

impl Ours {
    fn new(image: &Path) -> Result<Self> {
        run(Command::new(newest("mkfs.btrfs")).args(["-q", "-f"]).arg(image))?;
        let options = DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        };
        Self::on(Device::open(image, &options)?)
    }

    pub(crate) fn on(device: Device) -> Result<Self> {
        let filesystem = OpenOptions::new(vec![device]).open()?;
        Ok(Self(WritableFilesystem::new(
            filesystem,
            WriteOptions::default(),
        )?))
    }

    pub(crate) fn close(self) -> Result<()> {
        self.0.close()?;
        Ok(())
    }
}

impl Calls for Ours {
    type Handle = Location;

    fn directory(&self, name: &str) -> Result<Location> {
        let top = Location::root_of(SubvolumeId::TOP_LEVEL);
        let new = NewInode::of_root(0o755);
        Ok(self.0.make_directory(top, name.as_bytes(), &new)?)
    }

    fn create(&self, directory: &Location, name: &str) -> Result<Location> {
        Ok(self
            .0
            .create(*directory, name.as_bytes(), &NewInode::of_root(0o644))?)
    }

    fn write(&self, file: &Location, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_at(*file, FileOffset::new(offset), bytes)?;
        Ok(())
    }

    fn sync(&self, what: &Location, only_data: bool) -> Result<()> {
        match only_data {
            true => self.0.log_tree().fdatasync(*what)?,
            false => self.0.log_tree().fsync(*what)?,
        };
        Ok(())
    }

    fn rename(&self, directory: &Location, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        Ok(self
            .0
            .rename(*directory, from, *directory, to, RenameMode::Replace)?)
    }

    fn settle(&self) -> Result<()> {
        self.0.commit()?;
        Ok(())
    }
}

/// The number of calls of each job.
#[derive(Clone, Copy)]
pub(crate) struct Amounts {
    pub(crate) files: usize,
    pub(crate) file_bytes: u64,
    pub(crate) calls: usize,
}

impl Amounts {
    fn of(scale: Scale) -> Result<Self> {
        let is_full = scale.draws;
        let files = match std::env::var("BUTTRESS_BENCH_FILES") {
            Ok(text) => text
                .parse()
                .context("BUTTRESS_BENCH_FILES is a number of files")?,
            Err(_) if is_full => 100_000,
            Err(_) => 2000,
        };
        Ok(Self {
            files,
            file_bytes: if is_full { 8 << 30 } else { 8 << 20 },
            calls: if is_full { 2000 } else { 50 },
        })
    }
}

fn milliseconds(call: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed().as_secs_f64() * 1000.0)
}

fn directory<C: Calls>(calls: &C, amounts: Amounts) -> Result<Vec<f64>> {
    let directory = calls.directory("testdir")?;
    let mut times = Vec::new();
    for number in 1..=amounts.files {
        calls.create(&directory, &format!("file_{number}"))?;
        if number % SYNC_EVERY == 0 {
            times.push(milliseconds(|| calls.sync(&directory, false))?);
        }
    }
    Ok(times)
}

fn overwrite<C: Calls>(calls: &C, amounts: Amounts) -> Result<Vec<f64>> {
    let directory = calls.directory("overwrite")?;
    let file = calls.create(&directory, "file")?;
    let piece = vec![b'x'; 1 << 20];
    for at in (0..amounts.file_bytes).step_by(piece.len()) {
        calls.write(&file, at, &piece)?;
    }
    calls.settle()?;
    let mut random = Random::new(7);
    let blocks = amounts.file_bytes / BLOCK as u64;
    let once = |_| {
        let at = random.below(blocks) * BLOCK as u64;
        calls.write(&file, at, &[b'y'; BLOCK])?;
        milliseconds(|| calls.sync(&file, false))
    };
    (0..amounts.calls).map(once).collect()
}

fn append<C: Calls>(calls: &C, amounts: Amounts) -> Result<Vec<f64>> {
    let directory = calls.directory("append")?;
    let file = calls.create(&directory, "log")?;
    calls.settle()?;
    let line = [b'l'; 120];
    let once = |number| {
        calls.write(&file, number as u64 * line.len() as u64, &line)?;
        milliseconds(|| calls.sync(&file, true))
    };
    (0..amounts.calls).map(once).collect()
}

fn mail<C: Calls>(calls: &C, amounts: Amounts) -> Result<Vec<f64>> {
    let directory = calls.directory("mail")?;
    let once = |number| {
        milliseconds(|| {
            let (temporary, message) = (format!("tmp.{number}"), format!("message.{number}"));
            let file = calls.create(&directory, &temporary)?;
            calls.write(&file, 0, &[b'm'; BLOCK])?;
            calls.sync(&file, false)?;
            calls.rename(&directory, &temporary, &message)?;
            calls.sync(&directory, false)
        })
    };
    (0..amounts.calls).map(once).collect()
}

/// Returns the milliseconds of each sync, of all threads together.
fn threads<C: Calls>(calls: &C, count: usize, amounts: Amounts) -> Result<Vec<f64>> {
    let directory = calls.directory(&format!("threads-{count}"))?;
    let files = (0..count)
        .map(|number| calls.create(&directory, &format!("file-{number}")))
        .collect::<Result<Vec<_>>>()?;
    calls.settle()?;
    let each = (amounts.calls / count).max(1);
    let start = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let running: Vec<_> = files
            .iter()
            .map(|file| {
                scope.spawn(move || -> Result<()> {
                    for number in 0..each {
                        calls.write(file, (number * BLOCK) as u64, &[b't'; BLOCK])?;
                        calls.sync(file, false)?;
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in running {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(())
    })?;
    Ok(vec![
        start.elapsed().as_secs_f64() * 1000.0 / (each * count) as f64,
    ])
}

/// Runs one job on one side, and returns the milliseconds of each sync.
pub(crate) fn job<C: Calls>(name: &str, calls: &C, amounts: Amounts) -> Result<Vec<f64>> {
    match name {
        "directory" => directory(calls, amounts),
        "overwrite" => overwrite(calls, amounts),
        "append" => append(calls, amounts),
        "mail" => mail(calls, amounts),
        _ => match name.strip_prefix("threads ") {
            Some(count) => threads(calls, count.parse()?, amounts),
            None => bail!("there is no job {name}"),
        },
    }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// Prints the median and the mean of each tenth of the syncs.
fn tenths(times: &[f64]) {
    let tenth = (times.len() / 10).max(1);
    let of = |part: &[f64]| format!("{:.3}/{:.3}", median(&sorted(part.to_vec())), mean(part));
    let all: Vec<String> = times.chunks(tenth).map(of).collect();
    println!("   Median/mean of each tenth: {}", all.join(" "));
}

/// Prints the figures of the syncs in the form of the original script.
fn histogram(side: &str, times: &[f64]) {
    let ordered = sorted(times.to_vec());
    let (Some(least), Some(most)) = (ordered.first(), ordered.last()) else {
        return;
    };
    let average = mean(times);
    let spread = (times.iter().map(|time| (time - average).powi(2)).sum::<f64>() / times.len() as f64).sqrt();
    let percentile = |percent: usize| ordered[(ordered.len() * percent / 100).min(ordered.len() - 1)];
    println!("{side}: histogram of directory fsync duration in ms:\n");
    println!("   Count: {}", times.len());
    println!(
        "   Range: {least:.3} - {most:.3}; Mean: {average:.3}; Median: {:.3}; Stddev: {spread:.3}",
        median(&ordered)
    );
    println!(
        "   Percentiles:  90th: {:.3}; 95th: {:.3}; 99th: {:.3}",
        percentile(90),
        percentile(95),
        percentile(99)
    );
    // Buckets of the histogram grow by a constant factor, as in the original script.
    let factor = (most / least.max(0.001)).powf(0.1).max(1.01);
    let (mut from, mut rest) = (*least, ordered.as_slice());
    let mut buckets = Vec::new();
    while !rest.is_empty() {
        let to = if buckets.len() == 9 {
            f64::INFINITY
        } else {
            from * factor
        };
        let inside = rest.partition_point(|time| *time < to);
        buckets.push((from, to.min(*most), inside));
        rest = &rest[inside..];
        from = to;
    }
    let highest = buckets
        .iter()
        .map(|(_, _, count)| *count)
        .max()
        .unwrap_or(1)
        .max(1);
    for (from, to, count) in buckets {
        println!(
            "   {from:>9.3} - {to:>9.3}: {count:>6} {}",
            "#".repeat(count * 53 / highest)
        );
    }
    let tenth = (times.len() / 10).max(1);
    tenths(times);
    let (first, last) = (mean(&times[..tenth]), mean(&times[times.len() - tenth..]));
    println!(
        "   First tenth: {first:.3}; last tenth: {last:.3}; ratio {:.2}\n",
        last / first
    );
}

/// A new image file of a side. Dropping the image removes the file.
pub(crate) struct Image(pub(crate) PathBuf);

impl Image {
    pub(crate) fn new(folder: &Path, name: &str, gib: u64) -> Result<Self> {
        let path = folder.join(format!("buttress-fsync-{name}-{}.img", std::process::id()));
        File::create(&path)?.set_len(gib << 30)?;
        Ok(Self(path))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn side(side: &str, folder: &Path, name: &str, amounts: Amounts) -> Result<Vec<f64>> {
    let image = Image::new(folder, side, 16)?;
    if side == "buttress" {
        let ours = Ours::new(&image.0)?;
        let times = job(name, &ours, amounts)?;
        let statistics = ours.0.log_tree().statistics();
        let commits: u64 = statistics.commits.iter().map(|(_, count)| *count).sum();
        println!(
            "({name}: {} logs written, {} joined, {commits} commits instead {:?})",
            statistics.written, statistics.joined, statistics.commits
        );
        ours.0.close()?;
        return Ok(times);
    }
    let kernel = Kernel::new(side, &image.0)?;
    let times = job(name, &kernel, amounts);
    kernel.close()?;
    times
}

/// A device whose flush takes a millisecond: the best case of a disk without a cache.
#[derive(Debug)]
struct SlowFlush(Arc<dyn Backend>);

impl Backend for SlowFlush {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset: u64, buffers: &mut [&mut [u8]]) -> std::io::Result<()> {
        self.0.read_vectored_at(offset, buffers)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn flush(&self) -> std::io::Result<()> {
        std::thread::sleep(Duration::from_millis(1));
        self.0.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> std::io::Result<()> {
        self.0.discard(offset, length)
    }

    fn zero(&self, offset: u64, length: u64) -> std::io::Result<()> {
        self.0.zero(offset, length)
    }
}

/// Prints the syncs a second of several numbers of threads, on a device whose flush takes a
/// millisecond.
fn joined(amounts: Amounts) -> Result<()> {
    println!("| threads | syncs a second | times those of one | logs written |\n|---|---|---|---|");
    let mut alone = None;
    for count in [1, 2, 8, 32] {
        let image = Image::new(Path::new("/dev/shm"), "joined", 2)?;
        run(Command::new(newest("mkfs.btrfs"))
            .args(["-q", "-f"])
            .arg(&image.0))?;
        let options = DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        };
        let slow = SlowFlush(Device::open_backend(&image.0, &options)?);
        let ours = Ours::on(Device::with_backend(Arc::new(slow), Engine::Threads))?;
        let calls = amounts.calls.min(600) * count.min(8);
        let times = threads(&ours, count, Amounts { calls, ..amounts })?;
        let rate = 1000.0 / mean(&times);
        let ratio = rate / *alone.get_or_insert(rate);
        let written = ours.0.log_tree().statistics().written;
        println!("| {count} | {rate:.0} | {ratio:.2} | {written} |");
        ours.0.close()?;
    }
    println!();
    Ok(())
}

/// Returns the sectors written to a device and its flushes so far.
fn written(device: &Path) -> Result<(u64, u64)> {
    let name = device.file_name().context("a device has a name")?;
    let text = std::fs::read_to_string(Path::new("/sys/block").join(name).join("stat"))?;
    let fields: Vec<u64> = text
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    ensure!(fields.len() > 15, "a device without counts of flushes: {text}");
    Ok((fields[6], fields[15]))
}

fn account_of<C: Calls>(calls: &C, device: &Path, amounts: Amounts) -> Result<(f64, f64)> {
    let directory = calls.directory("account")?;
    let file = calls.create(&directory, "file")?;
    calls.write(&file, 0, &vec![b'a'; 1 << 20])?;
    calls.settle()?;
    let (sectors, flushes) = written(device)?;
    let count = amounts.calls.min(200);
    for number in 0..count {
        calls.write(&file, (number % 200) as u64 * BLOCK as u64, &[b'b'; BLOCK])?;
        calls.sync(&file, false)?;
    }
    let after = written(device)?;
    let each = |less: u64, more: u64| (more - less) as f64 / count as f64;
    Ok((each(sectors, after.0) * 512.0, each(flushes, after.1)))
}

fn account(amounts: Amounts) -> Result<()> {
    let folder = Path::new("/dev/shm");
    let (image, other) = (Image::new(folder, "account", 2)?, Image::new(folder, "other", 2)?);
    let kernel = Kernel::new("btrfs", &image.0)?;
    let theirs = account_of(&kernel, kernel.device.path(), amounts);
    kernel.close()?;
    let theirs = theirs?;
    let device = LoopDevice::attach(&other.0)?;
    let ours = Ours::new(device.path())?;
    let own = account_of(&ours, device.path(), amounts)?;
    ours.0.close()?;
    println!("| fsync of a 4 KiB overwrite | buttress | btrfs | ratio |\n|---|---|---|---|");
    println!(
        "| bytes written | {:.0} | {:.0} | {:.2} |",
        own.0,
        theirs.0,
        own.0 / theirs.0
    );
    println!(
        "| flushes | {:.2} | {:.2} | {:.2} |\n",
        own.1,
        theirs.1,
        own.1 / theirs.1
    );
    Ok(())
}

const JOBS: [&str; 8] = [
    "directory",
    "overwrite",
    "append",
    "mail",
    "threads 1",
    "threads 2",
    "threads 8",
    "threads 32",
];

pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    let amounts = Amounts::of(scale)?;
    let is_wanted = |job: &str| wanted.is_empty() || wanted.iter().any(|word| job.starts_with(word));
    let disk = folder()?;
    let sides =
        std::env::var("BUTTRESS_BENCH_SIDES").unwrap_or_else(|_| "buttress btrfs ext4 xfs".to_owned());
    let mut rows = Vec::new();
    let places = std::env::var("BUTTRESS_BENCH_PLACES").unwrap_or_else(|_| "memory disk".to_owned());
    let all = [("memory", Path::new("/dev/shm")), ("disk", disk.as_path())];
    for (place, folder) in all.into_iter().filter(|(place, _)| places.contains(place)) {
        for name in JOBS.iter().filter(|name| is_wanted(name)) {
            let mut means = Vec::new();
            for kind in ["buttress", "btrfs", "ext4", "xfs"]
                .into_iter()
                .filter(|kind| sides.contains(kind))
            {
                let times = side(kind, folder, name, amounts)
                    .with_context(|| format!("{name} by {kind}, {place}"))?;
                if *name == "directory" && ["buttress", "btrfs"].contains(&kind) {
                    histogram(&format!("{kind}, {place}"), &times);
                }
                means.push(mean(&times));
            }
            let ratio = means.get(1).map_or(f64::NAN, |kernel| means[0] / kernel);
            let means: Vec<String> = means.iter().map(|mean| format!("{mean:.3}")).collect();
            rows.push(format!(
                "| {name} | {place} | {} | {ratio:.2} |",
                means.join(" | ")
            ));
        }
    }
    println!(
        "| job | place | buttress ms | btrfs ms | ext4 ms | xfs ms | ratio to btrfs |\n|---|---|---|---|---|---|---|"
    );
    rows.iter().for_each(|row| println!("{row}"));
    println!();
    if is_wanted("joined") {
        joined(amounts)?;
    }
    if is_wanted("account") {
        account(amounts)?;
    }
    Ok(())
}
