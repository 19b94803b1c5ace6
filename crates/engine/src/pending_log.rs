//! The pending log of a volume at opening.
//!
//! The whole log is read before any change. If one block or item of a log is damaged, the whole log
//! is not replayed. The extent tree does not record the log's blocks, so opening reserves their
//! space. The blocks of a pending log stay reserved until the replay is durable. Data that only the
//! log refers to stays reserved until the replay has made extents of that data.
//!
//! Left out: logs of subvolumes that no longer exist, for which only the space is kept.

use crate::block_groups::Share;
use crate::data_extents::DataRange;
use crate::running_parts::LogSpace;
use buttress_format::{
    ByteCount, FileExtent, Generation, Item, ItemType, Key, Logical, RootItem, SubvolumeId, TreeBlock, TreeId,
};
use buttress_fs::Filesystem;
use buttress_fs::error::{Corruption, Error, Result};
use buttress_tree::{BlockPointer, Forest, ReadAhead, RootPointer, Tree};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The most blocks of a log: as many as a kernel that never commits by itself writes in hours.
const BLOCKS_MAX: usize = 1 << 20;

/// A log to be replayed. See the module's documentation.
#[derive(Debug)]
pub struct PendingLog {
    /// The address of the log root tree.
    pub root: Logical,
    /// The pending logs of existing subvolumes.
    pub logs: Vec<(SubvolumeId, Tree)>,
    /// The addresses of all log blocks.
    blocks: HashSet<Logical>,
    /// The data extents that the log refers to.
    data: BTreeMap<Logical, ByteCount>,
    /// The number of items in all pending logs.
    pub items: u64,
    sector_bytes: u32,
}

impl PendingLog {
    /// Reads the pending log of a volume, if there is one.
    ///
    /// # Errors
    /// Fails with [`Error::DamagedLog`] with the place and the cause.
    pub fn read(filesystem: &Filesystem) -> Result<Option<Self>> {
        let root = filesystem.superblock().log_root;
        if root == Logical::MIN {
            return Ok(None);
        }
        let mut log = Self {
            root,
            logs: Vec::new(),
            blocks: HashSet::new(),
            data: BTreeMap::new(),
            items: 0,
            sector_bytes: filesystem.forest().block_format().sector_bytes,
        };
        match log.take_in(filesystem) {
            Ok(()) => Ok(Some(log)),
            Err(cause) => Err(log.damaged(cause)),
        }
    }

    /// Returns the ranges that the log uses, as start and length.
    pub fn ranges(&self, node_bytes: u64) -> Vec<(u64, u64)> {
        let blocks = self.blocks.iter().map(|block| (block.get(), node_bytes));
        let data = self
            .data
            .iter()
            .map(|(start, length)| (start.get(), length.get()));
        blocks.chain(data).collect()
    }

    /// Returns the error of a log that cannot be replayed.
    pub fn damaged(&self, cause: Error) -> Error {
        Error::DamagedLog {
            logical: self.root,
            cause: Box::new(cause),
        }
    }

    fn take_in(&mut self, filesystem: &Filesystem) -> Result<()> {
        let log_root = filesystem.tree(TreeId::TREE_LOG)?;
        let generation = log_root.root().generation;
        let forest = filesystem.forest();
        self.walk(forest, log_root.root())?;
        for item in log_root.range(Key::MIN..=Key::MAX, ReadAhead::None) {
            let item = item?;
            let key = item.key();
            if (key.objectid, key.item_type) != (TreeId::TREE_LOG.object_id(), ItemType::ROOT_ITEM) {
                continue;
            }
            let root = RootItem::parse(&key, item.data(), self.sector_bytes).map_err(broken)?;
            let pointer = RootPointer {
                tree: TreeId::TREE_LOG,
                logical: root.logical,
                generation: root.generation,
                level: root.level,
            };
            if root.generation != generation {
                let what = "the log of a subvolume is of another transaction";
                return Err(Corruption::Log { key, what }.into());
            }
            self.walk(forest, &pointer)?;
            let Some(subvolume) = TreeId::new(key.offset).as_subvolume() else {
                continue;
            };
            if is_there(filesystem, subvolume)? {
                self.logs.push((subvolume, forest.tree(pointer)));
            }
        }
        Ok(())
    }

    /// Reads all blocks of a log tree and inspects their items.
    fn walk(&mut self, forest: &Arc<Forest>, root: &RootPointer) -> Result<()> {
        let mut waiting = vec![BlockPointer::root(root)];
        while let Some(pointer) = waiting.pop() {
            let is_new = self.blocks.insert(pointer.logical);
            if !is_new || self.blocks.len() > BLOCKS_MAX {
                let key = pointer.first_key.unwrap_or(Key::MIN);
                let what = match is_new {
                    true => "it has more blocks than any log",
                    false => "two pointers lead to one block",
                };
                return Err(Corruption::Log { key, what }.into());
            }
            let block = forest.read_block(&pointer)?;
            waiting.extend((0..block.item_count()).filter_map(|slot| pointer.child(&block, slot)));
            self.note_block(&block)?;
        }
        Ok(())
    }

    fn note_block(&mut self, block: &TreeBlock) -> Result<()> {
        if !block.is_leaf() {
            return Ok(());
        }
        for item in block.items() {
            self.items = self.items.saturating_add(1);
            if item.key.item_type == ItemType::EXTENT_DATA {
                self.note_extent(&item)?;
            }
        }
        Ok(())
    }

    fn note_extent(&mut self, item: &Item<'_>) -> Result<()> {
        let extent = FileExtent::parse(&item.key, item.data, self.sector_bytes).map_err(broken)?;
        let Some(slice) = extent.slice().filter(|slice| !slice.is_hole()) else {
            return Ok(());
        };
        let known = self.data.insert(slice.disk, slice.disk_bytes);
        if known.is_some_and(|bytes| bytes != slice.disk_bytes) {
            let what = "two items have extents of different lengths at one address";
            return Err(Corruption::Log { key: item.key, what }.into());
        }
        Ok(())
    }
}

/// Returns whether a subvolume exists and is not being dropped.
fn is_there(filesystem: &Filesystem, subvolume: SubvolumeId) -> Result<bool> {
    match filesystem.root_item(subvolume.tree()) {
        Ok(item) => Ok(item.references > 0),
        Err(Error::TreeNotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the error for an item of the log that cannot be parsed.
pub fn broken(error: buttress_format::ItemError) -> Error {
    let tree = TreeId::TREE_LOG;
    Corruption::Item { tree, error }.into()
}

impl LogSpace<'_> {
    /// Pins the log's blocks until this transaction is durable.
    pub fn keep_blocks(&mut self, log: &PendingLog) -> Result<()> {
        let length = self.running.core.node_bytes().get();
        for block in &log.blocks {
            self.keep_block(block.get(), length, Share::Free)?;
        }
        Ok(())
    }

    /// Pins one log block until this transaction is durable. No committed state that a reader may
    /// hold contains the log block.
    pub fn keep_block(&mut self, start: u64, length: u64, from: Share) -> Result<()> {
        let generation = self.running.core.generation;
        if buttress_faults::on("log-blocks-unpinned") {
            return match from {
                Share::Allocated => self.running.core.groups.give_back(start, length),
                _ => Ok(()),
            };
        }
        // An allocating generation after the freeing generation shows that no reader of an older
        // state needs the block.
        let allocated = Generation::new(generation.get().saturating_add(1));
        self.running
            .core
            .groups
            .shift(start, length, from, Share::Pinned)?;
        self.running.core.pins.add(generation, start, length, allocated);
        Ok(())
    }

    /// Allocates the data extents that only the log refers to. Returns the data extents that the
    /// call allocated.
    pub fn take_data(&mut self, log: &PendingLog) -> Result<BTreeMap<Logical, DataRange>> {
        let mut taken = BTreeMap::new();
        for (logical, length) in &log.data {
            let range = DataRange {
                logical: *logical,
                length: *length,
            };
            if self.running.core.has_data_extent(range)? {
                continue;
            }
            self.running.data_space().take(range)?;
            taken.insert(*logical, range);
        }
        Ok(taken)
    }
}
