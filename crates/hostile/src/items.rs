//! A target for each item type: key and data from the input, or with a repaired key.
//!
//! An input is a byte of choices, the key's object id and offset, and the item's data. The first
//! bit of the choices requests a repaired key: the only object id or offset that the type can have,
//! or the hash of the first name. Without the repaired key, the first checks would reject most
//! inputs. Two further bits choose the sector size.

use crate::input::Input;
use crate::{Depth, Target};
use buttress_format::checksum_item::ChecksumItem;
use buttress_format::{
    BlockFormat, ChecksumType, CompatRo, Generation, Incompat, InodeNumber, ItemType, Key, ObjectId, TreeId,
    Uuid, extref_hash, name_hash,
};
use std::fmt::Debug;
use std::hint::black_box;
use std::sync::Arc;

/// The arguments of an item's parser beside key and data.
struct Volume {
    sector_bytes: u32,
    checksum_type: ChecksumType,
    format: BlockFormat,
}

const SECTOR_SIZES: [u32; 4] = [4096, 8192, 16_384, 65_536];

/// The length of an input's part before the item data.
pub const HEAD_BYTES: usize = 17;

/// Returns the input of an item target for this key and data, at 4 KiB sectors.
#[must_use]
pub fn encode(key: &Key, data: &[u8]) -> Vec<u8> {
    [
        &[0][..],
        &key.objectid.get().to_le_bytes(),
        &key.offset.to_le_bytes(),
        data,
    ]
    .concat()
}

fn run(
    bytes: &[u8],
    item_type: ItemType,
    mend: fn(&mut Key, &mut Vec<u8>),
    parse: fn(&Key, &[u8], &Volume) -> bool,
) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let sector_bytes = SECTOR_SIZES[usize::from(choices >> 1 & 3)];
    let checksum_type = ChecksumType::ALL[usize::from(choices >> 3 & 3)];
    let mut key = Key::new(ObjectId::new(input.u64()), item_type, input.u64());
    let mut data = input.rest().to_vec();
    if choices & 1 != 0 {
        mend(&mut key, &mut data);
    }
    let mut incompat = Incompat::from_bits_retain(0);
    if choices & 0x20 == 0 {
        incompat |= Incompat::SKINNY_METADATA;
    }
    if choices & 0x40 != 0 {
        incompat |= Incompat::SIMPLE_QUOTA;
    }
    let format = BlockFormat {
        node_bytes: sector_bytes.max(16_384),
        sector_bytes,
        checksum_type,
        fsid: Uuid::nil(),
        seed_fsids: Arc::default(),
        former_checksum_type: None,
        changes_checksums: false,
        chunk_tree_uuid: None,
        generation: Generation::new(u64::from(!choices >> 7) << 40).into(),
        incompat,
        compat_ro: CompatRo::from_bits_retain(0),
    };
    Depth::passed(parse(
        &key,
        &data,
        &Volume {
            sector_bytes,
            checksum_type,
            format,
        },
    ))
}

/// Formats a parsed value or its error. Returns whether the value was parsed.
fn used<T: Debug, E: Debug + std::fmt::Display>(result: Result<T, E>) -> bool {
    match result {
        Ok(item) => {
            black_box(format!("{item:?}"));
            true
        }
        Err(error) => {
            black_box(error.to_string());
            false
        }
    }
}

/// Formats the elements of an iterator as [`used`] does.
fn used_all<I: Iterator<Item: Debug>, E: Debug + std::fmt::Display>(result: Result<I, E>) -> bool {
    used(result.map(|items| items.map(|item| format!("{item:?}").len()).sum::<usize>()))
}

fn keep(_: &mut Key, _: &mut Vec<u8>) {}

fn align(key: &mut Key, _: &mut Vec<u8>) {
    key.objectid = ObjectId::new(key.objectid.get() & !0xffff & (u64::MAX >> 8));
    key.offset = key.offset & !0xffff & (u64::MAX >> 8);
}

fn of_inode(key: &mut Key, data: &mut Vec<u8>) {
    data.resize(160, 0);
    let kind = [0x10, 0x20, 0x40, 0x60, 0x80, 0xa0, 0xc0, 0x40][usize::from(data[55] & 7)];
    data[53] = data[53] & 0x0f | kind;
    data[54..56].fill(0);
    // The size is below 2^63, and each flag has a meaning.
    data[23] &= 0x7f;
    data[65] &= 0x0f;
    data[66..72].fill(0);
    key.objectid = ObjectId::new(256 + (key.objectid.get() & 0xffff));
    key.offset = 0;
}

/// Makes an entry's name end with the item, and removes bytes that no name can hold.
fn one_name(data: &mut [u8], length_at: usize, head_bytes: usize) {
    let Some(name_bytes) = data.len().checked_sub(head_bytes) else {
        return;
    };
    let length = u16::try_from(name_bytes).unwrap_or(u16::MAX);
    data[length_at..length_at + 2].copy_from_slice(&length.to_le_bytes());
    for byte in &mut data[head_bytes..] {
        if matches!(byte, 0 | b'/') {
            *byte = b'_';
        }
    }
}

fn one_reference(_: &mut Key, data: &mut Vec<u8>) {
    data.truncate(10 + 255);
    one_name(data, 8, 10);
}

fn one_root(data: &mut Vec<u8>) {
    data.truncate(18 + 255);
    one_name(data, 16, 18);
}

/// Makes the item a single entry, whose name has the hash in the key.
fn one_extended(key: &mut Key, data: &mut Vec<u8>) {
    one_root(data);
    let mut input = Input::new(data);
    let parent = InodeNumber::new(input.u64());
    input.bytes(10);
    key.offset = extref_hash(parent, input.rest());
}

/// Makes the item a single entry for an inode, under the hash of its name.
fn one_entry(key: &mut Key, data: &mut Vec<u8>) {
    data.truncate(30 + 255);
    if data.len() < 30 {
        return;
    }
    if key.item_type == ItemType::XATTR_ITEM {
        data[..17].fill(0);
        data[29] = 8;
        // Half of the data after the header is the attribute's value.
        let name_bytes = u16::try_from((data.len() - 30) / 2).unwrap_or(0);
        let value_bytes = u16::try_from(data.len() - 30).unwrap_or(0) - name_bytes;
        data[25..27].copy_from_slice(&value_bytes.to_le_bytes());
        data[27..29].copy_from_slice(&name_bytes.to_le_bytes());
        key.offset = name_hash(&data[30..30 + usize::from(name_bytes)]);
    } else {
        data[1..8].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0]);
        data[8..17].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0]);
        data[25..27].fill(0);
        data[29] %= 8;
        one_name(data, 27, 30);
        key.offset = name_hash(&data[30..]);
    }
}

/// Makes the item a regular or preallocated extent, with whole sectors and small numbers.
fn small_extent(key: &mut Key, data: &mut Vec<u8>) {
    key.offset &= 0xff_0000;
    let Some(head) = data.get_mut(..21) else { return };
    head[16] %= 4;
    head[17] = 0;
    head[20] %= 3;
    if head[20] == 0 {
        key.offset = 0;
        return;
    }
    data.resize(53, 0);
    for at in [8, 21, 29, 37, 45] {
        // The numbers of the extent become multiples of 64 KiB below 16 MiB.
        data[at..at + 2].fill(0);
        data[at + 3..at + 8].fill(0);
    }
}

/// Makes the item a root item of either length with possible levels, flags and address.
fn small_root(key: &mut Key, data: &mut Vec<u8>) {
    key.objectid = TreeId::FS.object_id();
    data.resize(if data.len() > 300 { 439 } else { 239 }, 0);
    data[176..178].fill(0);
    data[208] &= 1;
    data[209..216].fill(0);
    data[237] = 1 + data[237] % 7;
    data[238] %= 8;
}

macro_rules! item_targets {
    ($($name:ident $item_type:ident $mend:expr, $parse:expr;)*) => {
        /// Returns the targets of all item types.
        pub(crate) fn targets() -> Vec<Target> {
            $(fn $name(bytes: &[u8]) -> Depth {
                run(bytes, ItemType::$item_type, $mend, $parse)
            })*
            vec![$(Target {
                name: concat!("item_", stringify!($name)),
                input_bytes_max: 1024,
                body: $name,
            },)*]
        }

        /// Repairs the key by its type and the item's data.
        pub(crate) fn mend(key: &mut Key, data: &mut Vec<u8>) {
            $(if key.item_type == ItemType::$item_type {
                let mend: fn(&mut Key, &mut Vec<u8>) = $mend;
                return mend(key, data);
            })*
        }

        /// The item types of the targets.
        pub(crate) const TYPES: &[ItemType] = &[$(ItemType::$item_type,)*];

        /// Parses an item of any type, and formats the result.
        pub(crate) fn parse(key: &Key, data: &[u8], format: &BlockFormat) -> bool {
            let volume = Volume {
                sector_bytes: format.sector_bytes,
                checksum_type: format.checksum_type,
                format: format.clone(),
            };
            $(if key.item_type == ItemType::$item_type {
                let parse: fn(&Key, &[u8], &Volume) -> bool = $parse;
                return parse(key, data, &volume);
            })*
            false
        }

        /// Returns the name of the target of this item type.
        #[must_use]
        pub fn target_of(key: &Key) -> Option<&'static str> {
            $(if key.item_type == ItemType::$item_type {
                return Some(concat!("item_", stringify!($name)));
            })*
            None
        }
    };
}

use buttress_format as f;

item_targets! {
    inode INODE_ITEM of_inode, |key, data, _| used(f::InodeItem::parse(key, data));
    inode_ref INODE_REF one_reference, |key, data, _| used_all(f::InodeRefs::parse(key, data));
    inode_extref INODE_EXTREF one_extended, |key, data, _| used_all(f::InodeExtrefs::parse(key, data));
    xattr XATTR_ITEM one_entry, |key, data, _| used_all(f::DirItems::parse(key, data));
    dir_item DIR_ITEM one_entry, |key, data, _| used_all(f::DirItems::parse(key, data));
    dir_index DIR_INDEX one_entry, |key, data, _| used_all(f::DirItems::parse(key, data));
    verity_descriptor VERITY_DESC_ITEM |key, _| key.offset &= 1,
        |key, data, _| used(f::VerityDescriptor::parse(key, data));
    verity_merkle VERITY_MERKLE_ITEM keep, |key, data, _| used(f::VerityMerkle::parse(key, data));
    orphan ORPHAN_ITEM |key, _| key.objectid = ObjectId::ORPHAN,
        |key, data, _| used(f::OrphanItem::parse(key, data));
    dir_log_range DIR_LOG_INDEX |key, _| key.offset &= 0xffff,
        |key, data, _| used(f::DirLogRange::parse(key, data));
    file_extent EXTENT_DATA small_extent,
        |key, data, volume| used(f::FileExtent::parse(key, data, volume.sector_bytes));
    checksums EXTENT_CSUM |key, data| {
            align(key, data);
            key.objectid = ObjectId::EXTENT_CHECKSUM;
        },
        |key, data, volume| {
            let item = ChecksumItem::parse(key, data, volume.sector_bytes, volume.checksum_type);
            if let Ok(item) = &item {
                assert_eq!(item.iter().count(), item.sector_count());
                assert_eq!(item.range(item.start, item.end), Some((item.start, data)));
            }
            used(item)
        };
    root ROOT_ITEM small_root,
        |key, data, volume| used(f::RootItem::parse(key, data, volume.sector_bytes));
    root_ref ROOT_REF |key, data| {
            one_root(data);
            key.objectid = TreeId::FS.object_id();
            key.offset = 256 + (key.offset & 0xff);
        },
        |key, data, _| used(f::RootRef::parse(key, data));
    root_backref ROOT_BACKREF |key, data| {
            one_root(data);
            key.offset = TreeId::FS.get();
            key.objectid = ObjectId::new(256 + (key.objectid.get() & 0xff));
        },
        |key, data, _| used(f::RootRef::parse(key, data));
    extent EXTENT_ITEM align, |key, data, volume| used(f::ExtentItem::parse(key, data, &volume.format));
    metadata_extent METADATA_ITEM |key, data| {
            align(key, data);
            key.offset = key.objectid.get() >> 16 & 7;
        },
        |key, data, volume| used(f::ExtentItem::parse(key, data, &volume.format));
    tree_block_ref TREE_BLOCK_REF align, keyed;
    extent_data_ref EXTENT_DATA_REF align, keyed;
    shared_block_ref SHARED_BLOCK_REF align, keyed;
    shared_data_ref SHARED_DATA_REF align, keyed;
    block_group BLOCK_GROUP_ITEM align, |key, data, _| used(f::BlockGroupItem::parse(key, data));
    free_space_info FREE_SPACE_INFO align,
        |key, data, volume| used(f::FreeSpaceInfo::parse(key, data, volume.sector_bytes));
    free_space_extent FREE_SPACE_EXTENT align,
        |key, data, volume| used(f::FreeSpaceExtent::parse(key, data, volume.sector_bytes));
    free_space_bitmap FREE_SPACE_BITMAP |key, data| {
            align(key, data);
            key.offset = (data.len() as u64).saturating_mul(8 * 4096);
        },
        |key, data, volume| used(f::FreeSpaceBitmap::parse(key, data, volume.sector_bytes));
    device_extent DEV_EXTENT align,
        |key, data, volume| used(f::DeviceExtent::parse(key, data, volume.sector_bytes));
    device DEV_ITEM |key, _| key.objectid = ObjectId::DEVICE_ITEMS,
        |key, data, _| used(f::DeviceItem::parse(key, data));
    chunk CHUNK_ITEM |key, data| {
            align(key, data);
            key.objectid = ObjectId::FIRST_CHUNK_TREE;
        },
        |key, data, volume| used(f::Chunk::parse(key, data, volume.sector_bytes));
    raid_stripe RAID_STRIPE align,
        |key, data, volume| used(f::RaidStripeExtent::parse(key, data, volume.sector_bytes));
    qgroup_status QGROUP_STATUS zero, |key, data, _| used(f::QgroupStatus::parse(key, data));
    qgroup_info QGROUP_INFO zero, |key, data, _| used(f::QgroupInfo::parse(key, data));
    qgroup_limit QGROUP_LIMIT zero, |key, data, _| used(f::QgroupLimit::parse(key, data));
    qgroup_relation QGROUP_RELATION zero, |key, data, _| used(f::QgroupRelation::parse(key, data));
    balance TEMPORARY_ITEM |key, _| key.objectid = ObjectId::BALANCE,
        |key, data, _| used(f::BalanceItem::parse(key, data));
    device_statistics PERSISTENT_ITEM |key, _| key.objectid = ObjectId::DEVICE_STATISTICS,
        |key, data, _| used(f::DeviceStatistics::parse(key, data));
    device_replace DEV_REPLACE zero, |key, data, _| used(f::ReplaceItem::parse(key, data));
    uuid_own UUID_KEY_SUBVOL keep, |key, data, _| used(f::UuidItem::parse(key, data));
    uuid_received UUID_KEY_RECEIVED_SUBVOL keep, |key, data, _| used(f::UuidItem::parse(key, data));
}

fn keyed(key: &Key, data: &[u8], volume: &Volume) -> bool {
    used(f::parse_keyed_references(key, data, volume.sector_bytes))
}

fn zero(key: &mut Key, _: &mut Vec<u8>) {
    key.objectid = ObjectId::MIN;
}
