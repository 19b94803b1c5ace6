//! Accounts of space on a volume of a million extents and 200 snapshots, against compsize and
//! `btrfs filesystem du` on the kernel's mount of the same image.
//!
//! - `compression` of the whole volume against compsize: the same figures, 200 million references;
//! - `space` of the whole volume against `btrfs filesystem du -s` of one snapshot, a 200th of the
//!   work for all snapshots;
//! - `space --if-deleted` of half of the snapshots against the same command;
//! - `filesystem du -s` of one snapshot against itself.
//!
//! Both sides are whole processes. Peak memory is bounded by the cache budget and 256 MiB. The jobs
//! run in this order:
//!
//! - `exactness`: compares all figures with brute force ([`exactness`]);
//! - `cancel`: stops each command by a signal halfway ([`stopping`]);
//! - `accounts`: measures `space` and `filesystem du`;
//! - `compression`: compares the figures with compsize's, then the times. This job takes the
//!   longest, because compsize looks up every reference.

mod exactness;
mod stopping;

use crate::Scale;
use crate::images;
use crate::read::{command, pairs};
use crate::report::Pairs;
use anyhow::{Result, bail, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::missing;
use buttress_oracle::skip::is_ci;
use buttress_oracle::tools::newest;
use std::path::Path;
use std::process::Command;

/// The largest ratio of our time to the other side's.
const GOAL: f64 = 0.2;

type Job = fn(Scale, &Path) -> Result<()>;

/// Runs the named jobs, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    let all: [(&str, Job); 4] = [
        ("exactness", |_, image| {
            println!("\n{}", exactness::compare(image)?);
            Ok(())
        }),
        ("cancel", stopping::run),
        ("accounts", accounts),
        ("compression", compression),
    ];
    if let Some(unknown) = wanted
        .iter()
        .find(|word| !all.iter().any(|(name, _)| name == *word))
    {
        bail!("no job {unknown}; there are exactness, cancel, accounts, compression");
    }
    let image = images::snapshots(scale)?;
    for (name, job) in all {
        if wanted.is_empty() || wanted.contains(&name) {
            job(scale, &image)?;
        }
    }
    Ok(())
}

fn accounts(scale: Scale, image: &Path) -> Result<()> {
    println!("\n{}", Pairs::head());
    let du = |top: &Path| {
        let mut command = Command::new(newest("btrfs"));
        command
            .args(["filesystem", "du", "--raw", "-s"])
            .arg(top.join("snap0"));
        command
    };
    let ours = || {
        let mut command = command(&["-q", "space", "--raw"])?;
        command.arg(image);
        Ok(command)
    };
    let job = "space of all snapshots, btrfs du of one";
    pairs(scale, job, image, [GOAL; 2], &ours, &du)?;
    let chosen: Vec<String> = (0..scale.snapshots)
        .step_by(2)
        .map(|number| format!("/snap{number}"))
        .collect();
    let ours = || {
        let mut command = command(&["-q", "space", "--raw", "--if-deleted"])?;
        command.arg(chosen.join(",")).arg(image);
        Ok(command)
    };
    let job = "space --if-deleted of half of them, btrfs du of one";
    pairs(scale, job, image, [GOAL; 2], &ours, &du)?;
    let ours = || {
        let mut command = command(&["-q", "filesystem", "du", "--raw", "-s"])?;
        command.arg(crate::read::target(image, "/snap0"));
        Ok(command)
    };
    let job = "filesystem du of one snapshot, btrfs du of it";
    pairs(scale, job, image, [GOAL; 2], &ours, &du).map(drop)
}

/// Compares the compression of the whole volume with compsize.
fn compression(scale: Scale, image: &Path) -> Result<()> {
    if let Some(missing) = missing("compsize") {
        ensure!(!is_ci(), "{missing}; with CI=true nothing may be skipped");
        println!("{missing}: compression is not measured");
        return Ok(());
    }
    let ours = || {
        let mut command = command(&["-q", "compression", "-b"])?;
        command.arg(crate::read::target(image, "/"));
        Ok(command)
    };
    let theirs = |top: &Path| {
        let mut command = Command::new("compsize");
        command.arg("-b").arg(top);
        command
    };
    let mount = Mount::new(&[image.to_path_buf()], "ro")?;
    exactness::same_words(&ours()?.output()?.stdout, &theirs(mount.path()).output()?.stdout)?;
    mount.close()?;
    // compsize looks up every reference of every snapshot, for minutes.
    let once = Scale { rounds: 1, ..scale };
    println!("\n{}", Pairs::head());
    let job = "compression of all snapshots, compsize";
    pairs(once, job, image, [GOAL; 2], &ours, &theirs).map(drop)
}
