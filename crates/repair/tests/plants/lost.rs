//! Tests that rebuild trees with lost blocks.
//!
//! Zeros replace the root or a leaf of a tree, in all copies. The rebuilt volume must be clean, and
//! Linux must write to it. If the old records are readable, the new records must equal them.

use super::consent::repair_without_consent;
use super::{check, devices, is_repairable, judge, repair, text};
use buttress_device::Device;
use buttress_format::{
    ByteCount, ExtentItem, FileOffset, ItemType, Key, Logical, SubvolumeId, TreeId, parse_keyed_references,
};
use buttress_fs::{Filesystem, Location, OpenOptions};
use buttress_hostile::editor::{Editor, add};
use buttress_hostile::plants;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_repair::Kept;
use buttress_tree::ReadAhead;
use buttress_volume::MappingContent;
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::collections::{BTreeMap, BTreeSet};

/// All seed volumes without a pending log.
const VOLUMES: [&str; 9] = [
    "kinds", "mixed", "quota", "squota", "old", "raid1", "raid6", "raid5", "raid10",
];

/// The trees that a rebuild replaces, except the root tree.
const TREES: [TreeId; 5] = [
    TreeId::EXTENT,
    TreeId::FREE_SPACE,
    TreeId::BLOCK_GROUP,
    TreeId::DEVICE,
    TreeId::CHECKSUM,
];

/// Replaces a block by zeros.
fn zero(editor: &mut Editor, logical: Logical) {
    let filesystem = editor.open();
    let bytes = vec![0; editor.node_bytes()];
    editor.write(&filesystem, logical, &bytes, None);
}

/// Returns the blocks of a tree from the root down; none if the volume has no such tree.
fn blocks(editor: &Editor, tree: TreeId) -> Vec<Logical> {
    blocks_of(&editor.open(), tree)
}

pub(super) fn blocks_of(filesystem: &Filesystem, tree: TreeId) -> Vec<Logical> {
    let Ok(tree) = filesystem.tree(tree) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for visit in tree.blocks(ReadAhead::None) {
        found.extend(visit.map(|visit| visit.block.logical()));
    }
    found
}

/// Repairs a volume. Returns the difference from a clean one.
fn problem_of(editor: &Editor) -> Option<String> {
    problem_on(&devices(editor))
}

fn problem_on(devices: &[Device]) -> Option<String> {
    let before = check(devices, false);
    assert!(!before.is_clean(), "the damage is found");
    let outcome = repair(devices, &before, false);
    let after = check(devices, true);
    let is_right = after.is_clean() && outcome.kept == Kept::Better;
    (!is_right).then(|| {
        format!(
            "{:?}, lost {:?}\n{} done: {:?}\n left: {:?}\n",
            outcome.kept,
            outcome.lost,
            text(&after),
            outcome
                .done
                .iter()
                .map(|done| (&done.step.edit, done.applied))
                .collect::<Vec<_>>(),
            outcome
                .left
                .iter()
                .map(|left| (left.code, &left.reason))
                .collect::<Vec<_>>(),
        )
    })
}

#[test]
fn each_lost_block_of_space_trees_is_rebuilt_on_each_volume() {
    let (mut wrong, mut tried) = (String::new(), 0);
    for volume in VOLUMES {
        let seed = plants::seed(volume);
        for tree in TREES {
            for block in blocks(&seed, tree) {
                let mut editor = seed.clone();
                zero(&mut editor, block);
                // Parity restores a lost block.
                let before = check(&devices(&editor), false);
                if !before.counts.contains_key("tree-block-damaged") {
                    continue;
                }
                tried += 1;
                if let Some(problem) = problem_of(&editor) {
                    wrong += &format!("{volume}, tree {tree}, block {block}: {problem}");
                }
            }
        }
    }
    assert!(tried > 14, "{tried} blocks");
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn each_plant_is_repaired_beside_a_lost_extent_tree() {
    let mut wrong = String::new();
    for plant in plants::all() {
        let is_tried = !plant.codes.is_empty() && !plant.volume.contains("log") && is_repairable(&plant);
        if !is_tried {
            continue;
        }
        let mut editor = plant.make();
        let root = blocks(&editor, TreeId::EXTENT)[0];
        zero(&mut editor, root);
        if let Some(problem) = problem_of(&editor) {
            wrong += &format!("{}: {problem}", plant.name);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Lost checksums come back only for data that another device confirms, or with consent.
#[test]
fn lost_checksums_need_a_second_device_or_consent() {
    for (volume, is_confirmed) in [("raid1", true), ("kinds", false)] {
        let mut editor = plants::seed(volume);
        let root = blocks(&editor, TreeId::CHECKSUM)[0];
        zero(&mut editor, root);
        let devices = devices(&editor);
        let outcome = repair_without_consent(&devices, &check(&devices, false));
        assert_eq!(
            outcome.after.is_clean(),
            is_confirmed,
            "{volume}: {}",
            text(&outcome.after)
        );
        assert!(outcome.lost.is_empty(), "{volume}");
        if !is_confirmed {
            let codes: BTreeSet<_> = outcome.left.iter().map(|left| left.code).collect();
            assert_eq!(codes, BTreeSet::from(["checksum-missing"]), "{volume}");
        }
    }
}

/// Everything that the extent tree records about one extent, without the order of references.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    item: (Key, u64, u64, u64),
    references: BTreeSet<String>,
}

/// Returns the records of all extents by address.
fn records(filesystem: &Filesystem) -> BTreeMap<u64, Record> {
    let format = filesystem.superblock().block_format();
    let mut records: BTreeMap<u64, Record> = BTreeMap::new();
    let tree = filesystem.tree(TreeId::EXTENT).unwrap();
    for item in tree.range(.., ReadAhead::None) {
        let item = item.unwrap();
        let (key, data) = (item.key(), item.data());
        let start = key.objectid.get();
        match key.item_type {
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                let extent = ExtentItem::parse(&key, data, &format).unwrap();
                let references = extent.inline_references.iter();
                let record = Record {
                    item: (
                        key,
                        extent.references,
                        extent.generation.get(),
                        extent.flags.bits(),
                    ),
                    references: references.map(|reference| format!("{reference:?}")).collect(),
                };
                records.insert(start, record);
            }
            ItemType::BLOCK_GROUP_ITEM => {}
            _ => {
                let parsed = parse_keyed_references(&key, data, 4096).unwrap();
                let record = records.get_mut(&start).unwrap();
                let parsed = parsed.iter();
                record
                    .references
                    .extend(parsed.map(|reference| format!("{reference:?}")));
            }
        }
    }
    records
}

/// A rebuild of sound records gives the same records: the damage is in another tree.
#[test]
fn rebuilt_records_equal_the_old_ones() {
    let mut compared = 0;
    for volume in VOLUMES {
        let mut editor = plants::seed(volume);
        let old = records(&editor.open());
        let replaced: BTreeSet<u64> = TREES
            .into_iter()
            .chain([TreeId::ROOT, TreeId::CHUNK])
            .flat_map(|tree| blocks(&editor, tree))
            .map(Logical::get)
            .collect();
        let tree = match blocks(&editor, TreeId::BLOCK_GROUP).is_empty() {
            true => TreeId::EXTENT,
            false => TreeId::BLOCK_GROUP,
        };
        let (group, _) = editor.find(tree, ItemType::BLOCK_GROUP_ITEM, |_, _| true);
        editor.data(tree, &group, |data| add(data, 0, 4096));
        let devices = devices(&editor);
        let before = check(&devices, false);
        repair(&devices, &before, false);
        let new = records(&OpenOptions::new(devices).open().unwrap());
        for (start, record) in old.iter().filter(|(start, _)| !replaced.contains(start)) {
            assert_eq!(new.get(start), Some(record), "{volume}");
            compared += 1;
        }
        assert!(
            new.len() <= old.len() + 4,
            "{volume}: new records without an extent"
        );
    }
    assert!(compared > 100, "{compared} records");
}

/// Linux and btrfs-progs accept volumes whose extent tree was lost.
#[test]
fn rebuilt_volumes_are_clean_for_linux_and_btrfs_check() {
    if skips(kernel_missing()) {
        return;
    }
    let mut wrong = String::new();
    for volume in VOLUMES {
        let mut editor = plants::seed(volume);
        let root = blocks(&editor, TreeId::EXTENT)[0];
        zero(&mut editor, root);
        let devices = devices(&editor);
        let before = check(&devices, false);
        repair(&devices, &before, false);
        let name = match volume {
            "squota" => "lost-simple",
            name => name,
        };
        if let Err(error) = judge(name, &devices) {
            wrong += &format!("{volume}: {error:#}\n");
        }
    }
    let devices = devices(&plants::seed("kinds"));
    grow(&devices);
    let grown = OpenOptions::new(devices.clone()).open().unwrap();
    let root = blocks_of(&grown, TreeId::EXTENT)[0];
    zero_on(&devices, root, 4096);
    repair(&devices, &check(&devices, false), false);
    if let Err(error) = judge("grown", &devices) {
        wrong += &format!("grown: {error:#}\n");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Makes files, snapshots and shared extents, so that the extent tree has several levels and all
/// kinds of references.
pub(super) fn grow(devices: &[Device]) {
    let filesystem = OpenOptions::new(devices.to_vec()).open().unwrap();
    let writable = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let mut files = Vec::new();
    for number in 0..1200_u32 {
        let name = format!("grown-{number}");
        let file = writable
            .create(root, name.as_bytes(), &NewInode::of_root(0o644))
            .unwrap();
        let length = if number % 7 == 0 { 9000 } else { 300 };
        writable
            .write_at(file, FileOffset::MIN, &vec![7; length])
            .unwrap();
        files.push(file);
    }
    let snapshots = writable.subvolumes();
    let first = snapshots
        .snapshot(SubvolumeId::TOP_LEVEL, root, b"first", false)
        .unwrap();
    for (number, file) in files.iter().enumerate() {
        if number % 5 == 0 {
            writable
                .write_at(*file, FileOffset::new(100), &[1; 5000])
                .unwrap();
        }
        if number % 35 == 0 {
            let range = FileOffset::MIN..FileOffset::new(4096);
            writable
                .clone_range(*file, range, files[7], FileOffset::new(number as u64 * 4096))
                .unwrap();
        }
    }
    snapshots.snapshot(first, root, b"second", false).unwrap();
    for number in (0..1200_u32).step_by(9) {
        writable
            .unlink(Location::root_of(first), format!("grown-{number}").as_bytes())
            .unwrap();
        writable
            .unlink(root, format!("grown-{number}").as_bytes())
            .unwrap();
    }
    writable.close().unwrap();
}

/// Replaces a block of a volume on devices by zeros, in all copies.
pub(super) fn zero_on(devices: &[Device], logical: Logical, node_bytes: usize) {
    let filesystem = OpenOptions::new(devices.to_vec()).open().unwrap();
    let mappings = filesystem
        .volume()
        .map(logical, ByteCount::of(node_bytes))
        .unwrap();
    for mapping in mappings {
        if matches!(mapping.content, MappingContent::Data { .. }) {
            let device = usize::try_from(mapping.device.get() - 1).unwrap();
            devices[device]
                .write(mapping.physical.get(), &vec![0; node_bytes])
                .unwrap();
        }
    }
}

/// Each block of an extent tree with several levels may be lost.
#[test]
fn lost_block_of_a_large_extent_tree_is_rebuilt() {
    let seed = plants::seed("kinds");
    let devices = devices(&seed);
    grow(&devices);
    let grown = OpenOptions::new(devices.clone()).open().unwrap();
    let report = check(&devices, true);
    assert!(report.is_clean(), "{}", text(&report));
    let lost = blocks_of(&grown, TreeId::EXTENT);
    let old = records(&grown);
    let replaced: BTreeSet<u64> = TREES
        .into_iter()
        .chain([TreeId::ROOT, TreeId::CHUNK])
        .flat_map(|tree| blocks_of(&grown, tree))
        .map(Logical::get)
        .collect();
    let root = grown.tree(TreeId::EXTENT).unwrap().root().level;
    assert!(root > 0 && lost.len() > 8, "level {root}, {} blocks", lost.len());
    let mut wrong = String::new();
    for block in lost {
        let damaged: Vec<Device> = devices.iter().map(Device::with_changes_in_memory).collect();
        zero_on(&damaged, block, seed.node_bytes());
        if let Some(problem) = problem_on(&damaged) {
            wrong += &format!("block {block}: {problem}");
        }
        let new = records(&OpenOptions::new(damaged).open().unwrap());
        let differ = old
            .iter()
            .filter(|(start, record)| !replaced.contains(start) && !is_same(record, new.get(start)));
        for (start, record) in differ {
            wrong += &format!("block {block}: {start}: {record:?} became {:?}\n", new.get(start));
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Returns whether a record is the same except its generation, which can be lost.
fn is_same(old: &Record, new: Option<&Record>) -> bool {
    let facts = |record: &Record| (record.item.0, record.item.1, record.item.3);
    new.is_some_and(|new| facts(new) == facts(old) && new.references == old.references)
}
