//! Keys: the `(objectid, type, offset)` triple that orders every btrfs tree.
//!
//! Keys compare by object id, then type, then offset. On disk a key is 17 bytes, little-endian,
//! unaligned. [`ItemType`] keeps unknown type numbers: a leaf may hold items that this version has
//! no name for.
//!
//! Source: on-disk format documentation, sections "Key" and "Item types".

use crate::units::ObjectId;
use core::fmt;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The on-disk layout of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawKey {
    /// The object id.
    pub objectid: U64,
    /// The item type.
    pub item_type: u8,
    /// The offset.
    pub offset: U64,
}

const _: () = assert!(size_of::<RawKey>() == 17);

/// The position of an item in a tree. Any 17 bytes form a key; the tree checker decides if the key
/// fits its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The object that the item belongs to: an inode, a tree, an address, ….
    pub objectid: ObjectId,
    /// The type of the item.
    pub item_type: ItemType,
    /// The offset, whose meaning depends on the type: a file offset, a name hash, a length, an id,
    /// ….
    pub offset: u64,
}

impl Key {
    /// The smallest key.
    pub const MIN: Self = Self {
        objectid: ObjectId::MIN,
        item_type: ItemType(0),
        offset: 0,
    };
    /// The largest key.
    pub const MAX: Self = Self {
        objectid: ObjectId::MAX,
        item_type: ItemType(u8::MAX),
        offset: u64::MAX,
    };

    /// A key of its three fields.
    #[must_use]
    pub const fn new(objectid: ObjectId, item_type: ItemType, offset: u64) -> Self {
        Self {
            objectid,
            item_type,
            offset,
        }
    }

    /// Returns the smallest key greater than this one, or `None` for [`Key::MAX`].
    #[must_use]
    pub const fn successor(self) -> Option<Self> {
        let Self {
            objectid,
            item_type,
            offset,
        } = self;
        if let Some(offset) = offset.checked_add(1) {
            return Some(Self {
                objectid,
                item_type,
                offset,
            });
        }
        if let Some(number) = item_type.0.checked_add(1) {
            return Some(Self {
                objectid,
                item_type: ItemType(number),
                offset: 0,
            });
        }
        match objectid.get().checked_add(1) {
            Some(number) => Some(Self {
                objectid: ObjectId::new(number),
                item_type: ItemType(0),
                offset: 0,
            }),
            None => None,
        }
    }
}

impl From<RawKey> for Key {
    fn from(raw: RawKey) -> Self {
        Self {
            objectid: ObjectId::new(raw.objectid.get()),
            item_type: ItemType(raw.item_type),
            offset: raw.offset.get(),
        }
    }
}

impl From<Key> for RawKey {
    fn from(key: Key) -> Self {
        Self {
            objectid: U64::new(key.objectid.get()),
            item_type: key.item_type.0,
            offset: U64::new(key.offset),
        }
    }
}

/// Prints `(objectid TYPE offset)` with numbers in decimal: `(256 INODE_ITEM 0)`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.objectid, self.item_type, self.offset)
    }
}

/// The kind of an item: the middle field of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ItemType(pub u8);

macro_rules! item_types {
    ($($(#[$meta:meta])* $name:ident = $number:literal;)*) => {
        impl ItemType {
            $($(#[$meta])* pub const $name: Self = Self($number);)*

            /// Returns the name of the type in the format documentation, or `None` if the number
            /// has no name.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// Every type that has a name, ordered by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

item_types! {
    /// The inode itself; offset 0.
    INODE_ITEM = 1;
    /// A name of an inode; offset is the parent directory.
    INODE_REF = 12;
    /// Names of an inode that do not fit an INODE_REF; offset is a hash of parent and name.
    INODE_EXTREF = 13;
    /// Extended attributes whose names have the same hash, which is the offset.
    XATTR_ITEM = 24;
    /// fs-verity descriptor.
    VERITY_DESC_ITEM = 36;
    /// fs-verity Merkle tree.
    VERITY_MERKLE_ITEM = 37;
    /// An orphan: an inode without names, or a subvolume whose deletion has not finished.
    ORPHAN_ITEM = 48;
    /// Log tree: a range of directory items that the log holds completely.
    DIR_LOG_ITEM = 60;
    /// Log tree: a range of directory indexes that the log holds completely.
    DIR_LOG_INDEX = 72;
    /// Directory entries by the hash of their names.
    DIR_ITEM = 84;
    /// Directory entries in order of creation.
    DIR_INDEX = 96;
    /// A part of a file's content.
    EXTENT_DATA = 108;
    /// Checksums of data; offset is the logical address of the first sector.
    EXTENT_CSUM = 128;
    /// The root item of a tree.
    ROOT_ITEM = 132;
    /// A subvolume's place in its parent, seen from the subvolume.
    ROOT_BACKREF = 144;
    /// A subvolume's place in its parent, seen from the parent.
    ROOT_REF = 156;
    /// An extent with its references; offset is the length.
    EXTENT_ITEM = 168;
    /// A tree block with its references; offset is the level.
    METADATA_ITEM = 169;
    /// Inline only: the tree that owns an extent, for simple quotas.
    EXTENT_OWNER_REF = 172;
    /// A reference to a tree block by the id of its tree.
    TREE_BLOCK_REF = 176;
    /// A reference to data by tree, inode and offset.
    EXTENT_DATA_REF = 178;
    /// A reference to a tree block by its parent block.
    SHARED_BLOCK_REF = 182;
    /// A reference to data by the leaf that points to it.
    SHARED_DATA_REF = 184;
    /// A block group; offset is the length.
    BLOCK_GROUP_ITEM = 192;
    /// The form in which the free space of a block group is stored.
    FREE_SPACE_INFO = 198;
    /// A free extent.
    FREE_SPACE_EXTENT = 199;
    /// A bitmap of free sectors.
    FREE_SPACE_BITMAP = 200;
    /// A part of a device that a chunk uses.
    DEV_EXTENT = 204;
    /// A device.
    DEV_ITEM = 216;
    /// A chunk.
    CHUNK_ITEM = 228;
    /// The location of an extent's stripes, with the raid-stripe-tree feature.
    RAID_STRIPE = 230;
    /// A remapped range that keeps its address.
    IDENTITY_REMAP = 234;
    /// A remapped range, keyed by its old address.
    REMAP = 235;
    /// A remapped range, keyed by its new address.
    REMAP_BACKREF = 236;
    /// State of quotas.
    QGROUP_STATUS = 240;
    /// Counters of one quota group.
    QGROUP_INFO = 242;
    /// Limits of one quota group.
    QGROUP_LIMIT = 244;
    /// Parent or child of a quota group.
    QGROUP_RELATION = 246;
    /// State that survives mounts until its job ends: a balance.
    TEMPORARY_ITEM = 248;
    /// State that is never removed: device statistics.
    PERSISTENT_ITEM = 249;
    /// A device replacement.
    DEV_REPLACE = 250;
    /// Subvolumes by their uuid.
    UUID_KEY_SUBVOL = 251;
    /// Subvolumes by the uuid that they were received from.
    UUID_KEY_RECEIVED_SUBVOL = 252;
    /// A string, for marking trees in debugging.
    STRING_ITEM = 253;
}

impl ItemType {
    /// The old name of [`ItemType::TEMPORARY_ITEM`].
    pub const BALANCE_ITEM: Self = Self::TEMPORARY_ITEM;
}

impl fmt::Display for ItemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "UNKNOWN.{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_field_by_field() {
        let small = Key::new(ObjectId::new(256), ItemType::INODE_ITEM, u64::MAX);
        let large = Key::new(ObjectId::new(256), ItemType::INODE_REF, 0);
        assert!(small < large);
        assert!(large < Key::new(ObjectId::new(257), ItemType(0), 0));
    }

    #[test]
    fn successor_carries_through_all_fields() {
        let key = Key::new(ObjectId::new(1), ItemType(u8::MAX), u64::MAX);
        assert_eq!(key.successor(), Some(Key::new(ObjectId::new(2), ItemType(0), 0)));
        assert_eq!(Key::MAX.successor(), None);
    }

    #[test]
    fn raw_keys_round_trip() {
        let key = Key::new(ObjectId::new(7), ItemType::CHUNK_ITEM, 9);
        assert_eq!(Key::from(RawKey::from(key)), key);
        assert_eq!(key.to_string(), "(7 CHUNK_ITEM 9)");
    }
}
