//! Tests of the repair of device sizes: a refusal writes nothing.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold, with known numbers"
)]

use buttress_device::{Device, Engine};
use buttress_format::{ItemType, Logical, TreeId};
use buttress_fs::OpenOptions;
use buttress_hostile::plants;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::sync::Arc;

const PIECE: usize = 1 << 20;

/// Returns the content of a device in pieces.
fn pieces(device: &Device) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < device.size_bytes() {
        let length = PIECE.min(usize::try_from(device.size_bytes() - at).unwrap());
        pieces.push(device.read(at, length).unwrap().to_vec());
        at += length as u64;
    }
    pieces
}

#[test]
fn refused_size_repair_replays_no_log() {
    let mut editor = plants::seed("log");
    let extents = editor.items(TreeId::DEVICE).into_iter();
    let extents = extents.filter(|(key, _)| key.item_type == ItemType::DEV_EXTENT);
    let last = extents.map(|(key, _)| key.offset).max().unwrap();
    editor.cut_device(0, last + (1 << 20));
    let device = Device::with_backend(Arc::new(editor.devices()[0].clone()), Engine::Inline);
    let device = device.with_changes_in_memory();
    let before = pieces(&device);
    let filesystem = OpenOptions::new(vec![device.clone()]).open().unwrap();
    assert!(filesystem.superblock().log_root != Logical::MIN);
    let options = WriteOptions {
        fixes_sizes: true,
        ..WriteOptions::default()
    };
    let error = WritableFilesystem::new(filesystem, options).unwrap_err();
    assert!(
        pieces(&device) == before,
        "the refusal changed the device: {error}"
    );
}
