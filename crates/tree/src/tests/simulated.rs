//! Tests of read-ahead in virtual time. The tests measure each mode on a spinning disk, and prove
//! that runs can be repeated and that passes change nothing except time.

use super::{Image, Sample, key};
use crate::measure::{Comparison, compare};
use crate::testing::{ImageOptions, Placement, Random, TreeShape};
use crate::{Forest, ReadAhead};
use buttress_device::{MemoryBackend, VirtualClock};
use buttress_format::ByteCount;
use buttress_lab::Model;
use buttress_volume::{OpenOptions, Volume};
use std::sync::Arc;

/// Measures a tree of `leaves` leaves of 16 KiB, whose blocks are adjacent or scattered in a chunk
/// four times as large.
fn rows(leaves: u64, placement: Placement) -> Vec<Comparison> {
    let items = (0..leaves * 4)
        .map(|number| (key(number), vec![1; 3000]))
        .collect();
    let options = ImageOptions {
        node_bytes: 16384,
        chunk_bytes: leaves * 4 * 16384,
        placement,
        ..ImageOptions::default()
    };
    let image = Image::new(
        options,
        TreeShape {
            items_per_leaf: 4,
            children_per_node: 200,
        },
        items,
    );
    let bytes = image.builder.finish(&image.root, &image.root);
    let disk = Arc::new(MemoryBackend::new("disk", bytes));
    let fresh = || -> crate::Result<Arc<Volume>> {
        let device = buttress_lab::simulated(disk.clone(), &Model::spinning_7200(), &VirtualClock::new());
        let volume = Volume::open(vec![device], OpenOptions::default()).unwrap();
        Ok(Arc::new(volume))
    };
    compare(fresh, image.root, ByteCount::new(256 << 20)).unwrap()
}

fn seconds(rows: &[Comparison], name: &str) -> f64 {
    rows.iter()
        .find(|row| row.name == name)
        .unwrap()
        .cost
        .elapsed
        .as_secs_f64()
}

#[test]
fn a_sweep_is_close_to_reading_in_order_of_address() {
    for placement in [Placement::InOrder, Placement::Scattered { seed: 5 }] {
        let rows = rows(1500, placement);
        for row in &rows {
            assert_eq!((row.cost.blocks, row.cost.damaged), (1509, 0), "{}", row.name);
        }
        let ordered = seconds(&rows, "address order");
        let sweep = seconds(&rows, "sweep");
        let none = seconds(&rows, "none");
        let always = seconds(&rows, "forward-always");
        let table = format!("{placement:?}: none {none}, always {always}, sweep {sweep}, ordered {ordered}");
        assert!(sweep <= none && sweep <= always, "{table}");
        let any_order = seconds(&rows, "sweep, any order");
        assert!(any_order <= 1.3 * ordered, "any order {any_order}, {table}");
        assert!(sweep <= 1.3 * ordered, "{table}");
    }
}

#[test]
fn two_runs_are_equal() {
    let placement = Placement::Scattered { seed: 8 };
    assert_eq!(rows(300, placement), rows(300, placement));
}

/// Returns a tree of 1500 scattered leaves of 16 KiB on a disk, with `data` in each item, and its
/// items.
fn on_disk(model: &Model, budget: ByteCount, data: impl Fn(u64) -> Vec<u8>) -> Sample {
    let items = (0..6000).map(|number| (key(number), data(number))).collect();
    let options = ImageOptions {
        node_bytes: 16384,
        chunk_bytes: 1520 * 2 * 16384,
        placement: Placement::Scattered { seed: 3 },
        ..ImageOptions::default()
    };
    let shape = TreeShape {
        items_per_leaf: 4,
        children_per_node: 200,
    };
    let image = Image::new(options, shape, items);
    let disk = |bytes| {
        let backend = Arc::new(MemoryBackend::new("disk", bytes));
        buttress_lab::simulated(backend, model, &VirtualClock::new())
    };
    let volume = image.builder.open(&image.root, disk);
    Sample {
        tree: Forest::new(volume, budget).tree(image.root),
        items: image.items,
    }
}

fn repetitive(number: u64) -> Vec<u8> {
    vec![number as u8; 3000]
}

fn noise(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    (0..3000).map(|_| random.below(256) as u8).collect()
}

const WINDOW: ReadAhead = ReadAhead::Sweep {
    window_bytes: ByteCount::new(1 << 20),
};

/// Walks all items. Walks over all items, and returns the virtual seconds and the number of blocks
/// read.
fn walked(sample: &Sample) -> (f64, u64) {
    let clock = sample.forest().volume().virtual_clock().unwrap();
    let start = clock.now();
    let mut items = sample.items.iter();
    let mut leaves = sample.tree.leaves(.., WINDOW);
    while let Some(leaf) = leaves.next().unwrap() {
        for item in leaf.items() {
            assert_eq!(
                (&item.key, item.data),
                items.next().map(|(key, data)| (key, &**data)).unwrap()
            );
        }
        let now = sample.forest().cache_statistics();
        assert!(
            now.block_bytes.get() + now.ahead_bytes.get() <= now.budget_bytes.get(),
            "{now:?}"
        );
    }
    assert!(items.next().is_none());
    drop(leaves);
    let after = sample.forest().cache_statistics();
    assert_eq!(after.ahead_bytes, ByteCount::ZERO);
    ((clock.now() - start).as_secs_f64(), after.misses)
}

#[test]
fn pass_returns_the_same_items_with_any_memory_limit() {
    for (name, data) in [("repetitive", repetitive as fn(u64) -> Vec<u8>), ("noise", noise)] {
        let mut before = f64::MAX;
        for budget in [1 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20] {
            let sample = on_disk(&Model::spinning_7200(), ByteCount::new(budget), data);
            let (seconds, read) = walked(&sample);
            if budget >= 64 << 20 || (name == "repetitive" && budget >= 4 << 20) {
                assert_eq!(read, 1509, "{name}, {budget}: all fits, so nothing is read twice");
            }
            // Blocks of noise cannot be packed. Noise cannot be packed, so blocks that exceed the
            // memory are dropped and read again.
            assert!(read <= 5 * 1509 / 2, "{name}, {budget}: {read} reads");
            assert!(
                seconds <= 1.1 * before,
                "{name}, {budget}: {seconds} s, with less memory {before} s"
            );
            before = seconds;
        }
    }
}

#[test]
fn pass_continues_after_damaged_blocks_and_jumps() {
    let sample = on_disk(&Model::spinning_7200(), ByteCount::new(8 << 20), repetitive);
    let keys: Vec<_> = sample.items.keys().copied().collect();
    let mut cursor = sample.tree.cursor(WINDOW);
    let mut random = Random::new(buttress_oracle::seeds::seed(
        "tree::simulated",
        "BUTTRESS_SEED",
        6,
    ));
    let mut place = 0;
    // The first seek lets the pass begin. Later seeks jump within the pass, beyond it and back.
    cursor.seek(&keys[0]).unwrap();
    for jump in 0..60 {
        let steps = if jump == 0 {
            2000
        } else {
            random.below(60) as usize
        };
        for key in keys.iter().skip(place).take(steps) {
            assert_eq!(cursor.key(), Some(*key));
            cursor.next().unwrap();
        }
        place += steps;
        place = match jump {
            30 => 100,
            _ => place + random.below(40) as usize,
        };
        cursor.seek(&keys[place]).unwrap();
    }
}

#[test]
fn flash_makes_no_passes() {
    let budget = ByteCount::new(8 << 20);
    let (flash, read) = walked(&on_disk(&Model::sata_ssd(), budget, noise));
    assert_eq!(read, 1509);
    assert!(flash < 0.2, "{flash} s");
}
