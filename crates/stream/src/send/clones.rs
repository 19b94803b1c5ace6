//! Clone sources: extents that the receiver can clone instead of getting their data again.
//!
//! Two kinds of sources need at most one search:
//! - *This send*: a bounded memory holds the extents of files already sent, by address, with the
//!   first ranges that used each extent. Above its limit the clone cache drops the older half; the
//!   send then repeats the data of dropped extents.
//! - *The parent and the clone sources*, which the receiver has completely. An extent that is older
//!   than such a snapshot may belong to it, and its back references show where.
//!
//! A receiver clones whole sectors. It clones a partial sector only from the end of the source file
//! to the end of the target file.
//!
//! One file may have written an extent that is still preallocated, and so reads as zeros, in
//! another file. Only ranges of the same kind are clones of each other.

use crate::send::error::{Error, Result};
use crate::send::snapshot::Snapshot;
use buttress_accounts::Accounts as _;
use buttress_format::{ByteCount, FileOffset, InodeNumber, Logical};
use buttress_fs::{DiskExtent, FileRange, RangeKind};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of extents in each half of the memory; an extent takes about 72 bytes.
const SEEN_MAX: usize = 1 << 17;

/// Largest number of ranges per remembered extent.
const RANGES_MAX: usize = 16;

/// Largest number of remembered paths in other snapshots.
const PATHS_MAX: usize = 1 << 10;

/// Largest number of ranges of other snapshots considered per extent.
const CANDIDATES_MAX: usize = 64;

type Ranges = SmallVec<[Seen; 1]>;

/// A range of an extent in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    inode: InodeNumber,
    /// Offset of the range in the file.
    offset: FileOffset,
    /// Offset of the range in the decompressed extent; the next field is its length.
    inside: ByteCount,
    length: ByteCount,
    /// Size of the file.
    file_bytes: ByteCount,
    /// True if the range is preallocated and reads as zeros.
    preallocated: bool,
}

/// A clone source for a part of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Snapshot of the source: `None` for the snapshot being sent, else an index into
    /// [`Clones::snapshots`].
    pub(crate) snapshot: Option<usize>,
    pub(crate) inode: InodeNumber,
    /// Offset of the part in the source file.
    pub(crate) source_offset: FileOffset,
    /// Offset of the part in the target file; the next field is its length.
    pub(crate) offset: FileOffset,
    pub(crate) length: ByteCount,
}

/// A range that may serve as a source, with its snapshot (see [`Source::snapshot`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    snapshot: Option<usize>,
    seen: Seen,
}

/// The clone sources of a send.
#[derive(Debug)]
pub(crate) struct Clones<'a> {
    seen: HashMap<Logical, Ranges>,
    /// Extents remembered before `seen` was last full.
    seen_before: HashMap<Logical, Ranges>,
    /// The parent and the clone sources that belong to the same volume.
    snapshots: Vec<&'a Snapshot>,
    sector_bytes: u64,
    /// Paths of source files in these snapshots.
    paths: HashMap<(usize, InodeNumber), Arc<[u8]>>,
}

/// Returns the extent of a range, and whether the range is preallocated.
const fn extent_of(range: &FileRange) -> Option<(&DiskExtent, bool)> {
    match &range.kind {
        RangeKind::Data(extent) => Some((extent, false)),
        RangeKind::Preallocated(extent) => Some((extent, true)),
        RangeKind::Hole | RangeKind::Inline(_) => None,
    }
}

impl<'a> Clones<'a> {
    pub(crate) fn new(new: &Snapshot, sources: impl Iterator<Item = &'a Snapshot>) -> Self {
        Self {
            seen: HashMap::new(),
            seen_before: HashMap::new(),
            snapshots: sources.filter(|source| source.shares_volume_with(new)).collect(),
            sector_bytes: u64::from(new.filesystem().sector_bytes()),
            paths: HashMap::new(),
        }
    }

    /// Returns the snapshot `number` (see [`Source::snapshot`]), and a path of one of its inodes.
    pub(crate) fn path(&mut self, number: usize, inode: InodeNumber) -> Result<(&'a Snapshot, Arc<[u8]>)> {
        let snapshot = self
            .snapshot(number)
            .ok_or(Error::Options("a clone source that is not one of the send"))?;
        if let Some(path) = self.paths.get(&(number, inode)) {
            return Ok((snapshot, Arc::clone(path)));
        }
        let paths = snapshot.filesystem().inode_paths(snapshot.location(inode))?;
        let path: Arc<[u8]> = paths.into_iter().next().unwrap_or_default().into();
        if self.paths.len() >= PATHS_MAX {
            self.paths.clear();
        }
        self.paths.insert((number, inode), Arc::clone(&path));
        Ok((snapshot, path))
    }

    /// Returns the snapshot of a clone source.
    fn snapshot(&self, number: usize) -> Option<&'a Snapshot> {
        self.snapshots.get(number).copied()
    }

    /// Remembers a range that the receiver now has.
    pub(crate) fn remember(&mut self, inode: InodeNumber, range: &FileRange, file_bytes: ByteCount) {
        let Some((extent, preallocated)) = extent_of(range) else {
            return;
        };
        let seen = Seen {
            inode,
            offset: range.offset,
            inside: extent.offset,
            length: range.length,
            file_bytes,
            preallocated,
        };
        if let Some(ranges) = self.seen_before.get_mut(&extent.logical) {
            return add(ranges, seen);
        }
        if self.seen.len() >= SEEN_MAX {
            self.seen_before = core::mem::take(&mut self.seen);
        }
        add(self.seen.entry(extent.logical).or_default(), seen);
    }

    /// Lists all ranges that may be clone sources of a range.
    pub(crate) fn candidates(&self, range: &FileRange) -> Result<Vec<Candidate>> {
        let Some((extent, _)) = extent_of(range) else {
            return Ok(Vec::new());
        };
        let seen = self
            .seen
            .get(&extent.logical)
            .or_else(|| self.seen_before.get(&extent.logical));
        let mut candidates: Vec<Candidate> = seen
            .into_iter()
            .flatten()
            .map(|&seen| Candidate { snapshot: None, seen })
            .collect();
        let may_hold = |snapshot: &&Snapshot| {
            range
                .generation
                .is_some_and(|generation| generation <= snapshot.info().generation())
        };
        if self.snapshots.iter().any(may_hold) {
            self.search(extent, &mut candidates)?;
        }
        Ok(candidates)
    }

    /// Chooses the clone source that covers the earliest part of a range; among equal sources, the
    /// longest. The target file of the clone has `file_bytes` bytes.
    pub(crate) fn choose(
        &self,
        candidates: &[Candidate],
        range: &FileRange,
        file_bytes: ByteCount,
    ) -> Option<Source> {
        let (extent, preallocated) = extent_of(range)?;
        candidates
            .iter()
            .filter(|candidate| candidate.seen.preallocated == preallocated)
            .filter_map(|candidate| self.overlap(candidate, range, extent, file_bytes))
            .min_by_key(|source| (source.offset, core::cmp::Reverse(source.length)))
    }

    /// Searches the receiver's snapshots for references to the extent.
    fn search(&self, extent: &DiskExtent, candidates: &mut Vec<Candidate>) -> Result<()> {
        let Some(first) = self.snapshots.first() else {
            return Ok(());
        };
        let references = first.filesystem().data_references(extent.logical, true)?;
        for reference in references.iter() {
            if candidates.len() >= CANDIDATES_MAX {
                break;
            }
            let subvolume = reference.location.subvolume;
            let number = self
                .snapshots
                .iter()
                .position(|snapshot| snapshot.id() == subvolume);
            let Some(snapshot) = number.and_then(|number| self.snapshot(number)) else {
                continue;
            };
            if let Some(seen) = self.range_of(snapshot, reference.location.inode, reference.offset, extent)? {
                candidates.push(Candidate {
                    snapshot: number,
                    seen,
                });
            }
        }
        Ok(())
    }

    /// Returns the range at `offset` of a file of a snapshot, if it refers to the extent.
    fn range_of(
        &self,
        snapshot: &Snapshot,
        inode: InodeNumber,
        offset: FileOffset,
        extent: &DiskExtent,
    ) -> Result<Option<Seen>> {
        let Some(item) = snapshot.inode(inode)? else {
            return Ok(None);
        };
        if item.nlink == 0 {
            return Ok(None);
        }
        let metadata = buttress_fs::Metadata::from_item(
            snapshot.location(inode),
            &item,
            snapshot.filesystem().sector_bytes(),
        );
        let file = snapshot.filesystem().open_known(metadata, None)?;
        let Some(range) = file.extents_from(offset)?.next().transpose()? else {
            return Ok(None);
        };
        let Some((used, preallocated)) = extent_of(&range) else {
            return Ok(None);
        };
        Ok((used.logical == extent.logical).then_some(Seen {
            inode,
            offset: range.offset,
            inside: used.offset,
            length: range.length,
            file_bytes: item.size,
            preallocated,
        }))
    }

    /// Returns the part of `range` that a clone candidate shares and that the receiver can clone.
    fn overlap(
        &self,
        candidate: &Candidate,
        range: &FileRange,
        extent: &DiskExtent,
        file_bytes: ByteCount,
    ) -> Option<Source> {
        let seen = &candidate.seen;
        let inside_end = |start: ByteCount, length: ByteCount| start.checked_add(length);
        let start = seen.inside.max(extent.offset);
        let end = inside_end(seen.inside, seen.length)?.min(inside_end(extent.offset, range.length)?);
        let length = end
            .checked_sub(start)
            .filter(|length| *length != ByteCount::ZERO)?;
        let mut source_offset = seen.offset.checked_add(start.checked_sub(seen.inside)?)?;
        if buttress_faults::on("send-clones-from-start") {
            source_offset = seen.offset;
        }
        let offset = range.offset.checked_add(start.checked_sub(extent.offset)?)?;
        let source_left = FileOffset::new(seen.file_bytes.get()).checked_distance_from(source_offset)?;
        let target_left = FileOffset::new(file_bytes.get()).checked_distance_from(offset)?;
        // A clone may include a partial sector only at the common end of both files.
        let length = length.min(source_left).min(target_left);
        let to_both_ends = length == source_left && length == target_left;
        let length = if to_both_ends {
            length
        } else {
            length.align_down(self.sector_bytes)
        };
        (length != ByteCount::ZERO).then_some(Source {
            snapshot: candidate.snapshot,
            inode: seen.inode,
            source_offset,
            offset,
            length,
        })
    }
}

/// Adds a range of an extent, up to a fixed number of ranges.
fn add(ranges: &mut Ranges, seen: Seen) {
    if ranges.len() < RANGES_MAX {
        ranges.push(seen);
    }
}
