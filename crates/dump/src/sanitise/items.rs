//! The names and contents in items, and what of an item a sanitised dump keeps.
//!
//! Items are read without trust: names end where their lengths leave the item, and what follows is
//! zeroed.
//!
//! Source: on-disk format documentation, sections of each item.

use crate::cluster::bytes_at;
use buttress_exact::Exact as _;
use buttress_format::{ItemType, Key, ObjectId, TreeId};
use core::ops::Range;

/// A name in an item, with the value of an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamePlace {
    /// The inode number of the directory that has the name.
    pub(super) directory: u64,
    pub(super) name: Range<usize>,
    pub(super) value: Range<usize>,
}

/// The names of an item.
#[derive(Clone, Debug, Default)]
pub(super) struct NamePlaces {
    pub(super) places: Vec<NamePlace>,
    /// The offset up to which the item has whole entries.
    pub(super) end: usize,
}

/// The layout of entries: a fixed head, and then a name.
struct Layout {
    head_bytes: usize,
    /// The place of the name's length in the head.
    length_at: usize,
    /// The place of the value's length in the head.
    value_length_at: Option<usize>,
    /// The place of the directory's inode number, if it is in the head.
    directory_at: Option<usize>,
}

fn layout(item_type: ItemType) -> Option<Layout> {
    let (head_bytes, length_at, value_length_at, directory_at) = match item_type {
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => (30, 27, Some(25), None),
        ItemType::INODE_REF => (10, 8, None, None),
        ItemType::INODE_EXTREF => (18, 16, None, Some(0)),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => (18, 16, None, Some(0)),
        _ => return None,
    };
    Some(Layout {
        head_bytes,
        length_at,
        value_length_at,
        directory_at,
    })
}

/// Returns the names of an item, or `None` if items of this type have no names.
pub(super) fn names(key: &Key, data: &[u8]) -> Option<NamePlaces> {
    let layout = layout(key.item_type)?;
    let mut found = NamePlaces::default();
    while let Some(place) = place(&layout, key, data, found.end) {
        // No entry has an empty name. The bytes after a wrong length may be a part of a name.
        let is_empty = place.name.is_empty();
        if is_empty && found.end > 0 {
            break;
        }
        found.end = place.value.end;
        found.places.push(place);
        if is_empty {
            break;
        }
    }
    Some(found)
}

fn place(layout: &Layout, key: &Key, data: &[u8], at: usize) -> Option<NamePlace> {
    let length = |offset: usize| {
        let bytes: [u8; 2] = bytes_at(data, at.exact_add(offset))?;
        Some(usize::from(u16::from_le_bytes(bytes)))
    };
    let name_bytes = length(layout.length_at)?;
    let value_bytes = match layout.value_length_at {
        Some(offset) => length(offset)?,
        None => 0,
    };
    let directory = match layout.directory_at {
        Some(offset) => u64::from_le_bytes(bytes_at(data, at.exact_add(offset))?),
        None if key.item_type == ItemType::INODE_REF => key.offset,
        None => key.objectid.get(),
    };
    let start = at.exact_add(layout.head_bytes);
    let name_end = start.exact_add(name_bytes);
    let end = name_end.exact_add(value_bytes);
    (end <= data.len()).then_some(NamePlace {
        directory,
        name: start..name_end,
        value: name_end..end,
    })
}

/// Returns whether a name says nothing about its volume: the names of directories for themselves,
/// and the entry of the default subvolume. A subvolume called `default` is not public.
pub(super) fn is_public(owner: Option<TreeId>, key: &Key, name: &[u8]) -> bool {
    /// The directory of the root tree.
    const DIRECTORY: u64 = 6;
    let is_default = name == b"default"
        && owner == Some(TreeId::ROOT)
        && key.item_type == ItemType::DIR_ITEM
        && key.objectid.get() == DIRECTORY;
    is_default || matches!(name, b"." | b"..")
}

/// The treatment of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributeRule {
    /// The length of the part of the name that stays.
    pub(super) prefix_bytes: usize,
    pub(super) keeps_value: bool,
}

/// Returns the rule for an attribute. Names that a kernel or a policy defines stay; ids in access
/// control lists and properties of btrfs stay with their values.
pub(super) fn attribute_rule(name: &[u8]) -> AttributeRule {
    let starts_with = |prefix: &str| name.starts_with(prefix.as_bytes());
    let keeps_value = starts_with("system.posix_acl_") || starts_with("btrfs.");
    let prefix_bytes = match () {
        () if keeps_value || starts_with("security.") => name.len(),
        () if starts_with("user.") => 5,
        () if starts_with("trusted.") => 8,
        () => 0,
    };
    AttributeRule {
        prefix_bytes,
        keeps_value,
    }
}

/// The part of an item without names that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// All bytes, if the format allows them.
    Valid,
    /// This number of bytes, whatever they are.
    First(usize),
    /// This number of bytes. All bits after them are set, so that the item stays invalid.
    FirstOfInvalid(usize),
}

/// Returns what stays of an item without names.
pub(super) fn kept(key: &Key, data: &[u8]) -> Kept {
    /// The bytes of a file extent item before inline content, and the whole item without any.
    const BEFORE_CONTENT: usize = 21;
    const REGULAR: usize = 53;
    const KIND_AT: usize = 20;
    const INODE_ITEM: usize = 160;
    const ROOT_ITEM: usize = 439;
    const SPACE_CACHE_HEAD: usize = 41;
    match (key.item_type, key.objectid) {
        (ItemType::EXTENT_DATA, _) => match (data.len(), data.get(KIND_AT)) {
            (REGULAR, Some(1 | 2)) if has_addresses(data) => Kept::First(REGULAR),
            (REGULAR, Some(1 | 2)) => Kept::FirstOfInvalid(BEFORE_CONTENT),
            _ => Kept::First(BEFORE_CONTENT),
        },
        (ItemType::INODE_ITEM, _) if data.len() == INODE_ITEM => Kept::First(INODE_ITEM),
        (ItemType::ROOT_ITEM, _) if data.len() == ROOT_ITEM => Kept::First(ROOT_ITEM),
        // The length of the descriptor is at offset 0, and parts of the descriptor at others.
        (ItemType::VERITY_DESC_ITEM, _) if key.offset == 0 => Kept::Valid,
        (ItemType::VERITY_DESC_ITEM | ItemType::VERITY_MERKLE_ITEM | ItemType::STRING_ITEM, _) => {
            Kept::First(0)
        }
        (ItemType::TEMPORARY_ITEM, ObjectId::BALANCE)
        | (ItemType::PERSISTENT_ITEM, ObjectId::DEVICE_STATISTICS) => Kept::Valid,
        (ItemType::TEMPORARY_ITEM | ItemType::PERSISTENT_ITEM, _) => Kept::First(0),
        // Owner references exist only inside extent items.
        (ItemType::EXTENT_OWNER_REF, _) => Kept::First(0),
        (ItemType(0), ObjectId::FREE_SPACE) => Kept::First(SPACE_CACHE_HEAD),
        (item_type, _) if item_type.name().is_some() => Kept::Valid,
        _ => Kept::First(0),
    }
}

/// Returns whether the end of a file extent item has four multiples of a sector, of which one may be
/// wrong. Otherwise the item may be inline, with 32 bytes of content and a wrong kind.
fn has_addresses(data: &[u8]) -> bool {
    const FIELDS: [usize; 4] = [21, 29, 37, 45];
    const SECTOR_BYTES_MIN: u64 = 512;
    let is_wrong = |at: &&usize| {
        let number = bytes_at(data, **at).map(u64::from_le_bytes);
        number.is_none_or(|number| !number.is_multiple_of(SECTOR_BYTES_MIN))
    };
    FIELDS.iter().filter(is_wrong).count() <= 1
}

/// Returns whether the checks of a type tell an item from any other bytes. Checksums and bitmaps are
/// arrays of any bytes, and small items have a check of their size only.
pub(super) const fn has_strict_checks(item_type: ItemType) -> bool {
    matches!(
        item_type,
        ItemType::INODE_ITEM
            | ItemType::EXTENT_DATA
            | ItemType::ROOT_ITEM
            | ItemType::EXTENT_ITEM
            | ItemType::METADATA_ITEM
            | ItemType::BLOCK_GROUP_ITEM
            | ItemType::CHUNK_ITEM
    )
}

/// Returns the fields of an item that no check reads. Beyond the border of a torn sector, they may
/// have other bytes.
pub(super) fn unchecked_fields(key: &Key) -> &'static [Range<usize>] {
    const TIMES_OF_INODE: Range<usize> = 112..160;
    const SIZES_OF_ROOT: Range<usize> = 184..200;
    const DROP_PROGRESS: Range<usize> = 220..237;
    const UUIDS_AND_TIMES_OF_ROOT: Range<usize> = 247..375;
    match key.item_type {
        ItemType::INODE_ITEM => &[TIMES_OF_INODE],
        ItemType::ROOT_ITEM => &[
            TIMES_OF_INODE,
            SIZES_OF_ROOT,
            DROP_PROGRESS,
            UUIDS_AND_TIMES_OF_ROOT,
        ],
        _ => &[],
    }
}

/// Returns whether the offset of keys of this type is a hash of a name.
pub(super) const fn is_hashed(item_type: ItemType) -> bool {
    matches!(
        item_type,
        ItemType::DIR_ITEM | ItemType::XATTR_ITEM | ItemType::INODE_EXTREF
    )
}

/// Returns the place of a copied key in an item: the first key of a tree block when the block was
/// allocated, or the progress of a deletion. Nothing updates the copy if names change.
pub(super) fn copied_key(key: &Key, data: &[u8]) -> Option<usize> {
    const FLAGS_AT: usize = 16;
    const IS_TREE_BLOCK: u8 = 2;
    const FIRST_KEY: usize = 24;
    const DROP_PROGRESS: usize = 220;
    match key.item_type {
        ItemType::EXTENT_ITEM if data.get(FLAGS_AT)? & IS_TREE_BLOCK != 0 => Some(FIRST_KEY),
        ItemType::ROOT_ITEM => Some(DROP_PROGRESS),
        _ => None,
    }
}

/// Returns the fields of an item that nothing uses. In logs, Linux leaves other bytes of the leaf in
/// them, such as content of a file.
pub(super) fn unused_fields(key: &Key) -> &'static [Range<usize>] {
    const OF_INODE: Range<usize> = 80..112;
    const OF_ROOT: Range<usize> = 375..439;
    match key.item_type {
        ItemType::INODE_ITEM => &[OF_INODE],
        // A root item begins with an inode item.
        ItemType::ROOT_ITEM => &[OF_INODE, OF_ROOT],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(item_type: ItemType) -> Key {
        Key::new(ObjectId::new(300), item_type, 256)
    }

    #[test]
    fn names_end_where_lengths_leave_the_item() {
        let mut data = vec![0; 10];
        data[8] = 3;
        data.extend_from_slice(b"abc");
        let whole = names(&key(ItemType::INODE_REF), &data).unwrap();
        assert_eq!((whole.end, whole.places.len()), (13, 1));
        assert_eq!(whole.places[0].directory, 256);
        data[8] = 4;
        let cut = names(&key(ItemType::INODE_REF), &data).unwrap();
        assert_eq!((cut.end, cut.places.len()), (0, 0));
        data[8] = 0;
        data.extend_from_slice(&[b'x'; 20]);
        let empty = names(&key(ItemType::INODE_REF), &data).unwrap();
        assert_eq!((empty.end, empty.places.len()), (10, 1));
        assert!(names(&key(ItemType::INODE_ITEM), &data).is_none());
    }

    #[test]
    fn only_the_entry_of_the_default_subvolume_is_public() {
        let stays = |object: u64, item_type: ItemType| {
            let key = Key::new(ObjectId::new(object), item_type, 256);
            is_public(Some(TreeId::ROOT), &key, b"default")
        };
        assert!(stays(6, ItemType::DIR_ITEM));
        assert!(!stays(256, ItemType::DIR_ITEM));
        assert!(!stays(5, ItemType::ROOT_REF));
        assert!(!stays(256, ItemType::ROOT_BACKREF));
    }

    #[test]
    fn unknown_items_keep_nothing() {
        for item_type in [
            ItemType(3),
            ItemType::STRING_ITEM,
            ItemType::PERSISTENT_ITEM,
            ItemType(0),
        ] {
            assert_eq!(kept(&key(item_type), b"secret"), Kept::First(0));
        }
        assert_eq!(kept(&key(ItemType::CHUNK_ITEM), b""), Kept::Valid);
    }

    #[test]
    fn attributes_of_namespaces_keep_their_part() {
        let rule = |name: &str| {
            let rule = attribute_rule(name.as_bytes());
            (rule.prefix_bytes, rule.keeps_value)
        };
        assert_eq!(rule("user.comment"), (5, false));
        assert_eq!(rule("security.selinux"), (16, false));
        assert_eq!(rule("system.posix_acl_access"), (23, true));
        assert_eq!(rule("btrfs.compression"), (17, true));
        assert_eq!(rule("other.name"), (0, false));
    }
}
