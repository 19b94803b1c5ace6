//! Crash tests: random operations on volumes in the crash laboratory, cut at random moments with
//! random losses.
//!
//! After each cut the volume opens, checks clean, and is exactly a committed state, at least as new
//! as the last commit that had returned. The volume after a cut then accepts further operations and
//! a commit, and checks clean again. The volumes are small and large, full, and on several devices,
//! each with separate losses. On RAID5 a crash may lose the parity of rows that were being written.
//! This loss is the write hole, which the kernel has, too. The write hole remains until a scrub
//! repairs it; no data is lost.
//!
//! `BUTTRESS_CRASH_SEED` and `BUTTRESS_CRASH_CUTS` choose the seed and the number of cuts of each
//! volume (`cargo xtask soak` sets them).

use anyhow::{Context, Result, ensure};
use buttress::mkfs::{Feature, Options};
use buttress::unstable::device::MemoryBackend;
use buttress::unstable::format::block_group::Profile;
use buttress::unstable::fs::{Error, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{ByteCount, Device, DeviceEngine as Engine};
use buttress_lab::crash::{CrashLab, Outcome};
use buttress_lab::gate::SetOnDrop;
use buttress_oracle::content::Random;
use buttress_oracle::seeds::budget;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, progs_missing};
use buttress_proof::writing::account::deepest;
use buttress_proof::writing::deep;
use buttress_proof::writing::fill::Filling;
use buttress_proof::writing::recorded::Recorded;
use buttress_proof::writing::state::describe;
use buttress_proof::writing::unsteady::Unsteady;
use buttress_proof::writing::volume::{
    Backends, Ticking, empty, expect_kernel_agrees, is_clean, made_by_progs, open_after_crash,
    open_checked_but_for_holes, open_for_writing,
};
use buttress_proof::writing::workload::Workload;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Smallest size with a second superblock, in bytes. If a volume has a single superblock, a torn
/// write of it loses the volume, as in the kernel.
const SMALL_BYTES: usize = 72 << 20;

/// Cache sizes of runs: for all trees, for few blocks, for almost none.
const CACHE_BYTES: [u64; 4] = [256 << 20, 2 << 20, 256 << 20, 128 << 10];

/// Parameters of a run: number of operations, average number of operations per commit, number of
/// cuts, and the device engine.
#[derive(Clone, Copy)]
struct Plan {
    operations: usize,
    commit_every: u64,
    cuts: u64,
    engine: Engine,
    /// True if a separate thread commits during operations.
    commits_beside: bool,
    /// True if the kernel and `btrfs check` verify a share of the images.
    asks_kernel: bool,
}

/// Number of cuts of a volume: in the suite, and in a nightly run.
const CUTS: (u64, u64) = (21, 63);

impl Plan {
    /// Creates a plan with all cuts in the suite, too, because its test must catch deliberate
    /// faults.
    fn with_all_cuts(operations: usize, commit_every: u64) -> Self {
        Self {
            cuts: budget("BUTTRESS_CRASH_CUTS", CUTS.1, CUTS.1),
            ..Self::new(operations, commit_every)
        }
    }

    fn new(operations: usize, commit_every: u64) -> Self {
        Self {
            operations,
            commit_every,
            cuts: budget("BUTTRESS_CRASH_CUTS", CUTS.0, CUTS.1),
            engine: Engine::Inline,
            commits_beside: false,
            asks_kernel: true,
        }
    }

    /// Returns devices of the crash laboratory; if threads are used, their requests end in any
    /// order.
    fn devices(&self, lab: &CrashLab, base: Backends, seed: u64) -> Vec<Device> {
        let devices = base.into_iter().zip(seed..).map(|(backend, seed)| {
            let recorded = lab.device(backend);
            match self.engine {
                Engine::Inline => Device::with_backend(recorded, Engine::Inline),
                engine => Device::with_backend(Unsteady::over(recorded, seed), engine),
            }
        });
        devices.collect()
    }
}

/// Runs random operations with commits. The writer's view after each commit is the expected content
/// of this commit.
fn run(base: Backends, seed: u64, plan: Plan) -> Result<Recorded> {
    let lab = CrashLab::new();
    let recorded = plan.devices(&lab, base, seed);
    let cache = CACHE_BYTES[(seed % CACHE_BYTES.len() as u64) as usize];
    let filesystem = OpenOptions::new(recorded).cache(ByteCount::new(cache)).open()?;
    let first = filesystem.superblock().generation;
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let state = describe(&filesystem)?;
    let filesystem = WritableFilesystem::new(filesystem, options)?;
    let mut shown = vec![(first.get(), state)];
    lab.mark(filesystem.committed_generation().get());
    if plan.commits_beside {
        run_with_commits_beside(&lab, &filesystem, seed, plan)?;
    } else {
        run_with_commits_between(&lab, &filesystem, seed, plan, &mut shown)?;
    }
    filesystem.commit()?;
    lab.mark(filesystem.committed_generation().get());
    let run = Recorded::new(lab.history());
    for (generation, state) in shown {
        run.learn(generation, state);
    }
    run.learn_what_was_marked()?;
    Ok(run)
}

fn run_with_commits_between(
    lab: &CrashLab,
    filesystem: &WritableFilesystem,
    seed: u64,
    plan: Plan,
    shown: &mut Vec<(u64, String)>,
) -> Result<()> {
    let mut workload = Workload::on(filesystem, seed)?;
    let mut random = Random::new(!seed);
    let mut committed = filesystem.committed_generation();
    for _ in 0..plan.operations {
        workload.step(filesystem)?;
        if random.one_in(plan.commit_every) {
            filesystem.commit()?;
            // The content is unchanged since the last commit, unless an operation committed by
            // itself.
            let generation = filesystem.committed_generation().get();
            shown.push((generation, describe(&filesystem.view())?));
        }
        if filesystem.committed_generation() != committed {
            committed = filesystem.committed_generation();
            lab.mark(committed.get());
        }
    }
    Ok(())
}

/// Runs operations on one thread, and commits on another. Operations that find no space commit as
/// well, so a mark may follow the begin of the next commit. After concurrent commits, the committed
/// content is known only from the devices.
fn run_with_commits_beside(
    lab: &CrashLab,
    filesystem: &WritableFilesystem,
    seed: u64,
    plan: Plan,
) -> Result<()> {
    let done = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&is_over);
        let committer = scope.spawn(|| -> Result<()> {
            let mut last = 0;
            while !is_over.load(Ordering::Acquire) {
                let now = done.load(Ordering::Acquire);
                if now >= last + usize::try_from(plan.commit_every)? {
                    last = now;
                    filesystem.commit()?;
                    lab.mark(filesystem.committed_generation().get());
                }
                std::thread::yield_now();
            }
            Ok(())
        });
        let operate = || -> Result<()> {
            let mut workload = Workload::on(filesystem, seed)?;
            for _ in 0..plan.operations {
                workload.step(filesystem)?;
                done.fetch_add(1, Ordering::AcqRel);
            }
            Ok(())
        };
        let operated = operate();
        drop(over);
        let committed = committer
            .join()
            .map_err(|_| anyhow::anyhow!("the committer panicked"))?;
        operated.and(committed)
    })
}

/// Cuts a run at random moments, and verifies the recovery.
fn cut_and_recover(run: &Recorded, seed: u64, plan: Plan) -> Result<()> {
    let mut random = Random::new(seed ^ 0x0c07);
    for number in 0..plan.cuts {
        let cut = usize::try_from(random.below(run.history().len() as u64 + 1))?;
        let outcome = match random.below(8) {
            0 => Outcome::AllKept,
            1 => Outcome::NoneKept,
            _ => Outcome::Drawn {
                seed: random.number(),
            },
        };
        let images = run.history().images_at(cut, outcome);
        recover(run, cut, &images, seed.wrapping_add(number), plan.asks_kernel).with_context(|| {
            format!(
                "seed {seed}, cut {number} at event {cut} of {}, {outcome:?}",
                run.history().len()
            )
        })?;
    }
    Ok(())
}

fn recover(run: &Recorded, cut: usize, images: &Backends, seed: u64, asks_kernel: bool) -> Result<()> {
    let found = open_after_crash(images)?;
    let generation = found.superblock().generation.get();
    let promised = run.history().last_mark(cut).unwrap_or(0);
    ensure!(
        generation >= promised,
        "generation {generation}, though {promised} had been committed"
    );
    run.expect(generation, &describe(&found)?)?;
    drop(found);
    if asks_kernel {
        ask_the_kernel(cut, images, seed).context("beside the kernel")?;
    }
    let filesystem = open_for_writing(images).context("opening it for writing")?;
    let mut workload = Workload::on(&filesystem, seed)?;
    for _ in 0..10 {
        workload.step(&filesystem)?;
    }
    // All operations may have been refused; setting a label fails only on a full volume.
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

/// Verifies a share of the images, chosen by the seed, with `btrfs check` and the kernel; with
/// `BUTTRESS_CRASH_KERNEL_EVERY=1` all of them. Images with torn superblocks or the write hole are
/// excluded, because both programs report these.
fn ask_the_kernel(cut: usize, images: &Backends, seed: u64) -> Result<()> {
    let every = budget("BUTTRESS_CRASH_KERNEL_EVERY", KERNEL_EVERY, KERNEL_EVERY);
    let chosen = Random::new(seed ^ (cut as u64) << 20).one_in(every);
    if !chosen || skips(kernel_missing()) || !is_clean(images)? {
        return Ok(());
    }
    KERNEL_LOOKS.fetch_add(1, Ordering::Relaxed);
    expect_kernel_agrees(images)
}

/// Number of images per one that the kernel and `btrfs check` verify.
const KERNEL_EVERY: u64 = 8;

/// Number of images that the kernel verified.
static KERNEL_LOOKS: AtomicUsize = AtomicUsize::new(0);

fn crash(device_bytes: &[usize], options: &Options, operations: usize, commit_every: u64) {
    let base = empty(device_bytes, options).unwrap();
    crash_on(base, Plan::new(operations, commit_every));
}

fn crash_on(base: Backends, plan: Plan) {
    let seed = buttress_oracle::seeds::seed("crash", "BUTTRESS_CRASH_SEED", 1);
    let run = run(base, seed, plan).unwrap();
    assert!(run.known_states() > 5, "too few commits to cut between");
    let looks = KERNEL_LOOKS.load(Ordering::Relaxed);
    cut_and_recover(&run, seed, plan).unwrap();
    let looked = KERNEL_LOOKS.load(Ordering::Relaxed) > looks;
    assert!(
        looked || !plan.asks_kernel || plan.cuts < 6 * KERNEL_EVERY || kernel_missing().is_some(),
        "the kernel looked at nothing"
    );
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
    let base = empty(&[128 << 20], &Options::default()).unwrap();
    crash_on(base, Plan::with_all_cuts(1500, 50));
}

#[test]
fn with_small_nodes_and_single_metadata() {
    let options = Options {
        node_bytes: Some(4096),
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let base = empty(&[SMALL_BYTES], &options).unwrap();
    crash_on(base, Plan::with_all_cuts(1500, 30));
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
fn on_four_devices_with_raid0_and_raid1c3() {
    crash(
        &[128 << 20; 4],
        &profiles(Profile::Raid0, Profile::Raid1C3),
        1000,
        40,
    );
}

#[test]
fn on_three_devices_with_parity() {
    let base = empty(&[160 << 20; 3], &profiles(Profile::Raid5, Profile::Raid5)).unwrap();
    // The test excludes parity profiles, because `btrfs check` reports the write hole as an error.
    let plan = Plan {
        asks_kernel: false,
        ..Plan::new(800, 40)
    };
    crash_on(base, plan);
}

/// Many operations find no space on this full volume, and commit to free some.
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
        let plan = Plan::new(600, 40);
        crash_on(
            base,
            Plan {
                cuts: plan.cuts / 2,
                ..plan
            },
        );
    }
}

/// The trees of this test have four levels, and each commit rewrites whole paths.
#[test]
fn in_deep_trees() {
    let options = Options {
        node_bytes: Some(4096),
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let base = empty(&[256 << 20], &options).unwrap();
    let filesystem = open_for_writing(&base).unwrap();
    deep::plant(&filesystem, 15_000).unwrap();
    let levels = deepest(&filesystem.view()).unwrap();
    assert!(levels >= 4, "{levels} levels");
    drop(filesystem);
    let plan = Plan::new(400, 40);
    crash_on(
        base,
        Plan {
            cuts: plan.cuts.div_ceil(8),
            ..plan
        },
    );
}

/// Quotas count each extent for the subvolume that created it.
#[test]
fn with_simple_quotas() {
    if skips(progs_missing((6, 8))) {
        return;
    }
    let base: Backends = vec![Arc::new(MemoryBackend::new("memory", vec![0; 128 << 20]))];
    made_by_progs(&base, &["-O", "squota"]).unwrap();
    crash_on(base, Plan::new(1000, 40));
}

/// With threads, the requests of a queue end in any order.
#[test]
fn under_threads() {
    let plan = Plan {
        engine: Engine::Threads,
        ..Plan::new(800, 40)
    };
    let base = empty(&[128 << 20], &Options::default()).unwrap();
    crash_on(base, plan);
    let base = empty(&[128 << 20; 3], &profiles(Profile::Raid1, Profile::Raid1C3)).unwrap();
    crash_on(base, plan);
}

/// Commits happen during operations, under threads.
#[test]
fn with_commits_beside_operations() {
    let plan = Plan {
        engine: Engine::Threads,
        commits_beside: true,
        ..Plan::new(1500, 40)
    };
    let base = empty(&[160 << 20; 2], &profiles(Profile::Raid1, Profile::Raid1)).unwrap();
    crash_on(base, plan);
}
