//! Tests of edits against a model: a list of items or of pointers. The tree checker runs after each
//! step.

use super::super::testing::{FSID, LOGICAL, format, key};
use super::super::{BlockFormat, Expectation, KeyPointer, TreeBlock};
use super::{ITEM_HEAD_BYTES, NewBlock, leaf_data_bytes_max, node_pointers_max};
use crate::key::{ItemType, Key};
use crate::units::{Generation, Logical, TreeId};
use std::collections::BTreeMap;
use uuid::Uuid;

type Model = BTreeMap<Key, Vec<u8>>;

const NODE_SIZES: [u32; 5] = [4096, 8192, 16384, 32768, 65536];

/// A small random number generator that a seed determines.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }
}

fn empty(node_bytes: u32, level: u8) -> TreeBlock {
    TreeBlock::new_empty(
        node_bytes,
        &NewBlock {
            fsid: Uuid::from_bytes(FSID),
            chunk_tree_uuid: Uuid::from_bytes([0x22; 16]),
            logical: Logical::new(u64::MAX),
            generation: Generation::new(100),
            owner: TreeId::new(300),
            level,
        },
    )
}

fn sized(node_bytes: u32) -> BlockFormat {
    BlockFormat {
        node_bytes,
        ..format()
    }
}

/// Asserts that the written block passes every check and equals the model.
fn compare(block: &TreeBlock, model: &Model, node_bytes: u32, what: &str) {
    let found: Vec<_> = block.items().map(|item| (item.key, item.data.to_vec())).collect();
    let expected: Vec<_> = model.iter().map(|(key, data)| (*key, data.clone())).collect();
    assert_eq!(found, expected, "{what}");
    let format = sized(node_bytes);
    let sealed = block.seal(LOGICAL, format.checksum_type, |_| None);
    let checked = TreeBlock::check(sealed.bytes().clone(), &format, &Expectation::at(LOGICAL));
    let checked = checked.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(checked, sealed, "{what}");
    assert_eq!(checked.free_space(), block.free_space(), "{what}");
}

fn data(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length)
        .map(|_| u8::try_from(random.below(256)).unwrap())
        .collect()
}

#[test]
fn leaves_agree_with_a_map() {
    for (seed, node_bytes) in NODE_SIZES.into_iter().enumerate() {
        let mut random = Random(seed as u64);
        let mut block = empty(node_bytes, 0);
        let mut model = Model::new();
        let mut refused = 0;
        for step in 0..1500 {
            let place = key(
                1 + random.below(60) as u64,
                ItemType::STRING_ITEM,
                random.below(4) as u64,
            );
            let longest = [8, 60, 400, node_bytes as usize][random.below(4)];
            let length = random.below(longest);
            let bytes = data(&mut random, length);
            let kind = random.below(5);
            let before = block.clone();
            let room = block.free_space();
            match (block.search(&place), kind) {
                (Err(slot), 0..=2) => {
                    let fits = block.edit_leaf(|leaf| {
                        let place = leaf.insert(slot, &place, length);
                        place.map(|place| place.copy_from_slice(&bytes)).is_some()
                    });
                    assert_eq!(fits, length + 25 <= room);
                    refused += usize::from(!fits);
                    if fits {
                        model.insert(place, bytes);
                    }
                }
                (Ok(slot), 0) => {
                    let old = model[&place].clone();
                    let fits = block.edit_leaf(|leaf| leaf.resize(slot, length));
                    assert_eq!(fits, length <= old.len() + room);
                    if fits {
                        let mut new = old;
                        new.resize(length, 0);
                        model.insert(place, new);
                    }
                }
                (Ok(slot), 1) => {
                    let old = model[&place].clone();
                    if block.edit_leaf(|leaf| leaf.resize_front(slot, length)) {
                        let kept = old.len().min(length);
                        let mut new = vec![0; length - kept];
                        new.extend(&old[old.len() - kept..]);
                        model.insert(place, new);
                    }
                }
                (Ok(slot), 2) => {
                    let () = block.edit_leaf(|leaf| leaf.data_mut(slot).unwrap().fill(7));
                    model.get_mut(&place).unwrap().fill(7);
                }
                (Ok(slot), _) => {
                    assert!(block.edit_leaf(|leaf| leaf.remove(slot..slot + 1)));
                    model.remove(&place);
                }
                (Err(_), 3) => {
                    let start = random.below(model.len() + 1);
                    let end = start + random.below((model.len() + 1 - start).min(5));
                    assert!(block.edit_leaf(|leaf| leaf.remove(start..end)));
                    let keys: Vec<Key> = model.keys().copied().collect();
                    keys[start..end].iter().for_each(|key| drop(model.remove(key)));
                }
                (Err(_), _) => {
                    assert!(!block.edit_leaf(|leaf| leaf.remove(0..model.len() + 1)));
                    assert!(!block.edit_leaf(|leaf| leaf.resize(model.len(), 1)));
                    assert!(!block.edit_leaf(|leaf| leaf.set_key(model.len(), &place)));
                }
            }
            compare(&block, &model, node_bytes, &format!("{node_bytes}, step {step}"));
            // A clone of the edited block keeps its old content.
            let sum = before.items().map(|item| item.data.len() + 25).sum::<usize>();
            assert_eq!(sum + before.free_space(), node_bytes as usize - 101);
        }
        assert!(refused > 10);
    }
}

/// A block in reused memory holds no items of the old block. Once sealed, the new block holds none
/// of the old block's bytes.
#[test]
fn used_memory_makes_an_empty_block() {
    let mut old = empty(4096, 0);
    let long = vec![0xee; leaf_data_bytes_max(4096)];
    let () = old.edit_leaf(|leaf| {
        leaf.insert(0, &key(256, ItemType::STRING_ITEM, 0), long.len())
            .unwrap()
            .copy_from_slice(&long)
    });
    let beside = empty(4096, 0);
    let (logical, generation) = (Logical::new(u64::MAX), Generation::new(100));
    let fresh = beside.new_sibling(logical, generation);
    let used = beside.new_sibling_in(old, logical, generation);
    assert_eq!((used.item_count(), used.free_space()), (0, fresh.free_space()));
    let sealed = |block: &TreeBlock| block.seal(LOGICAL, format().checksum_type, |_| None);
    assert_eq!(sealed(&used).bytes(), sealed(&fresh).bytes());
    // The node's memory is not reused for a node of another size.
    let large = beside.new_sibling_in(empty(8192, 0), logical, generation);
    assert_eq!(large.bytes().len(), 4096);
}

/// A run inserts the same items as single inserts, up to the first item that does not fit.
#[test]
fn runs_agree_with_a_map() {
    let of = |number| key(7, ItemType::STRING_ITEM, number);
    for node_bytes in NODE_SIZES {
        let mut random = Random(u64::from(node_bytes));
        for round in 0..200 {
            let mut block = empty(node_bytes, 0);
            let mut model = Model::new();
            let mut number = 0;
            for _ in 0..random.below(20) {
                number += 100;
                let length = random.below(node_bytes as usize / 40);
                let data = data(&mut random, length);
                let slot = block.item_count();
                let put = block.edit_leaf(|leaf| {
                    leaf.insert(slot, &of(number), data.len())
                        .map(|place| place.copy_from_slice(&data))
                });
                assert!(put.is_some());
                model.insert(of(number), data);
            }
            let slot = random.below(block.item_count() + 1);
            let start = slot as u64 * 100 + 1;
            let run: Vec<(Key, Vec<u8>)> = (start..start + 90)
                .take(random.below(90))
                .map(|number| {
                    let length = random.below(node_bytes as usize / 60);
                    (of(number), data(&mut random, length))
                })
                .collect();
            let items: Vec<(Key, &[u8])> = run.iter().map(|(key, data)| (*key, &data[..])).collect();
            let free = block.free_space();
            let taken = block.edit_leaf(|leaf| leaf.insert_run(slot, &items));
            let bytes = |count: usize| {
                items[..count]
                    .iter()
                    .map(|(_, data)| data.len() + ITEM_HEAD_BYTES)
                    .sum::<usize>()
            };
            assert!(bytes(taken) <= free);
            assert!(taken == items.len() || bytes(taken + 1) > free, "round {round}");
            model.extend(run.into_iter().take(taken));
            compare(
                &block,
                &model,
                node_bytes,
                &format!("{node_bytes}, round {round}"),
            );
        }
    }
}

#[test]
fn items_move_between_leaves_in_one_piece() {
    for (seed, node_bytes) in NODE_SIZES.into_iter().enumerate() {
        let mut random = Random(seed as u64 + 100);
        let mut blocks = [empty(node_bytes, 0), empty(node_bytes, 0)];
        let mut models = [Model::new(), Model::new()];
        for number in 0..200_u64 {
            let length = random.below(80);
            let bytes = data(&mut random, length);
            let place = key(number + 1, ItemType::STRING_ITEM, 0);
            let slot = blocks[0].item_count();
            let fits = blocks[0].edit_leaf(|leaf| {
                let place = leaf.insert(slot, &place, length);
                place.map(|place| place.copy_from_slice(&bytes)).is_some()
            });
            if fits {
                models[0].insert(place, bytes);
            }
        }
        for step in 0..300 {
            let right = step % 2 == 0;
            let [left_block, right_block] = &mut blocks;
            let [left, right_model] = &mut models;
            let (from, to) = if right {
                (left_block, right_block)
            } else {
                (right_block, left_block)
            };
            let (source, target) = if right {
                (left, right_model)
            } else {
                (right_model, left)
            };
            let count = from.item_count();
            let moved = random.below(count + 1);
            let (slots, slot) = if right {
                (count - moved..count, 0)
            } else {
                (0..moved, to.item_count())
            };
            let fits = from.items_bytes(slots.clone()) <= to.free_space();
            assert_eq!(
                to.edit_leaf(|leaf| leaf.insert_from(slot, from, slots.clone())),
                fits
            );
            if fits {
                let keys: Vec<Key> = source.keys().copied().collect();
                for key in &keys[slots.clone()] {
                    target.insert(*key, source.remove(key).unwrap());
                }
                assert!(from.edit_leaf(|leaf| leaf.remove(slots)));
            }
            for (block, model) in blocks.iter().zip(&models) {
                compare(block, model, node_bytes, &format!("{node_bytes}, step {step}"));
            }
        }
    }
}

#[test]
fn the_longest_item_fills_its_leaf() {
    for node_bytes in NODE_SIZES {
        let most = leaf_data_bytes_max(node_bytes);
        let place = key(1, ItemType::STRING_ITEM, 0);
        let mut block = empty(node_bytes, 0);
        assert!(block.edit_leaf(|leaf| leaf.insert(0, &place, most + 1).is_none()));
        assert!(block.edit_leaf(|leaf| leaf.insert(0, &place, most).map(|data| data.fill(3)).is_some()));
        assert_eq!(block.free_space(), 0);
        compare(&block, &Model::from([(place, vec![3; most])]), node_bytes, "full");
    }
}

#[test]
fn nodes_agree_with_a_map() {
    for (seed, node_bytes) in NODE_SIZES.into_iter().enumerate() {
        let mut random = Random(seed as u64);
        let mut blocks = [empty(node_bytes, 1), empty(node_bytes, 1)];
        let mut model: BTreeMap<Key, (u64, u64)> = BTreeMap::new();
        let most = node_pointers_max(node_bytes);
        assert_eq!(most, (node_bytes as usize - 101) / 33);
        for step in 0..3 * most {
            let block = &mut blocks[0];
            let key = key(1 + random.below(2 * most) as u64, ItemType::STRING_ITEM, 0);
            let pointer = KeyPointer {
                key,
                logical: Logical::new(4096 * (1 + random.below(1000) as u64)),
                generation: Generation::new(1 + random.below(100) as u64),
            };
            match block.search(&key) {
                Err(slot) => {
                    let fits = block.edit_node(|node| node.insert(slot, &pointer));
                    assert_eq!(fits, model.len() < most);
                    if fits {
                        model.insert(key, (pointer.logical.get(), pointer.generation.get()));
                    }
                }
                Ok(slot) if random.below(2) == 0 => {
                    assert!(block.edit_node(|node| node.remove(slot..slot + 1)));
                    model.remove(&key);
                }
                Ok(slot) => {
                    assert!(block.edit_node(|node| node.set(slot, &pointer)));
                    model.insert(key, (pointer.logical.get(), pointer.generation.get()));
                }
            }
            if step % 50 == 0 && !model.is_empty() {
                check_node(&mut blocks, &model, node_bytes, &mut random);
            }
        }
    }
}

/// Asserts that the node equals the model, even after a part of it moved to another node and back.
fn check_node(
    blocks: &mut [TreeBlock; 2],
    model: &BTreeMap<Key, (u64, u64)>,
    node_bytes: u32,
    random: &mut Random,
) {
    let [block, other] = blocks;
    let count = block.item_count();
    let from = random.below(count);
    assert!(other.edit_node(|node| node.insert_from(0, block, from..count)));
    assert!(block.edit_node(|node| node.remove(from..count)));
    assert_eq!(block.item_count() + other.item_count(), count);
    assert!(block.edit_node(|node| node.insert_from(from, other, 0..count - from)));
    assert!(other.edit_node(|node| node.remove(0..count - from)));
    let format = sized(node_bytes);
    let sealed = block.seal(LOGICAL, format.checksum_type, |slot| {
        (slot == 0).then_some((Logical::new(1 << 30), Generation::new(99)))
    });
    let checked = TreeBlock::check(sealed.bytes().clone(), &format, &Expectation::at(LOGICAL)).unwrap();
    let mut expected: Vec<_> = model
        .iter()
        .map(|(key, (logical, generation))| (*key, *logical, *generation))
        .collect();
    (expected[0].1, expected[0].2) = (1 << 30, 99);
    let found: Vec<_> = checked
        .pointers()
        .map(|pointer| (pointer.key, pointer.logical.get(), pointer.generation.get()))
        .collect();
    assert_eq!(found, expected);
}
