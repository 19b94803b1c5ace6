//! Trees packed into blocks in one pass over their items.
//!
//! A [`Packer`] fills leaves to the end in key order. The packer makes a node as soon as all
//! children that fit are known. Each finished block takes the next address and goes to the
//! [`BlockLog`]. The blocks of one tree are adjacent, at addresses that belong to metadata alone.
//! The builder places the blocks on devices when all blocks exist.
//!
//! [`Shape`] packs in the same way, but only counts. `Shape` predicts the number of a tree's blocks
//! and their levels before any block is written.

use crate::error::{Error, Result};
use crate::layout::GENERATION;
use crate::spool::{Spool, SpoolFolder, Spooled};
use buttress_exact::Exact as _;
use buttress_format::node::edit::{ITEM_HEAD_BYTES, NewBlock, leaf_data_bytes_max, node_pointers_max};
use buttress_format::{
    ByteCount, ChecksumType, Generation, Key, KeyPointer, Logical, TreeBlock, TreeId, Uuid,
};
use buttress_mkfs::parts::TreeRoot;
use std::collections::BTreeMap;

/// The properties of a finished block that the extent tree needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockNote {
    pub(crate) owner: TreeId,
    pub(crate) level: u8,
    pub(crate) first_key: Key,
}

/// The root of a finished tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) id: TreeId,
    pub(crate) logical: Logical,
    pub(crate) level: u8,
    pub(crate) blocks: u64,
}

impl Root {
    /// Returns the tree in the form of the items that lead to it.
    pub(crate) const fn tree(&self) -> TreeRoot {
        TreeRoot {
            id: self.id,
            generation: GENERATION,
            logical: self.logical,
            level: self.level,
            blocks: self.blocks,
        }
    }
}

/// The content of a tree's root block. A snapshot's root is a copy of it.
#[derive(Clone, Debug)]
pub(crate) enum Top {
    /// The keys and data lengths of the items, and their data.
    Leaf(Vec<(Key, usize)>, Vec<u8>),
    Node(Vec<(Key, Logical)>),
}

impl Top {
    fn first_key(&self) -> Key {
        let first = match self {
            Self::Leaf(heads, _) => heads.first().map(|(key, _)| *key),
            Self::Node(children) => children.first().map(|(key, _)| *key),
        };
        first.unwrap_or(Key::MIN)
    }

    /// Returns the items of a leaf.
    pub(crate) fn items(&self) -> impl Iterator<Item = (Key, &[u8])> + '_ {
        let (heads, mut rest) = match self {
            Self::Leaf(heads, data) => (heads.as_slice(), data.as_slice()),
            Self::Node(_) => (&[][..], &[][..]),
        };
        heads.iter().map_while(move |(key, length)| {
            let (item, after) = rest.split_at_checked(*length)?;
            rest = after;
            Some((*key, item))
        })
    }
}

/// The header fields that all blocks share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockFormat {
    pub(crate) fsid: Uuid,
    pub(crate) chunk_tree_uuid: Uuid,
    pub(crate) node_bytes: u32,
    pub(crate) checksum: ChecksumType,
    pub(crate) generation: Generation,
}

impl BlockFormat {
    /// Returns the space of a leaf for items with their heads.
    fn leaf_bytes(&self) -> usize {
        leaf_data_bytes_max(self.node_bytes).saturating_add(ITEM_HEAD_BYTES)
    }
}

/// The properties of finished blocks at consecutive addresses.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    base: Logical,
    node_bytes: u32,
    notes: Vec<BlockNote>,
    /// The other trees that refer to a shared block, by the block's number.
    shared: BTreeMap<usize, Vec<TreeId>>,
}

impl Listing {
    pub(crate) fn notes(&self) -> &[BlockNote] {
        &self.notes
    }

    /// Returns the address of a block by its number.
    pub(crate) fn address(&self, number: usize) -> Logical {
        let offset = (number as u64).saturating_mul(u64::from(self.node_bytes));
        self.base.saturating_add(ByteCount::new(offset))
    }

    /// Returns the trees, besides its owner, that refer to a block directly.
    pub(crate) fn shared_with(&self, number: usize) -> &[TreeId] {
        self.shared.get(&number).map_or(&[], Vec::as_slice)
    }
}

/// Finished blocks at consecutive addresses.
#[derive(Debug)]
pub(crate) struct BlockLog {
    pub(crate) format: BlockFormat,
    listing: Listing,
    blocks: Spool,
}

impl BlockLog {
    pub(crate) fn new(format: BlockFormat, base: Logical, folder: &SpoolFolder, memory: usize) -> Self {
        Self {
            format,
            listing: Listing {
                base,
                node_bytes: format.node_bytes,
                notes: Vec::new(),
                shared: BTreeMap::new(),
            },
            blocks: Spool::new(folder.clone(), memory),
        }
    }

    pub(crate) const fn listing(&self) -> &Listing {
        &self.listing
    }

    pub(crate) fn notes(&self) -> &[BlockNote] {
        &self.listing.notes
    }

    pub(crate) const fn base(&self) -> Logical {
        self.listing.base
    }

    /// Returns the address of a block by its number.
    #[cfg(test)]
    pub(crate) fn address(&self, number: usize) -> Logical {
        self.listing.address(number)
    }

    /// Writes a copy of a root for a tree that shares all blocks below it.
    pub(crate) fn copy_root(&mut self, of: &Root, top: &Top, owner: TreeId) -> Result<Root> {
        let note = BlockNote {
            owner,
            level: of.level,
            first_key: top.first_key(),
        };
        let logical = match top {
            Top::Leaf(heads, data) => self.push(note, |block| fill_leaf(block, heads, data))?,
            Top::Node(children) => {
                for (_, child) in children {
                    let offset = child.checked_distance_from(self.listing.base).unwrap_or_default();
                    let number = offset.get().checked_div(u64::from(self.format.node_bytes));
                    let number = number.unwrap_or(0).narrow::<usize>();
                    self.listing.shared.entry(number).or_default().push(owner);
                }
                let generation = self.format.generation;
                self.push(note, |block| fill_node(block, children, generation))?
            }
        };
        Ok(Root {
            id: owner,
            logical,
            ..*of
        })
    }

    fn push(&mut self, note: BlockNote, fill: impl FnOnce(&mut TreeBlock) -> bool) -> Result<Logical> {
        let logical = self.listing.address(self.listing.notes.len());
        let format = &self.format;
        let new = NewBlock {
            fsid: format.fsid,
            chunk_tree_uuid: format.chunk_tree_uuid,
            logical,
            generation: format.generation,
            owner: note.owner,
            level: note.level,
        };
        let mut block = TreeBlock::new_empty(format.node_bytes, &new);
        if !fill(&mut block) {
            return Err(Error::Defect {
                what: "items that do not fit their block",
            });
        }
        let sealed = block.seal(logical, format.checksum, |_| None);
        self.blocks.append(sealed.bytes())?;
        self.listing.notes.push(note);
        Ok(logical)
    }

    /// Returns all blocks for writing.
    pub(crate) fn finish(self) -> Spooled {
        self.blocks.finish()
    }
}

/// A tree that is being packed.
#[derive(Debug)]
pub(crate) struct Packer {
    owner: TreeId,
    heads: Vec<(Key, usize)>,
    data: Vec<u8>,
    /// For each level above the leaves, the children of the unfinished node.
    levels: Vec<Vec<(Key, Logical)>>,
    blocks: u64,
    /// The content of the last finished block.
    last: Top,
}

/// Fills an empty leaf. Returns false if the items do not fit the leaf.
fn fill_leaf(block: &mut TreeBlock, heads: &[(Key, usize)], data: &[u8]) -> bool {
    block.edit_leaf(|leaf| {
        let mut rest = data;
        heads.iter().enumerate().all(|(slot, (key, length))| {
            let Some((item, after)) = rest.split_at_checked(*length) else {
                return false;
            };
            rest = after;
            leaf.insert(slot, key, *length).is_some_and(|place| {
                place.copy_from_slice(item);
                true
            })
        })
    })
}

/// Fills an empty node with pointers to children. Returns false if the children do not fit.
fn fill_node(block: &mut TreeBlock, children: &[(Key, Logical)], generation: Generation) -> bool {
    block.edit_node(|node| {
        children.iter().enumerate().all(|(slot, (key, logical))| {
            let pointer = KeyPointer {
                key: *key,
                logical: *logical,
                generation,
            };
            node.insert(slot, &pointer)
        })
    })
}

impl Packer {
    pub(crate) const fn new(owner: TreeId) -> Self {
        Self {
            owner,
            heads: Vec::new(),
            data: Vec::new(),
            levels: Vec::new(),
            blocks: 0,
            last: Top::Node(Vec::new()),
        }
    }

    /// Returns the maximum data length of the next item that does not begin a new leaf.
    pub(crate) fn room(&self, log: &BlockLog) -> usize {
        let taken = self.heads.len().saturating_add(1).saturating_mul(ITEM_HEAD_BYTES);
        log.format
            .leaf_bytes()
            .saturating_sub(taken.saturating_add(self.data.len()))
    }

    /// Adds the item with the next key.
    pub(crate) fn push(&mut self, log: &mut BlockLog, key: &Key, data: &[u8]) -> Result<()> {
        if data.len() > self.room(log) || self.is_full(log) {
            self.leaf(log)?;
        }
        self.heads.push((*key, data.len()));
        self.data.extend_from_slice(data);
        Ok(())
    }

    /// Returns true if not even an item without data fits.
    fn is_full(&self, log: &BlockLog) -> bool {
        let heads = self.heads.len().saturating_add(1).saturating_mul(ITEM_HEAD_BYTES);
        heads.saturating_add(self.data.len()) > log.format.leaf_bytes()
    }

    fn leaf(&mut self, log: &mut BlockLog) -> Result<()> {
        let first_key = self.heads.first().map_or(Key::MIN, |(key, _)| *key);
        let note = BlockNote {
            owner: self.owner,
            level: 0,
            first_key,
        };
        let (heads, data) = (&self.heads, &self.data);
        let logical = log.push(note, |block| fill_leaf(block, heads, data))?;
        // The memory of the previously finished block is reused.
        let (mut heads, mut data) = match core::mem::replace(&mut self.last, Top::Node(Vec::new())) {
            Top::Leaf(heads, data) => (heads, data),
            Top::Node(_) => Default::default(),
        };
        core::mem::swap(&mut self.heads, &mut heads);
        core::mem::swap(&mut self.data, &mut data);
        self.last = Top::Leaf(heads, data);
        self.heads.clear();
        self.data.clear();
        self.child(log, 1, first_key, logical)
    }

    /// Adds a finished block to the node above it.
    fn child(&mut self, log: &mut BlockLog, level: u8, first_key: Key, logical: Logical) -> Result<()> {
        self.blocks = self.blocks.saturating_add(1);
        let place = usize::from(level).saturating_sub(1);
        if self.levels.len() <= place {
            self.levels.push(Vec::new());
        }
        let most = node_pointers_max(log.format.node_bytes).max(2);
        // The builder makes a parent node only when a further child exists, so a root has at least
        // two children.
        if self
            .levels
            .get(place)
            .is_some_and(|children| children.len() >= most)
        {
            self.node(log, level)?;
        }
        if let Some(children) = self.levels.get_mut(place) {
            children.push((first_key, logical));
        }
        Ok(())
    }

    fn node(&mut self, log: &mut BlockLog, level: u8) -> Result<()> {
        let place = usize::from(level).saturating_sub(1);
        let children = self
            .levels
            .get_mut(place)
            .map(core::mem::take)
            .unwrap_or_default();
        let first_key = children.first().map_or(Key::MIN, |(key, _)| *key);
        let note = BlockNote {
            owner: self.owner,
            level,
            first_key,
        };
        let generation = log.format.generation;
        let logical = log.push(note, |block| fill_node(block, &children, generation))?;
        self.last = Top::Node(children);
        self.child(log, level.saturating_add(1), first_key, logical)
    }

    /// Finishes the tree. Returns the tree's root and the content of the root. A tree without items
    /// is an empty leaf.
    pub(crate) fn finish(mut self, log: &mut BlockLog) -> Result<(Root, Top)> {
        if !self.heads.is_empty() || self.levels.is_empty() {
            self.leaf(log)?;
        }
        let mut level = 1_u8;
        loop {
            let place = usize::from(level).saturating_sub(1);
            let is_top = self.levels.len() == usize::from(level);
            match self.levels.get(place).map(Vec::as_slice) {
                Some([(_, logical)]) if is_top => {
                    let root = Root {
                        id: self.owner,
                        logical: *logical,
                        level: level.saturating_sub(1),
                        blocks: self.blocks,
                    };
                    return Ok((root, self.last));
                }
                Some(_) => self.node(log, level)?,
                None => {
                    return Err(Error::Defect {
                        what: "a tree without a root",
                    });
                }
            }
            level = level.saturating_add(1);
        }
    }
}

/// A counter of the blocks of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    leaf_bytes: usize,
    pointers: usize,
    taken: usize,
    first_key: Key,
    /// For each level above the leaves, the number of children and the first key of the unfinished
    /// node.
    children: Vec<(usize, Key)>,
    /// The levels and first keys of blocks, in the order in which they are finished.
    blocks: Vec<(u8, Key)>,
}

impl Shape {
    pub(crate) fn new(format: &BlockFormat) -> Self {
        Self {
            leaf_bytes: format.leaf_bytes(),
            pointers: node_pointers_max(format.node_bytes).max(2),
            taken: 0,
            first_key: Key::MIN,
            children: Vec::new(),
            blocks: Vec::new(),
        }
    }

    pub(crate) fn of_items(format: &BlockFormat, items: &[(Key, Vec<u8>)]) -> Vec<(u8, Key)> {
        let mut shape = Self::new(format);
        for (key, data) in items {
            shape.push(key, data.len());
        }
        shape.finish()
    }

    /// Adds an item with data of this length.
    pub(crate) fn push(&mut self, key: &Key, length: usize) {
        let needed = length.saturating_add(ITEM_HEAD_BYTES);
        if self.taken.saturating_add(needed) > self.leaf_bytes && self.taken > 0 {
            self.block(0, self.first_key);
            self.taken = 0;
        }
        if self.taken == 0 {
            self.first_key = *key;
        }
        self.taken = self.taken.saturating_add(needed);
    }

    fn block(&mut self, level: u8, first_key: Key) {
        self.blocks.push((level, first_key));
        let place = usize::from(level);
        if self.children.len() <= place {
            self.children.push((0, Key::MIN));
        }
        if self
            .children
            .get(place)
            .is_some_and(|(children, _)| *children >= self.pointers)
        {
            self.node(level.saturating_add(1));
        }
        if let Some((children, first)) = self.children.get_mut(place) {
            if *children == 0 {
                *first = first_key;
            }
            *children = children.saturating_add(1);
        }
    }

    fn node(&mut self, level: u8) {
        let place = usize::from(level).saturating_sub(1);
        let first_key = match self.children.get_mut(place) {
            Some((children, first)) => {
                *children = 0;
                *first
            }
            None => Key::MIN,
        };
        self.block(level, first_key);
    }

    pub(crate) fn finish(mut self) -> Vec<(u8, Key)> {
        if self.taken > 0 || self.children.is_empty() {
            self.block(0, self.first_key);
        }
        let mut level = 1_u8;
        loop {
            let is_top = self.children.len() == usize::from(level);
            match self.children.get(usize::from(level).saturating_sub(1)) {
                Some((1, _)) if is_top => return self.blocks,
                Some(_) => self.node(level),
                None => return self.blocks,
            }
            level = level.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{ItemType, ObjectId};

    /// The counted blocks equal the packed blocks, for trees of one, two and three levels.
    #[test]
    fn shapes_are_those_of_packed_trees() {
        let format = BlockFormat {
            fsid: Uuid::nil(),
            chunk_tree_uuid: Uuid::nil(),
            node_bytes: 4096,
            checksum: ChecksumType::Crc32c,
            generation: Generation::new(8),
        };
        let folder = SpoolFolder::new(None);
        // A node of 4 KiB has 121 pointers, and a leaf holds three items of 1000 bytes.
        for items in [0, 1, 3, 4, 360, 363, 364, 366, 121 * 121 * 3, 121 * 121 * 3 + 1] {
            let mut log = BlockLog::new(format, Logical::new(1 << 30), &folder, 1 << 20);
            let mut packer = Packer::new(TreeId::FS);
            let mut shape = Shape::new(&format);
            let data = vec![7; 1000];
            for number in 0..items {
                let key = Key::new(ObjectId::new(256 + number), ItemType::INODE_ITEM, 0);
                packer.push(&mut log, &key, &data).unwrap();
                shape.push(&key, data.len());
            }
            let (root, _) = packer.finish(&mut log).unwrap();
            let notes = log.notes().iter();
            let levels: Vec<_> = notes.map(|note| (note.level, note.first_key)).collect();
            assert!(shape.finish() == levels, "{items} items");
            assert_eq!(root.blocks, levels.len() as u64);
            assert_eq!(root.level, levels.last().unwrap().0);
            assert_eq!(root.logical, log.address(levels.len() - 1));
        }
    }
}
