//! Volumes in the layouts of old versions of mkfs.btrfs, which current versions do not create: a
//! system chunk at address 0 at the start of the device, empty single groups beside those of the
//! requested profile, groups over superblock copies, and missing newer features. Buttress and the
//! kernel change these volumes alternately, as in [`super::rounds`].

use super::rounds::{change_here, open, then_the_kernel};
use anyhow::{Context, Result, bail, ensure};
use buttress::mkfs::{Feature, Identity, Options};
use buttress::unstable::format::{ItemType, Key, SUPERBLOCK_OFFSETS};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{BlockGroupFlags, ByteCount, Logical, Physical, Profile, Timestamp, TreeId, Uuid};
use buttress_mkfs::old::{self, OldChunk};
use buttress_mkfs::options::Missing;
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::tools::kernel_missing;
use buttress_oracle::volumes::scratch;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::comparing::expect_nothing_found;
use buttress_proof::writing::fill::Filling;
use buttress_proof::writing::volume::open_images;
use std::fs::File;
use std::path::PathBuf;

/// Number of turns of each side.
const ROUNDS: u64 = 2;

const DEVICE_MIB: u64 = 640;

const SYSTEM: BlockGroupFlags = BlockGroupFlags::SYSTEM;
const METADATA: BlockGroupFlags = BlockGroupFlags::METADATA;
const DATA: BlockGroupFlags = BlockGroupFlags::DATA;

struct Layout {
    name: &'static str,
    devices: usize,
    node_kib: u32,
    /// Current features of the layout, besides extended references.
    features: &'static [Feature],
    missing: Missing,
    chunks: Vec<OldChunk>,
    mount: &'static str,
}

/// A volume from before uuids, error counts and received snapshots.
const NOTHING_NEW: Missing = Missing {
    uuid_tree: true,
    device_statistics: true,
    root_item_extensions: true,
};

/// Builds a chunk at these MiB of the logical address space, with its stripes by device and MiB.
fn chunk(
    holds: BlockGroupFlags,
    profile: Profile,
    at: u64,
    length: u64,
    stripes: &[(usize, u64)],
) -> OldChunk {
    let stripes = stripes.iter();
    OldChunk {
        flags: holds | profile.flag(),
        logical: Logical::new(at << 20),
        length: ByteCount::new(length << 20),
        stripes: stripes
            .map(|(device, at)| (*device, Physical::new(*at << 20)))
            .collect(),
    }
}

/// Builds the first chunk of every old volume.
fn first_system() -> OldChunk {
    chunk(SYSTEM, Profile::Single, 0, 4, &[(0, 0)])
}

fn first_metadata() -> OldChunk {
    chunk(METADATA, Profile::Single, 4, 8, &[(0, 4)])
}

fn first_data() -> OldChunk {
    chunk(DATA, Profile::Single, 12, 8, &[(0, 12)])
}

/// Builds the layout of mkfs.btrfs on one device for many years: DUP beside empty single groups. A
/// metadata chunk covers the superblock copy at 64 MiB.
fn dup_and_left_over() -> Vec<OldChunk> {
    vec![
        chunk(SYSTEM, Profile::Dup, 20, 8, &[(0, 20), (0, 28)]),
        chunk(METADATA, Profile::Dup, 28, 32, &[(0, 36), (0, 68)]),
        first_system(),
        first_metadata(),
        first_data(),
    ]
}

fn layouts() -> Vec<Layout> {
    let layout = |name, devices, node_kib, chunks| Layout {
        name,
        devices,
        node_kib,
        features: &[],
        missing: NOTHING_NEW,
        chunks,
        mount: "space_cache=v1",
    };
    let all_single = || vec![first_system(), first_metadata(), first_data()];
    let mixed = |length| {
        vec![
            first_system(),
            chunk(METADATA | DATA, Profile::Single, 4, length, &[(0, 4)]),
        ]
    };
    vec![
        layout("all_single", 1, 4, all_single()),
        layout("left_over_single_groups", 1, 16, dup_and_left_over()),
        Layout {
            features: &[Feature::ExtendedReferences, Feature::SkinnyMetadata],
            missing: Missing::default(),
            ..layout("left_over_single_groups_of_2013", 1, 16, dup_and_left_over())
        },
        Layout {
            features: &[Feature::FreeSpaceTree, Feature::NoHoles],
            mount: "",
            ..layout(
                "left_over_single_groups_later_with_free_space_tree",
                1,
                16,
                dup_and_left_over(),
            )
        },
        // The kernel creates the free space tree.
        Layout {
            mount: "space_cache=v2",
            ..layout(
                "left_over_single_groups_converted_by_the_kernel",
                1,
                16,
                dup_and_left_over(),
            )
        },
        Layout {
            features: &[
                Feature::ExtendedReferences,
                Feature::SkinnyMetadata,
                Feature::FreeSpaceTree,
                Feature::NoHoles,
                Feature::BlockGroupTree,
            ],
            missing: Missing::default(),
            mount: "",
            ..layout("all_single_later_with_every_feature", 1, 16, all_single())
        },
        Layout {
            mount: "nospace_cache",
            ..layout("largest_nodes", 1, 64, all_single())
        },
        layout("nodes_of_32_kib", 1, 32, dup_and_left_over()),
        layout("mixed", 1, 4, mixed(8)),
        // The only block group covers the superblock copy at 64 MiB.
        Layout {
            features: &[Feature::FreeSpaceTree, Feature::SkinnyMetadata],
            mount: "",
            ..layout("mixed_over_a_superblock_copy", 1, 4, mixed(96))
        },
        layout(
            "metadata_over_a_superblock_copy",
            1,
            4,
            vec![
                first_system(),
                chunk(METADATA, Profile::Single, 4, 8, &[(0, 60)]),
                first_data(),
            ],
        ),
        layout(
            "two_devices",
            2,
            16,
            vec![
                chunk(SYSTEM, Profile::Raid1, 20, 8, &[(0, 20), (1, 1)]),
                chunk(METADATA, Profile::Raid1, 28, 64, &[(0, 28), (1, 9)]),
                first_system(),
                first_metadata(),
                first_data(),
                chunk(DATA, Profile::Raid0, 92, 64, &[(0, 92), (1, 73)]),
            ],
        ),
        layout(
            "four_devices",
            4,
            16,
            vec![
                chunk(
                    SYSTEM,
                    Profile::Raid10,
                    20,
                    16,
                    &[(0, 20), (1, 1), (2, 1), (3, 1)],
                ),
                chunk(
                    METADATA,
                    Profile::Raid10,
                    36,
                    128,
                    &[(0, 28), (1, 9), (2, 9), (3, 9)],
                ),
                first_system(),
                first_metadata(),
                first_data(),
            ],
        ),
        layout(
            "three_devices_with_parity",
            3,
            16,
            vec![
                chunk(SYSTEM, Profile::Raid5, 20, 16, &[(0, 20), (1, 1), (2, 1)]),
                chunk(METADATA, Profile::Raid5, 36, 128, &[(0, 28), (1, 9), (2, 9)]),
                first_system(),
                first_metadata(),
                first_data(),
            ],
        ),
    ]
}

fn make(layout: &Layout) -> Result<(tempfile::TempDir, Vec<PathBuf>)> {
    let folder = scratch()?;
    let images: Vec<PathBuf> = (0..layout.devices)
        .map(|number| folder.path().join(format!("device-{number}")))
        .collect();
    for image in &images {
        File::create(image)?.set_len(DEVICE_MIB << 20)?;
    }
    let mixed = layout
        .chunks
        .iter()
        .any(|chunk| chunk.flags.contains(DATA | METADATA));
    let profile = |wanted: BlockGroupFlags| {
        let mut chunks = layout.chunks.iter().rev();
        chunks
            .find(|chunk| chunk.flags.contains(wanted))
            .and_then(|chunk| chunk.flags.profile())
    };
    let given = Feature::ALL.map(|feature| {
        let wanted = match feature {
            Feature::MixedBlockGroups => mixed,
            feature => layout.features.contains(&feature),
        };
        (feature, wanted)
    });
    let options = Options {
        node_bytes: Some(layout.node_kib << 10),
        data: profile(DATA),
        metadata: if mixed {
            profile(DATA)
        } else {
            layout.chunks[0].flags.profile()
        },
        features: given.to_vec(),
        ..Options::default()
    };
    // Several cases are mounted at a time, and the kernel identifies volumes by their uuids.
    let identity = Identity {
        fsid: Uuid::new_v4(),
        chunk_tree: Uuid::new_v4(),
        top_level: Uuid::new_v4(),
        devices: (0..layout.devices).map(|_| Uuid::new_v4()).collect(),
        time: Timestamp {
            seconds: 1_300_000_000,
            nanoseconds: 0,
        },
    };
    let devices = open_images(&images, true)?;
    old::make(&devices, &options, &identity, &layout.chunks, layout.missing)?;
    Ok((folder, images))
}

/// Writes more than the first block groups hold, so that new chunks and a new chunk tree are
/// written; then deletes half of it.
fn grow(images: &[PathBuf], round: u64) -> Result<()> {
    let filesystem = WritableFilesystem::new(open(images, true)?, WriteOptions::default())?;
    for (filling, most) in [(Filling::Data, 48), (Filling::Metadata, 1200)] {
        let prefix = format!("old-{round}");
        let filled = filling.fill(&filesystem, &prefix, most)?;
        ensure!(filled == most, "space for {filled} of {most} pieces");
        filesystem.commit()?;
        for number in (0..filled).step_by(2) {
            filling.remove(&filesystem, &filling.name(&prefix, number))?;
        }
        filesystem.commit()?;
    }
    Ok(())
}

/// Asserts that no extent is at reserved addresses, or on a superblock.
fn expect_reserved_is_free(images: &[PathBuf]) -> Result<()> {
    let filesystem = open(images, false)?;
    let map = filesystem.volume().chunk_map().clone();
    let node_bytes = u64::from(filesystem.superblock().node_bytes);
    let mut extents = Vec::new();
    for item in filesystem
        .tree(TreeId::EXTENT)?
        .range(Key::MIN..=Key::MAX, buttress::ReadAhead::None)
    {
        let key = item?.key();
        match key.item_type {
            ItemType::EXTENT_ITEM => extents.push((key.objectid.get(), key.offset)),
            ItemType::METADATA_ITEM => extents.push((key.objectid.get(), node_bytes)),
            _ => {}
        }
    }
    ensure!(!extents.is_empty(), "there are extents");
    for (start, length) in extents {
        ensure!(start >= 64 << 10, "an extent of {length} bytes at {start}");
        let chunk = map.find(Logical::new(start)).context("every extent is mapped")?;
        if chunk.layout().data_columns() > 1 {
            // Both checkers verify striped chunks.
            continue;
        }
        for stripe in &chunk.chunk().stripes {
            let first = stripe.physical.get() + (start - chunk.start().get());
            let meets = |at: &Physical| first < at.get() + (64 << 10) && at.get() < first + length;
            ensure!(
                !SUPERBLOCK_OFFSETS.iter().any(meets),
                "an extent of {length} bytes at {start} lies behind a superblock, at {first} of its device"
            );
        }
    }
    Ok(())
}

/// Wrong errors of `btrfs check` on volumes with a free space tree and a chunk at address 0: it
/// excludes the first 64 KiB when it loads the free space, and then reports them as missing.
const FALSE_ALARM: [&str; 2] = [
    "there is no free space entry for 0-65536",
    "cache appears valid but isn't 0",
];

fn expect_sound(images: &[PathBuf]) -> Result<()> {
    expect_nothing_found(&open(images, false)?)?;
    let Err(error) = btrfs_check(images) else {
        return Ok(());
    };
    let text = format!("{error:#}");
    let complaints = text
        .split_once("stderr:")
        .map_or("", |(_, complaints)| complaints);
    let is_false_alarm = |line: &str| line.is_empty() || line.starts_with('[') || FALSE_ALARM.contains(&line);
    let all = FALSE_ALARM.iter().all(|line| complaints.contains(line));
    if all && complaints.lines().map(str::trim).all(is_false_alarm) {
        return Ok(());
    }
    bail!("{text}")
}

fn change(layout: &Layout, seed: u64) -> Result<()> {
    let (_folder, images) = make(layout)?;
    expect_sound(&images).context("as it was made")?;
    for round in 0..ROUNDS {
        let seed = seed * 100 + round;
        grow(&images, round).with_context(|| format!("growing, round {round}"))?;
        expect_reserved_is_free(&images).with_context(|| format!("round {round}"))?;
        change_here(&images, seed).with_context(|| format!("here, round {round}"))?;
        expect_reserved_is_free(&images).with_context(|| format!("round {round}"))?;
        then_the_kernel(&images, layout.mount, round, seed, &expect_sound)?;
    }
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let seeds = buttress_oracle::seeds::seed("writing::old_layouts", "BUTTRESS_WRITING_SEED", 1)..;
    seeds
        .zip(layouts())
        .map(|(seed, layout)| {
            Case::new(format!("old_layouts::{}", layout.name), move || {
                if let Some(reason) = kernel_missing() {
                    return Ok(Outcome::Skipped(reason));
                }
                change(&layout, seed).with_context(|| format!("seed {seed}"))?;
                Ok(Outcome::Passed)
            })
        })
        .collect()
}
