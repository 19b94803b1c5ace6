//! Tests of rebuilds that must not guess.
//!
//! Two records contradict each other, or a tree is not reachable. The rebuild decides by the content
//! of the volume, or it changes nothing.

use super::consent::repair_without_consent;
use super::lost::{blocks_of, grow, zero_on};
use super::{check, devices, repair, text};
use buttress_device::Device;
use buttress_format::{
    Compression, DeviceId, ExtentItem, FileExtent, FileOffset, ItemType, Key, Logical, ObjectId, Physical,
    ReplaceItem, ReplaceState, SubvolumeId, TreeId,
};
use buttress_fs::{Location, OpenOptions};
use buttress_hostile::editor::{Editor, add};
use buttress_hostile::mutation::Aims;
use buttress_hostile::plants;
use buttress_hostile::seed_volume::{SeedDevice, SeedVolume};
use buttress_repair::{Applied, Edit, Kept, Outcome};
use buttress_tree::ReadAhead;
use buttress_volume::{ExtentRead, Volume};
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The offsets of the type and of the first stripe's place in a chunk item.
const CHUNK_TYPE: usize = 24;
const PLACE: usize = 56;

/// The bit of data in the type of a chunk.
const DATA: u8 = 1;

fn number(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}

/// Plants the damage of a plant into a volume.
fn plant(editor: &mut Editor, name: &str) {
    let mut plants = plants::all().into_iter();
    let plant = plants.find(|plant| plant.name == name).expect("the plant exists");
    (plant.change)(editor);
}

/// Returns the items of a tree on devices.
fn items(devices: &[Device], tree: TreeId) -> Vec<(Key, Vec<u8>)> {
    let options = OpenOptions::new(devices.to_vec()).for_inspection(true);
    let tree = options.open().unwrap().tree(tree).unwrap();
    let items = tree.range(.., ReadAhead::None).map(Result::unwrap);
    items.map(|item| (item.key(), item.data().to_vec())).collect()
}

/// Returns the bytes of tree blocks on devices.
fn content(devices: &[Device], blocks: &[Logical], node_bytes: usize) -> Vec<Vec<u8>> {
    let filesystem = OpenOptions::new(devices.to_vec())
        .for_inspection(true)
        .open()
        .unwrap();
    let volume: &Volume = filesystem.volume();
    let read = |block: &Logical| {
        let read = ExtentRead {
            logical: *block,
            length: node_bytes,
        };
        volume.read_copy(read, 1).unwrap().to_vec()
    };
    blocks.iter().map(read).collect()
}

/// Returns the reasons of the rebuilds that changed nothing.
fn refusals(outcome: &Outcome) -> Vec<&'static str> {
    let rebuilds = outcome.done.iter().filter(|done| done.step.edit.is_rebuild());
    rebuilds
        .filter_map(|done| match done.applied {
            Applied::Nothing(reason) => Some(reason),
            Applied::Changed => None,
        })
        .collect()
}

/// Returns the key of a single chunk of data, and the first unused place of the device.
fn data_chunk(editor: &Editor) -> (Key, Vec<u8>, u64) {
    let (key, data) = editor.find(TreeId::CHUNK, ItemType::CHUNK_ITEM, |_, data| {
        data[CHUNK_TYPE] == DATA && data[44] == 1
    });
    let extents = editor.items(TreeId::DEVICE).into_iter();
    let extents = extents.filter(|(key, _)| key.item_type == ItemType::DEV_EXTENT);
    let ends = extents.map(|(key, data)| key.offset + number(&data, 24));
    (key, data, ends.max().unwrap())
}

#[test]
fn chunk_that_contradicts_its_device_extent_is_not_believed() {
    let seed = plants::seed("kinds");
    let (chunk, data, free) = data_chunk(&seed);
    let others = seed.items(TreeId::CHUNK).into_iter();
    let other = others
        .filter(|(key, _)| key.item_type == ItemType::CHUNK_ITEM && *key != chunk)
        .map(|(_, other)| number(&other, PLACE))
        .next()
        .unwrap();
    for place in [other, free] {
        let mut editor = seed.clone();
        editor.data(TreeId::CHUNK, &chunk, |data| {
            data[PLACE..PLACE + 8].copy_from_slice(&place.to_le_bytes());
        });
        assert_ne!(place, number(&data, PLACE));
        let old = editor.items(TreeId::DEVICE);
        let devices = devices(&editor);
        let outcome = repair(&devices, &check(&devices, false), false);
        let reasons = refusals(&outcome);
        assert!(!reasons.is_empty(), "{place}: {:?}", outcome.kept);
        assert_eq!(items(&devices, TreeId::DEVICE), old, "{place}");
    }
}

#[test]
fn data_at_the_place_of_a_chunk_proves_a_device_extent_wrong() {
    let mut editor = plants::seed("kinds");
    let (chunk, data, free) = data_chunk(&editor);
    let at = number(&data, PLACE);
    let (right, extent) = editor.find(TreeId::DEVICE, ItemType::DEV_EXTENT, |key, data| {
        key.offset == at && number(data, 16) == chunk.offset
    });
    editor.remove(TreeId::DEVICE, &right);
    let wrong = Key {
        offset: free,
        ..right
    };
    editor.insert(TreeId::DEVICE, &wrong, &extent);
    let devices = devices(&editor);
    let outcome = repair(&devices, &check(&devices, false), false);
    assert_eq!(outcome.kept, Kept::Better, "{:?}", refusals(&outcome));
    assert!(outcome.after.is_clean(), "{}", text(&outcome.after));
    let places = items(&devices, TreeId::DEVICE);
    assert!(places.iter().any(|(key, _)| *key == right));
    assert!(places.iter().all(|(key, _)| *key != wrong));
}

/// Without its root item, a subvolume is still in the extent tree, or in the references of the root
/// tree.
#[test]
fn blocks_of_a_subvolume_without_root_item_stay_without_consent() {
    for (keeps_place, keeps_extents) in [(true, true), (false, true), (true, false)] {
        let mut editor = plants::seed("kinds");
        let (place, _) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
        let subvolume = TreeId::new(place.offset);
        let blocks = blocks_of(&editor.open(), subvolume);
        let (root, _) = editor.find(TreeId::ROOT, ItemType::ROOT_ITEM, |key, _| {
            key.objectid.get() == place.offset
        });
        let extents = blocks_of(&editor.open(), TreeId::EXTENT);
        editor.remove(TreeId::ROOT, &root);
        if !keeps_place {
            editor.remove(TreeId::ROOT, &place);
            let back = Key::new(
                ObjectId::new(place.offset),
                ItemType::ROOT_BACKREF,
                place.objectid.get(),
            );
            editor.remove(TreeId::ROOT, &back);
        }
        let devices = devices(&editor);
        let node_bytes = editor.node_bytes();
        let old = content(&devices, &blocks, node_bytes);
        if !keeps_extents {
            zero_on(&devices, extents[0], node_bytes);
        }
        let before = check(&devices, false);
        let outcome = repair_without_consent(&devices, &before);
        let reasons = refusals(&outcome);
        assert!(
            reasons.iter().all(|reason| reason.contains("no root item")) && !reasons.is_empty(),
            "{keeps_place} {keeps_extents}: {reasons:?}\n{}",
            text(&before)
        );
        assert_eq!(content(&devices, &blocks, node_bytes), old);
    }
}

/// Makes new leaves, until the first block group of metadata is nearly full.
fn fill_holes(devices: &[Device]) {
    const FILLING: u32 = 1500;
    let filesystem = OpenOptions::new(devices.to_vec()).open().unwrap();
    let writable = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let folder = writable.make_directory(root, b"filling", &NewInode::of_root(0o755));
    let folder = folder.unwrap();
    for number in 0..FILLING {
        let name = format!("filling-{number}");
        let file = writable.create(folder, name.as_bytes(), &NewInode::of_root(0o644));
        writable
            .write_at(file.unwrap(), FileOffset::MIN, &[5; 2000])
            .unwrap();
    }
    writable.close().unwrap();
}

/// Returns the content of a device as a volume that can be edited.
fn packed(device: &Device) -> Aims {
    let bytes = device.read(0, usize::try_from(device.size_bytes()).unwrap());
    let device = SeedDevice::of_image(&bytes.unwrap()[..]).unwrap();
    Aims::new(SeedVolume {
        name: "packed".to_owned(),
        devices: vec![Arc::new(device)],
    })
}

/// Several rebuilds and rounds of edits change no block of the first state. The replaced blocks are
/// among the lowest free addresses for the second rebuild. The blocks of the extent tree do
/// not count, because no rebuild finds the leaves below a lost root.
#[test]
fn rebuilds_and_edits_reuse_no_block_of_the_first_state() {
    let grown = devices(&plants::seed("kinds"));
    grow(&grown);
    fill_holes(&grown);
    let mut editor = Editor::new(&packed(&grown[0]));
    for name in ["link-count", "checksum-surplus"] {
        plant(&mut editor, name);
    }
    let devices = devices(&editor);
    let node_bytes = editor.node_bytes();
    let filesystem = editor.open();
    let extents = blocks_of(&filesystem, TreeId::EXTENT);
    let trees = filesystem
        .root_tree()
        .range(.., ReadAhead::None)
        .map(Result::unwrap);
    let trees = trees.filter(|item| item.key().item_type == ItemType::ROOT_ITEM);
    let trees = trees.map(|item| TreeId::new(item.key().objectid.get()));
    let trees = trees.filter(|tree| *tree != TreeId::EXTENT);
    let blocks: Vec<Logical> = trees
        .chain([TreeId::ROOT, TreeId::CHUNK])
        .flat_map(|tree| blocks_of(&filesystem, tree))
        .collect();
    zero_on(&devices, extents[0], node_bytes);
    let old = content(&devices, &blocks, node_bytes);
    let outcome = repair(&devices, &check(&devices, false), false);
    let left = outcome.left.iter().map(|left| left.reason.as_str());
    let left: BTreeSet<&str> = left.chain(refusals(&outcome)).collect();
    assert!(outcome.after.is_clean(), "{left:?}\n{}", text(&outcome.after));
    let changed = |edit: &Edit| {
        let done = outcome.done.iter();
        done.filter(|done| done.step.edit == *edit && done.applied == Applied::Changed)
            .count()
    };
    assert!(changed(&Edit::RebuildSpace) > 0 && changed(&Edit::RebuildChecksums) > 0);
    assert!(outcome.done.iter().any(|done| done.round > 0));
    let new = content(&devices, &blocks, node_bytes);
    for ((block, old), new) in blocks.iter().zip(&old).zip(&new) {
        assert!(old == new, "block {block} was overwritten");
    }
}

/// A file item must not shorten a compressed extent against its record and its checksums.
#[test]
fn compressed_extent_is_not_shortened_by_a_file_item() {
    const COMPRESSION: usize = 16;
    let mut editor = plants::seed("kinds");
    let (key, data) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
        FileExtent::parse(key, data, 4096).is_ok_and(|extent| {
            let slice = extent.slice().filter(|slice| slice.disk_bytes.get() > 4096);
            extent.compression == Compression::None && slice.is_some_and(|slice| !slice.is_hole())
        })
    });
    let start = FileExtent::parse(&key, &data, 4096)
        .unwrap()
        .slice()
        .unwrap()
        .disk;
    // No seed has a compressed extent of more than one sector, so a plain one becomes one.
    editor.data(TreeId::FS, &key, |data| {
        data[COMPRESSION] = 1;
        add(data, 29, -4096);
    });
    let old = editor.find(TreeId::EXTENT, ItemType::EXTENT_ITEM, |key, _| {
        key.objectid.get() == start.get()
    });
    let devices = devices(&editor);
    let outcome = repair(&devices, &check(&devices, false), false);
    assert!(!refusals(&outcome).is_empty(), "{:?}", outcome.kept);
    let new = items(&devices, TreeId::EXTENT);
    let format = editor.open().superblock().block_format();
    assert!(ExtentItem::parse(&old.0, &old.1, &format).is_ok());
    assert!(new.contains(&old));
}

#[test]
fn another_state_of_a_superblock_stays_without_consent() {
    const COPY: u64 = 64 << 20;
    const GENERATION: usize = 72;
    let mut editor = plants::seed("kinds");
    plant(&mut editor, "block-group-used");
    editor.superblocks(None, |at| at == COPY, |bytes| add(bytes, GENERATION, 1));
    let devices = devices(&editor);
    let old = devices[0].read(COPY, 4096).unwrap().to_vec();
    let before = check(&devices, false);
    assert!(
        before.counts.contains_key("superblock-differs"),
        "{}",
        text(&before)
    );
    let outcome = repair_without_consent(&devices, &before);
    assert_eq!(outcome.kept, Kept::Unchanged);
    assert!(outcome.refused.iter().any(|step| step.edit == Edit::Superblocks));
    assert!(devices[0].read(COPY, 4096).unwrap()[..] == old);
    assert!(outcome.left.iter().any(|left| left.code == "block-group-used"));
    // With consent, both are repaired.
    let outcome = repair(&devices, &before, false);
    assert!(outcome.after.is_clean(), "{}", text(&outcome.after));
}

#[test]
fn unfinished_replacement_forbids_a_rebuild() {
    let mut editor = plants::seed("kinds");
    plant(&mut editor, "block-group-used");
    let item = ReplaceItem {
        source: DeviceId::new(1),
        cursor_left: Physical::new(4 << 20),
        cursor_right: Physical::new(4 << 20),
        source_reading_mode: 0,
        state: ReplaceState::Suspended,
        time_started_seconds: 1,
        time_stopped_seconds: 2,
        write_errors: 0,
        uncorrectable_read_errors: 0,
    };
    let exists = editor
        .items(TreeId::DEVICE)
        .iter()
        .any(|(key, _)| *key == ReplaceItem::KEY);
    match exists {
        true => editor.replace(TreeId::DEVICE, &ReplaceItem::KEY, &item.to_bytes()),
        false => editor.insert(TreeId::DEVICE, &ReplaceItem::KEY, &item.to_bytes()),
    }
    let devices = devices(&editor);
    let old = items(&devices, TreeId::ROOT);
    let outcome = repair(&devices, &check(&devices, false), false);
    let reasons = refusals(&outcome);
    assert!(
        reasons.iter().any(|reason| reason.contains("replacement")),
        "{reasons:?}"
    );
    assert_eq!(items(&devices, TreeId::ROOT), old);
}

/// The length of a data extent in a file item bounds no loop.
#[test]
fn huge_extent_of_a_mixed_volume_ends_in_a_refusal() {
    let mut editor = plants::seed("mixed");
    let root = blocks_of(&editor.open(), TreeId::EXTENT)[0];
    let (key, _) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
        FileExtent::parse(key, data, 4096).is_ok_and(|extent| {
            let is_data = extent.slice().is_some_and(|slice| !slice.is_hole());
            extent.compression == Compression::None && is_data
        })
    });
    editor.data(TreeId::FS, &key, |data| {
        data[29..37].copy_from_slice(&(1_u64 << 62).to_le_bytes());
    });
    let devices = devices(&editor);
    zero_on(&devices, root, editor.node_bytes());
    let outcome = repair(&devices, &check(&devices, false), false);
    assert!(!refusals(&outcome).is_empty(), "{:?}", outcome.kept);
}

/// Makes a file with so many checksums that their tree has two levels.
fn grow_checksums(devices: &[Device]) {
    let filesystem = OpenOptions::new(devices.to_vec()).open().unwrap();
    let writable = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let file = writable
        .create(root, b"large", &NewInode::of_root(0o644))
        .unwrap();
    let bytes: Vec<u8> = (0..8_u32 << 20)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0])
        .collect();
    for (number, part) in bytes.chunks(1 << 20).enumerate() {
        let at = FileOffset::new(number as u64 * (1 << 20));
        writable.write_at(file, at, part).unwrap();
    }
    writable.close().unwrap();
}

#[test]
fn checksums_below_an_unreadable_node_stay_without_consent() {
    let seed = plants::seed("kinds");
    let devices = devices(&seed);
    grow_checksums(&devices);
    let grown = OpenOptions::new(devices.clone()).open().unwrap();
    let sums = *grown.tree(TreeId::CHECKSUM).unwrap().root();
    assert!(sums.level > 0, "the tree has nodes");
    let extents = blocks_of(&grown, TreeId::EXTENT)[0];
    drop(grown);
    for block in [sums.logical, extents] {
        zero_on(&devices, block, seed.node_bytes());
    }
    let outcome = repair_without_consent(&devices, &check(&devices, false));
    let reasons = refusals(&outcome);
    assert!(
        reasons.iter().all(|reason| reason.contains("checksum tree")) && !reasons.is_empty(),
        "{reasons:?}"
    );
    let filesystem = OpenOptions::new(devices).for_inspection(true).open().unwrap();
    let after = filesystem.tree(TreeId::CHECKSUM).unwrap();
    assert_eq!(after.root().logical, sums.logical);
}

/// A large volume stays clean if a rebuild has nothing to doubt.
#[test]
fn device_tree_without_readable_items_is_proved_by_content() {
    let seed = plants::seed("kinds");
    let devices = devices(&seed);
    grow(&devices);
    let grown = OpenOptions::new(devices.clone()).open().unwrap();
    let block = blocks_of(&grown, TreeId::DEVICE)[0];
    drop(grown);
    zero_on(&devices, block, seed.node_bytes());
    let outcome = repair(&devices, &check(&devices, false), false);
    assert!(outcome.after.is_clean(), "{}", text(&outcome.after));
}

/// The root of the lost extent tree leads to a block of a tree that stays.
#[test]
fn pointer_of_a_replaced_tree_hides_no_block_of_another_tree() {
    const ADDRESS: usize = 176;
    let mut editor = plants::seed("kinds");
    let files = blocks_of(&editor.open(), TreeId::FS);
    let key = Key::new(ObjectId::new(TreeId::EXTENT.get()), ItemType::ROOT_ITEM, 0);
    editor.data(TreeId::ROOT, &key, |data| {
        data[ADDRESS..ADDRESS + 8].copy_from_slice(&files[0].get().to_le_bytes());
    });
    let devices = devices(&editor);
    let outcome = repair(&devices, &check(&devices, false), false);
    assert_eq!(outcome.kept, Kept::Better, "{:?}", refusals(&outcome));
    assert!(outcome.after.is_clean(), "{}", text(&outcome.after));
}
