//! Tests of all readers on trees that are partly in memory.

use super::*;
use crate::testing::Placement;
use crate::{BlockOrder, Change, NonBlocking, changes};

const MODES: [ReadAhead; 6] = [
    ReadAhead::None,
    ReadAhead::Backward,
    ReadAhead::Forward,
    ReadAhead::ForwardAlways,
    ReadAhead::Sweep {
        window_bytes: ByteCount::new(40_000),
    },
    ReadAhead::sweep(),
];

/// A committed tree of many scattered leaves, with some changes in memory.
struct Sample {
    scratch: Scratch,
    tree: EditableTree,
    old: Tree,
    before: Items,
    after: Items,
}

fn sample(cache: u64, changed: u64) -> Sample {
    let mut random = Random::new(changed);
    let before: Items = (0..6000)
        .map(|number| (key(number * 2), vec![number as u8; 40]))
        .collect();
    let list: Vec<_> = before.iter().map(|(key, data)| (*key, data.clone())).collect();
    let options = ImageOptions {
        placement: Placement::Scattered { seed: 3 },
        chunk_bytes: 32 << 20,
        ..ImageOptions::default()
    };
    let (mut scratch, root) = Scratch::with_tree(options, ByteCount::new(cache), TREE, &list);
    let old = scratch.forest().tree(root);
    let mut tree = EditableTree::open(&old);
    let mut after = before.clone();
    for _ in 0..changed {
        let place = key(random.below(12_000));
        let bytes = data(&mut random, 50);
        if random.below(3) == 0 {
            tree.remove(&mut scratch.account, &place).unwrap();
            after.remove(&place);
        } else {
            tree.put(&mut scratch.account, &place, &bytes).unwrap();
            after.insert(place, bytes);
        }
    }
    Sample {
        scratch,
        tree,
        old,
        before,
        after,
    }
}

fn samples() -> impl Iterator<Item = Sample> {
    [
        (0, 5),
        (100_000, 40),
        (8 << 20, 40),
        (8 << 20, 4000),
        (8 << 20, 0),
    ]
    .into_iter()
    .map(|(cache, changed)| sample(cache, changed))
}

#[test]
fn cursors_and_ranges_read_what_is_in_memory() {
    for sample in samples() {
        let view = sample.tree.view();
        for mode in MODES {
            let found: Items = view
                .range(.., mode)
                .map(|item| item.map(|item| (item.key(), item.data().to_vec())))
                .collect::<crate::Result<_>>()
                .unwrap();
            assert_eq!(found, sample.after, "{mode:?}");
            let mut leaves = view.leaves(key(3000)..key(9000), mode);
            let mut found = Items::new();
            while let Some(leaf) = leaves.next().unwrap() {
                found.extend(leaf.items().map(|item| (item.key, item.data.to_vec())));
            }
            let expected: Items = sample
                .after
                .range(key(3000)..key(9000))
                .map(|(key, data)| (*key, data.clone()))
                .collect();
            assert_eq!(found, expected, "{mode:?}");
            let mut cursor = view.cursor(mode);
            let mut random = Random::new(buttress_oracle::seeds::seed(
                "tree::edit::reading",
                "BUTTRESS_SEED",
                1,
            ));
            for _ in 0..300 {
                let place = key(random.below(12_100));
                assert_eq!(cursor.seek(&place).unwrap(), sample.after.contains_key(&place));
                assert_eq!(
                    cursor.key().as_ref(),
                    sample.after.range(place..).next().map(|(key, _)| key)
                );
                if cursor.previous().unwrap() {
                    assert_eq!(
                        cursor.key().as_ref(),
                        sample.after.range(..place).next_back().map(|(key, _)| key)
                    );
                }
            }
            // The cursor walks the whole test tree backwards.
            assert!(cursor.seek_last().unwrap());
            let mut count = 1;
            while cursor.previous().unwrap() {
                count += 1;
            }
            assert_eq!(count, sample.after.len());
        }
    }
}

#[test]
fn walks_over_blocks_visit_each_once() {
    for mut sample in samples() {
        let view = sample.tree.view();
        let walks = [
            view.blocks(ReadAhead::None).collect::<Vec<_>>(),
            view.blocks(ReadAhead::sweep()).collect(),
            view.blocks_in(BlockOrder::Breadth, ReadAhead::sweep()).collect(),
            view.blocks_by_address().collect(),
        ];
        let mut counts = Vec::new();
        for walk in walks {
            let mut found = Items::new();
            counts.push(walk.len());
            for visit in walk {
                let visit = visit.unwrap();
                assert_eq!(visit.pointer.logical, visit.block.logical());
                found.extend(visit.block.items().map(|item| (item.key, item.data.to_vec())));
            }
            assert_eq!(found, sample.after);
        }
        drop(view);
        sample.scratch.commit(&mut sample.tree);
        counts.push(addresses(sample.scratch.forest(), committed_root(&sample.tree)).len());
        assert_eq!(counts, [counts[0]; 5]);
    }
}

/// A key, and the bytes of its item before and after the change.
type Difference = (Key, Option<Vec<u8>>, Option<Vec<u8>>);

fn differences(old: &Tree, new: &Tree, mode: ReadAhead) -> Vec<Difference> {
    let mut walk = changes(old, new, mode);
    let mut found = Vec::new();
    while let Some(Change { key, old, new, .. }) = walk.next().unwrap() {
        found.push((key, old.map(<[u8]>::to_vec), new.map(<[u8]>::to_vec)));
    }
    found
}

#[test]
fn changes_find_what_differs_in_memory() {
    for mut sample in samples() {
        let mut expected = Vec::new();
        let keys: BTreeSet<_> = sample.before.keys().chain(sample.after.keys()).copied().collect();
        for key in keys {
            let (old, new) = (sample.before.get(&key), sample.after.get(&key));
            if old != new {
                expected.push((key, old.cloned(), new.cloned()));
            }
        }
        let view = sample.tree.view();
        for mode in MODES {
            assert_eq!(differences(&sample.old, &view, mode), expected, "{mode:?}");
            assert_eq!(differences(&view, &view, mode), []);
        }
        // Both versions of the tree are in memory, and share the unchanged blocks.
        let context = &mut sample.scratch.account;
        sample.tree.put(context, &key(7001), &[1, 2, 3]).unwrap();
        let newer = sample.tree.view();
        let old = sample.after.get(&key(7001)).cloned();
        for mode in MODES {
            let found = differences(&view, &newer, mode);
            assert_eq!(found, [(key(7001), old.clone(), Some(vec![1, 2, 3]))]);
        }
    }
}

/// A view that is held while its tree is committed and edited still reads from memory.
#[test]
fn frozen_trees_are_read_and_changed_before_they_are_written() {
    let mut sample = sample(1 << 20, 300);
    sample.scratch.assign(&mut sample.tree);
    let held = sample.tree.view();
    let frozen = sample.tree.freeze().unwrap().unwrap();
    assert!(sample.tree.freeze().unwrap().is_none());
    let between = sample.tree.view();
    // The test has written nothing to the devices yet. In this test, the next transaction copies
    // the blocks that it changes.
    let mut after = sample.after.clone();
    for number in (0..12_000).step_by(500) {
        sample
            .tree
            .put(&mut sample.scratch.account, &key(number), &[5; 30])
            .unwrap();
        after.insert(key(number), vec![5; 30]);
    }
    assert_eq!(all(&held), sample.after);
    assert_eq!(all(&between), sample.after);
    assert_eq!(all(&sample.tree.view()), after);
    // The test writes the frozen state, regardless of later edits.
    let blocks = frozen.blocks().unwrap();
    let sealed: Vec<_> = blocks
        .iter()
        .map(|block| block.seal(buttress_format::ChecksumType::Crc32c))
        .collect();
    let root = frozen.root().unwrap();
    let mut forest_items = Items::new();
    for block in &sealed {
        forest_items.extend(block.items().map(|item| (item.key, item.data.to_vec())));
    }
    assert!(
        forest_items
            .iter()
            .all(|(key, data)| sample.after.get(key) == Some(data))
    );
    assert_eq!(
        sealed
            .iter()
            .filter(|block| block.logical() == root.logical)
            .count(),
        1
    );
    assert_eq!(
        sample.scratch.commit(&mut sample.tree).map(|root| root.level),
        Some(sample.tree.level())
    );
    assert_eq!(all(&held), sample.after);
    assert_eq!(all(&between), sample.after);
}

#[test]
fn uncached_path_fails_with_would_block_at_each_level() {
    let sample = sample(64 << 20, 0);
    let tree = EditableTree::open(&Tree::new(
        Arc::clone(&sample.scratch.reopened()),
        *sample.old.root(),
    ));
    let reach = |key: &Key| {
        let _resident_only = NonBlocking::hold();
        tree.reach(key, |_, _| ())
    };
    let wanted = key(6000);
    let mut levels = Vec::new();
    while let Err(error) = reach(&wanted) {
        let missing = *error.would_block().expect("only that it is not in memory");
        levels.push(missing.level);
        // A caller that must not fail half-way lifts the restriction and reads in blocking mode.
        let read = NonBlocking::lifted(|| tree.forest().read_block(&missing));
        assert_eq!(read.unwrap().level(), missing.level);
    }
    assert_eq!(levels, (0..=tree.level()).rev().collect::<Vec<_>>());
    let mut copied = Vec::new();
    let end = tree.reach(&wanted, |old, _| copied.push(old.level)).unwrap();
    assert_eq!(copied, levels);
    assert!(end.is_some_and(|end| end > wanted));
    // Without a `NonBlocking`, lookups read every block.
    assert!(tree.get(&key(2)).unwrap().is_some());
}
