//! A whole subvolume tree under each read-ahead mode, in the virtual time of simulated disks.
//!
//! The volume is that of the original script. The drives' parameters come from data sheets
//! (docs/internals/simulated-disks.md) and were fixed before the first table. "address order" reads
//! the same blocks sorted by address: no walk along the tree can be faster.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use anyhow::{Context, Result, ensure};
use buttress::unstable::format::{ItemType, Key};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{ByteCount, ReadAhead, TreeId};
use buttress_device::{Device, VirtualClock};
use buttress_lab::Model;
use buttress_tree::measure::{self, Comparison, WalkCost};
use std::path::Path;
use std::sync::Arc;

/// The largest ratio of a sweep's time to that of address order.
const GOAL: f64 = 1.3;

/// Prints a table for each drive. The spinning disk's table runs twice, to show that it repeats.
pub(crate) fn run(scale: Scale) -> Result<()> {
    let image = images::inline_files(scale)?;
    let drives = [
        ("7200 rpm spinning disk", Model::spinning_7200()),
        ("SATA SSD", Model::sata_ssd()),
        ("NVMe SSD", Model::nvme_ssd()),
    ];
    for (name, model) in drives {
        let rows = walks(&image, &model)?;
        print(name, &rows)?;
        if matches!(model, Model::Spinning(_)) {
            let costs = leaves_of_a_send(&|| simulated(&image, &model))?;
            print_leaves(name, "virtual", &costs);
            ensure!(
                walks(&image, &model)? == rows,
                "two runs on the simulated {name} differ"
            );
        }
    }
    for _ in 0..scale.rounds {
        let costs = leaves_of_a_send(&|| {
            Cache::Cold.prepare(&image)?;
            let device = Device::open(&image, &buttress_device::OpenOptions::default())?;
            Ok(Filesystem::open(OpenOptions::new(vec![device]))?)
        })?;
        print_leaves("this machine's disk", "real", &costs);
    }
    Ok(())
}

fn simulated(image: &Path, model: &Model) -> Result<Filesystem> {
    let backend = Device::open_backend(image, &buttress_device::OpenOptions::default())?;
    let device = buttress_lab::simulated(backend, model, &VirtualClock::new());
    Ok(Filesystem::open(OpenOptions::new(vec![device]))?)
}

/// Returns whether a full send reads keys of `[first, end)`: it does not read leaves with directory
/// entries alone.
fn is_sent(first: &Key, end: Option<&Key>) -> bool {
    let entries = |key: &Key| matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX);
    !(entries(first) && end.is_some_and(|end| first.objectid == end.objectid && entries(end)))
}

/// Walks the leaves that a full send needs, in key order, and the same leaves in address order.
fn leaves_of_a_send(open: &dyn Fn() -> Result<Filesystem>) -> Result<[WalkCost; 2]> {
    let budget = ByteCount::new(256 << 20);
    let root = *open()?.tree(TreeId::FS)?.root();
    let pointers = measure::leaf_pointers_by_address(open()?.volume(), root, budget, is_sent)?;
    let swept = measure::walk_leaves(open()?.volume(), root, budget, ReadAhead::sweep(), is_sent);
    let ordered = measure::read_in_order(open()?.volume(), &pointers)?;
    ensure!(
        swept.blocks == ordered.blocks,
        "the walk saw {} leaves of {}",
        swept.blocks,
        ordered.blocks
    );
    Ok([swept, ordered])
}

fn print_leaves(drive: &str, time: &str, [swept, ordered]: &[WalkCost; 2]) {
    let ratio = swept.elapsed.as_secs_f64() / ordered.elapsed.as_secs_f64();
    println!(
        "\n{drive}, {time} time, the {} leaves of a full send: sweep {:.2} s, {} requests; address order {:.2} s, {} requests; ratio {ratio:.2}",
        swept.blocks,
        swept.elapsed.as_secs_f64(),
        swept.requests,
        ordered.elapsed.as_secs_f64(),
        ordered.requests
    );
}

fn walks(image: &Path, model: &Model) -> Result<Vec<Comparison>> {
    let open = || simulated(image, model);
    let root = *open()?.tree(TreeId::FS)?.root();
    // Each row has a new drive, so that the drive's cache does not help the next row.
    let fresh = || -> Result<_> { Ok(Arc::clone(open()?.volume())) };
    measure::compare(fresh, root, ByteCount::new(256 << 20))
}

fn print(drive: &str, rows: &[Comparison]) -> Result<()> {
    let seconds = |row: &Comparison| row.cost.elapsed.as_secs_f64();
    let find = |name: &str| {
        rows.iter()
            .find(|row| row.name == name)
            .with_context(|| format!("a row {name}"))
    };
    let ordered = seconds(find("address order")?);
    println!("\n{drive}, virtual time, {} blocks\n", find("sweep")?.cost.blocks);
    println!("| read-ahead | seconds | requests | mean request KiB | times address order |");
    println!("|---|---|---|---|---|");
    for row in rows {
        let (cost, time) = (&row.cost, seconds(row));
        let mean = cost.mean_request_bytes().get() as f64 / 1024.0;
        println!(
            "| {} | {time:.2} | {} | {mean:.1} | {:.2} |",
            row.name,
            cost.requests,
            time / ordered
        );
    }
    for name in ["sweep", "sweep, any order"] {
        let ratio = seconds(find(name)?) / ordered;
        let met = if ratio <= GOAL { "yes" } else { "no" };
        println!("\n{name} is within {GOAL} times of address order: {met}");
    }
    Ok(())
}
