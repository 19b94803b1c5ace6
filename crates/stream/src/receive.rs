//! Receiving: a stream becomes a read-only subvolume of a volume that is open for writing.
//!
//! What a stream makes is a subvolume that nobody sees before its end
//! ([`unfinished`](buttress_writer::operations::unfinished)). At the end it gets its name, its uuids and its read-only flag
//! in one step, which is then committed. A receive that fails gives up what it made; one that is cut off leaves what the
//! next opening for writing drops.
//!
//! | module | holds |
//! |---|---|
//! | [`Options`], [`Event`], [`Summary`] | how to receive, what is told meanwhile, what came of it |
//! | `making` | the subvolumes of a stream, from the first command to the end |
//! | `names` | from paths to inodes, without a walk for each command |
//! | `made_names` | names that wait to be put into their directories |
//! | `new_file` | new inodes, small files made at once with all that they hold |
//! | `applying` | names and attributes |
//! | `content` | data: written, encoded, cloned, allocated |
//! | `encoded` | encoded data on its way into a file, many extents at a time |
//! | `notes` | oddities of a stream that do no harm, each reported once |
//! | `settling` | names that settle before their inode is made, times of directories that wait |
//! | `taken_names` | names that are surely free, without a look-up for each |
//! | `sources` | the subvolumes that a stream names by uuid |
//! | `scouting` | what commands that come will change, read before they come |
//! | `keeping` | what there is of a stream that was cut off, kept to go on with |
//!
//! A stream is not trusted: whatever it says, nothing outside the subvolume that it makes is changed, and memory does not
//! depend on it.
//!
//! What comes out is what was sent: directories pass nothing on to what is made in them, and the time of the last change of an
//! inode (`ctime`) and of its making (`otime`), where the stream has it, are set with the others.

mod applying;
mod content;
mod encoded;
mod error;
mod keeping;
mod made_names;
mod making;
mod names;
mod new_file;
mod notes;
mod scouting;
mod settling;
mod sources;
mod taken_names;

pub use error::{Error, Problem, Result};
pub use keeping::{Kept, kept};

use crate::command::PathForm;
use crate::decoder::{Decoder, ReadAhead, SkippedCommand, Streams};
use crate::error::Place;
use buttress_format::send::{AttributeKind, CommandKind, MAGIC, Version};
use buttress_format::{ByteCount, Generation, SubvolumeId, Uuid};
use buttress_fs::{Location, Progress};
use buttress_writer::WritableFilesystem;
use making::Receiver;
use std::io::{Cursor, Read};

/// How to receive.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much of the input to receive.
    pub streams: Streams,
    /// Decode encoded data instead of storing it as it is.
    pub force_decompress: bool,
    /// Skip commands with unknown numbers, except those that would change the content of a file. Not together with what is kept of a
    /// stream: what is skipped is not part of its [trail](crate::trail).
    pub skip_unknown: bool,
    /// Give up after so many commands that cannot be carried out; 0: never. The others are left out.
    pub errors_max: u64,
    /// Keep what there is of a stream that is cut off, in the volume but under no name that anybody would look for: how often it
    /// is made sure of while the stream arrives, in bytes of that.
    pub keep_every: Option<ByteCount>,
    /// Go on with this. The input is the rest of the stream, or all of it. What is kept goes when the stream is received.
    pub resume: Option<Kept>,
    /// Counts commands and bytes of the stream, and can end the work.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: Streams::All,
            force_decompress: false,
            skip_unknown: false,
            errors_max: 1,
            keep_every: None,
            resume: None,
            progress: Progress::new(),
        }
    }
}

/// What is told while a stream is received.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A subvolume begins that is made from nothing.
    Subvolume {
        /// Its name.
        name: &'a [u8],
        /// Its uuid in the stream.
        uuid: Uuid,
        /// The generation at which it last changed at its sender.
        transid: Generation,
    },
    /// A subvolume begins that is made from a snapshot.
    Snapshot {
        /// Its name.
        name: &'a [u8],
        /// Its uuid in the stream.
        uuid: Uuid,
        /// The generation at which it last changed at its sender.
        transid: Generation,
        /// What it is made from.
        parent: SubvolumeId,
    },
    /// A command was left out: [`Options::errors_max`] allows it.
    Skipped(&'a Error),
    /// A stream has something odd that does no harm.
    Note(&'a Note),
}

/// Something odd in a stream that does no harm. Each kind is reported once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A command has an attribute that it has only in later versions of streams. It is used.
    EarlyAttribute {
        /// The place of the command in the stream.
        place: Place,
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: AttributeKind,
        /// The version of the stream.
        version: Version,
    },
    /// A command has an attribute that belongs to others. It is not used.
    SuperfluousAttribute {
        /// The place of the command in the stream.
        place: Place,
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: AttributeKind,
    },
    /// A path is not spelled as the format has it.
    Path {
        /// The place of the command in the stream.
        place: Place,
        /// The command.
        command: CommandKind,
        /// Its first path.
        path: Vec<u8>,
        /// How it is spelled.
        form: PathForm,
    },
    /// A command was skipped, since [`Options::skip_unknown`] allows it.
    UnknownCommand(SkippedCommand),
}

/// What was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The subvolumes, in the order of the input.
    pub subvolumes: Vec<ReceivedSubvolume>,
    /// Commands that were carried out, beginnings and ends included.
    pub commands: u64,
    /// Bytes of them in the input.
    pub stream_bytes: ByteCount,
    /// Commands that were left out.
    pub errors: u64,
}

/// A subvolume that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedSubvolume {
    /// Its id.
    pub id: SubvolumeId,
    /// Its name.
    pub name: Vec<u8>,
    /// Its uuid in the stream.
    pub uuid: Uuid,
    /// The generation at which it last changed at its sender.
    pub transid: Generation,
}

/// Receives all streams of `input` into a directory of a volume. Each of them is there, and durable, before the next begins.
///
/// # Errors
/// See [`Error`]: the streams before that one are received then, and of that one there is nothing. What was made for it waits
/// to be [dropped](WritableFilesystem::drop_deleted_subvolumes).
pub fn receive(
    filesystem: &WritableFilesystem,
    directory: Location,
    input: impl Read,
    options: &Options,
    notify: &mut dyn FnMut(&Event<'_>),
) -> Result<Summary> {
    require_possible(options)?;
    let mut receiver = Receiver::new(filesystem, directory, options, notify);
    let received = match &options.resume {
        None => receiver.receive(&mut Decoder::with_streams(input, options.streams)),
        Some(kept) => go_on(&mut receiver, input, kept, options.streams),
    };
    ended(receiver, received)
}

/// As [`receive`], from an input that is [read ahead](ReadAhead): all streams of it, from their beginnings, whatever the options say
/// of that.
///
/// # Errors
/// As there.
pub fn receive_ahead(
    filesystem: &WritableFilesystem,
    directory: Location,
    input: ReadAhead,
    options: &Options,
    notify: &mut dyn FnMut(&Event<'_>),
) -> Result<Summary> {
    require_possible(options)?;
    std::thread::scope(|scope| {
        let mut receiver = Receiver::new(filesystem, directory, options, notify);
        receiver.scouts = scouting::start(scope, filesystem);
        let received = receiver.receive(&mut Decoder::ahead(input));
        // The threads end without them.
        receiver.scouts = None;
        ended(receiver, received)
    })
}

fn require_possible(options: &Options) -> Result<()> {
    if options.skip_unknown && (options.keep_every.is_some() || options.resume.is_some()) {
        let what = "to skip unknown commands of a stream that is kept";
        return Err(buttress_fs::Error::Invalid { what }.into());
    }
    Ok(())
}

fn ended(mut receiver: Receiver<'_>, received: Result<()>) -> Result<Summary> {
    match received {
        Ok(()) => Ok(receiver.into_summary()),
        Err(error) => {
            receiver.keep_after(&error);
            receiver.discard();
            Err(error)
        }
    }
}

/// Goes on with a stream: whether `input` is all of it or the rest is seen by how it begins.
fn go_on(receiver: &mut Receiver<'_>, mut input: impl Read, kept: &Kept, streams: Streams) -> Result<()> {
    let mut beginning = Vec::new();
    let most = u64::try_from(MAGIC.len()).unwrap_or(0);
    let read = input.by_ref().take(most).read_to_end(&mut beginning);
    read.map_err(|error| crate::Error::Read { offset: 0, error })?;
    let is_whole = beginning == MAGIC;
    let input = Cursor::new(beginning).chain(input);
    if is_whole {
        let mut decoder = Decoder::with_streams(input, streams);
        kept.pass(&mut decoder)?;
        receiver.begin_again(kept)?;
        return receiver.receive(&mut decoder);
    }
    receiver.begin_again(kept)?;
    receiver.receive(&mut kept.decoder(input, streams))
}
