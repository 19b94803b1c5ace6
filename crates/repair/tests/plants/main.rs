//! Tests that repair each planted damage.
//!
//! The plants ([`buttress_hostile::plants`]) are one damage each in a small volume of the kernel. A
//! repair of a damage that this version repairs ends with a clean check. A repair of any other
//! damage says so by code, and changes nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold, with known numbers"
)]

mod chunks;
mod consent;
mod cuts;
mod doubts;
mod lost;

use buttress_check::Report;
use buttress_device::{Device, Engine};
use buttress_fs::{OpenOptions, Progress};
use buttress_hostile::editor::Editor;
use buttress_hostile::plants::{self, Plant};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, newest_version, run};
use buttress_repair::{Kept, Options, Outcome, kinds};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Returns the devices of a damaged volume. Changes of them stay in memory.
fn devices(editor: &Editor) -> Vec<Device> {
    let overlays = editor.devices().iter().cloned();
    overlays
        .map(|overlay| Device::with_backend(Arc::new(overlay), Engine::Inline).with_changes_in_memory())
        .collect()
}

fn check(devices: &[Device], reads_data: bool) -> Report {
    let filesystem = OpenOptions::new(devices.to_vec())
        .degraded(true)
        .for_inspection(true)
        .open()
        .expect("the volume opens");
    let options = buttress_check::Options {
        data_checksums: reads_data,
        ..buttress_check::Options::default()
    };
    buttress_check::check(&filesystem, &options, &Progress::new()).expect("nobody cancels")
}

fn repair(devices: &[Device], before: &Report, reads_data: bool) -> Outcome {
    let mut options = Options {
        yes_to: BTreeSet::from(["all".to_owned()]),
        ..Options::default()
    };
    options.check.data_checksums = reads_data;
    buttress_repair::run(devices, before, &options, &mut |_| false, &Progress::new()).expect("a repair ends")
}

fn text(report: &Report) -> String {
    let lines = report.findings.iter();
    lines
        .map(|reported| format!("  {}: {}\n", reported.finding.code(), reported.finding))
        .collect()
}

/// Two damages in one volume are repaired as each of them alone. Each plant is combined with two
/// others.
#[test]
fn repair_of_two_plants_is_clean_and_loses_no_file() {
    let repairable =
        |plant: &Plant| plant.volume == "kinds" && !plant.codes.is_empty() && is_repairable(plant);
    let plants: Vec<Plant> = plants::all().into_iter().filter(repairable).collect();
    let (mut wrong, mut tried) = (String::new(), 0);
    for (number, first) in plants.iter().enumerate() {
        for distance in [1, 7] {
            let second = &plants[(number + distance) % plants.len()];
            // The second plant may need the place that the first one changed.
            let both = std::panic::catch_unwind(|| {
                let mut editor = first.make();
                (second.change)(&mut editor);
                editor
            });
            let Ok(editor) = both else { continue };
            let devices = devices(&editor);
            let before = check(&devices, false);
            // Two opposite changes of a number are none.
            if before.is_clean() {
                continue;
            }
            tried += 1;
            let outcome = repair(&devices, &before, false);
            if !outcome.after.is_clean() || outcome.kept != Kept::Better {
                wrong += &format!(
                    "{} and {}: {:?}, lost {:?}\n{}",
                    first.name,
                    second.name,
                    outcome.kept,
                    outcome.lost,
                    text(&outcome.after)
                );
            }
        }
    }
    assert!(tried > 40, "{tried} pairs");
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Plants that this version does not repair, although it repairs other damages with their codes.
const NOT_REPAIRED: [&str; 3] = [
    // The file extent item is wrong, not the extent's record.
    "extent-length",
    // The header of the block is wrong.
    "owner-without-block",
    // The file extent item has no length, so no rebuild knows the length of the extent.
    "file-extent-lengths-zero",
];

/// Returns whether this version repairs everything that the plant breaks.
fn is_repairable(plant: &Plant) -> bool {
    if NOT_REPAIRED.contains(&plant.name) {
        return false;
    }
    let mut codes = plant.codes.iter();
    codes.all(|code| kinds::row(code).is_some_and(|row| row.kind.reason().is_none()))
}

/// Writes devices to image files, without their zeros.
fn images(devices: &[Device], folder: &Path) -> Vec<PathBuf> {
    const PIECE: usize = 1 << 20;
    let mut images = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        let path = folder.join(format!("device-{number}"));
        let file = File::create(&path).unwrap();
        file.set_len(device.size_bytes()).unwrap();
        let mut at = 0;
        while at < device.size_bytes() {
            let length = PIECE.min(usize::try_from(device.size_bytes() - at).unwrap());
            let bytes = device.read(at, length).unwrap();
            if bytes.iter().any(|byte| *byte != 0) {
                file.write_all_at(&bytes, at).unwrap();
            }
            at += length as u64;
        }
        images.push(path);
    }
    images
}

/// Runs of `btrfs check` that say nothing about a repair, by plant and mode.
const NOT_JUDGED: [(&str, &str); 3] = [
    // This mode does not know the owner references of simple quotas.
    ("qgroup-count-simple", "lowmem"),
    ("lost-simple", "lowmem"),
    // The plant grows a file with inline content. Linux would have written this content elsewhere,
    // and this mode expects that.
    ("hole-item-missing", "lowmem"),
];

/// The first btrfs-progs that know simple quotas.
const SIMPLE_QUOTAS: (u32, u32) = (6, 7);

/// Judges a repaired volume by `btrfs check` in both modes, and by a mount of Linux that writes.
fn judge(name: &str, devices: &[Device]) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let images = images(devices, folder.path());
    let is_known = !name.ends_with("-simple") || newest_version() >= SIMPLE_QUOTAS;
    let check = |mode: &str| {
        if images.len() > 1 {
            return btrfs_check(&images).map(drop);
        }
        let is_judged = is_known && !NOT_JUDGED.contains(&(name, mode));
        let mut check = Command::new(newest("btrfs"));
        check.args(["check", "--mode", mode]).args(&images);
        is_judged.then(|| run(&mut check)).transpose().map(drop)
    };
    check("original")?;
    check("lowmem")?;
    let mount = Mount::new(&images, "")?;
    std::fs::write(mount.path().join("written after the repair"), vec![7; 100_000])?;
    mount.close()?;
    check("original")
}

/// Linux and btrfs-progs accept each repaired volume.
#[test]
fn repaired_volumes_are_clean_for_linux_and_btrfs_check() {
    if skips(kernel_missing()) {
        return;
    }
    let mut wrong = String::new();
    let repairable = |plant: &Plant| !plant.codes.is_empty() && is_repairable(plant);
    for plant in plants::all().into_iter().filter(repairable) {
        let devices = devices(&plant.make());
        let before = check(&devices, false);
        repair(&devices, &before, false);
        if let Err(error) = judge(plant.name, &devices) {
            wrong += &format!("{}: {error:#}\n", plant.name);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn repair_of_each_plant_is_clean_or_changes_nothing() {
    let mut wrong = String::new();
    for plant in plants::all().iter().filter(|plant| !plant.codes.is_empty()) {
        let devices = devices(&plant.make());
        let before = check(&devices, plant.reads_data);
        let outcome = repair(&devices, &before, plant.reads_data);
        let after = check(&devices, plant.reads_data);
        let is_right = if is_repairable(plant) {
            after.is_clean() && outcome.kept == Kept::Better
        } else {
            outcome.kept != Kept::LostFiles
                && buttress_repair::severity(&after) <= buttress_repair::severity(&before)
        };
        if !is_right {
            wrong += &format!(
                "{}: {:?}, lost {:?}\n{} done: {:?}\n",
                plant.name,
                outcome.kept,
                outcome.lost,
                text(&after),
                outcome
                    .done
                    .iter()
                    .map(|done| (done.round, &done.step.edit, done.applied))
                    .collect::<Vec<_>>()
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn each_code_is_in_the_page_with_its_repair() {
    let page = include_str!("../../../../docs/repair.md");
    for row in kinds::TABLE {
        let text = match row.kind.reason() {
            None => format!("| `{}` | yes: ", row.code),
            Some(reason) => format!("| `{}` | no: {reason} |", row.code),
        };
        assert!(page.contains(&text), "{text}");
    }
}
