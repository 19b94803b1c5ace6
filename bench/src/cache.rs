//! Cold and warm: what is in the page cache when a run starts.

use anyhow::{Context, Result};
use rustix::fs::Advice;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether caches of the whole system stay as they are.
static KEEPS_SYSTEM: AtomicBool = AtomicBool::new(false);

/// Keeps the caches of the whole system from here on, for runs whose figures mean nothing. Dropping caches slows every
/// other program of the machine. It also waits for every mounted file system, and one that hangs blocks it forever.
pub(crate) fn keep_system() {
    KEEPS_SYSTEM.store(true, Ordering::Relaxed);
}

/// Drops all clean caches of the system, after everything dirty was written.
pub(crate) fn drop_system() -> Result<()> {
    if KEEPS_SYSTEM.load(Ordering::Relaxed) {
        return Ok(());
    }
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches needs root")
}

/// Writes everything dirty of the file system that holds `path`.
pub(crate) fn settle(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    rustix::fs::syncfs(file).with_context(|| format!("syncing the file system of {}", path.display()))
}

/// What the page cache holds when a run starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// Nothing: all caches were dropped.
    Cold,
    /// The whole image; the kernel's mount is fresh, so its own caches are empty.
    Warm,
}

impl Cache {
    /// Both cache states, cold first.
    pub(crate) const BOTH: [Self; 2] = [Self::Cold, Self::Warm];

    /// Returns the word for the cache state in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }

    /// Makes it so for `image`. The kernel side mounts before this for a cold run (mounting reads), and
    /// after it for a warm one.
    pub(crate) fn prepare(self, image: &Path) -> Result<()> {
        match self {
            Self::Cold => {
                settle(image)?;
                rustix::fs::fadvise(File::open(image)?, 0, None, Advice::DontNeed)?;
                drop_system()
            }
            Self::Warm => read_whole(image),
        }
    }
}

/// Reads what is not a hole: images are sparse.
fn read_whole(image: &Path) -> Result<()> {
    let mut file = File::open(image)?;
    let mut buffer = vec![0; 1 << 20];
    let mut position = 0;
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(position)) {
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start))?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(start))?;
        let mut part = (&mut file).take(end - start);
        while part.read(&mut buffer)? > 0 {}
        position = end;
    }
    Ok(())
}
