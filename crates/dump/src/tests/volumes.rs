//! Dumps and restores of small volumes in memory.

use crate::block;
use crate::capturing::{DumpOptions, Dumped, write};
use crate::reading::{DumpItem, DumpReader};
use crate::restoring::{OverCopies, restore};
use crate::writing::ClusterWriter;
use buttress_device::Device;
use buttress_format::{BlockGroupFlags, ByteCount, ChecksumType, ItemType, Logical, TreeId, Uuid};
use buttress_fs::open::OpenOptions;
use buttress_fs::{Filesystem, Progress};
use buttress_mkfs::{Identity, Options};
use std::io::{self, Cursor, Read, Seek, SeekFrom};

const DEVICE_BYTES: usize = 128 << 20;
pub(super) const NODE_BYTES: usize = 16384;
const MARK: &[u8] = b"content of a file";

/// Returns a new volume on one device.
pub(super) fn made() -> Device {
    let device = Device::memory(vec![0; DEVICE_BYTES]);
    let id = Uuid::from_u128;
    let identity = Identity {
        fsid: id(1),
        chunk_tree: id(2),
        top_level: id(3),
        devices: vec![id(4)],
        time: buttress_format::Timestamp::default(),
    };
    buttress_mkfs::make(std::slice::from_ref(&device), &Options::default(), &identity).unwrap();
    device
}

pub(super) fn opened(device: &Device) -> Filesystem {
    OpenOptions::new(vec![device.clone()]).open().unwrap()
}

fn dumped(device: &Device, walk: bool) -> (Dumped, Vec<DumpItem>) {
    let options = DumpOptions {
        level: 9,
        walk,
        ..DumpOptions::default()
    };
    let mut bytes = Vec::new();
    let dumped = write(&opened(device), &mut bytes, &options, &Progress::new()).unwrap();
    let mut reader = DumpReader::new(&bytes[..]);
    let items = core::iter::from_fn(|| reader.next_item().unwrap()).collect();
    (dumped, items)
}

/// Returns the first address of a chunk of this kind.
pub(super) fn chunk_start(device: &Device, kind: BlockGroupFlags) -> u64 {
    let map = opened(device).volume().chunk_map();
    let mut chunks = map.chunks().iter();
    let chunk = chunks.find(|chunk| chunk.flags().contains(kind));
    chunk.unwrap().start().get()
}

/// Writes all copies of the bytes at an address.
pub(super) fn put(device: &Device, logical: u64, bytes: &[u8]) {
    let length = ByteCount::new(bytes.len() as u64);
    let volume = opened(device);
    for place in volume.volume().map(Logical::new(logical), length).unwrap() {
        device.write(place.physical.get(), bytes).unwrap();
    }
}

/// Changes the address of a root in its root item.
fn set_root(device: &Device, tree: TreeId, logical: u64) {
    const ADDRESS_AT: usize = 176;
    let root = opened(device).superblock().root.get();
    let at = opened(device)
        .volume()
        .map(Logical::new(root), ByteCount::new(1))
        .unwrap();
    let mut leaf = device.read(at[0].physical.get(), NODE_BYTES).unwrap().to_vec();
    let is_root = |item: &block::RawItem| {
        item.key.item_type == ItemType::ROOT_ITEM && item.key.objectid.get() == tree.get()
    };
    let item = block::items(&leaf).find(is_root).unwrap();
    let at = item.range.start + ADDRESS_AT;
    leaf[at..at + 8].copy_from_slice(&logical.to_le_bytes());
    block::seal(&mut leaf, ChecksumType::Crc32c);
    put(device, root, &leaf);
}

#[test]
fn pointer_to_file_content_does_not_dump_the_content() {
    let device = made();
    let (whole, _) = dumped(&device, true);
    let data = chunk_start(&device, BlockGroupFlags::DATA);
    put(&device, data, &MARK.repeat(NODE_BYTES / MARK.len()));
    set_root(&device, TreeId::DATA_RELOCATION, data);
    let (found, items) = dumped(&device, true);
    let has_mark = |item: &DumpItem| item.bytes.windows(MARK.len()).any(|bytes| bytes == MARK);
    assert!(!items.iter().any(has_mark), "the dump has file content");
    assert_eq!((found.blocks, found.unreadable), (whole.blocks - 1, 1));
}

#[test]
fn repeated_items_over_superblocks_are_kept_once() {
    let mut kept = OverCopies::default();
    for number in 0..10_000_u64 {
        kept.keep(&DumpItem {
            logical: 64 << 20,
            bytes: vec![number.to_le_bytes()[0]; NODE_BYTES],
        });
    }
    assert_eq!(kept.0.len(), 1);
    let last = 9_999_u64.to_le_bytes()[0];
    assert!(kept.0[&(64 << 20)].bytes.iter().all(|byte| *byte == last));
}

/// Returns the bytes of a dump with these items.
fn dump_of(items: &[DumpItem]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ClusterWriter::new(&mut bytes, 9, 1);
    items.iter().for_each(|item| writer.push(item.clone()).unwrap());
    writer.finish().unwrap();
    bytes
}

/// Places a block directly before the first metadata chunk, in the adjacent chunk. Returns the
/// address of the border.
fn with_block_before_border(device: &Device) -> u64 {
    let border = chunk_start(device, BlockGroupFlags::METADATA);
    let before = border - NODE_BYTES as u64;
    let (_, items) = dumped(device, true);
    let blocks = items
        .iter()
        .skip(1)
        .flat_map(|item| item.bytes.chunks(NODE_BYTES));
    let mut blocks = blocks.filter(|block| block::owner(block) == Some(TreeId::DATA_RELOCATION));
    let mut moved = blocks.next().unwrap().to_vec();
    moved[48..56].copy_from_slice(&before.to_le_bytes());
    block::seal(&mut moved, ChecksumType::Crc32c);
    put(device, before, &moved);
    set_root(device, TreeId::DATA_RELOCATION, before);
    border
}

/// Joins the items on both sides of an address.
fn joined(items: &[DumpItem], border: u64) -> Vec<DumpItem> {
    let mut items = items.to_vec();
    let after = items.iter().position(|item| item.logical == border);
    let after = items.remove(after.expect("an item starts at the border"));
    let ends_there = |item: &&mut DumpItem| item.logical + item.bytes.len() as u64 == border;
    let before = items.iter_mut().skip(1).find(ends_there).unwrap();
    before.bytes.extend_from_slice(&after.bytes);
    items
}

#[test]
fn items_over_chunk_borders_are_restored_and_not_written() {
    let device = made();
    let border = with_block_before_border(&device);
    let (_, items) = dumped(&device, true);
    let dump = dump_of(&joined(&items, border));
    let target = Device::memory(vec![0; DEVICE_BYTES]);
    restore(
        &mut Cursor::new(dump),
        std::slice::from_ref(&target),
        &Progress::new(),
    )
    .unwrap();
    let (_, restored) = dumped(&target, true);
    assert!(restored[1..] == items[1..]);
}

#[test]
fn item_without_a_chunk_is_refused_before_the_target_changes() {
    let device = made();
    let (_, mut items) = dumped(&device, false);
    let last = items.last().unwrap().bytes.clone();
    for logical in [1 << 50, u64::MAX - 4095] {
        items.push(DumpItem {
            logical,
            bytes: last.clone(),
        });
        let target = Device::memory(vec![7; 1 << 20]);
        let targets = std::slice::from_ref(&target);
        let refused = restore(&mut Cursor::new(dump_of(&items)), targets, &Progress::new());
        refused.unwrap_err();
        assert_eq!(target.size_bytes(), 1 << 20);
        let bytes = target.read(0, 1 << 20).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7), "the target changed");
        items.pop();
    }
}

/// A dump that fails in its third pass.
struct FailingLate {
    dump: Cursor<Vec<u8>>,
    passes: u32,
}

impl Read for FailingLate {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.passes == 3 && self.dump.position() >= 1024 {
            true => Err(io::Error::other("the dump is gone")),
            false => self.dump.read(buffer),
        }
    }
}

impl Seek for FailingLate {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.passes += 1;
        self.dump.seek(to)
    }
}

#[test]
fn cut_restore_leaves_no_superblock() {
    let device = made();
    let (_, items) = dumped(&device, false);
    let mut dump = FailingLate {
        dump: Cursor::new(dump_of(&items)),
        passes: 0,
    };
    let targets = std::slice::from_ref(&device);
    let cut = restore(&mut dump, targets, &Progress::new()).unwrap_err();
    assert_eq!(cut.to_string(), "the dump is gone");
    for at in [64 << 10, 64 << 20] {
        let bytes = device.read(at, 4096).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "superblock at {at}");
    }
}
