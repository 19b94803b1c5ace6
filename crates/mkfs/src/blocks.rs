//! Packing of items into leaves, and of leaves into nodes.
//!
//! A tree is packed level by level: leaves are filled to the end in the order of their items, then
//! the nodes above them, until one block is left. The shape of a packed tree is the number of
//! blocks, their levels and first keys. The shape is known before the blocks have addresses.

use super::items::Item;
use super::trees::Tree;
use buttress_format::node::KeyPointer;
use buttress_format::node::edit::{ITEM_HEAD_BYTES, NewBlock, leaf_data_bytes_max, node_pointers_max};
use buttress_format::{ChecksumType, Key, TreeBlock};
use std::ops::Range;

/// The shape of a planned block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) level: u8,
    /// The block's first key, or the smallest key for an empty leaf.
    pub(super) first_key: Key,
    /// The indexes of a leaf's items, or of a node's children among the blocks of its tree.
    pub(super) children: Range<usize>,
}

/// Returns the blocks into which these items of a tree pack, leaves first and the root last.
pub(super) fn shapes(items: &[Item], node_bytes: u32) -> Vec<Shape> {
    let mut shapes = leaves(items, node_bytes);
    let mut level = 0..shapes.len();
    while level.len() > 1 {
        let start = shapes.len();
        let per_node = node_pointers_max(node_bytes).max(2);
        let height = shapes.last().map_or(0, |shape| shape.level).saturating_add(1);
        let firsts = level.clone().step_by(per_node);
        let nodes: Vec<Shape> = firsts
            .map(|first| Shape {
                level: height,
                first_key: shapes.get(first).map_or(Key::MIN, |child| child.first_key),
                children: first..first.saturating_add(per_node).min(level.end),
            })
            .collect();
        shapes.extend(nodes);
        level = start..shapes.len();
    }
    shapes
}

fn leaves(items: &[Item], node_bytes: u32) -> Vec<Shape> {
    let room = leaf_data_bytes_max(node_bytes);
    let mut leaves = Vec::new();
    let (mut start, mut used) = (0, 0_usize);
    let leaf = |children: Range<usize>| Shape {
        level: 0,
        first_key: items.get(children.start).map_or(Key::MIN, |(key, _)| *key),
        children,
    };
    for (number, (_, data)) in items.iter().enumerate() {
        let needed = ITEM_HEAD_BYTES.saturating_add(data.len());
        if used.saturating_add(needed) > room && number > start {
            leaves.push(leaf(start..number));
            (start, used) = (number, 0);
        }
        used = used.saturating_add(needed);
    }
    leaves.push(leaf(start..items.len()));
    leaves
}

/// Makes a block of a tree. `new` is its header, with its address. Returns `None` if an item does
/// not fit a block, which never happens in mkfs.
pub(super) fn build(
    shape: &Shape,
    new: &NewBlock,
    node_bytes: u32,
    tree: &Tree,
    checksum: ChecksumType,
) -> Option<TreeBlock> {
    let mut block = TreeBlock::new_empty(node_bytes, new);
    let children = shape.children.clone();
    if shape.level == 0 {
        let items = tree.items.get(children)?;
        block.edit_leaf(|leaf| {
            for (slot, (key, data)) in items.iter().enumerate() {
                leaf.insert(slot, key, data.len())?.copy_from_slice(data);
            }
            Some(())
        })?;
    } else {
        let addresses = tree.addresses.get(children.clone())?;
        let mut below = tree.shapes.get(children)?.iter().zip(addresses);
        let filled = block.edit_node(|node| {
            below.by_ref().enumerate().all(|(slot, (child, logical))| {
                node.insert(
                    slot,
                    &KeyPointer {
                        key: child.first_key,
                        logical: *logical,
                        generation: new.generation,
                    },
                )
            })
        });
        filled.then_some(())?;
    }
    Some(block.seal(new.logical, checksum, |_| None))
}
