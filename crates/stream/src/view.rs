//! The content of streams, without receiving them.
//!
//! A [`Series`] accepts streams in receive order: a full stream, then incremental streams that
//! build on earlier ones. Each file may hold one or several streams. Each stream yields a
//! [`Snapshot`] whose [`Tree`] equals the receiver's subvolume: names, attributes, content. File
//! content stays in the stream files. A file of the tree is a list of ranges that point into them,
//! and [`Series::content`] reads and decodes these ranges. Memory therefore grows with the number
//! of commands, never with the bytes of files.
//!
//! Views do not trust streams. The series executes a command completely, or refuses it with the
//! file, the offset, the number of the command and the reason ([`Error::Refused`]). A path never
//! leads through a symbolic link or out of the subvolume. Memory for clones of clones is bounded by
//! the number of commands.
//!
//! | part | holds |
//! |---|---|
//! | `tree` | inodes and names, as persistent maps: a snapshot shares what did not change |
//! | `extents` | the content of a file as ranges of stream files |
//! | `apply` | the effect of each command on tree and extents |
//! | `content` | reading a file |
//! | `input` | the stream files |
//!
//! Left out: changes that a receiver's system makes by itself (its clock, default ACLs of
//! directories), and the generation that a stream states with a uuid. As in `btrfs receive`, the
//! uuid alone identifies a subvolume.

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

/// Options of a series.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Decode the data of every encoded write, to check that it decodes.
    pub decode_data: bool,
    /// Counts commands and bytes, and can cancel the series.
    pub progress: Progress,
}

/// The subvolume that one stream creates.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Name of the subvolume, which may be a path.
    pub name: Vec<u8>,
    /// UUID of the subvolume at the sender, or of the subvolume that the sender received it from.
    pub uuid: Uuid,
    /// Generation at which the subvolume last changed.
    pub transid: Generation,
    /// UUID of the parent, if the stream is incremental.
    pub parent: Option<Uuid>,
    /// Version of the subvolume's stream.
    pub version: Version,
    /// Name of the file that holds the subvolume's stream.
    pub file: String,
    /// Number of the stream in its file, from 1. Streams of `send -e` hold several subvolumes.
    pub stream: u64,
    /// Number of commands of the subvolume, including those that begin and end it.
    pub commands: u64,
    /// Length of the subvolume's commands in the stream, in bytes.
    pub stream_bytes: ByteCount,
    /// Bytes of file data in the subvolume's stream commands, as sent (maybe compressed).
    pub data_bytes: ByteCount,
    /// Files and directories of the subvolume.
    pub tree: Tree,
}

/// Streams in receive order.
#[derive(Debug, Default)]
pub struct Series {
    options: Options,
    inputs: Vec<Input>,
    snapshots: Snapshots,
    budget: CopyBudget,
    decompressor: Decompressor,
}

/// Snapshots that the streams have created so far.
#[derive(Debug, Default)]
struct Snapshots {
    all: Vec<Snapshot>,
    /// Index of the newest snapshot with each uuid.
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
    /// Creates a series without streams.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// Adds all streams of a file. `name` appears in messages. The file must not change while the
    /// series reads its content.
    ///
    /// # Errors
    /// [`Error::Stream`] and [`Error::Refused`], with the position; [`Error::Cancelled`]. Snapshots
    /// that were complete before this position stay in the series.
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

    /// Returns the snapshots of all streams, in order.
    #[must_use]
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots.all
    }

    /// Returns a reader of a regular file, from its beginning to its end.
    ///
    /// # Errors
    /// [`Error::Path`] if `tree` has no such file, [`Error::NoData`] if the stream omits its
    /// content. The errors contain `path`.
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

    /// Reads bytes of a stream file at `position`.
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

    /// Executes one command on the series.
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

    /// Returns the tree of the parent snapshot that a stream names.
    fn parent(&self, uuid: Uuid) -> Result<Tree, Problem> {
        let earlier: &dyn apply::Earlier = &self.snapshots;
        let parent = earlier.tree(uuid).cloned();
        parent.ok_or_else(|| Problem::ParentUnknown {
            wanted: uuid,
            given: earlier.uuids(),
        })
    }
}

/// Creates an empty snapshot.
fn begin(
    frame: &Frame<'_>,
    file: &str,
    path: &[u8],
    uuid: Uuid,
    transid: Generation,
) -> Result<Snapshot, Problem> {
    // The name may be a path, but must stay below the receiver's directory.
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

/// Returns the file data that a stream command holds.
const fn data_of<'a>(command: &Command<'a>) -> &'a [u8] {
    match command {
        Command::Write { data, .. } | Command::EncodedWrite { data, .. } => data,
        _ => &[],
    }
}

/// Returns the offset of `part` in `whole`, of which it is a subslice. Attributes may come in any
/// order, so only the addresses of the bytes give this offset.
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
