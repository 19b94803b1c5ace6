//! The kernel and Buttress alternate: volumes that the kernel created and aged, on every profile
//! and with older features, are changed by Buttress, verified and changed by the kernel, and
//! changed by Buttress again. Both checkers find nothing after each turn, and both sides see the
//! same content.

use anyhow::{Context, Result};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Compression, CompressionMethod, DataOptions, Progress};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::content::{Random, random_tree};
use buttress_oracle::history::{Made, Strictness, random, subvolume};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{expect_equal, of_directory};
use buttress_oracle::tools::progs_missing;
use buttress_oracle::volumes::{Specification, make};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::library;
use buttress_proof::writing::comparing::expect_nothing_found;
use buttress_proof::writing::fill::TOP;
use buttress_proof::writing::volume::open_images;
use buttress_proof::writing::workload::Workload;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Number of turns of each side.
const ROUNDS: u64 = 3;

/// Number of Buttress's changes in one turn.
const STEPS: u64 = 150;

pub(super) fn open(images: &[PathBuf], write: bool) -> Result<Filesystem> {
    Ok(OpenOptions::new(open_images(images, write)?).open()?)
}

/// Makes random changes and commits with Buttress.
pub(super) fn change_here(images: &[PathBuf], seed: u64) -> Result<()> {
    let methods = [
        None,
        Some(Compression::Zstd),
        Some(Compression::Lzo),
        Some(Compression::Zlib),
    ];
    let method = methods[usize::try_from(seed % 4)?];
    let options = WriteOptions {
        data: DataOptions {
            compression: method.map(CompressionMethod::new),
            ..DataOptions::default()
        },
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(open(images, true)?, options)?;
    let mut workload = Workload::on(&filesystem, seed)?;
    for step in 0..STEPS {
        workload.step(&filesystem)?;
        if step % 40 == 39 {
            filesystem.commit()?;
        }
    }
    // In some rounds, the kernel drops the deleted subvolumes, half-dropped or complete.
    if seed.is_multiple_of(2) {
        filesystem.subvolumes().drop_deleted(&Progress::new())?;
    }
    filesystem.commit()?;
    Ok(())
}

/// Makes changes with the kernel: a new tree, a snapshot, deletions of older ones, and new content
/// of existing files.
fn change_by_kernel(top: &Path, round: u64, seed: u64) -> Result<()> {
    let name = |what: &str, round: u64| top.join(format!("kernel-{what}-{round}"));
    random_tree::plant(&name("tree", round), seed, 80)?;
    subvolume(&["snapshot"], &[top, &name("snapshot", round)])?;
    if let Some(before) = round.checked_sub(1) {
        // Buttress may have renamed the entries of the previous round, or created subvolumes in
        // them.
        let has_subvolumes = subvolume(&["delete"], &[&name("snapshot", before)]).is_err();
        if has_subvolumes || name("tree", before).is_dir() {
            drop(fs::remove_dir_all(name("tree", before)));
        }
    }
    let mut random = Random::new(seed);
    for entry in fs::read_dir(top)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() || random.one_in(3) {
            continue;
        }
        // Immutable and append-only files refuse writes.
        let Ok(file) = File::options().write(true).open(entry.path()) else {
            continue;
        };
        let size = file.metadata()?.len().min(1 << 20);
        let at = random.below(size + 4096);
        if random.one_in(4) {
            file.set_len(at)?;
        } else {
            let length = usize::try_from(random.below(40_000))?;
            file.write_all_at(&random.bytes(length, true), at)?;
        }
    }
    Ok(())
}

fn expect_sound(images: &[PathBuf]) -> Result<()> {
    expect_nothing_found(&open(images, false)?)?;
    btrfs_check(images).map(drop)
}

fn rounds(specification: &Specification) -> Result<()> {
    let volume = make(specification)?;
    let images = &volume.images;
    let mount = Mount::new(images, specification.mount)?;
    let history = mount.path().join("history");
    Made::new(
        &random::history(specification.seed),
        &history,
        Strictness::Lenient,
    )?;
    // Remove these directories, whose paths have the maximum length: a deeper directory would make
    // them longer.
    fs::remove_dir_all(mount.path().join("names"))?;
    mount.close()?;
    (0..ROUNDS).try_for_each(|round| {
        let seed = specification.seed * 100 + round;
        change_here(images, seed).with_context(|| format!("here, round {round}"))?;
        then_the_kernel(images, specification.mount, round, seed, &expect_sound)
    })
}

/// Verifies Buttress's changes: no finding, the kernel sees the same, and the kernel's changes
/// leave no finding.
pub(super) fn then_the_kernel(
    images: &[PathBuf],
    mount: &str,
    round: u64,
    seed: u64,
    expect_sound: &dyn Fn(&[PathBuf]) -> Result<()>,
) -> Result<()> {
    expect_sound(images).with_context(|| format!("after changes here, round {round}"))?;
    let here = library::manifest(&open(images, false)?, TOP)?;
    // Buttress may have changed the default subvolume.
    let options = [mount, "noatime", "subvolid=5"].join(",");
    let mount = Mount::new(images, options.trim_start_matches(','))?;
    let by_kernel = of_directory(mount.path())?;
    expect_equal("what is seen here", &by_kernel, &here).with_context(|| format!("round {round}"))?;
    change_by_kernel(mount.path(), round, seed).with_context(|| format!("the kernel, round {round}"))?;
    mount.close()?;
    expect_sound(images).with_context(|| format!("after the kernel's changes, round {round}"))
}

const PROFILES: [(&str, &str, u32); 11] = [
    ("single", "single", 1),
    ("dup", "dup", 1),
    ("single", "raid1", 3),
    ("raid0", "raid0", 3),
    ("raid1", "raid1", 2),
    ("raid1c3", "raid1c3", 3),
    ("raid1c4", "raid1c4", 4),
    ("raid10", "raid10", 4),
    ("raid5", "raid5", 3),
    ("raid6", "raid6", 4),
    ("raid6", "raid1c3", 5),
];

fn kinds() -> Vec<(String, (u32, u32), Specification)> {
    let plain = || Specification {
        device_mib: 768,
        ..Specification::default()
    };
    let mut kinds: Vec<(String, (u32, u32), Specification)> = PROFILES
        .into_iter()
        .map(|(data, metadata, devices)| {
            let specification = Specification {
                data,
                metadata,
                devices,
                ..plain()
            };
            (format!("{data}_{metadata}_on_{devices}"), (6, 2), specification)
        })
        .collect();
    let mut add = |name: &str, progs, specification| kinds.push((name.to_owned(), progs, specification));
    let with = |features, mount| Specification {
        features,
        mount,
        ..plain()
    };
    add(
        "mixed",
        (6, 2),
        Specification {
            mixed: true,
            ..plain()
        },
    );
    add("holes_as_items", (6, 2), with(&["^no-holes"], ""));
    add(
        "v1_space_cache",
        (6, 4),
        with(&["^free-space-tree"], "space_cache=v1"),
    );
    add(
        "no_space_cache",
        (6, 4),
        with(&["^free-space-tree"], "nospace_cache"),
    );
    add("no_block_group_tree", (6, 12), with(&["^block-group-tree"], ""));
    add("block_group_tree", (6, 4), with(&["block-group-tree"], ""));
    add("compressed", (6, 2), with(&[], "compress-force=zstd"));
    add(
        "small_nodes",
        (6, 2),
        Specification {
            node_kib: 4,
            checksum: "blake2",
            ..plain()
        },
    );
    kinds
}

pub fn cases() -> Vec<Case> {
    let first = buttress_oracle::seeds::seed("writing::rounds", "BUTTRESS_WRITING_SEED", 1);
    (first..)
        .zip(kinds())
        .map(|(seed, (name, progs, specification))| {
            let specification = Specification {
                seed,
                ..specification
            };
            Case::new(format!("rounds::{name}"), move || {
                if let Some(reason) = progs_missing(progs) {
                    return Ok(Outcome::Skipped(reason));
                }
                rounds(&specification).with_context(|| format!("seed {seed}"))?;
                Ok(Outcome::Passed)
            })
        })
        .collect()
}
