//! A full send under each read-ahead mode from this machine's own disk, cold: the check of the
//! simulated disks against a real one.
//!
//! The sides are whole processes of `buttress send`, the kernel's send of the same image through a
//! mount, and a plain read of the tree's bytes. Each round runs all sides in turn after dropping
//! the caches, so that other load affects all alike. Ratios are those within a round, and the table
//! has their medians.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{Run, run};
use crate::read::{command, target};
use crate::report::{median, sorted};
use crate::send::flat_file;
use anyhow::Result;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::newest;
use std::path::Path;
use std::process::Command;

/// The read-ahead modes by their names in the command.
const MODES: [&str; 4] = ["none", "forward", "forward-always", "sweep"];

/// Prints the table.
pub(crate) fn run_all(scale: Scale) -> Result<()> {
    let image = images::inline_files(scale)?;
    let flat = flat_file(&image, "/snap1")?;
    let mut names: Vec<String> = MODES.iter().map(ToString::to_string).collect();
    names.extend(["the kernel's send".to_owned(), "one sequential read".to_owned()]);
    let mut rows: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
    for _ in 0..scale.rounds {
        let mut round = Vec::new();
        for mode in MODES {
            Cache::Cold.prepare(&image)?;
            let mut send = command(&["send", "-q", "--read-ahead", mode])?;
            round.push(run(send.arg(target(&image, "/snap1")))?);
        }
        round.push(by_kernel(&image)?);
        Cache::Cold.prepare(&flat)?;
        round.push(run(Command::new("cat").arg(&flat))?);
        for (row, run) in rows.iter_mut().zip(round) {
            row.push(run.seconds);
        }
    }
    std::fs::remove_file(flat)?;
    println!(
        "\nFull send of the first snapshot, {} files, cold, from this machine's disk; medians of {} rounds\n",
        scale.inline_files, scale.rounds
    );
    println!(
        "| read-ahead | seconds | least | most | less than before | times none |\n|---|---|---|---|---|---|"
    );
    for (place, (name, row)) in names.iter().zip(&rows).enumerate() {
        let ratio = |other: &[f64]| median(&sorted(row.iter().zip(other).map(|(a, b)| a / b).collect()));
        let gain = match place.checked_sub(1) {
            Some(before) if place < MODES.len() => format!("{:.1} %", 100.0 * (1.0 - ratio(&rows[before]))),
            _ => String::new(),
        };
        let all = sorted(row.clone());
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} | {gain} | {:.2} |",
            median(&all),
            all[0],
            all[all.len() - 1],
            ratio(&rows[0])
        );
    }
    Ok(())
}

fn by_kernel(image: &Path) -> Result<Run> {
    let mount = Mount::new(&[image.to_path_buf()], "ro")?;
    Cache::Cold.prepare(image)?;
    let done = run(Command::new(newest("btrfs"))
        .args(["send", "-q"])
        .arg(mount.path().join("snap1")))?;
    mount.close()?;
    Ok(done)
}
