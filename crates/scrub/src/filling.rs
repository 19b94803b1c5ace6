//! The division of a chunk into groups: its extents, cut at the ends of stripes and groups, with
//! their checksums.

use crate::group::{Expected, Group, Piece, place};
use crate::used::{Checksums, Holds, UsedExtent, UsedExtents};
use buttress_exact::Exact as _;
use buttress_format::{BlockFormat, ByteCount, Logical, STRIPE_BYTES, TreeId};
use buttress_fs::Filesystem;
use buttress_tree::Tree;
use buttress_volume::MappedChunk;
use std::sync::Arc;

/// The trees that show which ranges are in use.
#[derive(Clone, Debug)]
pub(crate) struct Trees {
    pub(crate) extents: Tree,
    /// The checksum tree, if the volume has one.
    pub(crate) checksums: Option<Tree>,
    /// The state to which the trees belong. While the scrub holds a committed state, nothing in
    /// this state is overwritten.
    filesystem: Filesystem,
}

impl Trees {
    pub(crate) fn of(filesystem: &Filesystem) -> buttress_fs::Result<Self> {
        Ok(Self {
            extents: filesystem.tree(TreeId::EXTENT)?,
            checksums: filesystem.tree(TreeId::CHECKSUM).ok(),
            filesystem: filesystem.clone(),
        })
    }

    /// Returns the volume state to which the walked trees belong.
    pub(crate) const fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }
}

/// The groups of a chunk, in order.
#[derive(Debug)]
pub(crate) struct Groups<'a> {
    chunk: Arc<MappedChunk>,
    extents: UsedExtents<'a>,
    checksums: Checksums,
    group_bytes: u64,
    first: u64,
    current: Option<Group>,
    /// The rest of an extent, and whether it is the whole extent.
    rest: Option<(UsedExtent, bool)>,
    /// Unreadable parts of the trees.
    failed: Vec<String>,
    /// True if unknown extents may lie between the last extent and the next extent of the walk.
    has_gap: bool,
}

/// An item of the walk.
#[derive(Debug)]
pub(crate) enum Filled {
    /// A group with all pieces in use.
    Group(Group),
    /// An unreadable part of a tree, or a tree block at an impossible address.
    Unwalked(String),
}

impl<'a> Groups<'a> {
    /// Returns the groups of `chunk` from number `first` on; a group has `stripes` stripes of each
    /// device.
    pub(crate) fn new(
        trees: &Trees,
        format: &'a BlockFormat,
        chunk: &Arc<MappedChunk>,
        stripes: u64,
        first: u64,
    ) -> Self {
        let columns = ByteCount::of(chunk.layout().data_columns()).get();
        let group_bytes = stripes.max(1).exact_mul(STRIPE_BYTES).exact_mul(columns.max(1));
        // Clamp: the number of a group of an earlier run can be past the chunk's end.
        let skipped = ByteCount::new(first.saturating_mul(group_bytes));
        let from = chunk.start().saturating_add(skipped).min(chunk.end());
        // An extent that begins before the group is cut at its start.
        let longest = ByteCount::new(LONGEST_EXTENT);
        // Clamp: the address space begins at 0.
        let before = Logical::new(from.get().saturating_sub(longest.get())).max(chunk.start());
        let range = chunk.start()..chunk.end();
        Self {
            chunk: Arc::clone(chunk),
            extents: UsedExtents::new(&trees.extents, format, before, range),
            checksums: Checksums::new(
                trees.checksums.as_ref(),
                format.sector_bytes,
                format.checksum_type,
            ),
            group_bytes,
            first,
            current: None,
            rest: None,
            failed: Vec::new(),
            has_gap: false,
        }
    }

    /// Returns the next group with pieces in use, or an unreadable part of a tree.
    pub(crate) fn next(&mut self) -> Option<Filled> {
        loop {
            if let Some(failure) = self.failed.pop() {
                return Some(Filled::Unwalked(failure));
            }
            let (extent, is_start) = match self.rest.take() {
                Some(rest) => rest,
                None => match self.extents.next() {
                    Some(Ok(extent)) => (extent, true),
                    Some(Err(failure)) => {
                        self.has_gap = true;
                        if let Some(current) = &mut self.current {
                            current.is_partial = true;
                        }
                        return Some(Filled::Unwalked(failure));
                    }
                    None => return self.current.take().map(Filled::Group),
                },
            };
            if let Some(full) = self.add(extent, is_start) {
                return Some(Filled::Group(full));
            }
        }
    }

    /// Adds the beginning of an extent to the current group of the scrub. Returns the previous
    /// group of the stream if that group is now full.
    fn add(&mut self, extent: UsedExtent, is_start: bool) -> Option<Group> {
        let Some((offset, place)) = place(&self.chunk, extent.start) else {
            self.failed
                .push(format!("the extent at {} lies outside its chunk", extent.start));
            return None;
        };
        let number = offset.get().quotient(self.group_bytes);
        // Clamp: the last group can end past the last address.
        let group_end = number.exact_add(1).saturating_mul(self.group_bytes);
        let left_in_group = ByteCount::new(group_end.exact_sub(offset.get()));
        let unit = place.stripe_offset.get().remainder(STRIPE_BYTES);
        let left_in_unit = ByteCount::new(STRIPE_BYTES.exact_sub(unit));
        let follows_gap = core::mem::take(&mut self.has_gap);
        if number < self.first {
            let length = extent.end.distance_from(extent.start);
            let skipped = match extent.holds {
                Holds::Tree { .. } => length,
                Holds::Data => length.min(left_in_group),
            };
            self.go_on(extent, skipped, false);
            return None;
        }
        let full = self.current.take_if(|current| current.number != number);
        let current = self
            .current
            .get_or_insert_with(|| Group::new(Arc::clone(&self.chunk), number));
        current.is_partial |= follows_gap;
        let extents = u64::from(is_start);
        let taken = match extent.holds {
            Holds::Tree { generation, level } => {
                let length = extent.end.distance_from(extent.start);
                if length > place.length {
                    self.failed.push(format!(
                        "the tree block at {} crosses the end of a stripe and is not scrubbed; to move it, balance its block group",
                        extent.start
                    ));
                } else {
                    current.pieces.push(Piece {
                        logical: extent.start,
                        length: length.exact_usize(),
                        expected: Expected::Tree { generation, level },
                        place,
                        extents,
                        generation: extent.generation,
                    });
                }
                length
            }
            Holds::Data => {
                let to = extent
                    .end
                    // Clamp: the last group of a chunk can end past the last address.
                    .min(extent.start.saturating_add(left_in_unit.min(left_in_group)));
                let failed = &mut self.failed;
                let run = self
                    .checksums
                    .run(extent.start, to, &mut |failure| failed.push(failure));
                let length = run.end.distance_from(extent.start);
                let (expected, written) = match run.packed {
                    Some((packed, leaf)) => {
                        let from = current.packed.len();
                        current.packed.extend_from_slice(packed);
                        let written = match buttress_faults::on("return-reserved-data-left") {
                            true => extent.generation,
                            false => leaf,
                        };
                        (Expected::Sums(from..current.packed.len()), written)
                    }
                    None => (Expected::Bare, extent.generation),
                };
                current.pieces.push(Piece {
                    logical: extent.start,
                    length: length.exact_usize(),
                    expected,
                    place,
                    extents,
                    generation: extent.generation.max(written),
                });
                length
            }
        };
        self.go_on(extent, taken, false);
        full
    }

    /// Keeps the rest of an extent after `taken`.
    fn go_on(&mut self, extent: UsedExtent, taken: ByteCount, is_start: bool) {
        // An extent of length zero is impossible, but would repeat this loop forever.
        let taken = taken.max(ByteCount::new(1));
        let start = extent.start.exact_add(taken);
        if start < extent.end {
            self.rest = Some((UsedExtent { start, ..extent }, is_start));
        }
    }
}

/// The greatest length of a data extent.
const LONGEST_EXTENT: u64 = 128 << 20;
