//! Crashes: random operations on volumes in the crash laboratory, cut at random moments with random losses.
//!
//! After each cut the volume opens, checks clean, is exactly a state that was committed, and not one older than the last
//! commit that had returned; then it takes further operations and a commit, and checks clean again. The volumes are small
//! and large, full, and on several devices, each of which loses what it likes. What RAID5 loses to a crash is parity of rows
//! that were being written: its write hole, which is the kernel's, too. It stays for a scrub to mend; no data is behind it.
//!
//! `BUTTRESS_CRASH_SEED` and `BUTTRESS_CRASH_CUTS` choose the seed and the number of cuts of each volume (`cargo xtask soak`
//! does).

use anyhow::{Context, Result, ensure};
use buttress::device::crash::{CrashLab, Outcome};
use buttress::device::{Device, Engine};
use buttress::format::block_group::Profile;
use buttress::fs::mkfs::{Feature, Options};
use buttress::fs::{Error, WritableFilesystem, WriteOptions};
use buttress::{ByteCount, OpenOptions};
use buttress_oracle::content::Random;
use buttress_proof::writing::fill::Filling;
use buttress_proof::writing::recorded::Recorded;
use buttress_proof::writing::state::describe;
use buttress_proof::writing::volume::{
    Backends, Ticking, empty, open_after_crash, open_checked_but_for_holes, open_for_writing,
};
use buttress_proof::writing::workload::Workload;
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

/// How much of trees a run keeps in memory: all, little, next to nothing.
const CACHE_BYTES: [u64; 4] = [256 << 20, 2 << 20, 256 << 20, 128 << 10];

/// Runs `operations` random operations, committing every `commit_every` on average.
fn run(base: Backends, seed: u64, operations: usize, commit_every: u64) -> Result<Recorded> {
    let lab = CrashLab::new();
    let recorded = base
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), Engine::Inline))
        .collect();
    let cache = CACHE_BYTES[(seed % CACHE_BYTES.len() as u64) as usize];
    let filesystem = OpenOptions::new(recorded).cache(ByteCount::new(cache)).open()?;
    let first = filesystem.superblock().generation;
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let state = describe(&filesystem)?;
    let filesystem = WritableFilesystem::new(filesystem, options)?;
    let mut workload = Workload::on(&filesystem, seed)?;
    let mut random = Random::new(!seed);
    let mut committed = filesystem.committed_generation();
    lab.mark(committed.get());
    for _ in 0..operations {
        workload.step(&filesystem)?;
        if random.one_in(commit_every) {
            filesystem.commit()?;
        }
        if filesystem.committed_generation() != committed {
            committed = filesystem.committed_generation();
            lab.mark(committed.get());
        }
    }
    filesystem.commit()?;
    lab.mark(filesystem.committed_generation().get());
    let run = Recorded::new(lab.history());
    run.learn(first.get(), state);
    run.learn_what_was_marked()?;
    Ok(run)
}

/// Cuts a run at random moments.
fn cut_and_recover(run: &Recorded, seed: u64, cuts: u64) -> Result<()> {
    let mut random = Random::new(seed ^ 0x0c07);
    for number in 0..cuts {
        let cut = usize::try_from(random.below(run.history().len() as u64 + 1))?;
        let outcome = match random.below(8) {
            0 => Outcome::AllKept,
            1 => Outcome::NoneKept,
            _ => Outcome::Drawn {
                seed: random.number(),
            },
        };
        let images = run.history().images_at(cut, outcome);
        recover(run, cut, &images, seed.wrapping_add(number)).with_context(|| {
            format!(
                "seed {seed}, cut {number} at event {cut} of {}, {outcome:?}",
                run.history().len()
            )
        })?;
    }
    Ok(())
}

fn recover(run: &Recorded, cut: usize, images: &Backends, seed: u64) -> Result<()> {
    let found = open_after_crash(images)?;
    let generation = found.superblock().generation.get();
    let promised = run.history().last_mark(cut).unwrap_or(0);
    ensure!(
        generation >= promised,
        "generation {generation}, though {promised} had been committed"
    );
    ensure!(
        describe(&found)? == run.state_of(generation)?,
        "not what generation {generation} held"
    );
    drop(found);
    let filesystem = open_for_writing(images).context("opening it for writing")?;
    let mut workload = Workload::on(&filesystem, seed)?;
    for _ in 0..10 {
        workload.step(&filesystem)?;
    }
    // The operations may all have been refused; a label only is where the volume is full.
    let label = filesystem.set_label(format!("after cut {cut}").as_bytes());
    filesystem.commit().context("the commit after it")?;
    let later = filesystem.committed_generation().get();
    match label {
        Ok(()) => ensure!(later > generation, "nothing was committed after the cut"),
        Err(Error::NoSpace { .. }) => {}
        Err(error) => return Err(error).context("the label after it"),
    }
    drop((workload, filesystem));
    open_checked_but_for_holes(images)?;
    Ok(())
}

fn crash(device_bytes: &[usize], options: &Options, operations: usize, commit_every: u64) {
    let base = empty(device_bytes, options).unwrap();
    crash_on(base, operations, commit_every, cuts());
}

fn cuts() -> u64 {
    number("BUTTRESS_CRASH_CUTS", 63)
}

fn crash_on(base: Backends, operations: usize, commit_every: u64, cuts: u64) {
    let seed = number("BUTTRESS_CRASH_SEED", 1);
    let run = run(base, seed, operations, commit_every).unwrap();
    assert!(run.known_states() > 5, "too few commits to cut between");
    cut_and_recover(&run, seed, cuts).unwrap();
}

fn profiles(data: Profile, metadata: Profile) -> Options {
    Options {
        data: Some(data),
        metadata: Some(metadata),
        ..Options::default()
    }
}

#[test]
fn on_one_device_with_duplicated_metadata() {
    crash(&[128 << 20], &Options::default(), 1500, 50);
}

#[test]
fn with_small_nodes_and_single_metadata() {
    let options = Options {
        node_bytes: Some(4096),
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    crash(&[SMALL_BYTES], &options, 1500, 30);
}

#[test]
fn in_mixed_groups() {
    let options = Options {
        features: vec![(Feature::MixedBlockGroups, true)],
        ..Options::default()
    };
    crash(&[SMALL_BYTES], &options, 1500, 50);
}

#[test]
fn without_the_newer_trees() {
    let options = Options {
        features: vec![
            (Feature::BlockGroupTree, false),
            (Feature::FreeSpaceTree, false),
            (Feature::NoHoles, false),
        ],
        ..Options::default()
    };
    crash(&[128 << 20], &options, 1500, 50);
}

#[test]
fn on_two_devices_with_a_copy_on_each() {
    crash(
        &[160 << 20; 2],
        &profiles(Profile::Raid1, Profile::Raid1),
        1200,
        40,
    );
}

#[test]
fn on_four_devices_with_striped_data_and_three_copies_of_metadata() {
    crash(
        &[128 << 20; 4],
        &profiles(Profile::Raid0, Profile::Raid1C3),
        1000,
        40,
    );
}

#[test]
fn on_three_devices_with_parity() {
    crash(
        &[160 << 20; 3],
        &profiles(Profile::Raid5, Profile::Raid5),
        800,
        40,
    );
}

/// Many operations find no room here, and commit to see whether that frees any.
#[test]
fn on_a_full_volume() {
    for filling in [Filling::Data, Filling::Metadata] {
        let options = Options {
            metadata: Some(Profile::Single),
            ..Options::default()
        };
        let base = empty(&[SMALL_BYTES], &options).unwrap();
        let filesystem = open_for_writing(&base).unwrap();
        filling.fill(&filesystem, "full", u64::MAX).unwrap();
        filesystem.commit().unwrap();
        drop(filesystem);
        crash_on(base, 600, 40, cuts() / 2);
    }
}
