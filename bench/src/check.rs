//! Checking volumes, cold and warm, against `btrfs check`.
//!
//! Both sides are whole processes with their default options, no data read. The volumes are those of the other
//! benchmarks: 500,000 inline files, a source tree, one large file plain and compressed.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::Pairs;
use anyhow::Result;
use buttress_oracle::tools::{buttress, newest};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A check may take at most this part of the other's time.
const GOAL: f64 = 0.15;

fn ours(image: &Path) -> Result<Run> {
    measure::run(Command::new(buttress()?).args(["-q", "check"]).arg(image))
}

fn theirs(image: &Path) -> Result<Run> {
    measure::run(Command::new(newest("btrfs")).arg("check").arg(image))
}

/// Prints a table of pairs.
pub(crate) fn run(scale: Scale) -> Result<()> {
    let volumes: [(&str, PathBuf); 4] = [
        ("check of inline files", images::inline_files(scale)?),
        ("check of a source tree", images::source_tree(scale)?),
        (
            "check of a large file, zstd",
            images::large_file(scale, "zstd", "compress-force=zstd")?,
        ),
        (
            "check of a large file, plain",
            images::large_file(scale, "plain", "")?,
        ),
    ];
    println!("\n{}", Pairs::head());
    for (job, image) in volumes {
        for (name, cache) in [("cold", Cache::Cold), ("warm", Cache::Warm)] {
            let mut pairs = Pairs {
                job: job.to_owned(),
                cache: name,
                ours: Vec::new(),
                theirs: Vec::new(),
                goal: GOAL,
            };
            for _ in 0..scale.rounds {
                cache.prepare(&image)?;
                pairs.ours.push(ours(&image)?);
                cache.prepare(&image)?;
                pairs.theirs.push(theirs(&image)?);
            }
            println!("{}", pairs.row());
        }
    }
    Ok(())
}
