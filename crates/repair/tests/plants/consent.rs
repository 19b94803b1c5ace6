//! Tests of steps that may lose something: without consent, nothing is lost.

use super::{check, devices};
use buttress_check::Report;
use buttress_device::Device;
use buttress_format::{
    DirItem, DirItems, FileKind, Generation, InodeItem, InodeNumber, ItemType, Key, ObjectId, OrphanItem,
    TreeId, name_hash,
};
use buttress_fs::{OpenOptions, Progress};
use buttress_hostile::editor::Editor;
use buttress_hostile::plants;
use buttress_repair::{Applied, Done, Edit, Options, Outcome};

/// Returns the damaged volume of a plant.
fn planted(name: &str) -> Editor {
    let mut plants = plants::all().into_iter();
    plants
        .find(|plant| plant.name == name)
        .expect("the plant exists")
        .make()
}

/// Repairs a volume without consent to any loss.
pub(super) fn repair_without_consent(devices: &[Device], before: &Report) -> Outcome {
    let options = Options::default();
    buttress_repair::run(devices, before, &options, &mut |_| false, &Progress::new()).expect("a repair ends")
}

/// Returns an item of the volume on devices.
fn item(devices: &[Device], tree: TreeId, key: &Key) -> Option<Vec<u8>> {
    let filesystem = OpenOptions::new(devices.to_vec())
        .for_inspection(true)
        .open()
        .unwrap();
    let item = filesystem.tree(tree).unwrap().get(key).unwrap();
    item.map(|item| item.data().to_vec())
}

#[test]
fn place_of_missing_subvolume_stays_without_consent() {
    let editor = planted("subvolume-missing");
    let (place, data) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |key, _| key.offset == 9999);
    let devices = devices(&editor);
    let mut before = check(&devices, false);
    // A report that leaves out the missing subvolume gives no consent either.
    for leaves_out in [false, true] {
        if leaves_out {
            before
                .findings
                .retain(|reported| reported.finding.code() != "subvolume-missing");
        }
        let outcome = repair_without_consent(&devices, &before);
        let codes = outcome.refused.iter().flat_map(|step| step.codes.iter().copied());
        let codes: Vec<_> = codes.collect();
        assert!(codes.contains(&"subvolume-entry-missing"), "{codes:?}");
        assert_eq!(item(&devices, TreeId::ROOT, &place), Some(data.clone()));
    }
}

/// Leads the only name of a file with extents to a number that no inode has. Returns the key of the
/// name's `DIR_INDEX`, and the number.
fn mislead_name(editor: &mut Editor) -> (Key, u64) {
    let items = editor.items(TreeId::FS);
    let is_free = |key: &&Key| key.objectid <= ObjectId::LAST_FREE;
    let highest = items.iter().map(|(key, _)| key).filter(is_free).max().unwrap();
    let number = highest.objectid.get() + 1;
    let of_file = |file: u64, item_type| {
        let is_own = move |key: &Key| key.objectid.get() == file && key.item_type == item_type;
        items.iter().map(|(key, _)| *key).filter(move |key| is_own(key))
    };
    for (index, data) in &items {
        let Some(entry) = DirItems::parse(index, data)
            .ok()
            .and_then(|mut entries| entries.next())
        else {
            continue;
        };
        let file = entry.location.objectid.get();
        let hash = Key::new(index.objectid, ItemType::DIR_ITEM, name_hash(entry.name));
        let records: Vec<Key> = of_file(file, ItemType::INODE_REF).collect();
        let has_one_name = items.iter().any(|(key, data)| {
            *key == InodeItem::key(InodeNumber::new(file))
                && InodeItem::parse(key, data).is_ok_and(|item| item.nlink == 1)
        });
        let is_wanted = index.item_type == ItemType::DIR_INDEX
            && entry.location.item_type == ItemType::INODE_ITEM
            && has_one_name
            && records.len() == 1
            && of_file(file, ItemType::EXTENT_DATA).next().is_some();
        if !is_wanted {
            continue;
        }
        for key in [*index, hash] {
            editor.data(TreeId::FS, &key, |data| {
                data[..8].copy_from_slice(&number.to_le_bytes())
            });
        }
        editor.remove(TreeId::FS, &records[0]);
        // Byte 40 is the link count.
        let inode = InodeItem::key(InodeNumber::new(file));
        editor.data(TreeId::FS, &inode, |data| data[40..44].fill(0));
        return (*index, number);
    }
    panic!("the volume has a file with one name and extents");
}

#[test]
fn lost_and_found_is_no_target_of_a_name_that_leads_to_nothing() {
    let mut editor = plants::seed("kinds");
    let (index, number) = mislead_name(&mut editor);
    let devices = devices(&editor);
    let before = check(&devices, false);
    let outcome = repair_without_consent(&devices, &before);
    let codes = outcome.refused.iter().flat_map(|step| step.codes.iter().copied());
    let codes: Vec<_> = codes.collect();
    assert!(codes.contains(&"entry-without-inode"), "{codes:?}");
    let entry = item(&devices, TreeId::FS, &index).expect("the name stays");
    assert_eq!(entry[..8], number.to_le_bytes());
    assert_eq!(
        item(&devices, TreeId::FS, &InodeItem::key(InodeNumber::new(number))),
        None
    );
    let lost = InodeNumber::new(number + 1);
    assert!(
        item(&devices, TreeId::FS, &InodeItem::key(lost)).is_some(),
        "lost+found"
    );
}

/// Offsets in a root item.
const FLAGS: usize = 208;
const REFERENCES: usize = 216;
const DROP_PROGRESS: usize = 220;
const DROP_LEVEL: usize = 237;

/// Repairs a subvolume that is being deleted, but has a place. `change` edits its root item after the
/// check. Returns the devices, and the keys of the root item and of the parent's reference.
fn repair_deleted(change: impl FnOnce(&mut [u8])) -> (Vec<Device>, Key, Key) {
    let mut editor = planted("deleted-subvolume-with-place");
    let before = check(&devices(&editor), false);
    let (place, _) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
    let is_root = |key: &Key, _: &[u8]| key.objectid.get() == place.offset;
    let (root, _) = editor.find(TreeId::ROOT, ItemType::ROOT_ITEM, is_root);
    editor.data(TreeId::ROOT, &root, change);
    let devices = devices(&editor);
    repair_without_consent(&devices, &before);
    (devices, root, place)
}

#[test]
fn half_deleted_subvolume_loses_its_place() {
    let (devices, root, place) = repair_deleted(|data| {
        data[DROP_PROGRESS..DROP_PROGRESS + 8].copy_from_slice(&300_u64.to_le_bytes());
        data[DROP_LEVEL] = 1;
    });
    assert_eq!(item(&devices, TreeId::ROOT, &place), None);
    let data = item(&devices, TreeId::ROOT, &root).expect("the subvolume stays until its deletion");
    assert_eq!(data[REFERENCES..REFERENCES + 4], [0; 4]);
    assert!(item(&devices, TreeId::ROOT, &OrphanItem::key(root.objectid)).is_some());
}

#[test]
fn whole_subvolume_with_place_is_not_being_deleted() {
    let (devices, root, place) = repair_deleted(|data| data[FLAGS + 6] |= 1);
    assert!(item(&devices, TreeId::ROOT, &place).is_some());
    let data = item(&devices, TreeId::ROOT, &root).expect("the subvolume stays");
    assert_eq!(data[REFERENCES..REFERENCES + 4], [1, 0, 0, 0]);
    assert_eq!(data[FLAGS + 6] & 1, 0, "the flag DEAD");
    assert_eq!(
        item(&devices, TreeId::ROOT, &OrphanItem::key(root.objectid)),
        None
    );
}

/// Adds a name that leads to nothing, at the last index of the root directory.
fn fill_root_directory(editor: &mut Editor) {
    let root = InodeNumber::ROOT_DIRECTORY;
    let entry = DirItem {
        location: InodeItem::key(InodeNumber::new(1 << 40)),
        transid: Generation::new(7),
        kind: FileKind::Regular,
        name: b"last",
        data: &[],
    };
    let mut data = Vec::new();
    DirItems::push(&mut data, &entry).unwrap();
    for key in [DirItem::key(root, entry.name), DirItem::index_key(root, u64::MAX)] {
        editor.insert(TreeId::FS, &key, &data);
    }
}

#[test]
fn impossible_edit_changes_nothing_and_ends_no_repair() {
    let mut editor = plants::seed("kinds");
    let (index, number) = mislead_name(&mut editor);
    fill_root_directory(&mut editor);
    let devices = devices(&editor);
    let before = check(&devices, false);
    let outcome = repair_without_consent(&devices, &before);
    let nothing =
        |done: &&Done| done.applied == Applied::Nothing("the directory has no free index for a name");
    let done = outcome.done.iter().find(nothing).expect("a step was impossible");
    assert!(matches!(done.step.edit, Edit::LostAndFound(..)), "{done:?}");
    assert!(item(&devices, TreeId::FS, &index).is_some());
    // The inode of lost+found was written before the error.
    for number in [number, number + 1] {
        let inode = InodeItem::key(InodeNumber::new(number));
        assert_eq!(item(&devices, TreeId::FS, &inode), None);
    }
}
