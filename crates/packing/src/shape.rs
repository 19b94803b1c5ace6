//! The number of a tree's blocks and their levels, before any block is written.
//!
//! [`Shape`] packs as [`Packer`](crate::Packer) does, but only counts.

use crate::pack::BlockFormat;
use buttress_exact::Exact as _;
use buttress_format::Key;
use buttress_format::node::edit::{ITEM_HEAD_BYTES, node_pointers_max};

/// A counter of the blocks of a tree.
#[derive(Clone, Debug)]
pub struct Shape {
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
    /// Makes a counter for blocks of this format.
    #[must_use]
    pub fn new(format: &BlockFormat) -> Self {
        Self {
            leaf_bytes: format.leaf_bytes(),
            pointers: node_pointers_max(format.node_bytes).max(2),
            taken: 0,
            first_key: Key::MIN,
            children: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Returns the levels and first keys of the blocks of these items.
    #[must_use]
    pub fn of_items(format: &BlockFormat, items: &[(Key, Vec<u8>)]) -> Vec<(u8, Key)> {
        let mut shape = Self::new(format);
        for (key, data) in items {
            shape.push(key, data.len());
        }
        shape.finish()
    }

    /// Adds an item with data of this length to the leaf.
    pub fn push(&mut self, key: &Key, length: usize) {
        let needed = length.exact_add(ITEM_HEAD_BYTES);
        if self.taken.exact_add(needed) > self.leaf_bytes && self.taken > 0 {
            self.block(0, self.first_key);
            self.taken = 0;
        }
        if self.taken == 0 {
            self.first_key = *key;
        }
        self.taken = self.taken.exact_add(needed);
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
            self.node(level.exact_add(1));
        }
        if let Some((children, first)) = self.children.get_mut(place) {
            if *children == 0 {
                *first = first_key;
            }
            *children = children.exact_add(1);
        }
    }

    fn node(&mut self, level: u8) {
        let place = usize::from(level).exact_sub(1);
        let first_key = match self.children.get_mut(place) {
            Some((children, first)) => {
                *children = 0;
                *first
            }
            None => Key::MIN,
        };
        self.block(level, first_key);
    }

    /// Returns the levels and first keys of all blocks, in the order in which a packer finishes them.
    #[must_use]
    pub fn finish(mut self) -> Vec<(u8, Key)> {
        if self.taken > 0 || self.children.is_empty() {
            self.block(0, self.first_key);
        }
        let mut level = 1_u8;
        loop {
            let is_top = self.children.len() == usize::from(level);
            match self.children.get(usize::from(level).exact_sub(1)) {
                Some((1, _)) if is_top => return self.blocks,
                Some(_) => self.node(level),
                None => return self.blocks,
            }
            level = level.exact_add(1);
        }
    }
}
