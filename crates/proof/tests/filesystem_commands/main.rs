//! `buttress filesystem show|df|usage|du`, and small commands of other groups (`small`), compared
//! with btrfs-progs on a mounted volume.
//!
//! The volume is freshly mounted, read-only, and both programs use the same loop devices: the
//! reference through the mount point, Buttress directly. Buttress computes values that only a mount
//! knows (the global reserve, free space as in statfs) from the on-disk state.

mod small;

use anyhow::{Context, Result, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools;
use buttress_oracle::volumes::{Specification, Volume, make};
use buttress_proof::harness::{Case, Outcome, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the standard output of a program as lines.
fn lines(command: &mut Command) -> Result<Vec<String>> {
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed and said:\n{errors}");
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect())
}

/// Number of retries of btrfs-progs: to find a mount it reads all mounts, and fails if another test
/// unmounts one at that moment.
const REFERENCE_RETRIES: u32 = 50;

fn reference(words: &[&str], path: &Path) -> Result<Vec<String>> {
    reference_of("filesystem", words, path, &[])
}

/// Returns the output of a btrfs-progs command of a group for a path, with further arguments.
fn reference_of(group: &str, words: &[&str], path: &Path, after: &[&str]) -> Result<Vec<String>> {
    let ask = || {
        lines(
            Command::new(tools::newest("btrfs"))
                .arg(group)
                .args(words)
                .arg(path)
                .args(after),
        )
    };
    let another_went = |error: &anyhow::Error| error.to_string().contains("not a btrfs filesystem");
    let mut answer = ask();
    for _ in 0..REFERENCE_RETRIES {
        if !answer.as_ref().is_err_and(another_went) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        answer = ask();
    }
    answer
}

fn ours(words: &[&str], devices: &[PathBuf], path: &str) -> Result<Vec<String>> {
    ours_of("filesystem", words, devices, path, &[])
}

fn ours_of(
    group: &str,
    words: &[&str],
    devices: &[PathBuf],
    path: &str,
    after: &[&str],
) -> Result<Vec<String>> {
    let (first, others) = devices.split_first().context("a device")?;
    let mut command = Command::new(tools::buttress()?);
    command.arg(group).args(words);
    for device in others {
        command.arg("--device").arg(device);
    }
    let mut target = first.clone().into_os_string();
    target.push(path);
    lines(command.arg(target).args(after))
}

fn expect_equal(words: &[&str], expected: &[String], found: &[String]) -> Result<()> {
    let only = |these: &[String], others: &[String]| -> Vec<String> {
        let lines = these.iter().filter(|line| !others.contains(line));
        lines.take(12).map(|line| format!("{line:?}")).collect()
    };
    ensure!(
        expected == found,
        "{words:?} differs (or only in the order of its lines)\nbtrfs-progs alone:\n{}\nbuttress alone:\n{}",
        only(expected, found).join("\n"),
        only(found, expected).join("\n")
    );
    Ok(())
}

fn compare_spaces(mount: &Mount, devices: &[PathBuf]) -> Result<()> {
    for words in [
        &["df"][..],
        &["df", "--raw"],
        &["df", "--si"],
        &["df", "-m"],
        &["usage"],
        &["usage", "-b"],
        &["usage", "-T"],
        &["usage", "-T", "-b"],
        &["usage", "-H"],
    ] {
        let expected = reference(words, mount.path())?;
        expect_equal(words, &expected, &ours(words, devices, "")?)?;
    }
    for words in [&["show"][..], &["show", "--raw"], &["show", "--mbytes"]] {
        let expected = reference(words, mount.path())?;
        expect_equal(words, &expected, &ours(words, devices, "")?)?;
    }
    Ok(())
}

/// Compares totals of directories, and single files, which both programs list in directory order.
fn compare_du(mount: &Mount, devices: &[PathBuf]) -> Result<()> {
    let mount_name = mount.path().to_str().context("a mount point")?;
    let device_name = devices
        .first()
        .and_then(|device| device.to_str())
        .context("a device")?;
    for words in [&["du", "--raw"][..], &["du", "--raw", "-s"], &["du", "-s"]] {
        let sorted = |lines: Vec<String>, prefix: &str| -> Vec<String> {
            let mut lines: Vec<String> = lines
                .into_iter()
                .map(|line| {
                    line.replace(&format!("{prefix}:/"), "TOP/")
                        .replace(prefix, "TOP")
                })
                .map(|line| line.trim_end_matches('/').to_owned())
                .collect();
            lines.sort();
            lines
        };
        let expected = sorted(reference(words, mount.path())?, mount_name);
        let found = sorted(ours(words, devices, ":/")?, device_name);
        expect_equal(words, &expected, &found)?;
    }
    Ok(())
}

fn compared(volume: &Volume, du: bool) -> Result<Outcome> {
    let mount = Mount::new(&volume.images, "ro")?;
    let devices: Vec<PathBuf> = mount
        .devices()
        .iter()
        .map(|device| device.path().to_owned())
        .collect();
    compare_spaces(&mount, &devices)?;
    small::compare(&mount, &devices)?;
    if du {
        compare_du(&mount, &devices)?;
    }
    mount.close()?;
    Ok(Outcome::Passed)
}

fn case(name: impl Into<String>, du: bool, specification: Specification) -> Case {
    Case::new(name, move || match tools::reference_missing() {
        Some(reason) => Ok(Outcome::Skipped(reason)),
        None => compared(&make(&specification)?, du),
    })
}

const PROFILES: [(&str, &str, u32); 11] = [
    ("single", "single", 1),
    ("single", "dup", 1),
    ("single", "raid1", 3),
    ("raid0", "raid0", 3),
    ("raid1", "raid1", 3),
    ("raid1", "raid1c3", 4),
    ("raid1c4", "raid1c4", 4),
    ("raid10", "raid10", 4),
    ("raid5", "raid5", 3),
    ("raid6", "raid6", 4),
    ("raid5", "raid1", 3),
];

fn main() -> std::process::ExitCode {
    let mut cases = Vec::new();
    for (data, metadata, devices) in PROFILES {
        cases.push(case(
            format!("profile_{data}_metadata_{metadata}_on_{devices}"),
            devices == 1,
            Specification {
                data,
                metadata,
                devices,
                device_mib: 768,
                ..Specification::default()
            },
        ));
    }
    cases.push(case(
        "mixed_block_groups",
        true,
        Specification {
            mixed: true,
            ..Specification::default()
        },
    ));
    cases.push(case(
        "block_group_tree",
        false,
        Specification {
            features: &["block-group-tree"],
            ..Specification::default()
        },
    ));
    cases.push(case(
        "compressed",
        true,
        Specification {
            mount: "compress-force=zstd",
            ..Specification::default()
        },
    ));
    cases.extend(small::cases());
    run(cases)
}
