//! The pending log, which the next mount replays.
//!
//! A log is a tree of root items, one for each logged subvolume, and their trees. A log belongs to
//! the transaction after the commit, so the extent tree does not contain it. The log's blocks, and
//! data that only the log refers to, are in no extent, and must not overlap any extent. Data of the
//! log needs checksums, in the log or outside of it.
//!
//! The check reads each log block once, whichever pointers lead to it. [`KEPT_MAX`] limits the
//! number of kept addresses of log blocks and data.
//!
//! Source: on-disk format documentation, section "Log tree".

use crate::block_scan::damaged;
use crate::checksum_need::missing;
use crate::chunks::Group;
use crate::context::Check;
use crate::finding::Finding;
use crate::item_types;
use crate::owners::Owners;
use crate::report::{Note, Step};
use crate::roots::Root;
use crate::rules;
use crate::runs::{self, Run};
use buttress_format::{
    BlockGroupFlags, ByteCount, ChecksumItem, Compression, ExtentItem, FileExtent, FileExtentBody,
    FileOffset, Generation, InodeFlags, InodeItem, InodeNumber, Item, ItemType, Logical, RootItem, TreeBlock,
    TreeId,
};
use buttress_fs::Result;
use buttress_tree::{BlockPointer, Error, ReadAhead, RootPointer, Scanner, Sectors};
use std::collections::{BTreeMap, HashSet};

/// The most addresses that are kept of one log; a log of the kernel has some thousands.
const KEPT_MAX: usize = 1 << 20;

/// The kind of object at an address of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Block,
    Data,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Block => "a tree block",
            Self::Data => "data",
        }
    }
}

/// A range of addresses that the log uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    start: u64,
    end: u64,
    kind: Kind,
}

/// A part of a logged file with an extent on disk.
#[derive(Clone, Copy, Debug)]
struct Part {
    subvolume: TreeId,
    inode: InodeNumber,
    offset: FileOffset,
    /// The part of the extent that needs checksums.
    sums: Run,
}

/// The content of the pending log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Ranges in order of address, not overlapping.
    places: Vec<Place>,
    parts: Vec<Part>,
    checksums: Vec<Run>,
    /// Inodes with logged data that needs no checksums.
    bare: HashSet<(TreeId, InodeNumber)>,
    subvolumes: BTreeMap<TreeId, RootPointer>,
}

/// Reads the pending log, if there is one.
pub(crate) fn read(check: &Check<'_>) -> Result<Option<Log>> {
    let superblock = check.superblock();
    if superblock.log_root == Logical::MIN {
        check.skip(Step::Log, "none written");
        check.begin(Step::Log);
        return Ok(None);
    }
    check.begin(Step::Log);
    // A log has the generation after the superblock's commit.
    let root = RootPointer {
        tree: TreeId::TREE_LOG,
        logical: superblock.log_root,
        generation: Generation::new(superblock.generation.get().saturating_add(1)),
        level: superblock.log_root_level,
    };
    let walk = Walk {
        check,
        seen: Sectors::new(check.sector_bytes),
    };
    let subvolumes = subvolumes(check, root)?;
    let mut starts = vec![(root, TreeId::TREE_LOG)];
    starts.extend(subvolumes.iter().map(|(subvolume, root)| (*root, *subvolume)));
    starts.retain(|(root, _)| walk.enter(root.logical));
    let mut log = Log::default();
    let (mut places, mut blocks, mut whole) = (Vec::new(), 0_u64, true);
    for tally in check.forest.survey(starts, &walk) {
        blocks = blocks.saturating_add(tally.blocks);
        whole &= tally.places.len() < KEPT_MAX;
        places.extend(tally.places);
        log.parts.extend(tally.parts);
        log.checksums.extend(tally.checksums);
        log.bare.extend(tally.bare);
    }
    check.progress.check()?;
    if !whole {
        let what = format!("the rest of the log after {KEPT_MAX} addresses");
        check.note(Note::NotChecked { what });
    }
    check.note(Note::PendingLog {
        logical: superblock.log_root,
        subvolumes: ByteCount::of(subvolumes.len()).get(),
        blocks,
    });
    log.subvolumes = subvolumes;
    log.settle(check, places);
    Ok(Some(log))
}

/// Returns the logs of subvolumes. The walk over all blocks of the log reports unreadable blocks.
fn subvolumes(check: &Check<'_>, root: RootPointer) -> Result<BTreeMap<TreeId, RootPointer>> {
    let mut subvolumes = BTreeMap::new();
    for item in check.forest.tree(root).range(.., ReadAhead::None) {
        check.progress.check()?;
        let Ok(item) = item else { continue };
        let key = item.key();
        if key.item_type != ItemType::ROOT_ITEM {
            continue;
        }
        if let Ok(item) = RootItem::parse(&key, item.data(), check.sector_bytes) {
            let pointer = RootPointer {
                tree: TreeId::TREE_LOG,
                logical: item.logical,
                generation: item.generation,
                level: item.level,
            };
            subvolumes.insert(TreeId::new(key.offset), pointer);
        }
    }
    Ok(subvolumes)
}

impl Log {
    /// Sorts ranges. Equal data ranges may repeat; other ranges must not overlap.
    fn settle(&mut self, check: &Check<'_>, mut places: Vec<Place>) {
        places.sort_unstable();
        places.dedup();
        for place in places {
            let last_end = self.places.last().map_or(0, |last| last.end);
            if place.start < last_end {
                collision(check, &place, "another part of it");
            }
            let start = place.start.max(last_end);
            if start < place.end {
                self.places.push(Place { start, ..place });
            }
        }
        self.checksums.sort_unstable();
        let mut joined = Vec::new();
        for (start, end) in self.checksums.drain(..) {
            runs::push(&mut joined, start, end);
        }
        self.checksums = joined;
    }

    /// Returns whether data of the log begins at `logical`.
    pub(crate) fn uses(&self, logical: Logical) -> bool {
        let found = self
            .places
            .binary_search_by_key(&logical.get(), |place| place.start);
        let place = found.ok().and_then(|index| self.places.get(index));
        place.is_some_and(|place| place.kind == Kind::Data)
    }

    /// Returns the ranges of the log's data, in order.
    pub(crate) fn data_runs(&self) -> impl Iterator<Item = Run> + '_ {
        let data = self.places.iter().filter(|place| place.kind == Kind::Data);
        data.map(|place| (place.start, place.end))
    }

    /// Handles an extent of the commit: the log may refer to it, but must not overlap it.
    pub(crate) fn meet(&self, check: &Check<'_>, extent: &ExtentItem) {
        let (start, end) = (extent.start.get(), extent.end().get());
        let before = self.places.partition_point(|place| place.start < end);
        let near = self.places.get(..before).unwrap_or_default().iter().rev();
        for place in near.take_while(|place| place.end > start) {
            let same = (place.start, place.end) == (start, end);
            if !(same && place.kind == Kind::Data && extent.is_data()) {
                collision(check, place, "an extent of the volume");
            }
        }
    }

    /// Checks that the log is in block groups of its type, and belongs to existing subvolumes.
    pub(crate) fn check_places(&self, check: &Check<'_>, groups: &[Group], roots: &[Root]) {
        for place in &self.places {
            let index = groups.partition_point(|group| group.end <= place.start);
            let wanted = match place.kind {
                Kind::Data => BlockGroupFlags::DATA,
                Kind::Block => BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM,
            };
            let fits = |group: &Group| {
                group.start <= place.start && place.end <= group.end && group.flags.intersects(wanted)
            };
            if !groups.get(index).is_some_and(fits) {
                check.find(Finding::LogOutsideBlockGroup {
                    logical: Logical::new(place.start),
                    length: ByteCount::new(place.end.saturating_sub(place.start)),
                    kind: place.kind.name(),
                });
            }
        }
        for subvolume in self.subvolumes.keys() {
            if !roots.iter().any(|root| root.id() == *subvolume) {
                let subvolume = *subvolume;
                check.note(Note::LogOfNoSubvolume { subvolume });
            }
        }
    }

    /// Checks that all data of the log that needs checksums has them.
    pub(crate) fn check_checksums(&self, check: &Check<'_>, roots: &[Root]) -> Result<()> {
        let tree = check.tree(TreeId::CHECKSUM, roots);
        for part in &self.parts {
            check.progress.check()?;
            if self.bare.contains(&(part.subvolume, part.inode)) {
                continue;
            }
            let mut gaps = Vec::new();
            let near = self.checksums.iter().filter(|(_, end)| *end > part.sums.0);
            let mut covered: Vec<Run> = near.take_while(|run| run.0 < part.sums.1).copied().collect();
            runs::clip(&mut covered, part.sums.0, part.sums.1);
            let keep = &mut |start, end| gaps.push((start, end));
            runs::compare(&[part.sums], &covered, keep, &mut |_, _| {});
            for (start, end) in gaps {
                for (from, to) in missing(check, tree.as_ref(), start, end) {
                    check.find(Finding::LogChecksumMissing {
                        subvolume: part.subvolume,
                        inode: part.inode,
                        offset: part.offset,
                        logical: Logical::new(from),
                        length: ByteCount::new(to.saturating_sub(from)),
                    });
                }
            }
        }
        Ok(())
    }
}

fn collision(check: &Check<'_>, place: &Place, other: &'static str) {
    check.find(Finding::LogCollision {
        logical: Logical::new(place.start),
        length: ByteCount::new(place.end.saturating_sub(place.start)),
        kind: place.kind.name(),
        other,
    });
}

/// The walk over the log's blocks.
struct Walk<'a> {
    check: &'a Check<'a>,
    seen: Sectors,
}

/// The results of one thread of the log check.
#[derive(Default)]
struct Tally {
    places: Vec<Place>,
    parts: Vec<Part>,
    checksums: Vec<Run>,
    bare: Vec<(TreeId, InodeNumber)>,
    blocks: u64,
}

impl Walk<'_> {
    /// Records a visit of a block, which must belong to one place in one tree.
    fn enter(&self, logical: Logical) -> bool {
        let is_new = self.seen.insert(logical);
        if !is_new {
            let end = logical.saturating_add(ByteCount::new(self.check.node_bytes.into()));
            let place = Place {
                start: logical.get(),
                end: end.get(),
                kind: Kind::Block,
            };
            collision(self.check, &place, "itself: two pointers refer to it");
        }
        is_new
    }

    fn item(&self, tally: &mut Tally, subvolume: TreeId, item: &Item<'_>) {
        let (key, check) = (&item.key, self.check);
        let inode = InodeNumber::new(key.objectid.get());
        match key.item_type {
            ItemType::INODE_ITEM => {
                let parsed = InodeItem::parse(key, item.data);
                if parsed.is_ok_and(|parsed| parsed.flags.contains(InodeFlags::NODATASUM)) {
                    tally.bare.push((subvolume, inode));
                }
            }
            ItemType::EXTENT_CSUM => {
                let checksum_type = check.filesystem.checksum_type();
                if let Ok(sums) = ChecksumItem::parse(key, item.data, check.sector_bytes, checksum_type) {
                    tally.checksums.push((sums.start.get(), sums.end.get()));
                }
            }
            ItemType::EXTENT_DATA => {
                if let Ok(extent) = FileExtent::parse(key, item.data, check.sector_bytes) {
                    if let Some(subvolume) = subvolume.as_subvolume() {
                        rules::check_lengths(check, subvolume, key, &extent);
                    }
                    let offset = FileOffset::new(key.offset);
                    self.extent(tally, (subvolume, inode, offset), &extent);
                }
            }
            _ => {}
        }
    }

    fn extent(
        &self,
        tally: &mut Tally,
        (subvolume, inode, offset): (TreeId, InodeNumber, FileOffset),
        extent: &FileExtent<'_>,
    ) {
        let Some(slice) = extent.slice().filter(|slice| !slice.is_hole()) else {
            return;
        };
        let start = slice.disk.get();
        tally.places.push(Place {
            start,
            end: start.saturating_add(slice.disk_bytes.get()),
            kind: Kind::Data,
        });
        if matches!(extent.body, FileExtentBody::Regular(_)) {
            let (from, length) = if extent.compression == Compression::None {
                (start.saturating_add(slice.offset.get()), slice.num_bytes.get())
            } else {
                (start, slice.disk_bytes.get())
            };
            tally.parts.push(Part {
                subvolume,
                inode,
                offset,
                sums: (from, from.saturating_add(length)),
            });
        }
    }
}

impl Scanner for Walk<'_> {
    type Tally = Tally;
    /// The subvolume of the log.
    type Tag = TreeId;

    fn begin(&self) -> Tally {
        Tally::default()
    }

    fn wants(&self, _: &mut Tally, pointer: &BlockPointer, subvolume: TreeId) -> Option<TreeId> {
        self.enter(pointer.logical).then_some(subvolume)
    }

    fn visit(&self, tally: &mut Tally, pointer: &BlockPointer, block: &TreeBlock, subvolume: TreeId) {
        let start = block.logical().get();
        let end = start.saturating_add(self.check.node_bytes.into());
        tally.blocks = tally.blocks.saturating_add(1);
        if tally.places.len() >= KEPT_MAX {
            return;
        }
        let kind = Kind::Block;
        tally.places.push(Place { start, end, kind });
        item_types::check(self.check, pointer, block);
        Owners::look_at_header(self.check, pointer, block);
        for item in block.items() {
            self.item(tally, subvolume, &item);
        }
    }

    fn failed(&self, _: &mut Tally, error: Error, _: TreeId) {
        self.check.find(damaged(&error));
    }

    fn is_cancelled(&self) -> bool {
        self.check.progress.is_cancelled()
    }
}
