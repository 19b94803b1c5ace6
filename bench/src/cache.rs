//! Cold and warm: what is in the page cache when a run starts.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What the page cache holds when a run starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// Nothing: all caches were dropped.
    Cold,
    /// The whole image; the kernel's mount is fresh, so its own caches are empty.
    Warm,
}

impl Cache {
    /// Both, cold first.
    pub(crate) const BOTH: [Self; 2] = [Self::Cold, Self::Warm];

    /// The word in tables.
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
                rustix::fs::sync();
                std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches needs root")
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
