//! `device usage`, `subvolume find-new`, `inspect-internal subvolid-resolve`, `min-dev-size` and
//! `map-swapfile`, `subvolume sync`.

use crate::{expect_equal, ours_of, reference_of};
use anyhow::{Context, Result, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools;
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compares a command of both programs: with the mount point, and with a device.
fn same(
    mount: &Mount,
    devices: &[PathBuf],
    group: &str,
    words: &[&str],
    path: &str,
    after: &[&str],
) -> Result<Vec<String>> {
    let inside = path.trim_start_matches(":/");
    let on_mount = mount.path().join(inside);
    let on_mount = if inside.is_empty() {
        mount.path()
    } else {
        on_mount.as_path()
    };
    let expected = reference_of(group, words, on_mount, after)?;
    let all: Vec<&str> = [&[group][..], words, after].concat();
    expect_equal(&all, &expected, &ours_of(group, words, devices, path, after)?)?;
    Ok(expected)
}

/// Returns the ids of all subvolumes.
fn subvolumes(mount: &Mount) -> Result<Vec<String>> {
    let listed = reference_of("subvolume", &["list"], mount.path(), &[])?;
    let ids = listed.iter().filter_map(|line| line.split(' ').nth(1));
    Ok(ids.map(str::to_owned).collect())
}

/// Compares the small commands that work on every volume.
pub fn compare(mount: &Mount, devices: &[PathBuf]) -> Result<()> {
    for words in [&["usage"][..], &["usage", "-b"], &["usage", "-m"]] {
        same(mount, devices, "device", words, "", &[])?;
    }
    let all = same(mount, devices, "subvolume", &["find-new"], ":/", &["0"])?;
    ensure!(all.len() > 3, "find-new has nothing to compare: {all:?}");
    let newest = all.last().and_then(|line| line.rsplit(' ').next());
    let newest: u64 = newest.context("a marker")?.parse()?;
    for generation in [newest - 1, newest, newest + 1] {
        same(
            mount,
            devices,
            "subvolume",
            &["find-new"],
            ":/",
            &[&generation.to_string()],
        )?;
    }
    for id in subvolumes(mount)?.iter().map(String::as_str).chain(["5"]) {
        same(
            mount,
            devices,
            "inspect-internal",
            &["subvolid-resolve", id],
            "",
            &[],
        )?;
    }
    for number in 1..=devices.len() {
        let id = number.to_string();
        smaller(mount, devices, &["min-dev-size", "--id", &id])?;
    }
    Ok(())
}

/// Compares the smallest size of a device, of which btrfs-progs has an estimate: the same form, and
/// no larger number.
fn smaller(mount: &Mount, devices: &[PathBuf], words: &[&str]) -> Result<()> {
    let bytes = |lines: &[String]| -> Result<u64> {
        let line = lines.first().context("no line")?;
        let (bytes, rest) = line.split_once(' ').context("no number")?;
        ensure!(rest.starts_with("bytes (") && rest.ends_with("iB)"), "{line}");
        Ok(bytes.parse()?)
    };
    let theirs = bytes(&reference_of("inspect-internal", words, mount.path(), &[])?)?;
    let ours = bytes(&ours_of("inspect-internal", words, devices, "", &[])?)?;
    ensure!(
        ours <= theirs,
        "{words:?}: {ours} is more than the estimate of {theirs}"
    );
    Ok(())
}

fn new_volume() -> Result<(tempfile::TempDir, Vec<PathBuf>)> {
    format(&Specification {
        fill: Fill::Empty,
        data: "single",
        ..Specification::default()
    })
}

/// Returns the devices of a mount.
fn devices(mount: &Mount) -> Vec<PathBuf> {
    let devices = mount.devices().iter();
    devices.map(|device| device.path().to_owned()).collect()
}

fn fallocate(path: &Path, bytes: u64) -> Result<File> {
    let file = File::create(path)?;
    tools::run(Command::new("chattr").arg("+C").arg(path))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    Ok(file)
}

fn swap_file() -> Result<Outcome> {
    let (_folder, images) = new_volume()?;
    let mount = Mount::new(&images, "")?;
    let swap = fallocate(&mount.path().join("swap"), 8 << 20)?;
    swap.write_all_at(&[1; 65_536], 1 << 20)?;
    swap.sync_all()?;
    std::fs::write(mount.path().join("copied-on-write"), vec![1; 100_000])?;
    let holes = File::create(mount.path().join("holes"))?;
    tools::run(Command::new("chattr").arg("+C").arg(mount.path().join("holes")))?;
    holes.set_len(1 << 20)?;
    drop((swap, holes));
    mount.close()?;
    let mount = Mount::new(&images, "ro")?;
    let devices = devices(&mount);
    for words in [&["map-swapfile"][..], &["map-swapfile", "-r"]] {
        same(&mount, &devices, "inspect-internal", words, ":/swap", &[])?;
    }
    let ours = |path: &str| ours_of("inspect-internal", &["map-swapfile"], &devices, path, &[]);
    let refused = mount.path().join("copied-on-write");
    let theirs = reference_of("inspect-internal", &["map-swapfile"], &refused, &[]);
    ensure!(
        theirs.is_err() && ours(":/copied-on-write").is_err(),
        "{theirs:?}"
    );
    // For a file without an extent, btrfs-progs prints a nonexistent address.
    ensure!(ours(":/holes").is_err(), "a file of holes is no swap file");
    mount.close()?;
    Ok(Outcome::Passed)
}

/// Creates holes between device extents, one of them large enough for the last extent.
fn smallest_sizes() -> Result<Outcome> {
    let (_folder, images) = format(&Specification {
        fill: Fill::Empty,
        data: "single",
        metadata: "single",
        device_mib: 2048,
        ..Specification::default()
    })?;
    let mount = Mount::new(&images, "")?;
    let fill = |name: &str| -> Result<()> {
        drop(fallocate(&mount.path().join(name), 500 << 20)?);
        Ok(rustix::fs::syncfs(File::open(mount.path())?)?)
    };
    fill("first")?;
    fill("second")?;
    std::fs::remove_file(mount.path().join("first"))?;
    let mut balance = Command::new(tools::newest("btrfs"));
    tools::run(balance.args(["balance", "start", "-dusage=0"]).arg(mount.path()))?;
    mount.close()?;
    let mount = Mount::new(&images, "ro")?;
    smaller(&mount, &devices(&mount), &["min-dev-size"])?;
    mount.close()?;
    Ok(Outcome::Passed)
}

fn deleted_subvolume() -> Result<Outcome> {
    let (_folder, images) = new_volume()?;
    let mount = Mount::new(&images, "")?;
    let theirs = reference_of("subvolume", &["sync"], mount.path(), &["999"])?;
    let nothing = reference_of("subvolume", &["sync"], mount.path(), &[])?;
    mount.close()?;
    let words = ["subvolume", "sync"];
    expect_equal(
        &words,
        &theirs,
        &ours_of("subvolume", &["sync"], &images, "", &["999"])?,
    )?;
    expect_equal(
        &words,
        &nothing,
        &ours_of("subvolume", &["sync"], &images, "", &[])?,
    )?;
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn() -> Result<Outcome>| {
        Case::new(name, move || match tools::reference_missing() {
            Some(reason) => Ok(Outcome::Skipped(reason)),
            None => body(),
        })
    };
    vec![
        case("small::swap_file", swap_file),
        case("small::smallest_sizes", smallest_sizes),
        case("small::deleted_subvolume", deleted_subvolume),
    ]
}
