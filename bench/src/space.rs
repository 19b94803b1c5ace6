//! Accounts of space on a volume of a million extents and 200 snapshots, against compsize and `btrfs filesystem du` on
//! the kernel's mount of the same image.
//!
//! - `compression` of the whole volume against compsize on the same volume: the same figures, 200
//!   million references;
//! - `space` of the whole volume against `btrfs filesystem du -s` of one snapshot alone: what du of all of them takes is
//!   200 times that;
//! - `space --if-deleted` of half of the snapshots against the same du command;
//! - `filesystem du -s` of one snapshot against itself.
//!
//! Both sides are whole processes. The cache budget plus 256 MiB bounds the peak memory of our
//! side. The jobs, in the order of execution:
//!
//! - `exactness`: all figures are compared with brute force ([`exactness`]);
//! - `cancel`: a signal stops each command in mid-run ([`stopping`]);
//! - `accounts`: `space` and `filesystem du`;
//! - `compression`, after its figures were compared with compsize's; that takes most of the time, since compsize looks up
//!   every reference.

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

/// The largest allowed ratio of our time to the compared program's time.
const GOAL: f64 = 0.2;

type Job = fn(Scale, &Path) -> Result<()>;

/// Does the jobs whose names are given, or all.
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

/// Compression of everything, against compsize.
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
    // It looks up every reference of every snapshot, for minutes.
    let once = Scale { rounds: 1, ..scale };
    println!("\n{}", Pairs::head());
    let job = "compression of all snapshots, compsize";
    pairs(once, job, image, [GOAL; 2], &ours, &theirs).map(drop)
}
