//! Recoveries of lost root trees.

use super::chunks::{options, scanned};
use super::lost::{blocks_of, grow};
use super::{check, devices, judge, text};
use buttress_device::Device;
use buttress_format::{ByteCount, Generation, Key, Logical, TreeId};
use buttress_fs::{OpenOptions, Progress};
use buttress_hostile::plants;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_repair::recovery::{Error, RootRecovery};
use buttress_salvage::RootEvidence;
use buttress_salvage::survey::tree_roots;
use std::collections::BTreeMap;
use std::path::Path;

/// The seed volumes whose root trees no parity restores, without a pending log.
const VOLUMES: [&str; 6] = ["kinds", "quota", "squota", "old", "raid1", "raid10"];

/// Returns the roots of all trees that no rebuild replaces.
fn roots(devices: &[Device]) -> BTreeMap<Key, (Logical, Generation)> {
    let opened = OpenOptions::new(devices.to_vec()).open().unwrap();
    let found = tree_roots(&opened, &Progress::new()).unwrap();
    let space = [TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP];
    let kept = found
        .into_iter()
        .filter(|(key, _)| !space.contains(&TreeId::new(key.objectid.get())));
    kept.map(|(key, item)| (key, (item.logical, item.generation)))
        .collect()
}

/// Zeros all blocks of the last commit's root tree.
fn lose_root_tree(devices: &[Device]) {
    let opened = OpenOptions::new(devices.to_vec()).open().unwrap();
    let node_bytes = opened.superblock().node_bytes;
    let zeros = vec![0; usize::try_from(node_bytes).unwrap()];
    for block in blocks_of(&opened, TreeId::ROOT) {
        let mapped = opened.volume().map(block, ByteCount::new(node_bytes.into()));
        for mapping in mapped.unwrap() {
            let device = usize::try_from(mapping.device.get() - 1).unwrap();
            devices[device].write(mapping.physical.get(), &zeros).unwrap();
        }
    }
}

fn recover(folder: &Path, devices: &[Device]) -> Result<Option<String>, Error> {
    let (identity, index) = scanned(folder, devices);
    let recovery = RootRecovery::plan(devices, &identity, &index, &Progress::new())?;
    assert!(recovery.is_needed());
    recovery.run(&options(), false, &Progress::new())
}

#[test]
fn lost_root_tree_of_each_volume_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = String::new();
    for volume in VOLUMES {
        let devices = devices(&plants::seed(volume));
        let before = roots(&devices);
        lose_root_tree(&devices);
        match recover(folder.path(), &devices) {
            Ok(None) => {}
            other => {
                wrong += &format!("{volume}: {other:?}\n");
                continue;
            }
        }
        let after = check(&devices, true);
        if !after.is_clean() {
            wrong += &format!("{volume}:\n{}", text(&after));
        }
        assert_eq!(roots(&devices), before, "{volume}");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Files that were written after the last readable root tree are in the newest root of their tree.
#[test]
fn newest_root_of_each_tree_counts() {
    let folder = tempfile::tempdir().unwrap();
    let devices = devices(&plants::seed("kinds"));
    grow(&devices);
    let before = roots(&devices);
    lose_root_tree(&devices);
    let (identity, index) = scanned(folder.path(), &devices);
    let recovery = RootRecovery::plan(&devices, &identity, &index, &Progress::new()).unwrap();
    recovery.require_proof(false).unwrap();
    let evidence = recovery.recovered().roots.values().map(|root| root.evidence);
    assert!(
        evidence
            .clone()
            .any(|evidence| evidence == RootEvidence::Superblock)
    );
    assert!(evidence.clone().any(|evidence| evidence == RootEvidence::Newest));
    assert_eq!(recovery.losses().count(), 0);
    assert_eq!(recovery.run(&options(), false, &Progress::new()).unwrap(), None);
    let after = check(&devices, true);
    assert!(after.is_clean(), "{}", text(&after));
    assert_eq!(roots(&devices), before);
}

#[test]
fn linux_accepts_recovered_root_trees() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for volume in ["kinds", "raid1"] {
        let devices = devices(&plants::seed(volume));
        lose_root_tree(&devices);
        assert_eq!(recover(folder.path(), &devices).unwrap(), None, "{volume}");
        judge(volume, &devices).unwrap();
    }
}
