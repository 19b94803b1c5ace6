//! Engines: the ways by which queued reads and writes reach a backend.
//!
//! - [`inline`]: at once, on the calling thread. For memory, and for callers that allow no other
//!   threads;
//! - [`threads`]: positioned reads and writes on worker threads. Works everywhere; the default for
//!   files and block devices;
//! - [`io_uring`]: the kernel's submission ring. Less CPU at great depths; refused by many
//!   containers;
//! - [`crate::schedule`]: in virtual time, as a caller's [`crate::Schedule`] decides. For simulated
//!   disks.
//!
//! Engines are chosen at run time, and all engines read and write equal bytes.

pub(crate) mod inline;
// The list names the processors that the crate `io-uring` supports. The condition in Cargo.toml
// lists the same processors.
#[cfg_attr(
    not(all(
        target_os = "linux",
        any(
            target_arch = "x86_64",
            target_arch = "aarch64",
            target_arch = "riscv64",
            target_arch = "loongarch64",
            target_arch = "powerpc64"
        )
    )),
    path = "portable/io_uring.rs"
)]
pub(crate) mod io_uring;
pub(crate) mod threads;

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::queue::Core;
use crate::queue::request::Dispatch;

/// The engine with which a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// Positioned reads and writes on worker threads, which start on first use.
    #[default]
    Threads,
    /// The kernel's submission ring. If the system refuses io_uring, [`Engine::Threads`] replaces
    /// it, and the device's notices report this.
    IoUring,
    /// All requests run at once, on the calling thread.
    Inline,
    /// A simulated disk in virtual time. This engine is not chosen in options: see
    /// [`crate::Device::with_schedule`].
    Simulated,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "threads",
            Self::IoUring => "io_uring",
            Self::Inline => "inline",
            Self::Simulated => "simulated",
        })
    }
}

/// The operations that a device requests of its engine. Dropping an engine ends the engine's work.
/// An engine completes each request that a caller can still wait for, because a waiting caller
/// holds the
/// device.
pub(crate) trait RunRequests: Send + Sync + fmt::Debug {
    fn kind(&self) -> Engine;

    /// Receives a plugged batch in ascending order of offset. Returns without waiting for the
    /// medium, except in the inline engine.
    fn submit(&self, dispatches: &[Arc<Dispatch>]);

    /// Called before a thread blocks until this dispatch completes. An engine may perform the
    /// dispatch on this thread.
    fn help(&self, dispatch: &Arc<Dispatch>);

    /// Called for a queued dispatch that was cancelled and will not be started.
    fn forget(&self, dispatch: &Arc<Dispatch>);

    /// Advances the simulated engine to the clock's time. Does nothing on real devices, which have
    /// no simulated clock.
    fn catch_up(&self) {}

    /// When a flush is requested, lets a simulated device finish its queue. Does nothing on real
    /// devices, whose callers wait for a write before they flush it.
    fn flush(&self) {}

    /// Returns true if writes of this total and maximum size only copy a little. The caller then
    /// copies a dispatch's bytes about as fast as it could wake other threads and wait for them.
    fn is_small_copy(&self, _total_bytes: u64, _largest_bytes: u64) -> bool {
        false
    }

    /// Writes on this thread. For a write, a simulated device advances its clock by the write's
    /// duration.
    fn write(&self, core: &Core, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        core.backend.write_at(offset_bytes, bytes)
    }
}

/// The maximum size of dispatches that are first tried from the page cache. Copying more than this
/// size takes longer than waking a worker, and a second core can copy.
const CACHED_BYTES: u64 = 64 << 10;

/// The dispatches of a batch that remain to be executed.
struct Rest<'a> {
    dispatches: &'a [Arc<Dispatch>],
    /// True if the first of the remaining dispatches is known to be only on the medium.
    is_cold: bool,
}

/// Completes the small dispatches at the front of a batch whose bytes are in memory, and returns
/// the others.
///
/// The first dispatch that is not cached ends the attempts, so a cold medium costs one failed
/// system call for each batch.
fn serve_from_cache<'a>(core: &Core, dispatches: &'a [Arc<Dispatch>]) -> Rest<'a> {
    let mut rest = dispatches;
    let mut is_cold = false;
    while let Some((first, others)) = rest.split_first() {
        if first.is_write() || first.length_bytes > CACHED_BYTES {
            break;
        }
        if !core.execute_if_cached(first) {
            is_cold = true;
            break;
        }
        rest = others;
    }
    Rest {
        dispatches: rest,
        is_cold,
    }
}
