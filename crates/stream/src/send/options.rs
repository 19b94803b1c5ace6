//! Options of a send.

use crate::send::snapshot::Snapshot;
use crate::trail::Trail;
use buttress_format::send::Version;
use buttress_tree::ReadAhead;

/// Options of a send.
#[derive(Clone, Debug)]
pub struct Options {
    /// Snapshot that the receiver already has: the send contains only the differences. The parent
    /// snapshot may be in another volume.
    pub parent: Option<Snapshot>,
    /// Further snapshots that the receiver has, whose extents it may clone.
    pub clone_sources: Vec<Snapshot>,
    /// The version of the stream.
    pub version: Version,
    /// Send ranges of data instead of the data itself. A receiver refuses a stream without data;
    /// `receive --dump` prints it.
    pub no_data: bool,
    /// Send compressed extents in stored form. This option needs stream version 2.
    pub compressed_data: bool,
    /// Readahead of the trees.
    pub read_ahead: ReadAhead,
    /// Omit the stream header. Use it for all but the first of several snapshots in one stream.
    pub omit_header: bool,
    /// Omit the end command of the stream. Set this option for all but the last of several
    /// snapshots in one stream.
    pub omit_end: bool,
    /// Number of bytes to omit from the start of the stream, to resume an interrupted transfer.
    pub skip_bytes: u64,
    /// Trail of the receiver: the omitted commands must match it.
    pub following: Option<Following>,
}

/// A receiver's trail, and the progress of earlier sends along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// Trail of the earlier sends of this output.
    pub so_far: Trail,
    /// Trail of the receiver.
    pub wanted: Trail,
}

impl Default for Options {
    /// Returns the options of a version 1 stream, as btrfs-progs sends it, with data and with
    /// readahead in sweeps.
    fn default() -> Self {
        Self {
            parent: None,
            clone_sources: Vec::new(),
            version: Version::V1,
            no_data: false,
            compressed_data: false,
            read_ahead: ReadAhead::sweep(),
            omit_header: false,
            omit_end: false,
            skip_bytes: 0,
            following: None,
        }
    }
}
