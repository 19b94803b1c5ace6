//! The checks of a leaf's items: each item alone, and against earlier items of the leaf.
//!
//! An item that stands for a range must not overlap the next item's range of the same kind. Items
//! of other kinds may come between two ranges, such as references between extents, and block groups
//! between extents. The checker therefore stores the end of the last range of each kind of item.

use super::is_file_tree;
use crate::balance::BalanceItem;
use crate::block_group::BlockGroupItem;
use crate::checksum_item::ChecksumItem;
use crate::chunk::Chunk;
use crate::device_item::{DeviceExtent, DeviceItem};
use crate::device_statistics::DeviceStatistics;
use crate::directory::DirItems;
use crate::extent::ExtentItem;
use crate::extent::keyed::parse_keyed_references;
use crate::file_extent::FileExtent;
use crate::free_space::{FreeSpaceBitmap, FreeSpaceExtent, FreeSpaceHeader, FreeSpaceInfo};
use crate::inode::InodeItem;
use crate::item_error::{FileItemProblem, ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::log::DirLogRange;
use crate::names::{InodeExtrefs, InodeRefs};
use crate::node::BlockFormat;
use crate::orphan::OrphanItem;
use crate::quota::{QgroupInfo, QgroupLimit, QgroupRelation, QgroupStatus};
use crate::raid_stripe::RaidStripeExtent;
use crate::remap::RemapItem;
use crate::replace::ReplaceItem;
use crate::root::{RootItem, RootRef};
use crate::superblock::Incompat;
use crate::units::{ObjectId, TreeId};
use crate::uuid_item::UuidItem;
use crate::verity::{VerityDescriptor, VerityMerkle};

/// The end of the last range of one kind. If each object has its own ranges, the value includes the
/// object that owns the range.
#[derive(Clone, Copy, Default)]
struct Covered {
    object: u64,
    end: u64,
}

impl Covered {
    /// Records the range `[start, end)` of `object`. The item's range must not begin before the end
    /// of the previous range.
    fn extend(&mut self, key: &Key, object: u64, start: u64, end: u64) -> Result<(), ItemError> {
        let previous_end = if self.object == object { self.end } else { 0 };
        *self = Self { object, end };
        if start < previous_end {
            return Err(ItemError::new(
                key,
                ItemProblem::OverlapsPrevious { start, previous_end },
            ));
        }
        Ok(())
    }
}

/// The checker of one leaf's items. The caller passes all items of the leaf to the checker, in
/// order.
pub(super) struct Items<'a> {
    format: &'a BlockFormat,
    /// True if the leaf's tree is a subvolume. Only in a subvolume's tree does an inode item
    /// precede each inode's items.
    is_file_tree: bool,
    file_extents: Covered,
    checksums: Covered,
    extents: Covered,
    block_groups: Covered,
    chunks: Covered,
    free_space: Covered,
    device_extents: Covered,
}

impl<'a> Items<'a> {
    pub(super) fn new(format: &'a BlockFormat, owner: TreeId) -> Self {
        Self {
            format,
            is_file_tree: is_file_tree(owner),
            file_extents: Covered::default(),
            checksums: Covered::default(),
            extents: Covered::default(),
            block_groups: Covered::default(),
            chunks: Covered::default(),
            free_space: Covered::default(),
            device_extents: Covered::default(),
        }
    }

    /// Checks the item under `key`, which follows the item under `previous` in the leaf.
    pub(super) fn check(&mut self, previous: Option<Key>, key: &Key, data: &[u8]) -> Result<(), ItemError> {
        match key.item_type {
            ItemType::INODE_ITEM => {
                InodeItem::parse(key, data)?.check_generations(key, self.format.generation_limit())
            }
            ItemType::INODE_REF
            | ItemType::INODE_EXTREF
            | ItemType::XATTR_ITEM
            | ItemType::DIR_ITEM
            | ItemType::DIR_INDEX
            | ItemType::EXTENT_DATA => {
                self.check_led_by_inode(previous, key)?;
                self.check_of_inode(key, data)
            }
            ItemType::VERITY_DESC_ITEM => VerityDescriptor::parse(key, data).map(drop),
            ItemType::VERITY_MERKLE_ITEM => VerityMerkle::parse(key, data).map(drop),
            ItemType::ORPHAN_ITEM => OrphanItem::parse(key, data).map(drop),
            ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => DirLogRange::parse(key, data).map(drop),
            ItemType::EXTENT_CSUM => self.check_checksums(key, data),
            ItemType::ROOT_ITEM => RootItem::parse(key, data, self.format.sector_bytes)?
                .check_generations(key, self.format.generation_limit()),
            ItemType::ROOT_REF | ItemType::ROOT_BACKREF => RootRef::parse(key, data).map(drop),
            ItemType::UUID_KEY_SUBVOL | ItemType::UUID_KEY_RECEIVED_SUBVOL => {
                UuidItem::parse(key, data).map(drop)
            }
            _ => self.check_of_volume(key, data),
        }
    }

    /// Checks an item that belongs to neither a file nor a root.
    fn check_of_volume(&mut self, key: &Key, data: &[u8]) -> Result<(), ItemError> {
        let sector_bytes = self.format.sector_bytes;
        match key.item_type {
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                let extent = ExtentItem::parse(key, data, self.format)?;
                self.extents
                    .extend(key, 0, extent.start.get(), extent.end().get())
            }
            ItemType::TREE_BLOCK_REF
            | ItemType::EXTENT_DATA_REF
            | ItemType::SHARED_BLOCK_REF
            | ItemType::SHARED_DATA_REF => parse_keyed_references(key, data, sector_bytes).map(drop),
            ItemType::BLOCK_GROUP_ITEM => {
                let group = BlockGroupItem::parse(key, data)?;
                let end = group.start.saturating_add(group.length);
                self.block_groups.extend(key, 0, group.start.get(), end.get())
            }
            ItemType::FREE_SPACE_INFO => FreeSpaceInfo::parse(key, data, sector_bytes).map(drop),
            ItemType::FREE_SPACE_EXTENT => {
                FreeSpaceExtent::parse(key, data, sector_bytes)?;
                self.extend_free_space(key)
            }
            ItemType::FREE_SPACE_BITMAP => {
                FreeSpaceBitmap::parse(key, data, sector_bytes)?;
                self.extend_free_space(key)
            }
            ItemType::CHUNK_ITEM => self.check_chunk(key, data),
            ItemType::DEV_ITEM => DeviceItem::parse(key, data).map(drop),
            ItemType::DEV_EXTENT => {
                let extent = DeviceExtent::parse(key, data, sector_bytes)?;
                let (device, start) = (extent.device.get(), extent.physical.get());
                self.device_extents.extend(key, device, start, extent.end().get())
            }
            ItemType::RAID_STRIPE => {
                if !self.format.incompat.contains(Incompat::RAID_STRIPE_TREE) {
                    let problem = ItemProblem::FeatureMissing {
                        feature: "RAID_STRIPE_TREE",
                    };
                    return Err(ItemError::new(key, problem));
                }
                RaidStripeExtent::parse(key, data, sector_bytes).map(drop)
            }
            ItemType::IDENTITY_REMAP | ItemType::REMAP | ItemType::REMAP_BACKREF => {
                RemapItem::parse(key, data, sector_bytes).map(drop)
            }
            _ => check_state(key, data),
        }
    }

    /// Checks that the previous item in a subvolume belongs to the same inode, unless this is its
    /// inode item. The checker does not check the first item of a leaf, because it does not know
    /// the item in the leaf before.
    fn check_led_by_inode(&self, previous: Option<Key>, key: &Key) -> Result<(), ItemError> {
        match previous {
            Some(previous) if self.is_file_tree && previous.objectid != key.objectid => {
                let previous_objectid = previous.objectid.get();
                Err(ItemError::new(
                    key,
                    FileItemProblem::InodeItemMissing { previous_objectid },
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_of_inode(&mut self, key: &Key, data: &[u8]) -> Result<(), ItemError> {
        match key.item_type {
            ItemType::INODE_REF => InodeRefs::parse(key, data).map(drop),
            ItemType::INODE_EXTREF => InodeExtrefs::parse(key, data).map(drop),
            ItemType::EXTENT_DATA => {
                let sector_bytes = self.format.sector_bytes;
                let extent = FileExtent::parse(key, data, sector_bytes)?;
                let end = extent.file_end(key, sector_bytes);
                self.file_extents
                    .extend(key, key.objectid.get(), key.offset, end.get())
            }
            _ => DirItems::parse(key, data).map(drop),
        }
    }

    fn check_checksums(&mut self, key: &Key, data: &[u8]) -> Result<(), ItemError> {
        if self.format.changes_checksums {
            return ChecksumItem::check_changing(key, data, self.format.sector_bytes);
        }
        let item = ChecksumItem::parse(key, data, self.format.sector_bytes, self.format.checksum_type)?;
        self.checksums.extend(key, 0, item.start.get(), item.end.get())
    }

    fn check_chunk(&mut self, key: &Key, data: &[u8]) -> Result<(), ItemError> {
        let chunk = Chunk::parse(key, data, self.format.sector_bytes)?;
        chunk
            .check_mixed(self.format.incompat)
            .map_err(|problem| ItemError::new(key, problem))?;
        self.chunks
            .extend(key, 0, key.offset, key.offset.saturating_add(chunk.length.get()))
    }

    fn extend_free_space(&mut self, key: &Key) -> Result<(), ItemError> {
        let start = key.objectid.get();
        self.free_space
            .extend(key, 0, start, start.saturating_add(key.offset))
    }
}

/// Checks the items of quotas, jobs and counters, and the header of the v1 free space cache, which
/// has type number 0. Item types without a name may hold any data.
fn check_state(key: &Key, data: &[u8]) -> Result<(), ItemError> {
    match (key.item_type, key.objectid) {
        (ItemType::QGROUP_STATUS, _) => QgroupStatus::parse(key, data).map(drop),
        (ItemType::QGROUP_INFO, _) => QgroupInfo::parse(key, data).map(drop),
        (ItemType::QGROUP_LIMIT, _) => QgroupLimit::parse(key, data).map(drop),
        (ItemType::QGROUP_RELATION, _) => QgroupRelation::parse(key, data).map(drop),
        (ItemType::TEMPORARY_ITEM, ObjectId::BALANCE) => BalanceItem::parse(key, data).map(drop),
        (ItemType::PERSISTENT_ITEM, ObjectId::DEVICE_STATISTICS) => {
            DeviceStatistics::parse(key, data).map(drop)
        }
        (ItemType::DEV_REPLACE, _) => ReplaceItem::parse(key, data).map(drop),
        (ItemType(0), ObjectId::FREE_SPACE) => FreeSpaceHeader::parse(key, data).map(drop),
        _ => Ok(()),
    }
}
