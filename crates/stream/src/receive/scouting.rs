//! Looking ahead in the stream: what the commands that come next will change is read before they come, all of it at once.
//!
//! Only where there is something to read: in subvolumes that were made from a snapshot. Names that the stream makes itself are
//! in memory. What is found is a hint, and so is what fails here: the commands meet it themselves.

use super::making::Receiver;
use crate::command::Command;
use crate::decoder::Decoder;
use buttress_fs::Location;
use core::ops::ControlFlow;
use std::collections::HashSet;
use std::io::Read;

/// How many names are looked up ahead at a time. What that reads, a few blocks for each, should fit into a cache of the usual
/// size.
const NAMES_AHEAD: usize = 512;

/// What is read ahead for, from the commands of a stream.
#[derive(Debug, Default)]
struct Ahead {
    /// Paths, each once, in the order in which they come.
    wanted: Vec<Vec<u8>>,
    known: HashSet<Vec<u8>>,
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
                self.known.insert(path.to_vec());
            }
            Command::Rename { from, to } => {
                self.want(from);
                self.want(to);
            }
            Command::Link { path, target } => {
                self.want(target);
                self.known.insert(path.to_vec());
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
        if self.wanted.len() >= NAMES_AHEAD {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn want(&mut self, path: &[u8]) {
        // Most commands are about what the one before was about.
        let is_last = self.wanted.last().is_some_and(|last| last == path);
        if !is_last && !path.is_empty() && self.known.insert(path.to_vec()) {
            self.wanted.push(path.to_vec());
        }
    }
}

impl Receiver<'_> {
    /// Reads ahead for the commands that were read and not looked at yet, if the next one is such.
    pub(super) fn scout<R: Read>(&mut self, decoder: &Decoder<R>) {
        if decoder.offset() < self.scouted_to {
            return;
        }
        let root = match &self.making {
            Some(making) if making.has_content => Location::root_of(making.id),
            _ => return,
        };
        let mut ahead = Ahead::default();
        self.scouted_to = decoder.look_ahead(|command| ahead.note(command));
        let mut names = Vec::with_capacity(ahead.wanted.len());
        for path in &ahead.wanted {
            if self.is_made_now(root, path) {
                continue;
            }
            if let Ok((directory, name)) = self.names.place(self.filesystem, root, path)
                && !self.names.knows(directory, name)
            {
                names.push((directory, name));
            }
        }
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
