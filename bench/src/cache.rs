//! Cold and warm runs: the content of the page cache at the start of a run.

use anyhow::{Context, Result};
use rustix::fs::Advice;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if the caches of the whole system stay unchanged.
static KEEPS_SYSTEM: AtomicBool = AtomicBool::new(false);

/// Keeps the system's caches from here on, for runs with meaningless figures. Dropping caches slows
/// every other program of the machine. `sync(2)` also waits for every mounted file system, and a
/// hanging file system blocks it forever.
pub(crate) fn keep_system() {
    KEEPS_SYSTEM.store(true, Ordering::Relaxed);
}

/// Writes all dirty pages of the system, then drops all clean caches.
pub(crate) fn drop_system() -> Result<()> {
    if KEEPS_SYSTEM.load(Ordering::Relaxed) {
        return Ok(());
    }
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches needs root")
}

/// Writes all dirty pages of the file system that holds `path`.
pub(crate) fn settle(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    rustix::fs::syncfs(file).with_context(|| format!("syncing the file system of {}", path.display()))
}

/// The content of the page cache at the start of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// The page cache is empty: all caches were dropped.
    Cold,
    /// The page cache holds the whole image. The kernel's mount is fresh, so its own caches are
    /// empty.
    Warm,
}

impl Cache {
    /// Both states of the cache, cold first.
    pub(crate) const BOTH: [Self; 2] = [Self::Cold, Self::Warm];

    /// Returns the name of the cache state in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }

    /// Puts the page cache into this state for `image`. The kernel's side mounts before this call
    /// for a cold run, because mounting reads, and after it for a warm run.
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

/// Reads all parts of an image except holes: images are sparse.
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
