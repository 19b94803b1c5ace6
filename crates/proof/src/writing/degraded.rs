//! Volumes that lost devices, or that have a stale device; compared with the kernel and
//! btrfs-progs.

use super::comparing::{kernels_view_with, manifest};
use super::volume::{devices, write_images};
use anyhow::{Context, Result, ensure};
use buttress::check::Grade;
use buttress::unstable::check;
use buttress::unstable::check::check;
use buttress::unstable::format::block_group::BlockGroupFlags;
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{Backend, DeviceId, DeviceStatistics, Profile, Progress, TreeId};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::manifest::expect_equal;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::scratch;
use std::process::Command;
use std::sync::Arc;

/// Opens the rest of a volume for reading, and checks it: only redundancy may be lost.
///
/// # Errors
/// Fails for any other finding of the check.
pub fn open_degraded(backends: &[Arc<dyn Backend>]) -> Result<Filesystem> {
    let filesystem = OpenOptions::new(devices(backends)).degraded(true).open()?;
    let options = check::Options {
        data_checksums: true,
        ..check::Options::default()
    };
    let report = check(&filesystem, &options, &Progress::new())?;
    let worst = report.worst();
    ensure!(matches!(worst, None | Some(Grade::Redundancy)), "{report:#?}");
    Ok(filesystem)
}

/// Returns the volume's statistics of a device.
///
/// # Errors
/// Fails if the statistics item is unreadable.
pub fn statistics_of(filesystem: &Filesystem, device: DeviceId) -> Result<DeviceStatistics> {
    let key = DeviceStatistics::key(device);
    let item = filesystem.tree(TreeId::DEVICE)?.get(&key)?;
    let item = item.with_context(|| format!("device {device} has no statistics"))?;
    Ok(DeviceStatistics::parse(&key, item.data())?)
}

/// Returns whether tree blocks are on a RAID6 with a missing or stale device. btrfs-progs, up to
/// 6.14 at least, cannot read some of these blocks and does not open the volume. This restriction
/// of btrfs-progs also applies to volumes of the kernel.
fn is_beyond_progs(filesystem: &Filesystem) -> bool {
    let map = filesystem.volume().chunk_map();
    map.chunks().iter().any(|chunk| {
        chunk.layout().profile() == Profile::Raid6
            && chunk
                .flags()
                .intersects(BlockGroupFlags::SYSTEM | BlockGroupFlags::METADATA)
            && chunk.devices().iter().any(|slot| !slot.is_written())
    })
}

/// Checks these devices of a volume with `btrfs check`, and mounts them read-only with the kernel,
/// whose view must equal Buttress's. Returns the output of `btrfs device stats` on the mount.
///
/// # Errors
/// Fails with the findings of the check, or with the differences.
pub fn expect_kernel_reads(backends: &[Arc<dyn Backend>]) -> Result<String> {
    let folder = scratch()?;
    let images = write_images(backends, folder.path())?;
    let filesystem = OpenOptions::new(devices(backends)).degraded(true).open()?;
    if !is_beyond_progs(&filesystem) {
        btrfs_check(&images).context("btrfs check")?;
    }
    let ours = manifest(&filesystem)?;
    let mut statistics = String::new();
    let shown = kernels_view_with(&images, "ro,degraded,noatime,subvolid=5", &mut |mount| {
        let output = run(Command::new(newest("btrfs")).args(["device", "stats"]).arg(mount))?;
        statistics = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(())
    })?;
    expect_equal("the kernel's view", &shown, &ours)?;
    Ok(statistics)
}
