//! What streams hold, without receiving them.
//!
//! A [`Series`] takes streams in the order in which they would be received: a full one, and incremental ones that
//! build on what came before, in as many files as one likes, one or several in each. After each there is a
//! [`Snapshot`] whose [`Tree`] is what a receiver's subvolume would be: names, attributes, content. Content stays
//! where it is: a file is a list of ranges that point into the stream files, and [`Series::content`] reads (and
//! decodes) them from there. Memory therefore goes with the number of commands, never with the bytes of files.
//!
//! Streams are not trusted. A command is carried out wholly or refused, with the file, the offset, the number of
//! the command and the reason ([`Error::Refused`]); paths are checked and never lead through symbolic links or out
//! of the subvolume; clones of clones cannot make memory grow beyond what the commands themselves take.
//!
//! | part | holds |
//! |---|---|
//! | `tree` | inodes and names, as persistent maps: a snapshot shares what did not change |
//! | `extents` | the content of a file as ranges of stream files |
//! | `apply` | what each command does to them |
//! | `content` | reading a file |
//! | `input` | the stream files |
//!
//! Left out: what a receiver's system adds by itself (its clock, default ACLs of directories), and the generation
//! that a stream gives with a uuid: as for `btrfs receive`, the uuid decides.

mod apply;
pub(crate) mod content;
mod error;
pub(crate) mod extents;
mod input;
pub(crate) mod tree;

pub use content::{Chunk, Content, ContentReader};
pub use error::{Error, PathProblem, Problem, Result};
pub use input::StreamFile;
pub use tree::{Directory, File, Inode, Node, NodeId, Times, Tree, Walk, WalkEntry};

use crate::command::Command;
use crate::decoder::{Decoder, Frame};
use buttress_format::send::Version;
use buttress_format::{ByteCount, Decompressor, Generation, Uuid};
use buttress_fs::Progress;
use extents::CopyBudget;
use input::{InOrder, Input};
use std::collections::HashMap;

/// How to look into streams.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Decode the data of every encoded write, to see whether it can be decoded.
    pub decode_data: bool,
    /// Counts commands and bytes, and can end the work.
    pub progress: Progress,
}

/// A subvolume as one stream makes it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its name, which may be a path.
    pub name: Vec<u8>,
    /// Its uuid at the sender, or the one it was received from.
    pub uuid: Uuid,
    /// The generation at which it last changed.
    pub transid: Generation,
    /// What it builds on.
    pub parent: Option<Uuid>,
    /// Version of its stream.
    pub version: Version,
    /// Name of the file that holds its stream.
    pub file: String,
    /// Which stream of the file it is in, from 1. Streams of `send -e` hold several.
    pub stream: u64,
    /// How many commands make it, that which begins it and that which ends it included.
    pub commands: u64,
    /// How many bytes they have in the stream.
    pub stream_bytes: ByteCount,
    /// How many bytes of file data were sent for it, as sent.
    pub data_bytes: ByteCount,
    /// What it holds.
    pub tree: Tree,
}

/// Streams in the order in which they would be received.
#[derive(Debug, Default)]
pub struct Series {
    options: Options,
    inputs: Vec<Input>,
    snapshots: Snapshots,
    budget: CopyBudget,
    decompressor: Decompressor,
}

/// What the streams made so far.
#[derive(Debug, Default)]
struct Snapshots {
    all: Vec<Snapshot>,
    /// The newest of each uuid.
    by_uuid: HashMap<[u8; 16], usize>,
}

impl Snapshots {
    fn push(&mut self, snapshot: Snapshot) {
        self.by_uuid.insert(*snapshot.uuid.as_bytes(), self.all.len());
        self.all.push(snapshot);
    }
}

impl apply::Earlier for Snapshots {
    fn tree(&self, uuid: Uuid) -> Option<&Tree> {
        let number = self.by_uuid.get(uuid.as_bytes())?;
        self.all.get(*number).map(|snapshot| &snapshot.tree)
    }

    fn uuids(&self) -> Vec<Uuid> {
        self.all.iter().map(|snapshot| snapshot.uuid).collect()
    }
}

impl Series {
    /// Without any stream yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// Takes all streams of a file. `name` is for messages. The file must stay as it is as long as content is read.
    ///
    /// # Errors
    /// [`Error::Stream`] and [`Error::Refused`], with the place; [`Error::Cancelled`]. The snapshots that were whole
    /// before the place stay.
    pub fn add(&mut self, name: impl Into<String>, file: Box<dyn StreamFile>) -> Result<()> {
        let number = u32::try_from(self.inputs.len()).unwrap_or(u32::MAX);
        let input = Input {
            name: name.into(),
            file,
        };
        let added = self.read(&input, number);
        self.inputs.push(input);
        added
    }

    /// What each stream made, in order.
    #[must_use]
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots.all
    }

    /// Reads a regular file from its beginning to its end.
    ///
    /// # Errors
    /// [`Error::Path`] when there is no such file in `tree`, [`Error::NoData`] when its content was not sent.
    /// `path` is what they name.
    pub fn content(&self, tree: &Tree, id: NodeId, path: &[u8]) -> Result<ContentReader<'_>> {
        let problem = match tree.inode(id).map(|inode| &inode.node) {
            Some(Node::File(file)) if file.lacks_data() => {
                return Err(Error::NoData { path: path.to_vec() });
            }
            Some(Node::File(file)) => return Ok(ContentReader::new(&self.inputs, file.pieces())),
            Some(other) => Problem::WrongKind {
                path: path.to_vec(),
                found: other.kind_name(),
                wanted: "a regular file",
            },
            None => Problem::NotFound { path: path.to_vec() },
        };
        Err(Error::Path {
            path: path.to_vec(),
            problem,
        })
    }

    /// Reads bytes of a stream file.
    pub(crate) fn read_input(&self, number: u32, position: u64, buffer: &mut [u8]) -> Result<()> {
        let input = usize::try_from(number)
            .ok()
            .and_then(|number| self.inputs.get(number));
        input.map_or(Ok(()), |input| input.read_exact_at(buffer, position))
    }

    fn read(&mut self, input: &Input, number: u32) -> Result<()> {
        let mut decoder = Decoder::new(InOrder::new(input));
        let mut making: Option<Snapshot> = None;
        loop {
            let frame = match decoder.next_command() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(error) => {
                    let file = input.name.clone();
                    return Err(Error::Stream { file, error });
                }
            };
            let progress = &self.options.progress;
            progress.check().map_err(Error::Cancelled)?;
            progress.advance(1, ByteCount::new(frame.bytes().len() as u64));
            let command = *frame.command();
            let (place, bytes) = (frame.place(), frame.bytes().len() as u64);
            self.take(&mut making, &frame, &input.name, number)
                .map_err(|problem| Error::refused(&input.name, place, &command, problem))?;
            if let Some(snapshot) = &mut making {
                snapshot.commands = snapshot.commands.saturating_add(1);
                snapshot.stream_bytes = snapshot.stream_bytes.saturating_add(ByteCount::new(bytes));
            }
            if command == Command::End {
                self.finish(&mut making);
            }
        }
    }

    fn finish(&mut self, making: &mut Option<Snapshot>) {
        if let Some(snapshot) = making.take() {
            self.snapshots.push(snapshot);
        }
    }

    /// Carries out one command.
    fn take(
        &mut self,
        making: &mut Option<Snapshot>,
        frame: &Frame<'_>,
        file: &str,
        number: u32,
    ) -> Result<(), Problem> {
        match *frame.command() {
            Command::Subvolume { path, uuid, transid } => {
                self.finish(making);
                *making = Some(begin(frame, file, path, uuid, transid)?);
            }
            Command::Snapshot {
                path,
                uuid,
                transid,
                clone_uuid,
                ..
            } => {
                self.finish(making);
                let mut snapshot = begin(frame, file, path, uuid, transid)?;
                snapshot.parent = Some(clone_uuid);
                snapshot.tree = self.parent(clone_uuid)?;
                *making = Some(snapshot);
            }
            command => {
                let (command, _) = command.plain();
                let snapshot = making.as_mut().ok_or(Problem::NoSubvolume)?;
                let data = data_of(&command);
                snapshot.data_bytes = snapshot
                    .data_bytes
                    .saturating_add(ByteCount::new(data.len() as u64));
                let mut target = apply::Target {
                    tree: &mut snapshot.tree,
                    uuid: snapshot.uuid,
                    earlier: &self.snapshots,
                    budget: &mut self.budget,
                    data_position: frame.offset().saturating_add(place_in(data, frame.bytes())),
                    file: number,
                    decode: self.options.decode_data.then_some(&mut self.decompressor),
                };
                target.apply(&command)?;
            }
        }
        Ok(())
    }

    /// The tree that a stream builds on.
    fn parent(&self, uuid: Uuid) -> Result<Tree, Problem> {
        let earlier: &dyn apply::Earlier = &self.snapshots;
        let parent = earlier.tree(uuid).cloned();
        parent.ok_or_else(|| Problem::ParentUnknown {
            wanted: uuid,
            given: earlier.uuids(),
        })
    }
}

/// An empty snapshot.
fn begin(
    frame: &Frame<'_>,
    file: &str,
    path: &[u8],
    uuid: Uuid,
    transid: Generation,
) -> Result<Snapshot, Problem> {
    // The name may be a path, but must not lead out of where the receiver wants it.
    if tree::names(path)?.next().is_none() {
        return Err(Problem::PathInvalid {
            path: path.to_vec(),
            problem: PathProblem::EmptyName,
        });
    }
    Ok(Snapshot {
        name: path.to_vec(),
        uuid,
        transid,
        parent: None,
        version: frame.version(),
        file: file.to_owned(),
        stream: frame.stream(),
        commands: 0,
        stream_bytes: ByteCount::new(0),
        data_bytes: ByteCount::new(0),
        tree: Tree::default(),
    })
}

/// File data in a command.
const fn data_of<'a>(command: &Command<'a>) -> &'a [u8] {
    match command {
        Command::Write { data, .. } | Command::EncodedWrite { data, .. } => data,
        _ => &[],
    }
}

/// Where `part`, which was taken out of `whole`, begins in it. The order of attributes is free, so only where the
/// bytes are tells.
fn place_in(part: &[u8], whole: &[u8]) -> u64 {
    let distance = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
    if distance <= whole.len() {
        distance as u64
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
