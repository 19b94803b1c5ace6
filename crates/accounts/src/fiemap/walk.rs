//! The walk over a file's leaves, which returns the parts that the map joins to extents.
//!
//! Parts are in order of their offset. An item becomes one part. A preallocated item with dirty
//! data over it becomes several. A hole becomes parts of the map only if it contains dirty data.

use super::{FiemapExtent, FiemapFlags};
use crate::back_references::ExtentUse;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Compression, FileExtent, FileExtentBody, FileOffset, ItemType, Key};
use buttress_fs::error::{Corruption, Result};
use buttress_fs::extents::{DiskExtent, FileRange, FileRangeBuilder, RangeKind, extent_keys};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use buttress_tree::{Leaves, ReadAhead};
use core::ops::Range;

/// A part of the map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The extent without its sharedness.
    pub(super) extent: FiemapExtent,
    /// The index of its use in the batch.
    pub(super) used: Option<usize>,
}

/// Some parts in order, and the uses of extents on which their sharedness depends.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) parts: Vec<Part>,
    /// The uses of extents in the batch; empty if the map needs no sharedness.
    pub(super) uses: Vec<ExtentUse>,
    pub(super) keeps_uses: bool,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            uses: Vec::new(),
            keeps_uses: true,
        }
    }
}

/// Walks the leaves of a file once.
#[derive(Debug)]
pub(super) struct Walk {
    leaves: Leaves,
    builder: FileRangeBuilder,
    map: Map,
    ended: bool,
}

/// The position of the walk, and the dirty data after it.
#[derive(Debug)]
struct Map {
    location: Location,
    position: FileOffset,
    end: FileOffset,
    /// The offset at which an earlier walk ended. The map already returned the parts before this
    /// offset.
    resumed_at: Option<FileOffset>,
    /// Dirty ranges in order. Ranges after `end` are unknown if `end` is less than requested.
    waiting: Vec<Range<u64>>,
    next_waiting: usize,
    is_cut: bool,
}

impl Walk {
    /// Returns a walk over the part of a file in `range`. `waiting` has the dirty ranges in order,
    /// known only up to `waiting_known_to` if that is set. With `resumed`, an earlier walk reached
    /// `range.start`.
    pub(super) fn new(
        view: &Filesystem,
        location: Location,
        range: &Range<FileOffset>,
        waiting: Vec<Range<u64>>,
        resumed: Option<Resumed>,
    ) -> Result<Self> {
        let tree = view.subvolume_tree(location.subvolume)?;
        let first = *extent_keys(&tree, location, range.start)?.start();
        let known_to = resumed.and_then(|resumed| resumed.known_to);
        let end = known_to.map_or(range.end, |known| known.min(range.end));
        let stop = Key::new(location.inode.object_id(), ItemType::EXTENT_DATA, end.get());
        Ok(Self {
            leaves: tree.leaves(first..stop, ReadAhead::sweep()),
            builder: FileRangeBuilder::new(location, view.sector_bytes()),
            map: Map {
                location,
                position: range.start,
                end,
                resumed_at: resumed.filter(|resumed| resumed.begun).map(|_| range.start),
                waiting,
                next_waiting: 0,
                is_cut: end < range.end,
            },
            ended: false,
        })
    }

    /// Replaces the parts of `batch` by those of the next leaves: `count` parts, plus the rest of
    /// the last leaf. Returns fewer parts at the end of the file.
    pub(super) fn collect(
        &mut self,
        parts: usize,
        progress: Option<&Progress>,
        batch: &mut Batch,
    ) -> Result<()> {
        batch.parts.clear();
        batch.uses.clear();
        while batch.parts.len() < parts && !self.ended {
            if let Some(progress) = progress {
                progress.check()?;
            }
            match self.leaves.next()? {
                Some(leaf) => {
                    for item in leaf
                        .items()
                        .filter(|item| item.key.item_type == ItemType::EXTENT_DATA)
                    {
                        let range = self.builder.range(&item.key, item.data)?;
                        self.map.add(&range, batch);
                    }
                }
                None => {
                    self.map.hole(self.map.end, None, batch);
                    self.ended = true;
                }
            }
        }
        Ok(())
    }

    /// Returns whether the walk has no part of the file left.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the offset up to which the file was mapped.
    pub(super) const fn position(&self) -> FileOffset {
        self.map.position
    }

    /// Returns whether dirty data follows the mapped part.
    pub(super) fn content_follows(&self) -> bool {
        let position = self.map.position.get();
        self.map.waiting.iter().any(|range| range.end > position)
    }
}

/// A walk that continues earlier walks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resumed {
    /// True if the walk continues an earlier walk.
    pub(super) begun: bool,
    /// The offset up to which the walk knows the dirty data, if not to the end of the file.
    pub(super) known_to: Option<FileOffset>,
}

impl Map {
    /// Adds the range of an item, and the dirty data before it.
    fn add(&mut self, range: &FileRange, batch: &mut Batch) {
        if range.end() <= self.position {
            return;
        }
        self.hole(range.offset.min(self.end), None, batch);
        let used = batch
            .keeps_uses
            .then(|| ExtentUse::of_range(self.location.inode, range))
            .flatten()
            .map(|one| {
                batch.uses.push(one);
                batch.uses.len().exact_sub(1)
            });
        // Clamp: a new walk starts at the range's beginning.
        let from = self.resumed_at.unwrap_or(range.offset).max(range.offset);
        match &range.kind {
            RangeKind::Hole => self.hole(self.stop(range), None, batch),
            RangeKind::Inline(inline) => {
                let mut flags = FiemapFlags::INLINE | FiemapFlags::NOT_ALIGNED;
                flags.set(FiemapFlags::ENCODED, inline.compression != Compression::None);
                push(batch, from..range.end(), None, flags, None);
                self.position = range.end();
            }
            RangeKind::Data(extent) => {
                let is_encoded = extent.compression != Compression::None;
                let mut flags = FiemapFlags::empty();
                flags.set(FiemapFlags::ENCODED, is_encoded);
                push(batch, from..range.end(), Some((range, extent)), flags, used);
                self.position = range.end();
            }
            RangeKind::Preallocated(extent) => {
                self.position = from;
                self.hole(self.stop(range), Some((range, extent, used)), batch);
            }
        }
    }

    /// Returns where the search for dirty data in a range ends: at its end, or where dirty data
    /// becomes unknown.
    fn stop(&self, range: &FileRange) -> FileOffset {
        if self.is_cut {
            range.end().min(self.end)
        } else {
            range.end()
        }
    }

    /// Adds the dirty data up to `end`, and preallocated parts around it.
    fn hole(
        &mut self,
        end: FileOffset,
        preallocated: Option<(&FileRange, &DiskExtent, Option<usize>)>,
        batch: &mut Batch,
    ) {
        let reserved = |batch: &mut Batch, part: Range<FileOffset>| {
            if let Some((range, extent, used)) = preallocated {
                push(batch, part, Some((range, extent)), FiemapFlags::UNWRITTEN, used);
            }
        };
        while let Some(waiting) = self.waiting.get(self.next_waiting) {
            let from = self.position.max(FileOffset::new(waiting.start));
            let to = end.min(FileOffset::new(waiting.end));
            if from >= end {
                break;
            }
            if from < to {
                reserved(batch, self.position..from);
                let flags = FiemapFlags::DELALLOC | FiemapFlags::UNKNOWN;
                push(batch, from..to, None, flags, None);
                self.position = to;
            }
            if waiting.end > end.get() {
                break;
            }
            self.next_waiting = self.next_waiting.exact_add(1);
        }
        reserved(batch, self.position..end);
        self.position = self.position.max(end);
    }
}

/// Adds a part of a range with or without an extent, unless it is empty.
fn push(
    batch: &mut Batch,
    part: Range<FileOffset>,
    lies: Option<(&FileRange, &DiskExtent)>,
    flags: FiemapFlags,
    used: Option<usize>,
) {
    let Some(length) = part
        .end
        .checked_distance_from(part.start)
        .filter(|length| *length > ByteCount::ZERO)
    else {
        return;
    };
    let address = lies.map(|(range, extent)| match extent.compression {
        Compression::None => {
            let skipped = part.start.distance_from(range.offset);
            extent.logical.exact_add(extent.offset).exact_add(skipped)
        }
        _ => extent.logical,
    });
    batch.parts.push(Part {
        extent: FiemapExtent {
            offset: part.start,
            length,
            address,
            flags,
        },
        used,
    });
}

/// Returns the end of the last extent of a file that is not a hole; 0 if there is none.
pub(super) fn last_extent_end(view: &Filesystem, location: Location) -> Result<FileOffset> {
    let tree = view.subvolume_tree(location.subvolume)?;
    let sector_bytes = view.sector_bytes();
    let mut cursor = tree.cursor(ReadAhead::None);
    cursor.seek_at_or_before(&FileExtent::key(location.inode, FileOffset::new(u64::MAX)))?;
    while let Some(item) = cursor.current() {
        let key = item.key;
        if key.objectid != location.inode.object_id() || key.item_type != ItemType::EXTENT_DATA {
            break;
        }
        let extent = FileExtent::parse(&key, item.data, sector_bytes).map_err(|error| Corruption::Item {
            tree: location.subvolume.tree(),
            error,
        })?;
        let is_hole = matches!(extent.body, FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) if slice.is_hole());
        if !is_hole {
            return Ok(extent.file_end(&key, sector_bytes));
        }
        if !cursor.previous()? {
            break;
        }
    }
    Ok(FileOffset::MIN)
}
