//! Tests of the crate as a whole: generated trees, read in every mode.

mod budget;
mod cached;
mod changes;
mod corruption;
mod faulted_in;
mod leaves;
mod model;
mod near;
mod random_damage;
mod simulated;
mod sweeps;
mod threads;

use crate::testing::{ImageBuilder, ImageOptions, Placement, Random, TreeShape};
use crate::{Forest, ReadAhead, RootPointer, Tree};
use buttress_device::Device;
use buttress_format::{ByteCount, ItemType, Key, ObjectId, TreeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tested read-ahead modes: every mode, and sweeps with windows from one block to more than the
/// whole tree.
const MODES: [ReadAhead; 8] = [
    ReadAhead::None,
    ReadAhead::Backward,
    ReadAhead::Forward,
    ReadAhead::ForwardOnMiss,
    ReadAhead::ForwardAlways,
    ReadAhead::Sweep {
        window_bytes: ByteCount::ZERO,
    },
    ReadAhead::Sweep {
        window_bytes: ByteCount::new(40_000),
    },
    ReadAhead::sweep(),
];

const TREE: TreeId = TreeId::new(300);

/// Returns the key with this number, in an order that uses all three fields.
fn key(number: u64) -> Key {
    Key::new(
        ObjectId::new(1000 + number / 20),
        ItemType::STRING_ITEM,
        number % 20,
    )
}

/// Returns items with random keys below `key_bound` and small random data.
fn random_items(seed: u64, count: usize, key_bound: u64) -> BTreeMap<Key, Vec<u8>> {
    let mut random = Random::new(seed);
    (0..count)
        .map(|_| {
            let number = random.below(key_bound);
            let length = random.below(60) as usize;
            (
                key(number),
                (0..length).map(|_| random.below(256) as u8).collect(),
            )
        })
        .collect()
}

/// A tree in an image that is not opened yet.
struct Image {
    builder: ImageBuilder,
    root: RootPointer,
    items: BTreeMap<Key, Vec<u8>>,
}

impl Image {
    fn new(options: ImageOptions, shape: TreeShape, items: BTreeMap<Key, Vec<u8>>) -> Self {
        let mut builder = ImageBuilder::new(options);
        let list: Vec<_> = items.iter().map(|(key, data)| (*key, data.clone())).collect();
        let root = builder.tree(TREE, &list, shape);
        Self { builder, root, items }
    }

    /// Returns a tree of three levels with scattered blocks: 400 leaves, 20 nodes, one root.
    fn scattered() -> Self {
        let items = (0..2000)
            .map(|number| (key(number), vec![number as u8; 10]))
            .collect();
        let options = ImageOptions {
            placement: Placement::Scattered { seed: 1 },
            ..ImageOptions::default()
        };
        Self::new(
            options,
            TreeShape {
                items_per_leaf: 5,
                children_per_node: 20,
            },
            items,
        )
    }

    fn open(self, cache_budget: ByteCount) -> Sample {
        let volume = self.builder.open(&self.root, Device::memory);
        let forest = Forest::new(volume, cache_budget);
        Sample {
            tree: forest.tree(self.root),
            items: self.items,
        }
    }
}

/// An opened test tree and its items.
struct Sample {
    tree: Tree,
    items: BTreeMap<Key, Vec<u8>>,
}

impl Sample {
    fn forest(&self) -> &Arc<Forest> {
        self.tree.forest()
    }

    fn pairs(&self) -> Vec<(Key, Vec<u8>)> {
        self.items
            .iter()
            .map(|(key, data)| (*key, data.clone()))
            .collect()
    }
}

fn collect(items: crate::Items) -> Vec<(Key, Vec<u8>)> {
    items
        .map(|item| item.map(|item| (item.key(), item.data().to_vec())))
        .collect::<crate::Result<_>>()
        .unwrap()
}
