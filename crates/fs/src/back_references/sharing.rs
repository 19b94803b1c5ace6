//! Whether anybody else uses the extents of a file: the figures of `btrfs filesystem du`.
//!
//! An extent is shared when more than one reference to it is recorded, or when a tree block on the way from the
//! subvolume's root to the file's item is: then a snapshot reaches the same item by the same blocks. An extent
//! that is younger than the subvolume's last snapshot cannot be reached that way, and the blocks need not be
//! looked at. This is what the kernel reports by `FIEMAP_EXTENT_SHARED`.
//!
//! [`Sharing`] remembers the way to the last leaf, so that asking for file after file in order costs little.

use crate::error::Result;
use crate::extents::{DiskExtent, FileRange, RangeKind};
use crate::filesystem::Filesystem;
use crate::inode::InodeRecord;
use crate::location::Location;
use buttress_format::{
    ByteCount, Compression, ExtentItem, FileKind, Generation, InlineReference, ItemType, Key, Logical,
    SubvolumeId,
};
use buttress_tree::BlockPointer;
use std::ops::Range;

/// What a file takes up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSpace {
    /// Length of all its extents in the file: holes and inline content count nothing, preallocated ranges do.
    pub total: ByteCount,
    /// How much of that lies in extents that somebody else uses too.
    pub shared: ByteCount,
    /// Where the shared parts lie, for adding up what several files share. For compressed extents the length is
    /// that in the file.
    pub shared_ranges: Vec<Range<Logical>>,
}

impl FileSpace {
    /// How much of the file nobody else uses.
    #[must_use]
    pub fn exclusive(&self) -> ByteCount {
        self.total.checked_sub(self.shared).unwrap_or(ByteCount::ZERO)
    }
}

/// One block on the way to a leaf.
#[derive(Clone, Debug)]
struct Step {
    pointer: BlockPointer,
    shared: bool,
}

/// Answers whether extents are shared.
#[derive(Debug)]
pub struct Sharing {
    filesystem: Filesystem,
    subvolume: Option<SubvolumeId>,
    last_snapshot: Generation,
    path: Vec<Step>,
    /// The last extent asked for: files often use one several times.
    last: Option<(Logical, Location, bool)>,
}

impl Filesystem {
    /// Answers whether extents are shared, for one file after another.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        Sharing {
            filesystem: self.clone(),
            subvolume: None,
            last_snapshot: Generation::MIN,
            path: Vec::new(),
            last: None,
        }
    }
}

impl Sharing {
    /// Whether each of `ranges` of the file at `location` is shared; never for holes and inline content.
    ///
    /// # Errors
    /// That the extent tree or the subvolume cannot be read.
    pub fn of_ranges(&mut self, location: Location, ranges: &[FileRange]) -> Result<Vec<bool>> {
        ranges
            .iter()
            .map(|range| self.of_range(location, range))
            .collect()
    }

    /// As [`Sharing::of_ranges`] for one range.
    ///
    /// # Errors
    /// As there.
    pub fn of_range(&mut self, location: Location, range: &FileRange) -> Result<bool> {
        let (RangeKind::Data(extent) | RangeKind::Preallocated(extent)) = &range.kind else {
            return Ok(false);
        };
        if let Some((logical, asked, shared)) = self.last
            && logical == extent.logical
            && asked == location
            && shared
        {
            return Ok(true);
        }
        let generation = range.generation.unwrap_or(Generation::MIN);
        let key = Key::new(
            location.inode.object_id(),
            ItemType::EXTENT_DATA,
            range.offset.get(),
        );
        let shared = self.is_shared(location, extent, generation, &key)?;
        self.last = Some((extent.logical, location, shared));
        Ok(shared)
    }

    /// What a file takes up. Directories and special files take up nothing.
    ///
    /// # Errors
    /// As [`Sharing::of_ranges`].
    pub fn file_space(&mut self, record: &InodeRecord) -> Result<FileSpace> {
        let mut space = FileSpace::default();
        if record.metadata.kind != FileKind::Regular {
            return Ok(space);
        }
        let location = record.metadata.location;
        let file = self.filesystem.open_record(record)?;
        for range in file.extents()? {
            let range = range?;
            let (RangeKind::Data(extent) | RangeKind::Preallocated(extent)) = &range.kind else {
                continue;
            };
            space.total = space.total.saturating_add(range.length);
            if self.of_range(location, &range)? {
                space.shared = space.shared.saturating_add(range.length);
                let start = match extent.compression {
                    Compression::None => extent.logical.saturating_add(extent.offset),
                    _ => extent.logical,
                };
                push_joined(
                    &mut space.shared_ranges,
                    start..start.saturating_add(range.length),
                );
            }
        }
        Ok(space)
    }

    fn is_shared(
        &mut self,
        location: Location,
        extent: &DiskExtent,
        generation: Generation,
        key: &Key,
    ) -> Result<bool> {
        self.enter(location.subvolume)?;
        if self.has_other_references(location, extent.logical)? {
            return Ok(true);
        }
        if generation > self.last_snapshot {
            return Ok(false);
        }
        self.descend(key)?;
        Ok(self.path.iter().any(|step| step.shared))
    }

    fn enter(&mut self, subvolume: SubvolumeId) -> Result<()> {
        if self.subvolume != Some(subvolume) {
            self.last_snapshot = self.filesystem.root_item(subvolume.tree())?.last_snapshot;
            self.path.clear();
            self.subvolume = Some(subvolume);
        }
        Ok(())
    }

    /// Whether more than one reference to the extent is recorded, or one of another file.
    fn has_other_references(&self, location: Location, logical: Logical) -> Result<bool> {
        let extent = self.filesystem.extent_at(logical)?;
        if only_reference(&extent.item).is_some_and(|only| is_own(only, location)) {
            return Ok(false);
        }
        let mut count = 0_u32;
        for reference in self.filesystem.extent_references(&extent)? {
            match reference? {
                InlineReference::Owner { .. } => continue,
                reference if !is_own(&reference, location) => return Ok(true),
                _ => count = count.saturating_add(1),
            }
            if count > 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Puts into `path` the blocks below the root on the way to `key`, as far as they are not there already.
    fn descend(&mut self, key: &Key) -> Result<()> {
        let Some(subvolume) = self.subvolume else {
            return Ok(());
        };
        if let Some(stale) = self.path.iter().position(|step| !step.pointer.covers(key)) {
            self.path.truncate(stale);
        }
        if self.path.is_empty() {
            let root = BlockPointer::root(self.filesystem.subvolume_tree(subvolume)?.root());
            self.path.push(Step {
                pointer: root,
                shared: false,
            });
        }
        while let Some(Step { pointer, shared }) = self.path.last().cloned() {
            if pointer.level == 0 {
                return Ok(());
            }
            let node = self.filesystem.forest().read_block(&pointer)?;
            let slot = match node.search(key) {
                Ok(slot) => slot,
                Err(slot) => slot.saturating_sub(1),
            };
            let Some(child) = pointer.child(&node, slot) else {
                return Ok(());
            };
            // What is below a shared block is shared; nobody need look.
            let shared = shared || self.is_block_shared(child.logical)?;
            self.path.push(Step {
                pointer: child,
                shared,
            });
        }
        Ok(())
    }

    fn is_block_shared(&self, logical: Logical) -> Result<bool> {
        let extent = self.filesystem.extent_at(logical)?;
        Ok(extent.item.references > 1)
    }
}

/// The one reference to an extent, when it is the only one.
fn only_reference(item: &ExtentItem) -> Option<&InlineReference> {
    let mut own = item
        .inline_references
        .iter()
        .filter(|reference| !matches!(reference, InlineReference::Owner { .. }));
    let first = own.next()?;
    (own.next().is_none() && u64::from(first.count()) == item.references).then_some(first)
}

/// Whether a reference can be the one of the file itself. One by its parent block is: another file's would be a
/// second one.
fn is_own(reference: &InlineReference, location: Location) -> bool {
    match reference {
        InlineReference::ExtentData(reference) => reference.inode == location.inode,
        _ => true,
    }
}

/// Adds a range, joined to the one before it where they touch.
fn push_joined(ranges: &mut Vec<Range<Logical>>, range: Range<Logical>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
