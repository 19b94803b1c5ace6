//! Measures tree edits that create and remove files: `cargo run --release --example create_files
//! --features testing [FILES [keep]]`. With the argument `keep`, the files are not removed.
//!
//! A file has five items: an inode item, a reference to its name, 2,000 bytes of inline data, and
//! two entries in one of four directories in turn. After the example created all files, it removes
//! them one by one in a different order. No commit runs during the measurement, so only the edits
//! are measured.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a measurement with numbers of its own"
)]

use buttress_format::{ByteCount, ItemType, Key, ObjectId, TreeId, name_hash};
use buttress_tree::testing::{ImageOptions, Scratch};
use buttress_tree::{EditableTree, ReadAhead};

const DIRECTORIES: u64 = 4;
const FIRST_FILE: u64 = 1000;

/// The number of files whose items are made at a time, outside of the measured time.
const BATCH: u64 = 500;

/// Returns the five items of a file.
fn items(file: u64, inline: &[u8]) -> [(Key, Vec<u8>); 5] {
    let directory = ObjectId::new(256 + file % DIRECTORIES);
    let inode = ObjectId::new(FIRST_FILE + file);
    let name = format!("f{file:07}");
    let index = 2 + file / DIRECTORIES;
    let entry = [&[0; 30], name.as_bytes()].concat();
    let reference = [&[0; 10], name.as_bytes()].concat();
    [
        (Key::new(inode, ItemType::INODE_ITEM, 0), vec![1; 160]),
        (Key::new(inode, ItemType::INODE_REF, directory.get()), reference),
        (Key::new(inode, ItemType::EXTENT_DATA, 0), inline.to_vec()),
        (
            Key::new(directory, ItemType::DIR_ITEM, name_hash(name.as_bytes())),
            entry.clone(),
        ),
        (Key::new(directory, ItemType::DIR_INDEX, index), entry),
    ]
}

/// Returns the number of leaves, and their mean fill in percent.
fn fill(tree: &EditableTree) -> (u64, u64) {
    let (mut leaves, mut free): (u64, u64) = (0, 0);
    let mut walk = tree.view().leaves(.., ReadAhead::None);
    while let Some(leaf) = walk.next().unwrap() {
        leaves += 1;
        free += leaf.block.free_space() as u64;
    }
    let room = leaves * u64::from(tree.forest().block_format().node_bytes - 101);
    (leaves, 100 - free * 100 / room.max(1))
}

/// Returns the CPU time of this thread, which other work on the machine does not affect.
fn cpu_seconds() -> f64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: u64 = statistics.split(' ').next().unwrap().parse().unwrap();
    nanoseconds as f64 * 1e-9
}

fn main() {
    let files: u64 = std::env::args()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .unwrap_or(500_000);
    let options = ImageOptions {
        node_bytes: 16384,
        chunk_bytes: 16 << 20,
        ..ImageOptions::default()
    };
    let mut scratch = Scratch::new(options, ByteCount::new(64 << 20));
    let mut tree = scratch.new_tree(TreeId::FS);
    let inline = [7; 2021];
    let (mut insert, mut remove) = (0.0, 0.0);
    for first in (0..files).step_by(BATCH as usize) {
        let batch = first..files.min(first + BATCH);
        let items: Vec<_> = batch.flat_map(|file| items(file, &inline)).collect();
        let start = cpu_seconds();
        for (key, data) in &items {
            // In a real tree, two names with one hash share an item. In this example, the second
            // name replaces the first.
            tree.put(&mut scratch.account, key, data).unwrap();
        }
        insert += cpu_seconds() - start;
    }
    let (leaves, percent) = fill(&tree);
    println!(
        "{files} files: {insert:.3} s to insert, {:.0} ns an item; {leaves} leaves, {percent}% full, level {}",
        insert * 1e9 / (files * 5) as f64,
        tree.level()
    );
    let removed = if std::env::args().any(|word| word == "keep") {
        0
    } else {
        files
    };
    for first in (0..removed).step_by(BATCH as usize) {
        // A step that shares no divisor with the number of files visits each file once.
        let batch = (first..files.min(first + BATCH)).map(|step| (step * 7919) % files);
        let items: Vec<_> = batch.flat_map(|file| items(file, &inline)).collect();
        let start = cpu_seconds();
        for (key, _) in &items {
            tree.remove(&mut scratch.account, key).unwrap();
        }
        remove += cpu_seconds() - start;
    }
    println!(
        "{remove:.3} s to remove all, {:.0} ns an item; {} blocks left",
        remove * 1e9 / (files * 5) as f64,
        tree.unassigned_nodes()
    );
}
