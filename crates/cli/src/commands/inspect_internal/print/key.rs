//! Keys and object ids, with the names that btrfs-progs gives them.
//!
//! The name of an object id depends on the item type, as does the format of the key's offset. Ids
//! of quota groups are `level/number`, halves of uuids are hexadecimal, the offset of a tree is a
//! plain number.

use buttress::unstable::format::{ItemType, Key, ObjectId};
use serde_json::{Value as Json, json};

use super::sink::Text;

/// Number of bits below the level in a quota group's id.
const QGROUP_NUMBER_BITS: u32 = 48;

/// Item type of references by generation, obsolete since before version 1 of the format's
/// documentation.
pub(crate) const EXTENT_REF_V0: ItemType = ItemType(180);
/// An unused item type: checksums are [`ItemType::EXTENT_CSUM`].
pub(crate) const CSUM_ITEM: ItemType = ItemType(120);

/// Object ids whose name is the same for every item type.
const NAMED_OBJECTS: &[(u64, &str)] = &[
    (1, "ROOT_TREE"),
    (2, "EXTENT_TREE"),
    (3, "CHUNK_TREE"),
    (4, "DEV_TREE"),
    (5, "FS_TREE"),
    (6, "ROOT_TREE_DIR"),
    (7, "CSUM_TREE"),
    (8, "QUOTA_TREE"),
    (9, "UUID_TREE"),
    (10, "FREE_SPACE_TREE"),
    (11, "BLOCK_GROUP_TREE"),
    (12, "RAID_STRIPE_TREE"),
];

/// Object ids near the maximum whose name is the same for every item type.
const NAMED_OBJECTS_FROM_TOP: &[(u64, &str)] = &[
    (u64::MAX, "-1"),
    (u64::MAX - 3, "BALANCE"),
    (u64::MAX - 4, "ORPHAN"),
    (u64::MAX - 5, "TREE_LOG"),
    (u64::MAX - 6, "LOG_FIXUP"),
    (u64::MAX - 7, "TREE_RELOC"),
    (u64::MAX - 8, "DATA_RELOC_TREE"),
    (u64::MAX - 9, "EXTENT_CSUM"),
    (u64::MAX - 10, "FREE_SPACE"),
    (u64::MAX - 11, "FREE_INO"),
    (u64::MAX - 12, "CSUM_CHANGE"),
    (u64::MAX - 254, "MULTIPLE"),
];

/// Returns the name of an object id for an item of this type, if it has one.
pub(crate) fn object_name(object: ObjectId, item_type: ItemType) -> Option<&'static str> {
    match (object.get(), item_type) {
        (0, ItemType::PERSISTENT_ITEM) => Some("DEV_STATS"),
        // For the following item types the object id is a number without a name.
        (_, ItemType::PERSISTENT_ITEM | ItemType::DEV_EXTENT) => None,
        (1, ItemType::DEV_ITEM) => Some("DEV_ITEMS"),
        (256, ItemType::CHUNK_ITEM) => Some("FIRST_CHUNK_TREE"),
        (number, _) => {
            let table = if number < 1 << 32 {
                NAMED_OBJECTS
            } else {
                NAMED_OBJECTS_FROM_TOP
            };
            table.iter().find(|(id, _)| *id == number).map(|(_, name)| *name)
        }
    }
}

/// Appends an object id in the format of a key of this type.
pub(crate) fn push_object(out: &mut Text, object: ObjectId, item_type: ItemType) {
    match item_type {
        ItemType::QGROUP_RELATION => push_qgroup(out, object.get()),
        ItemType::UUID_KEY_SUBVOL | ItemType::UUID_KEY_RECEIVED_SUBVOL => push_uuid_half(out, object.get()),
        _ => match object_name(object, item_type) {
            Some(name) => out.push(name),
            None => out.push_decimal(object.get()),
        },
    }
}

/// Appends the name of an item type, or `UNKNOWN.n`.
fn push_item_type(out: &mut Text, object: ObjectId, item_type: ItemType) {
    match item_type {
        ItemType(0) if object == ObjectId::FREE_SPACE => out.push("UNTYPED"),
        EXTENT_REF_V0 => out.push("EXTENT_REF_V0"),
        CSUM_ITEM => out.push("CSUM_ITEM"),
        _ => match item_type.name() {
            Some(name) => out.push(name),
            None => {
                out.push("UNKNOWN.");
                out.push_decimal(u64::from(item_type.0));
            }
        },
    }
}

/// Appends a key, as in `key (256 INODE_ITEM 0)`.
pub(crate) fn push_key(out: &mut Text, key: &Key) {
    out.push("key (");
    push_object(out, key.objectid, key.item_type);
    out.push(" ");
    push_item_type(out, key.objectid, key.item_type);
    out.push(" ");
    match key.item_type {
        ItemType::QGROUP_RELATION | ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT => {
            push_qgroup(out, key.offset);
        }
        ItemType::UUID_KEY_SUBVOL | ItemType::UUID_KEY_RECEIVED_SUBVOL => push_uuid_half(out, key.offset),
        // For the root of a relocation tree, the offset is the relocated tree.
        ItemType::ROOT_ITEM if key.objectid.get() == u64::MAX - 7 => {
            push_object(out, ObjectId::new(key.offset), key.item_type);
        }
        ItemType::ROOT_ITEM => out.push_decimal(key.offset),
        _ if key.offset == u64::MAX => out.push("-1"),
        _ => out.push_decimal(key.offset),
    }
    out.push(")");
}

fn push_qgroup(out: &mut Text, id: u64) {
    out.push_decimal(id >> QGROUP_NUMBER_BITS);
    out.push("/");
    out.push_decimal(id & ((1 << QGROUP_NUMBER_BITS) - 1));
}

fn push_uuid_half(out: &mut Text, half: u64) {
    out.push("0x");
    out.push_hex_bytes(&half.to_be_bytes());
}

/// Returns a key as JSON: the three numbers, and the names of the first two if they have names.
pub(crate) fn json(key: &Key) -> Json {
    let mut type_name = Text::default();
    push_item_type(&mut type_name, key.objectid, key.item_type);
    let mut value = json!({
        "objectid": key.objectid.get(),
        "type": key.item_type.0,
        "type_name": String::from_utf8_lossy(type_name.as_bytes()),
        "offset": key.offset,
    });
    if let (Some(name), Some(object)) = (object_name(key.objectid, key.item_type), value.as_object_mut()) {
        object.insert("objectid_name".to_owned(), name.into());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_btrfs_progs_prints_them() {
        let cases: [(u64, u8, u64, &str); 24] = [
            (256, 1, 0, "key (256 INODE_ITEM 0)"),
            (0, 12, u64::MAX, "key (0 INODE_REF -1)"),
            (1, 0, 5, "key (ROOT_TREE UNKNOWN.0 5)"),
            (1, 216, 5, "key (DEV_ITEMS DEV_ITEM 5)"),
            (1, 204, 5, "key (1 DEV_EXTENT 5)"),
            (u64::MAX, 204, 1, "key (18446744073709551615 DEV_EXTENT 1)"),
            (u64::MAX, 216, 1, "key (-1 DEV_ITEM 1)"),
            (0, 249, 5, "key (DEV_STATS PERSISTENT_ITEM 5)"),
            (1, 249, 5, "key (1 PERSISTENT_ITEM 5)"),
            (0, 246, 5, "key (0/0 QGROUP_RELATION 0/5)"),
            (1 << 48 | 100, 246, 256, "key (1/100 QGROUP_RELATION 0/256)"),
            (0, 242, 1 << 48 | 5, "key (0 QGROUP_INFO 1/5)"),
            (0, 240, 1 << 48 | 5, "key (0 QGROUP_STATUS 281474976710661)"),
            (256, 228, 5, "key (FIRST_CHUNK_TREE CHUNK_ITEM 5)"),
            (256, 216, 1, "key (256 DEV_ITEM 1)"),
            (
                9,
                251,
                10,
                "key (0x0000000000000009 UUID_KEY_SUBVOL 0x000000000000000a)",
            ),
            (5, 132, u64::MAX, "key (FS_TREE ROOT_ITEM 18446744073709551615)"),
            (u64::MAX - 7, 132, 5, "key (TREE_RELOC ROOT_ITEM FS_TREE)"),
            (u64::MAX - 7, 132, 300, "key (TREE_RELOC ROOT_ITEM 300)"),
            (u64::MAX - 5, 132, 256, "key (TREE_LOG ROOT_ITEM 256)"),
            (u64::MAX - 10, 0, 1, "key (FREE_SPACE UNTYPED 1)"),
            (u64::MAX - 12, 248, 0, "key (CSUM_CHANGE TEMPORARY_ITEM 0)"),
            (8192, 180, 7, "key (8192 EXTENT_REF_V0 7)"),
            (13, 254, 7, "key (13 UNKNOWN.254 7)"),
        ];
        for (objectid, item_type, offset, expected) in cases {
            let mut out = Text::default();
            push_key(
                &mut out,
                &Key::new(ObjectId::new(objectid), ItemType(item_type), offset),
            );
            assert_eq!(std::str::from_utf8(out.as_bytes()).unwrap(), expected);
        }
    }
}
