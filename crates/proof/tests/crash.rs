//! Crashes: random operations on a volume in the crash laboratory, cut at random moments with random losses.
//!
//! After each cut the volume opens, checks clean, is exactly a state that was committed, and not one older than the last
//! commit that had returned; then it takes further operations and a commit, and checks clean again.
//!
//! `BUTTRESS_CRASH_SEED` and `BUTTRESS_CRASH_CUTS` choose the seed and the number of cuts (`cargo xtask soak` does).

use anyhow::{Context, Result, ensure};
use buttress::device::crash::{CrashLab, History, Outcome};
use buttress::device::{Backend, Device, Engine};
use buttress::format::block_group::Profile;
use buttress::fs::mkfs::{Feature, Options};
use buttress::fs::{WritableFilesystem, WriteOptions};
use buttress_proof::writing::state::describe;
use buttress_proof::writing::volume::{Ticking, empty, open_after_crash, open_checked, open_for_writing};
use buttress_proof::writing::workload::{Random, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Just large enough for a second superblock: where there is one alone, a torn write of it loses the volume, here as in
/// the kernel.
const SMALL_BYTES: usize = 72 << 20;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// One run in the laboratory: its history, and what each committed generation held.
struct Run {
    history: History,
    states: BTreeMap<u64, String>,
}

/// Runs `operations` random operations, committing every `commit_every` on average.
fn run(base: Arc<dyn Backend>, seed: u64, operations: usize, commit_every: usize) -> Result<Run> {
    let lab = CrashLab::new();
    let device = Device::with_backend(lab.device(base), Engine::Inline);
    let filesystem = buttress::OpenOptions::new(vec![device]).open()?;
    let first = filesystem.superblock().generation;
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let mut states = BTreeMap::from([(first.get(), describe(&filesystem)?)]);
    let filesystem = WritableFilesystem::new(filesystem, options)?;
    let mut workload = Workload::new(seed);
    let mut random = Random::new(!seed);
    let mut committed = filesystem.committed_generation();
    lab.mark(committed.get());
    for _ in 0..operations {
        workload.step(&filesystem)?;
        if random.below(commit_every) == 0 {
            filesystem.commit()?;
        }
        if filesystem.committed_generation() != committed {
            committed = filesystem.committed_generation();
            lab.mark(committed.get());
        }
    }
    filesystem.commit()?;
    lab.mark(filesystem.committed_generation().get());
    let history = lab.history();
    // What each commit held is read from the image at the moment at which it had returned.
    for cut in 0..=history.len() {
        let at = history.last_mark(cut);
        if let Some(generation) = at.filter(|generation| !states.contains_key(generation)) {
            let image = history.images_at(cut, Outcome::AllKept).remove(0);
            let found = open_checked(&image).with_context(|| format!("generation {generation}"))?;
            ensure!(
                found.superblock().generation.get() == generation,
                "the mark of {generation}"
            );
            states.insert(generation, describe(&found)?);
        }
    }
    Ok(Run { history, states })
}

/// Cuts a run at random moments.
fn cut_and_recover(run: &Run, seed: u64, cuts: u64) -> Result<()> {
    let mut random = Random::new(seed ^ 0x0c07);
    for number in 0..cuts {
        let cut = random.below(run.history.len().saturating_add(1));
        let outcome = match random.below(8) {
            0 => Outcome::AllKept,
            1 => Outcome::NoneKept,
            _ => Outcome::Drawn {
                seed: random.next_number(),
            },
        };
        let image = run.history.images_at(cut, outcome).remove(0);
        recover(run, cut, &image, seed.wrapping_add(number)).with_context(|| {
            format!(
                "seed {seed}, cut {number} at event {cut} of {}, {outcome:?}",
                run.history.len()
            )
        })?;
    }
    Ok(())
}

fn recover(run: &Run, cut: usize, image: &Arc<dyn Backend>, seed: u64) -> Result<()> {
    let found = open_after_crash(image)?;
    let generation = found.superblock().generation.get();
    let promised = run.history.last_mark(cut).unwrap_or(0);
    ensure!(
        generation >= promised,
        "generation {generation}, though {promised} had been committed"
    );
    // A snapshot commits twice within one operation; what the first of the two holds was not looked at.
    if let Some(state) = run.states.get(&generation) {
        ensure!(
            &describe(&found)? == state,
            "not what generation {generation} held"
        );
    }
    drop(found);
    let filesystem = open_for_writing(image)?;
    let mut workload = Workload::new(seed);
    for _ in 0..10 {
        workload.step(&filesystem)?;
    }
    filesystem.commit()?;
    drop(filesystem);
    open_checked(image)?;
    Ok(())
}

fn crash(bytes: usize, options: &Options, operations: usize, commit_every: usize) {
    let seed = number("BUTTRESS_CRASH_SEED", 1);
    let cuts = number("BUTTRESS_CRASH_CUTS", 125);
    let base = empty(bytes, options).unwrap();
    let run = run(base, seed, operations, commit_every).unwrap();
    assert!(run.states.len() > 5, "too few commits to cut between");
    cut_and_recover(&run, seed, cuts).unwrap();
}

#[test]
fn on_one_device_with_duplicated_metadata() {
    crash(128 << 20, &Options::default(), 1500, 50);
}

#[test]
fn with_small_nodes_and_single_metadata() {
    let options = Options {
        node_bytes: Some(4096),
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    crash(SMALL_BYTES, &options, 1500, 30);
}

#[test]
fn in_mixed_groups() {
    let options = Options {
        features: vec![(Feature::MixedBlockGroups, true)],
        ..Options::default()
    };
    crash(SMALL_BYTES, &options, 1500, 50);
}

#[test]
fn without_the_newer_trees() {
    let options = Options {
        features: vec![(Feature::BlockGroupTree, false), (Feature::FreeSpaceTree, false)],
        ..Options::default()
    };
    crash(128 << 20, &options, 1500, 50);
}
