//! A server of a [`Vfs`] for the kernel's FUSE.
//!
//! | part | holds |
//! |---|---|
//! | `wire` | the bytes of requests and answers |
//! | `connection` | mounting, with and without root |
//! | `negotiation` | the initial agreement between kernel and server |
//! | `reading` | requests that are read from the device |
//! | `rings` | requests that arrive by io_uring |
//! | `dispatch` | from a request to a call of the file system, and back |
//! | `notify` | invalidation of the kernel's caches |
//!
//! Threads take requests and answer one at a time, and keep no state between two requests. A
//! request that waits for a disk blocks only its thread. [`THREADS`] threads read the FUSE device;
//! with io_uring, several threads serve each processor
//! (docs/decisions/0017-requests-by-io-uring.md).
//!
//! This module implements the protocol itself, without a crate, for birth times, unnamed files and
//! writes that drop privileges (docs/decisions/0014-fuse-without-a-crate.md).

mod connection;
mod dispatch;
mod negotiation;
mod notify;
mod reading;
mod rings;
mod wire;

pub use connection::{MountOptions, is_type_of_ours, unmount};
pub use notify::Notifier;

use crate::vfs::Vfs;
use buttress_ring::Ring;
use connection::Connection;
use negotiation::Agreed;
use rustix::fd::OwnedFd;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, Scope};

/// Number of threads that read requests from the FUSE device, on mounts without rings.
pub const THREADS: usize = 16;

/// Number of threads that read the FUSE device on mounts with rings. In mounts with rings, few
/// requests arrive by the FUSE device, and they take no time.
const READERS_BESIDE_RINGS: usize = 2;

/// Largest content of one request or answer in bytes.
const CONTENT_BYTES_MAX: usize = 1 << 20;

/// Largest readahead of the kernel for mounts by root in bytes, as for the kernel's own btrfs.
/// Mounts by other users get 128 KiB of readahead.
const READ_AHEAD_BYTES: usize = 4 << 20;

/// Buffer size of a request: its content, and the fields before it.
const REQUEST_BYTES_MAX: usize = CONTENT_BYTES_MAX + 4096;

/// A mount that is ready to be served.
pub struct Session {
    connection: Connection,
    server: dispatch::Server,
    rings: Vec<Ring>,
    writeback_cache: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Mounts a file system on a directory.
    ///
    /// `claim`: for a mounted block device, the exclusively opened device. A mount by root
    /// transfers the claim of the block device to the kernel.
    ///
    /// # Errors
    /// The error of the system: no rights, no such directory, no FUSE, a busy device.
    pub fn mount(
        vfs: Arc<dyn Vfs>,
        directory: &Path,
        options: &MountOptions,
        claim: Option<File>,
    ) -> io::Result<Self> {
        let connection = Connection::mount(directory, options, claim)?;
        let server = dispatch::Server::new(vfs);
        let rings = rings::prepare(&connection.device);
        Ok(Self {
            connection,
            server,
            rings,
            writeback_cache: options.writeback_cache && !options.read_only,
        })
    }

    /// Returns whether requests can arrive by io_uring. With io_uring, the server process has rings
    /// that serve only FUSE requests.
    #[must_use]
    pub const fn has_rings(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Returns a notifier that tells the kernel about changes outside its own calls.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn notifier(&self) -> io::Result<Notifier> {
        Notifier::new(&self.connection.device, self.server.root())
    }

    /// Serves requests until the unmount.
    ///
    /// # Errors
    /// The connection to the kernel broke.
    pub fn serve(mut self) -> io::Result<()> {
        let notifier = Arc::new(self.notifier()?);
        let (later, waiting) = crossbeam_channel::unbounded();
        self.server.answers_later_by(later);
        let rings = core::mem::take(&mut self.rings);
        let (server, device) = (&self.server, &self.connection.device);
        let writeback_cache = self.writeback_cache;
        let ended: io::Result<()> = thread::scope(|scope| {
            thread::Builder::new()
                .name("buttress-fuse-notify".to_owned())
                .spawn_scoped(scope, move || {
                    notify::forget_first(scope, server, &notifier, &waiting)
                })?;
            let ended = serve_by_all(scope, server, device, rings, writeback_cache);
            server.answers_no_more();
            ended
        });
        self.connection.was_unmounted();
        ended
    }
}

/// Serves requests by rings, if the kernel agreed to them, and by the device, until the unmount.
fn serve_by_all<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope dispatch::Server,
    device: &'scope OwnedFd,
    rings: Vec<Ring>,
    writeback_cache: bool,
) -> io::Result<()> {
    let crew = rings::Crew::start(scope, server, device, rings);
    let wishes = negotiation::Wishes {
        rings: crew.is_whole(),
        writeback_cache,
    };
    let (transport, keeps_writes) = negotiation::agree(device, wishes)?;
    if keeps_writes {
        server.kernel_keeps_writes();
    }
    let (mut threads, readers) = match transport {
        Agreed::Unmounted => return Ok(()),
        Agreed::Device => (Vec::new(), THREADS),
        Agreed::Rings => (crew.begin(), READERS_BESIDE_RINGS),
    };
    threads.extend((1..readers).filter_map(|number| {
        thread::Builder::new()
            .name(format!("buttress-fuse-{number}"))
            .spawn_scoped(scope, move || reading::answer_all(server, device))
            .ok()
    }));
    let ended = reading::answer_all(server, device);
    threads.into_iter().fold(ended, |ended, thread| {
        let broken = |_| Err(io::Error::other("a thread of the server panicked"));
        ended.and(thread.join().unwrap_or_else(broken))
    })
}
