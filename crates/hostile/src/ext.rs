//! The target of ext2, ext3 and ext4 volumes: a changed volume, read completely.
//!
//! An input is the number of a volume and a list of changes. A change names a block that is not
//! zero, a place in the block, and up to eight bytes. Two of the volumes have no checksums, so that
//! changes reach every parser. The third has checksums of all metadata.
//!
//! `examples/make_ext_volumes.rs` makes the volumes of `fuzz/ext`.

use crate::input::Input;
use crate::seed_volume::{BLOCK_BYTES, Overlay, SeedVolume};
use crate::{Depth, seeds};
use buttress_device::{Device, Engine};
use buttress_extfs::{Ext, ExtInode, FileKind};
use std::fmt::Display;
use std::fs;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};

/// The largest number of changes of an input.
const CHANGES_MAX: usize = 64;
/// The largest amount of content that is read of a file, in bytes.
const CONTENT_BYTES_MAX: u64 = 1 << 20;

/// Returns the volumes, in the order of their names.
///
/// # Panics
/// Panics if a committed file cannot be read.
pub(crate) fn volumes() -> &'static [SeedVolume] {
    static VOLUMES: OnceLock<Vec<SeedVolume>> = OnceLock::new();
    VOLUMES.get_or_init(|| {
        let files = fs::read_dir(seeds::folder().join("ext")).expect("fuzz/ext is in the repository");
        let mut files: Vec<_> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        files.sort();
        let unpack = |path| {
            let packed = fs::read(path).expect("a volume can be read");
            SeedVolume::unpack("ext", &packed).expect("a volume can be unpacked")
        };
        files.iter().map(unpack).collect()
    })
}

/// The target of a changed ext2, ext3 or ext4 volume.
pub fn ext(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let volumes = volumes();
    let below = &volumes[usize::from(input.byte()) % volumes.len()].devices[0];
    let mut overlay = Overlay::new("ext".to_owned(), Arc::clone(below));
    let blocks: Vec<u64> = overlay.block_numbers().into_iter().collect();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        let block = blocks[usize::from(input.u16()) % blocks.len()];
        let place = u64::from(input.u16()) % BLOCK_BYTES as u64;
        let length = usize::from(input.byte() % 8) + 1;
        overlay.write(block * BLOCK_BYTES as u64 + place, input.bytes(length));
    }
    let device = Device::with_backend(Arc::new(overlay), Engine::Inline);
    match Ext::open(&device) {
        Ok(volume) => {
            read_all(&volume);
            Depth::Passed
        }
        Err(error) => {
            black_box(error.to_string());
            Depth::Refused
        }
    }
}

/// Ends at the first error, which must have a message.
fn exhaust<T, E: Display>(items: impl Iterator<Item = Result<T, E>>) {
    for item in items {
        show(item);
    }
}

fn show<T, E: Display>(result: Result<T, E>) -> Option<T> {
    match result {
        Ok(value) => Some(black_box(value)),
        Err(error) => {
            black_box(error.to_string());
            None
        }
    }
}

fn read_all(volume: &Ext) {
    exhaust(volume.used_blocks());
    for inode in volume.inodes() {
        if let Some(inode) = show(inode) {
            read_inode(volume, &inode);
        }
    }
}

fn read_inode(volume: &Ext, inode: &ExtInode) {
    exhaust(volume.extents(inode));
    show(volume.attributes(inode));
    match inode.kind {
        FileKind::Directory => {
            if let Some(entries) = show(volume.entries(inode)) {
                exhaust(entries);
            }
        }
        FileKind::Symlink => {
            show(volume.link_target(inode));
        }
        FileKind::Regular => {
            show(volume.content(inode, CONTENT_BYTES_MAX));
        }
        _ => {}
    }
}

/// Returns first inputs: each volume without changes, and with one byte of each of some blocks
/// changed.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for volume in 0..3_u8 {
        seeds.push(vec![volume]);
        for block in 0..20 {
            for place in [0, 4, 0x20, 0x28] {
                seeds.push(vec![volume, block, 0, place, 0, 0, 0x7f]);
            }
        }
    }
    seeds
}
