//! The areas of the writer's calls: a borrowed handle for each job.
//!
//! A handle holds a reference to the [`WritableFilesystem`] and no state. The module of a job adds
//! the job's calls to its handle. [`WritableFilesystem`] keeps the calls that change names,
//! attributes and content.

use crate::WritableFilesystem;

/// Quotas: on and off, quota groups, their relations and limits, and rescans.
///
/// Invariant: a writer that is charged against a limit knows current counters.
#[derive(Clone, Copy, Debug)]
pub struct Quotas<'v> {
    pub(crate) filesystem: &'v WritableFilesystem,
}

/// The subvolumes of a volume: makes, snapshots, names, deletes and drops them.
///
/// Invariants:
/// - A subvolume that is not finished has no name, and opening the volume drops it.
/// - A deleted subvolume has no name. Its tree exists until it is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Subvolumes<'v> {
    pub(crate) filesystem: &'v WritableFilesystem,
}

/// The write-back of dirty data: compresses, allocates and writes it, and inserts its items.
///
/// Invariant: data stays dirty until its items are in the tree.
#[derive(Clone, Copy, Debug)]
pub struct WriteBack<'v> {
    pub(crate) filesystem: &'v WritableFilesystem,
}

/// The log tree: makes synced inodes durable without a commit, and replays a pending log.
///
/// Invariant: a sync returns after the superblock that names its log is durable, or after a commit.
#[derive(Clone, Copy, Debug)]
pub struct LogTree<'v> {
    pub(crate) filesystem: &'v WritableFilesystem,
}

/// Inodes without a name: removes them when their last holder ends, and at the next opening.
///
/// Invariant: an inode without a name has an orphan item until it is removed.
#[derive(Clone, Copy, Debug)]
pub struct Orphans<'v> {
    pub(crate) filesystem: &'v WritableFilesystem,
}

/// Writes of encoded content: extents that a caller compressed.
///
/// Invariant: an encoded extent is written as it is, or not at all.
#[derive(Clone, Copy, Debug)]
pub struct EncodedWrites<'v> {
    pub(crate) filesystem: &'v WritableFilesystem,
}

/// Live reads: names, inodes, attributes and content of the newest state, without a view.
///
/// Invariants:
/// - A live read acquires no edit lock and waits for no commit and no write-back.
/// - A read sees all edits of an operation or none.
#[derive(Clone, Copy, Debug)]
pub struct LiveReads<'v> {
    pub(crate) filesystem: &'v WritableFilesystem,
}

/// The content of files: acquires a file's lock for a call, and knows which files have dirty data.
///
/// Invariant: a call holds the file's lock from its begin to its end. Only a write-back releases
/// the lock, while content is in flight.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'v> {
    pub(crate) filesystem: &'v WritableFilesystem,
}

impl WritableFilesystem {
    /// Returns the calls that lock the content of files.
    pub const fn contents(&self) -> Contents<'_> {
        Contents { filesystem: self }
    }

    /// Returns the calls that change and rescan quotas.
    pub const fn quotas(&self) -> Quotas<'_> {
        Quotas { filesystem: self }
    }

    /// Returns the calls that make, name, delete and drop subvolumes.
    pub const fn subvolumes(&self) -> Subvolumes<'_> {
        Subvolumes { filesystem: self }
    }

    /// Returns the calls that write dirty data back.
    pub const fn writeback(&self) -> WriteBack<'_> {
        WriteBack { filesystem: self }
    }

    /// Returns the calls that sync inodes.
    pub const fn log_tree(&self) -> LogTree<'_> {
        LogTree { filesystem: self }
    }

    /// Returns the calls that remove inodes without a name.
    pub const fn orphans(&self) -> Orphans<'_> {
        Orphans { filesystem: self }
    }

    /// Returns the calls that write encoded content.
    pub const fn encoded_writes(&self) -> EncodedWrites<'_> {
        EncodedWrites { filesystem: self }
    }

    /// Returns the calls that read the newest state.
    pub const fn live(&self) -> LiveReads<'_> {
        LiveReads { filesystem: self }
    }
}
