//! Tests of the differences between two trees against a comparison of two `BTreeMap`s.

use super::{MODES, TREE, key, random_items};
use crate::testing::{ImageBuilder, ImageOptions, Placement, Random, Written};
use crate::{Changes, Forest, ReadAhead, RootPointer, Tree, changes};
use buttress_device::Device;
use buttress_format::{ByteCount, Key, Logical};
use core::ops::Bound;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

type Items = BTreeMap<Key, Vec<u8>>;
type List = Vec<(Key, Vec<u8>)>;
type Difference = (Key, Option<Vec<u8>>, Option<Vec<u8>>);

/// Trees that share every equal leaf and node, as snapshots do. The keys determine where blocks
/// end, so a change moves few bounds.
struct History {
    builder: ImageBuilder,
    leaves: HashMap<List, Written>,
    nodes: HashMap<Vec<Logical>, Written>,
}

impl History {
    fn new(seed: u64) -> Self {
        let options = ImageOptions {
            placement: Placement::Scattered { seed },
            ..ImageOptions::default()
        };
        Self {
            builder: ImageBuilder::new(options),
            leaves: HashMap::new(),
            nodes: HashMap::new(),
        }
    }

    fn tree(&mut self, items: &Items) -> RootPointer {
        let list: List = items.iter().map(|(key, data)| (*key, data.clone())).collect();
        let mut level = Vec::new();
        for leaf in groups(&list, |(key, _)| *key, 6, 0) {
            let written = self.leaves.entry(leaf.to_vec());
            level.push(*written.or_insert_with(|| self.builder.leaf(TREE, leaf)));
        }
        if level.is_empty() {
            level.push(self.builder.leaf(TREE, &[]));
        }
        while level.len() > 1 {
            let mut above = Vec::new();
            for children in groups(&level, |child| child.first_key, 12, level[0].level + 1) {
                let addresses = children.iter().map(|child| child.logical).collect();
                let written = self.nodes.entry(addresses);
                above.push(*written.or_insert_with(|| self.builder.node(TREE, children)));
            }
            level = above;
        }
        level[0].root(TREE)
    }
}

/// Splits a list at places that depend on the keys alone, and after `most` elements.
fn groups<T>(list: &[T], key: impl Fn(&T) -> Key, most: usize, level: u8) -> Vec<&[T]> {
    let mut groups = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let cut = rest.iter().skip(1).position(|item| {
            let key = key(item);
            Random::new(key.objectid.get() * 31 + key.offset + (u64::from(level) << 40)).below(5) == 0
        });
        // A group has at least two elements, so that the number of levels is finite.
        let count = cut
            .map_or(rest.len(), |cut| cut + 1)
            .clamp(2, most)
            .min(rest.len());
        let (group, later) = rest.split_at(count);
        groups.push(group);
        rest = later;
    }
    groups
}

/// Returns the items after some random changes: usually few items, sometimes nearly all.
fn changed(items: &Items, random: &mut Random, key_bound: u64) -> Items {
    let mut items = items.clone();
    if random.below(6) == 0 {
        let keep = random.below(20) as usize;
        items = items.into_iter().take(keep).collect();
    }
    for _ in 0..random.below(30) {
        let key = key(random.below(key_bound));
        if random.below(3) == 0 {
            items.remove(&key);
        } else {
            items.insert(key, vec![random.below(3) as u8; random.below(3) as usize]);
        }
    }
    items
}

fn naive(old: &Items, new: &Items) -> Vec<Difference> {
    let mut keys: Vec<_> = old.keys().chain(new.keys()).copied().collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .map(|key| (key, old.get(&key).cloned(), new.get(&key).cloned()))
        .filter(|(_, old, new)| old != new)
        .collect()
}

fn collect(mut changes: Changes) -> Vec<Difference> {
    let mut differences = Vec::new();
    while let Some(change) = changes.next().unwrap() {
        differences.push((
            change.key,
            change.old.map(<[u8]>::to_vec),
            change.new.map(<[u8]>::to_vec),
        ));
    }
    assert!(changes.next().unwrap().is_none());
    differences
}

#[test]
fn changes_agree_with_a_naive_comparison() {
    let mut behind_count = 0;
    for seed in buttress_oracle::seeds::seeds("tree::changes", "BUTTRESS_SEED", &Vec::from_iter(0..24)) {
        let mut random = Random::new(seed);
        let key_bound = [40, 400, 3000][(seed % 3) as usize];
        let mut history = History::new(seed);
        let mut states = vec![random_items(seed, key_bound as usize / 2, key_bound)];
        for _ in 0..3 {
            states.push(changed(states.last().unwrap(), &mut random, key_bound));
        }
        states.push(Items::new());
        let roots: Vec<_> = states.iter().map(|items| history.tree(items)).collect();
        let image = history.builder.finish(&roots[0], &roots[0]);
        let budget = ByteCount::new([0, 30_000, 200_000, 4 << 20][(seed % 4) as usize]);
        let forest = open(&image, budget);
        let copy = open(&image, budget);
        for (old, old_root) in states.iter().zip(&roots) {
            for (new, new_root) in states.iter().zip(&roots) {
                let expected = naive(old, new);
                for mode in MODES {
                    let across = mode == ReadAhead::None || mode == ReadAhead::sweep();
                    for forest_of_new in [&forest, &copy].into_iter().take(1 + usize::from(across)) {
                        let found = collect(changes(
                            &forest.tree(*old_root),
                            &forest_of_new.tree(*new_root),
                            mode,
                        ));
                        assert_eq!(
                            found, expected,
                            "seed {seed}, {mode:?}, {old_root:?}, {new_root:?}"
                        );
                        assert_eq!(forest.cache_statistics().ahead_bytes, ByteCount::ZERO);
                        let mut walk = changes(&forest.tree(*old_root), &forest_of_new.tree(*new_root), mode);
                        let (found, behind) = with_looks_ahead_and_behind(&mut walk, new, &mut random);
                        assert_eq!(found, expected);
                        behind_count += behind;
                        drop(walk);
                        assert_eq!(forest.cache_statistics().ahead_bytes, ByteCount::ZERO);
                    }
                }
            }
        }
    }
    assert!(
        behind_count > 1000,
        "{behind_count} items behind changes were looked at"
    );
}

/// Walks with occasional read-ahead, and inspects the items after each change that the new tree
/// has. The second returned value is the number of these items.
fn with_looks_ahead_and_behind(
    walk: &mut Changes,
    new: &Items,
    random: &mut Random,
) -> (Vec<Difference>, usize) {
    let mut differences = Vec::new();
    let mut behind_count = 0;
    loop {
        if random.below(4) == 0 {
            walk.look_ahead(ByteCount::new(1 << random.below(24)));
        }
        let Some(change) = walk.next().unwrap() else { break };
        let key = change.key;
        differences.push((
            key,
            change.old.map(<[u8]>::to_vec),
            change.new.map(<[u8]>::to_vec),
        ));
        assert_eq!(change.new.is_some(), change.new_leaf.is_some());
        let (Some(data), Some(leaf)) = (change.new, change.new_leaf) else {
            continue;
        };
        let shared = leaf.shared(data);
        assert_eq!((&shared[..], shared.as_ptr()), (data, data.as_ptr()));
        let elsewhere = data.to_vec();
        assert_eq!(leaf.shared(&elsewhere), elsewhere);
        let mut behind = new.range((Bound::Excluded(key), Bound::Unbounded));
        for item in walk.following() {
            behind_count += 1;
            assert_eq!(
                Some((item.key, item.data)),
                behind.next().map(|(key, data)| (*key, data.as_slice()))
            );
        }
        // The next leaf begins at the end of this leaf.
        assert_eq!(walk.following_end(), behind.next().map(|(key, _)| *key));
    }
    (differences, behind_count)
}

fn open(image: &[u8], budget: ByteCount) -> Arc<Forest> {
    let device = Device::memory(image.to_vec());
    let volume = buttress_volume::Volume::open(vec![device], buttress_volume::OpenOptions::default());
    Forest::new(Arc::new(volume.unwrap()), budget)
}

/// Returns two trees of 3000 items with a few changes, and the number of blocks that only one tree
/// has.
fn few_changes() -> (History, RootPointer, RootPointer, usize) {
    let mut history = History::new(1);
    let old: Items = (0..3000).map(|number| (key(number), vec![1; 8])).collect();
    let mut new = old.clone();
    new.insert(key(700), vec![2; 8]);
    new.insert(key(5000), vec![2; 8]);
    new.remove(&key(2000));
    let old_root = history.tree(&old);
    let before: Vec<Logical> = history.addresses();
    let new_root = history.tree(&new);
    let fresh = history.addresses().len() - before.len();
    (history, old_root, new_root, fresh)
}

impl History {
    fn addresses(&self) -> Vec<Logical> {
        let written = self.leaves.values().chain(self.nodes.values());
        written.map(|written| written.logical).collect()
    }
}

#[test]
fn shared_blocks_are_not_read() {
    for mode in MODES {
        let (history, old, new, fresh) = few_changes();
        assert!(fresh > 8, "the trees have {fresh} blocks of their own");
        let image = history.builder.finish(&old, &old);
        let forest = open(&image, ByteCount::new(16 << 20));
        assert_eq!(
            collect(changes(&forest.tree(old), &forest.tree(new), mode)).len(),
            3
        );
        let read = forest.cache_statistics().misses;
        let most = 2 * fresh as u64 + 4;
        assert!(read <= most, "{mode:?}: {read} blocks read for {fresh} new ones");
        let before = forest.cache_statistics().misses;
        assert_eq!(collect(changes(&forest.tree(old), &forest.tree(old), mode)), []);
        assert_eq!(forest.cache_statistics().misses, before);
        // The comparison with another volume trusts no pointer.
        let other = open(&image, ByteCount::new(16 << 20));
        let all = forest.tree(old).blocks(ReadAhead::None).count() as u64;
        assert_eq!(collect(changes(&forest.tree(old), &other.tree(old), mode)), []);
        assert_eq!(other.cache_statistics().misses, all);
    }
}

#[test]
fn changes_before_a_damaged_block_precede_its_error() {
    let (history, old, new, _) = few_changes();
    let forest = open(&history.builder.finish(&old, &old), ByteCount::new(16 << 20));
    let tree = forest.tree(new);
    for level in [0, 1, 2] {
        // The damaged block covers item 2000, in the middle of the changes.
        let bad = over(&tree, &key(1999), level);
        let (mut history, ..) = few_changes();
        history.builder.block_mut(bad)[300] ^= 1;
        let image = history.builder.finish(&old, &old);
        let mut seen: Option<Vec<Key>> = None;
        for mode in MODES {
            let forest = open(&image, ByteCount::new(100_000));
            let mut walk = changes(&forest.tree(old), &forest.tree(new), mode);
            let mut keys = Vec::new();
            let error = loop {
                match walk.next() {
                    Ok(change) => keys.push(change.expect("an error comes first").key),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.pointer().logical, bad, "{mode:?}, level {level}");
            assert_eq!(walk.next().unwrap_err().pointer().logical, bad);
            assert!(
                keys.contains(&key(700)) && !keys.contains(&key(5000)),
                "{mode:?}, level {level}"
            );
            assert_eq!(
                seen.get_or_insert_with(|| keys.clone()),
                &keys,
                "{mode:?}, level {level}"
            );
        }
    }
}

/// Returns the address of the block of `level` that covers `key`.
fn over(tree: &Tree, key: &Key, level: u8) -> Logical {
    let mut visits = tree.blocks(ReadAhead::None).map(Result::unwrap);
    let visit = visits.find(|visit| visit.pointer.level == level && visit.pointer.covers(key));
    visit.unwrap().pointer.logical
}
