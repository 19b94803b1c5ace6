//! Pairs of mounted volumes for sending and receiving.
//!
//! Creating a volume takes longer than a small history, so pairs are kept and lent to one history
//! at a time. Each history works in separate directories and removes them. [`close`] unmounts all
//! pairs at the end.

use anyhow::{Context, Result};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::volumes::{Fill, Specification, format};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kind of the source volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The defaults of mkfs.btrfs and mount.
    Plain,
    /// Volumes whose holes have items, and whose blocks are small, so that trees are deep.
    HoleItems,
    /// All compressible data is compressed.
    Zstd,
}

impl Flavour {
    /// Returns the flavour of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        match seed % 4 {
            0 => Self::HoleItems,
            1 => Self::Zstd,
            _ => Self::Plain,
        }
    }

    fn specification(self) -> Specification {
        let plain = Specification {
            metadata: "single",
            device_mib: 2048,
            fill: Fill::Empty,
            mount: "noatime",
            ..Specification::default()
        };
        match self {
            Self::Plain => plain,
            Self::HoleItems => Specification {
                node_kib: 4,
                features: &["^no-holes"],
                ..plain
            },
            Self::Zstd => Specification {
                mount: "noatime,compress-force=zstd",
                ..plain
            },
        }
    }
}

/// A mounted volume on one image.
#[derive(Debug)]
pub struct Mounted {
    // The mount is dropped before the image is removed, because fields drop in order.
    mount: Mount,
    image: PathBuf,
    _folder: tempfile::TempDir,
}

impl Mounted {
    fn new(specification: &Specification) -> Result<Self> {
        let (folder, images) = format(specification)?;
        Ok(Self {
            mount: Mount::new(&images, specification.mount)?,
            image: images.first().context("an image")?.clone(),
            _folder: folder,
        })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn top(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the image, which holds the committed state.
    #[must_use]
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Commits, so that the image has the state of the mount.
    pub fn commit(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(std::fs::File::open(self.top())?)?)
    }
}

/// A source volume and a target volume.
#[derive(Debug)]
pub struct Pair {
    /// Volume to send from.
    pub source: Mounted,
    /// Volume to receive into.
    pub target: Mounted,
    flavour: Flavour,
}

static IDLE: Mutex<Vec<Pair>> = Mutex::new(Vec::new());
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A lent pair of volumes, which no other history uses.
#[derive(Debug)]
pub struct Lent(Option<Pair>);

impl Deref for Lent {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        self.0.as_ref().expect("a pair is there until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // After a panic the state of the pair is unknown, so it is unmounted.
        if let Some(pair) = self.0.take().filter(|_| !std::thread::panicking()) {
            idle().push(pair);
        }
    }
}

fn idle() -> std::sync::MutexGuard<'static, Vec<Pair>> {
    IDLE.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Lends a pair, and creates one if none is available.
pub fn lend(flavour: Flavour) -> Result<Lent> {
    {
        let mut idle = idle();
        if let Some(place) = idle.iter().position(|pair| pair.flavour == flavour) {
            return Ok(Lent(Some(idle.swap_remove(place))));
        }
    }
    Ok(Lent(Some(Pair {
        source: Mounted::new(&flavour.specification())?,
        target: Mounted::new(&Flavour::Plain.specification())?,
        flavour,
    })))
}

/// Unmounts and removes all pairs of a source and a target volume.
pub fn close() {
    idle().clear();
}

/// Returns a directory name that this process has not used before.
#[must_use]
pub fn unused_name(prefix: &str) -> String {
    format!("{prefix}-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}
