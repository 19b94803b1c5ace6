//! Views of small volumes of the kernel's: each state that opens reads without a wrong block.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic"
)]

use buttress_device::{Device, Engine};
use buttress_format::{SUPERBLOCK_OFFSETS, SubvolumeId};
use buttress_fs::{Content, Filesystem, Location, OpenOptions, Progress, WalkItem, WalkOptions};
use buttress_hostile::seed_volume::{Overlay, SeedVolume};
use buttress_packing::SpoolFolder;
use buttress_salvage::{BlockIndex, IndexWriter, OpenedIndex, ViewOptions, identify, scan, states, view};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn volumes() -> Vec<(SeedVolume, Vec<Overlay>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/volumes");
    let files = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let unpack = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let volume = SeedVolume::unpack(name, &std::fs::read(path).unwrap()).unwrap();
        let devices = volume.devices.iter();
        let overlays = devices
            .map(|device| Overlay::new(volume.name.clone(), Arc::clone(device)))
            .collect();
        (volume, overlays)
    };
    paths.iter().map(unpack).collect()
}

fn devices(overlays: &[Overlay]) -> Vec<Device> {
    let backends = overlays.iter().cloned();
    backends
        .map(|overlay| Device::with_backend(Arc::new(overlay), Engine::Inline))
        .collect()
}

fn index_of(path: &Path, devices: &[Device]) -> Arc<BlockIndex> {
    let progress = Progress::new();
    let identity = &identify(devices, &progress).unwrap()[0];
    let OpenedIndex::Scanning(mut writer, _) = IndexWriter::open(path, identity).unwrap() else {
        panic!("the index is complete");
    };
    scan(devices, identity, &mut writer, &progress).unwrap();
    Arc::new(
        writer
            .finish(1 << 16, &SpoolFolder::new(None), &progress)
            .unwrap(),
    )
}

/// The parts of all files by path: offset and bytes, with `None` for a damaged part.
type Parts = BTreeMap<Vec<u8>, Vec<(u64, Option<Vec<u8>>)>>;

/// Returns the content of all files by path, with `None` for a damaged part, and the number of
/// entries that could not be read.
fn content(filesystem: &Filesystem) -> (Parts, u64) {
    let (mut found, mut failed) = (BTreeMap::new(), 0);
    for item in filesystem.walk(Location::root_of(SubvolumeId::TOP_LEVEL), WalkOptions::default()) {
        let mut entry = match item {
            WalkItem::Entry(entry) => entry,
            WalkItem::Failed(_) => {
                failed += 1;
                continue;
            }
            WalkItem::Enter(_) | WalkItem::Leave(_) => continue,
        };
        let mut chunks = Vec::new();
        if entry.metadata().kind == buttress_format::FileKind::Regular {
            let mut reader = entry.reader().unwrap();
            while let Some(chunk) = reader.next_chunk().unwrap() {
                let bytes = match chunk.content {
                    Content::Data(bytes) => Some(bytes.to_vec()),
                    Content::Hole => Some(Vec::new()),
                    Content::Damaged(_) => None,
                };
                chunks.push((chunk.offset.get(), bytes));
            }
        }
        found.insert(entry.path(), chunks);
    }
    (found, failed)
}

#[test]
fn newest_state_equals_the_opened_volume() {
    let folder = tempfile::tempdir().unwrap();
    let mut older = 0;
    for (volume, mut overlays) in volumes() {
        let name = &volume.name;
        let known = devices(&overlays);
        let opened = OpenOptions::new(known.clone()).open().unwrap();
        let expected = content(&opened);
        let index = index_of(&folder.path().join(name), &known);
        let options = ViewOptions {
            index: Some(Arc::clone(&index)),
            ..ViewOptions::default()
        };
        let all = states(&known, index.identity().fsid, Some(&index)).unwrap();
        let newest = all
            .iter()
            .find(|state| state.generation() == opened.superblock().generation)
            .unwrap();
        let view = view::open(&known, index.identity(), newest, &options).unwrap();
        assert_eq!(content(&view.filesystem), expected, "{name}");
        assert!(!view.filesystem.volume().may_be_written(), "{name}");
        for slot in view.filesystem.volume().devices() {
            let device = slot.in_use().unwrap();
            assert!(!device.is_writable(), "{name}");
            assert!(device.write(1 << 20, &[1; 512]).is_err(), "{name}");
        }
        for state in &all {
            if let Ok(view) = view::open(&known, index.identity(), state, &options) {
                let _ = content(&view.filesystem);
                older += 1;
            }
        }
        for overlay in &mut overlays {
            for at in SUPERBLOCK_OFFSETS {
                overlay.write(at.get(), &[0; 4096]);
            }
        }
        let bare = devices(&overlays);
        let index = index_of(&folder.path().join(format!("{name}-bare")), &bare);
        let options = ViewOptions {
            index: Some(Arc::clone(&index)),
            ..ViewOptions::default()
        };
        let all = states(&bare, index.identity().fsid, Some(&index)).unwrap();
        let newest = all.iter().find(|state| state.root == newest.root).unwrap();
        match view::open(&bare, index.identity(), newest, &options) {
            Ok(view) => assert_eq!(content(&view.filesystem), expected, "{name}"),
            Err(error) => assert!(overlays.len() > 1, "{name}: {error}"),
        }
    }
    assert!(older > 20, "{older} states open");
}
