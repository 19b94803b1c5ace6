//! Engines: the ways in which queued reads and writes reach a backend.
//!
//! - [`inline`]: at once, on the thread that asks. For memory, and where nothing may run beside the caller;
//! - [`threads`]: positioned reads and writes on worker threads. Works everywhere; the default for files and block devices;
//! - [`io_uring`]: the kernel's submission ring. Less CPU at great depths; refused by many containers;
//! - [`crate::schedule`]: in virtual time, as a caller's [`crate::Schedule`] decides. For simulated disks.
//!
//! They are chosen at run time and give equal bytes.

pub(crate) mod inline;
// The processors are those that the crate `io-uring` knows. Cargo.toml names the same ones.
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

/// Which engine a device is opened with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// Positioned reads and writes on worker threads, which start when they are first needed.
    #[default]
    Threads,
    /// The kernel's submission ring. Where it is refused, [`Engine::Threads`] takes its place, and the device's
    /// notices say so.
    IoUring,
    /// Everything on the calling thread, at once.
    Inline,
    /// A simulated disk, in virtual time (not chosen in options: see [`crate::Device::with_schedule`]).
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

/// What a device asks of its engine. Dropping an engine ends what it runs; nothing it was given stays undone
/// while somebody can still wait for it, because whoever waits holds the device.
pub(crate) trait RunRequests: Send + Sync + fmt::Debug {
    fn kind(&self) -> Engine;

    /// Takes a plugged batch, in ascending order of offset. Returns without waiting for the medium (the inline
    /// engine excepted).
    fn submit(&self, dispatches: &[Arc<Dispatch>]);

    /// Somebody is about to block until this dispatch completes: an engine may do the work on this thread.
    fn help(&self, dispatch: &Arc<Dispatch>);

    /// A queued dispatch was cancelled; it will not be started.
    fn forget(&self, dispatch: &Arc<Dispatch>);

    /// Brings the state up to the clock's time. Only simulated devices have something to do.
    fn catch_up(&self) {}

    /// Lets a simulated device finish what is queued. (On others, who wants a write to be durable has waited for it.)
    fn flush(&self) {}

    /// Whether writes of so many bytes, and so many at most in one, are nothing but copying a little, which takes the caller about as
    /// long as waking others and waiting for them.
    fn is_small_copy(&self, _total_bytes: u64, _largest_bytes: u64) -> bool {
        false
    }

    /// Writes, on this thread. A simulated device lets its clock move on as far as that takes.
    fn write(&self, core: &Core, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        core.backend.write_at(offset_bytes, bytes)
    }
}

/// Dispatches up to this size are first tried from the page cache. Copying more than this takes longer than
/// waking a worker, and a second core can do it.
const CACHED_BYTES: u64 = 64 << 10;

/// What is left of a batch.
struct Rest<'a> {
    dispatches: &'a [Arc<Dispatch>],
    /// The first of them is known to be on the medium only.
    is_cold: bool,
}

/// Completes the small dispatches at the front of a batch whose bytes are in memory; gives the others back.
///
/// The first one that is not cached ends the attempts: a cold medium costs one failed system call for a batch.
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
