//! Tests with hand-made tree blocks: each block has one fault, and the checks find exactly that
//! fault.

use super::testing::{LOGICAL, NODE_BYTES, format, header, key, leaf, node, seal, small};
use super::*;
use crate::item_error::ItemProblem;
use crate::key::ItemType;
use proptest::prelude::*;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

/// Items of a type whose content no checker inspects.
fn strings() -> Vec<(Key, Vec<u8>)> {
    (0..5_u8)
        .map(|number| (key(number.into(), ItemType::STRING_ITEM, 0), vec![number; 10]))
        .collect()
}

fn check(block: Vec<u8>) -> Result<TreeBlock, BlockProblem> {
    check_as(block, &Expectation::at(LOGICAL))
}

fn check_as(block: Vec<u8>, expected: &Expectation) -> Result<TreeBlock, BlockProblem> {
    TreeBlock::check(Bytes::from(block), &format(), expected).map_err(|error| error.problem)
}

/// Applies `change` to a block, recomputes its checksum, and returns the fault that the checks
/// find.
fn changed(mut block: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Result<(), BlockProblem> {
    change(&mut block);
    seal(&mut block);
    check(block).map(|_| ())
}

fn change_header(block: &mut [u8], change: impl FnOnce(&mut RawHeader)) {
    change(RawHeader::mut_from_prefix(block).unwrap().0);
}

fn change_item(block: &mut [u8], slot: usize, change: impl FnOnce(&mut RawItem)) {
    let at = HEADER_BYTES + slot * size_of::<RawItem>();
    change(RawItem::mut_from_prefix(&mut block[at..]).unwrap().0);
}

#[test]
fn valid_leaf_returns_its_items() {
    let block = check(leaf(TreeId::UUID, &strings())).unwrap();
    assert!(block.is_leaf());
    assert_eq!(
        (
            block.item_count(),
            block.items().count(),
            block.pointers().count()
        ),
        (5, 5, 0)
    );
    let item = block.item(3).unwrap();
    assert_eq!(
        (item.key, item.data),
        (key(3, ItemType::STRING_ITEM, 0), [3; 10].as_slice())
    );
    assert_eq!(&block.bytes()[block.item_range(3).unwrap()], item.data);
    assert_eq!((block.item(5), block.pointer(0)), (None, None));
    assert_eq!(block.free_space(), NODE_BYTES - 101 - 5 * 25 - 5 * 10);
    assert_eq!(block.search(&key(2, ItemType::STRING_ITEM, 0)), Ok(2));
    assert_eq!(block.search(&key(2, ItemType::STRING_ITEM, 1)), Err(3));
    assert_eq!(block.search(&Key::MIN), Err(0));
    assert_eq!(block.search(&Key::MAX), Err(5));
}

#[test]
fn valid_node_returns_its_pointers() {
    let pointers = [
        (key(1, ItemType(1), 0), 1 << 20, 100),
        (key(2, ItemType(1), 0), 1 << 21, 7),
    ];
    let block = check(node(&pointers)).unwrap();
    assert_eq!(
        (block.level(), block.item_count(), block.items().count()),
        (1, 2, 0)
    );
    let pointer = block.pointer(1).unwrap();
    assert_eq!((pointer.logical.get(), pointer.generation.get()), (1 << 21, 7));
    assert_eq!(block.pointers().len(), 2);
    assert_eq!(block.free_space(), (NODE_BYTES - 101) / 33 - 2);
    assert_eq!(block.search(&key(2, ItemType(0), 9)), Err(1));
}

#[test]
fn bytes_and_header_are_checked() {
    let sound = || leaf(TreeId::UUID, &strings());
    assert_eq!(
        check(sound()[..4096].to_vec()).map(|_| ()),
        Err(BlockProblem::Size {
            size_bytes: 4096,
            node_bytes: 16384
        })
    );
    assert!(matches!(
        check(Vec::new()),
        Err(BlockProblem::Size { size_bytes: 0, .. })
    ));
    let mut noisy = sound();
    noisy[9000] ^= 1;
    assert!(matches!(check(noisy), Err(BlockProblem::Checksum { .. })));
    let fault = |change: fn(&mut RawHeader)| changed(sound(), |block| change_header(block, change));
    let other = Uuid::from_bytes([9; 16]);
    assert_eq!(
        fault(|header| header.bytenr = U64::new(4096)),
        Err(BlockProblem::Address {
            stored: Logical::new(4096)
        })
    );
    assert_eq!(
        fault(|header| header.fsid = [9; 16]),
        Err(BlockProblem::Fsid {
            stored: other,
            expected: format().fsid
        })
    );
    assert_eq!(
        fault(|header| header.level = 8),
        Err(BlockProblem::LevelTooHigh { level: 8 })
    );
    assert_eq!(
        fault(|header| header.flags = [2; 7]),
        Err(BlockProblem::NotWritten {
            flags: 0x02_0202_0202_0202
        })
    );

    let mut seeded = sound();
    change_header(&mut seeded, |header| header.fsid = [9; 16]);
    seal(&mut seeded);
    let with_seed = format().with_seeds([other]);
    assert!(TreeBlock::check(Bytes::from(seeded), &with_seed, &Expectation::at(LOGICAL)).is_ok());
    let known = BlockFormat {
        chunk_tree_uuid: Some(other),
        ..format()
    };
    assert_eq!(
        TreeBlock::check(Bytes::from(sound()), &known, &Expectation::at(LOGICAL))
            .unwrap_err()
            .problem,
        BlockProblem::ChunkTreeUuid {
            stored: Uuid::from_bytes([0x22; 16]),
            expected: other
        }
    );
}

#[test]
fn promises_are_kept() {
    let block = leaf(TreeId::new(300), &strings());
    let base = Expectation {
        logical: LOGICAL,
        level: Some(0),
        generation: Some(Generation::new(100)),
        owner: Some(TreeId::new(300)),
        first_key: Some(key(0, ItemType::STRING_ITEM, 0)),
    };
    let sound = check_as(block.clone(), &base).unwrap();
    let cases = [
        (
            Expectation {
                logical: Logical::new(0),
                ..base
            },
            BlockProblem::Address { stored: LOGICAL },
        ),
        (
            Expectation {
                level: Some(1),
                ..base
            },
            BlockProblem::Level {
                stored: 0,
                expected: 1,
            },
        ),
        (
            Expectation {
                generation: Some(Generation::new(99)),
                ..base
            },
            BlockProblem::Generation {
                stored: Generation::new(100),
                expected: Generation::new(99),
            },
        ),
        (
            Expectation {
                owner: Some(TreeId::EXTENT),
                ..base
            },
            BlockProblem::Owner {
                stored: TreeId::new(300),
                expected: TreeId::EXTENT,
            },
        ),
        (
            Expectation {
                first_key: Some(Key::MIN),
                ..base
            },
            BlockProblem::FirstKey {
                stored: sound.key(0),
                expected: Key::MIN,
            },
        ),
    ];
    for (expected, problem) in cases {
        assert_eq!(sound.matches(&expected).unwrap_err().problem, problem);
        assert_eq!(check_as(block.clone(), &expected).unwrap_err(), problem);
    }
}

#[test]
fn subvolumes_share_blocks_and_relocation_takes_any() {
    let sound = check(leaf(TreeId::new(300), &strings())).unwrap();
    let base = Expectation::at(LOGICAL);
    for owner in [TreeId::FS, TreeId::new(257), TreeId::TREE_RELOCATION] {
        assert_eq!(
            sound.matches(&Expectation {
                owner: Some(owner),
                ..base
            }),
            Ok(()),
            "{owner}"
        );
    }
    let data_relocation = Expectation {
        owner: Some(TreeId::DATA_RELOCATION),
        ..base
    };
    assert!(sound.matches(&data_relocation).is_err());
}

#[test]
fn nodes_are_checked() {
    let first = key(1, ItemType(1), 0);
    let second = key(2, ItemType(1), 0);
    let fault = |pointers: &[(Key, u64, u64)]| check(node(pointers)).map(|_| ());
    assert_eq!(fault(&[]), Err(BlockProblem::NodeEmpty));
    assert_eq!(
        fault(&[(second, 4096, 1), (first, 8192, 1)]),
        Err(BlockProblem::KeyOrder {
            slot: 1,
            previous: second,
            key: first
        })
    );
    assert_eq!(
        fault(&[(first, 0, 1)]),
        Err(BlockProblem::PointerZero { slot: 0 })
    );
    assert_eq!(
        fault(&[(first, 4096, 1), (second, 4097, 1)]),
        Err(BlockProblem::PointerUnaligned {
            slot: 1,
            pointer: Logical::new(4097),
            sector_bytes: 4096
        })
    );
    assert_eq!(
        fault(&[(first, 4096, 101)]),
        Err(BlockProblem::PointerGeneration {
            slot: 0,
            generation: Generation::new(101),
            own: Generation::new(100)
        })
    );
    let many = |block: &mut [u8]| change_header(block, |header| header.nritems = U32::new(494));
    assert_eq!(
        changed(node(&[(first, 4096, 1)]), many),
        Err(BlockProblem::TooManyItems {
            count: 494,
            most: 493
        })
    );
}

#[test]
fn leaf_layout_is_checked() {
    let sound = || leaf(TreeId::UUID, &strings());
    let mut swapped = strings();
    swapped.swap(1, 2);
    let previous = key(2, ItemType::STRING_ITEM, 0);
    assert_eq!(
        check(leaf(TreeId::UUID, &swapped)).map(|_| ()),
        Err(BlockProblem::KeyOrder {
            slot: 2,
            previous,
            key: key(1, ItemType::STRING_ITEM, 0)
        })
    );
    let room = (NODE_BYTES - HEADER_BYTES) as u64;
    assert_eq!(
        changed(sound(), |block| change_item(block, 0, |item| item.size =
            U32::new(9))),
        Err(BlockProblem::DataEnd {
            slot: 0,
            end_bytes: room - 1,
            expected_bytes: room
        })
    );
    assert_eq!(
        changed(sound(), |block| change_item(block, 2, |item| item.offset =
            U32::new(u32::MAX))),
        Err(BlockProblem::DataEnd {
            slot: 2,
            end_bytes: (1 << 32) + 9,
            expected_bytes: room - 20
        })
    );
    let reach = |block: &mut [u8]| {
        change_item(block, 4, |item| {
            let end = item.offset.get() + item.size.get();
            *item = RawItem {
                offset: U32::new(100),
                size: U32::new(end - 100),
                ..*item
            };
        });
    };
    assert_eq!(
        changed(sound(), reach),
        Err(BlockProblem::DataOverlapsHeads {
            slot: 4,
            start_bytes: 100,
            heads_end_bytes: 125
        })
    );
    let many = |block: &mut [u8]| change_header(block, |header| header.nritems = U32::new(u32::MAX));
    assert_eq!(
        changed(sound(), many),
        Err(BlockProblem::TooManyItems {
            count: u32::MAX,
            most: 651
        })
    );
}

#[test]
fn trees_that_hold_something_are_never_empty() {
    let empty = |owner: TreeId| check(leaf(owner, &[])).map(|_| ());
    for owner in [
        TreeId::ROOT,
        TreeId::CHUNK,
        TreeId::EXTENT,
        TreeId::DEVICE,
        TreeId::FS,
        TreeId::DATA_RELOCATION,
    ] {
        assert_eq!(empty(owner), Err(BlockProblem::LeafEmpty { owner }));
    }
    assert_eq!(empty(TreeId::new(0)), Err(BlockProblem::OwnerZero));
    for owner in [
        TreeId::CHECKSUM,
        TreeId::UUID,
        TreeId::QUOTA,
        TreeId::new(256),
        TreeId::TREE_LOG,
    ] {
        assert_eq!(empty(owner), Ok(()));
    }
}

#[test]
fn damaged_leaf_shows_only_items_inside_the_block() {
    let mut block = leaf(TreeId::UUID, &strings());
    change_item(&mut block, 1, |item| item.offset = U32::new(1 << 30));
    change_header(&mut block, |header| header.nritems = U32::new(9999));
    let damaged = TreeBlock::inspect(Bytes::from(block), &format(), &Expectation::at(LOGICAL));
    assert!(!damaged.is_sound());
    assert!(matches!(
        damaged.failures[0].problem,
        BlockProblem::Checksum { .. }
    ));
    assert!(
        damaged
            .failures
            .iter()
            .any(|error| matches!(error.problem, BlockProblem::TooManyItems { .. }))
    );
    assert!(damaged.failures.len() <= DamagedBlock::MAX_FAILURES);
    assert_eq!(damaged.block.item_count(), 651);
    assert_eq!(damaged.block.item(0).unwrap().data, [0; 10]);
    assert_eq!(damaged.block.item(1), None);
    assert!(
        damaged
            .block
            .items()
            .all(|item| item.key != key(1, ItemType::STRING_ITEM, 0))
    );
    let sound = leaf(TreeId::UUID, &strings());
    assert!(TreeBlock::inspect(Bytes::from(sound), &format(), &Expectation::at(LOGICAL)).is_sound());
}

#[test]
fn items_are_checked_with_their_slots() {
    let items = [
        (key(5, ItemType::STRING_ITEM, 0), Vec::new()),
        (key(6, ItemType::QGROUP_INFO, 0), vec![0; 39]),
    ];
    let found = check(leaf(TreeId::QUOTA, &items)).unwrap_err();
    let BlockProblem::Item { slot: 1, error } = found else {
        panic!("{found}")
    };
    assert_eq!(
        error.problem,
        ItemProblem::SizeWrong {
            size_bytes: 39,
            expected_bytes: 40
        }
    );
}

#[test]
fn errors_name_place_and_numbers() {
    let mut block = leaf(TreeId::UUID, &strings());
    change_header(&mut block, |header| header.level = 9);
    seal(&mut block);
    let error = TreeBlock::check(Bytes::from(block), &format(), &Expectation::at(LOGICAL)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tree block 1048576: level is 9, expected at most 7"
    );
    assert_eq!(error.kind(), crate::ErrorKind::Corrupt);
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(
        mut block in proptest::collection::vec(any::<u8>(), 0..3000),
        level in 0_u8..3, count in 0_u32..60, sealed: bool,
    ) {
        let short = BlockFormat { node_bytes: small(block.len()).get(), ..format() };
        if let Ok((raw, _)) = RawHeader::mut_from_prefix(&mut block) {
            *raw = RawHeader { level, nritems: U32::new(count), ..header(TreeId::FS, 0, 0) };
            if sealed {
                seal(&mut block);
            }
        }
        let bytes = Bytes::from(block);
        let sound = TreeBlock::check(bytes.clone(), &short, &Expectation::at(LOGICAL));
        let damaged = TreeBlock::inspect(bytes, &short, &Expectation::at(LOGICAL));
        prop_assert_eq!(sound.is_ok(), damaged.is_sound());
        let _ = (damaged.block.items().count(), damaged.block.pointers().count(), damaged.block.free_space());
        let _ = damaged.block.search(&key(9, ItemType(3), 1));
    }

    #[test]
    fn mutated_items_give_an_answer(
        items in proptest::collection::vec(
            (any::<u64>(), 0_usize..50, prop_oneof![0_u64..10, any::<u64>()],
             proptest::collection::vec(any::<u8>(), 0..200)), 0..30),
        owner in prop_oneof![0_u64..14, 256_u64..258],
    ) {
        let mut items: Vec<(Key, Vec<u8>)> = items
            .into_iter()
            .map(|(objectid, index, offset, data)| {
                let item_type = ItemType::ALL.get(index).copied().unwrap_or(ItemType(0));
                (key(objectid & !4095, item_type, offset), data)
            })
            .collect();
        items.sort();
        items.dedup_by_key(|(key, _)| *key);
        let block = leaf(TreeId::new(owner), &items);
        let _ = check(block.clone());
        let damaged = TreeBlock::inspect(Bytes::from(block), &format(), &Expectation::at(LOGICAL));
        prop_assert_eq!(damaged.block.items().count(), items.len());
    }

    #[test]
    fn search_agrees_with_a_sorted_list(keys in proptest::collection::btree_set((0_u64..9, 0_u8..9, 0_u64..9), 1..60),
                                        wanted in (0_u64..9, 0_u8..9, 0_u64..9)) {
        let to_key = |(objectid, number, offset): (u64, u8, u64)| {
            key(objectid, ItemType(number.saturating_add(60)), offset)
        };
        let keys: Vec<Key> = keys.into_iter().map(to_key).filter(|key| key.item_type.name().is_none()).collect();
        let items: Vec<(Key, Vec<u8>)> = keys.iter().map(|key| (*key, vec![1])).collect();
        let block = check(leaf(TreeId::UUID, &items)).unwrap();
        prop_assert_eq!(block.search(&to_key(wanted)), keys.binary_search(&to_key(wanted)));
    }
}
