//! Tests with one case for each check of extent items and references.

use super::keyed::parse_keyed_references;
use super::*;
use crate::node::testing::format;
use crate::units::{InodeNumber, ObjectId, TreeId};
use proptest::prelude::*;

const DATA: u64 = 1;
const TREE_BLOCK: u64 = 2;

fn extent_key(item_type: ItemType, offset: u64) -> Key {
    Key::new(ObjectId::new(1 << 20), item_type, offset)
}

/// Returns the bytes of an extent item with these fields, followed by `inline`.
fn item(refs: u64, generation: u64, flags: u64, inline: &[u8]) -> Vec<u8> {
    let head = RawExtentItem {
        refs: U64::new(refs),
        generation: U64::new(generation),
        flags: U64::new(flags),
    };
    [head.as_bytes(), inline].concat()
}

fn simple(item_type: ItemType, number: u64) -> Vec<u8> {
    [&[item_type.0], number.to_le_bytes().as_slice()].concat()
}

fn shared_data(parent: u64, count: u32) -> Vec<u8> {
    [
        simple(ItemType::SHARED_DATA_REF, parent),
        count.to_le_bytes().to_vec(),
    ]
    .concat()
}

fn data_numbers(root: u64, inode: u64, offset: u64, count: u32) -> Vec<u8> {
    [root.to_le_bytes(), inode.to_le_bytes(), offset.to_le_bytes()]
        .concat()
        .into_iter()
        .chain(count.to_le_bytes())
        .collect()
}

fn data_reference(root: u64, inode: u64, offset: u64, count: u32) -> Vec<u8> {
    [
        vec![ItemType::EXTENT_DATA_REF.0],
        data_numbers(root, inode, offset, count),
    ]
    .concat()
}

fn data_problem(flags: u64, inline: &[u8]) -> ItemProblem {
    let key = extent_key(ItemType::EXTENT_ITEM, 8192);
    ExtentItem::parse(&key, &item(9, 5, flags, inline), &format())
        .unwrap_err()
        .problem
}

fn block_problem(inline: &[u8]) -> ItemProblem {
    let key = extent_key(ItemType::METADATA_ITEM, 0);
    ExtentItem::parse(&key, &item(9, 5, TREE_BLOCK, inline), &format())
        .unwrap_err()
        .problem
}

#[test]
fn extents_with_every_kind_of_reference() {
    let first = ExtentDataReference {
        root: TreeId::FS,
        inode: InodeNumber::new(257),
        offset: 0u64.wrapping_sub(4096),
        count: 2,
    };
    let inline = [
        simple(ItemType::EXTENT_OWNER_REF, 5),
        data_reference(5, 257, 0u64.wrapping_sub(4096), 2),
        shared_data(8192, 1),
        shared_data(4096, 1),
    ]
    .concat();
    let key = extent_key(ItemType::EXTENT_ITEM, 8192);
    let extent = ExtentItem::parse(&key, &item(4, 5, DATA, &inline), &format()).unwrap();
    assert!(extent.is_data());
    assert_eq!(
        (extent.level, extent.end()),
        (None, Logical::new((1 << 20) + 8192))
    );
    assert_eq!(
        extent.inline_references.as_slice(),
        [
            InlineReference::Owner { root: TreeId::FS },
            InlineReference::ExtentData(first),
            InlineReference::SharedData {
                parent: Logical::new(8192),
                count: 1
            },
            InlineReference::SharedData {
                parent: Logical::new(4096),
                count: 1
            },
        ]
    );

    let blocks = [
        simple(ItemType::TREE_BLOCK_REF, 7),
        simple(ItemType::SHARED_BLOCK_REF, 65536),
    ]
    .concat();
    let skinny = extent_key(ItemType::METADATA_ITEM, 3);
    let extent = ExtentItem::parse(&skinny, &item(2, 5, TREE_BLOCK, &blocks), &format()).unwrap();
    assert_eq!((extent.level, extent.length.get()), (Some(3), 16384));
    assert_eq!(extent.inline_references.len(), 2);

    let info = RawTreeBlockInfo {
        key: RawKey::from(skinny),
        level: 1,
    };
    let fat = extent_key(ItemType::EXTENT_ITEM, 16384);
    let rest = [info.as_bytes(), &blocks].concat();
    let extent = ExtentItem::parse(&fat, &item(2, 5, TREE_BLOCK, &rest), &format()).unwrap();
    assert_eq!(
        extent.tree_block_info,
        Some(TreeBlockInfo {
            first_key: skinny,
            level: 1
        })
    );
    assert_eq!(extent.level, Some(1));
}

#[test]
fn heads_and_keys_are_checked() {
    let sector_bytes = 4096;
    let format = format();
    let fault = |item_type: ItemType, objectid: u64, offset: u64, flags: u64, generation: u64| {
        let key = Key::new(ObjectId::new(objectid), item_type, offset);
        ExtentItem::parse(&key, &item(1, generation, flags, &[]), &format)
            .unwrap_err()
            .problem
    };
    let (extent, metadata) = (ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM);
    let limit = format.generation_limit().get();
    let cases: [(ItemProblem, ItemProblem); 10] = [
        (
            fault(extent, 1, 4096, DATA, 5),
            ItemProblem::ObjectIdUnaligned {
                objectid: 1,
                sector_bytes,
            },
        ),
        (
            fault(extent, 0, 4097, DATA, 5),
            ItemProblem::OffsetUnaligned {
                offset: 4097,
                sector_bytes,
            },
        ),
        (fault(extent, 0, 0, DATA, 5), ItemProblem::OffsetZero),
        (
            fault(metadata, 0, 8, TREE_BLOCK, 5),
            ExtentProblem::Level { level: 8 }.into(),
        ),
        (
            fault(extent, 0, 4096, 3, 5),
            ExtentProblem::Flags { flags: 3 }.into(),
        ),
        (
            fault(extent, 0, 4096, 0, 5),
            ExtentProblem::Flags { flags: 0 }.into(),
        ),
        (
            fault(metadata, 0, 0, DATA, 5),
            ExtentProblem::DataInMetadataItem.into(),
        ),
        (
            fault(extent, 0, 4096, 0x101, 5),
            ExtentProblem::DataWithFullBackref { flags: 0x101 }.into(),
        ),
        (
            fault(extent, 0, 4096, TREE_BLOCK, 5),
            ExtentProblem::TreeBlockLength {
                length_bytes: 4096,
                node_bytes: 16384,
            }
            .into(),
        ),
        (
            fault(extent, 0, 4096, DATA, limit + 1),
            ItemProblem::GenerationInFuture {
                field: "extent generation",
                generation: limit + 1,
                limit,
            },
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

#[test]
fn sizes_and_features_are_checked() {
    let format = format();
    let (extent, metadata) = (ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM);
    let key = extent_key(metadata, 0);
    let without = BlockFormat {
        incompat: Incompat::empty(),
        ..format.clone()
    };
    assert_eq!(
        ExtentItem::parse(&key, &item(1, 5, TREE_BLOCK, &[]), &without)
            .unwrap_err()
            .problem,
        ItemProblem::FeatureMissing {
            feature: "SKINNY_METADATA"
        }
    );
    assert_eq!(
        ExtentItem::parse(&key, &[0; 23], &format).unwrap_err().problem,
        ItemProblem::SizeTooSmall {
            size_bytes: 23,
            needed_bytes: 24
        }
    );
    let fat = extent_key(extent, 16384);
    assert_eq!(
        ExtentItem::parse(&fat, &item(1, 5, TREE_BLOCK, &[0; 17]), &format)
            .unwrap_err()
            .problem,
        ItemProblem::SizeTooSmall {
            size_bytes: 41,
            needed_bytes: 42
        }
    );
    let info = RawTreeBlockInfo {
        key: RawKey::from(key),
        level: 8,
    };
    assert_eq!(
        ExtentItem::parse(&fat, &item(1, 5, TREE_BLOCK, info.as_bytes()), &format)
            .unwrap_err()
            .problem,
        ExtentProblem::Level { level: 8 }.into()
    );
}

#[test]
fn inline_references_are_checked() {
    let cut = simple(ItemType::TREE_BLOCK_REF, 5);
    let cases: [(ItemProblem, ExtentProblem); 6] = [
        (
            block_problem(&cut[..8]),
            ExtentProblem::ReferenceCut {
                offset_bytes: 24,
                needed_bytes: 9,
                rest_bytes: 8,
            },
        ),
        (
            block_problem(&[1]),
            ExtentProblem::ReferenceType {
                item_type: ItemType(1),
                offset_bytes: 24,
            },
        ),
        (
            data_problem(DATA, &simple(ItemType::TREE_BLOCK_REF, 5)),
            ExtentProblem::ReferenceKind {
                item_type: ItemType::TREE_BLOCK_REF,
                flags: 1,
            },
        ),
        (
            block_problem(&shared_data(4096, 1)),
            ExtentProblem::ReferenceKind {
                item_type: ItemType::SHARED_DATA_REF,
                flags: 2,
            },
        ),
        (
            block_problem(
                &[
                    simple(ItemType::SHARED_BLOCK_REF, 0),
                    simple(ItemType::TREE_BLOCK_REF, 5),
                ]
                .concat(),
            ),
            ExtentProblem::ReferenceTypeOrder {
                item_type: ItemType::TREE_BLOCK_REF,
                previous: ItemType::SHARED_BLOCK_REF,
            },
        ),
        (
            block_problem(
                &[
                    simple(ItemType::TREE_BLOCK_REF, 5),
                    simple(ItemType::TREE_BLOCK_REF, 6),
                ]
                .concat(),
            ),
            ExtentProblem::ReferenceOrder {
                item_type: ItemType::TREE_BLOCK_REF,
                sort_value: 6,
                previous: 5,
            },
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected.into());
    }
}

#[test]
fn contents_of_inline_references_are_checked() {
    let sector_bytes = 4096;
    let cases: [(ItemProblem, ExtentProblem); 6] = [
        (
            block_problem(&simple(ItemType::SHARED_BLOCK_REF, 5)),
            ExtentProblem::ParentUnaligned {
                parent: 5,
                sector_bytes,
            },
        ),
        (
            data_problem(DATA, &data_reference(7, 257, 0, 1)),
            ExtentProblem::DataRoot { root: 7 },
        ),
        (
            data_problem(DATA, &data_reference(5, 255, 0, 1)),
            ExtentProblem::DataInode { inode: 255 },
        ),
        (
            data_problem(DATA, &data_reference(5, 257, 1, 1)),
            ExtentProblem::DataOffset {
                offset: 1,
                sector_bytes,
            },
        ),
        (
            data_problem(DATA, &data_reference(5, 257, 0, 0)),
            ExtentProblem::CountZero,
        ),
        (
            data_problem(DATA, &shared_data(4096, 10)),
            ExtentProblem::TooManyReferences {
                inline: 10,
                references: 9,
            },
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected.into());
    }
}

#[test]
fn data_references_fall_by_their_hashes() {
    let mut pair = [(5, 257, 0), (5, 258, 0)].map(|(root, inode, offset)| {
        let hash = crate::extent_data_reference_hash(TreeId::new(root), InodeNumber::new(inode), offset);
        (hash, data_reference(root, inode, offset, 1))
    });
    pair.sort();
    let [(small, low), (great, high)] = pair;
    let key = extent_key(ItemType::EXTENT_ITEM, 8192);
    let falling = item(2, 5, DATA, &[high.clone(), low.clone()].concat());
    assert_eq!(
        ExtentItem::parse(&key, &falling, &format())
            .unwrap()
            .inline_references
            .len(),
        2
    );
    assert_eq!(
        data_problem(DATA, &[low, high].concat()),
        ExtentProblem::ReferenceOrder {
            item_type: ItemType::EXTENT_DATA_REF,
            sort_value: great,
            previous: small
        }
        .into()
    );
}

#[test]
fn keyed_references_are_read() {
    let parse = |item_type: ItemType, offset: u64, data: &[u8]| {
        parse_keyed_references(&extent_key(item_type, offset), data, 4096).map_err(|error| error.problem)
    };
    let one = |reference| Ok(SmallVec::from_elem(reference, 1));
    assert_eq!(
        parse(ItemType::TREE_BLOCK_REF, 5, &[]),
        one(InlineReference::TreeBlock { root: TreeId::FS })
    );
    assert_eq!(
        parse(ItemType::SHARED_DATA_REF, 4096, &3_u32.to_le_bytes()),
        one(InlineReference::SharedData {
            parent: Logical::new(4096),
            count: 3
        })
    );
}

#[test]
fn faults_of_keyed_references_are_found() {
    let parse = |item_type: ItemType, offset: u64, data: &[u8]| {
        parse_keyed_references(&extent_key(item_type, offset), data, 4096).map_err(|error| error.problem)
    };
    let sector_bytes = 4096;
    let two = [data_numbers(5, 257, 0, 1), data_numbers(5, 258, 0, 1)].concat();
    assert_eq!(
        parse(ItemType::EXTENT_DATA_REF, 77, &two).map(|found| found.len()),
        Ok(2)
    );
    let cases = [
        (
            parse(ItemType::TREE_BLOCK_REF, 5, &[0]),
            ItemProblem::SizeWrong {
                size_bytes: 1,
                expected_bytes: 0,
            },
        ),
        (
            parse(ItemType::SHARED_BLOCK_REF, 5, &[]),
            ItemProblem::OffsetUnaligned {
                offset: 5,
                sector_bytes,
            },
        ),
        (
            parse(ItemType::SHARED_DATA_REF, 0, &[]),
            ItemProblem::SizeWrong {
                size_bytes: 0,
                expected_bytes: 4,
            },
        ),
        (
            parse(ItemType::SHARED_DATA_REF, 0, &[0; 4]),
            ExtentProblem::CountZero.into(),
        ),
        (
            parse(ItemType::EXTENT_DATA_REF, 0, &[]),
            ItemProblem::SizeNotMultiple {
                size_bytes: 0,
                unit_bytes: 28,
            },
        ),
        (
            parse(ItemType::EXTENT_DATA_REF, 0, &two[..55]),
            ItemProblem::SizeNotMultiple {
                size_bytes: 55,
                unit_bytes: 28,
            },
        ),
        (
            parse(ItemType::EXTENT_DATA_REF, 0, &data_numbers(5, 257, 0, 0)),
            ExtentProblem::CountZero.into(),
        ),
        (
            parse(ItemType::INODE_ITEM, 0, &[]),
            ExtentProblem::ReferenceType {
                item_type: ItemType::INODE_ITEM,
                offset_bytes: 0,
            }
            .into(),
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, Err(expected));
    }
    let key = Key::new(ObjectId::new(9), ItemType::TREE_BLOCK_REF, 5);
    assert_eq!(
        parse_keyed_references(&key, &[], 4096).map_err(|error| error.problem),
        Err(ItemProblem::ObjectIdUnaligned {
            objectid: 9,
            sector_bytes
        })
    );
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(rest in proptest::collection::vec(any::<u8>(), 0..200),
                                flags in 0_u64..4, refs: u64, level in 0_u64..9, number in 176_u8..186) {
        let format = format();
        let data = item(refs, 1, flags, &rest);
        for key in [extent_key(ItemType::METADATA_ITEM, level), extent_key(ItemType::EXTENT_ITEM, 16384)] {
            let _ = ExtentItem::parse(&key, &data, &format);
            let _ = ExtentItem::parse(&key, &rest, &format);
            let _ = parse_keyed_references(&Key { item_type: ItemType(number), ..key }, &rest, 4096);
        }
    }
}
