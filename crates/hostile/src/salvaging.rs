//! The targets of salvage: a changed index of a scan, and states of a changed volume.
//!
//! - `scan_index` changes bytes of the index of a small volume, repairs checksums if the input asks
//!   for it, and reads everything through the index: records, states, views.
//! - `assemble` changes a volume, scans its devices, and reads the found states. If the input asks
//!   for it, all superblocks are lost, so that the chunks come from the index.

use crate::input::Input;
use crate::seed_volume::Overlay;
use crate::{Depth, image, mutation, seeds};
use buttress_device::{Device, VirtualClock};
use buttress_format::{Generation, Logical, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, TreeId, crc32c};
use buttress_fs::Progress;
use buttress_lab::Model;
use buttress_packing::SpoolFolder;
use buttress_salvage::{
    BlockIndex, Identity, IndexWriter, OpenedIndex, RootQuery, Surveyor, ViewOptions, find_roots, identify,
    scan, states, view,
};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fmt::Display;
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// The bytes of the two headers, and of a page, of an index.
const HEADER_BYTES: usize = 16 << 10;
const PAGE_BYTES: usize = 64 << 10;

/// The number of states that an input reads.
const STATES_MAX: usize = 4;

/// The memory of the sorter of an index, in bytes.
const SORTER_BYTES: usize = 1 << 20;

fn devices(overlays: &[Overlay]) -> Vec<Device> {
    // Simulated devices run everything on this thread, so that an input always gives the same run.
    let clock = VirtualClock::new();
    let overlays = overlays.iter().cloned();
    overlays
        .map(|overlay| buttress_lab::simulated(Arc::new(overlay), &Model::Null, &clock))
        .collect()
}

fn show<T, E: Display>(result: Result<T, E>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains("defect"), "bytes have the program fail: {text}");
            black_box(text);
            None
        }
    }
}

/// Returns a folder for an index, in memory if the machine has one.
fn folder() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    let made = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir());
    made.expect("a folder can be made")
}

/// Scans devices into an index.
fn index_of(devices: &[Device]) -> Option<(tempfile::TempDir, BlockIndex)> {
    let (folder, progress) = (folder(), Progress::new());
    let found = show(identify(devices, &progress))?;
    let identity = found.first()?;
    let OpenedIndex::Scanning(mut writer, _) =
        show(IndexWriter::open(&folder.path().join("index"), identity))?
    else {
        return None;
    };
    show(scan(devices, identity, &mut writer, &progress))?;
    let index = show(writer.finish(SORTER_BYTES, &SpoolFolder::new(Some(folder.path())), &progress))?;
    Some((folder, index))
}

/// Reads the states of devices.
fn read_states(devices: &[Device], index: BlockIndex) -> bool {
    let (index, progress) = (Arc::new(index), Progress::new());
    let identity: &Identity = index.identity();
    let Some(states) = show(states(devices, identity.fsid, Some(&index))) else {
        return false;
    };
    let options = ViewOptions {
        index: Some(Arc::clone(&index)),
        degraded: true,
        ..ViewOptions::default()
    };
    let mut opened = false;
    for state in states.iter().take(STATES_MAX) {
        if let Some(view) = show(view::open(devices, identity, state, &options)) {
            opened = true;
            let survey = Surveyor::new().survey(&view, &progress);
            black_box(show(survey).is_some());
            image::read_all(&view.filesystem);
        }
    }
    opened
}

/// The volume of `scan_index`, and the bytes of its index.
static WHOLE: LazyLock<(Vec<Overlay>, Vec<u8>)> = LazyLock::new(|| {
    let aims = seeds::volumes().first().expect("a seed volume exists");
    let overlays = mutation::apply(aims, &mut Input::new(&[]));
    let (_folder, index) = index_of(&devices(&overlays)).expect("a sound volume can be scanned");
    let bytes = std::fs::read(index.path()).expect("an index can be read");
    (overlays, bytes)
});

/// Computes the checksums of both headers and of all pages.
fn mend(index: &mut [u8]) {
    let checksum = |covered: &[u8]| (!crc32c(u32::MAX, covered)).to_le_bytes();
    let (headers, pages) = index.split_at_mut(index.len().min(2 * HEADER_BYTES));
    for header in headers.chunks_exact_mut(HEADER_BYTES) {
        let (covered, stored) = header.split_at_mut(HEADER_BYTES - 4);
        stored.copy_from_slice(&checksum(covered));
    }
    for page in pages.chunks_exact_mut(PAGE_BYTES) {
        let (stored, covered) = page.split_at_mut(4);
        stored.copy_from_slice(&checksum(covered));
    }
}

/// The target of a changed index.
pub fn scan_index(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let (overlays, whole) = &*WHOLE;
    let mut index = whole.clone();
    for change in input.rest().chunks_exact(4) {
        let at = usize::from(change[0]) << 16 | usize::from(change[1]) << 8 | usize::from(change[2]);
        let place = at % index.len();
        index[place] ^= change[3];
    }
    if choices & 1 == 1 {
        mend(&mut index);
    }
    let file = memfd_create("index", MemfdFlags::CLOEXEC).expect("a file in memory");
    let mut file = File::from(file);
    file.write_all(&index).expect("a file in memory can be written");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let Some(index) = show(BlockIndex::open(&path)) else {
        return Depth::Refused;
    };
    let mut reader = index.reader();
    show(reader.each(|_, record| {
        black_box(record.logical);
        Ok(())
    }));
    for tree in [TreeId::ROOT, TreeId::CHUNK, TreeId::FS] {
        let Some(positions) = show(reader.of_tree(tree, 0..8)) else {
            continue;
        };
        for position in positions.take(64) {
            if let Some(record) = show(reader.ordered(position)) {
                show(reader.at(record.logical, 8));
            }
        }
    }
    show(reader.at(Logical::new(0), 8));
    Depth::passed(read_states(&devices(overlays), index))
}

/// The target of states of a changed volume.
pub fn assemble(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let volumes = seeds::volumes();
    let aims = &volumes[usize::from(input.byte()) % volumes.len()];
    let choices = input.byte();
    let mut overlays = mutation::apply(aims, &mut input);
    if choices & 1 == 1 {
        for overlay in &mut overlays {
            for at in SUPERBLOCK_OFFSETS {
                overlay.write(at.get(), &[0; SUPERBLOCK_BYTES]);
            }
        }
    }
    let devices = devices(&overlays);
    let Some((_folder, index)) = index_of(&devices) else {
        return Depth::Refused;
    };
    let query = RootQuery {
        tree: TreeId::ROOT,
        level_min: 0,
        generation_min: Generation::MIN,
    };
    let found = find_roots(&devices, index.identity(), query, &|_| true, &Progress::new());
    black_box(show(found).is_some());
    Depth::passed(read_states(&devices, index))
}

/// Returns first inputs for both targets, each with the target's name.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = vec![("scan_index", vec![0]), ("scan_index", vec![1])];
    // Fields of the first header, of the first page's head, and of its first records.
    let in_page = (2 * HEADER_BYTES) as u32;
    for at in [
        8,
        12,
        24,
        28,
        96,
        98,
        104,
        112,
        in_page + 4,
        in_page + 6,
        in_page + 16,
        in_page + 40,
        in_page + 100,
    ] {
        let [_, high, middle, low] = u32::to_be_bytes(at);
        seeds.push(("scan_index", vec![1, high, middle, low, 1]));
    }
    for volume in 0..10 {
        seeds.push(("assemble", vec![volume, 0]));
        seeds.push(("assemble", vec![volume, 1]));
        seeds.push(("assemble", vec![volume, 0, 2, volume, 0, 3, 20, 0, 0, 1]));
        seeds.push(("assemble", vec![volume, 1, 4, volume, 0, 1, 3, 0, 0]));
    }
    seeds
}
