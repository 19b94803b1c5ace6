//! Tests of volumes that the kernel made, damaged on one device and repaired here. `btrfs check`,
//! the kernel's scrub and its mount then find no error.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use anyhow::{Context, Result, ensure};
use buttress_fs::Progress;
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{expect_equal, of_directory};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::{Specification, make};
use buttress_scrub::{Options, Scrub};
use buttress_volume::MappingContent;
use std::path::PathBuf;
use std::process::Command;
use support::images::{open, summed};
use support::{Use, uses_of};

/// Damages a third of the blocks of one device. Returns the number of damaged blocks.
fn spoil(images: &[PathBuf], seed: u64) -> Result<usize> {
    let (devices, filesystem) = open(images)?;
    let mut random = Random::new(seed);
    let lost = random.below(devices.len() as u64) as usize;
    let summed = summed(&filesystem)?;
    // Damage of data without checksums cannot be detected, nor damage of parity over it.
    let is_known = |used: &Use, at: u64| {
        let logical = used.logical.get() + at;
        !used.is_data || summed.iter().any(|range| range.contains(&logical))
    };
    let uses = uses_of(&filesystem)?;
    let mut spoilt = 0;
    for used in uses.iter().filter(|used| used.device == lost) {
        let is_parity = matches!(used.content, MappingContent::P | MappingContent::Q);
        let is_other_copy = devices.len() == 1 && used.content != MappingContent::Data { copy: 1 };
        if is_other_copy || is_parity && used.is_data {
            continue;
        }
        for at in (0..used.length as u64).step_by(4096) {
            if is_known(used, at) && random.one_in(3) {
                devices[lost].write(used.physical + at, &random.bytes(4096, false))?;
                spoilt += 1;
            }
        }
    }
    devices[lost].flush()?;
    Ok(spoilt)
}

fn mended(data: &'static str, metadata: &'static str, devices: u32, checksum: &'static str) -> Result<()> {
    let volume = make(&Specification {
        data,
        metadata,
        devices,
        checksum,
        device_mib: 512,
        ..Specification::default()
    })?;
    let spoilt = spoil(&volume.images, u64::from(devices))?;
    ensure!(spoilt > 50, "only {spoilt} blocks were spoilt");
    let (open_devices, filesystem) = open(&volume.images)?;
    let scrub = Scrub::new(&filesystem, Options::default(), Progress::new())?;
    scrub.run()?;
    let report = scrub.report();
    ensure!(!report.has_uncorrectable(), "{data}: {:#?}", report.damages);
    ensure!(
        report.totals().unverified_errors == 0,
        "{data}: {:#?}",
        report.damages
    );
    ensure!(
        report.totals().corrected_errors > 0,
        "{data}: nothing was corrected"
    );
    drop((scrub, filesystem, open_devices));
    btrfs_check(&volume.images)?;
    let mount = Mount::new(&volume.images, "ro")?;
    expect_equal(data, &volume.manifest, &of_directory(mount.path())?)?;
    let scrubbed = run(Command::new(newest("btrfs"))
        .args(["scrub", "start", "-B", "-r"])
        .arg(mount.path()))?;
    let text = String::from_utf8_lossy(&scrubbed.stdout).into_owned();
    ensure!(
        text.contains("no errors found"),
        "{data}: the kernel finds {text}"
    );
    mount.close()
}

#[test]
fn kernel_finds_no_error_after_repair() {
    if skips(kernel_missing()) {
        return;
    }
    for (data, metadata, devices, checksum) in [
        ("dup", "dup", 1, "crc32c"),
        ("raid1", "raid1", 2, "xxhash"),
        ("raid1c3", "raid1c4", 4, "sha256"),
        ("raid10", "raid10", 4, "blake2"),
        ("raid5", "raid5", 3, "crc32c"),
        ("raid6", "raid6", 4, "crc32c"),
    ] {
        mended(data, metadata, devices, checksum)
            .with_context(|| data)
            .unwrap();
    }
}
