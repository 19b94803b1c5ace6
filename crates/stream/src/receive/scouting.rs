//! Looking ahead in the stream: what the commands that come next will change is read before they come, all of it at once.
//!
//! Only where there is something to read: in subvolumes that were made from a snapshot. Names that the stream makes itself are
//! in memory. What is found is a hint, and so is what fails here: the commands meet it themselves.
//!
//! Of an input that is read ahead threads do it, each for one batch of names, while the commands of the batches before are carried
//! out. A batch reads level by level, and waits at each for its slowest block, so that several at once keep a device busy.
//! What they look up is not taken over: names can have come and gone since.

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

/// How many names are looked up ahead at a time, without threads and by each of them. What that reads, a few blocks for each,
/// should fit into a cache of the usual size, for all batches that are on their way.
const NAMES_AHEAD: usize = 512;
const NAMES_OF_THREAD: usize = 128;

/// How many threads read ahead.
const THREADS: usize = 3;

/// Where nothing new was to be looked at, so much of the stream is received before the next look.
const LOOK_STEP_BYTES: u64 = 64 << 10;

/// Names of one subvolume, and their directories.
pub(super) type Wanted = Vec<(Location, Vec<u8>)>;

/// Threads that read what changes of names' inodes will need, and the batches that they were given.
#[derive(Debug)]
pub(super) struct Scouts {
    batches: Sender<Wanted>,
    /// Where in the stream the batches begin that no command was reached of.
    begins: VecDeque<u64>,
    /// From here on it is worth looking again.
    look_at: u64,
}

/// Starts them; they end when these `Scouts` are dropped. `None` where the system gives no thread.
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
                // Whoever needs what cannot be read is told.
                drop(filesystem.read_ahead(&names));
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

/// What is read ahead for, from the commands of a stream.
#[derive(Debug, Default)]
struct Ahead {
    /// Paths, each once, in the order in which they come.
    wanted: Vec<Vec<u8>>,
    most: usize,
    /// Hashes of paths: that two have the same costs a hint.
    known: HashSet<u64>,
}

fn hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

impl Ahead {
    /// Takes note of what a command changes.
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
        // Most commands are about what the one before was about.
        let is_last = self.wanted.last().is_some_and(|last| last == path);
        if !is_last && !path.is_empty() && self.known.insert(hash(path)) {
            self.wanted.push(path.to_vec());
        }
    }
}

impl Receiver<'_> {
    /// Reads ahead for the commands that were read and not looked at yet, if the next one is such.
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
                // Threads that are gone read nothing ahead.
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
        let Ok(found) = self.filesystem.read_ahead(&names) else {
            return;
        };
        for ((directory, name), entry) in names.into_iter().zip(found) {
            if let Some(entry) = entry {
                self.names.learn(directory, name, &entry);
            }
        }
    }
}
