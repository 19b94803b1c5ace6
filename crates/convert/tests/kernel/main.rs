//! Conversions beside the kernel.
//!
//! The mounts of the old file system and of the new volume show the same tree, the saved image holds
//! the old bytes, and `btrfs check` finds nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod cuts;
mod fill;
mod mount;
mod refusals;

use anyhow::{Context, Result, ensure};
use buttress_convert::{Error, Options, RollBack, Without, prepare};
use buttress_device::{Device, OpenOptions};
use buttress_format::{Timestamp, Uuid};
use buttress_fs::Progress;
use buttress_mkfs::{Identity, Options as MakeOptions};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{Manifest, expect_equal, of_directory};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, run};
use mount::{Image, Mounted};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

/// Returns options with uuids of this process and conversion, because the kernel mounts an fsid once.
fn options(conversion: u8) -> Options {
    let first = u128::from(std::process::id()) << 96 | u128::from(conversion) << 8;
    let uuid = |number: u128| Uuid::from_u128(0x4000_8000_0000_0000_0000 | first | number);
    Options {
        make: MakeOptions::default(),
        identity: Identity {
            fsid: uuid(1),
            chunk_tree: uuid(2),
            top_level: uuid(3),
            devices: vec![uuid(4)],
            time: Timestamp {
                seconds: 1_700_000_000,
                nanoseconds: 0,
            },
        },
        saved: uuid(5),
        folder: None,
        without: Without::default(),
    }
}

fn device(image: &Image) -> Result<Device> {
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    Ok(Device::open(&image.path, &options)?)
}

/// Rolls a conversion back.
fn back(device: &Device) -> buttress_convert::Result<()> {
    RollBack::find(device)?.verify(&Progress::new())?.run()
}

/// Returns a manifest without what the two file systems count differently.
fn comparable(mut manifest: Manifest) -> Manifest {
    for entry in manifest.values_mut() {
        entry.extra = None;
        // Directories of btrfs have a size of their own.
        if entry.mode & 0o170_000 == 0o040_000 {
            entry.size = 0;
        }
        // Data ranges: btrfs and ext4 divide content differently, so whole contents are compared.
        entry.data.clear();
    }
    manifest
}

fn contents(top: &std::path::Path, manifest: &Manifest) -> Result<Vec<(Vec<u8>, u32)>> {
    use std::os::unix::ffi::OsStrExt;
    let files = manifest
        .iter()
        .filter(|(_, entry)| entry.mode & 0o170_000 == 0o100_000 && entry.size < 1 << 28);
    let sum = |(path, _): (&Vec<u8>, _)| {
        let bytes = std::fs::read(top.join(std::ffi::OsStr::from_bytes(path)))?;
        Ok((path.clone(), crc32c_of(&bytes)))
    };
    files.map(sum).collect()
}

fn crc32c_of(bytes: &[u8]) -> u32 {
    let sum = buttress_format::ChecksumType::Crc32c.compute(bytes);
    u32::from_le_bytes(sum.as_bytes()[..4].try_into().unwrap())
}

/// Converts an image that the kernel filled, and compares both file systems.
fn convert(conversion: u8, words: &[&str], mib: u64) -> Result<()> {
    if skips(kernel_missing()) {
        return Ok(());
    }
    let image = Image::new(mib, words)?;
    let mounted = Mounted::new(&image.path, "rw")?;
    fill::fill(mounted.path())?;
    mounted.close()?;
    let before = std::fs::read(&image.path)?;
    let holes = holes(&device(&image)?)?;
    let mounted = Mounted::new(&image.path, "ro")?;
    let old = of_directory(mounted.path())?;
    let old_contents = contents(mounted.path(), &old)?;
    mounted.close()?;
    let prepared = prepare(&device(&image)?, &options(conversion), &Progress::new())?;
    // Before the publication, the old file system is whole.
    let mounted = Mounted::new(&image.path, "ro")?;
    expect_equal("the old file system", &old, &of_directory(mounted.path())?)?;
    mounted.close()?;
    prepared.publish()?;
    println!("{}", btrfs_check(std::slice::from_ref(&image.path))?);
    let volume = Mount::new(std::slice::from_ref(&image.path), "ro")?;
    let mut new = of_directory(volume.path())?;
    let saved: Vec<_> = new
        .keys()
        .filter(|path| path.starts_with(b"ext2_saved"))
        .cloned()
        .collect();
    ensure!(
        saved
            == [
                b"ext2_saved".to_vec(),
                b"ext2_saved/image".to_vec(),
                b"ext2_saved/zero-blocks".to_vec()
            ],
        "{saved:?}"
    );
    new.retain(|path, _| !path.starts_with(b"ext2_saved"));
    ensure!(old_contents == contents(volume.path(), &new)?, "contents differ");
    expect_equal("the new volume", &comparable(old.clone()), &comparable(new))?;
    compare_image(&volume, &before, &image)?;
    volume.close()?;
    let volume = Mount::new(std::slice::from_ref(&image.path), "rw")?;
    std::fs::write(volume.path().join("new"), vec![1; 3 << 20])?;
    std::fs::remove_file(volume.path().join("content-20000000"))?;
    volume.close()?;
    back(&device(&image)?)?;
    let after = std::fs::read(&image.path)?;
    for range in used_bytes(&before)? {
        ensure!(
            before[range.clone()] == after[range.clone()],
            "bytes {range:?} differ after the roll back"
        );
    }
    // The list of holes has only the longest ones.
    for range in holes.into_iter().take(20) {
        let is_zero = after[range.clone()].iter().all(|byte| *byte == 0);
        ensure!(is_zero, "the hole {range:?} has other bytes after the roll back");
    }
    run(Command::new("e2fsck").arg("-fn").arg(&image.path))?;
    let mounted = Mounted::new(&image.path, "ro")?;
    expect_equal(
        "the old file system, put back",
        &old,
        &of_directory(mounted.path())?,
    )?;
    mounted.close()
}

/// Returns the holes of an image file, the longest first.
fn holes(device: &Device) -> Result<Vec<std::ops::Range<usize>>> {
    let (mut holes, mut at) = (Vec::new(), 0);
    while let Some(data) = device.next_data(at)? {
        holes.push(at as usize..data.start as usize);
        at = data.end;
    }
    holes.push(at as usize..device.size_bytes() as usize);
    holes.sort_by_key(|hole| std::cmp::Reverse(hole.len()));
    Ok(holes)
}

/// Returns the ranges of used bytes of an old file system.
fn used_bytes(bytes: &[u8]) -> Result<Vec<std::ops::Range<usize>>> {
    let old = buttress_extfs::Ext::open(&Device::memory(bytes.to_vec()))?;
    let block_bytes = u64::from(old.superblock().block_bytes);
    let range = |range: buttress_extfs::BlockRange| {
        (range.start.get() * block_bytes) as usize..(range.end.get() * block_bytes) as usize
    };
    Ok(old
        .used_blocks()
        .map(|used| used.map(range))
        .collect::<Result<_, _>>()?)
}

/// The saved image has all used bytes of the old file system. Free blocks read as zeros.
fn compare_image(volume: &Mount, before: &[u8], image: &Image) -> Result<()> {
    let saved = File::open(volume.path().join("ext2_saved/image"))?;
    ensure!(
        saved.metadata()?.len() == before.len() as u64,
        "the size of the saved image"
    );
    for range in used_bytes(before)? {
        let mut bytes = vec![0; range.len()];
        saved.read_exact_at(&mut bytes, range.start as u64)?;
        let expected = &before[range.clone()];
        ensure!(bytes == expected, "bytes {range:?} of {}", image.path.display());
    }
    Ok(())
}

#[test]
fn ext4_becomes_btrfs_with_the_same_tree() -> Result<()> {
    convert(1, &["-t", "ext4", "-b", "4096"], 256)
}

#[test]
fn ext2_and_inline_content_become_btrfs() -> Result<()> {
    convert(2, &["-t", "ext2", "-b", "4096", "-I", "256"], 192)?;
    let features = "inline_data,^has_journal";
    convert(3, &["-t", "ext4", "-b", "4096", "-O", features, "-I", "512"], 192)
}

#[test]
fn parts_that_are_left_out_are_missing() -> Result<()> {
    if skips(kernel_missing()) {
        return Ok(());
    }
    let image = Image::new(128, &["-t", "ext4", "-b", "4096", "-L", "old"])?;
    let mounted = Mounted::new(&image.path, "rw")?;
    std::fs::write(mounted.path().join("small"), b"small")?;
    std::fs::write(mounted.path().join("large"), vec![3; 100_000])?;
    let set = ["-n", "user.name", "-v", "value"];
    run(Command::new("setfattr")
        .args(set)
        .arg(mounted.path().join("small")))?;
    mounted.close()?;
    let options = Options {
        without: Without {
            checksums: true,
            attributes: true,
            inline: true,
        },
        ..options(6)
    };
    prepare(&device(&image)?, &options, &Progress::new())?.publish()?;
    println!("{}", btrfs_check(std::slice::from_ref(&image.path))?);
    for (tree, absent) in [("5", "XATTR_ITEM"), ("5", "inline extent"), ("7", "EXTENT_CSUM")] {
        let words = ["inspect-internal", "dump-tree", "-t", tree];
        let dump = run(Command::new("btrfs").args(words).arg(&image.path))?;
        let dump = String::from_utf8(dump.stdout)?;
        ensure!(!dump.contains(absent), "tree {tree} has {absent}");
    }
    let volume = Mount::new(std::slice::from_ref(&image.path), "ro")?;
    ensure!(std::fs::read(volume.path().join("small"))? == b"small", "small");
    volume.close()?;
    let found = RollBack::find(&device(&image)?)?;
    ensure!(found.commits() == 0, "{} commits", found.commits());
    found.verify(&Progress::new())?.run()?;
    run(Command::new("e2fsck").arg("-fn").arg(&image.path))?;
    Ok(())
}

#[test]
fn a_cancelled_conversion_changes_nothing() -> Result<()> {
    if skips(kernel_missing()) {
        return Ok(());
    }
    let image = Image::new(96, &["-t", "ext4", "-b", "4096"])?;
    let before = std::fs::read(&image.path)?;
    let progress = Progress::new();
    progress.cancel();
    let result = prepare(&device(&image)?, &options(7), &progress);
    let is_cancelled = matches!(result, Err(Error::Filesystem(buttress_fs::Error::Cancelled)));
    ensure!(is_cancelled, "{:?}", result.err());
    ensure!(before == std::fs::read(&image.path)?, "the device has changed");
    Ok(())
}

#[test]
fn a_full_file_system_is_refused_and_unchanged() -> Result<()> {
    if skips(kernel_missing()) {
        return Ok(());
    }
    let image = Image::new(64, &["-t", "ext4", "-b", "4096", "-O", "^has_journal"])?;
    let mounted = Mounted::new(&image.path, "rw")?;
    let file = File::create(mounted.path().join("large"))?;
    let mut at = 0;
    let bytes = vec![7; 65_536];
    while file.write_all_at(&bytes, at).is_ok() {
        at += 65_536;
    }
    drop(file);
    mounted.close()?;
    let before = std::fs::read(&image.path)?;
    let result = prepare(&device(&image)?, &options(4), &Progress::new());
    ensure!(
        matches!(result, Err(Error::NoSpace(_))),
        "a full file system was converted"
    );
    ensure!(
        before == std::fs::read(&image.path)?,
        "a refused conversion changed the device"
    );
    let _ = result.err().context("no error")?.to_string();
    Ok(())
}
