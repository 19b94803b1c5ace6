//! A server of a [`Vfs`] for the kernel's FUSE.
//!
//! | part | holds |
//! |---|---|
//! | `wire` | the bytes of requests and answers |
//! | `connection` | mounting, with rights and without |
//! | `negotiation` | what kernel and server agree on at first |
//! | `reading` | requests that are read from the device |
//! | `rings` | requests that come by io_uring |
//! | `dispatch` | from a request to a call of the file system, and back |
//! | `notify` | has the kernel forget what it was told |
//!
//! Threads take requests, answer one at a time, and hold nothing between two. A request that waits for a device holds up its thread only;
//! there are [`THREADS`] that read the device, or some for each processor where requests come by io_uring
//! (docs/decisions/0017-requests-by-io-uring.md).
//!
//! The protocol is spoken here and not by a crate, for birth times, files without names and writes that tell whether privileges go
//! (docs/decisions/0014-fuse-without-a-crate.md).

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

/// How many threads read requests from the device, where they all come so.
pub const THREADS: usize = 16;

/// How many where requests come by rings: what is left for the device takes no time.
const READERS_BESIDE_RINGS: usize = 2;

/// The most that one request brings or takes.
const CONTENT_BYTES_MAX: usize = 1 << 20;

/// How far the kernel reads ahead, where root mounts: as far as for its own btrfs. For a mount of anybody else it is 128 KiB.
const READ_AHEAD_BYTES: usize = 4 << 20;

/// Room for a request: its content, and what is before it.
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
    /// `claim`: where what is mounted is a block device, the device opened exclusively. The mount takes the claim over, where root mounts.
    ///
    /// # Errors
    /// What the system says: no rights, no such directory, no FUSE, a device that is in use.
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

    /// Whether requests can come by io_uring, for which this process has rings. They do nothing else.
    #[must_use]
    pub const fn has_rings(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Tells the kernel what changed otherwise than by its own calls.
    ///
    /// # Errors
    /// That there is no descriptor left.
    pub fn notifier(&self) -> io::Result<Notifier> {
        Notifier::new(&self.connection.device, self.server.root())
    }

    /// Serves until it is unmounted.
    ///
    /// # Errors
    /// That the connection broke.
    pub fn serve(mut self) -> io::Result<()> {
        let notifier = self.notifier()?;
        let (later, waiting) = crossbeam_channel::unbounded();
        self.server.answers_later_by(later);
        let rings = core::mem::take(&mut self.rings);
        let (server, device) = (&self.server, &self.connection.device);
        let writeback_cache = self.writeback_cache;
        let ended: io::Result<()> = thread::scope(|scope| {
            thread::Builder::new()
                .name("buttress-fuse-notify".to_owned())
                .spawn_scoped(scope, move || notify::forget_first(server, &notifier, &waiting))?;
            let ended = serve_by_all(scope, server, device, rings, writeback_cache);
            server.answers_no_more();
            ended
        });
        self.connection.was_unmounted();
        ended
    }
}

/// Serves by rings where that is agreed on, and by the device, until it is unmounted.
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
