//! Chunks of small volumes of the kernel's, recovered without any block of their chunk trees.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic"
)]

use buttress_device::{Device, Engine};
use buttress_format::{Chunk, DeviceId, Logical, Physical, Profile, TreeId};
use buttress_fs::{OpenOptions, Progress};
use buttress_hostile::seed_volume::{Overlay, SeedVolume};
use buttress_packing::SpoolFolder;
use buttress_salvage::{
    BlockIndex, ChunkEvidence, IndexWriter, OpenedIndex, RecoveredChunks, Unproven, ViewOptions, identify,
    recover_chunks, scan, states, view,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

fn volumes() -> Vec<(String, Vec<Device>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/volumes");
    let files = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let unpack = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let volume = SeedVolume::unpack(name, &std::fs::read(path).unwrap()).unwrap();
        let devices = volume.devices.iter().map(|device| {
            let overlay = Overlay::new(volume.name.clone(), Arc::clone(device));
            Device::with_backend(Arc::new(overlay), Engine::Inline).with_changes_in_memory()
        });
        (name.to_owned(), devices.collect())
    };
    paths.iter().map(unpack).collect()
}

fn index_of(path: &Path, devices: &[Device]) -> BlockIndex {
    let progress = Progress::new();
    let identity = &identify(devices, &progress).unwrap()[0];
    let OpenedIndex::Scanning(mut writer, _) = IndexWriter::open(path, identity).unwrap() else {
        panic!("the index is complete");
    };
    scan(devices, identity, &mut writer, &progress).unwrap();
    writer
        .finish(1 << 16, &SpoolFolder::new(None), &progress)
        .unwrap()
}

/// Zeros all blocks of a tree that a scan finds.
fn zero(devices: &[Device], tree: TreeId) {
    let folder = tempfile::tempdir().unwrap();
    let index = index_of(&folder.path().join("index"), devices);
    let zeros = vec![0; index.identity().node_bytes as usize];
    let zero_it = |_, record: &buttress_salvage::Record| {
        if record.owner == tree {
            devices[usize::from(record.device)]
                .write(record.physical.get(), &zeros)
                .unwrap();
        }
        Ok(())
    };
    index.reader().each(zero_it).unwrap();
}

fn recovered(folder: &Path, devices: &[Device]) -> Result<RecoveredChunks, buttress_salvage::Error> {
    let index = index_of(&folder.join(format!("index-{}", rand(folder))), devices);
    let state = states(devices, index.identity().fsid, Some(&index)).unwrap()[0];
    recover_chunks(devices, index.identity(), &index, &state, &Progress::new())
}

/// Returns a number that no file of the folder has.
fn rand(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// The places of a chunk. The order inside a group of equal stripes has no meaning.
type Places = (u64, u64, Vec<BTreeSet<(DeviceId, Physical)>>);

fn places(chunk: &Chunk) -> Places {
    let copies = match chunk.replication() {
        Profile::Raid0 | Profile::Raid5 | Profile::Raid6 => 1,
        Profile::Raid10 => 2,
        _ => chunk.stripes.len(),
    };
    let place = |stripe: &buttress_format::Stripe| (stripe.device, stripe.physical);
    let groups = chunk.stripes.chunks(copies);
    let groups = groups.map(|group| group.iter().map(place).collect());
    (chunk.length.get(), chunk.profile.bits(), groups.collect())
}

#[test]
fn chunks_without_chunk_tree_equal_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let mut by_content = 0;
    for (name, devices) in volumes() {
        let opened = OpenOptions::new(devices.clone()).open().unwrap();
        let map = opened.volume().chunk_map();
        let expected: BTreeMap<Logical, Places> = map
            .chunks()
            .iter()
            .map(|chunk| (chunk.start(), places(chunk.chunk())))
            .collect();
        drop(opened);
        let own = tempfile::tempdir_in(folder.path()).unwrap();
        for step in 0..2 {
            if step == 1 {
                zero(&devices, TreeId::CHUNK);
            }
            let found = recovered(own.path(), &devices).unwrap();
            // Without its checksums, the data of this volume fits several orders.
            let expects_refusal = step == 1 && name == "08-raid5";
            let refused: Vec<_> = found.unproven.iter().map(|(_, reason)| *reason).collect();
            match expects_refusal {
                true => assert_eq!(refused, [Unproven::Order { stripes: 3 }], "{name}"),
                false => assert_eq!(refused, [], "{name}, step {step}"),
            }
            assert!(found.is_whole, "{name}");
            assert_eq!(found.has_chunk_tree, step == 0, "{name}");
            let all = found.chunks.len() + found.unproven.len();
            assert_eq!(all, expected.len(), "{name}");
            for chunk in &found.chunks {
                let (mut own, mut original) = (places(&chunk.chunk), expected[&chunk.start].clone());
                // Several orders give all used sectors the same content.
                if chunk.evidence == ChunkEvidence::Unused {
                    own.2.sort();
                    original.2.sort();
                }
                assert_eq!(own, original, "{name}, step {step}");
            }
            let evidence = found.chunks.iter().map(|found| found.evidence);
            let content = evidence.filter(|evidence| *evidence == ChunkEvidence::Content);
            by_content += content.count();
        }
        zero(&devices, TreeId::EXTENT);
        zero(&devices, TreeId::BLOCK_GROUP);
        let found = recovered(own.path(), &devices).unwrap();
        assert!(!found.unproven.is_empty(), "{name}");
        let reasons = found.unproven.iter().map(|(_, reason)| *reason);
        assert!(
            reasons.clone().all(|reason| reason == Unproven::Profile),
            "{name}"
        );
        zero(&devices, TreeId::DEVICE);
        assert!(recovered(own.path(), &devices).is_err(), "{name}");
    }
    assert!(by_content >= 3, "{by_content} chunks by content");
}

#[test]
fn state_without_chunk_tree_opens_with_an_index() {
    let folder = tempfile::tempdir().unwrap();
    for (name, devices) in volumes() {
        let opened = OpenOptions::new(devices.clone()).open().unwrap();
        let generation = opened.superblock().generation;
        drop(opened);
        zero(&devices, TreeId::CHUNK);
        assert!(OpenOptions::new(devices.clone()).open().is_err(), "{name}");
        let index = Arc::new(index_of(&folder.path().join(&name), &devices));
        let all = states(&devices, index.identity().fsid, Some(&index)).unwrap();
        let newest = all.iter().find(|state| state.generation() == generation).unwrap();
        let options = ViewOptions {
            index: Some(Arc::clone(&index)),
            ..ViewOptions::default()
        };
        let opened = view::open(&devices, index.identity(), newest, &options);
        let view = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
        let survey = buttress_salvage::Surveyor::new()
            .survey(&view, &Progress::new())
            .unwrap();
        assert!(survey.is_whole(), "{name}: {survey:?}");
        assert!(!view.filesystem.volume().may_be_written(), "{name}");
    }
}
