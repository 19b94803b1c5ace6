//! Items that no seed volume holds: rare or short-lived ones, and items of features that many
//! kernels lack.

use buttress_format::{ItemType, Key, ObjectId, TreeId};

/// Returns key and data of one sound item of each such type.
pub(super) fn items() -> Vec<(Key, Vec<u8>)> {
    let key = |objectid: u64, item_type, offset| Key::new(ObjectId::new(objectid), item_type, offset);
    let numbers = |numbers: &[u64]| {
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let data_reference = [numbers(&[TreeId::FS.get(), 257, 0]), 1_u32.to_le_bytes().to_vec()].concat();
    vec![
        (
            key(257, ItemType::VERITY_DESC_ITEM, 0),
            [numbers(&[256, 0, 0]), vec![0]].concat(),
        ),
        (key(257, ItemType::VERITY_DESC_ITEM, 1), vec![7; 256]),
        (key(257, ItemType::VERITY_MERKLE_ITEM, 2048), vec![7; 300]),
        (
            key(ObjectId::ORPHAN.get(), ItemType::ORPHAN_ITEM, 257),
            Vec::new(),
        ),
        (key(1 << 20, ItemType::TREE_BLOCK_REF, 5), Vec::new()),
        (key(1 << 20, ItemType::SHARED_BLOCK_REF, 1 << 21), Vec::new()),
        (key(1 << 20, ItemType::EXTENT_DATA_REF, 1234), data_reference),
        (
            key(1 << 20, ItemType::SHARED_DATA_REF, 1 << 21),
            1_u32.to_le_bytes().to_vec(),
        ),
        (
            key(1 << 20, ItemType::RAID_STRIPE, 8192),
            numbers(&[1, 1 << 22, 2, 1 << 23]),
        ),
        (
            key(ObjectId::BALANCE.get(), ItemType::TEMPORARY_ITEM, 0),
            vec![1; 448],
        ),
        (key(0, ItemType::DEV_REPLACE, 0), vec![1; 72]),
        (
            key(7, ItemType::UUID_KEY_RECEIVED_SUBVOL, 9),
            numbers(&[256, 257]),
        ),
    ]
}
