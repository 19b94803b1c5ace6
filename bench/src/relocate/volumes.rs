//! The volumes of the relocation jobs, made once by the kernel and kept.

use crate::Scale;
use crate::images;
use anyhow::Result;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

/// The size of each device of a volume of several devices, in GiB.
const DEVICE_GIB: u64 = 4;

/// The number of files that change between two snapshots.
const CHANGES: u64 = 50;

/// The part of the scale's extents on the volume with quotas. The kernel counts each extent of each
/// snapshot, which takes minutes for the whole number.
const QUOTA_PART: u64 = 10;

/// Returns the volume of inline files with 100 snapshots at full scale. A few files change before
/// each snapshot.
pub(super) fn many_snapshots(scale: Scale) -> Result<PathBuf> {
    let fewer = images::inline_files(scale)?;
    let path = images::folder()?.join(format!("inline-snapshots-{}.img", scale.name));
    if path.exists() {
        return Ok(path);
    }
    eprintln!("making {}", path.display());
    let unfinished = path.with_extension("unfinished");
    run(Command::new("cp")
        .arg("--sparse=always")
        .args([&fewer, &unfinished]))?;
    let mount = Mount::new(std::slice::from_ref(&unfinished), "noatime,max_inline=2048")?;
    let top = mount.path();
    for number in 2..scale.snapshots / 2 {
        for change in 0..CHANGES {
            let file = (number * CHANGES + change) * 97 % scale.inline_files + 1;
            let file = File::options()
                .write(true)
                .open(top.join(format!("file_{file}")))?;
            file.write_all_at(&[number as u8; 20], 0)?;
        }
        run(Command::new(newest("btrfs"))
            .args(["-q", "subvolume", "snapshot", "-r"])
            .arg(top)
            .arg(top.join(format!("more{number}"))))?;
    }
    mount.close()?;
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// Returns a source tree on a volume of several devices: single data, and DUP metadata.
pub(super) fn pool(scale: Scale, devices: usize) -> Result<Vec<PathBuf>> {
    let folder = images::folder()?;
    let name =
        |number: usize, end: &str| folder.join(format!("relocate-{devices}-{}-{number}.{end}", scale.name));
    let images: Vec<PathBuf> = (0..devices).map(|number| name(number, "img")).collect();
    if images.iter().all(|image| image.exists()) {
        return Ok(images);
    }
    eprintln!("making a volume of {devices} devices in {}", folder.display());
    let unfinished: Vec<PathBuf> = (0..devices).map(|number| name(number, "unfinished")).collect();
    for image in &unfinished {
        File::create(image)?.set_len(DEVICE_GIB << 30)?;
    }
    run(Command::new(newest("mkfs.btrfs"))
        .args(["-q", "-f", "-d", "single", "-m", "dup"])
        .args(&unfinished))?;
    let mount = Mount::new(&unfinished, "noatime")?;
    images::fill_source_tree(scale, &mount.path().join("source"))?;
    mount.close()?;
    for (unfinished, image) in unfinished.iter().zip(&images) {
        std::fs::rename(unfinished, image)?;
    }
    Ok(images)
}

/// Returns a volume of extents that many snapshots share, with quotas that the kernel has counted.
pub(super) fn with_quotas(scale: Scale) -> Result<PathBuf> {
    let path = images::folder()?.join(format!("quotas-{}.img", scale.name));
    if path.exists() {
        return Ok(path);
    }
    let unfinished = path.with_extension("unfinished");
    images::make_snapshots(
        Scale {
            extents: scale.extents / QUOTA_PART,
            ..scale
        },
        &unfinished,
    )?;
    let mount = Mount::new(std::slice::from_ref(&unfinished), "noatime")?;
    for words in [&["quota", "enable"][..], &["quota", "rescan", "-w"]] {
        run(Command::new(newest("btrfs"))
            .arg("-q")
            .args(words)
            .arg(mount.path()))?;
    }
    mount.close()?;
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}
