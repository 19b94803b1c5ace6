//! Items that describe a volume's layout, for an empty volume and for a volume that is built from
//! complete trees.
//!
//! Each function makes the items of one tree, or the single item of an object, from its caller's
//! plan. No function of this module depends on how the plan was made. The planned items come in any
//! order; the code that packs them sorts them.

use super::chunks::PlannedChunk;
use super::options::Settings;
use super::{Error, Identity, device_id};
use buttress_format::superblock::{BackupRoot, BackupTree};
use buttress_format::{
    BlockGroupItem, ByteCount, Chunk, DeviceExtent, DeviceItem, DeviceStatistics, DirItem,
    ExtentDataReference, ExtentFlags, ExtentItem, FileKind, FreeSpaceExtent, FreeSpaceInfo, Generation,
    Incompat, InlineReference, InodeFlags, InodeItem, InodeNumber, InodeRefs, ItemProblem, ItemType, Key,
    Logical, ObjectId, RootItem, Superblock, Timestamp, TreeBlockInfo, TreeId, Uuid,
};
use core::ops::Range;
use smallvec::SmallVec;

/// A planned item.
pub type Item = (Key, Vec<u8>);

/// The name in the root tree's directory that leads to the default subvolume.
const DEFAULT: &[u8] = b"default";

/// The mode of a root directory's inode.
const DIRECTORY_MODE: u32 = 0o40755;

/// The root of a tree that is or will be packed.
#[derive(Clone, Copy, Debug)]
pub struct TreeRoot {
    /// The id of the tree.
    pub id: TreeId,
    /// The generation of the tree's blocks.
    pub generation: Generation,
    /// The address of the tree's root.
    pub logical: Logical,
    /// The level of the tree's root.
    pub level: u8,
    /// The number of the tree's blocks.
    pub blocks: u64,
}

impl TreeRoot {
    /// Returns the tree's entry in a backup of the superblock.
    #[must_use]
    pub const fn backup(&self) -> BackupTree {
        BackupTree {
            logical: self.logical,
            generation: self.generation,
            level: self.level,
        }
    }
}

/// A tree block in the form of the extent tree.
#[derive(Clone, Copy, Debug)]
pub struct BlockPlace<'a> {
    /// The block's address.
    pub logical: Logical,
    /// The generation that wrote the block.
    pub generation: Generation,
    /// The block's level.
    pub level: u8,
    /// The block's first key.
    pub first_key: Key,
    /// The trees that refer to the block.
    pub trees: &'a [TreeId],
}

/// Sorts items by key.
#[must_use]
pub fn in_order(mut items: Vec<Item>) -> Vec<Item> {
    items.sort_by_key(|(key, _): &Item| *key);
    items
}

/// Returns the inode of an empty root directory without an owner.
#[must_use]
pub fn directory_inode(settings: &Settings, time: Timestamp, generation: Generation) -> InodeItem {
    InodeItem {
        generation,
        nbytes: ByteCount::new(u64::from(settings.node_bytes)),
        nlink: 1,
        mode: DIRECTORY_MODE,
        ..InodeItem::empty(time)
    }
}

/// Returns the inode with the owner and permissions of the top level's root directory.
pub(super) fn owned(settings: &Settings, inode: InodeItem) -> InodeItem {
    let Some((uid, gid, permissions)) = settings.root_owner else {
        return inode;
    };
    let mode = permissions.map_or(inode.mode, |permissions| {
        (inode.mode & !0o7777) | (permissions & 0o7777)
    });
    InodeItem {
        uid,
        gid,
        mode,
        ..inode
    }
}

/// Returns the items of an empty root directory: its inode, and its name as its own parent.
///
/// # Errors
/// Never fails, because the name `..` fits into the item of a directory.
pub fn directory(inode: InodeNumber, item: &InodeItem) -> Result<Vec<Item>, Error> {
    let mut name = Vec::new();
    InodeRefs::push(&mut name, 0, b"..").map_err(no_room)?;
    // The root tree's directory counts as a child of itself, like the root directories of
    // subvolumes.
    Ok(vec![
        (InodeItem::key(inode), item.to_bytes().to_vec()),
        (InodeRefs::key(inode, inode), name),
    ])
}

/// Returns the items of the root tree's directory, whose only name leads to the default subvolume.
///
/// # Errors
/// Never fails, because a directory can have the name `default`.
pub fn root_directory(
    inode: &InodeItem,
    default: TreeId,
    generation: Generation,
) -> Result<Vec<Item>, Error> {
    let number = InodeNumber::new(TreeId::ROOT_DIRECTORY.get());
    let mut items = directory(number, inode)?;
    let entry = DirItem {
        location: Key::new(default.object_id(), ItemType::ROOT_ITEM, u64::MAX),
        transid: generation,
        kind: FileKind::Directory,
        name: DEFAULT,
        data: &[],
    };
    items.push((DirItem::key(number, DEFAULT), entry.encode().map_err(no_room)?));
    let mut name = Vec::new();
    InodeRefs::push(&mut name, 0, DEFAULT).map_err(no_room)?;
    items.push((InodeRefs::key(InodeNumber::new(TreeId::FS.get()), number), name));
    Ok(items)
}

/// Returns the root item of a tree. `subvolume` is the uuid of a subvolume, or `None` for other
/// trees.
#[must_use]
pub fn root_item(
    settings: &Settings,
    identity: &Identity,
    root: &TreeRoot,
    subvolume: Option<Uuid>,
) -> RootItem {
    let node_bytes = ByteCount::new(u64::from(settings.node_bytes));
    let holds_files = root.id.holds_files();
    let time = subvolume.map_or_else(Timestamp::default, |_| identity.time);
    // No code reads the root directory's inode of these trees, and mkfs.btrfs makes the trees
    // without it.
    let bare = matches!(root.id, TreeId::UUID | TreeId::DATA_RELOCATION | TreeId::QUOTA);
    let inode = InodeItem {
        generation: Generation::new(u64::from(!bare)),
        size: ByteCount::new(if bare { 0 } else { 3 }),
        nbytes: if bare { ByteCount::ZERO } else { node_bytes },
        nlink: u32::from(!bare),
        mode: if bare { 0 } else { DIRECTORY_MODE },
        flags: if holds_files {
            InodeFlags::ROOT_ITEM_INIT
        } else {
            InodeFlags::empty()
        },
        ..InodeItem::empty(Timestamp::default())
    };
    RootItem {
        inode,
        root_directory: InodeNumber::new(if holds_files { 256 } else { 0 }),
        logical: root.logical,
        bytes_used: ByteCount::new(root.blocks.saturating_mul(node_bytes.get())),
        references: 1,
        level: root.level,
        uuid: subvolume.unwrap_or_else(Uuid::nil),
        ctime: time,
        otime: time,
        ..RootItem::empty(root.generation)
    }
}

/// Returns the extent item of a tree block, and further items for references that do not fit it.
///
/// # Errors
/// Never fails, because each tree refers only once to a block.
pub fn block_items(settings: &Settings, block: &BlockPlace<'_>) -> Result<SmallVec<[Item; 1]>, Error> {
    let skinny = settings.incompat.contains(Incompat::SKINNY_METADATA);
    let info = TreeBlockInfo {
        first_key: block.first_key,
        level: block.level,
    };
    let mut item = ExtentItem {
        start: block.logical,
        length: ByteCount::new(u64::from(settings.node_bytes)),
        references: 0,
        generation: block.generation,
        flags: ExtentFlags::TREE_BLOCK,
        tree_block_info: (!skinny).then_some(info),
        level: Some(block.level),
        inline_references: SmallVec::new(),
    };
    let mut keyed = Vec::new();
    for root in block.trees {
        let reference = InlineReference::TreeBlock { root: *root };
        if item.has_space_for(&reference, settings.node_bytes) {
            let added = item.add_inline(reference);
            added.map_err(|_| Error::NoRoom { what: "references" })?;
        } else {
            item.references = item.references.saturating_add(1);
            let key = reference.keyed_key(item.start);
            keyed.push((
                key.ok_or(Error::NoRoom { what: "references" })?,
                reference.encode_keyed(),
            ));
        }
    }
    let mut items = SmallVec::new();
    items.push((item.key(), item.encode()));
    items.extend(in_order(keyed));
    Ok(items)
}

/// Returns the item of a data extent with these references, and further items for references that
/// do not fit it. `item` has no references of files yet.
///
/// # Errors
/// Fails if two references have the same root, inode and offset.
pub fn data_items(
    settings: &Settings,
    mut item: ExtentItem,
    references: &[ExtentDataReference],
) -> Result<Vec<Item>, Error> {
    let mut keyed: Vec<Item> = Vec::new();
    for reference in references {
        let reference = InlineReference::ExtentData(*reference);
        if item.has_space_for(&reference, settings.node_bytes) {
            let added = item.add_inline(reference);
            added.map_err(|_| Error::NoRoom { what: "references" })?;
        } else {
            let references = item.references.checked_add(u64::from(reference.count()));
            item.references = references.ok_or(Error::NoRoom { what: "references" })?;
            let key = reference.keyed_key(item.start);
            keyed.push((
                key.ok_or(Error::NoRoom { what: "references" })?,
                reference.encode_keyed(),
            ));
        }
    }
    let mut items = vec![(item.key(), item.encode())];
    let mut last: Option<Key> = None;
    for (mut key, data) in in_order(keyed) {
        // If an object id is taken, the next free key is used.
        if let Some(last) = last.filter(|last| *last >= key) {
            key = last.successor().ok_or(Error::NoRoom { what: "references" })?;
        }
        last = Some(key);
        items.push((key, data));
    }
    Ok(items)
}

/// Returns the item of a block group with this number of used bytes.
#[must_use]
pub fn block_group_item(chunk: &PlannedChunk, used: ByteCount) -> Item {
    let item = BlockGroupItem {
        start: chunk.logical,
        length: chunk.length,
        used,
        chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
        flags: chunk.flags,
    };
    (item.key(), item.to_bytes().to_vec())
}

/// Returns the items of the chunk tree.
#[must_use]
pub fn chunk_tree<'a>(
    settings: &Settings,
    identity: &Identity,
    devices: &[DeviceItem],
    chunks: impl Iterator<Item = &'a PlannedChunk>,
) -> Vec<Item> {
    let devices = devices.iter().map(|item| (item.key(), item.to_bytes().to_vec()));
    let item = |chunk: &PlannedChunk| chunk.item(&identity.devices, settings.sector_bytes);
    let chunks = chunks.map(|chunk| (Chunk::key(chunk.logical), item(chunk).encode()));
    devices.chain(chunks).collect()
}

/// Returns the items of the device tree. Each of the `counted` devices has an item for its errors.
#[must_use]
pub fn device_tree<'a>(
    identity: &Identity,
    counted: impl Iterator<Item = &'a DeviceItem>,
    chunks: impl Iterator<Item = &'a PlannedChunk>,
) -> Vec<Item> {
    let statistics = counted.map(|item| {
        let none = DeviceStatistics {
            device: item.device,
            ..DeviceStatistics::default()
        };
        (DeviceStatistics::key(item.device), none.to_bytes().to_vec())
    });
    let stripes = chunks.flat_map(|chunk| chunk.stripes.iter().map(move |stripe| (chunk, stripe)));
    let extents = stripes.map(|(chunk, (device, physical))| {
        let extent = DeviceExtent {
            device: device_id(*device),
            physical: *physical,
            chunk_tree: TreeId::CHUNK,
            chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
            chunk: chunk.logical,
            length: chunk.device_extent,
            chunk_tree_uuid: identity.chunk_tree,
        };
        (extent.key(), extent.to_bytes().to_vec())
    });
    statistics.chain(extents).collect()
}

/// Returns the free-space tree's items of a chunk in which these ranges are free.
#[must_use]
pub fn free_space(chunk: &PlannedChunk, free: &[Range<Logical>]) -> Vec<Item> {
    let info = FreeSpaceInfo {
        start: chunk.logical,
        length: chunk.length,
        extent_count: u32::try_from(free.len()).unwrap_or(u32::MAX),
        flags: 0,
    };
    let mut items = vec![(info.key(), info.to_bytes().to_vec())];
    items.extend(free.iter().map(|range| {
        let extent = FreeSpaceExtent {
            start: range.start,
            length: range.end.checked_distance_from(range.start).unwrap_or_default(),
        };
        (extent.key(), Vec::new())
    }));
    items
}

/// Returns a superblock that leads to trees. `root_of` returns the roots of existing trees.
#[must_use]
pub fn complete_superblock(
    superblock: &Superblock,
    root_of: &dyn Fn(TreeId) -> Option<TreeRoot>,
    system: Vec<(Key, Chunk)>,
    bytes_used: ByteCount,
) -> Superblock {
    let backup = |id| {
        let nowhere = BackupTree {
            logical: Logical::MIN,
            generation: Generation::MIN,
            level: 0,
        };
        root_of(id).map_or(nowhere, |root| root.backup())
    };
    let (root, chunk_root) = (backup(TreeId::ROOT), backup(TreeId::CHUNK));
    // With a block group tree, the extent root of a backup is the root of that tree.
    let [first, second, third, _] = superblock.backup_roots;
    let newest = BackupRoot {
        tree_root: root,
        chunk_root,
        extent_root: backup(TreeId::EXTENT),
        fs_root: backup(TreeId::FS),
        dev_root: backup(TreeId::DEVICE),
        csum_root: backup(TreeId::CHECKSUM),
        total_bytes: superblock.total_bytes,
        bytes_used,
        num_devices: superblock.num_devices,
    };
    Superblock {
        root: root.logical,
        root_level: root.level,
        chunk_root: chunk_root.logical,
        chunk_root_level: chunk_root.level,
        chunk_root_generation: chunk_root.generation,
        bytes_used,
        system_chunks: system,
        backup_roots: [first, second, third, newest],
        ..superblock.clone()
    }
}

/// Converts the error of a name, which cannot occur, because directories can have the written
/// names.
fn no_room(_: impl Into<ItemProblem>) -> Error {
    Error::NoRoom { what: "names" }
}
