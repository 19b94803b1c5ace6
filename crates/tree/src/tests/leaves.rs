//! Tests of walks leaf by leaf: they return the same items as a range, and read no unwanted leaf.

use super::{Image, MODES, Sample, collect, key};
use crate::testing::Random;
use crate::{Leaves, ReadAhead};
use buttress_format::{ByteCount, Key};
use std::ops::Bound;

fn items(mut leaves: Leaves) -> Vec<(Key, Vec<u8>)> {
    let mut items = Vec::new();
    while let Some(leaf) = leaves.next().unwrap() {
        assert!(!leaf.slots.is_empty());
        let before = items.len();
        items.extend(leaf.items().map(|item| (item.key, item.data.to_vec())));
        assert_eq!(items.len() - before, leaf.slots.len());
    }
    items
}

#[test]
fn leaves_return_the_items_of_a_range_in_every_mode() {
    let sample = Image::scattered().open(ByteCount::new(300_000));
    let mut random = Random::new(buttress_oracle::seeds::seed("tree::leaves", "BUTTRESS_SEED", 4));
    let mut ranges = vec![(Bound::Unbounded, Bound::Unbounded)];
    for _ in 0..60 {
        let (one, other) = (random.below(2100), random.below(2100));
        // Some ranges are reversed, and therefore empty.
        let (low, high) = (
            key(one),
            key(if random.below(5) == 0 {
                other
            } else {
                one + other % 300
            }),
        );
        let start = match random.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(low),
            _ => Bound::Excluded(low),
        };
        let end = match random.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(high),
            _ => Bound::Excluded(high),
        };
        ranges.push((start, end));
    }
    for range in ranges {
        for mode in MODES {
            let expected = collect(sample.tree.range(range, mode));
            assert_eq!(
                items(sample.tree.leaves(range, mode)),
                expected,
                "{mode:?} {range:?}"
            );
        }
    }
}

/// Returns the number of blocks read by a walk over the subtrees that `wanted` admits.
fn misses(sample: &Sample, mode: ReadAhead, wanted: fn(&Key, Option<&Key>) -> bool) -> (Vec<Key>, u64) {
    let before = sample.forest().cache_statistics().misses;
    let keys = items(sample.tree.leaves_where(.., mode, wanted));
    let misses = sample.forest().cache_statistics().misses - before;
    (keys.into_iter().map(|(key, _)| key).collect(), misses)
}

#[test]
fn subtrees_that_are_not_wanted_are_not_read() {
    for mode in MODES {
        if matches!(
            mode,
            ReadAhead::Forward | ReadAhead::ForwardOnMiss | ReadAhead::ForwardAlways
        ) {
            // These read-ahead modes drop blocks before they arrive, and read them twice.
            continue;
        }
        // The test's tree has 100 items for each node of level 1, in 20 leaves.
        let sample = || Image::scattered().open(ByteCount::new(16 << 20));
        let (keys, read) = misses(&sample(), mode, |_, _| true);
        assert_eq!((keys.len(), read), (2000, 421), "{mode:?}");
        let (keys, read) = misses(&sample(), mode, |_, _| false);
        assert_eq!((keys.len(), read), (0, 0), "{mode:?}");
        // The unwanted items 510 to 559 fill ten leaves of one node.
        let (keys, read) = misses(&sample(), mode, |first, end| {
            !(*first >= key(510) && end.is_some_and(|end| *end <= key(560)))
        });
        assert_eq!((keys.len(), read), (1950, 411), "{mode:?}");
        assert!(keys.contains(&key(509)) && !keys.contains(&key(510)) && keys.contains(&key(560)));
        // The two wanted parts are far apart, so whole nodes of level 1 are skipped.
        let (keys, read) = misses(&sample(), mode, |first, end| {
            end.is_none_or(|end| *end > key(1900)) || *first < key(100)
        });
        assert_eq!((keys.len(), read), (200, 1 + 2 + 40), "{mode:?}");
        // A later walk finds the leaves that an earlier walk skipped.
        let sample = sample();
        misses(&sample, mode, |first, _| *first < key(1000));
        assert_eq!(items(sample.tree.leaves(.., mode)), sample.pairs(), "{mode:?}");
    }
}

#[test]
fn damaged_leaf_is_one_error_and_the_walk_continues() {
    for mode in MODES {
        let mut image = Image::scattered();
        let bad = image_leaf(&image, 250);
        image.builder.block_mut(bad)[200] ^= 1;
        let sample = image.open(ByteCount::new(1 << 20));
        let mut leaves = sample.tree.leaves(.., mode);
        let (mut count, mut errors) = (0, Vec::new());
        loop {
            match leaves.next() {
                Ok(Some(leaf)) => count += leaf.items().count(),
                Ok(None) => break,
                Err(error) => errors.push(error.pointer().logical),
            }
        }
        assert_eq!((count, errors), (1995, vec![bad]), "{mode:?}");
        assert!(leaves.next().unwrap().is_none());
    }
}

/// Returns the address of the leaf that holds item `number`.
fn image_leaf(image: &Image, number: u64) -> buttress_format::Logical {
    let copy = Image::scattered().open(ByteCount::new(1 << 20));
    assert_eq!(copy.tree.root(), &image.root);
    let mut cursor = copy.tree.cursor(ReadAhead::None);
    cursor.seek(&key(number)).unwrap();
    cursor.current_pointer().unwrap().logical
}
