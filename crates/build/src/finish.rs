//! The trees that say where everything lies: checksums, extents, free space, block groups, devices, chunks, roots.
//!
//! They describe the very blocks that hold them. Which blocks those are only depends on how many there are of each tree,
//! since blocks follow each other; so their number is guessed, the trees are listed and counted, and that is repeated until
//! the count agrees with the guess. It settles in a few rounds, because more blocks can only mean more items. Only then are
//! they packed.

use crate::blocks::{BlockLog, BlockNote, Packer, Root, Shape};
use crate::error::{Error, Result};
use crate::layout::{GENERATION, Layout, Subvolume};
use crate::sort::{Record, Sorted};
use crate::space::{Placer, UsedChunk};
use crate::spool::{SpoolFolder, Spooled};
use buttress_format::superblock::{BackupRoot, BackupTree};
use buttress_format::{
    BlockGroupFlags, BlockGroupItem, ByteCount, Checksum, ChecksumItem, Chunk, CompatRo, DeviceExtent,
    DeviceItem, DeviceStatistics, DirItem, ExtentDataReference, ExtentFlags, ExtentItem, FileKind,
    FreeSpaceExtent, FreeSpaceInfo, Generation, Incompat, InlineReference, InodeFlags, InodeItem,
    InodeNumber, InodeRefs, ItemType, Key, Logical, ObjectId, RootFlags, RootItem, RootRef, Superblock,
    Timestamp, TreeBlockInfo, TreeId, Uuid, UuidItem, uuid_key,
};
use buttress_writer::mkfs::parts::{Settings, device_id, device_items, empty_superblock};
use buttress_writer::mkfs::{Identity, PlannedChunk};
use smallvec::smallvec;

type Item = (Key, Vec<u8>);

/// How often trees may be listed anew.
const ROUNDS: usize = 32;

/// The name by which the root tree's directory leads to the default subvolume.
const DEFAULT: &[u8] = b"default";

/// Everything that is known when contents are written.
pub(crate) struct Finish<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) identity: &'a Identity,
    pub(crate) layout: &'a Layout,
    pub(crate) roots: Vec<Root>,
    pub(crate) references: Sorted,
    pub(crate) checksums: Spooled,
    pub(crate) data: Vec<UsedChunk>,
    pub(crate) system: PlannedChunk,
    pub(crate) placer: Placer,
    pub(crate) sizes: Sizes,
    pub(crate) folder: &'a SpoolFolder,
    /// At least so much of metadata block groups is left free.
    pub(crate) headroom: u64,
}

/// How much of each device is the volume's.
#[derive(Clone, Debug)]
pub(crate) enum Sizes {
    /// So many bytes.
    Given(Vec<u64>),
    /// As few as possible, and so many more.
    Least(u64),
}

/// What is left to be written.
pub(crate) struct Finished {
    pub(crate) superblock: Superblock,
    pub(crate) devices: Vec<DeviceItem>,
    pub(crate) chunks: Vec<PlannedChunk>,
    /// Those of them that the volume does not know yet.
    pub(crate) new_chunks: Vec<PlannedChunk>,
    /// Blocks of the chunk tree.
    pub(crate) chunk_blocks: BlockLog,
}

/// A guess of how the last trees look: levels and first keys of their blocks, in the order of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Guess {
    extent: Vec<(u8, Key)>,
    free_space: Vec<(u8, Key)>,
    block_group: Vec<(u8, Key)>,
    device: Vec<(u8, Key)>,
    root: Vec<(u8, Key)>,
    chunk: Vec<(u8, Key)>,
}

impl Guess {
    /// Trees in metadata chunks, in the order of their addresses.
    fn trees(&self) -> [(TreeId, &[(u8, Key)]); 5] {
        [
            (TreeId::EXTENT, &self.extent),
            (TreeId::FREE_SPACE, &self.free_space),
            (TreeId::BLOCK_GROUP, &self.block_group),
            (TreeId::DEVICE, &self.device),
            (TreeId::ROOT, &self.root),
        ]
    }

    fn blocks(&self) -> usize {
        self.trees()
            .iter()
            .fold(0, |sum, (_, blocks)| sum.saturating_add(blocks.len()))
    }
}

/// Chunks as a guess makes them.
struct Plan {
    chunks: Vec<UsedChunk>,
    devices: Vec<DeviceItem>,
}

impl Finish<'_> {
    pub(crate) fn run(mut self, log: &mut BlockLog) -> Result<Finished> {
        self.pack_checksums(log)?;
        self.pack_items(log, TreeId::UUID, self.uuid_items())?;
        let relocation = directory(InodeNumber::ROOT_DIRECTORY, &self.directory_inode())?;
        self.pack_items(log, TreeId::DATA_RELOCATION, relocation)?;
        let mut guess = Guess::default();
        for _ in 0..ROUNDS {
            let plan = self.plan(log, &guess)?;
            let counted = self.count(log, &guess, &plan)?;
            if counted == guess {
                return self.settle(log, &guess, plan);
            }
            guess = counted;
        }
        Err(Error::Defect {
            what: "trees that do not settle",
        })
    }

    /// The chunks that hold what a guess comes to.
    fn plan(&self, log: &BlockLog, guess: &Guess) -> Result<Plan> {
        let node_bytes = u64::from(self.settings.node_bytes);
        let blocks = log.notes().len().saturating_add(guess.blocks()) as u64;
        let used = blocks.saturating_mul(node_bytes);
        let mut placer = self.placer.clone();
        let kind = if self.settings.mixed {
            BlockGroupFlags::METADATA | BlockGroupFlags::DATA
        } else {
            BlockGroupFlags::METADATA
        };
        let system = UsedChunk {
            chunk: self.system.clone(),
            used: (guess.chunk.len() as u64).saturating_mul(node_bytes),
        };
        if system.used > system.chunk.length.get() {
            return Err(Error::NoRoom {
                what: "the chunk tree",
                needed: ByteCount::new(system.used),
            });
        }
        let mut chunks = vec![system];
        chunks.extend(self.data.iter().cloned());
        let mut logical = log.base();
        let mut left = used;
        let mut wanted = used.saturating_add(self.headroom);
        while wanted > 0 {
            let chunk = placer.chunk(logical, kind, self.settings.metadata, wanted);
            let Some(chunk) = chunk else {
                // Room on top is a wish.
                if left == 0 {
                    break;
                }
                return Err(Error::NoRoom {
                    what: "metadata",
                    needed: ByteCount::new(left),
                });
            };
            let length = chunk.length.get();
            let own = left.min(length);
            left = left.saturating_sub(own);
            wanted = wanted.saturating_sub(length);
            logical = logical.saturating_add(chunk.length);
            chunks.push(UsedChunk { chunk, used: own });
        }
        let devices = self.device_items(&chunks, &placer);
        Ok(Plan { chunks, devices })
    }

    fn device_items(&self, chunks: &[UsedChunk], placer: &Placer) -> Vec<DeviceItem> {
        let sector_bytes = u64::from(self.settings.sector_bytes);
        let sizes = match &self.sizes {
            Sizes::Given(sizes) => sizes.clone(),
            Sizes::Least(slack) => {
                let size = |end: &u64| end.saturating_add(*slack).checked_next_multiple_of(sector_bytes);
                placer.ends().iter().filter_map(size).collect()
            }
        };
        let planned: Vec<PlannedChunk> = chunks.iter().map(|used| used.chunk.clone()).collect();
        device_items(self.settings, self.identity, &sizes, &planned)
    }

    fn count(&self, log: &BlockLog, guess: &Guess, plan: &Plan) -> Result<Guess> {
        let format = &log.format;
        let has = |feature| self.settings.compat_ro.contains(feature);
        let mut extent = Shape::new(format);
        self.extent_items(log.notes(), log.base(), guess, plan, &mut |key, data| {
            extent.push(&key, data.len());
            Ok(())
        })?;
        let empty_root = |id| Root {
            id,
            logical: Logical::MIN,
            level: 0,
            blocks: 0,
        };
        let roots: Vec<Root> = self.all_trees().into_iter().map(empty_root).collect();
        Ok(Guess {
            extent: extent.finish(),
            free_space: match has(CompatRo::FREE_SPACE_TREE) {
                true => Shape::of_items(format, &self.free_space_items(plan)),
                false => Vec::new(),
            },
            block_group: match has(CompatRo::BLOCK_GROUP_TREE) {
                true => Shape::of_items(format, &block_group_items(plan)),
                false => Vec::new(),
            },
            device: Shape::of_items(format, &self.device_tree_items(plan)),
            root: Shape::of_items(format, &self.root_items(&roots)?),
            chunk: Shape::of_items(format, &self.chunk_items(plan)),
        })
    }

    /// All trees with a root item.
    fn all_trees(&self) -> Vec<TreeId> {
        let mut ids: Vec<TreeId> = self.roots.iter().map(|root| root.id).collect();
        ids.extend([TreeId::EXTENT, TreeId::DEVICE]);
        if self.settings.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
            ids.push(TreeId::FREE_SPACE);
        }
        if self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            ids.push(TreeId::BLOCK_GROUP);
        }
        ids
    }

    /// Packs what was counted.
    fn settle(mut self, log: &mut BlockLog, guess: &Guess, plan: Plan) -> Result<Finished> {
        let mut chunk_blocks = BlockLog::new(log.format, self.system.logical, self.folder, 64 << 20);
        let mut extents = Packer::new(TreeId::EXTENT);
        // Blocks that are not packed yet are known by the guess.
        let notes = log.notes().to_vec();
        self.extent_items(&notes, log.base(), guess, &plan, &mut |key, data| {
            extents.push(log, &key, &data)
        })?;
        self.roots.push(extents.finish(log)?);
        if self.settings.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
            self.pack_items(log, TreeId::FREE_SPACE, self.free_space_items(&plan))?;
        }
        if self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            self.pack_items(log, TreeId::BLOCK_GROUP, block_group_items(&plan))?;
        }
        self.pack_items(log, TreeId::DEVICE, self.device_tree_items(&plan))?;
        let root = pack(log, TreeId::ROOT, self.root_items(&self.roots)?)?;
        let chunk_root = pack(&mut chunk_blocks, TreeId::CHUNK, self.chunk_items(&plan))?;
        if log.notes().len() != notes.len().saturating_add(guess.blocks())
            || chunk_blocks.notes().len() != guess.chunk.len()
        {
            return Err(Error::Defect {
                what: "trees that are not as they were counted",
            });
        }
        let superblock = self.superblock(&plan, &root, &chunk_root);
        let new_chunks = plan.chunks.iter().filter(|used| used.chunk.logical >= log.base());
        Ok(Finished {
            superblock,
            new_chunks: new_chunks.map(|used| used.chunk.clone()).collect(),
            chunks: plan.chunks.into_iter().map(|used| used.chunk).collect(),
            devices: plan.devices,
            chunk_blocks,
        })
    }

    fn pack_items(&mut self, log: &mut BlockLog, id: TreeId, items: Vec<Item>) -> Result<()> {
        self.roots.push(pack(log, id, items)?);
        Ok(())
    }

    /// The checksum tree: items as long as leaves allow, over neighbouring extents too.
    fn pack_checksums(&mut self, log: &mut BlockLog) -> Result<()> {
        let most = ChecksumItem::bytes_max(self.settings.node_bytes, self.settings.checksum);
        let unit = self.settings.checksum.size_bytes();
        let sector_bytes = u64::from(self.settings.sector_bytes);
        let mut packer = Packer::new(TreeId::CHECKSUM);
        let mut reader = self.checksums.reader();
        let mut number = Vec::new();
        let mut sums = Vec::new();
        let mut item: Vec<u8> = Vec::new();
        let (mut start, mut end) = (0_u64, 0_u64);
        while !reader.at_end() {
            let mut next = || -> Result<u64> {
                reader.read(&mut number, 8)?;
                Ok(u64::from_le_bytes(
                    number.as_slice().try_into().unwrap_or_default(),
                ))
            };
            let (logical, bytes, length) = (next()?, next()?, next()?);
            reader.read(&mut sums, usize::try_from(length).unwrap_or(usize::MAX))?;
            if logical != end && !item.is_empty() {
                packer.push(log, &ChecksumItem::key(Logical::new(start)), &item)?;
                item.clear();
            }
            let mut at = logical;
            let mut rest = sums.as_slice();
            while !rest.is_empty() {
                if item.is_empty() {
                    start = at;
                }
                // A leaf is filled to its end, if what is left of it is worth an item.
                let in_leaf = packer.room(log);
                let limit = if in_leaf < most && in_leaf >= unit.saturating_mul(8) {
                    in_leaf
                } else {
                    most
                };
                let limit = limit.saturating_sub(limit.checked_rem(unit).unwrap_or(0));
                let length = limit.saturating_sub(item.len()).min(rest.len());
                let (now, later) = rest.split_at(length);
                item.extend_from_slice(now);
                rest = later;
                let sectors = length.checked_div(unit).unwrap_or(0) as u64;
                at = at.saturating_add(sectors.saturating_mul(sector_bytes));
                if item.len() >= limit {
                    packer.push(log, &ChecksumItem::key(Logical::new(start)), &item)?;
                    item.clear();
                }
            }
            end = logical.saturating_add(bytes);
        }
        if !item.is_empty() {
            packer.push(log, &ChecksumItem::key(Logical::new(start)), &item)?;
        }
        self.roots.push(packer.finish(log)?);
        Ok(())
    }

    fn uuid_items(&self) -> Vec<Item> {
        let subvolumes = self.layout.subvolumes.iter().map(|subvolume| subvolume.id);
        let all = core::iter::once(TreeId::FS).chain(subvolumes);
        let items = all.map(|id| {
            let mut data = Vec::new();
            UuidItem::push(&mut data, id);
            (uuid_key(self.uuid(id), ItemType::UUID_KEY_SUBVOL), data)
        });
        in_order(items.collect())
    }

    /// The uuid of a subvolume: the same for the same volume.
    fn uuid(&self, id: TreeId) -> Uuid {
        if id == TreeId::FS {
            return self.identity.top_level;
        }
        derived_uuid(self.identity.fsid, "subvolume", id.get())
    }

    /// Every item of the extent tree in order: blocks of the chunk tree, data, blocks of the other trees.
    fn extent_items(
        &self,
        notes: &[BlockNote],
        base: Logical,
        guess: &Guess,
        plan: &Plan,
        give: &mut dyn FnMut(Key, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let own_tree = self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
        let mut groups = block_group_items(plan);
        if own_tree {
            groups.clear();
        }
        let mut groups = groups.into_iter().peekable();
        let mut ordered = |key: Key, data: Vec<u8>| -> Result<()> {
            while let Some((group, item)) = groups.next_if(|(group, _)| *group < key) {
                give(group, item)?;
            }
            give(key, data)
        };
        let node_bytes = u64::from(self.settings.node_bytes);
        let address = |base: Logical, number: usize| {
            base.saturating_add(ByteCount::new((number as u64).saturating_mul(node_bytes)))
        };
        for (number, (level, first_key)) in guess.chunk.iter().enumerate() {
            let note = BlockNote {
                owner: TreeId::CHUNK,
                level: *level,
                first_key: *first_key,
            };
            let (key, data) = self.block_item(address(self.system.logical, number), &note);
            ordered(key, data)?;
        }
        self.data_extent_items(&mut ordered)?;
        for (number, note) in notes.iter().enumerate() {
            let (key, data) = self.block_item(address(base, number), note);
            ordered(key, data)?;
        }
        let mut number = notes.len();
        for (owner, blocks) in guess.trees() {
            for (level, first_key) in blocks {
                let note = BlockNote {
                    owner,
                    level: *level,
                    first_key: *first_key,
                };
                let (key, data) = self.block_item(address(base, number), &note);
                ordered(key, data)?;
                number = number.saturating_add(1);
            }
        }
        for (key, data) in groups {
            give(key, data)?;
        }
        Ok(())
    }

    fn block_item(&self, logical: Logical, note: &BlockNote) -> Item {
        let skinny = self.settings.incompat.contains(Incompat::SKINNY_METADATA);
        let info = TreeBlockInfo {
            first_key: note.first_key,
            level: note.level,
        };
        let item = ExtentItem {
            start: logical,
            length: ByteCount::new(u64::from(self.settings.node_bytes)),
            references: 1,
            generation: GENERATION,
            flags: ExtentFlags::TREE_BLOCK,
            tree_block_info: (!skinny).then_some(info),
            level: Some(note.level),
            inline_references: smallvec![InlineReference::TreeBlock { root: note.owner }],
        };
        (item.key(), item.encode())
    }

    fn data_extent_items(&self, give: &mut dyn FnMut(Key, Vec<u8>) -> Result<()>) -> Result<()> {
        let mut reader = self.references.reader()?;
        let mut record = Record::default();
        let mut open: Option<(ExtentItem, Vec<InlineReference>)> = None;
        while reader.next(&mut record)? {
            let mut numbers = record
                .key
                .chunks_exact(8)
                .map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap_or_default()));
            let mut next = || numbers.next().unwrap_or_default();
            let logical = Logical::new(next());
            let reference = InlineReference::ExtentData(ExtentDataReference {
                root: TreeId::new(next()),
                inode: InodeNumber::new(next()),
                offset: next(),
                count: 1,
            });
            let length = record.payload.as_slice().try_into().unwrap_or_default();
            let length = ByteCount::new(u64::from_le_bytes(length));
            if open.as_ref().is_none_or(|(item, _)| item.start != logical) {
                if let Some(done) = open.take() {
                    give_extent(done, give)?;
                }
                open = Some((ExtentItem::new_data(logical, length, GENERATION), Vec::new()));
            }
            if let Some((item, keyed)) = &mut open {
                if item.has_space_for(&reference, self.settings.node_bytes) {
                    item.add_inline(reference)
                        .map_err(|_| Error::Defect { what: "a reference" })?;
                } else {
                    item.references = item.references.saturating_add(1);
                    keyed.push(reference);
                }
            }
        }
        open.map_or(Ok(()), |done| give_extent(done, give))
    }

    fn free_space_items(&self, plan: &Plan) -> Vec<Item> {
        let mut items = Vec::new();
        for UsedChunk { chunk, used } in &plan.chunks {
            let free = chunk.length.get().saturating_sub(*used);
            let info = FreeSpaceInfo {
                start: chunk.logical,
                length: chunk.length,
                extent_count: u32::from(free > 0),
                flags: 0,
            };
            items.push((info.key(), info.to_bytes().to_vec()));
            if free > 0 {
                let extent = FreeSpaceExtent {
                    start: chunk.logical.saturating_add(ByteCount::new(*used)),
                    length: ByteCount::new(free),
                };
                items.push((extent.key(), Vec::new()));
            }
        }
        in_order(items)
    }

    fn device_tree_items(&self, plan: &Plan) -> Vec<Item> {
        let statistics = plan.devices.iter().map(|item| {
            let none = DeviceStatistics {
                device: item.device,
                ..DeviceStatistics::default()
            };
            (DeviceStatistics::key(item.device), none.to_bytes().to_vec())
        });
        let stripes = plan
            .chunks
            .iter()
            .flat_map(|UsedChunk { chunk, .. }| chunk.stripes.iter().map(move |stripe| (chunk, stripe)));
        let extents = stripes.map(|(chunk, (device, physical))| {
            let extent = DeviceExtent {
                device: device_id(*device),
                physical: *physical,
                chunk_tree: TreeId::CHUNK,
                chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
                chunk: chunk.logical,
                length: chunk.device_extent,
                chunk_tree_uuid: self.identity.chunk_tree,
            };
            (extent.key(), extent.to_bytes().to_vec())
        });
        in_order(statistics.chain(extents).collect())
    }

    fn chunk_items(&self, plan: &Plan) -> Vec<Item> {
        let devices = plan
            .devices
            .iter()
            .map(|item| (item.key(), item.to_bytes().to_vec()));
        let chunks = plan
            .chunks
            .iter()
            .map(|UsedChunk { chunk, .. }| (Chunk::key(chunk.logical), self.chunk_item(chunk).encode()));
        in_order(devices.chain(chunks).collect())
    }

    fn chunk_item(&self, chunk: &PlannedChunk) -> Chunk {
        chunk.item(&self.identity.devices, self.settings.sector_bytes)
    }

    /// The root tree.
    fn root_items(&self, roots: &[Root]) -> Result<Vec<Item>> {
        let root_directory = InodeNumber::new(TreeId::ROOT_DIRECTORY.get());
        let mut items = directory(root_directory, &self.directory_inode())?;
        let entry = DirItem {
            location: Key::new(
                self.layout.default_subvolume.object_id(),
                ItemType::ROOT_ITEM,
                u64::MAX,
            ),
            transid: GENERATION,
            kind: FileKind::Directory,
            name: DEFAULT,
            data: &[],
        };
        let entry = entry.encode().map_err(|_| Error::Defect { what: "a name" })?;
        items.push((DirItem::key(root_directory, DEFAULT), entry));
        let mut name = Vec::new();
        InodeRefs::push(&mut name, 0, DEFAULT).map_err(|_| Error::Defect { what: "a name" })?;
        items.push((
            InodeRefs::key(InodeNumber::new(TreeId::FS.get()), root_directory),
            name,
        ));
        for root in roots {
            let subvolume = self
                .layout
                .subvolumes
                .iter()
                .find(|subvolume| subvolume.id == root.id);
            let item = self.root_item(root, subvolume);
            items.push((RootItem::key(root.id, 0), item.to_bytes().to_vec()));
        }
        for subvolume in &self.layout.subvolumes {
            let reference = RootRef {
                directory: subvolume.directory,
                sequence: subvolume.index,
                name: &subvolume.name,
            };
            let data = reference.encode().map_err(|_| Error::Defect {
                what: "a subvolume's name",
            })?;
            let ids = subvolume.parent.as_subvolume().zip(subvolume.id.as_subvolume());
            let (parent, child) = ids.ok_or(Error::Defect {
                what: "a subvolume's number",
            })?;
            items.extend(RootRef::keys(parent, child).map(|key| (key, data.clone())));
        }
        Ok(in_order(items))
    }

    fn root_item(&self, root: &Root, subvolume: Option<&Subvolume>) -> RootItem {
        let node_bytes = ByteCount::new(u64::from(self.settings.node_bytes));
        let is_subvolume = root.id == TreeId::FS || subvolume.is_some();
        let holds_files = root.id.holds_files();
        let time = if is_subvolume {
            self.identity.time
        } else {
            Timestamp::default()
        };
        // An inode that nothing reads; two trees are made without it.
        let bare = matches!(root.id, TreeId::UUID | TreeId::DATA_RELOCATION);
        let made = if subvolume.is_some() {
            GENERATION
        } else {
            Generation::MIN
        };
        let read_only = subvolume.is_some_and(|subvolume| subvolume.mark.read_only);
        RootItem {
            inode: InodeItem {
                generation: Generation::new(u64::from(!bare)),
                size: ByteCount::new(if bare { 0 } else { 3 }),
                nbytes: if bare { ByteCount::ZERO } else { node_bytes },
                nlink: u32::from(!bare),
                mode: if bare { 0 } else { 0o040_755 },
                flags: if holds_files {
                    InodeFlags::ROOT_ITEM_INIT
                } else {
                    InodeFlags::empty()
                },
                ..InodeItem::empty(Timestamp::default())
            },
            generation: GENERATION,
            root_directory: InodeNumber::new(if holds_files { 256 } else { 0 }),
            logical: root.logical,
            byte_limit: 0,
            bytes_used: ByteCount::new(root.blocks.saturating_mul(node_bytes.get())),
            last_snapshot: Generation::MIN,
            flags: if read_only {
                RootFlags::RDONLY
            } else {
                RootFlags::empty()
            },
            references: 1,
            drop_progress: Key::MIN,
            drop_level: 0,
            level: root.level,
            generation_v2: GENERATION,
            uuid: if is_subvolume {
                self.uuid(root.id)
            } else {
                Uuid::nil()
            },
            parent_uuid: Uuid::nil(),
            received_uuid: Uuid::nil(),
            ctransid: made,
            otransid: made,
            stransid: Generation::MIN,
            rtransid: Generation::MIN,
            ctime: time,
            otime: time,
            stime: Timestamp::default(),
            rtime: Timestamp::default(),
        }
    }

    /// The inode of a directory that holds nothing of anybody's.
    fn directory_inode(&self) -> InodeItem {
        InodeItem {
            generation: GENERATION,
            nbytes: ByteCount::new(u64::from(self.settings.node_bytes)),
            nlink: 1,
            mode: 0o040_755,
            ..InodeItem::empty(self.identity.time)
        }
    }

    fn superblock(&self, plan: &Plan, root: &Root, chunk_root: &Root) -> Superblock {
        let backup = |root: Option<&Root>| BackupTree {
            logical: root.map_or(Logical::MIN, |root| root.logical),
            generation: root.map_or(Generation::MIN, |_| GENERATION),
            level: root.map_or(0, |root| root.level),
        };
        let find = |id: TreeId| self.roots.iter().find(|root| root.id == id);
        let empty = empty_superblock(self.settings, self.identity, &plan.devices);
        let used = plan
            .chunks
            .iter()
            .fold(0_u64, |sum, chunk| sum.saturating_add(chunk.used));
        let bytes_used = ByteCount::new(used);
        let [first, second, third, _] = empty.backup_roots;
        let newest = BackupRoot {
            tree_root: backup(Some(root)),
            chunk_root: backup(Some(chunk_root)),
            extent_root: backup(find(TreeId::EXTENT)),
            fs_root: backup(find(TreeId::FS)),
            dev_root: backup(find(TreeId::DEVICE)),
            csum_root: backup(find(TreeId::CHECKSUM)),
            total_bytes: empty.total_bytes,
            bytes_used,
            num_devices: empty.num_devices,
        };
        let mut incompat = self.settings.incompat;
        incompat.set(
            Incompat::DEFAULT_SUBVOL,
            self.layout.default_subvolume != TreeId::FS,
        );
        Superblock {
            checksum: Checksum::of(&[]),
            generation: GENERATION,
            root: root.logical,
            root_level: root.level,
            chunk_root: chunk_root.logical,
            chunk_root_level: chunk_root.level,
            chunk_root_generation: GENERATION,
            bytes_used,
            incompat,
            system_chunks: vec![(Chunk::key(self.system.logical), self.chunk_item(&self.system))],
            backup_roots: [first, second, third, newest],
            ..empty
        }
    }
}

/// An extent with its references, those that do not fit it behind it.
fn give_extent(
    (item, keyed): (ExtentItem, Vec<InlineReference>),
    give: &mut dyn FnMut(Key, Vec<u8>) -> Result<()>,
) -> Result<()> {
    give(item.key(), item.encode())?;
    let mut items: Vec<Item> = Vec::with_capacity(keyed.len());
    for reference in keyed {
        let key = reference
            .keyed_key(item.start)
            .ok_or(Error::Defect { what: "a reference" })?;
        items.push((key, reference.encode_keyed()));
    }
    let mut last: Option<Key> = None;
    for (mut key, data) in in_order(items) {
        // Where a key is taken, the next free one follows.
        if let Some(last) = last.filter(|last| *last >= key) {
            key = last.successor().ok_or(Error::Defect { what: "a reference" })?;
        }
        last = Some(key);
        give(key, data)?;
    }
    Ok(())
}

fn block_group_items(plan: &Plan) -> Vec<Item> {
    let items = plan.chunks.iter().map(|UsedChunk { chunk, used }| {
        let item = BlockGroupItem {
            start: chunk.logical,
            length: chunk.length,
            used: ByteCount::new(*used),
            chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
            flags: chunk.flags,
        };
        (item.key(), item.to_bytes().to_vec())
    });
    in_order(items.collect())
}

fn pack(log: &mut BlockLog, id: TreeId, items: Vec<Item>) -> Result<Root> {
    let mut packer = Packer::new(id);
    for (key, data) in items {
        packer.push(log, &key, &data)?;
    }
    packer.finish(log)
}

/// An empty directory that is its own parent.
fn directory(inode: InodeNumber, item: &InodeItem) -> Result<Vec<Item>> {
    let mut name = Vec::new();
    InodeRefs::push(&mut name, 0, b"..").map_err(|_| Error::Defect {
        what: "a root's name",
    })?;
    Ok(vec![
        (InodeItem::key(inode), item.to_bytes().to_vec()),
        (InodeRefs::key(inode, inode), name),
    ])
}

/// Puts items in the order of their keys.
fn in_order(mut items: Vec<Item>) -> Vec<Item> {
    items.sort_by_key(|(key, _)| *key);
    items
}

/// A uuid that follows from the volume's, a role and a number.
#[must_use]
pub fn derived_uuid(fsid: Uuid, role: &str, number: u64) -> Uuid {
    let bytes = [fsid.as_bytes().as_slice(), role.as_bytes(), &number.to_le_bytes()].concat();
    let hash = buttress_format::ChecksumType::Sha256.compute(&bytes);
    let first = hash.as_bytes().first_chunk::<16>().copied().unwrap_or_default();
    uuid::Builder::from_random_bytes(first).into_uuid()
}
