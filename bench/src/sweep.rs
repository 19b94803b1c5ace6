//! A whole subvolume tree under each read-ahead mode, in the virtual time of simulated disks.
//!
//! The volume is the one of the seeds' script. The drives' parameters come from data sheets
//! (docs/simulated-disks.md) and were fixed before the first table. "address order" reads the same blocks
//! sorted by address: no walk that follows the tree can be faster.

use crate::Scale;
use crate::images;
use anyhow::{Context, Result, ensure};
use buttress::{ByteCount, Filesystem, OpenOptions, TreeId};
use buttress_device::{Device, Model, VirtualClock};
use buttress_tree::measure::{self, Comparison};
use std::path::Path;
use std::sync::Arc;

/// Sweep may take at most this many times what address order takes.
const GOAL: f64 = 1.3;

/// Prints a table for each drive, and runs the spinning disk's twice to show that it repeats.
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
            ensure!(
                walks(&image, &model)? == rows,
                "two runs on the simulated {name} differ"
            );
        }
    }
    Ok(())
}

fn walks(image: &Path, model: &Model) -> Result<Vec<Comparison>> {
    let open = || -> Result<Filesystem> {
        let backend = Device::open_backend(image, &buttress_device::OpenOptions::default())?;
        let device = Device::simulated(backend, model, &VirtualClock::new());
        Ok(Filesystem::open(OpenOptions::new(vec![device]))?)
    };
    let root = *open()?.tree(TreeId::FS)?.root();
    // Each row gets a drive of its own: what one walk leaves in the drive's cache must not help the next.
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
