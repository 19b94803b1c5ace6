//! Redundant profiles with missing devices and corrupt copies: everything is still readable.

use crate::compare::{tar_equals, tar_equals_but};
use anyhow::{Context, Result, ensure};
use buttress::unstable::fs::OpenOptions;
use buttress::{Device, DeviceOptions};
use buttress_oracle::noise::spoil;
use buttress_oracle::tools::progs_missing;
use buttress_oracle::volumes::{Specification, Volume, make};
use buttress_proof::harness::{Case, Outcome};
use std::path::PathBuf;

/// Profile, number of devices, and number of devices that it can lose.
const REDUNDANT: [(&str, u32, usize); 6] = [
    ("raid1", 3, 1),
    ("raid1c3", 4, 2),
    ("raid1c4", 4, 3),
    ("raid10", 4, 1),
    ("raid5", 3, 1),
    ("raid6", 4, 2),
];

fn volume(profile: &'static str, devices: u32) -> Result<Volume> {
    make(&Specification {
        data: profile,
        metadata: profile,
        devices,
        device_mib: 768,
        seed: 77,
        ..Specification::default()
    })
}

/// The only file without checksums.
const UNCHECKED: &[u8] = b"contents/nodatacow";

/// Returns all combinations of `count` numbers from `0..total`.
fn choices(total: usize, count: usize) -> Vec<Vec<usize>> {
    (0u32..1 << total)
        .filter(|mask| mask.count_ones() as usize == count)
        .map(|mask| (0..total).filter(|bit| mask & (1 << bit) != 0).collect())
        .collect()
}

fn devices_missing(profile: &'static str, devices: u32, lost: usize) -> Result<Outcome> {
    let volume = volume(profile, devices)?;
    for gone in choices(volume.images.len(), lost) {
        let left: Vec<PathBuf> = volume
            .images
            .iter()
            .enumerate()
            .filter(|(number, _)| !gone.contains(number))
            .map(|(_, image)| image.clone())
            .collect();
        let refused = crate::compare::command(&["ls"], &left)?.arg(&left[0]).output()?;
        ensure!(
            !refused.status.success(),
            "without --degraded, missing {gone:?}, it was opened"
        );
        tar_equals(&["tar", "--degraded"], &left, &volume.manifest)
            .map_err(|error| error.context(format!("without devices {gone:?}")))?;
    }
    Ok(Outcome::Passed)
}

fn copies_spoilt(profile: &'static str, devices: u32, lost: usize) -> Result<Outcome> {
    let volume = volume(profile, devices)?;
    let mut expected = volume.manifest.clone();
    // Without checksums, noise is indistinguishable from content: any copy may be shown, as in the
    // kernel.
    expected.remove(UNCHECKED).context("the file without checksums")?;
    for (number, gone) in choices(volume.images.len(), lost).into_iter().enumerate().take(4) {
        // Corruption is permanent, so each round works on copies of the images.
        let mut images = Vec::new();
        for (place, image) in volume.images.iter().enumerate() {
            let copy = volume.folder().join(format!("round-{place}"));
            let status = std::process::Command::new("cp")
                .args(["--sparse=always"])
                .arg(image)
                .arg(&copy)
                .status()?;
            ensure!(status.success(), "copying an image");
            if gone.contains(&place) {
                spoil(&copy, 1 << 20, u64::MAX, number as u64)?;
            }
            images.push(copy);
        }
        let errors = tar_equals_but(&["tar"], &images, &expected, UNCHECKED)
            .map_err(|error| error.context(format!("with devices {gone:?} full of noise")))?;
        ensure!(
            errors.contains("checksum"),
            "noise on devices {gone:?} was not reported:\n{errors}"
        );
    }
    Ok(Outcome::Passed)
}

/// Overwrites one of the two copies, the first or the second, in every chunk of a DUP volume.
fn dup_copy_spoilt(copy: usize) -> Result<Outcome> {
    let volume = volume("dup", 1)?;
    let mut expected = volume.manifest.clone();
    expected.remove(UNCHECKED).context("the file without checksums")?;
    let image = volume.images.first().context("an image")?;
    let device = Device::open(image, &DeviceOptions::default())?;
    let filesystem = OpenOptions::new(vec![device]).open()?;
    let mut ranges = Vec::new();
    for chunk in filesystem.volume().chunk_map().chunks() {
        let stripes = &chunk.chunk().stripes;
        ensure!(stripes.len() == 2, "a chunk with {} copies", stripes.len());
        let start = stripes.get(copy).context("the copy")?.physical.get();
        ranges.push((start, start + chunk.length().get()));
    }
    drop(filesystem);
    for (number, (start, end)) in ranges.into_iter().enumerate() {
        spoil(image, start, end, number as u64)?;
    }
    let errors = tar_equals_but(&["tar"], &volume.images, &expected, UNCHECKED)
        .map_err(|error| error.context(format!("with copy {copy} of everything full of noise")))?;
    // The first copies are read first; a corrupt second copy is only read if the first one is bad,
    // too.
    ensure!(
        copy > 0 || errors.contains("checksum"),
        "the noise was not reported:\n{errors}"
    );
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (copy, name) in ["first", "second"].into_iter().enumerate() {
        cases.push(Case::new(
            format!("redundancy::dup_with_the_{name}_copies_spoilt"),
            move || match progs_missing((6, 2)) {
                Some(reason) => Ok(Outcome::Skipped(reason)),
                None => dup_copy_spoilt(copy),
            },
        ));
    }
    for (profile, devices, lost) in REDUNDANT {
        cases.push(Case::new(
            format!("redundancy::{profile}_without_{lost}_of_{devices}_devices"),
            move || match progs_missing((6, 2)) {
                Some(reason) => Ok(Outcome::Skipped(reason)),
                None => devices_missing(profile, devices, lost),
            },
        ));
        cases.push(Case::new(
            format!("redundancy::{profile}_with_{lost}_of_{devices}_copies_spoilt"),
            move || match progs_missing((6, 2)) {
                Some(reason) => Ok(Outcome::Skipped(reason)),
                None => copies_spoilt(profile, devices, lost),
            },
        ));
    }
    cases
}
