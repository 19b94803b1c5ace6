//! Tests of devices that missed commits of the kernel and of Buttress. After the devices return,
//! the kernel finds no error and mounts them alone.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use anyhow::{Context, Result, ensure};
use buttress_format::{FileOffset, SubvolumeId};
use buttress_fs::{Follow, Location, Progress};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{Manifest, expect_equal, of_directory};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, run};
use buttress_oracle::volumes::{Specification, make};
use buttress_scrub::{Resync, ResyncOptions};
use buttress_writer::operations::NewInode;
use std::path::PathBuf;
use std::process::Command;
use support::with_kernel::{is_whole, writable};

/// The kernel, and then Buttress, write to the volume without the away devices.
fn write_without(images: &[PathBuf]) -> Result<Manifest> {
    let mut random = Random::new(buttress_oracle::seeds::seed(
        "scrub::resync_kernel",
        "BUTTRESS_SOAK_SEED",
        5,
    ));
    for session in 0..2 {
        let mount = Mount::new(images, "degraded,noatime")?;
        std::fs::write(mount.path().join("kernel"), random.bytes(900_000, false))?;
        std::fs::write(
            mount.path().join(format!("kernel-{session}")),
            random.bytes(40_000, false),
        )?;
        mount.close()?;
    }
    let filesystem = writable(images)?;
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let file = filesystem.create(root, b"buttress", &NewInode::of_root(0o644))?;
    filesystem.write_at(file, FileOffset::MIN, &random.bytes(700_000, false))?;
    // On a degraded RAID6, the kernel itself sometimes loses data that it writes there.
    let reserved = filesystem.view().resolve(root, b"/reserved", Follow::All)?;
    for at in [0, 250_000] {
        filesystem.write_at(reserved, FileOffset::new(at), &random.bytes(200_000, false))?;
    }
    filesystem.close()?;
    let mount = Mount::new(images, "degraded,ro,noatime")?;
    let manifest = of_directory(mount.path())?;
    mount.close()?;
    Ok(manifest)
}

/// Lets the kernel preallocate a file while all devices are present.
fn reserve(images: &[PathBuf]) -> Result<()> {
    let mount = Mount::new(images, "noatime")?;
    run(Command::new("fallocate")
        .args(["-l", "500000"])
        .arg(mount.path().join("reserved")))?;
    mount.close()
}

fn returned(data: &'static str, metadata: &'static str, devices: u32, away: usize) -> Result<()> {
    let volume = make(&Specification {
        data,
        metadata,
        devices,
        device_mib: 512,
        ..Specification::default()
    })?;
    reserve(&volume.images)?;
    let manifest = write_without(&volume.images[away..])?;
    let filesystem = writable(&volume.images)?;
    let resynced = Resync::new(filesystem.clone(), ResyncOptions::default(), Progress::new()).run()?;
    ensure!(resynced.devices.len() == away, "{resynced:?}");
    filesystem.close()?;
    if data.starts_with("raid1") && data != "raid10" && usize::try_from(devices)? == away + 1 {
        for image in &volume.images {
            let alone = std::slice::from_ref(image);
            let mount = Mount::new(alone, "degraded,ro,noatime")?;
            expect_equal("alone", &manifest, &of_directory(mount.path())?)?;
            mount.close()?;
        }
    }
    is_whole(data, &manifest, &volume.images, |_| Ok(()))
}

#[test]
fn the_kernel_finds_nothing_where_devices_were_brought_up_to_date() {
    if skips(kernel_missing()) {
        return;
    }
    for (data, metadata, devices, away) in [
        ("raid1", "raid1", 2, 1),
        ("raid1c3", "raid1c3", 3, 2),
        ("raid1c4", "raid1c4", 4, 3),
        ("raid10", "raid10", 4, 1),
        ("raid5", "raid5", 3, 1),
        ("raid6", "raid6", 4, 2),
    ] {
        returned(data, metadata, devices, away)
            .with_context(|| format!("{data} on {devices}, {away} away"))
            .unwrap();
    }
}
