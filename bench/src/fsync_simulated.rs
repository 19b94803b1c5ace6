//! `fsync simulated`: the cost of a sync on the simulated spinning disk, beside a commit in its
//! place.
//!
//! Each job of [`super::fsync`] runs twice on a new volume: once with logged syncs, once with a
//! commit for each sync. The figures count only the time of the syncs: flushes, bytes, time on the
//! disk's clock, and *seeks*. A seek is a request that does not begin at the end of the previous
//! one. The volume is on a sparse file, and docs/internals/simulated-disks.md describes the disk.
//! With `BUTTRESS_BENCH_TRACE` the benchmark also prints the place and length of the requests of
//! some syncs.

use crate::Scale;
use crate::fsync::{Amounts, Calls, Image, Ours, job};
use anyhow::{Result, bail};
use buttress::{DeviceOptions, Location};
use buttress_device::{Backend, Device, VirtualClock};
use buttress_lab::Model;
use buttress_oracle::tools::{newest, run};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The counts of a device's requests.
#[derive(Debug, Default)]
struct Counts {
    seeks: AtomicU64,
    bytes: AtomicU64,
    flushes: AtomicU64,
    /// The end of the last request, in bytes.
    end: AtomicU64,
    /// The requests of a traced sync.
    trace: Mutex<Option<Vec<String>>>,
}

impl Counts {
    fn note(&self, what: impl FnOnce() -> String) {
        if let Ok(mut trace) = self.trace.lock()
            && let Some(trace) = trace.as_mut()
        {
            trace.push(what());
        }
    }

    fn moved(&self, what: &str, offset: u64, bytes: u64) {
        self.note(|| format!("{what} {:.3} MiB +{} KiB", offset as f64 / 1048576.0, bytes >> 10));
        let end = self.end.swap(offset + bytes, Ordering::Relaxed);
        self.seeks.fetch_add(u64::from(end != offset), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; 3] {
        [&self.seeks, &self.bytes, &self.flushes].map(|count| count.load(Ordering::Relaxed))
    }
}

/// A device that counts requests, in the order in which the disk serves them.
#[derive(Debug)]
struct Counting {
    backend: Arc<dyn Backend>,
    counts: Arc<Counts>,
}

impl Backend for Counting {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn size_bytes(&self) -> u64 {
        self.backend.size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset: u64, buffers: &mut [&mut [u8]]) -> std::io::Result<()> {
        let bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.counts.moved("read", offset, bytes);
        self.backend.read_vectored_at(offset, buffers)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.counts.moved("write", offset, bytes.len() as u64);
        self.backend.write_at(offset, bytes)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.counts.note(|| "flush".to_owned());
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        self.backend.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> std::io::Result<()> {
        self.backend.discard(offset, length)
    }

    fn zero(&self, offset: u64, length: u64) -> std::io::Result<()> {
        self.backend.zero(offset, length)
    }
}

/// Buttress on the simulated disk, with the counts of its syncs.
struct Simulated {
    ours: Ours,
    counts: Arc<Counts>,
    clock: VirtualClock,
    commits: bool,
    traces: bool,
    syncs: AtomicU64,
    of_syncs: [AtomicU64; 4],
}

impl Simulated {
    fn new(image: &Path, commits: bool) -> Result<Self> {
        run(Command::new(newest("mkfs.btrfs")).args(["-q", "-f"]).arg(image))?;
        let options = DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        };
        let (counts, clock) = (Arc::new(Counts::default()), VirtualClock::new());
        let backend = Counting {
            backend: Device::open_backend(image, &options)?,
            counts: Arc::clone(&counts),
        };
        let device = buttress_lab::simulated(Arc::new(backend), &Model::spinning_7200(), &clock);
        Ok(Self {
            ours: Ours::on(device)?,
            counts,
            clock,
            commits,
            traces: std::env::var_os("BUTTRESS_BENCH_TRACE").is_some(),
            syncs: AtomicU64::new(0),
            of_syncs: Default::default(),
        })
    }

    fn now(&self) -> [u64; 4] {
        let [seeks, bytes, flushes] = self.counts.read();
        let nanoseconds = u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX);
        [seeks, bytes, flushes, nanoseconds]
    }

    /// Returns the average seeks, bytes, flushes and milliseconds of a sync.
    fn each(&self) -> [f64; 4] {
        let syncs = self.syncs.load(Ordering::Relaxed).max(1) as f64;
        let [seeks, bytes, flushes, nanoseconds] =
            [0, 1, 2, 3].map(|which| self.of_syncs[which].load(Ordering::Relaxed) as f64 / syncs);
        [seeks, bytes, flushes, nanoseconds / 1e6]
    }
}

impl Calls for Simulated {
    type Handle = Location;

    fn directory(&self, name: &str) -> Result<Location> {
        self.ours.directory(name)
    }

    fn create(&self, directory: &Location, name: &str) -> Result<Location> {
        self.ours.create(directory, name)
    }

    fn write(&self, file: &Location, offset: u64, bytes: &[u8]) -> Result<()> {
        self.ours.write(file, offset, bytes)
    }

    fn sync(&self, what: &Location, only_data: bool) -> Result<()> {
        let is_traced = self.traces && self.syncs.load(Ordering::Relaxed) % 50 >= 47;
        if is_traced && let Ok(mut trace) = self.counts.trace.lock() {
            *trace = Some(Vec::new());
        }
        let before = self.now();
        match self.commits {
            true => self.ours.settle()?,
            false => self.ours.sync(what, only_data)?,
        }
        let after = self.now();
        let number = self.syncs.fetch_add(1, Ordering::Relaxed);
        if let Some(trace) = self.counts.trace.lock().ok().and_then(|mut trace| trace.take()) {
            let milliseconds = (after[3] - before[3]) as f64 / 1e6;
            println!("sync {number}, {milliseconds:.1} ms: {}", trace.join(", "));
        }
        for (sum, (after, before)) in self.of_syncs.iter().zip(after.iter().zip(before)) {
            sum.fetch_add(after - before, Ordering::Relaxed);
        }
        Ok(())
    }

    fn rename(&self, directory: &Location, from: &str, to: &str) -> Result<()> {
        self.ours.rename(directory, from, to)
    }

    fn settle(&self) -> Result<()> {
        self.ours.settle()
    }
}

pub(crate) fn run_all(scale: Scale) -> Result<()> {
    let amounts = Amounts {
        files: if scale.draws { 20_000 } else { 400 },
        file_bytes: if scale.draws { 1 << 30 } else { 8 << 20 },
        calls: if scale.draws { 200 } else { 20 },
    };
    println!(
        "One sync on a simulated 7200 rpm disk, and a commit in its place\n\n\
         | job | seeks | of a commit | virtual ms | of a commit | ratio | flushes | of a commit | KiB | of a commit |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for name in [
        "directory",
        "overwrite",
        "append",
        "mail",
        "threads 1",
        "threads 8",
    ] {
        let mut sides = Vec::new();
        for commits in [false, true] {
            let image = Image::new(Path::new("/dev/shm"), "simulated", 16)?;
            let simulated = Simulated::new(&image.0, commits)?;
            job(name, &simulated, amounts)?;
            sides.push(simulated.each());
            simulated.ours.close()?;
        }
        let [log, commit] = sides.as_slice() else {
            bail!("both sides ran");
        };
        println!(
            "| {name} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} |",
            log[0],
            commit[0],
            log[3],
            commit[3],
            log[3] / commit[3],
            log[2],
            commit[2],
            log[1] / 1024.0,
            commit[1] / 1024.0,
        );
    }
    println!();
    Ok(())
}
