//! The items of each tree of a new volume.

use super::super::Error;
use super::super::blocks::Item;
use super::super::chunks::PlannedChunk;
use super::{Plan, Tree, in_order};
use buttress_format::root::RawRootItem;
use buttress_format::{
    BlockGroupItem, ByteCount, Chunk, CompatRo, DeviceExtent, DeviceStatistics, DirItem, ExtentFlags,
    ExtentItem, FileKind, FreeSpaceExtent, FreeSpaceInfo, Generation, Incompat, InlineReference, InodeFlags,
    InodeItem, InodeNumber, InodeRefs, ItemProblem, ItemType, Key, Logical, ObjectId, RootFlags, RootItem,
    Timestamp, TreeBlockInfo, TreeId, Uuid, UuidItem, uuid_key,
};
use smallvec::smallvec;

/// The name by which the root tree's directory leads to the default subvolume.
const DEFAULT: &[u8] = b"default";

/// What a directory's inode says it is.
const DIRECTORY_MODE: u32 = 0o40755;

impl Plan {
    /// The items of a tree, with blocks as they are now, in the order of their keys.
    pub(super) fn items(&self, tree: TreeId) -> Result<Vec<Item>, Error> {
        let items = match tree {
            TreeId::ROOT => self.root_items()?,
            TreeId::EXTENT => self.extent_items(),
            TreeId::CHUNK => self.chunk_tree_items(),
            TreeId::DEVICE => self.device_tree_items(),
            TreeId::FS => directory(InodeNumber::ROOT_DIRECTORY, &self.inode(Generation::new(3)))?,
            TreeId::DATA_RELOCATION => {
                directory(InodeNumber::ROOT_DIRECTORY, &self.inode(Generation::new(5)))?
            }
            TreeId::UUID => {
                let mut subvolumes = Vec::new();
                UuidItem::push(&mut subvolumes, TreeId::FS);
                vec![(
                    uuid_key(self.identity.top_level, ItemType::UUID_KEY_SUBVOL),
                    subvolumes,
                )]
            }
            TreeId::FREE_SPACE => self.free_space_items(),
            TreeId::BLOCK_GROUP => self.block_group_items().collect(),
            _ => Vec::new(),
        };
        Ok(in_order(items))
    }

    /// The root items of all trees but the two that the superblock leads to, and the directory that names the default
    /// subvolume.
    fn root_items(&self) -> Result<Vec<Item>, Error> {
        let root_directory = InodeNumber::new(TreeId::ROOT_DIRECTORY.get());
        let mut items = directory(root_directory, &self.inode(Generation::new(3)))?;
        let entry = DirItem {
            location: Key::new(TreeId::FS.object_id(), ItemType::ROOT_ITEM, u64::MAX),
            transid: Generation::new(3),
            kind: FileKind::Directory,
            name: DEFAULT,
            data: &[],
        };
        items.push((
            DirItem::key(root_directory, DEFAULT),
            entry.encode().map_err(no_room)?,
        ));
        let mut name = Vec::new();
        InodeRefs::push(&mut name, 0, DEFAULT).map_err(no_room)?;
        items.push((
            InodeRefs::key(InodeNumber::new(TreeId::FS.get()), root_directory),
            name,
        ));
        let others = self.trees.iter();
        let others = others.filter(|tree| !matches!(tree.id, TreeId::ROOT | TreeId::CHUNK));
        let bytes = if self.settings.missing.root_item_extensions {
            size_of::<RawRootItem>()
        } else {
            usize::MAX
        };
        items.extend(others.map(|tree| {
            let item = self.root_item(tree).to_bytes();
            let item = item.iter().copied().take(bytes).collect();
            (RootItem::key(tree.id, 0), item)
        }));
        Ok(items)
    }

    fn root_item(&self, tree: &Tree) -> RootItem {
        let node_bytes = ByteCount::new(u64::from(self.settings.node_bytes));
        let (logical, level) = tree.root();
        let blocks = ByteCount::of(tree.shapes.len()).get();
        let is_subvolume = tree.id == TreeId::FS;
        let holds_files = tree.id.holds_files();
        let time = if is_subvolume {
            self.identity.time
        } else {
            Timestamp::default()
        };
        // An inode that nothing reads; two trees are made without it.
        let bare = matches!(tree.id, TreeId::UUID | TreeId::DATA_RELOCATION);
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
            generation: tree.generation,
            root_directory: InodeNumber::new(if holds_files { 256 } else { 0 }),
            logical,
            byte_limit: 0,
            bytes_used: ByteCount::new(blocks.saturating_mul(node_bytes.get())),
            last_snapshot: Generation::MIN,
            flags: RootFlags::empty(),
            references: 1,
            drop_progress: Key::MIN,
            drop_level: 0,
            level,
            generation_v2: tree.generation,
            uuid: if is_subvolume {
                self.identity.top_level
            } else {
                Uuid::nil()
            },
            parent_uuid: Uuid::nil(),
            received_uuid: Uuid::nil(),
            ctransid: Generation::MIN,
            otransid: Generation::MIN,
            stransid: Generation::MIN,
            rtransid: Generation::MIN,
            ctime: time,
            otime: time,
            stime: Timestamp::default(),
            rtime: Timestamp::default(),
        }
    }

    /// The inode of a root directory.
    fn inode(&self, generation: Generation) -> InodeItem {
        InodeItem {
            generation,
            nbytes: ByteCount::new(u64::from(self.settings.node_bytes)),
            nlink: 1,
            mode: DIRECTORY_MODE,
            ..InodeItem::empty(self.identity.time)
        }
    }

    /// One item for each block and, without a tree of their own, the block groups.
    fn extent_items(&self) -> Vec<Item> {
        let skinny = self.settings.incompat.contains(Incompat::SKINNY_METADATA);
        let node_bytes = ByteCount::new(u64::from(self.settings.node_bytes));
        let blocks = self.blocks_in_order().into_iter().map(|(logical, shape, tree)| {
            let info = TreeBlockInfo {
                first_key: shape.first_key,
                level: shape.level,
            };
            let item = ExtentItem {
                start: logical,
                length: node_bytes,
                references: 1,
                generation: tree.generation,
                flags: ExtentFlags::TREE_BLOCK,
                tree_block_info: (!skinny).then_some(info),
                level: Some(shape.level),
                inline_references: smallvec![InlineReference::TreeBlock { root: tree.id }],
            };
            (item.key(), item.encode())
        });
        let own_tree = self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
        let groups = self.block_group_items().filter(|_| !own_tree);
        blocks.chain(groups).collect()
    }

    fn block_group_items(&self) -> impl Iterator<Item = Item> + '_ {
        self.chunks.iter().map(|chunk| {
            let item = BlockGroupItem {
                start: chunk.logical,
                length: chunk.length,
                used: self.used_bytes(chunk),
                chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
                flags: chunk.flags,
            };
            (item.key(), item.to_bytes().to_vec())
        })
    }

    fn chunk_tree_items(&self) -> Vec<Item> {
        let devices = self
            .devices
            .iter()
            .map(|item| (item.key(), item.to_bytes().to_vec()));
        let chunks = self
            .chunk_items()
            .map(|(logical, chunk)| (Chunk::key(logical), chunk.encode()));
        devices.chain(chunks).collect()
    }

    fn device_tree_items(&self) -> Vec<Item> {
        let with_statistics = self
            .devices
            .iter()
            .filter(|_| !self.settings.missing.device_statistics);
        let statistics = with_statistics.map(|item| {
            let none = DeviceStatistics {
                device: item.device,
                ..DeviceStatistics::default()
            };
            (DeviceStatistics::key(item.device), none.to_bytes().to_vec())
        });
        let stripes = self
            .chunks
            .iter()
            .flat_map(|chunk| chunk.stripes.iter().map(move |stripe| (chunk, stripe)));
        let extents = stripes.map(|(chunk, (device, physical))| {
            let extent = DeviceExtent {
                device: super::super::device_id(*device),
                physical: *physical,
                chunk_tree: TreeId::CHUNK,
                chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
                chunk: chunk.logical,
                length: chunk.device_extent,
                chunk_tree_uuid: self.identity.chunk_tree,
            };
            (extent.key(), extent.to_bytes().to_vec())
        });
        statistics.chain(extents).collect()
    }

    fn free_space_items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for chunk in &self.chunks {
            let free = self.free_ranges(chunk);
            let info = FreeSpaceInfo {
                start: chunk.logical,
                length: chunk.length,
                extent_count: u32::try_from(free.len()).unwrap_or(u32::MAX),
                flags: 0,
            };
            items.push((info.key(), info.to_bytes().to_vec()));
            items.extend(free.iter().map(|extent| (extent.key(), Vec::new())));
        }
        items
    }

    /// What of a chunk no block covers.
    fn free_ranges(&self, chunk: &PlannedChunk) -> Vec<FreeSpaceExtent> {
        let node_bytes = ByteCount::new(u64::from(self.settings.node_bytes));
        let end = chunk.logical.saturating_add(chunk.length);
        let mut free = Vec::new();
        let mut add = |start: Logical, end: Logical| {
            if let Some(length) = end
                .checked_distance_from(start)
                .filter(|length| *length > ByteCount::ZERO)
            {
                free.push(FreeSpaceExtent { start, length });
            }
        };
        let mut position = chunk.logical;
        for (logical, ..) in self.blocks_in_order() {
            if (chunk.logical..end).contains(&logical) {
                add(position, logical);
                position = logical.saturating_add(node_bytes);
            }
        }
        add(position, end);
        free
    }
}

/// An empty root directory: its inode, and the name by which it is its own parent.
fn directory(inode: InodeNumber, item: &InodeItem) -> Result<Vec<Item>, Error> {
    let mut name = Vec::new();
    InodeRefs::push(&mut name, 0, b"..").map_err(no_room)?;
    // The root tree's directory counts as a child of itself, as the root directories of subvolumes do.
    Ok(vec![
        (InodeItem::key(inode), item.to_bytes().to_vec()),
        (InodeRefs::key(inode, inode), name),
    ])
}

/// The names that are written are ones that directories can have.
fn no_room(_: impl Into<ItemProblem>) -> Error {
    Error::NoRoom { what: "names" }
}
