//! Where the receiver can clone an extent from, instead of getting its data again.
//!
//! Two places are known without searching or by one search:
//! - *This send*: extents of files that were sent already are remembered by address, with the first ranges that
//!   used each. A bounded memory: above its limit the older half is forgotten, and sent as data if met again.
//! - *The parent and the clone sources*, which the receiver has whole: an extent that is older than such a snapshot
//!   can be in it, and its back references tell where.
//!
//! A receiver clones whole sectors, or up to the end of the source file where that becomes the end of the target.
//!
//! An extent can be written in one file and still preallocated, so that it reads as zeros, in another: only ranges of
//! one kind are clones of each other.

use crate::send::error::{Error, Result};
use crate::send::snapshot::Snapshot;
use buttress_accounts::Accounts as _;
use buttress_format::{ByteCount, FileOffset, InodeNumber, Logical};
use buttress_fs::{DiskExtent, FileRange, RangeKind};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// How many extents are remembered in each half: about 72 bytes each.
const SEEN_MAX: usize = 1 << 17;

/// How many ranges of one extent are remembered.
const RANGES_MAX: usize = 16;

/// How many paths in other snapshots are remembered.
const PATHS_MAX: usize = 1 << 10;

/// How many ranges of other snapshots are considered for one extent.
const CANDIDATES_MAX: usize = 64;

type Ranges = SmallVec<[Seen; 1]>;

/// A range of an extent, and the file that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    inode: InodeNumber,
    /// Where the range begins in the file.
    offset: FileOffset,
    /// Where it begins in the extent (counted after decompression), and how long it is.
    inside: ByteCount,
    length: ByteCount,
    /// The size of the file.
    file_bytes: ByteCount,
    /// Whether it was not written: it reads as zeros.
    preallocated: bool,
}

/// Where a part of a range can be cloned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Which snapshot: `None` for the one that is being sent, else a number of [`Clones::snapshots`].
    pub(crate) snapshot: Option<usize>,
    pub(crate) inode: InodeNumber,
    /// Where it begins in the source.
    pub(crate) source_offset: FileOffset,
    /// Where it begins in the target, and how long it is.
    pub(crate) offset: FileOffset,
    pub(crate) length: ByteCount,
}

/// A range that may serve as a source, and the snapshot that it is in: see [`Source::snapshot`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    snapshot: Option<usize>,
    seen: Seen,
}

/// What may be cloned from.
#[derive(Debug)]
pub(crate) struct Clones<'a> {
    seen: HashMap<Logical, Ranges>,
    /// What was seen before the last time that `seen` was full.
    seen_before: HashMap<Logical, Ranges>,
    /// The parent and the clone sources, those of the same volume.
    snapshots: Vec<&'a Snapshot>,
    sector_bytes: u64,
    /// Paths of sources in those.
    paths: HashMap<(usize, InodeNumber), Arc<[u8]>>,
}

/// The extent of a range, and whether it was not written.
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

    /// The snapshot `number`, see [`Source::snapshot`], and a path of one of its inodes.
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

    /// The snapshot that a source is in.
    fn snapshot(&self, number: usize) -> Option<&'a Snapshot> {
        self.snapshots.get(number).copied()
    }

    /// Takes note of a range that the receiver has from now on.
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

    /// All that a range may be cloned from.
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

    /// The source for the earliest part of a range of a file of `file_bytes`; among equals the longest.
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

    /// Looks for users of the extent in the snapshots that the receiver has.
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

    /// The range at `offset` of a file of a snapshot, if it uses the extent.
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

    /// The part of `range` that a candidate has too, as far as it can be cloned.
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
        // Up to the common end of both files a part of a sector can be cloned, elsewhere only whole ones.
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

/// Adds a range of an extent, unless there are enough.
fn add(ranges: &mut Ranges, seen: Seen) {
    if ranges.len() < RANGES_MAX {
        ranges.push(seen);
    }
}
