//! Read-ahead in virtual time: what each mode is worth on a spinning disk, and that runs can be repeated.

use super::{Image, key};
use crate::measure::{Comparison, compare};
use crate::testing::{ImageOptions, Placement, TreeShape};
use buttress_device::{Device, MemoryBackend, Model, VirtualClock};
use buttress_format::ByteCount;
use buttress_volume::{OpenOptions, Volume};
use std::sync::Arc;

/// A tree of `leaves` leaves of 16 KiB; its blocks lie in a row, or anywhere in a chunk four times as large.
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
        let device = Device::simulated(disk.clone(), &Model::spinning_7200(), &VirtualClock::new());
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
        match placement {
            Placement::InOrder => assert!(sweep <= 1.3 * ordered, "{table}"),
            // Short of a window over the whole tree, a sweep makes several passes.
            Placement::Scattered { .. } => assert!(sweep <= 0.5 * none, "{table}"),
        }
    }
}

#[test]
fn two_runs_are_equal() {
    let placement = Placement::Scattered { seed: 8 };
    assert_eq!(rows(300, placement), rows(300, placement));
}
