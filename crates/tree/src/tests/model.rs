//! Tests of cursors and ranges against a `BTreeMap`, over random trees, in every mode of
//! read-ahead.

use super::{Image, MODES, Sample, collect, key, random_items};
use crate::testing::{ImageOptions, Placement, Random, TreeShape};
use crate::{Cursor, ReadAhead};
use buttress_format::{ByteCount, Key};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;

type Items = BTreeMap<Key, Vec<u8>>;

/// The expected position of a cursor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Before,
    At(Key),
    After,
}

impl Place {
    fn next(self, items: &Items) -> Self {
        let next = match self {
            Self::Before => items.keys().next(),
            Self::At(key) => items
                .range((Bound::Excluded(key), Bound::Unbounded))
                .next()
                .map(|(key, _)| key),
            Self::After => None,
        };
        next.map_or(Self::After, |key| Self::At(*key))
    }

    fn previous(self, items: &Items) -> Self {
        let previous = match self {
            Self::Before => None,
            Self::At(key) => items.range(..key).next_back().map(|(key, _)| key),
            Self::After => items.keys().next_back(),
        };
        previous.map_or(Self::Before, |key| Self::At(*key))
    }
}

fn check(cursor: &Cursor, place: Place, items: &Items, what: &str) {
    let expected = match place {
        Place::At(key) => Some((key, items[&key].as_slice())),
        Place::Before | Place::After => None,
    };
    assert_eq!(
        cursor.current().map(|item| (item.key, item.data)),
        expected,
        "{what}"
    );
    assert_eq!(cursor.key(), expected.map(|(key, _)| key), "{what}");
    let owned = cursor.owned();
    assert_eq!(
        owned.as_ref().map(|item| (item.key(), item.data())),
        expected,
        "{what}"
    );
}

/// Performs random seeks and steps on a cursor and on the model.
fn drive(sample: &Sample, mode: ReadAhead, seed: u64, key_bound: u64) {
    let items = &sample.items;
    let mut cursor = sample.tree.cursor(mode);
    let mut random = Random::new(seed);
    let mut place = Place::Before;
    for step in 0..300 {
        let target = key(random.below(key_bound + 2));
        let what = match random.below(12) {
            0 => {
                let found = cursor.seek(&target).unwrap();
                assert_eq!(found, items.contains_key(&target));
                place = items
                    .range(target..)
                    .next()
                    .map_or(Place::After, |(key, _)| Place::At(*key));
                "seek"
            }
            1 => {
                let found = cursor.seek_at_or_before(&target).unwrap();
                assert_eq!(found, items.contains_key(&target));
                place = items
                    .range(..=target)
                    .next_back()
                    .map_or(Place::Before, |(key, _)| Place::At(*key));
                "seek_at_or_before"
            }
            2 if random.below(4) == 0 => {
                cursor.seek_first().unwrap();
                place = Place::Before.next(items);
                "seek_first"
            }
            3 if random.below(4) == 0 => {
                cursor.seek_last().unwrap();
                place = Place::After.previous(items);
                "seek_last"
            }
            2..=5 => {
                place = place.previous(items);
                assert_eq!(cursor.previous().unwrap(), place != Place::Before);
                "previous"
            }
            _ => {
                place = place.next(items);
                assert_eq!(cursor.next().unwrap(), place != Place::After);
                "next"
            }
        };
        check(
            &cursor,
            place,
            items,
            &format!("{mode:?}, step {step}, {what} {target}"),
        );
    }
}

fn bounds(kind: u8, low: Key, high: Key) -> (Bound<Key>, Bound<Key>) {
    let start = match kind % 3 {
        0 => Bound::Unbounded,
        1 => Bound::Included(low),
        _ => Bound::Excluded(low),
    };
    let end = match kind / 3 % 3 {
        0 => Bound::Unbounded,
        1 => Bound::Included(high),
        _ => Bound::Excluded(high),
    };
    (start, end)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn cursors_and_ranges_agree_with_a_map(
        seed in any::<u64>(),
        count in 0_usize..800,
        items_per_leaf in 1_usize..30,
        children_per_node in 3_usize..12,
        scatter in any::<bool>(),
        cache_bytes in prop_oneof![Just(0_u64), 20_000_u64..200_000, Just(8 << 20)],
        low in 0_u64..1002,
        span in 0_u64..600,
        kind in 0_u8..9,
    ) {
        let key_bound = 1000;
        let items = random_items(seed, count, key_bound);
        let placement = if scatter { Placement::Scattered { seed } } else { Placement::InOrder };
        let options = ImageOptions { placement, ..ImageOptions::default() };
        let shape = TreeShape { items_per_leaf, children_per_node };
        let sample = Image::new(options, shape, items).open(ByteCount::new(cache_bytes));
        let (start, end) = bounds(kind, key(low), key(low + span));
        let expected: Vec<_> = if span == 0 && kind == 8 {
            // A map panics on a range between a key and itself, excluded at both ends. For an empty
            // range between excluded ends, a tree returns no items.
            Vec::new()
        } else {
            sample.items.range((start, end)).map(|(key, data)| (*key, data.clone())).collect()
        };
        for mode in MODES {
            drive(&sample, mode, seed, key_bound);
            prop_assert_eq!(&collect(sample.tree.range((start, end), mode)), &expected, "{:?}", mode);
            prop_assert_eq!(sample.tree.get(&key(low)).unwrap().map(|item| item.data().to_vec()),
                sample.items.get(&key(low)).cloned());
        }
    }
}

/// A root that is a leaf has no neighbours on either side.
#[test]
fn trees_of_no_item_one_leaf_and_two_levels() {
    let seeds = buttress_oracle::seeds::seeds("tree::model", "BUTTRESS_SEED", &Vec::from_iter(0..20));
    for count in [0, 1, 2, 5, 6] {
        let items: Items = (0..count).map(|number| (key(number), vec![1])).collect();
        let shape = TreeShape {
            items_per_leaf: 5,
            children_per_node: 3,
        };
        let sample = Image::new(ImageOptions::default(), shape, items).open(ByteCount::new(1 << 20));
        for mode in MODES {
            for seed in &seeds {
                drive(&sample, mode, *seed, count);
            }
            let mut cursor = sample.tree.cursor(mode);
            assert_eq!(cursor.next_leaf().unwrap(), count > 0);
            assert_eq!(cursor.next_leaf().unwrap(), count > 5);
            assert!(!cursor.next_leaf().unwrap());
            assert_eq!(cursor.previous_leaf().unwrap(), count > 0);
            assert_eq!(cursor.previous_leaf().unwrap(), count > 5);
            assert!(!cursor.previous_leaf().unwrap());
        }
    }
}

#[test]
fn leaves_can_be_walked_alone() {
    let sample = Image::scattered().open(ByteCount::new(1 << 20));
    for mode in MODES {
        let mut cursor = sample.tree.cursor(mode);
        let mut found = Vec::new();
        while cursor.next_leaf().unwrap() {
            let leaf = cursor.current_leaf().unwrap();
            assert_eq!(cursor.current_slot(), Some(0));
            found.extend(leaf.items().map(|item| (item.key, item.data.to_vec())));
        }
        assert_eq!(found, sample.pairs(), "{mode:?}");
        let mut leaves = 0;
        while cursor.previous_leaf().unwrap() {
            leaves += 1;
        }
        assert_eq!(leaves, 400, "{mode:?}");
    }
}

#[test]
fn sequential_walks_and_jumps_forward_agree_in_every_mode() {
    let sample = Image::scattered().open(ByteCount::new(1 << 20));
    let keys: Vec<Key> = sample.items.keys().copied().collect();
    for mode in MODES {
        assert_eq!(collect(sample.tree.range(.., mode)), sample.pairs(), "{mode:?}");
        // The cursor models a job that skips parts of the tree while it sweeps.
        let mut cursor = sample.tree.cursor(mode);
        let mut place = 0;
        let mut random = Random::new(buttress_oracle::seeds::seed(
            "tree::model::jumps",
            "BUTTRESS_SEED",
            3,
        ));
        while let Some(key) = keys.get(place) {
            assert!(cursor.seek(key).unwrap(), "{mode:?} {key}");
            for step in 0..random.below(30) as usize {
                assert_eq!(cursor.key(), keys.get(place + step).copied());
                cursor.next().unwrap();
            }
            place += 30 + random.below(300) as usize;
        }
    }
}
