//! A server of a [`Vfs`] for the kernel's FUSE.
//!
//! | part | holds |
//! |---|---|
//! | `wire` | the bytes of requests and answers |
//! | `connection` | mounting, with rights and without |
//! | `negotiation` | what kernel and server agree on at first |
//! | `dispatch` | from a request to a call of the file system, and back |
//! | `notify` | has the kernel forget what it was told |
//!
//! Several threads read requests from one descriptor, answer one at a time, and hold nothing between two. A request that waits
//! for a device holds up its thread only; there are [`THREADS`] of them.
//!
//! The protocol is spoken here and not by a crate, for birth times, files without names and writes that tell whether privileges go
//! (docs/decisions/0014-fuse-without-a-crate.md).

mod connection;
mod dispatch;
mod negotiation;
mod notify;
mod wire;

pub use connection::{MountOptions, is_type_of_ours, unmount};
pub use notify::Notifier;

use crate::vfs::Vfs;
use connection::Connection;
use rustix::io::Errno as Os;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// How many requests are under way at once.
pub const THREADS: usize = 16;

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
        Ok(Self { connection, server })
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
        let device = &self.connection.device;
        if !negotiation::agree(device)? {
            self.connection.was_unmounted();
            return Ok(());
        }
        let notifier = self.notifier()?;
        let (later, waiting) = crossbeam_channel::unbounded();
        self.server.answers_later_by(later);
        let server = &self.server;
        let ended: io::Result<()> = thread::scope(|scope| {
            thread::Builder::new()
                .name("buttress-fuse-notify".to_owned())
                .spawn_scoped(scope, move || notify::answer_later(&notifier, &waiting))?;
            let threads: Vec<_> = (1..THREADS)
                .filter_map(|number| {
                    thread::Builder::new()
                        .name(format!("buttress-fuse-{number}"))
                        .spawn_scoped(scope, move || server.answer_all(device))
                        .ok()
                })
                .collect();
            let ended = server.answer_all(device);
            let ended = threads.into_iter().fold(ended, |ended, thread| {
                let broken = |_| Err(io::Error::other("a thread of the server panicked"));
                ended.and(thread.join().unwrap_or_else(broken))
            });
            server.answers_no_more();
            ended
        });
        self.connection.was_unmounted();
        ended
    }
}

/// Reads a request; `None` once it was unmounted.
fn receive(device: &rustix::fd::OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(bytes) => return Ok(Some(bytes)),
            // The request was taken back, or a signal came.
            Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
            Err(Os::NODEV) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
