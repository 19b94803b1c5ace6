//! The kernel and Buttress in turn: volumes that the kernel made and aged, on every profile and with older features, are
//! changed here, looked at and changed by the kernel, and changed here again. Both checkers find nothing after each turn,
//! and both sides see the same.

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

/// How often each side has its turn.
const ROUNDS: u64 = 3;

/// Changes of one turn here.
const STEPS: u64 = 150;

pub(super) fn open(images: &[PathBuf], write: bool) -> Result<Filesystem> {
    Ok(OpenOptions::new(open_images(images, write)?).open()?)
}

/// Random changes and commits.
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
    // What is deleted is left to the kernel in some rounds, half of it or whole.
    if seed.is_multiple_of(2) {
        filesystem.drop_deleted_subvolumes(&Progress::new())?;
    }
    filesystem.commit()?;
    Ok(())
}

/// Changes by the kernel: a new tree, a snapshot, older ones of both deleted, and content of files that are there.
fn change_by_kernel(top: &Path, round: u64, seed: u64) -> Result<()> {
    let name = |what: &str, round: u64| top.join(format!("kernel-{what}-{round}"));
    random_tree::plant(&name("tree", round), seed, 80)?;
    subvolume(&["snapshot"], &[top, &name("snapshot", round)])?;
    if let Some(before) = round.checked_sub(1) {
        // Buttress may have renamed what was made in the round before, or made subvolumes in it.
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
        // Immutable and append-only files refuse.
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
    // Its paths are as long as paths may be: moved to somewhere deeper, they would be longer.
    fs::remove_dir_all(mount.path().join("names"))?;
    mount.close()?;
    (0..ROUNDS).try_for_each(|round| {
        let seed = specification.seed * 100 + round;
        change_here(images, seed).with_context(|| format!("here, round {round}"))?;
        then_the_kernel(images, specification.mount, round, seed, &expect_sound)
    })
}

/// After changes here: nothing is wrong, the kernel sees the same, and what it changes leaves nothing wrong.
pub(super) fn then_the_kernel(
    images: &[PathBuf],
    mount: &str,
    round: u64,
    seed: u64,
    expect_sound: &dyn Fn(&[PathBuf]) -> Result<()>,
) -> Result<()> {
    expect_sound(images).with_context(|| format!("after changes here, round {round}"))?;
    let here = library::manifest(&open(images, false)?, TOP)?;
    // Changes here may have made another subvolume the default one.
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
