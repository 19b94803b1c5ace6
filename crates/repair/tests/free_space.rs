//! Tests of writes to volumes whose free-space tree names used blocks as free.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold, with known numbers"
)]

use buttress_check::Report;
use buttress_device::{Device, Engine};
use buttress_format::{CompatRo, ExtentItem, ItemType, Key, Logical, ObjectId, SubvolumeId, TreeId};
use buttress_fs::{Filesystem, Location, OpenOptions, Progress};
use buttress_hostile::editor::Editor;
use buttress_hostile::plants;
use buttress_tree::ReadAhead;
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::sync::Arc;

/// The offset of the compat_ro features in a superblock.
const COMPAT_RO: usize = 0xb4;

/// Returns the devices of a damaged volume. Changes of them stay in memory.
fn devices(editor: &Editor) -> Vec<Device> {
    let overlays = editor.devices().iter().cloned();
    overlays
        .map(|overlay| Device::with_backend(Arc::new(overlay), Engine::Inline).with_changes_in_memory())
        .collect()
}

fn open(devices: &[Device]) -> Filesystem {
    OpenOptions::new(devices.to_vec()).open().unwrap()
}

fn check(devices: &[Device]) -> Report {
    let options = buttress_check::Options::default();
    buttress_check::check(&open(devices), &options, &Progress::new()).unwrap()
}

/// Returns all tree blocks with their bytes.
fn tree_blocks(filesystem: &Filesystem) -> Vec<(Logical, Vec<u8>)> {
    let format = filesystem.volume().block_format().clone();
    let tree = filesystem.tree(TreeId::EXTENT).unwrap();
    let mut blocks = Vec::new();
    for item in tree.range(.., ReadAhead::None) {
        let item = item.unwrap();
        let key = item.key();
        if key.item_type == ItemType::METADATA_ITEM {
            let extent = ExtentItem::parse(&key, item.data(), &format).unwrap();
            let length = extent.length.to_usize().unwrap();
            blocks.push((extent.start, raw(filesystem, extent.start, length)));
        }
    }
    assert!(!blocks.is_empty());
    blocks
}

/// Returns the bytes of the first copy at an address.
fn raw(filesystem: &Filesystem, logical: Logical, length: usize) -> Vec<u8> {
    let volume = filesystem.volume();
    let mappings = volume
        .map(logical, buttress_format::ByteCount::of(length))
        .unwrap();
    let mapping = &mappings[0];
    let slot = volume
        .devices()
        .into_iter()
        .find(|slot| slot.id() == mapping.device)
        .unwrap();
    let device = slot.device().unwrap().clone();
    device.read(mapping.physical.get(), length).unwrap().to_vec()
}

/// Moves each free range of metadata that follows a used node one node back, with its length.
fn move_free_ranges_over_nodes(editor: &mut Editor) {
    let node = editor.node_bytes() as u64;
    let filesystem = editor.open();
    let nodes: Vec<u64> = tree_blocks(&filesystem).iter().map(|(at, _)| at.get()).collect();
    let mut moved = 0;
    for (key, _) in editor.items(TreeId::FREE_SPACE) {
        let start = key.objectid.get();
        let follows_node = start.checked_sub(node).is_some_and(|at| nodes.contains(&at));
        if key.item_type == ItemType::FREE_SPACE_EXTENT && follows_node {
            let earlier = Key::new(ObjectId::new(start - node), key.item_type, key.offset);
            editor.remove(TreeId::FREE_SPACE, &key);
            editor.insert(TreeId::FREE_SPACE, &earlier, &[]);
            moved += 1;
        }
    }
    assert!(moved > 0, "no free range follows a node");
}

fn clear_features(editor: &mut Editor, features: CompatRo) {
    editor.superblocks(
        None,
        |_| true,
        |bytes| {
            let place = &mut bytes[COMPAT_RO..COMPAT_RO + 8];
            let old = u64::from_le_bytes(place.try_into().unwrap());
            place.copy_from_slice(&(old & !features.bits()).to_le_bytes());
        },
    );
}

/// Requires that the first commit after `before` kept all of its blocks, and a sound volume.
#[track_caller]
fn require_kept(before: &[(Logical, Vec<u8>)], devices: &[Device]) {
    let filesystem = open(devices);
    for (at, bytes) in before {
        let found = raw(&filesystem, *at, bytes.len());
        assert!(found == *bytes, "the block at {at} was overwritten");
    }
    let report = check(devices);
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Makes files, whose tree blocks need several allocations.
fn make_files(writable: &WritableFilesystem) {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    for number in 0..20 {
        let name = format!("new-{number}");
        let new = NewInode::of_root(0o644);
        writable.create(root, name.as_bytes(), &new).unwrap();
    }
}

#[test]
fn write_ignores_an_invalid_free_space_tree() {
    let mut editor = plants::seed("kinds");
    move_free_ranges_over_nodes(&mut editor);
    clear_features(&mut editor, CompatRo::FREE_SPACE_TREE_VALID);
    let devices = devices(&editor);
    let before = tree_blocks(&open(&devices));
    let writable = WritableFilesystem::new(open(&devices), WriteOptions::default()).unwrap();
    make_files(&writable);
    writable.close().unwrap();
    let features = open(&devices).superblock().compat_ro;
    assert!(!features.contains(CompatRo::FREE_SPACE_TREE_VALID));
    require_kept(&before, &devices);
}

#[test]
fn conversion_replaces_an_invalid_free_space_tree() {
    let mut editor = plants::seed("kinds");
    move_free_ranges_over_nodes(&mut editor);
    clear_features(&mut editor, CompatRo::FREE_SPACE_TREE_VALID);
    let devices = devices(&editor);
    let writable = WritableFilesystem::new(open(&devices), WriteOptions::default()).unwrap();
    writable.conversions().make_free_space_tree().unwrap();
    writable.close().unwrap();
    let features = open(&devices).superblock().compat_ro;
    assert!(features.contains(CompatRo::FREE_SPACE_TREE_VALID));
    let report = check(&devices);
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn clearing_does_not_allocate_from_the_free_space_tree() {
    let mut editor = plants::seed("kinds");
    move_free_ranges_over_nodes(&mut editor);
    let devices = devices(&editor);
    let options = WriteOptions {
        clears_free_space_tree: true,
        ..WriteOptions::default()
    };
    let writable = WritableFilesystem::new(open(&devices), options).unwrap();
    make_files(&writable);
    assert!(writable.conversions().clear_free_space_tree().unwrap());
    writable.close().unwrap();
    let features = open(&devices).superblock().compat_ro;
    assert!(!features.intersects(CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID));
    let report = check(&devices);
    assert!(report.is_clean(), "{:?}", report.findings);
}
