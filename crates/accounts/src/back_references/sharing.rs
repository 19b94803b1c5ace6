//! The sharedness of extents, as the kernel reports it in `FIEMAP_EXTENT_SHARED`.
//!
//! An extent is shared if it has two referrers: two files, or two places in one file. An extent is
//! also shared if a tree block on the path from the subvolume's root to the file's item has two
//! referrers. A snapshot then reaches the same item through the same blocks, even a deleted
//! snapshot that is still being dropped. If an overwrite split one extent into several items of one
//! file, these items are one referrer.
//!
//! [`Sharing::are_shared`] answers for a batch at a time:
//!
//! 1. Extents that are not newer than the subvolume's last snapshot may be reached through shared
//!    blocks. Blocks on the path to the extents' items are counted, nodes before leaves. Results
//!    for a block and all blocks above it are remembered, so later files and batches need few
//!    lookups.
//! 2. The extents without a shared block on their path are counted, in order of address
//!    (`referrers`).
//! 3. The rare extent with one referrer for several items is inspected alone. For a reference by a
//!    leaf's address, the items may belong to several files. For a keyed reference, another item may
//!    be in a shared leaf.
//!
//! Memory: the results for [`BLOCKS_REMEMBERED_MAX`] blocks, and some words for each extent of a
//! batch.

use super::extent::block_by_address;
use super::referrers::{DelayedReferencesOf, Referrers, referrers_of};
use buttress_exact::Defect;
use buttress_format::{
    FileExtent, FileExtentBody, FileOffset, Generation, HeaderFlags, InlineReference, InodeNumber, ItemType,
    Key, Logical, SubvolumeId, TreeBlock,
};
use buttress_fs::error::Result;
use buttress_fs::extents::{COMPRESSED_EXTENT_LIMIT, DiskExtent, FileRange, RangeKind};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::progress::Progress;
use buttress_tree::{BlockPointer, Cursor, ReadAhead};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// The largest number of tree blocks whose results the lookup remembers.
const BLOCKS_REMEMBERED_MAX: usize = 64 << 10;

/// The best number of extents in one batch.
pub const SHARING_BATCH: usize = 4096;

/// The use of an extent by a file extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentUse {
    /// The inode number of the file.
    pub inode: InodeNumber,
    /// The file offset of the item.
    pub offset: FileOffset,
    /// The extent, and the used part of it.
    pub extent: DiskExtent,
    /// The transaction that wrote the extent.
    pub generation: Generation,
}

impl ExtentUse {
    /// Returns the use of an extent by a range of a file; `None` for holes and inline content.
    #[must_use]
    pub fn of_range(inode: InodeNumber, range: &FileRange) -> Option<Self> {
        let (RangeKind::Data(extent) | RangeKind::Preallocated(extent)) = &range.kind else {
            return None;
        };
        Some(Self {
            inode,
            offset: range.offset,
            extent: *extent,
            // Clamp: only a hole has no generation, and a hole uses no extent.
            generation: range.generation.unwrap_or(Generation::MIN),
        })
    }

    const fn key(&self) -> Key {
        Key::new(self.inode.object_id(), ItemType::EXTENT_DATA, self.offset.get())
    }

    /// Returns the file offset at which the extent's first byte would lie; wraps below zero.
    const fn base(&self) -> u64 {
        self.offset.get().wrapping_sub(self.extent.offset.get())
    }
}

/// Returns the running transaction's delayed references of some extents; `None` if an edit ran
/// since the view was taken.
pub(crate) type LookUpWaiting<'a> = dyn FnMut(&[Logical]) -> Option<DelayedReferencesOf> + 'a;

/// The path to a leaf: blocks that a snapshot may share, highest first. A tree block below a newer
/// block may be older than the last snapshot.
type Way = SmallVec<[Logical; 6]>;

/// Finds out whether extents are shared, for files of one subvolume after another.
#[derive(Debug)]
pub struct Sharing {
    filesystem: Filesystem,
    progress: Option<Progress>,
    subvolume: Option<SubvolumeId>,
    last_snapshot: Generation,
    cursor: Option<Cursor>,
    /// For blocks of the subvolume, true if they have several referrers.
    known: HashMap<Logical, bool>,
}

/// Returns an object that finds out whether extents are shared, one batch after another.
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
    /// Makes calls end with [`buttress_fs::Error::Cancelled`] once `progress` is cancelled.
    #[must_use]
    pub fn with_progress(self, progress: &Progress) -> Self {
        Self {
            progress: Some(progress.clone()),
            ..self
        }
    }

    /// Returns the volume.
    #[must_use]
    pub const fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Returns for each of these extents of a subvolume's files whether it is shared. The call is
    /// fastest with about [`SHARING_BATCH`] uses in order of inode and offset.
    ///
    /// # Errors
    /// Fails if the extent tree or the subvolume cannot be read, or an extent is missing in the
    /// extent tree.
    pub fn are_shared(&mut self, subvolume: SubvolumeId, uses: &[ExtentUse]) -> Result<Vec<bool>> {
        let nothing_waits = &mut |_: &[Logical]| Some(DelayedReferencesOf::new());
        let answer = self.are_shared_while(subvolume, uses, nothing_waits)?;
        answer.ok_or_else(|| Defect::new("a view without edits was edited").into())
    }

    /// Answers as [`Sharing::are_shared`] on a view of a running transaction. Returns `None` if an
    /// edit has run since the view was taken.
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
        // The lookup visits each remaining extent once, and the uses of an extent are adjacent in
        // this list.
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

    /// Sets `shared` for uses with a shared block on the path to their item. Returns false if an
    /// edit ran during the lookup.
    fn mark_below_shared_blocks(
        &mut self,
        uses: &[ExtentUse],
        shared: &mut [bool],
        waiting: &mut LookUpWaiting<'_>,
    ) -> Result<bool> {
        let mut ways: Vec<Way> = Vec::new();
        // For each item that a snapshot may reach, one plus the number of its path; 0 stands for no
        // path.
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
            // Clamp: number 0 stands for an empty list of paths.
            *shared = way.copied().unwrap_or(false);
        }
        Ok(true)
    }

    /// Returns the leaf of an item, and the path to it.
    fn way_to(&mut self, key: &Key) -> Result<(Option<BlockPointer>, Way)> {
        let Some(cursor) = &mut self.cursor else {
            return Ok((None, Way::new()));
        };
        cursor.seek(key)?;
        let way = way_of(cursor, self.last_snapshot);
        Ok((cursor.current_pointer().copied(), way))
    }

    /// Returns whether a block of a path is known to be shared.
    fn is_known_shared(&self, way: &Way) -> bool {
        // Clamp: blocks without a result count as not shared; the next pass looks them up.
        way.iter()
            .any(|block| self.known.get(block).copied().unwrap_or(false))
    }

    /// Looks up all blocks on the paths to these extents, from the roots down, but none below a
    /// shared block. Returns false if an edit ran meanwhile.
    fn learn(&mut self, ways: &[Way], waiting: &mut LookUpWaiting<'_>) -> Result<bool> {
        // Clamp: without paths no block needs a lookup.
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

    /// Returns whether an extent with one referrer for several items is shared. Returns `None` if
    /// an edit ran meanwhile.
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

    /// Returns whether the items of a leaf that use an extent belong to two files, or to two places
    /// in one file.
    fn has_two_users(&self, leaf: &TreeBlock, extent: Logical) -> bool {
        let sector_bytes = self.filesystem.sector_bytes();
        let mut users = leaf
            .items()
            .filter_map(|item| user_of(&item.key, item.data, extent, sector_bytes));
        users.next().is_some_and(|first| users.any(|user| user != first))
    }

    /// Returns the paths to all leaves in which a file uses an extent with the same base offset.
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
                ways.push(way_of(&cursor, self.last_snapshot));
            }
            cursor.next()?;
        }
        Ok(ways)
    }
}

/// Returns the blocks on the path of a cursor that another tree may reach. A relocation by Linux
/// makes newer blocks that snapshots share.
fn way_of(cursor: &Cursor, last_snapshot: Generation) -> Way {
    let blocks = cursor.path().filter(|(block, header)| {
        block.generation <= last_snapshot || header.flags.contains(HeaderFlags::RELOC)
    });
    blocks.map(|(block, _)| block.logical).collect()
}

/// Returns the user of an extent by an item: the file, and the file offset at which the extent's
/// first byte would lie.
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
