//! Volumes on image files: opening them for repair, and their ranges with checksums.
#![allow(dead_code, reason = "each test uses a part of this")]

use anyhow::Result;
use buttress_device::{Device, OpenOptions as DeviceOptions};
use buttress_format::{ChecksumItem, ItemType, Key, TreeId};
use buttress_fs::{Filesystem, OpenOptions};
use std::path::PathBuf;

pub(crate) fn open(images: &[PathBuf]) -> Result<(Vec<Device>, Filesystem)> {
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let devices = images.iter().map(|image| Device::open(image, &options));
    let devices = devices.collect::<Result<Vec<_>, _>>()?;
    let filesystem = OpenOptions::new(devices.clone()).open()?;
    Ok((devices, filesystem))
}

/// The ranges of addresses that have checksums.
pub(crate) fn summed(filesystem: &Filesystem) -> Result<Vec<std::ops::Range<u64>>> {
    let tree = filesystem.tree(TreeId::CHECKSUM)?;
    let mut ranges = Vec::new();
    for item in tree.range(Key::MIN..=Key::MAX, buttress_tree::ReadAhead::None) {
        let item = item?;
        if item.key().item_type == ItemType::EXTENT_CSUM {
            let sums = ChecksumItem::parse(&item.key(), item.data(), 4096, filesystem.checksum_type())?;
            ranges.push(sums.start.get()..sums.end.get());
        }
    }
    Ok(ranges)
}
