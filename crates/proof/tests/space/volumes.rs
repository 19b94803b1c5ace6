//! Random volumes of the kernel and of Buttress.

use crate::{counting, deleting, programs};
use anyhow::{Context, Result};
use buttress::mkfs::{Feature, Options};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Compression, CompressionMethod, DataOptions, Device, DeviceOptions, Profile};
use buttress_oracle::history::{Made, Strictness, random};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_oracle::volumes::{Fill, Specification, make_with};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::{Plan, World};
use std::path::{Path, PathBuf};

/// Number of changes of each of Buttress's volumes.
const OPERATIONS: u64 = 1200;

pub fn open(images: &[PathBuf]) -> Result<Filesystem> {
    open_with(images, &DeviceOptions::default())
}

pub fn open_for_writing(images: &[PathBuf]) -> Result<WritableFilesystem> {
    let writable = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let filesystem = open_with(images, &writable)?;
    Ok(WritableFilesystem::new(filesystem, WriteOptions::default())?)
}

fn open_with(images: &[PathBuf], options: &DeviceOptions) -> Result<Filesystem> {
    let devices = images
        .iter()
        .map(|image| Ok(Device::open(image, options)?))
        .collect::<Result<Vec<_>>>()?;
    Ok(OpenOptions::new(devices).open()?)
}

/// Returns the kinds of the kernel's volumes.
fn kernel_kinds() -> Vec<(&'static str, Specification)> {
    let plain = Specification {
        device_mib: 1024,
        fill: Fill::Kinds,
        mount: "noatime",
        ..Specification::default()
    };
    vec![
        (
            "zstd_small_nodes",
            Specification {
                node_kib: 4,
                mount: "noatime,compress-force=zstd",
                ..plain.clone()
            },
        ),
        (
            "lzo_mixed",
            Specification {
                mixed: true,
                node_kib: 4,
                mount: "noatime,compress=lzo",
                ..plain.clone()
            },
        ),
        (
            "hole_items_raid1",
            Specification {
                data: "raid1",
                metadata: "raid1",
                devices: 2,
                features: &["^no-holes"],
                ..plain.clone()
            },
        ),
        (
            "space_cache_v1",
            Specification {
                mount: "noatime,space_cache=v1",
                features: &["^free-space-tree"],
                ..plain
            },
        ),
    ]
}

/// Creates histories of snapshots in directories of one volume.
fn fill(top: &Path, seed: u64) -> Result<()> {
    for number in 0..3 {
        let history = random::history(seed * 10 + number);
        let directory = top.join(format!("history-{number}"));
        let made = Made::new(&history, &directory, Strictness::Lenient)?;
        drop(made);
    }
    rustix::fs::syncfs(std::fs::File::open(top)?)?;
    Ok(())
}

fn by_the_kernel(specification: &Specification, seed: u64) -> Result<()> {
    let volume = make_with(specification, |mount| fill(mount.path(), seed))?;
    let images = &volume.images;
    counting::compare(&open(images)?, seed)?;
    programs::compare(images).context("against other programs")?;
    deleting::compare(images, specification.mount, seed).context("deleting")
}

/// Returns the kinds of Buttress's volumes.
fn own_kinds() -> Vec<(&'static str, Plan)> {
    let compressed = |algorithm| DataOptions {
        compression: Some(CompressionMethod::new(algorithm)),
        ..DataOptions::default()
    };
    vec![
        (
            "zstd_small_nodes",
            Plan {
                mkfs: Options {
                    node_bytes: Some(4096),
                    ..Options::default()
                },
                data: compressed(Compression::Zstd),
                ..Plan::new(
                    buttress_oracle::seeds::seed("space::one", "BUTTRESS_SEED", 501),
                    OPERATIONS,
                )
            },
        ),
        (
            "older_features_raid1",
            Plan {
                mkfs: Options {
                    features: vec![(Feature::BlockGroupTree, false), (Feature::NoHoles, false)],
                    data: Some(Profile::Raid1),
                    metadata: Some(Profile::Raid1),
                    ..Options::default()
                },
                devices: vec![384 << 20; 2],
                data: compressed(Compression::Lzo),
                ..Plan::new(
                    buttress_oracle::seeds::seed("space::several", "BUTTRESS_SEED", 502),
                    OPERATIONS,
                )
            },
        ),
    ]
}

fn by_buttress(plan: &Plan) -> Result<()> {
    let world = World::run(plan)?;
    let folder = buttress_oracle::volumes::scratch()?;
    let images = world.images(folder.path())?;
    let filesystem = open(&images)?;
    counting::compare(&filesystem, plan.seed)?;
    if !skips(kernel_missing()) {
        programs::compare(&images).context("against other programs")?;
    }
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let first = buttress_oracle::seeds::seed("space", "BUTTRESS_SEED", 1);
    for ((name, specification), seed) in kernel_kinds().into_iter().zip(first..) {
        cases.push(Case::new(format!("volumes::kernel_{name}"), move || {
            if let Some(reason) = kernel_missing() {
                return Ok(Outcome::Skipped(reason));
            }
            by_the_kernel(&specification, seed)?;
            Ok(Outcome::Passed)
        }));
    }
    for (name, plan) in own_kinds() {
        cases.push(Case::new(format!("volumes::buttress_{name}"), move || {
            by_buttress(&plan)?;
            Ok(Outcome::Passed)
        }));
    }
    cases
}
