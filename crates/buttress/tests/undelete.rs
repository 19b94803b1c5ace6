//! Versions of files in older states of small volumes in memory.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test"
)]

use buttress::salvage::{
    BlockIndex, History, IndexWriter, OpenedIndex, Origin, SpoolFolder, State, Verdict, Version,
    VersionDirectories, ViewOptions, WantedFiles, history, identify, open_state, scan, states,
};
use buttress::{
    ByteCount, Device, Location, Logical, Profile, Progress, SubvolumeId, Volume, WalkItem, WalkOptions,
    WritableVolume,
};
use std::sync::Arc;

/// Wants every file.
struct All;

impl WantedFiles for All {
    fn wants(&self, _: &[u8]) -> bool {
        true
    }

    fn wants_below(&self, _: &[u8]) -> bool {
        true
    }

    fn paths(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

fn volume() -> (Device, WritableVolume) {
    let device = Device::memory(vec![0; 128 << 20]);
    let volume = Volume::create().on_devices(vec![device.clone()]).unwrap();
    (device, volume)
}

/// Returns an index of all blocks of the device.
fn indexed(device: &Device) -> Arc<BlockIndex> {
    let folder = tempfile::tempdir().unwrap();
    let devices = [device.clone()];
    let progress = Progress::new();
    let identity = &identify(&devices, &progress).unwrap()[0];
    let OpenedIndex::Scanning(mut writer, _) =
        IndexWriter::open(&folder.path().join("index"), identity).unwrap()
    else {
        panic!("the index is complete");
    };
    scan(&devices, identity, &mut writer, &progress).unwrap();
    let spool = SpoolFolder::new(None);
    Arc::new(writer.finish(1 << 16, &spool, &progress).unwrap())
}

/// Returns the versions that the states have.
fn versions_of(device: &Device, index: &Arc<BlockIndex>, states: &[State]) -> History {
    let devices = [device.clone()];
    let options = ViewOptions {
        index: Some(Arc::clone(index)),
        ..ViewOptions::default()
    };
    history(
        &devices,
        index.identity(),
        states,
        &options,
        &All,
        &Progress::new(),
    )
    .unwrap()
}

/// Returns all known states of a device, the newest first.
fn states_of(device: &Device, index: &BlockIndex) -> Vec<State> {
    states(std::slice::from_ref(device), index.identity().fsid, Some(index)).unwrap()
}

/// Returns the versions in all known states.
fn search(device: &Device) -> History {
    let index = indexed(device);
    versions_of(device, &index, &states_of(device, &index))
}

fn of_path<'a>(history: &'a History, path: &str) -> Vec<&'a Version> {
    let versions = history.versions.iter();
    versions
        .filter(|version| version.path == path.as_bytes())
        .collect()
}

#[test]
fn file_of_deleted_subvolume_is_not_renamed() {
    let (device, volume) = volume();
    let home = volume.root().create_subvolume("home").unwrap();
    home.write("letter", vec![7; 50_000]).unwrap();
    volume.sync().unwrap();
    drop(home);
    volume.root().delete_subvolume("home").unwrap();
    volume.sync().unwrap();
    let _ = volume.abandon();
    let found = search(&device);
    let [letter] = of_path(&found, "home/letter")[..] else {
        panic!("{found:?}");
    };
    assert_eq!(letter.verdict(), Verdict::Verified, "{letter:?}");
    assert_eq!(letter.renamed_to, None);
}

/// Returns the state of the last commit, and states of earlier commits, the newest first.
fn last_and_older(states: &[State]) -> (State, Vec<State>) {
    let is_last = |state: &&State| matches!(state.origin, Origin::Superblock(_));
    let last = *states.iter().find(is_last).unwrap();
    let older = states
        .iter()
        .filter(|state| state.generation() < last.generation());
    (last, older.copied().collect())
}

/// Makes a volume with a sparse file, an inline file and a symlink, which later commits delete.
/// Returns the device, and the states before the deletion.
fn deleted() -> (Device, Arc<BlockIndex>, State, Vec<State>) {
    let (device, volume) = volume();
    let root = volume.root();
    root.create("sparse")
        .unwrap()
        .set_size(ByteCount::new(1 << 20))
        .unwrap();
    root.write("inline", "text").unwrap();
    root.symlink("inline", "link").unwrap();
    volume.sync().unwrap();
    root.write("other", "one").unwrap();
    volume.sync().unwrap();
    for name in ["sparse", "inline", "link"] {
        root.remove_file(name).unwrap();
    }
    volume.sync().unwrap();
    let _ = volume.abandon();
    let index = indexed(&device);
    let (last, older) = last_and_older(&states_of(&device, &index));
    (device, index, last, older)
}

#[test]
fn doubtful_state_verifies_nothing_but_an_older_one_does() {
    let (device, index, last, older) = deleted();
    let doubtful = State {
        origin: Origin::Scan,
        ..older[0]
    };
    let mut rival = doubtful;
    rival.root.logical = last.root.logical;
    let verdicts = |states: &[State]| -> Vec<Verdict> {
        let found = versions_of(&device, &index, states);
        let verdict = |name| of_path(&found, name).first().unwrap().verdict();
        ["sparse", "inline", "link"].map(verdict).to_vec()
    };
    let found = verdicts(&[last, doubtful, rival]);
    assert_eq!(found, [Verdict::Unverified; 3]);
    let found = verdicts(&[last, doubtful, rival, older[1]]);
    assert_eq!(found, [Verdict::Verified; 3]);
}

#[test]
fn path_of_deep_directory_begins_at_numbered_directory() {
    let (device, volume) = volume();
    let root = volume.root();
    let name = |number: usize| format!("{number:0>250}");
    root.create_dir(name(0)).unwrap();
    root.write(format!("{}/letter", name(0)), "text").unwrap();
    for number in 1..20 {
        root.create_dir(name(number)).unwrap();
        let inside = format!("{}/{}", name(number), name(number - 1));
        root.rename(name(number - 1), inside).unwrap();
    }
    volume.sync().unwrap();
    root.write("other", "one").unwrap();
    volume.sync().unwrap();
    let _ = volume.abandon();
    let index = indexed(&device);
    let (mut last, older) = last_and_older(&states_of(&device, &index));
    // Without a newest state, all files are versions.
    last.root.logical = Logical::new(last.root.logical.get() + (1 << 40));
    let found = versions_of(&device, &index, &[last, older[0]]);
    let letter = found
        .versions
        .iter()
        .find(|version| version.path.ends_with(b"/letter"));
    let path = &letter.unwrap().path;
    assert!(path.starts_with(b"directory-"), "{}", path.escape_ascii());
    assert!(path.len() < 5000, "{}", path.len());
}

#[test]
fn missing_device_ends_the_search() {
    let devices: Vec<Device> = (0..2).map(|_| Device::memory(vec![0; 256 << 20])).collect();
    let volume = Volume::create()
        .profiles(Profile::Raid1, Profile::Raid1)
        .on_devices(devices.clone())
        .unwrap();
    volume.root().write("letter", "text").unwrap();
    volume.sync().unwrap();
    let _ = volume.abandon();
    let progress = Progress::new();
    let identity = &identify(&devices, &progress).unwrap()[0];
    let one = &devices[..1];
    let known = states(one, identity.fsid, None).unwrap();
    let options = ViewOptions::default();
    let error = history(one, identity, &known, &options, &All, &progress).unwrap_err();
    assert!(buttress::Error::from(error).lacks_devices());
}

#[test]
fn unreadable_newest_state_is_reported() {
    let (device, index, mut last, older) = deleted();
    last.root.logical = Logical::new(last.root.logical.get() + (1 << 40));
    let found = versions_of(&device, &index, &[last, older[0]]);
    assert!(found.newest_error.is_some(), "{found:?}");
    assert_eq!(found.states, 1);
}

#[test]
fn directory_keeps_attributes_of_the_newest_state_that_has_them() {
    let (device, index, last, _) = deleted();
    let view = open_state(&[device], index.identity(), &last, &ViewOptions::default()).unwrap();
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let mut walk = view.filesystem.walk(top, WalkOptions::default());
    let Some(WalkItem::Entry(mut entry)) = walk.next() else {
        panic!("the walk begins with the root directory");
    };
    let mut directories = VersionDirectories::default();
    let mode = entry.record.metadata.mode;
    let lost = || {
        view.filesystem
            .metadata(Location::root_of(SubvolumeId::new(999)))
            .unwrap_err()
    };
    // An unreadable, a whole and an older directory.
    for (changed, error) in [(0o40_700, Some(lost())), (mode, None), (0o40_555, None)] {
        entry.record.metadata.mode = changed;
        entry.lost = error;
        directories.take(&entry);
    }
    let items = directories.into_items(&view);
    let [WalkItem::Entry(found), WalkItem::Enter(_), WalkItem::Leave(_)] = &items[..] else {
        panic!("{items:?}");
    };
    assert_eq!((found.metadata().mode, found.lost.is_none()), (mode, true));
}

#[test]
fn root_that_is_newer_than_the_scan_is_doubtful() {
    let (device, volume) = volume();
    let root = volume.root();
    root.write("first", "text").unwrap();
    volume.sync().unwrap();
    let index = indexed(&device);
    let letter = vec![7; 50_000];
    root.write("letter", letter).unwrap();
    volume.sync().unwrap();
    let (newer, _) = last_and_older(&states_of(&device, &index));
    root.remove_file("letter").unwrap();
    volume.sync().unwrap();
    let _ = volume.abandon();
    let (last, _) = last_and_older(&states_of(&device, &index));
    // A scan that was interrupted by this commit has its root, and no superblock of it.
    let found = State {
        origin: Origin::Scan,
        ..newer
    };
    let verdict = |index| of_path(&versions_of(&device, index, &[last, found]), "letter")[0].verdict();
    assert_eq!(verdict(&index), Verdict::Unverified);
    assert_eq!(verdict(&indexed(&device)), Verdict::Verified);
}
