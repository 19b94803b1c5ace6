//! Parses and encodes the kernel's items and superblocks of the seed volumes again, which must give
//! equal bytes.

use buttress_format::checksum_item::ChecksumItem;
use buttress_format::superblock::SYSTEM_CHUNK_ARRAY_BYTES;
use buttress_format::{
    BalanceItem, BlockFormat, BlockGroupItem, Chunk, DeviceExtent, DeviceItem, DeviceStatistics, DirItem,
    DirItems, Expectation, ExtentItem, FileExtent, FileOffset, FreeSpaceBitmap, FreeSpaceExtent,
    FreeSpaceInfo, InodeExtrefs, InodeItem, InodeNumber, InodeRefs, ItemError, ItemType, Key, Logical,
    ObjectId, OrphanItem, Physical, QgroupInfo, QgroupLimit, QgroupRelation, QgroupStatus, ReplaceItem,
    RootItem, RootRef, SUPERBLOCK_BYTES, SubvolumeId, Superblock, TreeBlock, TreeId, UuidItem,
    parse_keyed_references, uuid_key, uuid_of,
};
use buttress_hostile::seeds;
use bytes::Bytes;
use std::collections::BTreeMap;

type Encoded = Result<Option<(Key, Vec<u8>)>, ItemError>;

/// Returns key and data of an item, encoded from its parsed form; `None` for types that Buttress
/// does not write.
fn encode_again(key: &Key, data: &[u8], format: &BlockFormat) -> Encoded {
    match key.item_type {
        ItemType::INODE_ITEM
        | ItemType::INODE_REF
        | ItemType::INODE_EXTREF
        | ItemType::DIR_ITEM
        | ItemType::DIR_INDEX
        | ItemType::XATTR_ITEM
        | ItemType::EXTENT_DATA
        | ItemType::ORPHAN_ITEM => encode_file_item(key, data, format),
        ItemType::ROOT_ITEM
        | ItemType::ROOT_REF
        | ItemType::ROOT_BACKREF
        | ItemType::UUID_KEY_SUBVOL
        | ItemType::UUID_KEY_RECEIVED_SUBVOL => encode_root_item(key, data, format),
        ItemType::EXTENT_ITEM
        | ItemType::METADATA_ITEM
        | ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF
        | ItemType::BLOCK_GROUP_ITEM
        | ItemType::FREE_SPACE_INFO
        | ItemType::FREE_SPACE_EXTENT
        | ItemType::FREE_SPACE_BITMAP
        | ItemType::EXTENT_CSUM => encode_space_item(key, data, format),
        _ => encode_other(key, data, format),
    }
}

fn encode_file_item(key: &Key, data: &[u8], format: &BlockFormat) -> Encoded {
    let own = InodeNumber::new(key.objectid.get());
    let mut again = Vec::new();
    let key = match key.item_type {
        ItemType::INODE_ITEM => {
            again.extend_from_slice(&InodeItem::parse(key, data)?.to_bytes());
            InodeItem::key(own)
        }
        ItemType::INODE_REF => {
            for name in InodeRefs::parse(key, data)? {
                InodeRefs::push(&mut again, name.index, name.name).unwrap();
            }
            InodeRefs::key(own, InodeNumber::new(key.offset))
        }
        ItemType::INODE_EXTREF => {
            let mut expected = *key;
            for name in InodeExtrefs::parse(key, data)? {
                InodeExtrefs::push(&mut again, name.parent, name.index, name.name).unwrap();
                expected = InodeExtrefs::key(own, name.parent, name.name);
            }
            expected
        }
        ItemType::EXTENT_DATA => {
            again = FileExtent::parse(key, data, format.sector_bytes)?.encode();
            FileExtent::key(own, FileOffset::new(key.offset))
        }
        ItemType::ORPHAN_ITEM => OrphanItem::key(OrphanItem::parse(key, data)?.object),
        item_type => {
            let mut expected = *key;
            for entry in DirItems::parse(key, data)? {
                DirItems::push(&mut again, &entry).unwrap();
                expected = match item_type {
                    ItemType::DIR_ITEM => DirItem::key(own, entry.name),
                    ItemType::DIR_INDEX => DirItem::index_key(own, key.offset),
                    _ => DirItem::xattr_key(own, entry.name),
                };
            }
            expected
        }
    };
    Ok(Some((key, again)))
}

fn encode_root_item(key: &Key, data: &[u8], format: &BlockFormat) -> Encoded {
    Ok(match key.item_type {
        ItemType::ROOT_ITEM => {
            let root = RootItem::parse(key, data, format.sector_bytes)?;
            let is_current = root.has_extension() && data.len() == buttress_format::root::ROOT_ITEM_BYTES;
            is_current.then(|| (*key, root.to_bytes().to_vec()))
        }
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
            let (parent, child) = RootRef::parent_and_child(key);
            let keys = RootRef::keys(SubvolumeId::new(parent.get()), SubvolumeId::new(child.get()));
            let own = keys.into_iter().find(|own| own.item_type == key.item_type);
            own.map(|own| (own, RootRef::parse(key, data).unwrap().encode().unwrap()))
        }
        item_type => {
            let mut again = Vec::new();
            for subvolume in UuidItem::parse(key, data)?.subvolumes() {
                UuidItem::push(&mut again, subvolume);
            }
            Some((uuid_key(uuid_of(key), item_type), again))
        }
    })
}

fn encode_space_item(key: &Key, data: &[u8], format: &BlockFormat) -> Encoded {
    let sector_bytes = format.sector_bytes;
    let again = match key.item_type {
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
            let parsed = ExtentItem::parse(key, data, format)?;
            // The item is built reference by reference, in the opposite order.
            let mut built = ExtentItem {
                inline_references: Default::default(),
                references: 0,
                ..parsed.clone()
            };
            for reference in parsed.inline_references.iter().rev() {
                built.add_inline(*reference).unwrap();
            }
            built.references = parsed.references;
            (built.key(), built.encode())
        }
        ItemType::BLOCK_GROUP_ITEM => {
            let group = BlockGroupItem::parse(key, data)?;
            (group.key(), group.to_bytes().to_vec())
        }
        ItemType::FREE_SPACE_INFO => {
            let info = FreeSpaceInfo::parse(key, data, sector_bytes)?;
            (info.key(), info.to_bytes().to_vec())
        }
        ItemType::FREE_SPACE_EXTENT => (FreeSpaceExtent::parse(key, data, sector_bytes)?.key(), Vec::new()),
        ItemType::FREE_SPACE_BITMAP => {
            let bitmap = FreeSpaceBitmap::parse(key, data, sector_bytes)?;
            (bitmap.key(), bitmap.bits.to_vec())
        }
        ItemType::EXTENT_CSUM => {
            let item = ChecksumItem::parse(key, data, sector_bytes, format.checksum_type)?;
            let range = item.range(item.start, item.end);
            let (start, packed) = range.unwrap_or((item.start, &[]));
            (ChecksumItem::key(start), packed.to_vec())
        }
        _ => {
            let extent = Logical::new(key.objectid.get());
            let references = parse_keyed_references(key, data, sector_bytes)?;
            let own = references[0].keyed_key(extent).unwrap();
            let again = references
                .iter()
                .flat_map(|reference| reference.encode_keyed())
                .collect();
            (own, again)
        }
    };
    Ok(Some(again))
}

fn encode_other(key: &Key, data: &[u8], format: &BlockFormat) -> Encoded {
    Ok(Some(match key.item_type {
        ItemType::CHUNK_ITEM => {
            let chunk = Chunk::parse(key, data, format.sector_bytes)?;
            (Chunk::key(Logical::new(key.offset)), chunk.encode())
        }
        ItemType::DEV_ITEM => {
            let device = DeviceItem::parse(key, data)?;
            (device.key(), device.to_bytes().to_vec())
        }
        ItemType::DEV_EXTENT => {
            let extent = DeviceExtent::parse(key, data, format.sector_bytes)?;
            (extent.key(), extent.to_bytes().to_vec())
        }
        ItemType::PERSISTENT_ITEM if key.objectid == ObjectId::DEVICE_STATISTICS => {
            let statistics = DeviceStatistics::parse(key, data)?;
            (
                DeviceStatistics::key(statistics.device),
                statistics.to_bytes().to_vec(),
            )
        }
        ItemType::TEMPORARY_ITEM if key.objectid == ObjectId::BALANCE => (
            BalanceItem::KEY,
            BalanceItem::parse(key, data)?.to_bytes().to_vec(),
        ),
        ItemType::DEV_REPLACE => (
            ReplaceItem::KEY,
            ReplaceItem::parse(key, data)?.to_bytes().to_vec(),
        ),
        ItemType::QGROUP_STATUS => (QgroupStatus::KEY, QgroupStatus::parse(key, data)?.encode()),
        ItemType::QGROUP_INFO => {
            let info = QgroupInfo::parse(key, data)?;
            (QgroupInfo::key(info.group), info.to_bytes().to_vec())
        }
        ItemType::QGROUP_LIMIT => {
            let limit = QgroupLimit::parse(key, data)?;
            (QgroupLimit::key(limit.group), limit.to_bytes().to_vec())
        }
        ItemType::QGROUP_RELATION => (QgroupRelation::parse(key, data)?.keys()[0], Vec::new()),
        _ => return Ok(None),
    }))
}

#[test]
fn items_and_superblocks_of_the_kernel_are_encoded_as_they_were() {
    let mut counts = BTreeMap::<ItemType, (usize, usize)>::new();
    for aims in seeds::volumes() {
        for &(device, physical) in &aims.superblocks {
            let bytes = aims.volume.devices[device].read(physical, SUPERBLOCK_BYTES);
            let Ok(superblock) = Superblock::check(&bytes, Physical::new(physical)) else {
                continue;
            };
            check_superblock(&superblock, bytes);
            let format = superblock.block_format();
            for place in &aims.places {
                let expectation = Expectation::at(Logical::new(place.logical));
                let Ok(block) = TreeBlock::check(Bytes::from(aims.read(place)), &format, &expectation) else {
                    continue;
                };
                // The kernel leaves arbitrary memory in the reserved bytes of a log's inode items.
                if block.header().owner == TreeId::TREE_LOG {
                    continue;
                }
                for item in block.items() {
                    let (equal, left_out) = counts.entry(item.key.item_type).or_default();
                    match encode_again(&item.key, item.data, &format) {
                        Ok(Some((key, data))) => {
                            assert_eq!(key, item.key, "{}", aims.volume.name);
                            assert!(data == item.data, "{}: {key}", aims.volume.name);
                            *equal += 1;
                        }
                        Ok(None) => *left_out += 1,
                        Err(error) => panic!("{}: {error}", aims.volume.name),
                    }
                }
            }
        }
    }
    for (item_type, (equal, left_out)) in &counts {
        println!("{item_type:24} {equal:6} equal, {left_out:4} left out");
    }
    let missing: Vec<_> = WRITTEN
        .iter()
        .filter(|of| counts.get(of).is_none_or(|count| count.0 == 0))
        .collect();
    assert!(missing.is_empty(), "the seed volumes hold none of {missing:?}");
}

/// The encoded superblock equals the original, except past the chunks of the array, where mkfs
/// leaves former chunks.
fn check_superblock(superblock: &Superblock, mut bytes: Vec<u8>) {
    const ARRAY: usize = 0x32b;
    let used = superblock.system_chunk_array_bytes as usize;
    bytes[ARRAY + used..ARRAY + SYSTEM_CHUNK_ARRAY_BYTES].fill(0);
    let again = superblock.encode().unwrap();
    assert!(
        again[32..] == bytes[32..],
        "superblock at {}",
        superblock.physical
    );
    let parsed = Superblock::check(&again, superblock.physical).unwrap();
    let checksum = parsed.checksum;
    assert_eq!(
        Superblock {
            checksum,
            ..superblock.clone()
        },
        parsed
    );
}

/// The item types that the seed volumes hold and Buttress writes.
const WRITTEN: &[ItemType] = &[
    ItemType::INODE_EXTREF,
    ItemType::FREE_SPACE_BITMAP,
    ItemType::QGROUP_STATUS,
    ItemType::QGROUP_INFO,
    ItemType::QGROUP_LIMIT,
    ItemType::QGROUP_RELATION,
    ItemType::INODE_ITEM,
    ItemType::INODE_REF,
    ItemType::XATTR_ITEM,
    ItemType::DIR_ITEM,
    ItemType::DIR_INDEX,
    ItemType::EXTENT_DATA,
    ItemType::EXTENT_CSUM,
    ItemType::ROOT_ITEM,
    ItemType::ROOT_BACKREF,
    ItemType::ROOT_REF,
    ItemType::EXTENT_ITEM,
    ItemType::METADATA_ITEM,
    ItemType::BLOCK_GROUP_ITEM,
    ItemType::FREE_SPACE_INFO,
    ItemType::FREE_SPACE_EXTENT,
    ItemType::DEV_EXTENT,
    ItemType::DEV_ITEM,
    ItemType::CHUNK_ITEM,
    ItemType::PERSISTENT_ITEM,
    ItemType::UUID_KEY_SUBVOL,
];
