//! Scans of small volumes of the kernel's, beside a search over all of their bytes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "small numbers of the test's own"
)]

use buttress_device::{Device, Engine};
use buttress_format::{SUPERBLOCK_OFFSETS, TreeId};
use buttress_fs::Progress;
use buttress_hostile::seed_volume::{BLOCK_BYTES, Overlay, SeedVolume};
use buttress_packing::SpoolFolder;
use buttress_salvage::scan::ScanSink;
use buttress_salvage::{
    BlockIndex, Error, Identity, IndexProblem, IndexWriter, OpenedIndex, Origin, Record, Result, RootQuery,
    Scanned, find_roots, identify, identify_by_blocks, scan, states,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

fn volumes() -> Vec<SeedVolume> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/volumes");
    let files = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert_eq!(paths.len(), 10, "the seed volumes");
    let unpack = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        SeedVolume::unpack(name, &std::fs::read(path).unwrap()).unwrap()
    };
    paths.iter().map(unpack).collect()
}

fn overlays(volume: &SeedVolume) -> Vec<Overlay> {
    let devices = volume.devices.iter();
    devices
        .map(|device| Overlay::new(volume.name.clone(), Arc::clone(device)))
        .collect()
}

fn devices(overlays: Vec<Overlay>) -> Vec<Device> {
    let backends = overlays.into_iter();
    backends
        .map(|overlay| Device::with_backend(Arc::new(overlay), Engine::Inline))
        .collect()
}

/// Returns the devices and offsets of all blocks with the file system's uuid and a correct
/// checksum.
fn all_blocks(volume: &SeedVolume, identity: &Identity) -> BTreeSet<(u8, u64)> {
    let mut found = BTreeSet::new();
    for (number, device) in volume.devices.iter().enumerate() {
        for block in device.blocks.keys() {
            let physical = block * BLOCK_BYTES as u64;
            let bytes = device.read(physical, identity.node_bytes as usize);
            let checksum = identity.checksum_type.compute(&bytes[32..]);
            if bytes[32..48] == *identity.metadata_uuid.as_bytes() && bytes.starts_with(checksum.as_bytes()) {
                found.insert((number as u8, physical));
            }
        }
    }
    let superblocks = SUPERBLOCK_OFFSETS.map(|offset| offset.get());
    found.retain(|(_, physical)| !superblocks.contains(physical));
    found
}

fn writer(path: &Path, identity: &Identity) -> (IndexWriter, bool) {
    match IndexWriter::open(path, identity).unwrap() {
        OpenedIndex::Scanning(writer, continued) => (writer, continued),
        OpenedIndex::Complete(_) => panic!("the index is complete"),
    }
}

fn index_of(path: &Path, devices: &[Device], identity: &Identity) -> BlockIndex {
    let progress = Progress::new();
    let (mut writer, _) = writer(path, identity);
    scan(devices, identity, &mut writer, &progress).unwrap();
    writer
        .finish(1 << 16, &SpoolFolder::new(None), &progress)
        .unwrap()
}

fn records(index: &BlockIndex) -> Vec<Record> {
    let mut records = Vec::new();
    let mut reader = index.reader();
    reader
        .each(|_, record| {
            records.push(*record);
            Ok(())
        })
        .unwrap();
    records
}

#[test]
fn scan_finds_every_block_of_all_seed_volumes() {
    let folder = tempfile::tempdir().unwrap();
    for volume in volumes() {
        let devices = devices(overlays(&volume));
        let identity = &identify(&devices, &Progress::new()).unwrap()[0];
        let expected = all_blocks(&volume, identity);
        let index = index_of(&folder.path().join(&volume.name), &devices, identity);
        let records = records(&index);
        let sound = records.iter().filter(|record| record.has_checksum());
        let found: BTreeSet<_> = sound
            .map(|record| (record.device, record.physical.get()))
            .collect();
        assert_eq!(found, expected, "{}", volume.name);
        assert_eq!(index.found().blocks, expected.len() as u64);
        assert_eq!(index.records(), index.found().blocks + index.found().damaged);
        let mut reader = index.reader();
        for record in records.iter().step_by(7) {
            let same = records.iter().filter(|other| other.logical == record.logical);
            let same: Vec<_> = same.copied().collect();
            assert_eq!(reader.at(record.logical, usize::MAX).unwrap(), same);
            let tree = reader
                .of_tree(record.owner, record.level..record.level + 1)
                .unwrap();
            let of_tree = |other: &&Record| (other.owner, other.level) == (record.owner, record.level);
            assert_eq!(
                tree.end - tree.start,
                records.iter().filter(of_tree).count() as u64
            );
        }
    }
}

#[test]
fn samples_of_blocks_replace_lost_superblocks() {
    for volume in volumes() {
        let mut lost = overlays(&volume);
        let known = &identify(&devices(lost.clone()), &Progress::new()).unwrap()[0];
        for overlay in &mut lost {
            for offset in SUPERBLOCK_OFFSETS {
                overlay.write(offset.get(), &[0; BLOCK_BYTES]);
            }
        }
        let lost = devices(lost);
        let found = identify(&lost, &Progress::new()).unwrap();
        let facts = |identity: &Identity| {
            (
                identity.metadata_uuid,
                identity.node_bytes,
                identity.checksum_type,
            )
        };
        assert_eq!(facts(&found[0]), facts(known), "{}", volume.name);
        assert_eq!(found[0].generation(), None);
        let wanted = identify_by_blocks(&lost, Some(known.metadata_uuid), &Progress::new()).unwrap();
        assert_eq!(facts(&wanted[0]), facts(known), "{}", volume.name);
        let other = identify_by_blocks(&lost, Some(buttress_format::Uuid::max()), &Progress::new());
        assert!(matches!(other, Err(Error::NoSuchFileSystem { .. })));
    }
}

/// A sink that stops after some units, with or without a durable header before.
struct Stopping<'a> {
    writer: &'a mut IndexWriter,
    left: u32,
    durable_every: u32,
}

impl ScanSink for Stopping<'_> {
    fn start(&self, device: usize) -> u64 {
        self.writer.start(device)
    }

    fn take(&mut self, device: usize, position: u64, records: &[Record], found: &Scanned) -> Result<()> {
        if self.left == 0 {
            return Err(Error::Cancelled);
        }
        self.left -= 1;
        self.writer.take(device, position, records, found)?;
        match self.left.is_multiple_of(self.durable_every) {
            true => self.writer.checkpoint(),
            false => Ok(()),
        }
    }
}

#[test]
fn interrupted_scan_continues_to_the_same_index() {
    let folder = tempfile::tempdir().unwrap();
    let progress = Progress::new();
    for volume in volumes().into_iter().skip(5).take(2) {
        let devices = devices(overlays(&volume));
        let identity = &identify(&devices, &progress).unwrap()[0];
        let whole = index_of(&folder.path().join("whole"), &devices, identity);
        let bytes = std::fs::read(whole.path()).unwrap();
        for (stops, durable_every) in [(1, 1), (2, 3), (5, 2), (3, 100)] {
            let path = folder.path().join(format!("cut-{stops}-{durable_every}"));
            let mut rounds = 0;
            let index = loop {
                let (mut writer, continued) = writer(&path, identity);
                assert_eq!(continued, rounds > 0);
                rounds += 1;
                let mut sink = Stopping {
                    writer: &mut writer,
                    // Later rounds go further, so that rounds without a durable header end.
                    left: stops * rounds,
                    durable_every,
                };
                match scan(&devices, identity, &mut sink, &progress) {
                    Ok(()) => {
                        break writer
                            .finish(1 << 14, &SpoolFolder::new(None), &progress)
                            .unwrap();
                    }
                    Err(Error::Cancelled) => {}
                    Err(error) => panic!("{error}"),
                }
            };
            assert!(rounds > 1, "{}: the scan was interrupted", volume.name);
            assert_eq!(index.found(), whole.found());
            // Only the number of headers differs.
            let cut = std::fs::read(&path).unwrap();
            assert!(
                cut[32 << 10..] == bytes[32 << 10..],
                "{}: {stops} {durable_every}",
                volume.name
            );
            std::fs::remove_file(&path).unwrap();
        }
        let opened = IndexWriter::open(whole.path(), identity).unwrap();
        assert!(matches!(opened, OpenedIndex::Complete(_)));
        std::fs::remove_file(whole.path()).unwrap();
    }
}

#[test]
fn finished_scan_replaces_only_the_index() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |name: &str| folder.path().join(name);
    let volume = &volumes()[0];
    let devices = devices(overlays(volume));
    let identity = &identify(&devices, &Progress::new()).unwrap()[0];
    std::fs::write(in_folder("image"), b"an image").unwrap();
    std::os::unix::fs::symlink("image", in_folder("index.sorting")).unwrap();
    let mode = |name: &str| in_folder(name).metadata().unwrap().permissions().mode();
    drop(index_of(&in_folder("index"), &devices, identity));
    assert_eq!(std::fs::read(in_folder("image")).unwrap(), b"an image");
    assert_eq!(mode("index"), mode("image"), "the mode of a new file");
    let names = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(names.count(), 3, "no other file stays");
}

#[test]
fn index_of_changed_devices_begins_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let volume = &volumes()[0];
    let devices = devices(overlays(volume));
    let identity = &identify(&devices, &Progress::new()).unwrap()[0];
    drop(index_of(&path, &devices, identity));
    let mut changed = identity.clone();
    changed.devices[0].changed_at = Some((1, 2));
    let (writer, continued) = writer(&path, &changed);
    assert!(!continued);
    assert_eq!(writer.start(0), 0);
    let in_use = IndexWriter::open(&path, &changed).unwrap_err();
    assert!(
        matches!(
            in_use,
            Error::Index {
                problem: IndexProblem::InUse,
                ..
            }
        ),
        "{in_use}"
    );
    drop(writer);
    changed.metadata_uuid = buttress_format::Uuid::max();
    let other = IndexWriter::open(&path, &changed).unwrap_err();
    assert!(
        matches!(
            other,
            Error::Index {
                problem: IndexProblem::OtherFileSystem { .. },
                ..
            }
        ),
        "{other}"
    );
    let text = folder.path().join("text");
    std::fs::write(&text, vec![b'x'; 40_000]).unwrap();
    let no_index = IndexWriter::open(&text, identity).unwrap_err();
    assert!(
        matches!(
            no_index,
            Error::Index {
                problem: IndexProblem::NoIndex,
                ..
            }
        ),
        "{no_index}"
    );
    assert_eq!(std::fs::read(&text).unwrap(), vec![b'x'; 40_000]);
}

#[test]
fn complete_index_of_unmarked_devices_is_not_reused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let volume = &volumes()[0];
    let devices = devices(overlays(volume));
    let mut identity = identify(&devices, &Progress::new()).unwrap().remove(0);
    let device = &mut identity.devices[0];
    device.changed_at = None;
    let member = device.member.take();
    drop(index_of(&path, &devices, &identity));
    let (again, continued) = writer(&path, &identity);
    assert!(!continued);
    assert_eq!(again.start(0), 0);
    drop(again);
    identity.devices[0].member = member;
    drop(index_of(&path, &devices, &identity));
    let opened = IndexWriter::open(&path, &identity).unwrap();
    assert!(matches!(opened, OpenedIndex::Complete(_)));
}

/// Every changed byte of an index is an error, or leaves the answers as they were.
#[test]
fn damaged_index_gives_no_wrong_record() {
    let folder = tempfile::tempdir().unwrap();
    let volume = &volumes()[0];
    let devices = devices(overlays(volume));
    let identity = &identify(&devices, &Progress::new()).unwrap()[0];
    let index = index_of(&folder.path().join("index"), &devices, identity);
    let whole = records(&index);
    let bytes = std::fs::read(index.path()).unwrap();
    let path = folder.path().join("damaged");
    let (mut errors, mut equal) = (0, 0);
    let places = (0..bytes.len()).step_by(1531).chain(32_768..32_868).chain(0..64);
    for place in places {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x41;
        std::fs::write(&path, &damaged).unwrap();
        let mut found = Vec::new();
        let read = BlockIndex::open(&path).and_then(|index| {
            let mut reader = index.reader();
            reader.each(|_, record| {
                found.push(*record);
                Ok(())
            })?;
            for position in 0..index.records() {
                reader.ordered(position)?;
            }
            Ok(())
        });
        match read {
            Ok(()) => {
                assert!(found == whole, "byte {place}");
                equal += 1;
            }
            Err(Error::Index { .. }) => errors += 1,
            Err(error) => panic!("byte {place}: {error}"),
        }
    }
    // A header has a second copy, and a page has none.
    assert!(errors > 100 && equal > 50, "{errors} errors, {equal} equal");
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let short = BlockIndex::open(&path).unwrap_err();
    assert!(
        matches!(
            short,
            Error::Index {
                problem: IndexProblem::Length { .. },
                ..
            }
        ),
        "{short}"
    );
}

#[test]
fn states_name_every_root_of_the_root_tree() {
    let folder = tempfile::tempdir().unwrap();
    for volume in volumes() {
        let devices = devices(overlays(&volume));
        let identity = &identify(&devices, &Progress::new()).unwrap()[0];
        let index = index_of(&folder.path().join(&volume.name), &devices, identity);
        let named = states(&devices, identity.fsid, None).unwrap();
        let all = states(&devices, identity.fsid, Some(&index)).unwrap();
        assert!(all.is_sorted_by_key(|state| core::cmp::Reverse(state.generation())));
        assert!(matches!(all[0].origin, Origin::Superblock(_)), "{}", volume.name);
        assert_eq!(Some(all[0].generation()), identity.generation());
        assert!(named.iter().all(|state| all.contains(state)), "{}", volume.name);
        let query = RootQuery {
            tree: TreeId::ROOT,
            level_min: 0,
            generation_min: buttress_format::Generation::MIN,
        };
        let roots = find_roots(&devices, identity, query, &|_| true, &Progress::new()).unwrap();
        let mut by_generation: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for state in all.iter().filter(|state| !named.contains(state)) {
            by_generation
                .entry(state.generation())
                .or_default()
                .insert(state.root.logical);
        }
        for (generation, found) in by_generation {
            let (_, expected) = &roots.generations[&generation];
            assert!(found.is_subset(expected), "{}: {generation}", volume.name);
        }
    }
}
