//! How to send.

use crate::send::snapshot::Snapshot;
use crate::trail::Trail;
use buttress_format::send::Version;
use buttress_tree::ReadAhead;

/// How to send a snapshot.
#[derive(Clone, Debug)]
pub struct Options {
    /// The snapshot that the receiver has already: only what differs is sent. It may be in another volume.
    pub parent: Option<Snapshot>,
    /// Snapshots that the receiver has too, whose extents may be cloned.
    pub clone_sources: Vec<Snapshot>,
    /// The version of the stream.
    pub version: Version,
    /// Send the places of data instead of data (the receiver cannot use such a stream; `receive --dump` can).
    pub no_data: bool,
    /// Send compressed extents as they are stored. Needs version 2.
    pub compressed_data: bool,
    /// How the trees are read ahead.
    pub read_ahead: ReadAhead,
    /// Leave out the stream header: for all but the first of several snapshots in one stream.
    pub omit_header: bool,
    /// Leave out the end command: for all but the last of several snapshots in one stream.
    pub omit_end: bool,
    /// How many bytes of the stream to leave out, from its start: for going on where an earlier send was cut off.
    pub skip_bytes: u64,
    /// How far a receiver came: the commands that are left out must be those that it has.
    pub following: Option<Following>,
}

/// A receiver's trail, and how far along it the sends before this one went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// How far what is sent before comes.
    pub so_far: Trail,
    /// How far the receiver came.
    pub wanted: Trail,
}

impl Default for Options {
    /// Version 1, as btrfs-progs', with everything, read by sweeps.
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
