//! Seeded runs compared with the model: volumes of several kinds, with a commit after some 40
//! changes on average. On a kernel with btrfs, the kernel makes the same changes on a twin of each
//! volume.
//!
//! A failure names its seed. To repeat a failed run, set `BUTTRESS_WRITING_SEED` to a fourteenth of
//! its seed, `BUTTRESS_WRITING_OPERATIONS` as in that run, and select the name of the case.
//! `BUTTRESS_WRITING_KERNEL_EVERY=1` compares the kernel's view and the twin at each commit. Each
//! such comparison releases held inodes, so the run may differ.

use anyhow::{Context, Result};
use buttress::mkfs::{Feature, Options};
use buttress::{ByteCount, ChecksumType, Compression, CompressionMethod, DataOptions, Profile};
use buttress_oracle::seeds::budget;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, progs_missing};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::{Plan, World};

/// Number of changes over all kinds of volumes: in the suite, and in a nightly run.
const OPERATIONS: (u64, u64) = (14_000, 28_000);

/// Number of commits between two verifications by the kernel and `btrfs check`.
const KERNEL_EVERY: u64 = 20;

/// Number of cases in one run of the model test. Each case has a unique seed, also across runs with
/// consecutive seeds.
const CASES: u64 = 14;

/// Divisor of the number of changes in cases with deep trees, because each commit reads the whole
/// volume.
const DEEP_SHARE: u64 = 4;
/// Changes between commits in these cases.
const DEEP_COMMIT_EVERY: u64 = 80;

/// Number of initial files, each with its own leaf: they give three levels of nodes of 4 KiB.
const DEEP_FILES: u64 = 300;
const DEEP_LEVELS: u8 = 3;

/// First version of btrfs-progs that can create volumes with simple quotas.
const QUOTA_PROGS: (u32, u32) = (6, 8);

/// Cache sizes for trees: for all blocks, and for so few that most must be read repeatedly.
const CACHES: [ByteCount; 2] = [ByteCount::new(256 << 20), ByteCount::new(2 << 20)];

/// Returns the kinds of volumes with their plans.
fn kinds() -> Vec<(&'static str, Plan)> {
    let plain = Options::default;
    let plan = || Plan::new(0, 0);
    let made = |mkfs, devices| Plan {
        mkfs,
        devices,
        ..plan()
    };
    let one = || vec![512 << 20];
    let small_nodes = || Options {
        node_bytes: Some(4096),
        checksum: Some(ChecksumType::Xxhash64),
        ..plain()
    };
    let mut kinds: Vec<_> = by_options(&plain, one)
        .into_iter()
        .map(|(name, mkfs, devices)| (name, made(mkfs, devices)))
        .collect();
    kinds.insert(1, ("small_nodes", made(small_nodes(), one())));
    kinds.push((
        "deep",
        Plan {
            planted: DEEP_FILES,
            commit_every: DEEP_COMMIT_EVERY,
            ..made(small_nodes(), one())
        },
    ));
    kinds.push((
        "simple_quotas",
        Plan {
            progs: &["-O", "squota", "-n", "4k"],
            ..plan()
        },
    ));
    kinds
}

fn by_options(
    plain: &impl Fn() -> Options,
    one: impl Fn() -> Vec<u64>,
) -> Vec<(&'static str, Options, Vec<u64>)> {
    vec![
        ("plain", plain(), one()),
        (
            "without_newer_features",
            Options {
                features: vec![(Feature::BlockGroupTree, false), (Feature::NoHoles, false)],
                ..plain()
            },
            one(),
        ),
        (
            "raid1",
            Options {
                data: Some(Profile::Raid1),
                metadata: Some(Profile::Raid1),
                ..plain()
            },
            vec![384 << 20; 2],
        ),
        (
            "raid6",
            Options {
                data: Some(Profile::Raid6),
                metadata: Some(Profile::Raid1C3),
                ..plain()
            },
            vec![256 << 20; 4],
        ),
    ]
}

/// Returns the options of a kind; every second kind compresses.
fn compression(index: usize) -> DataOptions {
    let compression = match index {
        0 => Some(CompressionMethod::new(Compression::Zstd)),
        2 => Some(CompressionMethod::new(Compression::Lzo)),
        _ => None,
    };
    DataOptions {
        compression,
        ..DataOptions::default()
    }
}

fn one(plan: &Plan) -> Result<()> {
    let world = World::run(plan).with_context(|| format!("seed {}", plan.seed))?;
    if plan.planted > 0 {
        world.account.expect_levels(DEEP_LEVELS)?;
    }
    println!("seed {}: {world:?}", plan.seed);
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let first = buttress_oracle::seeds::seed("writing::model", "BUTTRESS_WRITING_SEED", 1);
    let kernel_every = super::number("BUTTRESS_WRITING_KERNEL_EVERY", KERNEL_EVERY);
    let operations = budget("BUTTRESS_WRITING_OPERATIONS", OPERATIONS.0, OPERATIONS.1) / CASES;
    let mut cases = Vec::new();
    for (index, (name, kind)) in kinds().into_iter().enumerate() {
        for part in 0..CACHES.len() as u64 {
            let is_deep = kind.planted > 0;
            let kernel_every = if is_deep {
                kernel_every.div_ceil(DEEP_SHARE)
            } else {
                kernel_every
            };
            let plan = Plan {
                seed: first * CASES + index as u64 * CACHES.len() as u64 + part,
                operations: if is_deep {
                    operations / DEEP_SHARE
                } else {
                    operations
                },
                data: compression(index),
                cache: CACHES[part as usize],
                kernel_every: kernel_missing().is_none().then_some(kernel_every),
                twin: kernel_missing().is_none(),
                ..kind.clone()
            };
            let name = format!("model::{name}_{part}");
            cases.push(Case::new(name, move || {
                // On a machine without the kernel's btrfs, the other parts of the test still run.
                let _ = skips(kernel_missing());
                if !plan.progs.is_empty()
                    && let Some(missing) = progs_missing(QUOTA_PROGS)
                {
                    return Ok(Outcome::Skipped(missing));
                }
                one(&plan)?;
                Ok(Outcome::Passed)
            }));
        }
    }
    cases
}
