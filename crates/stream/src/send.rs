//! Sending: a snapshot, or the difference between two snapshots, as a stream of commands that
//! recreates it elsewhere.
//!
//! A full send is one pass over one tree. An incremental send walks only the parts of the trees
//! that the two snapshots do not share. The send keeps in memory what it read before it knew all
//! removed names. The send makes no tree search per inode. While the send makes commands, the tree
//! is read ahead, reads of file data are in flight, and a separate thread writes finished parts.
//! The same snapshots and options give the same bytes.
//!
//! | module | holds |
//! |---|---|
//! | [`Snapshot`], [`Options`], [`Error`] | snapshots to send, options, errors |
//! | `items`, `inode` | from the items of the trees to inodes and their changes |
//! | `plan`, `held` | the facts needed before the first command, and the items read to find them |
//! | `names`, `links`, `inherited_attributes` | the receiver's current names, and the commands that change them |
//! | `content`, `clones` | the data that the receiver needs, and its clone sources |
//! | `attributes`, `times` | owner, mode, flags, times, extended attributes |
//! | `sender` | the order of all commands |
//! | [`estimate`], [`resume`] | the length of a stream; resuming an interrupted stream |
//! | `output` | commands to bytes, and bytes to the sink |
//!
//! The stream has the same effect as the kernel's stream of the same snapshots. Buttress's stream
//! is shorter than the kernel's: new files get their final names at once, without a rename, and
//! directories get their times once.

pub(crate) mod attributes;
mod clones;
mod content;
mod error;
pub mod estimate;
mod held;
mod inherited_attributes;
mod inode;
mod items;
mod links;
mod names;
mod options;
mod output;
mod plan;
pub mod resume;
mod sender;
mod snapshot;
mod times;

pub use error::{Error, NamesProblem, Result};
pub use options::{Following, Options};
pub use snapshot::Snapshot;

use buttress_format::ByteCount;
use buttress_format::send::Version;
use buttress_fs::Progress;
use std::io::Write;

/// Result of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of inodes that the send read.
    pub inodes: u64,
    /// Commands of the stream.
    pub commands: u64,
    /// Length of the stream in bytes, including bytes that the send skipped on request.
    pub stream_bytes: ByteCount,
    /// Progress along a receiver's trail; `None` once the send has skipped everything that the
    /// receiver has.
    pub following: Option<Following>,
}

/// Sends `snapshot` to `sink`.
///
/// Progress counts inodes and bytes of file data. A cancelled send ends with
/// [`buttress_fs::Error::Cancelled`].
///
/// # Errors
/// See [`Error`]. The output then holds a stream without its end command, which a receiver refuses.
pub fn send(
    snapshot: &Snapshot,
    options: &Options,
    sink: &mut (dyn Write + Send),
    progress: &Progress,
) -> Result<Summary> {
    if options.compressed_data && options.version == Version::V1 {
        return Err(Error::Options(
            "compressed data needs stream version 2; choose version 2, or send without compressed data",
        ));
    }
    let (mut output, drain) = output::Output::new(options, options.skip_bytes, progress);
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || drain.run(sink));
        let made = make_stream(snapshot, options, &mut output, progress);
        let summary = made.map(|inodes| Summary::new(inodes, &output));
        drop(output);
        // If both sides failed, the output's failure is the cause.
        writing
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        summary
    })
}

impl Summary {
    const fn new(inodes: u64, output: &output::Output<'_>) -> Self {
        Self {
            inodes,
            commands: output.commands(),
            stream_bytes: ByteCount::new(output.position()),
            following: output.following(),
        }
    }
}

fn make_stream<'a>(
    snapshot: &'a Snapshot,
    options: &'a Options,
    output: &mut output::Output<'a>,
    progress: &'a Progress,
) -> Result<u64> {
    if !options.omit_header {
        output.header()?;
    }
    let inodes = sender::send_commands(snapshot, options, output, progress)?;
    output.finish()?;
    Ok(inodes)
}
