//! Sanitised blocks that are damaged.

use super::volumes::{NODE_BYTES, made, opened};
use crate::block;
use crate::sanitise::{Names, Sanitise, Survey};
use buttress_format::{BlockFormat, ChecksumType, ItemType, Key, ObjectId, TreeId, name_hash};

const SANITISE: Sanitise = Sanitise {
    secret: [5; 32],
    strict: false,
};
const MARK: &[u8] = b"content of a file, which nobody may read. ";
const DIRECTORY: u64 = 256;

fn format() -> BlockFormat {
    opened(&made()).volume().block_format().clone()
}

/// Returns a leaf of a tree, with a right checksum.
fn leaf(format: &BlockFormat, owner: TreeId, items: &[(Key, Vec<u8>)]) -> Vec<u8> {
    let device = made();
    let volume = opened(&device);
    let root = volume.superblock().root.get();
    let at = volume
        .volume()
        .map(
            buttress_format::Logical::new(root),
            buttress_format::ByteCount::new(1),
        )
        .unwrap();
    let mut leaf = device.read(at[0].physical.get(), NODE_BYTES).unwrap().to_vec();
    leaf[88..96].copy_from_slice(&owner.get().to_le_bytes());
    block::repack(&mut leaf, items).unwrap();
    block::seal(&mut leaf, format.checksum_type);
    leaf
}

fn key(objectid: u64, item_type: ItemType, offset: u64) -> Key {
    Key::new(ObjectId::new(objectid), item_type, offset)
}

/// Returns names that a survey of these blocks chooses.
fn surveyed(blocks: &[&[u8]]) -> Names {
    let mut survey = Survey::new(&SANITISE);
    blocks.iter().for_each(|block| survey.note(block));
    survey.finish()
}

fn sanitised(block: &[u8], format: &BlockFormat) -> Vec<u8> {
    let mut made = block.to_vec();
    surveyed(&[block]).block(&mut made, format, &|_| false);
    made
}

/// Returns whether a block has eight adjacent bytes of the content.
fn has_content(block: &[u8]) -> bool {
    let content = MARK.repeat(2);
    block
        .windows(8)
        .any(|window| content.windows(8).any(|part| part == window))
}

/// Returns a leaf of which only the heads belong to the items, over old content.
fn torn(leaf: &[u8]) -> Vec<u8> {
    let heads = block::heads(leaf).len();
    let mut torn = leaf.to_vec();
    let content: Vec<u8> = MARK.iter().copied().cycle().take(torn.len()).collect();
    let start = 101 + heads * 25;
    torn[start..].copy_from_slice(&content[start..]);
    torn
}

#[test]
fn torn_leaf_keeps_no_bytes_under_its_heads() {
    let format = format();
    let sizes = [
        (key(256, ItemType::INODE_ITEM, 0), 160),
        (key(256, ItemType::INODE_REF, 256), 12),
        (key(256, ItemType::XATTR_ITEM, 7), 90),
        (key(256, ItemType::DIR_ITEM, 9), 40),
        (key(257, ItemType::EXTENT_DATA, 0), 53),
        (key(258, ItemType::ROOT_ITEM, 0), 439),
        (key(4096, ItemType::EXTENT_ITEM, 4096), 53),
        (key(8192, ItemType::EXTENT_OWNER_REF, 0), 64),
        (key(8192, ItemType::FREE_SPACE_BITMAP, 4096), 256),
        (key(8192, ItemType::QGROUP_INFO, 0), 40),
        (key(8192, ItemType::UUID_KEY_SUBVOL, 0), 64),
        (
            Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, 1 << 20),
            4096,
        ),
    ];
    for (key, length) in sizes {
        let whole = leaf(&format, TreeId::CHECKSUM, &[(key, vec![0; length])]);
        let torn = torn(&whole);
        assert!(has_content(&torn) && !block::is_whole(&torn, ChecksumType::Crc32c));
        let made = sanitised(&torn, &format);
        assert!(!has_content(&made), "{key}");
        assert_eq!(block::items(&made).next().unwrap().key, key);
    }
}
