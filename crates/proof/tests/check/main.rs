//! The check, compared with the kernel's volumes and with `btrfs check`.
//!
//! - [`clean`]: volumes of every profile, checksum, block size and feature, aged by seeded
//!   histories, snapshots, deletions and balances: no finding;
//! - [`states`]: states that a running kernel leaves behind: notes, but no damage;
//! - [`crashes`]: volumes in use by the kernel, as a crash would leave them: no false alarm;
//! - [`dropped`]: the check does not read the dropped blocks of a subvolume;
//! - [`lengths`]: no finding for extents that the kernel cut and shared, of every compression;
//! - [`damage`]: random damage: Buttress reports everything that `btrfs check` reports;
//! - [`comparison`]: damage of every kind, and the programs that find it.

mod clean;
mod comparison;
mod crashes;
mod damage;
mod dropped;
mod lengths;
mod live;
mod states;
mod theirs;

use anyhow::{Result, ensure};
use buttress::check::{Options, Report};
use buttress::unstable::check::check;
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{Device, DeviceOptions, Progress};
use buttress_oracle::tools::progs_missing;
use buttress_proof::harness::{Case, Outcome, run};
use std::path::PathBuf;

/// Opens the volume on these images for a check.
fn open(images: &[PathBuf]) -> Result<Filesystem> {
    let devices = images
        .iter()
        .map(|image| Ok(Device::open(image, &DeviceOptions::default())?))
        .collect::<Result<Vec<_>>>()?;
    Ok(OpenOptions::new(devices).for_inspection(true).open()?)
}

/// Checks the volume on these images, all data included.
fn report(images: &[PathBuf]) -> Result<Report> {
    let options = Options {
        data_checksums: true,
        ..Options::default()
    };
    Ok(check(&open(images)?, &options, &Progress::new())?)
}

fn text(report: &Report) -> String {
    let findings = report.findings.iter().map(|reported| {
        let finding = &reported.finding;
        format!("{}: {finding}\n", finding.code())
    });
    let notes = report.notes.iter().map(|note| format!("note: {note}\n"));
    findings.take(40).chain(notes).collect()
}

/// Asserts that the check has no findings.
fn expect_clean(images: &[PathBuf]) -> Result<Report> {
    let report = report(images)?;
    ensure!(report.is_clean(), "{}", text(&report));
    Ok(report)
}

/// Creates a case that needs the kernel, and this version of btrfs-progs.
fn case(name: String, progs: (u32, u32), body: impl Fn() -> Result<()> + Send + Sync + 'static) -> Case {
    Case::new(name, move || {
        if let Some(reason) = progs_missing(progs) {
            return Ok(Outcome::Skipped(reason));
        }
        body()?;
        Ok(Outcome::Passed)
    })
}

fn main() -> std::process::ExitCode {
    let cases = clean::cases().into_iter();
    let cases = cases.chain(states::cases()).chain(crashes::cases());
    let cases = cases.chain(dropped::cases()).chain(lengths::cases());
    run(cases.chain(damage::cases()).chain(comparison::cases()).collect())
}
