//! Sanitised blocks that are damaged.

use super::volumes::{NODE_BYTES, made, opened};
use crate::block;
use crate::capturing::{DumpOptions, Dumped, write};
use crate::reading::{DumpItem, DumpReader};
use crate::sanitise::{Names, Sanitise, Survey};
use buttress_device::{Backend, Device, Engine};
use buttress_format::{
    BlockFormat, ByteCount, ChecksumType, Expectation, ItemType, Key, Logical, ObjectId, TreeBlock, TreeId,
    name_hash,
};
use buttress_fs::open::OpenOptions;
use buttress_fs::{Filesystem, Progress};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

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
        .map(Logical::new(root), ByteCount::new(1))
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
    blocks.iter().for_each(|block| survey.note_names(block));
    blocks.iter().for_each(|block| survey.note_keys(block));
    survey.finish(&Progress::new()).unwrap()
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

/// A device whose read of each of these places fails once.
#[derive(Debug)]
struct FailingOnce {
    device: Device,
    places: Mutex<BTreeSet<u64>>,
}

impl Backend for FailingOnce {
    fn name(&self) -> &'static str {
        "failing once"
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, offset: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let mut at = offset;
        for buffer in buffers {
            let end = at + buffer.len() as u64;
            let mut places = self.places.lock().unwrap();
            if let Some(place) = places.range(at..end).next().copied() {
                places.remove(&place);
                return Err(io::Error::other("a bad sector"));
            }
            buffer.copy_from_slice(&self.device.read(at, buffer.len()).map_err(io::Error::other)?);
            at = end;
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// Returns the items of a sanitised dump, and the report.
fn dumped(volume: &Filesystem) -> (Dumped, Vec<DumpItem>) {
    let options = DumpOptions {
        sanitise: Some(Sanitise {
            strict: true,
            ..SANITISE
        }),
        ..DumpOptions::default()
    };
    let mut bytes = Vec::new();
    let dumped = write(volume, &mut bytes, &options, &Progress::new()).unwrap();
    let mut reader = DumpReader::new(&bytes[..]);
    let items = core::iter::from_fn(|| reader.next_item().unwrap()).collect();
    (dumped, items)
}

#[test]
fn block_that_the_survey_did_not_read_is_left_out() {
    let device = made();
    let (whole, items) = dumped(&opened(&device));
    let backend = Arc::new(FailingOnce {
        device: device.clone(),
        places: Mutex::default(),
    });
    let volume = OpenOptions::new(vec![Device::with_backend(backend.clone(), Engine::Inline)])
        .open()
        .unwrap();
    // Neither opening the volume nor listing its blocks reads this tree.
    let mut blocks = items.iter().skip(1).flat_map(|item| {
        (item.logical..)
            .step_by(NODE_BYTES)
            .zip(item.bytes.chunks(NODE_BYTES))
    });
    let (logical, _) = blocks
        .find(|(_, block)| block::owner(block) == Some(TreeId::DATA_RELOCATION))
        .unwrap();
    let places = volume
        .volume()
        .map(Logical::new(logical), ByteCount::new(1))
        .unwrap();
    *backend.places.lock().unwrap() = places.iter().map(|place| place.physical.get()).collect();
    let (found, _) = dumped(&volume);
    assert!(
        backend.places.lock().unwrap().is_empty(),
        "the survey failed to read the block"
    );
    assert_eq!((found.blocks, found.unreadable), (whole.blocks - 1, 1));
}

/// Returns a directory item with an entry of this name.
fn entry(name: &[u8]) -> (Key, Vec<u8>) {
    let mut data = vec![0; 30];
    data[..8].copy_from_slice(&300_u64.to_le_bytes());
    data[8] = ItemType::INODE_ITEM.0;
    data[17] = 1;
    data[27] = name.len() as u8;
    data[29] = 1;
    data.extend_from_slice(name);
    (key(DIRECTORY, ItemType::DIR_ITEM, name_hash(name)), data)
}

#[test]
fn leaf_with_an_invalid_item_stays_in_order() {
    let format = format();
    let mut items: Vec<(Key, Vec<u8>)> = (b'a'..=b'z').map(|letter| entry(&[letter])).collect();
    items.extend([entry(b"ab"), entry(b"a longer name")]);
    // No mode has all bits.
    items.push((key(DIRECTORY, ItemType::INODE_ITEM, 0), vec![0xff; 160]));
    items.sort_by_key(|(key, _)| *key);
    let old = leaf(&format, TreeId::FS, &items);
    let problems = |block: &[u8]| {
        let expected = Expectation::at(Logical::new(block::address(block).unwrap()));
        let found = TreeBlock::inspect(block.to_vec().into(), &format, &expected);
        let problems = found.failures.iter().map(|failure| failure.problem.to_string());
        problems.collect::<Vec<_>>()
    };
    let before = problems(&old);
    assert!(!before.is_empty() && before.iter().all(|problem| problem.starts_with("slot 0")));
    let made = sanitised(&old, &format);
    assert_eq!(problems(&made), before);
    let keys = |block: &[u8]| block::items(block).map(|item| item.key).collect::<Vec<_>>();
    assert!(keys(&made) != keys(&old), "short names move");
}

#[test]
fn leaf_with_the_level_of_a_node_keeps_no_names() {
    let format = format();
    let mut items: Vec<(Key, Vec<u8>)> = (0..200_u32)
        .map(|number| entry(format!("a name of the {number:4}th file").as_bytes()))
        .collect();
    items.sort_by_key(|(key, _)| *key);
    let mut old = leaf(&format, TreeId::FS, &items);
    old[100] = 1;
    block::seal(&mut old, format.checksum_type);
    let has_names = |block: &[u8]| {
        block
            .windows(9)
            .any(|window| window == b"th fileth" || window == b"name of t")
    };
    // The pointers end after the first data.
    let (heads_end, pointers_end) = (101 + 200 * 25, 101 + 200 * 33);
    let data_start = NODE_BYTES - items.iter().map(|(_, data)| data.len()).sum::<usize>();
    assert!(
        heads_end < data_start && data_start < pointers_end,
        "{data_start}"
    );
    assert!(has_names(&old[..pointers_end]));
    assert!(!has_names(&sanitised(&old, &format)));
}

#[test]
fn copied_keys_have_no_hash_of_a_short_name() {
    let format = format();
    let mut entries = [entry(b"a"), entry(b"ab")];
    entries.sort_by_key(|(key, _)| *key);
    let names = leaf(&format, TreeId::FS, &entries);
    let (present, deleted) = (entry(b"ab").0, entry(b"gone").0);
    let block_item = |address: u64, first: &Key| {
        let mut data = vec![0; 51];
        data[0] = 1;
        data[8] = 1;
        data[16] = 2;
        block::set_key(&mut data, 24, first);
        data[42] = ItemType::TREE_BLOCK_REF.0;
        data[43] = 5;
        (key(address, ItemType::EXTENT_ITEM, NODE_BYTES as u64), data)
    };
    let items = [block_item(1 << 20, &present), block_item(2 << 20, &deleted)];
    let extents = leaf(&format, TreeId::EXTENT, &items);
    let chosen = surveyed(&[&names, &extents]);
    let (mut made_names, mut made) = (names.clone(), extents.clone());
    chosen.block(&mut made_names, &format, &|_| false);
    chosen.block(&mut made, &format, &|_| false);
    let copied: Vec<Key> = block::items(&made)
        .map(|item| block::key(&made[item.range], 24).unwrap())
        .collect();
    assert_eq!(copied.len(), 2);
    assert!(copied[0] != present && block::items(&made_names).any(|item| item.key == copied[0]));
    assert_eq!(copied[1], key(DIRECTORY, ItemType::DIR_ITEM, 0));
}

#[test]
fn inline_extent_of_a_wrong_kind_keeps_no_content() {
    let format = format();
    let mut data = vec![0; 21];
    data[0] = 1;
    data[8] = 32;
    data[20] = 1;
    data.extend_from_slice(&MARK[..32]);
    let old = leaf(&format, TreeId::FS, &[(key(257, ItemType::EXTENT_DATA, 0), data)]);
    assert!(has_content(&old));
    let made = sanitised(&old, &format);
    assert!(!has_content(&made));
    let expected = Expectation::at(Logical::new(block::address(&made).unwrap()));
    assert!(TreeBlock::check(made.into(), &format, &expected).is_err());
}
