//! `btrfs check` on a volume of one or several images.
//!
//! `btrfs check` finds a volume's other devices through libblkid, among all block devices of the
//! machine. The images are therefore attached as loop devices. Leftovers of earlier attachments
//! (partitions, libblkid's notes) are removed.

use crate::loop_device::LoopDevice;
use crate::tools::{newest, run};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The number of retries of a check that did not find all devices, and the pause before each retry.
const CHECK_RETRIES: u32 = 100;
const CHECK_PAUSE: Duration = Duration::from_millis(200);

/// Runs `btrfs check` on the volume on these images, all data included, and returns its output.
///
/// # Errors
/// The check's findings, or the reason why it cannot run.
pub fn btrfs_check(images: &[PathBuf]) -> Result<String> {
    // btrfs-progs finds the volume's other devices among block devices only.
    let devices = images
        .iter()
        .map(|image| LoopDevice::attach(image))
        .collect::<Result<Vec<_>>>()?;
    let first = devices.first().context("a volume has a device")?;
    let check = |options: &[&str]| {
        run(Command::new(newest("btrfs"))
            .arg("check")
            .args(options)
            .arg(first.path()))
        .map(|output| {
            let [printed, complained] =
                [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            format!("{printed}{complained}")
        })
    };
    // The check searches all block devices, and misses some while other programs add and remove
    // devices.
    let missed = |error: &anyhow::Error| format!("{error:#}").contains(" is missing");
    let data = ["--check-data-csum"];
    let mut checked = check(&data);
    for _ in 0..CHECK_RETRIES {
        if devices.len() == 1 || !checked.as_ref().is_err_and(missed) {
            break;
        }
        std::thread::sleep(CHECK_PAUSE);
        checked = check(&data);
    }
    // If snapshots share a leaf with an orphan, the usual mode counts an inode error but prints
    // none. The other mode of `btrfs check` has no such records, so its result decides.
    match checked {
        Err(error) if is_nameless(&error) => match check(&["--mode=lowmem"]) {
            Err(other) if knows_no_simple_quotas(&other) => Ok(format!("{error:#}")),
            checked => checked,
        },
        checked => checked,
    }
}

/// Returns whether the other mode reports an unknown reference for every extent, because it does
/// not know the owner references of simple quotas. Such a result of the other mode decides nothing.
fn knows_no_simple_quotas(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    let of_maker = |line: &str| {
        line.contains("has unknown ref type: 172")
            || line.ends_with("backref lost")
            || line.ends_with("errors found in extent allocation tree or chunk allocation")
    };
    let mut errors = text.lines().filter(|line| line.starts_with("ERROR: ")).peekable();
    errors.peek().is_some() && errors.all(of_maker)
}

/// Returns whether a check reports errors in file trees without naming an error.
fn is_nameless(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    let names = |line: &str| line.starts_with("root ") || line.starts_with('\t');
    text.contains("errors found in fs roots")
        && text.matches("ERROR").count() == text.matches("ERROR: cannot scan ").count() + 1
        && !text.lines().any(|line| names(line.trim_start_matches(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::needs::missing;
    use crate::skip::skips;
    use crate::tools::kernel_missing;
    use std::path::Path;

    const MIB: u64 = 1 << 20;
    const DEVICES: usize = 3;

    /// Makes images of equal size in `folder`.
    fn images(folder: &Path, name: &str) -> Vec<PathBuf> {
        let path = |number| folder.join(format!("{name}-{number}"));
        let images: Vec<_> = (0..DEVICES).map(path).collect();
        for image in &images {
            std::fs::File::create(image).unwrap().set_len(128 * MIB).unwrap();
        }
        images
    }

    /// Returns a partition table with one partition from 1 MiB to 2 MiB, as at the beginning of old
    /// disks.
    fn partition_table() -> Vec<u8> {
        let mut sector = vec![0; 512];
        sector[446 + 4] = 0x83;
        sector[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
        sector[446 + 12..446 + 16].copy_from_slice(&2048_u32.to_le_bytes());
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    }

    #[test]
    fn earlier_images_on_loop_devices_hide_no_device() {
        if skips(kernel_missing()) || skips(missing("partx")) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (before, volume) = (images(folder.path(), "before"), images(folder.path(), "volume"));
        run(Command::new(newest("mkfs.btrfs"))
            .args(["-q", "-d", "raid0", "-m", "raid0"])
            .args(&volume))
        .unwrap();
        for image in &before {
            std::fs::write(image, partition_table()).unwrap();
            std::fs::File::options()
                .write(true)
                .open(image)
                .unwrap()
                .set_len(8 * MIB)
                .unwrap();
        }
        // The lowest free loop devices get the partitioned images first, and then the volume.
        // `--partscan` first removes earlier partitions.
        for options in [["--partscan"].as_slice(), &[]] {
            let attach = |image: &PathBuf| LoopDevice::attach_with(image, options).unwrap();
            for device in before.iter().map(attach).collect::<Vec<_>>() {
                // A plain detach keeps a partition that was added by hand.
                let _ = run(Command::new("partx").arg("--delete").arg(device.path()));
                run(Command::new("partx").arg("--add").arg(device.path())).unwrap();
            }
        }
        let printed = btrfs_check(&volume).unwrap();
        assert!(printed.contains("no error found"), "{printed}");
    }
}
