//! Tests of random damage: readers never panic, always reach the end, and return the same outcome
//! in every mode.

use super::corruption::walk;
use super::{Image, MODES, key};
use crate::testing::{CHUNK_LOGICAL, ImageOptions, Random, TreeShape};
use buttress_format::{ByteCount, Logical};
use std::collections::BTreeMap;

/// The test flips a byte of a block, with and without correcting the checksum. Readers never panic
/// and always reach the end.
#[test]
fn random_damage_is_survived_in_every_mode() {
    let mut random = Random::new(buttress_oracle::seeds::seed(
        "tree::random_damage",
        "BUTTRESS_SEED",
        11,
    ));
    for round in 0..300 {
        let items: BTreeMap<_, _> = (0..200).map(|number| (key(number), vec![3; 20])).collect();
        let shape = TreeShape {
            items_per_leaf: 8,
            children_per_node: 3,
        };
        let mut image = Image::new(ImageOptions::default(), shape, items);
        for _ in 0..=random.below(4) {
            let block = CHUNK_LOGICAL.get() + random.below(36) * 4096;
            let place = if random.below(2) == 0 {
                random.below(260)
            } else {
                random.below(4096)
            } as usize;
            let flip = 1 << random.below(8);
            if random.below(4) == 0 {
                image.builder.block_mut(Logical::new(block))[place] ^= flip;
            } else {
                image
                    .builder
                    .edit(Logical::new(block), |bytes| bytes[place] ^= flip);
            }
        }
        let sample = image.open(ByteCount::new(1 << 20));
        let mut outcomes = Vec::new();
        for mode in MODES {
            let items: Vec<_> = sample
                .tree
                .range(.., mode)
                .take(1000)
                .map(|item| item.map(|item| item.key()).map_err(|error| error.to_string()))
                .collect();
            assert!(items.len() < 1000);
            outcomes.push((items, walk(&sample.tree, mode).0));
        }
        assert!(
            outcomes.windows(2).all(|pair| pair[0] == pair[1]),
            "round {round}"
        );
    }
}
