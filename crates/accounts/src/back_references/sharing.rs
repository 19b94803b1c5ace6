//! Whether anybody else uses the extents of files: what the kernel reports as `FIEMAP_EXTENT_SHARED`.
//!
//! An extent is shared when it has two referrers (two files, or two places in one), or when a tree block on the way from
//! the subvolume's root to the file's item has: then a snapshot reaches the same item by the same blocks, also one that
//! was deleted and is still being dropped. Several items of one file that an overwrite made of one extent are one
//! referrer.
//!
//! Questions are answered a batch at a time ([`Sharing::are_shared`]):
//!
//! 1. Extents that are not newer than the subvolume's last snapshot could be reached by shared blocks. The blocks on the
//!    way to their items are counted, nodes before leaves, and what was found about a block and all above it is
//!    remembered: the next files and batches ask about few.
//! 2. The extents that no shared block leads to are counted, in order of address (`referrers`).
//! 3. The rare extent with one referrer that stands for several items is looked at by itself: by a leaf's address, the
//!    items may belong to several files; by file, another one of them may lie in a leaf that is shared.
//!
//! Memory: what is remembered of [`BLOCKS_REMEMBERED_MAX`] blocks, and some words for each extent of a batch.

use super::extent::block_by_address;
use super::referrers::{DelayedReferencesOf, Referrers, referrers_of};
use buttress_exact::Defect;
use buttress_format::{
    FileExtent, FileExtentBody, FileOffset, Generation, InlineReference, InodeNumber, ItemType, Key, Logical,
    SubvolumeId, TreeBlock,
};
use buttress_fs::error::Result;
use buttress_fs::extents::{COMPRESSED_EXTENT_LIMIT, DiskExtent, FileRange, RangeKind};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::progress::Progress;
use buttress_tree::{BlockPointer, Cursor, ReadAhead};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// How many tree blocks are remembered.
const BLOCKS_REMEMBERED_MAX: usize = 64 << 10;

/// How many extents are best asked about at once.
pub const SHARING_BATCH: usize = 4096;

/// An extent as a file's item uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentUse {
    /// The file.
    pub inode: InodeNumber,
    /// The file offset of the item.
    pub offset: FileOffset,
    /// The extent, and the part of it.
    pub extent: DiskExtent,
    /// The transaction that wrote the extent.
    pub generation: Generation,
}

impl ExtentUse {
    /// The use that a range of the file makes of an extent; `None` for holes and inline content.
    #[must_use]
    pub fn of_range(inode: InodeNumber, range: &FileRange) -> Option<Self> {
        let (RangeKind::Data(extent) | RangeKind::Preallocated(extent)) = &range.kind else {
            return None;
        };
        Some(Self {
            inode,
            offset: range.offset,
            extent: *extent,
            // Clamp: only a hole has no generation, and is no use of an extent.
            generation: range.generation.unwrap_or(Generation::MIN),
        })
    }

    const fn key(&self) -> Key {
        Key::new(self.inode.object_id(), ItemType::EXTENT_DATA, self.offset.get())
    }

    /// Where in the file the extent's first byte would lie; wraps below zero.
    const fn base(&self) -> u64 {
        self.offset.get().wrapping_sub(self.extent.offset.get())
    }
}

/// The delayed references in the running transaction for some extents; `None`: something was edited since the volume
/// was looked at.
pub(crate) type LookUpWaiting<'a> = dyn FnMut(&[Logical]) -> Option<DelayedReferencesOf> + 'a;

/// The way to a leaf: blocks that a snapshot may share, the highest first. Blocks below a newer one may be older.
type Way = SmallVec<[Logical; 6]>;

/// Answers whether extents are shared, for files of one subvolume after another.
#[derive(Debug)]
pub struct Sharing {
    filesystem: Filesystem,
    progress: Option<Progress>,
    subvolume: Option<SubvolumeId>,
    last_snapshot: Generation,
    cursor: Option<Cursor>,
    /// Of blocks of the subvolume: whether they have several referrers.
    known: HashMap<Logical, bool>,
}

/// Answers whether extents are shared, for one batch after another.
pub(crate) fn sharing(filesystem: &Filesystem) -> Sharing {
    Sharing {
        filesystem: filesystem.clone(),
        progress: None,
        subvolume: None,
        last_snapshot: Generation::MIN,
        cursor: None,
        known: HashMap::new(),
    }
}

impl Sharing {
    /// The same, ending with [`buttress_fs::Error::Cancelled`] once `progress` says so.
    #[must_use]
    pub fn with_progress(self, progress: &Progress) -> Self {
        Self {
            progress: Some(progress.clone()),
            ..self
        }
    }

    /// The volume.
    #[must_use]
    pub const fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Whether each of these extents of files of one subvolume is shared. Fastest with uses in order of inode and offset,
    /// [`SHARING_BATCH`] or so of them.
    ///
    /// # Errors
    /// That the extent tree or the subvolume cannot be read, or that an extent is missing there.
    pub fn are_shared(&mut self, subvolume: SubvolumeId, uses: &[ExtentUse]) -> Result<Vec<bool>> {
        let nothing_waits = &mut |_: &[Logical]| Some(DelayedReferencesOf::new());
        let answer = self.are_shared_while(subvolume, uses, nothing_waits)?;
        answer.ok_or_else(|| Defect::new("a view without edits was edited").into())
    }

    /// As [`Sharing::are_shared`] on a view of a running transaction. `None`: it was edited since.
    pub(crate) fn are_shared_while(
        &mut self,
        subvolume: SubvolumeId,
        uses: &[ExtentUse],
        waiting: &mut LookUpWaiting<'_>,
    ) -> Result<Option<Vec<bool>>> {
        self.enter(subvolume)?;
        let mut shared = vec![false; uses.len()];
        if !self.mark_below_shared_blocks(uses, &mut shared, waiting)? {
            return Ok(None);
        }
        // Each extent that is left is asked about once, and its uses are then found beside each other.
        let mut order: Vec<(Logical, usize)> = uses
            .iter()
            .enumerate()
            .zip(&shared)
            .filter(|(_, shared)| !**shared)
            .map(|((place, one), _)| (one.extent.logical, place))
            .collect();
        order.sort_unstable();
        let mut addresses: Vec<Logical> = order.iter().map(|(address, _)| *address).collect();
        addresses.dedup();
        let addresses = Arc::new(addresses);
        let Some(waits) = waiting(&addresses) else {
            return Ok(None);
        };
        let counted = referrers_of(&self.filesystem, &addresses, &waits, self.progress.as_ref())?;
        let mut found = addresses.iter().zip(counted).peekable();
        for (address, place) in order {
            while found.next_if(|(counted, _)| **counted < address).is_some() {}
            let (Some((_, referrers)), Some(one)) = (found.peek(), uses.get(place)) else {
                continue;
            };
            let is_shared = match referrers {
                Referrers::Several => true,
                Referrers::One | Referrers::None => false,
                Referrers::OneOfSeveralItems(reference) => {
                    match self.several_items_are_shared(one, reference, waiting)? {
                        Some(shared) => shared,
                        None => return Ok(None),
                    }
                }
            };
            if let Some(shared) = shared.get_mut(place) {
                *shared = is_shared;
            }
        }
        Ok(Some(shared))
    }

    fn enter(&mut self, subvolume: SubvolumeId) -> Result<()> {
        if self.subvolume != Some(subvolume) {
            self.subvolume = None;
            self.last_snapshot = self.filesystem.root_item(subvolume.tree())?.last_snapshot;
            let tree = self.filesystem.subvolume_tree(subvolume)?;
            self.cursor = Some(tree.cursor(ReadAhead::Forward));
            self.known.clear();
            self.subvolume = Some(subvolume);
        }
        if self.known.len() > BLOCKS_REMEMBERED_MAX {
            self.known.clear();
        }
        Ok(())
    }

    /// Sets `shared` where a shared block leads to the item. False when the transaction was edited meanwhile.
    fn mark_below_shared_blocks(
        &mut self,
        uses: &[ExtentUse],
        shared: &mut [bool],
        waiting: &mut LookUpWaiting<'_>,
    ) -> Result<bool> {
        let mut ways: Vec<Way> = Vec::new();
        // The number of the way to each item that a snapshot may reach, one more than it is.
        let mut way_numbers = vec![0_usize; uses.len()];
        let mut leaf: Option<BlockPointer> = None;
        for (one, number) in uses.iter().zip(&mut way_numbers) {
            if one.generation > self.last_snapshot {
                continue;
            }
            let key = one.key();
            if !leaf.is_some_and(|leaf| leaf.covers(&key)) {
                if let Some(progress) = &self.progress {
                    progress.check()?;
                }
                let (end, way) = self.way_to(&key)?;
                leaf = end;
                ways.push(way);
            }
            *number = ways.len();
        }
        if ways.is_empty() {
            return Ok(true);
        }
        if !self.learn(&ways, waiting)? {
            return Ok(false);
        }
        let are_shared: Vec<bool> = ways.iter().map(|way| self.is_known_shared(way)).collect();
        for (shared, number) in shared.iter_mut().zip(way_numbers) {
            let way = number.checked_sub(1).and_then(|number| are_shared.get(number));
            // Clamp: number 0 stands for no way.
            *shared = way.copied().unwrap_or(false);
        }
        Ok(true)
    }

    /// The leaf of an item, and the way to it.
    fn way_to(&mut self, key: &Key) -> Result<(Option<BlockPointer>, Way)> {
        let Some(cursor) = &mut self.cursor else {
            return Ok((None, Way::new()));
        };
        cursor.seek(key)?;
        let oldest = self.last_snapshot;
        let way = cursor
            .path()
            .filter(|block| block.generation <= oldest)
            .map(|block| block.logical)
            .collect();
        Ok((cursor.current_pointer().copied(), way))
    }

    /// Whether a block of a way is known to be shared.
    fn is_known_shared(&self, way: &Way) -> bool {
        // Clamp: what is not known yet is learnt next.
        way.iter()
            .any(|block| self.known.get(block).copied().unwrap_or(false))
    }

    /// Finds out about all blocks on these ways, from the roots down; what lies below a shared block is not looked at.
    /// False when the transaction was edited meanwhile.
    fn learn(&mut self, ways: &[Way], waiting: &mut LookUpWaiting<'_>) -> Result<bool> {
        // Clamp: without ways there is nothing to learn.
        let levels = ways.iter().map(SmallVec::len).max().unwrap_or(0);
        for depth in 0..levels {
            let mut unknown: Vec<Logical> = ways
                .iter()
                .filter(|way| !self.is_known_shared(way))
                .filter_map(|way| way.get(depth).copied())
                .filter(|block| !self.known.contains_key(block))
                .collect();
            unknown.sort_unstable();
            unknown.dedup();
            let Some(waits) = waiting(&unknown) else {
                return Ok(false);
            };
            let unknown = Arc::new(unknown);
            let counted = referrers_of(&self.filesystem, &unknown, &waits, self.progress.as_ref())?;
            let found = unknown.iter().zip(counted);
            self.known
                .extend(found.map(|(block, referrers)| (*block, referrers == Referrers::Several)));
        }
        Ok(true)
    }

    /// Whether an extent is shared whose one referrer stands for several items. `None`: the transaction was edited.
    fn several_items_are_shared(
        &mut self,
        one: &ExtentUse,
        reference: &InlineReference,
        waiting: &mut LookUpWaiting<'_>,
    ) -> Result<Option<bool>> {
        match reference {
            InlineReference::SharedData { parent, .. } => {
                let leaf = block_by_address(&self.filesystem, *parent)?;
                Ok(Some(self.has_two_users(&leaf, one.extent.logical)))
            }
            _ if one.generation > self.last_snapshot => Ok(Some(false)),
            _ => {
                let ways = self.ways_to_items_of(one)?;
                let learnt = self.learn(&ways, waiting)?;
                Ok(learnt.then(|| ways.iter().any(|way| self.is_known_shared(way))))
            }
        }
    }

    /// Whether the items of a leaf that use an extent are of two files, or of two places in one.
    fn has_two_users(&self, leaf: &TreeBlock, extent: Logical) -> bool {
        let sector_bytes = self.filesystem.sector_bytes();
        let mut users = leaf
            .items()
            .filter_map(|item| user_of(&item.key, item.data, extent, sector_bytes));
        users.next().is_some_and(|first| users.any(|user| user != first))
    }

    /// The ways to all leaves in which a file uses an extent from the same place.
    fn ways_to_items_of(&self, one: &ExtentUse) -> Result<Vec<Way>> {
        let Some(subvolume) = self.subvolume else {
            return Ok(Vec::new());
        };
        let base = one.base();
        let wraps = base > one.offset.get();
        let first = if wraps { 0 } else { base };
        let reach = one
            .extent
            .disk_bytes
            .max(one.extent.ram_bytes)
            .max(COMPRESSED_EXTENT_LIMIT);
        let mut cursor = self
            .filesystem
            .subvolume_tree(subvolume)?
            .cursor(ReadAhead::Forward);
        cursor.seek(&FileExtent::key(one.inode, FileOffset::new(first)))?;
        let sector_bytes = self.filesystem.sector_bytes();
        let mut ways: Vec<Way> = Vec::new();
        let mut last_leaf = None;
        while let Some(item) = cursor.current() {
            let is_own =
                item.key.objectid == one.inode.object_id() && item.key.item_type == ItemType::EXTENT_DATA;
            if !is_own || item.key.offset.wrapping_sub(base) >= reach.get() {
                break;
            }
            let user = user_of(&item.key, item.data, one.extent.logical, sector_bytes);
            let leaf = cursor.current_pointer().map(|leaf| leaf.logical);
            if user == Some((one.inode, base)) && leaf != last_leaf {
                last_leaf = leaf;
                let blocks = cursor
                    .path()
                    .filter(|block| block.generation <= self.last_snapshot);
                ways.push(blocks.map(|block| block.logical).collect());
            }
            cursor.next()?;
        }
        Ok(ways)
    }
}

/// Who uses an extent by an item: the file, and where in it the extent's first byte would lie.
fn user_of(key: &Key, data: &[u8], extent: Logical, sector_bytes: u32) -> Option<(InodeNumber, u64)> {
    if key.item_type != ItemType::EXTENT_DATA {
        return None;
    }
    let item = FileExtent::parse(key, data, sector_bytes).ok()?;
    let (FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice)) = item.body else {
        return None;
    };
    let inode = InodeNumber::new(key.objectid.get());
    (slice.disk == extent).then(|| (inode, key.offset.wrapping_sub(slice.offset.get())))
}
