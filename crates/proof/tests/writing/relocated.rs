//! Block groups that move here, on volumes of the kernel: profiles, features, snapshots, and what
//! the kernel relocated before. Afterwards both checks find nothing, and the kernel reads what it
//! wrote.

use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::format::{BlockGroupFlags, Logical, Profile};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{RelocationOptions, TargetProfiles, WritableFilesystem, WriteOptions};
use buttress::{Device, DeviceEngine, Progress};
use buttress_lab::crash::{CrashLab, Cuts};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::history::subvolume;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{expect_equal, of_directory};
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::{Fill, Specification, Volume, make_with};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::comparing::expect_nothing_found;
use buttress_proof::writing::state::{describe, first_difference};
use buttress_proof::writing::volume::{empty, open_checked, open_for_writing, open_images};
use buttress_proof::writing::workload::Workload;
use std::fs;
use std::io::Write as _;
use std::process::Command;

/// Snapshots of what the volume is filled with, each with changes; the kernel relocates a part
/// before the last ones. The kernel marks blocks that it relocates as shared. The last snapshot
/// shares blocks without this mark, because the source changed them after the relocation.
fn shared(mount: &Mount) -> Result<()> {
    let top = mount.path();
    let source = top.join("source");
    subvolume(&["create"], &[&source])?;
    for number in 0..400_u32 {
        let length = [900, 5000, 70_000][number as usize % 3];
        let byte = u8::try_from(number % 251)?;
        fs::write(source.join(format!("file-{number}")), vec![byte; length])?;
    }
    for number in 0..6_u32 {
        subvolume(&["snapshot"], &[&source, &top.join(format!("copy-{number}"))])?;
        for changed in (number..400).step_by(37) {
            let mut file = fs::File::options()
                .append(true)
                .open(source.join(format!("file-{changed}")))?;
            file.write_all(&vec![b'x'; 6000])?;
        }
        if number == 3 {
            run(Command::new(newest("btrfs"))
                .args(["balance", "start", "-f", "-mlimit=1", "-dlimit=1"])
                .arg(top))?;
        }
    }
    subvolume(&["snapshot"], &[&source, &top.join("last")])
}

fn groups_of(filesystem: &WritableFilesystem, flag: BlockGroupFlags) -> Vec<Logical> {
    let map = filesystem.view().volume().chunk_map();
    let chunks = map.chunks().iter().filter(|chunk| chunk.flags().contains(flag));
    chunks.map(|chunk| chunk.start()).collect()
}

fn expect_sound(volume: &Volume) -> Result<()> {
    expect_nothing_found(&OpenOptions::new(open_images(&volume.images, false)?).open()?)?;
    btrfs_check(&volume.images).map(drop)
}

fn moved(specification: &Specification, targets: TargetProfiles) -> Result<()> {
    let volume = make_with(specification, shared)?;
    expect_sound(&volume).context("as the kernel left it")?;
    for (flag, target) in [
        (BlockGroupFlags::DATA, targets.data),
        (BlockGroupFlags::METADATA, targets.metadata),
        (BlockGroupFlags::SYSTEM, targets.system),
    ] {
        let filesystem = OpenOptions::new(open_images(&volume.images, true)?).open()?;
        let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default())?;
        filesystem.relocations().set_target_profiles(targets);
        let before = groups_of(&filesystem, flag);
        let summary = filesystem
            .relocations()
            .relocate(&before, &RelocationOptions::default())?;
        eprintln!("{flag}: {summary:?}");
        let after = groups_of(&filesystem, flag);
        ensure!(
            after.iter().all(|group| !before.contains(group)),
            "{before:?} {after:?}"
        );
        for group in &after {
            let map = filesystem.view().volume().chunk_map();
            let profile = map.find(*group).and_then(|chunk| chunk.flags().profile());
            ensure!(target.is_none() || profile == target, "{group} has {profile:?}");
        }
        filesystem.close()?;
        expect_sound(&volume).with_context(|| format!("after {flag}"))?;
    }
    let mount = Mount::new(&volume.images, "ro,noatime")?;
    expect_equal("what moved", &volume.manifest, &of_directory(mount.path())?)?;
    mount.close()?;
    // The kernel goes on with it: it changes and deletes what is shared.
    let mount = Mount::new(&volume.images, "noatime")?;
    fs::write(mount.path().join("copy-2/file-3"), b"changed")?;
    fs::write(mount.path().join("last/file-5"), b"changed")?;
    subvolume(&["delete"], &[&mount.path().join("source")])?;
    subvolume(
        &["snapshot"],
        &[&mount.path().join("copy-1"), &mount.path().join("copy-of-copy")],
    )?;
    mount.close()?;
    expect_sound(&volume).context("after changes by the kernel")
}

const fn to(data: Profile, metadata: Profile) -> TargetProfiles {
    TargetProfiles {
        data: Some(data),
        metadata: Some(metadata),
        system: Some(metadata),
    }
}

fn specification(data: &'static str, metadata: &'static str, devices: u32) -> Specification {
    Specification {
        data,
        metadata,
        devices,
        fill: Fill::Kinds,
        ..Specification::default()
    }
}

/// Names, volumes and targets.
fn matrix() -> Vec<(&'static str, Specification, TargetProfiles)> {
    let keep = TargetProfiles::default();
    vec![
        ("single_dup", specification("single", "dup", 1), keep),
        (
            "small_nodes_block_group_tree",
            Specification {
                node_kib: 4,
                checksum: "xxhash",
                features: &["block-group-tree"],
                ..specification("dup", "single", 1)
            },
            to(Profile::Single, Profile::Dup),
        ),
        (
            "large_nodes_no_free_space_tree",
            Specification {
                node_kib: 64,
                checksum: "sha256",
                features: &["^free-space-tree", "^no-holes"],
                ..specification("single", "dup", 1)
            },
            keep,
        ),
        (
            "simple_quotas",
            Specification {
                features: &["squota"],
                ..specification("single", "dup", 1)
            },
            to(Profile::Dup, Profile::Single),
        ),
        (
            "quotas",
            Specification {
                features: &["quota"],
                ..specification("single", "dup", 1)
            },
            keep,
        ),
        (
            "mixed",
            Specification {
                mixed: true,
                node_kib: 4,
                ..specification("single", "single", 1)
            },
            keep,
        ),
        (
            "raid1_to_raid5",
            specification("raid1", "raid1", 3),
            to(Profile::Raid5, Profile::Raid1C3),
        ),
        (
            "raid5_to_raid6",
            specification("raid5", "raid1c3", 4),
            to(Profile::Raid6, Profile::Raid10),
        ),
        (
            "raid0_to_raid10",
            specification("raid0", "raid1", 4),
            to(Profile::Raid10, Profile::Raid1C4),
        ),
        (
            "raid6_to_single",
            specification("raid6", "raid6", 4),
            to(Profile::Single, Profile::Dup),
        ),
    ]
}

const PURPOSES: [BlockGroupFlags; 3] = [
    BlockGroupFlags::DATA,
    BlockGroupFlags::METADATA,
    BlockGroupFlags::SYSTEM,
];

/// A state without the generations of last snapshots, which a move raises.
pub(super) fn without_last_snapshots(state: &str) -> String {
    let lines = state.lines().map(|line| match line.rsplit_once(" snapshot ") {
        Some((rest, _)) if line.starts_with("subvolume ") => rest,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A volume after random operations moves group by group, and is cut at its writes. Each cut leaves
/// a volume with the same content, which moves again to the end.
fn cut_off(seed: u64) -> Result<()> {
    let base = empty(&[192 << 20], &Options::default())?;
    let filesystem = open_for_writing(&base)?;
    let mut workload = Workload::on(&filesystem, seed)?;
    for _ in 0..150 {
        workload.step(&filesystem)?;
    }
    filesystem.commit()?;
    filesystem.subvolumes().drop_deleted(&Progress::new())?;
    filesystem.close()?;
    let expected = without_last_snapshots(&describe(&open_checked(&base)?)?);
    let lab = CrashLab::new();
    let recorded: Vec<Device> = base
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), DeviceEngine::Inline))
        .collect();
    let filesystem = WritableFilesystem::new(OpenOptions::new(recorded).open()?, WriteOptions::default())?;
    for flag in PURPOSES {
        filesystem
            .relocations()
            .relocate(&groups_of(&filesystem, flag), &RelocationOptions::default())?;
    }
    filesystem.close()?;
    let history = lab.history();
    let step = (history.len() / 120).max(1);
    let verdict = history.judge(
        &Cuts::every().step(step).draws(1).threads(2),
        |state| -> Result<(), String> {
            let judge = || -> Result<()> {
                let images = state.backends();
                let found = without_last_snapshots(&describe(&open_checked(&images)?)?);
                ensure!(found == expected, "{}", first_difference(&expected, &found));
                if state.cut() % 5 == 0 {
                    let filesystem = open_for_writing(&images)?;
                    for flag in PURPOSES {
                        filesystem
                            .relocations()
                            .relocate(&groups_of(&filesystem, flag), &RelocationOptions::default())?;
                    }
                    filesystem.close()?;
                    let found = without_last_snapshots(&describe(&open_checked(&images)?)?);
                    ensure!(
                        found == expected,
                        "resumed: {}",
                        first_difference(&expected, &found)
                    );
                }
                Ok(())
            };
            judge().map_err(|error| format!("{error:#}"))
        },
    );
    let accepted = verdict
        .accepted()
        .map_err(|rejected| anyhow::anyhow!("{rejected:?}"))?;
    ensure!(accepted > 50, "only {accepted} cuts");
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let cuts = (1..=3).map(|seed| {
        Case::new(format!("relocated::cut_off_{seed}"), move || {
            cut_off(seed)?;
            Ok(Outcome::Passed)
        })
    });
    matrix()
        .into_iter()
        .map(|(name, specification, targets)| {
            Case::new(format!("relocated::{name}"), move || {
                if let Some(reason) = kernel_missing() {
                    return Ok(Outcome::Skipped(reason));
                }
                moved(&specification, targets)?;
                Ok(Outcome::Passed)
            })
        })
        .chain(cuts)
        .collect()
}
