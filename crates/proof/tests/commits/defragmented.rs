//! Power cuts during a defragmentation: at each, the volume opens, checks clean, and has the
//! content from before.

use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::fs::Filesystem;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{
    ByteCount, Compression, CompressionMethod, DefragmentCompression, DefragmentOptions, FileKind,
    FileOffset, Location, NewInode, Progress, SubvolumeId, WalkItem, WalkOptions,
};
use buttress_lab::crash::{CrashLab, Outcome as Losses};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::state::{describe, first_difference};
use buttress_proof::writing::volume::{
    Backends, empty, expect_kernel_agrees, is_clean, open_after_crash, open_for_writing,
};
use buttress_proof::writing::workload::Workload;
use std::sync::Arc;

const DEVICE_BYTES: usize = 160 << 20;

/// The number of cuts.
const CUTS: usize = 60;

/// Of this many images, the kernel and `btrfs check` inspect one.
const KERNEL_EVERY: usize = 40;

pub fn cases() -> Vec<Case> {
    vec![Case::new("defragmented::power_cuts_lose_nothing", cuts)]
}

/// Makes random files, and some that are surely fragmented.
fn fill(filesystem: &WritableFilesystem) -> Result<()> {
    let mut workload = Workload::on(filesystem, 5)?;
    for _ in 0..300 {
        workload.step(filesystem)?;
    }
    drop(workload);
    for number in 0..3_u8 {
        let name = format!("in pieces {number}");
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let file = filesystem.create(root, name.as_bytes(), &NewInode::of_root(0o600))?;
        for first in [0, 1] {
            for sector in (first..60_u64).step_by(2) {
                filesystem.write_at(file, FileOffset::new(sector * 4096), &[number; 4096])?;
                filesystem.writeback().write_file(file)?;
            }
        }
    }
    filesystem.commit()?;
    Ok(())
}

/// Defragments every file of every subvolume, and commits now and then.
fn defragment_all(filesystem: &WritableFilesystem) -> Result<u64> {
    let view = filesystem.view();
    let mut files = Vec::new();
    for item in view.walk(
        Location::root_of(SubvolumeId::TOP_LEVEL),
        WalkOptions::without_content(),
    ) {
        if let WalkItem::Entry(entry) = item
            && entry.metadata().kind == FileKind::Regular
        {
            files.push(entry.metadata().location);
        }
    }
    drop(view);
    let mut rewritten = 0;
    for (turn, file) in files.into_iter().enumerate() {
        let method = CompressionMethod::new(Compression::Zstd);
        let options = DefragmentOptions {
            compression: match turn % 4 {
                0 => DefragmentCompression::With(method),
                1 => DefragmentCompression::Never,
                _ => DefragmentCompression::Keep,
            },
            keeps_sharing: turn % 4 == 2,
            step: ByteCount::new(1 << 20),
            ..DefragmentOptions::default()
        };
        match filesystem.defragment(file, &options, &Progress::new()) {
            Ok(summary) => rewritten += summary.rewritten.get() + summary.moved.get(),
            // Read-only snapshots and immutable files refuse.
            Err(error) if error.kind() == buttress::unstable::format::ErrorKind::Caller => {}
            Err(error) => return Err(error.into()),
        }
        if turn % 3 == 0 {
            filesystem.commit()?;
        }
    }
    filesystem.commit()?;
    Ok(rewritten)
}

/// Returns the state of a volume without the numbers of the transactions that changed it.
fn state_of(filesystem: &Filesystem) -> Result<String> {
    let without = |line: &str| match line.split_once(" transactions ") {
        Some((head, tail)) => {
            let tail: Vec<&str> = tail.split(' ').skip(2).collect();
            format!("{head} {}", tail.join(" "))
        }
        None if line.starts_with("subvolume ") => line.split(" changed ").next().unwrap_or(line).to_owned(),
        None => line.to_owned(),
    };
    let lines: Vec<String> = describe(filesystem)?.lines().map(without).collect();
    Ok(lines.join("\n"))
}

fn cuts() -> Result<Outcome> {
    let base = empty(&[DEVICE_BYTES], &Options::default())?;
    fill(&open_for_writing(&base)?)?;
    let state = state_of(&open_for_writing(&base)?.view())?;
    let lab = CrashLab::new();
    let recorded: Backends = base
        .iter()
        .map(|backend| lab.device(Arc::clone(backend)))
        .collect();
    let rewritten = defragment_all(&open_for_writing(&recorded)?)?;
    ensure!(rewritten > 500_000, "only {rewritten} bytes were rewritten");
    let history = lab.history();
    let step = match std::env::var_os("BUTTRESS_SOAK") {
        Some(_) => 1,
        None => history.len().div_ceil(CUTS).max(1),
    };
    let mut judged = 0;
    for cut in (0..=history.len()).rev().step_by(step) {
        for outcome in [
            Losses::AllKept,
            Losses::NoneKept,
            Losses::Drawn { seed: cut as u64 },
        ] {
            let images = history.images_at(cut, outcome);
            judged += 1;
            judge(&images, &state, judged % KERNEL_EVERY == 0)
                .with_context(|| format!("cut {cut} of {}, {outcome:?}", history.len()))?;
        }
    }
    Ok(Outcome::Passed)
}

fn judge(images: &Backends, state: &str, asks_kernel: bool) -> Result<()> {
    let found = open_after_crash(images)?;
    let now = state_of(&found)?;
    ensure!(now == state, "{}", first_difference(state, &now));
    drop(found);
    if asks_kernel && !skips(kernel_missing()) && is_clean(images)? {
        expect_kernel_agrees(images).context("beside the kernel")?;
    }
    Ok(())
}
