//! Tests of edited trees against maps.

mod costs;
mod errors;
mod fill;
mod model;
mod reading;

use super::EditableTree;
use crate::testing::{ImageOptions, Random, Scratch};
use crate::{Forest, ReadAhead, RootPointer, Tree};
use buttress_format::{ByteCount, ItemType, Key, ObjectId, TreeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NODE_SIZES: [u32; 5] = [4096, 8192, 16384, 32768, 65536];

const TREE: TreeId = TreeId::new(300);

type Items = BTreeMap<Key, Vec<u8>>;

/// Returns the key with this number, in an order that uses all three fields.
fn key(number: u64) -> Key {
    Key::new(
        ObjectId::new(1000 + number / 20),
        ItemType::STRING_ITEM,
        number % 20,
    )
}

fn data(random: &mut Random, length: usize) -> Vec<u8> {
    let byte = random.below(256) as u8;
    (0..length).map(|at| byte.wrapping_add(at as u8)).collect()
}

/// Returns all items of a tree, leaf by leaf.
fn all(tree: &Tree) -> Items {
    let mut found = Items::new();
    let mut leaves = tree.leaves(.., ReadAhead::None);
    while let Some(leaf) = leaves.next().unwrap() {
        found.extend(leaf.items().map(|item| (item.key, item.data.to_vec())));
    }
    found
}

/// Returns the addresses of all blocks of a committed tree. The walk reads each block with every
/// check.
fn addresses(forest: &Arc<Forest>, root: RootPointer) -> BTreeSet<u64> {
    forest
        .tree(root)
        .blocks(ReadAhead::None)
        .map(|visit| visit.unwrap().pointer.logical.get())
        .collect()
}

fn options(node_bytes: u32, chunk_bytes: u64) -> ImageOptions {
    ImageOptions {
        node_bytes,
        chunk_bytes,
        ..ImageOptions::default()
    }
}

fn scratch(node_bytes: u32) -> Scratch {
    Scratch::new(options(node_bytes, 64 << 20), ByteCount::new(2 << 20))
}

/// Returns the root of a tree of the scratch volume after a commit, read from the device.
fn committed_root(tree: &EditableTree) -> RootPointer {
    RootPointer {
        tree: tree.id(),
        logical: tree.root_logical().unwrap(),
        generation: tree.root_generation(),
        level: tree.level(),
    }
}
