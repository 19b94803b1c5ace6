//! Loads block groups and their free space from the volume's trees.
//!
//! Opening for writing reads the items of all block groups. The free ranges of a group are loaded
//! at the first allocation from the group. The ranges come from the free-space tree; on a volume
//! without a valid one, they are the gaps of the extent tree. In both cases, loading removes pinned ranges
//! and excluded ranges ([`buttress_volume::excluded_ranges`]).

use super::backing::wants_backing;
use super::block_groups::{BlockGroups, Group, Purpose};
use super::free_ranges::FreeRanges;
use super::running::Running;
use buttress_exact::Exact as _;
use buttress_format::{
    BlockGroupItem, CompatRo, ExtentItem, FreeSpaceBitmap, FreeSpaceExtent, ItemType, Key, ObjectId, TreeId,
};
use buttress_fs::error::{Corruption, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::{ReadAhead, Tree};
use buttress_volume::Volume;

fn corrupt(tree: TreeId, error: buttress_format::ItemError) -> Corruption {
    Corruption::Item { tree, error }
}

/// Reads all block groups of a volume that is open for reading.
pub(crate) fn block_groups_of(filesystem: &Filesystem) -> Result<BlockGroups> {
    let tree_id = match filesystem
        .superblock()
        .compat_ro
        .contains(CompatRo::BLOCK_GROUP_TREE)
    {
        true => TreeId::BLOCK_GROUP,
        false => TreeId::EXTENT,
    };
    load_block_groups(&[(tree_id, filesystem.tree(tree_id)?)], filesystem.volume())
}

/// Reads all block groups from the first of the trees that has the item of a chunk. A volume has
/// several such trees only while a conversion of its block groups is unfinished.
pub(crate) fn load_block_groups(trees: &[(TreeId, Tree)], volume: &Volume) -> Result<BlockGroups> {
    let mut groups = BlockGroups::default();
    let may_run_out = volume.may_run_out();
    let map = volume.chunk_map();
    for chunk in map.chunks() {
        let key = Key::new(
            ObjectId::new(chunk.start().get()),
            ItemType::BLOCK_GROUP_ITEM,
            chunk.length().get(),
        );
        let mut found = None;
        for (tree_id, tree) in trees {
            if let Some(item) = tree.get(&key)? {
                found = Some((*tree_id, item));
                break;
            }
        }
        let Some((tree_id, found)) = found else {
            return Err(Corruption::ItemMissing {
                tree: trees.first().map_or(TreeId::EXTENT, |(id, _)| *id),
                key,
                what: "the block group of a chunk",
            }
            .into());
        };
        let item = BlockGroupItem::parse(&key, found.data()).map_err(|error| corrupt(tree_id, error))?;
        let mut group = Group::from_item(&item);
        group.excluded_ranges = buttress_volume::excluded_ranges::of_chunk(chunk);
        group.is_backed = may_run_out && wants_backing(group.flags);
        groups.insert(group);
    }
    Ok(groups)
}

/// Returns the free ranges that the free-space tree records in `[start, start + length)`.
pub(crate) fn free_ranges_of_tree(
    tree: &Tree,
    start: u64,
    length: u64,
    sector_bytes: u32,
) -> Result<FreeRanges> {
    let mut free = FreeRanges::default();
    let from = Key::new(ObjectId::new(start), ItemType(0), 0);
    let to = Key::new(ObjectId::new(start.saturating_add(length)), ItemType(0), 0);
    let broken = |error| corrupt(TreeId::FREE_SPACE, error);
    for item in tree.range(from..to, ReadAhead::Forward) {
        let item = item?;
        let key = item.key();
        match key.item_type {
            ItemType::FREE_SPACE_EXTENT => {
                let extent = FreeSpaceExtent::parse(&key, item.data(), sector_bytes).map_err(broken)?;
                free.add(extent.start.get(), extent.length.get());
            }
            ItemType::FREE_SPACE_BITMAP => {
                let bitmap = FreeSpaceBitmap::parse(&key, item.data(), sector_bytes).map_err(broken)?;
                add_bitmap(&mut free, &bitmap, u64::from(sector_bytes));
            }
            _ => {}
        }
    }
    Ok(free)
}

fn add_bitmap(free: &mut FreeRanges, bitmap: &FreeSpaceBitmap<'_>, sector_bytes: u64) {
    let sectors = bitmap.length.get().checked_div(sector_bytes).unwrap_or(0);
    let mut run: Option<u64> = None;
    for sector in 0..=sectors {
        let is_free = sector < sectors && bitmap.is_free(sector.narrow::<usize>());
        match (run, is_free) {
            (None, true) => run = Some(sector),
            (Some(first), false) => {
                let start = bitmap
                    .start
                    .get()
                    .saturating_add(first.saturating_mul(sector_bytes));
                free.add(start, sector.saturating_sub(first).saturating_mul(sector_bytes));
                run = None;
            }
            _ => {}
        }
    }
}

/// The tree and keys of the items that record a block group's free space.
#[derive(Debug)]
pub struct FreeSpaceRecord {
    tree: Tree,
    start: u64,
    length: u64,
}

impl FreeSpaceRecord {
    /// Loads the block group items into the cache. If loading an item fails, a later load reports
    /// the error.
    pub fn fault_in(&self) {
        let from = Key::new(ObjectId::new(self.start), ItemType(0), 0);
        let to = Key::new(
            ObjectId::new(self.start.saturating_add(self.length)),
            ItemType(0),
            0,
        );
        let items = self.tree.range(from..to, ReadAhead::Forward);
        let _read = items.take_while(core::result::Result::is_ok).count();
    }
}

/// Returns the ranges in `[start, start + length)` that no extent covers.
pub(crate) fn free_ranges_of_extents(
    tree: &Tree,
    start: u64,
    length: u64,
    format: &buttress_format::BlockFormat,
) -> Result<FreeRanges> {
    let mut free = FreeRanges::default();
    free.add(start, length);
    let from = Key::new(ObjectId::new(start), ItemType(0), 0);
    let to = Key::new(ObjectId::new(start.saturating_add(length)), ItemType(0), 0);
    for item in tree.range(from..to, ReadAhead::Forward) {
        let item = item?;
        let key = item.key();
        if matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            let extent = ExtentItem::parse(&key, item.data(), format)
                .map_err(|error| corrupt(TreeId::EXTENT, error))?;
            free.remove(extent.start.get(), extent.length.get());
        }
    }
    Ok(free)
}

impl Running {
    /// Returns the free-space record of the group that an allocation tries first, if that group is
    /// not loaded.
    pub fn free_space_to_load(&mut self, purpose: Purpose, wanted: u64) -> Result<Option<FreeSpaceRecord>> {
        let Some(group) = self.core.groups.to_load(purpose, wanted) else {
            return Ok(None);
        };
        let (start, length) = (group.start, group.length);
        if group.needs_free_space_info {
            return Ok(None);
        }
        let tree = if self.core.has_free_space_tree() {
            self.view(TreeId::FREE_SPACE)?
        } else {
            self.core.extent.tree.view()
        };
        Ok(Some(FreeSpaceRecord { tree, start, length }))
    }

    /// Loads the free ranges of the group that starts at `start`.
    pub fn load_group(&mut self, start: u64) -> Result<()> {
        let Some(group) = self.core.groups.get_mut(start) else {
            return Ok(());
        };
        let (length, is_new) = (group.length, group.needs_free_space_info);
        let mut free = if is_new {
            let mut free = FreeRanges::default();
            free.add(start, length);
            free
        } else if self.core.has_free_space_tree() {
            let tree = self.view(TreeId::FREE_SPACE)?;
            free_ranges_of_tree(&tree, start, length, self.core.format.sector_bytes)?
        } else {
            let tree = self.core.extent.tree.view();
            free_ranges_of_extents(&tree, start, length, &self.core.format)?
        };
        for (pinned, pinned_length) in self.core.pins.iter() {
            free.remove(pinned, pinned_length);
        }
        if let Some(group) = self.core.groups.get_mut(start) {
            for range in &group.excluded_ranges {
                free.remove(range.start, range.end.saturating_sub(range.start));
            }
            // Apply the changes of free ranges that the free-space tree does not record yet.
            for (used, used_length) in group.became_used.iter() {
                free.remove(used, used_length);
            }
            group.load(free)?;
        }
        Ok(())
    }
}
