//! Lost blocks of subvolumes.

use super::chunks::{options, scanned};
use super::lost::{blocks_of, grow, zero_on};
use super::{check, devices, judge, repair, text};
use buttress_device::Device;
use buttress_format::{Logical, TreeId};
use buttress_fs::{OpenOptions, Progress};
use buttress_hostile::plants;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_repair::Kept;
use buttress_repair::recovery::FileTreeRecovery;
use std::path::Path;

const NODE_BYTES: usize = 4096;

fn grown() -> Vec<Device> {
    let devices = devices(&plants::seed("kinds"));
    grow(&devices);
    devices
}

/// Returns the blocks of the top-level subvolume.
fn blocks(devices: &[Device]) -> Vec<Logical> {
    let opened = OpenOptions::new(devices.to_vec()).open().unwrap();
    let node_bytes = opened.superblock().node_bytes;
    assert_eq!(usize::try_from(node_bytes).unwrap(), NODE_BYTES);
    blocks_of(&opened, TreeId::FS)
}

/// Cuts out lost blocks, and repairs the rest.
fn cut_out(folder: &Path, devices: &[Device]) -> Kept {
    let (_, index) = scanned(folder, devices);
    let recovery = FileTreeRecovery::plan(devices, &index, &options(), &Progress::new()).unwrap();
    assert!(recovery.loses_items());
    recovery.run(&options(), true, &Progress::new()).unwrap();
    let before = check(devices, false);
    assert!(
        !before.counts.contains_key("tree-block-damaged"),
        "{}",
        text(&before)
    );
    repair(devices, &before, false).kept
}

#[test]
fn lost_blocks_of_files_are_cut_out_with_consent() {
    let folder = tempfile::tempdir().unwrap();
    let count = blocks(&grown()).len();
    assert!(count > 30, "{count} blocks");
    let mut wrong = String::new();
    // A node or a leaf near the start, and leaves in the middle and at the end.
    for number in [1, 2, count / 2, count - 1] {
        let devices = grown();
        let block = blocks(&devices)[number];
        zero_on(&devices, block, NODE_BYTES);
        cut_out(folder.path(), &devices);
        let after = check(&devices, true);
        if !after.is_clean() {
            wrong += &format!("block {number} of {count}:\n{}", text(&after));
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn misdirected_block_returns_to_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let devices = grown();
    let block = blocks(&devices)[7];
    let opened = OpenOptions::new(devices.clone()).open().unwrap();
    let read = buttress_volume::ExtentRead {
        logical: block,
        length: NODE_BYTES,
    };
    let bytes = opened.volume().read_copy(read, 1).unwrap().to_vec();
    drop(opened);
    zero_on(&devices, block, NODE_BYTES);
    let free = devices[0].size_bytes() - 8 * NODE_BYTES as u64;
    devices[0].write(free, &bytes).unwrap();
    let (_, index) = scanned(folder.path(), &devices);
    let recovery = FileTreeRecovery::plan(&devices, &index, &options(), &Progress::new()).unwrap();
    assert!(!recovery.loses_items());
    assert_eq!(recovery.lost().len(), 1);
    recovery.run(&options(), false, &Progress::new()).unwrap();
    let after = check(&devices, true);
    assert!(after.is_clean(), "{}", text(&after));
}

#[test]
fn linux_accepts_trees_without_cut_out_blocks() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let devices = grown();
    let all = blocks(&devices);
    zero_on(&devices, all[all.len() / 2], NODE_BYTES);
    cut_out(folder.path(), &devices);
    judge("kinds", &devices).unwrap();
}
