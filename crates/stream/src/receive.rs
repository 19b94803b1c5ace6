//! Receiving: a stream becomes a read-only subvolume of a volume that is open for writing.
//!
//! A stream creates a subvolume that stays invisible until its end
//! ([`unfinished`](buttress_writer::operations::unfinished)). At the end the subvolume gets its
//! name, its uuids and its read-only flag in one operation, and the receiver commits. A failed
//! receive discards its subvolume. After a crash, the next open for writing drops the unfinished
//! subvolume.
//!
//! | module | holds |
//! |---|---|
//! | [`Options`], [`Event`], [`Summary`] | options, events during the receive, and its result |
//! | `making` | the subvolumes of a stream, from the first command to the end |
//! | `names` | from paths to inodes, without a walk for each command |
//! | `made_names` | names that are pending for their directories |
//! | `new_file` | new inodes: small files are created in one operation with content and attributes |
//! | `applying` | names and attributes |
//! | `content` | data: written, encoded, cloned, allocated |
//! | `encoded` | encoded data for a file, many extents per write |
//! | `notes` | harmless oddities of a stream, each reported once |
//! | `settling` | names that settle before their inode exists, pending times of directories |
//! | `taken_names` | names that are certainly free, without a lookup for each |
//! | `sources` | the subvolumes that a stream names by uuid |
//! | `scouting` | readahead of the metadata that later commands will change |
//! | `keeping` | the received part of an interrupted stream, kept for a later resume |
//!
//! The receiver does not trust streams. For any stream, the receiver changes nothing outside the
//! new subvolume, and its memory does not grow with the stream.
//!
//! The new subvolume equals the sent one. Directories of the volume pass no attributes on to
//! received entries. The receiver also sets the change time (`ctime`) and the creation time
//! (`otime`) of an inode, if the stream has them.

mod applying;
mod content;
mod encoded;
mod error;
mod gathered;
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

/// Options of a receive.
#[derive(Clone, Debug)]
pub struct Options {
    /// Part of the input to receive.
    pub streams: Streams,
    /// Decode encoded data instead of storing it encoded.
    pub force_decompress: bool,
    /// Skip commands with unknown numbers, except those that would change the content of a file.
    /// Excludes `keep_every` and `resume`: skipped commands are not part of the
    /// [trail](crate::trail) of a kept stream.
    pub skip_unknown: bool,
    /// Number of failed commands after which the receive gives up; 0 means no limit. The receive
    /// leaves failed commands out.
    pub errors_max: u64,
    /// Interval, in bytes of the stream, at which the receive saves its progress durably. If the
    /// stream is cut off, the received part stays in the volume, in a hidden directory.
    pub keep_every: Option<ByteCount>,
    /// Kept part of an interrupted stream to resume. The input is the rest of the stream or the
    /// whole stream. A completed receive deletes the kept part.
    pub resume: Option<Kept>,
    /// Counts commands and bytes of the stream, and can cancel the receive.
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

/// Event that a receive reports to its caller.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A new subvolume begins empty.
    Subvolume {
        /// Name of the received subvolume.
        name: &'a [u8],
        /// UUID of the subvolume in the stream.
        uuid: Uuid,
        /// Generation at which the subvolume last changed at its sender.
        transid: Generation,
    },
    /// A new subvolume begins as a snapshot.
    Snapshot {
        /// Name of the subvolume.
        name: &'a [u8],
        /// UUID of the subvolume in the stream.
        uuid: Uuid,
        /// Generation at which the subvolume last changed at its sender.
        transid: Generation,
        /// Subvolume that the snapshot is taken of.
        parent: SubvolumeId,
    },
    /// The receive skipped a failed command, as [`Options::errors_max`] allows.
    Skipped(&'a Error),
    /// The stream has a harmless oddity.
    Note(&'a Note),
}

/// A harmless oddity in a stream. The receive reports each kind once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A command has an attribute that only later stream versions define for it. The receiver uses
    /// this attribute of a later version.
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
    /// A command has an attribute of other commands. The receiver ignores the attribute.
    SuperfluousAttribute {
        /// The place of the command in the stream.
        place: Place,
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: AttributeKind,
    },
    /// A path is not in the plain form of the format.
    Path {
        /// The place of the command in the stream.
        place: Place,
        /// The command.
        command: CommandKind,
        /// First path of the command with the oddity.
        path: Vec<u8>,
        /// Form of the path.
        form: PathForm,
    },
    /// The receive skipped a command with an unknown number, as [`Options::skip_unknown`] allows.
    UnknownCommand(SkippedCommand),
}

/// Result of a receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The received subvolumes, in the order of the input.
    pub subvolumes: Vec<ReceivedSubvolume>,
    /// Number of executed commands, including those that begin and end a subvolume.
    pub commands: u64,
    /// Length of the executed commands in the input, in bytes.
    pub stream_bytes: ByteCount,
    /// Number of commands that the receive skipped.
    pub errors: u64,
}

/// A received subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedSubvolume {
    /// Id of the subvolume in the volume.
    pub id: SubvolumeId,
    /// Name of the subvolume.
    pub name: Vec<u8>,
    /// UUID of the subvolume in the stream.
    pub uuid: Uuid,
    /// Generation at which the subvolume last changed at its sender.
    pub transid: Generation,
}

/// Receives all streams of `input` into a directory of a volume. Each stream is complete and
/// durable before the next one begins.
///
/// # Errors
/// See [`Error`]. Earlier streams then stay received, and the volume shows nothing of the failed
/// stream. The unfinished subvolume of the failed stream remains to be
/// [dropped](buttress_writer::areas::Subvolumes::drop_deleted).
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

/// Receives like [`receive`], from an input that a thread [reads ahead](ReadAhead). Receiving with
/// readahead always receives all streams from their beginnings, regardless of `options`.
///
/// # Errors
/// The errors of [`receive`].
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
        // Dropping the scouts ends their threads, so the scope does not block.
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

/// Resumes a stream. The first bytes of `input` show whether it is the whole stream or its rest.
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
