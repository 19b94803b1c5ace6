//! Seeded runs against the model: volumes of several kinds, a commit after some 40 changes on average; where there is a kernel
//! with btrfs, it makes the same changes on a twin of each volume.
//!
//! A failure names its seed; `BUTTRESS_WRITING_SEED` with a tenth of it, `BUTTRESS_WRITING_OPERATIONS` as in that run and the
//! name of the case make it again. `BUTTRESS_WRITING_KERNEL_EVERY=1` has the kernel's view and the twin compared at each
//! commit; as that lets go of what is held, the run may be another.

use anyhow::{Context, Result};
use buttress::ByteCount;
use buttress::format::compression::CompressionMethod;
use buttress::format::{ChecksumType, Compression, Profile};
use buttress::fs::DataOptions;
use buttress::fs::mkfs::{Feature, Options};
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::{Plan, World};

/// Changes of the ordinary suite, over all kinds of volumes.
const OPERATIONS: u64 = 20_000;

/// Commits between two looks by the kernel and `btrfs check`.
const KERNEL_EVERY: u64 = 100;

/// Cases of a run: each has a seed of its own, and so has each case of the run with the next seed.
const CASES: u64 = 10;

/// How much of trees is kept in memory: all, and so little that most must be read again and again.
const CACHES: [ByteCount; 2] = [ByteCount::new(256 << 20), ByteCount::new(2 << 20)];

/// A kind of volume.
fn kinds() -> Vec<(&'static str, Options, Vec<u64>)> {
    let plain = Options::default;
    let one = || vec![512 << 20];
    vec![
        ("plain", plain(), one()),
        (
            "small_nodes",
            Options {
                node_bytes: Some(4096),
                checksum: Some(ChecksumType::Xxhash64),
                ..plain()
            },
            one(),
        ),
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

/// Every other kind of volume compresses.
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
    println!("seed {}: {world:?}", plan.seed);
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let first = super::number("BUTTRESS_WRITING_SEED", 1);
    let kernel_every = super::number("BUTTRESS_WRITING_KERNEL_EVERY", KERNEL_EVERY);
    let operations = super::number("BUTTRESS_WRITING_OPERATIONS", OPERATIONS) / CASES;
    let mut cases = Vec::new();
    for (index, (name, mkfs, devices)) in kinds().into_iter().enumerate() {
        for part in 0..CACHES.len() as u64 {
            let plan = Plan {
                mkfs: mkfs.clone(),
                devices: devices.clone(),
                data: compression(index),
                cache: CACHES[part as usize],
                kernel_every: kernel_missing().is_none().then_some(kernel_every),
                twin: kernel_missing().is_none(),
                ..Plan::new(
                    first * CASES + index as u64 * CACHES.len() as u64 + part,
                    operations,
                )
            };
            let name = format!("model::{name}_{part}");
            cases.push(Case::new(name, move || {
                one(&plan)?;
                Ok(Outcome::Passed)
            }));
        }
    }
    cases
}
