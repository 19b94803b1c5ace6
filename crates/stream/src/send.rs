//! Sending: a snapshot, or what differs between two, as a stream of commands that makes it anew elsewhere.
//!
//! A full send is one pass over one tree; an incremental one goes over what two trees do not share, and holds what it
//! saw before it knew all names that go away. Nothing is searched for per inode. While commands are made, the
//! tree is read ahead, file data is on its way from the devices, and finished parts are written out by a thread
//! of their own. The same snapshots and options give the same bytes.
//!
//! | module | holds |
//! |---|---|
//! | [`Snapshot`], [`Options`], [`Error`] | what to send, how, and what can go wrong |
//! | `items`, `inode` | from the items of the trees to inodes and what became of them |
//! | `plan`, `held` | what must be known before the first command, and what was seen in finding it out |
//! | `names`, `links`, `inherited_attributes` | the names as the receiver has them, and the commands that change them |
//! | `content`, `clones` | which data the receiver needs, and where it can clone it from |
//! | `attributes`, `times` | owner, mode, flags, times, extended attributes |
//! | `sender` | the order of all that |
//! | [`estimate`], [`resume`] | how long a stream will be; going on with one that was cut off |
//! | `output` | commands to bytes, and bytes out |
//!
//! What comes out means what the kernel's stream of the same snapshots means. It is shorter: new files get their
//! names at once instead of being renamed, and directories get their times once.

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

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Inodes that were looked at.
    pub inodes: u64,
    /// Commands of the stream.
    pub commands: u64,
    /// Bytes of the stream, with those that were left out as asked.
    pub stream_bytes: ByteCount,
    /// How far along a receiver's trail it came; `None` once all that the receiver has was left out.
    pub following: Option<Following>,
}

/// Sends `snapshot` to `sink`.
///
/// Progress counts inodes and bytes of file data; a cancelled send ends with
/// [`buttress_fs::Error::Cancelled`].
///
/// # Errors
/// See [`Error`]. What was written until then is a stream without its end, which a receiver refuses.
pub fn send(
    snapshot: &Snapshot,
    options: &Options,
    sink: &mut (dyn Write + Send),
    progress: &Progress,
) -> Result<Summary> {
    if options.compressed_data && options.version == Version::V1 {
        return Err(Error::Options(
            "compressed data needs version 2 of the stream: ask for that, or leave it out",
        ));
    }
    let (mut output, drain) = output::Output::new(options, options.skip_bytes, progress);
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || drain.run(sink));
        let made = make_stream(snapshot, options, &mut output, progress);
        let summary = made.map(|inodes| Summary::new(inodes, &output));
        drop(output);
        // Where both ends failed, the output's failure is the cause.
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
