//! Tests of changes to inline references against a list of references. The parser checks the item
//! after each change.

use super::*;
use crate::node::testing::format;
use crate::units::{ByteCount, Generation, InodeNumber, TreeId};
use crate::{ExtentDataReference, TreeBlockInfo, parse_keyed_references};
use proptest::prelude::*;

fn data_extent() -> ExtentItem {
    ExtentItem::new_data(Logical::new(1 << 20), ByteCount::new(8192), Generation::new(7))
}

fn block_extent(info: bool) -> ExtentItem {
    ExtentItem {
        length: ByteCount::new(u64::from(format().node_bytes)),
        flags: ExtentFlags::TREE_BLOCK,
        tree_block_info: info.then(|| TreeBlockInfo {
            first_key: Key::new(ObjectId::new(5), ItemType::ROOT_ITEM, 9),
            level: 2,
        }),
        level: Some(2),
        ..data_extent()
    }
}

fn data_reference(number: u64, count: u32) -> InlineReference {
    InlineReference::ExtentData(ExtentDataReference {
        root: TreeId::FS,
        inode: InodeNumber::new(257 + number % 3),
        offset: number * 4096,
        count,
    })
}

fn shared_data(number: u64, count: u32) -> InlineReference {
    InlineReference::SharedData {
        parent: Logical::new(number << 14),
        count,
    }
}

/// Asserts that the encoded item parses to the same item under its own key.
fn assert_sound(item: &ExtentItem) {
    let data = item.encode();
    assert_eq!(data.len(), item.encoded_bytes());
    assert_eq!(
        ExtentItem::parse(&item.key(), &data, &format()).as_ref(),
        Ok(item)
    );
}

#[test]
fn both_forms_of_tree_blocks() {
    for info in [false, true] {
        let mut item = block_extent(info);
        item.add_inline(InlineReference::TreeBlock { root: TreeId::FS })
            .unwrap();
        item.add_inline(InlineReference::SharedBlock {
            parent: Logical::new(1 << 14),
        })
        .unwrap();
        assert_eq!(item.references, 2);
        assert_sound(&item);
        let expected = if info {
            ItemType::EXTENT_ITEM
        } else {
            ItemType::METADATA_ITEM
        };
        assert_eq!(item.key().item_type, expected);
    }
}

#[test]
fn invalid_references_are_refused_and_change_nothing() {
    let mut item = block_extent(false);
    let tree = InlineReference::TreeBlock { root: TreeId::FS };
    item.add_inline(tree).unwrap();
    let before = item.clone();
    assert_eq!(
        item.add_inline(tree),
        Err(ExtentProblem::Uncounted {
            item_type: ItemType::TREE_BLOCK_REF
        })
    );
    assert!(matches!(
        item.add_inline(data_reference(0, 1)),
        Err(ExtentProblem::ReferenceKind { .. })
    ));
    assert_eq!(item, before);

    let mut item = data_extent();
    item.add_inline(data_reference(1, u32::MAX)).unwrap();
    let before = item.clone();
    assert_eq!(
        item.add_inline(data_reference(1, 1)),
        Err(ExtentProblem::CountOverflow)
    );
    assert_eq!(item, before);
    let mut item = data_extent();
    item.add_inline(data_reference(1, 3)).unwrap();
    assert_eq!(
        item.remove_inline(&data_reference(1, 4)),
        Err(ExtentProblem::CountTooSmall { count: 4, present: 3 })
    );
    assert_eq!(item.remove_inline(&data_reference(2, 1)), Ok(false));
}

#[test]
fn owner_reference_counts_zero_and_sorts_first() {
    let mut item = data_extent();
    item.add_inline(data_reference(1, 1)).unwrap();
    item.add_inline(InlineReference::Owner { root: TreeId::FS })
        .unwrap();
    assert_eq!(item.references, 1);
    assert_eq!(item.inline_references[0].item_type(), ItemType::EXTENT_OWNER_REF);
    assert_sound(&item);
}

#[test]
fn items_stay_below_a_sixteenth_of_a_leaf() {
    let node_bytes = format().node_bytes;
    let mut item = data_extent();
    let mut number = 0;
    while item.has_space_for(&data_reference(number, 1), node_bytes) {
        item.add_inline(data_reference(number, 1)).unwrap();
        number += 1;
    }
    // The kernel fits 33 references of 29 bytes and a head of 24 into an item of 16 KiB nodes.
    assert_eq!((node_bytes, number, item.encoded_bytes()), (16_384, 33, 981));
    assert!(
        item.has_space_for(&data_reference(0, 1), node_bytes),
        "a known place needs no space"
    );
}

#[test]
fn keyed_references_parse_to_themselves() {
    let extent = Logical::new(1 << 20);
    let references = [
        data_reference(3, 2),
        shared_data(4, 7),
        InlineReference::TreeBlock { root: TreeId::FS },
        InlineReference::SharedBlock {
            parent: Logical::new(1 << 14),
        },
    ];
    for reference in references {
        let key = reference.keyed_key(extent).unwrap();
        let parsed = parse_keyed_references(&key, &reference.encode_keyed(), 4096).unwrap();
        assert_eq!(parsed.as_slice(), [reference]);
    }
    assert_eq!(
        InlineReference::Owner { root: TreeId::FS }.keyed_key(extent),
        None
    );
}

proptest! {
    #[test]
    fn edits_behave_as_a_list_of_counts(
        steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0_u64..8, 1_u32..4), 1..80),
    ) {
        let mut item = data_extent();
        let mut model = std::collections::BTreeMap::<(bool, u64), u32>::new();
        for (add, shared, number, count) in steps {
            let make = |count| if shared { shared_data(number, count) } else { data_reference(number, count) };
            let known = model.entry((shared, number)).or_default();
            if add {
                item.add_inline(make(count)).unwrap();
                *known += count;
            } else {
                let removed = item.remove_inline(&make(count));
                if *known == 0 {
                    prop_assert_eq!(removed, Ok(false));
                } else if *known < count {
                    prop_assert!(removed.is_err());
                } else {
                    prop_assert_eq!(removed, Ok(true));
                    *known -= count;
                }
            }
            let total: u32 = model.values().sum();
            prop_assert_eq!(item.references, u64::from(total));
            prop_assert_eq!(item.inline_references.len(), model.values().filter(|count| **count > 0).count());
            assert_sound(&item);
        }
    }
}
