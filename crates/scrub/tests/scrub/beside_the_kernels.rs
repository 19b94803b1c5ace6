//! Compares the kernel's scrub with this crate's on the same damage: the errors found, and the
//! final state. Prints the table.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; the table is printed"
)]

use crate::support;

use anyhow::{Context, Result, ensure};
use buttress_device::Device;
use buttress_format::node::RawHeader;
use buttress_format::{ChecksumType, Physical, Superblock};
use buttress_fs::Progress;
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::{Specification, Volume, make};
use buttress_scrub::{Counters, Options, Scrub};
use buttress_volume::MappingContent;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::images::{open, summed};
use support::{Use, uses_of};
use zerocopy::FromBytes;

/// A function that damages a volume.
type Damage = fn(&[Device], &[Use], &mut Random) -> Result<()>;

fn data(used: &&Use) -> bool {
    used.is_data
        && used.device == 0
        && used.content == MappingContent::Data { copy: 1 }
        && used.length >= 16384
}

fn tree(used: &&Use) -> bool {
    !used.is_data && used.device == 0 && used.content == MappingContent::Data { copy: 1 }
}

fn rot_data(devices: &[Device], uses: &[Use], random: &mut Random) -> Result<()> {
    let used = uses.iter().find(data).context("no data")?;
    Ok(devices[0].write(used.physical + 4096, &random.bytes(4096, false))?)
}

fn rot_tree(devices: &[Device], uses: &[Use], random: &mut Random) -> Result<()> {
    let used = uses.iter().rfind(tree).context("no tree block")?;
    Ok(devices[0].write(used.physical + 4096, &random.bytes(4096, false))?)
}

/// Changes a block's header, and updates its checksum.
fn rewrite(device: &Device, used: &Use, change: impl FnOnce(&mut RawHeader)) -> Result<()> {
    let mut block = device.read(used.physical, used.length)?.to_vec();
    let (header, _) = RawHeader::mut_from_prefix(&mut block).map_err(|_| anyhow::anyhow!("short"))?;
    change(header);
    let sum = ChecksumType::Crc32c.compute(&block[32..]);
    block[..sum.as_bytes().len()].copy_from_slice(sum.as_bytes());
    Ok(device.write(used.physical, &block)?)
}

fn lose_write(devices: &[Device], uses: &[Use], _: &mut Random) -> Result<()> {
    let used = uses.iter().rfind(tree).context("no tree block")?;
    rewrite(&devices[0], used, |header| {
        header.generation.set(header.generation.get() - 1);
    })
}

fn misdirect_write(devices: &[Device], uses: &[Use], _: &mut Random) -> Result<()> {
    let mut trees = uses.iter().filter(tree);
    let (one, other) = (
        trees.next().context("no tree block")?,
        trees.next().context("one tree block")?,
    );
    let bytes = devices[0].read(one.physical, one.length)?;
    Ok(devices[0].write(other.physical, &bytes)?)
}

const COPY: u64 = 64 << 20;

fn rot_superblock(devices: &[Device], _: &[Use], random: &mut Random) -> Result<()> {
    Ok(devices[0].write(COPY + 512, &random.bytes(512, false))?)
}

fn age_superblock(devices: &[Device], _: &[Use], _: &mut Random) -> Result<()> {
    let bytes = devices[0].read(COPY, 4096)?;
    let mut superblock = Superblock::check(&bytes, Physical::new(COPY))?;
    superblock.generation = buttress_format::Generation::new(superblock.generation.get() - 1);
    let item = superblock.device_item;
    Ok(devices[0].write(COPY, &superblock.encode_for(&item, Physical::new(COPY))?)?)
}

fn rot_parity(devices: &[Device], uses: &[Use], random: &mut Random) -> Result<()> {
    let is_parity = |used: &&Use| used.content == MappingContent::P && used.is_data;
    let used = uses.iter().find(is_parity).context("no parity")?;
    Ok(devices[used.device].write(used.physical, &random.bytes(4096, false))?)
}

/// Damages data and parity of one row at the same offset.
fn rot_two(devices: &[Device], uses: &[Use], random: &mut Random) -> Result<()> {
    let used = uses.iter().find(data).context("no data")?;
    let its = |other: &&Use| other.content == MappingContent::P && other.logical == used.logical;
    let parity = uses.iter().find(its).context("no parity")?;
    devices[used.device].write(used.physical, &random.bytes(4096, false))?;
    Ok(devices[parity.device].write(parity.physical, &random.bytes(4096, false))?)
}

/// The number of adjacent blocks that a burst damages.
const BURST: u64 = 100;

fn rot_burst(devices: &[Device], uses: &[Use], random: &mut Random) -> Result<()> {
    let first = uses.iter().find(data).context("no data")?.physical;
    let end = first + BURST * 4096;
    for used in uses.iter().filter(|used| used.device == 0) {
        let range = first.max(used.physical)..end.min(used.physical + used.length as u64);
        if !range.is_empty() {
            let noise = random.bytes((range.end - range.start) as usize, false);
            devices[0].write(range.start, &noise)?;
        }
    }
    Ok(())
}

/// Damages everything in use on a device, except its superblocks.
fn rot_device(devices: &[Device], uses: &[Use], random: &mut Random) -> Result<()> {
    for used in uses.iter().filter(|used| used.device == 1) {
        devices[1].write(used.physical, &random.bytes(used.length, false))?;
    }
    Ok(())
}

/// Damages all copies of a sector, which cannot be repaired.
fn rot_all_copies(devices: &[Device], uses: &[Use], random: &mut Random) -> Result<()> {
    let first = uses.iter().find(data).context("no data")?;
    for used in uses.iter().filter(|used| used.logical == first.logical) {
        devices[used.device].write(used.physical + 4096, &random.bytes(4096, false))?;
    }
    Ok(())
}

fn counters(images: &[PathBuf], read_only: bool) -> Result<Counters> {
    let (_devices, filesystem) = open(images)?;
    let options = Options {
        read_only,
        ..Options::default()
    };
    let scrub = Scrub::new(&filesystem, options, Progress::new())?;
    scrub.run()?;
    Ok(scrub.report().totals())
}

/// Returns the kernel's counts of errors, of corrected errors, and of uncorrectable errors.
fn kernels(images: &[PathBuf]) -> Result<[u64; 3]> {
    let mount = Mount::new(images, "noatime")?;
    // The command exits with 3 if an error is uncorrectable.
    let told = Command::new(newest("btrfs"))
        .args(["scrub", "start", "-B", "-R"])
        .arg(mount.path())
        .output()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    mount.close()?;
    let count = |name: &str| -> u64 {
        let line = told.lines().find_map(|line| line.trim().strip_prefix(name));
        line.and_then(|rest| rest.trim_start_matches(':').trim().parse().ok())
            .unwrap_or(0)
    };
    let found = ["read_errors", "csum_errors", "verify_errors", "super_errors"];
    Ok([
        found.into_iter().map(count).sum(),
        count("corrected_errors"),
        count("uncorrectable_errors"),
    ])
}

fn copies(images: &[PathBuf], ending: &str) -> Result<Vec<PathBuf>> {
    let copy = |image: &PathBuf| {
        let copy = Path::new(image).with_extension(ending);
        run(Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .arg(image)
            .arg(&copy))?;
        Ok(copy)
    };
    images.iter().map(copy).collect()
}

fn row(volume: &Volume, what: &str, damage: Damage) -> Result<()> {
    let profile = volume.images.len();
    let theirs = copies(&volume.images, "kernel")?;
    let ours = copies(&volume.images, "own")?;
    for images in [&theirs, &ours] {
        let (devices, filesystem) = open(images)?;
        // Errors of data without checksums cannot be detected.
        let summed = summed(&filesystem)?;
        let mut uses = uses_of(&filesystem)?;
        let is_known = |used: &Use| {
            let (start, end) = (used.logical.get(), used.logical.get() + used.length as u64);
            !used.is_data
                || summed
                    .iter()
                    .any(|range| range.start <= start && end <= range.end)
        };
        uses.retain(is_known);
        damage(&devices, &uses, &mut support::random(17))?;
    }
    let [found, corrected, beyond] = kernels(&theirs)?;
    let left_by_kernel = counters(&theirs, true)?.errors();
    let own = counters(&ours, false)?;
    let left = counters(&ours, true)?.errors();
    eprintln!(
        "| {what} | {found} | {corrected} | {beyond} | {left_by_kernel} | {} | {} | {} | {left} |",
        own.errors(),
        own.corrected_errors,
        own.uncorrectable_errors,
    );
    ensure!(own.errors() > 0, "{what} on {profile} devices: not found");
    // Each copy keeps exactly the errors that cannot be repaired.
    ensure!(
        left == own.uncorrectable_errors,
        "{what}: {left} errors are left, {} cannot be mended",
        own.uncorrectable_errors
    );
    let is_hopeless = what.contains("all copies");
    ensure!((left > 0) == is_hopeless, "{what}: {left} errors are left");
    for image in theirs.iter().chain(&ours) {
        std::fs::remove_file(image)?;
    }
    Ok(())
}

#[test]
fn the_same_damage_for_the_kernel_and_for_us() {
    if skips(kernel_missing()) {
        return;
    }
    let volume = |data: &'static str, devices| {
        make(&Specification {
            data,
            metadata: data,
            devices,
            device_mib: 512,
            ..Specification::default()
        })
        .unwrap()
    };
    eprintln!(
        "| damage | kernel counts | corrects | cannot | leaves | buttress counts | corrects | cannot | leaves |"
    );
    eprintln!("|---|---|---|---|---|---|---|---|---|");
    let mirror = volume("raid1", 2);
    let rows: [(&str, Damage); 9] = [
        ("RAID1: a damaged sector of data", rot_data),
        ("RAID1: 100 adjacent damaged sectors", rot_burst),
        (
            "RAID1: noise on a whole device, except its superblocks",
            rot_device,
        ),
        ("RAID1: all copies of a sector damaged", rot_all_copies),
        ("RAID1: a damaged tree block", rot_tree),
        ("RAID1: a tree block whose write was lost", lose_write),
        ("RAID1: a tree block overwritten with another", misdirect_write),
        ("the superblock at 64 MiB damaged", rot_superblock),
        ("the superblock at 64 MiB from the commit before", age_superblock),
    ];
    for (what, damage) in rows {
        row(&mirror, what, damage).with_context(|| what).unwrap();
    }
    for (name, devices) in [("raid5", 3), ("raid6", 4)] {
        let volume = volume(name, devices);
        let rows: [(&str, Damage); 2] = [("data", rot_data), ("parity", rot_parity)];
        for (what, damage) in rows {
            let what = format!("{}: damaged {what}", name.to_uppercase());
            row(&volume, &what, damage).with_context(|| what.clone()).unwrap();
        }
        if name == "raid6" {
            row(&volume, "RAID6: damaged data and P of a row", rot_two).unwrap();
        }
    }
}
