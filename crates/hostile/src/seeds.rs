//! First inputs, cut out of the seed volumes, so that every target starts from the kernel's own
//! output.

use crate::mutation::Aims;
use crate::seed_volume::SeedVolume;
use crate::{compressed, corpus, items, streams};
use buttress_format::{
    BlockFormat, Expectation, Key, Logical, Physical, SUPERBLOCK_BYTES, Superblock, TreeBlock,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

mod by_hand;

/// The largest number of seeds for a target; more seeds of a kind only take time.
const SEEDS_MAX: usize = 400;

/// Returns the folder of fuzzing files in the repository.
#[must_use]
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Returns all seed volumes, in the order of their names.
///
/// # Panics
/// Panics if a committed file cannot be read.
#[must_use]
pub fn volumes() -> &'static [Aims] {
    static VOLUMES: OnceLock<Vec<Aims>> = OnceLock::new();
    VOLUMES.get_or_init(|| {
        let mut files: Vec<_> = fs::read_dir(folder().join("volumes"))
            .expect("fuzz/volumes is in the repository")
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "zst"))
            .collect();
        files.sort();
        let volumes = files.iter().map(|path| {
            let name = path
                .file_stem()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            let packed = fs::read(path).expect("a seed volume can be read");
            Aims::new(SeedVolume::unpack(&name, &packed).expect("a seed volume can be unpacked"))
        });
        volumes.collect()
    })
}

/// Returns the seeds of a target.
#[must_use]
pub fn of_target(name: &str) -> Vec<Vec<u8>> {
    static SEEDS: OnceLock<BTreeMap<&'static str, BTreeSet<Vec<u8>>>> = OnceLock::new();
    let all = SEEDS.get_or_init(collect);
    all.get(name)
        .map_or_else(Vec::new, |seeds| seeds.iter().take(SEEDS_MAX).cloned().collect())
}

/// Returns the inputs in the repository: the corpus and the regressions.
///
/// # Panics
/// A committed file cannot be read.
#[must_use]
pub fn committed(name: &str) -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    if let Ok(packed) = fs::read(folder().join("corpus").join(format!("{name}.zst"))) {
        let unpacked = corpus::unpack(&packed).expect("a committed corpus can be unpacked");
        inputs.extend(
            unpacked
                .into_iter()
                .zip(0..)
                .map(|(input, index)| (format!("corpus {index}"), input)),
        );
    }
    if let Ok(files) = fs::read_dir(folder().join("regressions").join(name)) {
        for file in files.filter_map(Result::ok) {
            let input = fs::read(file.path()).expect("a committed input can be read");
            inputs.push((file.file_name().to_string_lossy().into_owned(), input));
        }
    }
    inputs
}

fn collect() -> BTreeMap<&'static str, BTreeSet<Vec<u8>>> {
    let mut seeds: BTreeMap<&'static str, BTreeSet<Vec<u8>>> = BTreeMap::new();
    let mut add = |target, input| {
        seeds.entry(target).or_default().insert(input);
    };
    for (aims, index) in volumes().iter().zip(0_u8..) {
        add("image", vec![index, 0]);
        for choice in [0, 1, 6, 8, 9, 10, 12, 15, 17, 0x86] {
            add("command", vec![choice, index, 0]);
        }
        for &(device, physical) in &aims.superblocks {
            let bytes = aims.volume.devices[device].read(physical, SUPERBLOCK_BYTES);
            add("superblock", bytes.clone());
            if let Ok(superblock) = Superblock::check(&bytes, Physical::new(physical)) {
                blocks(aims, &superblock.block_format(), &mut add);
            }
        }
    }
    // Each volume with a log is a seed, unchanged and with a change to an item.
    for volume in 0..3 {
        add("log", vec![volume]);
        for place in 0..6 {
            add("log", vec![volume, 2, place, 0, 3, 20, 0, 0, 1]);
        }
    }
    for (key, data) in by_hand::items() {
        if let Some(target) = items::target_of(&key) {
            add(target, items::encode(&key, &data));
        }
    }
    for stream in streams::samples() {
        add("stream", streams::encode(&stream));
        add("stream_mended", streams::encode(&stream));
        add("stream_view", streams::encode(&stream));
        add("receiving", streams::encode(&stream));
    }
    let extents: [(&str, &[u8], &[u8]); 3] = [
        (
            "zlib",
            include_bytes!("../../format/tests/data/zlib-regular.bin"),
            include_bytes!("../../format/tests/data/zlib-inline.bin"),
        ),
        (
            "lzo",
            include_bytes!("../../format/tests/data/lzo-regular.bin"),
            include_bytes!("../../format/tests/data/lzo-inline.bin"),
        ),
        (
            "zstd",
            include_bytes!("../../format/tests/data/zstd-regular.bin"),
            include_bytes!("../../format/tests/data/zstd-inline.bin"),
        ),
    ];
    for (name, regular, inline) in extents {
        if name == "lzo" {
            for segments in [1, 2, 4] {
                add(
                    name,
                    compressed::encode(&compressed::first_segments(regular, segments), 65_536, false),
                );
            }
        }
        add(name, compressed::encode(regular, 65_536, false));
        add(name, compressed::encode(inline, 1500, true));
    }
    let content: Vec<u8> = (0..600_u32).flat_map(|n| (n * n / 7).to_le_bytes()).collect();
    for level in [1, 3, 9] {
        for stored in [
            zstd::bulk::compress(&content, level),
            compressed::deflate(&content, level),
        ] {
            let stored = stored.unwrap_or_default();
            let name = if stored.first() == Some(&0x78) {
                "zlib"
            } else {
                "zstd"
            };
            add(name, compressed::encode(&stored, content.len(), false));
        }
    }
    for (target, input) in crate::sources::seeds() {
        add(target, input);
    }
    #[cfg(feature = "writing")]
    for (target, input) in crate::dumps::seeds().into_iter().chain(crate::salvaging::seeds()) {
        add(target, input);
    }
    #[cfg(feature = "writing")]
    for input in crate::repairing::seeds() {
        add("repair", input);
    }
    for input in crate::ext::seeds() {
        add("ext", input);
    }
    for input in crate::partitions::seeds() {
        add("gpt", input.clone());
        add("mbr", input);
    }
    seeds
}

fn blocks(aims: &Aims, format: &BlockFormat, add: &mut impl FnMut(&'static str, Vec<u8>)) {
    for place in &aims.places {
        let bytes = aims.read(place);
        if bytes.len() == 4096 {
            add("tree_block", [&[0x0c][..], &bytes].concat());
        }
        let expectation = Expectation::at(Logical::new(place.logical));
        let Ok(block) = TreeBlock::check(Bytes::from(bytes), format, &expectation) else {
            continue;
        };
        let mut leaf = vec![0x0c, 0];
        for item in block.items() {
            if let Some(target) = items::target_of(&item.key) {
                add(target, items::encode(&item.key, item.data));
            }
            if let Some(entry) = leaf_entry(&item.key, item.data)
                && leaf.len() + entry.len() < 4096
            {
                leaf.extend_from_slice(&entry);
            }
        }
        if block.is_leaf() {
            add("leaf", leaf);
        } else {
            add("node", node(&block));
        }
    }
}

/// Returns an item as the leaf target draws it, if the target can draw it.
fn leaf_entry(key: &Key, data: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(data.len())
        .ok()
        .filter(|length| *length < 2048)?
        .to_le_bytes();
    let head = [0xff, key.item_type.0];
    Some(
        [
            &head[..],
            &key.objectid.get().to_le_bytes(),
            &key.offset.to_le_bytes(),
            &length,
            data,
        ]
        .concat(),
    )
}

fn node(block: &TreeBlock) -> Vec<u8> {
    let mut input = vec![0x0c, block.level().saturating_sub(1)];
    for pointer in block.pointers() {
        input.extend_from_slice(&pointer.key.objectid.get().to_le_bytes());
        input.push(pointer.key.item_type.0);
        input.push(pointer.key.offset.to_le_bytes()[0]);
        let logical = pointer.logical.get().to_le_bytes();
        input.extend_from_slice(&[logical[1], logical[2] | 1, 0, 7]);
    }
    input
}
