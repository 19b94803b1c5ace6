//! Trees packed into blocks in one pass over their items.
//!
//! A [`Packer`] fills leaves to the end in key order. The packer makes a node as soon as all
//! children that fit into the node are known. [`Places`] gives each finished block its address, and
//! [`BlockSink`] receives the sealed block. Memory holds one unfinished block of each level.
//!
//! [`Shape`](crate::Shape) packs in the same way, but only counts.
//!
//! # Left out
//!
//! Children of an earlier generation: all blocks of a packed tree have one generation.

use crate::error::{Error, Result};
use buttress_exact::Exact as _;
use buttress_format::node::edit::{ITEM_HEAD_BYTES, NewBlock, leaf_data_bytes_max, node_pointers_max};
use buttress_format::{ChecksumType, Generation, Key, KeyPointer, Logical, TreeBlock, TreeId, Uuid};

/// The addresses of packed blocks.
pub trait Places {
    /// Returns the address of the next block.
    ///
    /// # Errors
    /// Fails if no address is left.
    fn next(&mut self) -> Result<Logical>;
}

/// The receiver of packed blocks.
pub trait BlockSink {
    /// Receives a sealed block, for the address in its header.
    ///
    /// # Errors
    /// Fails if the block cannot be kept.
    fn put(&mut self, note: &BlockNote, block: &TreeBlock) -> Result<()>;
}

/// The properties of a finished block that the extent tree needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNote {
    /// The tree.
    pub owner: TreeId,
    /// The level; leaves have level 0.
    pub level: u8,
    /// The key of the first item or pointer.
    pub first_key: Key,
}

/// The root of a finished tree.
#[derive(Clone, Copy, Debug)]
pub struct PackedRoot {
    /// The tree.
    pub id: TreeId,
    /// The generation of all blocks.
    pub generation: Generation,
    /// The address of the root block.
    pub logical: Logical,
    /// The level of the root block.
    pub level: u8,
    /// The number of blocks.
    pub blocks: u64,
}

/// The header fields that all blocks share.
#[derive(Clone, Copy, Debug)]
pub struct BlockFormat {
    /// The uuid that tree blocks carry.
    pub fsid: Uuid,
    /// The uuid of the chunk tree.
    pub chunk_tree_uuid: Uuid,
    /// The size of a block in bytes.
    pub node_bytes: u32,
    /// The checksum type.
    pub checksum: ChecksumType,
    /// The generation of all blocks.
    pub generation: Generation,
}

impl BlockFormat {
    /// Returns the space of a leaf for items with their heads.
    pub(crate) fn leaf_bytes(&self) -> usize {
        leaf_data_bytes_max(self.node_bytes).exact_add(ITEM_HEAD_BYTES)
    }

    /// Seals one block and passes it to the sink.
    fn emit<O: Places + BlockSink>(
        &self,
        out: &mut O,
        note: BlockNote,
        fill: impl FnOnce(&mut TreeBlock) -> bool,
    ) -> Result<Logical> {
        let logical = out.next()?;
        let new = NewBlock {
            fsid: self.fsid,
            chunk_tree_uuid: self.chunk_tree_uuid,
            logical,
            generation: self.generation,
            owner: note.owner,
            level: note.level,
        };
        let mut block = TreeBlock::new_empty(self.node_bytes, &new);
        if !fill(&mut block) {
            return Err(Error::Defect {
                what: "items that do not fit their block",
            });
        }
        let sealed = block.seal(logical, self.checksum, |_| None);
        out.put(&note, &sealed)?;
        Ok(logical)
    }
}

/// The content of a tree's root block. A snapshot's root is a copy of it.
#[derive(Clone, Debug)]
pub enum Top {
    /// The keys and data lengths of the items, and their data.
    Leaf(Vec<(Key, usize)>, Vec<u8>),
    /// The first keys and the addresses of the children.
    Node(Vec<(Key, Logical)>),
}

impl Top {
    fn first_key(&self) -> Key {
        let first = match self {
            Self::Leaf(heads, _) => heads.first().map(|(key, _)| *key),
            Self::Node(children) => children.first().map(|(key, _)| *key),
        };
        // Clamp: a tree without items has the smallest key.
        first.unwrap_or(Key::MIN)
    }

    /// Returns the items of a leaf.
    pub fn items(&self) -> impl Iterator<Item = (Key, &[u8])> + '_ {
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

    /// Writes a copy of a tree's root block for another tree, which shares all blocks below the
    /// root. Returns the root of the other tree.
    ///
    /// # Errors
    /// Fails if no address is left, or if the block cannot be kept.
    pub fn copy_for<O: Places + BlockSink>(
        &self,
        out: &mut O,
        format: &BlockFormat,
        of: &PackedRoot,
        owner: TreeId,
    ) -> Result<PackedRoot> {
        let note = BlockNote {
            owner,
            level: of.level,
            first_key: self.first_key(),
        };
        let logical = match self {
            Self::Leaf(heads, data) => format.emit(out, note, |block| fill_leaf(block, heads, data))?,
            Self::Node(children) => {
                format.emit(out, note, |block| fill_node(block, children, format.generation))?
            }
        };
        Ok(PackedRoot {
            id: owner,
            logical,
            ..*of
        })
    }
}

/// A tree that is being packed.
#[derive(Debug)]
pub struct Packer {
    owner: TreeId,
    format: BlockFormat,
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

/// Fills an empty node with pointers to children. Returns false if the children do not fit the
/// node.
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
    /// Begins a tree.
    #[must_use]
    pub const fn new(owner: TreeId, format: BlockFormat) -> Self {
        Self {
            owner,
            format,
            heads: Vec::new(),
            data: Vec::new(),
            levels: Vec::new(),
            blocks: 0,
            last: Top::Node(Vec::new()),
        }
    }

    /// Returns the maximum data length of the next item that does not begin a new leaf.
    #[must_use]
    pub fn room(&self) -> usize {
        let taken = self.heads.len().exact_add(1).exact_mul(ITEM_HEAD_BYTES);
        self.format
            .leaf_bytes()
            // Clamp: a full leaf has no space for another item's head.
            .saturating_sub(taken.exact_add(self.data.len()))
    }

    /// Adds the item with the next key.
    ///
    /// # Errors
    /// Fails if no address is left, if a block cannot be kept, or if the data exceeds a leaf.
    pub fn push<O: Places + BlockSink>(&mut self, out: &mut O, key: &Key, data: &[u8]) -> Result<()> {
        if data.len() > self.room() || self.is_full() {
            self.leaf(out)?;
        }
        self.heads.push((*key, data.len()));
        self.data.extend_from_slice(data);
        Ok(())
    }

    /// Returns true if not even an item without data fits.
    fn is_full(&self) -> bool {
        let heads = self.heads.len().exact_add(1).exact_mul(ITEM_HEAD_BYTES);
        heads.exact_add(self.data.len()) > self.format.leaf_bytes()
    }

    fn leaf<O: Places + BlockSink>(&mut self, out: &mut O) -> Result<()> {
        let first_key = self.heads.first().map_or(Key::MIN, |(key, _)| *key);
        let note = BlockNote {
            owner: self.owner,
            level: 0,
            first_key,
        };
        let (heads, data) = (&self.heads, &self.data);
        let logical = self
            .format
            .emit(out, note, |block| fill_leaf(block, heads, data))?;
        // The memory of the previously finished block is reused for this block.
        let (mut heads, mut data) = match core::mem::replace(&mut self.last, Top::Node(Vec::new())) {
            Top::Leaf(heads, data) => (heads, data),
            Top::Node(_) => Default::default(),
        };
        core::mem::swap(&mut self.heads, &mut heads);
        core::mem::swap(&mut self.data, &mut data);
        self.last = Top::Leaf(heads, data);
        self.heads.clear();
        self.data.clear();
        self.child(out, 1, first_key, logical)
    }

    /// Adds a finished block to the node above it.
    fn child<O: Places + BlockSink>(
        &mut self,
        out: &mut O,
        level: u8,
        first_key: Key,
        logical: Logical,
    ) -> Result<()> {
        self.blocks = self.blocks.exact_add(1);
        let place = usize::from(level).exact_sub(1);
        if self.levels.len() <= place {
            self.levels.push(Vec::new());
        }
        let most = node_pointers_max(self.format.node_bytes).max(2);
        // The builder makes a parent node only when a further child exists, so a root has at least
        // two children.
        if self
            .levels
            .get(place)
            .is_some_and(|children| children.len() >= most)
        {
            self.node(out, level)?;
        }
        if let Some(children) = self.levels.get_mut(place) {
            children.push((first_key, logical));
        }
        Ok(())
    }

    fn node<O: Places + BlockSink>(&mut self, out: &mut O, level: u8) -> Result<()> {
        let place = usize::from(level).exact_sub(1);
        let children = self
            .levels
            .get_mut(place)
            .map(core::mem::take)
            // Clamp: a node without children fails in `emit`.
            .unwrap_or_default();
        let first_key = children.first().map_or(Key::MIN, |(key, _)| *key);
        let note = BlockNote {
            owner: self.owner,
            level,
            first_key,
        };
        let generation = self.format.generation;
        let logical = self
            .format
            .emit(out, note, |block| fill_node(block, &children, generation))?;
        self.last = Top::Node(children);
        self.child(out, level.exact_add(1), first_key, logical)
    }

    /// Finishes the tree. Returns the tree's root and the content of the root. A tree without items
    /// is an empty leaf.
    ///
    /// # Errors
    /// Fails if no address is left, or if a block cannot be kept.
    pub fn finish<O: Places + BlockSink>(mut self, out: &mut O) -> Result<(PackedRoot, Top)> {
        if !self.heads.is_empty() || self.levels.is_empty() {
            self.leaf(out)?;
        }
        let mut level = 1_u8;
        loop {
            let place = usize::from(level).exact_sub(1);
            let is_top = self.levels.len() == usize::from(level);
            match self.levels.get(place).map(Vec::as_slice) {
                Some([(_, logical)]) if is_top => {
                    let root = PackedRoot {
                        id: self.owner,
                        generation: self.format.generation,
                        logical: *logical,
                        level: level.exact_sub(1),
                        blocks: self.blocks,
                    };
                    return Ok((root, self.last));
                }
                Some(_) => self.node(out, level)?,
                None => {
                    return Err(Error::Defect {
                        what: "a tree without a root",
                    });
                }
            }
            level = level.exact_add(1);
        }
    }
}

#[cfg(test)]
mod tests;
