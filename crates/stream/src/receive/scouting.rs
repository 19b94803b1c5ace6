//! Readahead in the stream: the metadata that upcoming commands will change is read before these
//! commands, many names at a time.
//!
//! Scouting applies only to subvolumes that began as a snapshot, because names that the stream
//! itself creates are in memory. All results are hints. Scouting ignores errors, because the
//! commands meet them again.
//!
//! For an input with readahead, threads read one batch of names each, while the receiver executes
//! the commands of earlier batches. A batch reads level by level and waits for the slowest block of
//! each level, so several parallel batches keep a device busy. The receiver does not reuse lookup
//! results, because names may have changed since.

use super::making::Receiver;
use crate::command::Command;
use crate::decoder::Decoder;
use buttress_fs::Location;
use buttress_writer::WritableFilesystem;
use core::ops::ControlFlow;
use crossbeam_channel::{Receiver as Incoming, Sender, bounded};
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read;
use std::thread::{Builder, Scope};

/// Number of names in a scouting batch, with and without threads. The tree blocks of all scouting
/// batches in flight, a few for each name, should fit into a usual cache.
const NAMES_AHEAD: usize = 512;
const NAMES_OF_THREAD: usize = 128;

/// Number of read-ahead threads.
const THREADS: usize = 3;

/// Bytes of the stream to receive before the next scan, if the last scan found no new names.
const LOOK_STEP_BYTES: u64 = 64 << 10;

/// Names in one subvolume, each with its directory.
pub(super) type Wanted = Vec<(Location, Vec<u8>)>;

/// Threads that read the metadata for later changes, and their batches.
#[derive(Debug)]
pub(super) struct Scouts {
    batches: Sender<Wanted>,
    /// Stream offsets of the first commands of batches whose commands the receiver has not executed
    /// yet.
    begins: VecDeque<u64>,
    /// Stream offset from which a new scan is worthwhile.
    look_at: u64,
}

/// Starts the threads, which end when the returned `Scouts` is dropped. Returns `None` if the
/// system cannot create a thread.
pub(super) fn start<'s>(scope: &'s Scope<'s, '_>, filesystem: &'s WritableFilesystem) -> Option<Scouts> {
    let (batches, incoming): (_, Incoming<Wanted>) = bounded(1);
    let started = (0..THREADS).filter(|_| {
        let incoming = incoming.clone();
        let read = move || {
            for wanted in incoming {
                let names: Vec<(Location, &[u8])> = wanted
                    .iter()
                    .map(|(directory, name)| (*directory, name.as_slice()))
                    .collect();
                // A command that needs an unreadable block reports the error itself.
                drop(filesystem.live().read_ahead(&names));
            }
        };
        let thread = Builder::new().name("buttress-scout".to_owned());
        thread.spawn_scoped(scope, read).is_ok()
    });
    (started.count() > 0).then(|| Scouts {
        batches,
        begins: VecDeque::new(),
        look_at: 0,
    })
}

/// Paths that upcoming commands will change.
#[derive(Debug, Default)]
struct Ahead {
    /// Paths in stream order, without duplicates.
    wanted: Vec<Vec<u8>>,
    most: usize,
    /// Hashes of the scouted paths. A collision of hashes costs only a hint.
    known: HashSet<u64>,
}

fn hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

impl Ahead {
    /// Records the paths that a command changes.
    fn note(&mut self, command: &Command<'_>) -> ControlFlow<()> {
        match *command {
            Command::Subvolume { .. } | Command::Snapshot { .. } | Command::End => {
                return ControlFlow::Break(());
            }
            Command::Mkfile { path, .. }
            | Command::Mkdir { path, .. }
            | Command::Mknod { path, .. }
            | Command::Mkfifo { path, .. }
            | Command::Mksock { path, .. }
            | Command::Symlink { path, .. } => {
                self.known.insert(hash(path));
            }
            Command::Rename { from, to } => {
                self.want(from);
                self.known.insert(hash(to));
            }
            Command::Link { path, target } => {
                self.want(target);
                self.known.insert(hash(path));
            }
            Command::Unlink { path }
            | Command::Rmdir { path }
            | Command::SetXattr { path, .. }
            | Command::RemoveXattr { path, .. }
            | Command::Write { path, .. }
            | Command::EncodedWrite { path, .. }
            | Command::Clone { path, .. }
            | Command::Truncate { path, .. }
            | Command::Chmod { path, .. }
            | Command::Chown { path, .. }
            | Command::Utimes { path, .. }
            | Command::Fallocate { path, .. }
            | Command::FileAttributes { path, .. } => self.want(path),
            _ => {}
        }
        if self.wanted.len() >= self.most {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn want(&mut self, path: &[u8]) {
        // Most commands concern the path of the previous command.
        let is_last = self.wanted.last().is_some_and(|last| last == path);
        if !is_last && !path.is_empty() && self.known.insert(hash(path)) {
            self.wanted.push(path.to_vec());
        }
    }
}

impl Receiver<'_> {
    /// Starts readahead for commands that were read from the stream and not yet scanned, if the
    /// next command is one of them.
    pub(super) fn scout<R: Read>(&mut self, decoder: &mut Decoder<R>) {
        let at = decoder.offset();
        let (is_due, most) = match &mut self.scouts {
            Some(scouts) => {
                while scouts.begins.front().is_some_and(|begin| *begin <= at) {
                    scouts.begins.pop_front();
                }
                let is_due = scouts.begins.len() < THREADS && scouts.look_at <= at;
                (is_due, NAMES_OF_THREAD)
            }
            None => (self.scouted_to <= at, NAMES_AHEAD),
        };
        if !is_due {
            return;
        }
        let root = match &self.making {
            Some(making) if making.has_content => Location::root_of(making.id),
            _ => return,
        };
        let mut ahead = Ahead {
            most,
            ..Ahead::default()
        };
        let from = self.scouted_to.max(at);
        self.scouted_to = decoder.look_ahead(from, |command| ahead.note(command));
        let mut names: Wanted = Vec::with_capacity(ahead.wanted.len());
        for path in &ahead.wanted {
            if self.is_made_now(root, path) {
                continue;
            }
            if let Ok((directory, name)) = self.names.place(self.filesystem, root, path)
                && !self.names.knows(directory, name)
            {
                names.push((directory, name.to_vec()));
            }
        }
        match &mut self.scouts {
            Some(scouts) if names.is_empty() => {
                scouts.look_at = at.saturating_add(LOOK_STEP_BYTES);
            }
            Some(scouts) => {
                scouts.begins.push_back(from);
                // If the threads have ended, no readahead happens.
                drop(scouts.batches.send(names));
            }
            None if names.is_empty() => {}
            None => self.read_ahead(&names),
        }
    }

    fn read_ahead(&mut self, wanted: &Wanted) {
        let names = wanted
            .iter()
            .map(|(directory, name)| (*directory, name.as_slice()));
        let names: Vec<(Location, &[u8])> = names.collect();
        let Ok(found) = self.filesystem.live().read_ahead(&names) else {
            return;
        };
        for ((directory, name), entry) in names.into_iter().zip(found) {
            if let Some(entry) = entry {
                self.names.learn(directory, name, &entry);
            }
        }
    }
}
