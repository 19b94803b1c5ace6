//! Recoveries of lost chunk trees.

use super::{check, devices, judge, text};
use buttress_device::Device;
use buttress_format::TreeId;
use buttress_fs::{OpenOptions, Progress};
use buttress_hostile::plants;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_packing::SpoolFolder;
use buttress_repair::recovery::{ChunkRecovery, Error, RecoveryOptions};
use buttress_salvage::{BlockIndex, Identity, IndexWriter, OpenedIndex, identify, scan};
use std::path::Path;

/// All seed volumes without a pending log, except one whose data fits several orders of its stripes.
const VOLUMES: [&str; 8] = [
    "kinds", "mixed", "quota", "squota", "old", "raid1", "raid6", "raid10",
];

pub(super) fn options() -> RecoveryOptions {
    RecoveryOptions {
        cache: buttress_format::ByteCount::new(64 << 20),
        spool: None,
    }
}

/// Scans devices into an index in a folder.
pub(super) fn scanned(folder: &Path, devices: &[Device]) -> (Identity, BlockIndex) {
    let progress = Progress::new();
    let identity = identify(devices, &progress).unwrap().remove(0);
    let number = std::fs::read_dir(folder).unwrap().count();
    let path = folder.join(format!("index-{number}"));
    let OpenedIndex::Scanning(mut writer, _) = IndexWriter::open(&path, &identity).unwrap() else {
        panic!("the index is new");
    };
    scan(devices, &identity, &mut writer, &progress).unwrap();
    let finished = writer.finish(1 << 16, &SpoolFolder::new(None), &progress);
    (identity, finished.unwrap())
}

/// Zeros all blocks of a tree that a scan finds.
fn zero_tree(folder: &Path, devices: &[Device], tree: TreeId) {
    let (identity, index) = scanned(folder, devices);
    let zeros = vec![0; usize::try_from(identity.node_bytes).unwrap()];
    let zero_it = |_, record: &buttress_salvage::Record| {
        if record.owner == tree {
            let device = &devices[usize::from(record.device)];
            device.write(record.physical.get(), &zeros).unwrap();
        }
        Ok(())
    };
    index.reader().each(zero_it).unwrap();
}

/// Recovers the chunk tree.
fn recover(folder: &Path, devices: &[Device]) -> Result<(), Error> {
    let (identity, index) = scanned(folder, devices);
    let recovery = ChunkRecovery::plan(devices, &identity, &index, &Progress::new())?;
    assert!(recovery.is_needed());
    recovery.run(&options(), &Progress::new())
}

#[test]
fn lost_chunk_tree_of_each_volume_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = String::new();
    for volume in VOLUMES {
        let devices = devices(&plants::seed(volume));
        let map = |devices: &[Device]| {
            let opened = OpenOptions::new(devices.to_vec()).open().unwrap();
            let chunks = opened.volume().chunk_map();
            let all = chunks.chunks().iter();
            all.map(|chunk| (chunk.start(), chunk.length(), chunk.flags()))
                .collect::<Vec<_>>()
        };
        let before = map(&devices);
        let (identity, index) = scanned(folder.path(), &devices);
        let healthy = ChunkRecovery::plan(&devices, &identity, &index, &Progress::new()).unwrap();
        assert!(!healthy.is_needed(), "{volume}");
        healthy.require_proof().unwrap();
        zero_tree(folder.path(), &devices, TreeId::CHUNK);
        recover(folder.path(), &devices).unwrap_or_else(|error| panic!("{volume}: {error}"));
        let after = check(&devices, true);
        if !after.is_clean() {
            wrong += &format!("{volume}:\n{}", text(&after));
        }
        assert_eq!(map(&devices), before, "{volume}");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn linux_accepts_recovered_chunk_trees() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for volume in ["kinds", "raid10", "raid6"] {
        let devices = devices(&plants::seed(volume));
        zero_tree(folder.path(), &devices, TreeId::CHUNK);
        recover(folder.path(), &devices).unwrap_or_else(|error| panic!("{volume}: {error}"));
        judge(volume, &devices).unwrap();
    }
}

#[test]
fn recovery_without_proof_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let seed = devices(&plants::seed("kinds"));
    zero_tree(folder.path(), &seed, TreeId::CHUNK);
    zero_tree(folder.path(), &seed, TreeId::EXTENT);
    zero_tree(folder.path(), &seed, TreeId::BLOCK_GROUP);
    let tried: Vec<Device> = seed.iter().map(Device::with_changes_in_memory).collect();
    let error = recover(folder.path(), &tried).unwrap_err();
    assert!(matches!(error, Error::Unproven { .. }), "{error}");
    let length = usize::try_from(seed[0].size_bytes()).unwrap();
    let bytes = |device: &Device| device.read(0, length).unwrap().to_vec();
    assert!(bytes(&seed[0]) == bytes(&tried[0]), "the device changed");
}

#[test]
fn recovery_of_a_part_of_the_devices_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut devices = devices(&plants::seed("raid1"));
    zero_tree(folder.path(), &devices, TreeId::CHUNK);
    devices.pop();
    let error = recover(folder.path(), &devices).unwrap_err();
    assert!(matches!(error, Error::MissingDevices { .. }), "{error}");
}
