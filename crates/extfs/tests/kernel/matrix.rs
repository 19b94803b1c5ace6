//! Each feature of mke2fs: what the kernel shows of the volume, and what the reader returns.

use crate::fill::{Abilities, fill};
use crate::free_blocks;
use crate::mount::{Image, Mounted, NEEDS};
use crate::ours::{self, Runs, add_run};
use anyhow::{Context, Result, ensure};
use buttress_extfs::{Ext, ExtInode, FileKind};
use buttress_oracle::manifest::{expect_equal, of_directory};
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::run;
use fiemap::FiemapExtentFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

const EXT2: Abilities = Abilities {
    unwritten: false,
    large_values: false,
    large_times: false,
};
const EXT4: Abilities = Abilities {
    unwritten: true,
    large_values: false,
    large_times: true,
};

fn compare(options: &[&str], mount_options: &str, abilities: Abilities) -> Result<()> {
    if skips(any_missing(&NEEDS)) {
        return Ok(());
    }
    let image = Image::new(96, options)?;
    let mounted = Mounted::new(&image.path, mount_options)?;
    fill(mounted.path(), abilities)?;
    mounted.close()?;
    compare_filled(&image)
}

/// Compares the reader with the kernel on an unmounted image.
fn compare_filled(image: &Image) -> Result<()> {
    let mounted = Mounted::new(&image.path, "ro,noload")?;
    let device = image.device()?;
    let volume = Ext::open(&device)?;
    let mut kernel = of_directory(mounted.path())?;
    // The manifest takes inode 2 for one that the kernel of btrfs makes up.
    kernel.get_mut(&b""[..]).context("the top")?.made_up = false;
    let (mut found, inodes) = ours::manifest(&device, &volume)?;
    if volume.superblock().inode_bytes == 128 {
        kernel
            .values_mut()
            .for_each(|entry| entry.extra.as_mut().unwrap().born = (0, 0));
        found
            .values_mut()
            .for_each(|entry| entry.extra.as_mut().unwrap().born = (0, 0));
    }
    expect_equal("the kernel's mount", &kernel, &found)?;
    compare_extents(mounted.path(), &volume, &inodes)?;
    compare_flags(mounted.path(), &inodes)?;
    mounted.close()?;
    let (expected, found) = (
        free_blocks::by_dumpe2fs(&image.path)?,
        free_blocks::by_us(&volume)?,
    );
    ensure!(
        expected == found,
        "free blocks: dumpe2fs {expected:?}, ours {found:?}"
    );
    compare_inodes(&volume, &inodes)
}

fn compare_extents(top: &Path, volume: &Ext, inodes: &BTreeMap<Vec<u8>, ExtInode>) -> Result<()> {
    let block_bytes = u64::from(volume.superblock().block_bytes);
    for (path, inode) in inodes {
        if inode.is_inline() || !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            continue;
        }
        let mut expected = Runs::new();
        for extent in fiemap::fiemap(top.join(OsStr::from_bytes(path)))? {
            let extent = extent?;
            let unwritten = extent.fe_flags.contains(FiemapExtentFlags::UNWRITTEN);
            let (first, start) = (extent.fe_logical / block_bytes, extent.fe_physical / block_bytes);
            add_run(
                &mut expected,
                first,
                start,
                extent.fe_length / block_bytes,
                unwritten,
            );
        }
        let found = ours::runs(volume, inode)?;
        ensure!(
            expected == found,
            "extents of {}: kernel {expected:?}, ours {found:?}",
            path.escape_ascii()
        );
    }
    Ok(())
}

/// Compares the flags that FS_IOC_GETFLAGS returns.
fn compare_flags(top: &Path, inodes: &BTreeMap<Vec<u8>, ExtInode>) -> Result<()> {
    for (path, inode) in inodes {
        if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            continue;
        }
        let file = std::fs::File::open(top.join(OsStr::from_bytes(path)))?;
        let kernel = rustix::fs::ioctl_getflags(&file)?.bits();
        // The kernel leaves out flags that are of no use to users.
        let found = inode.flags.bits() & kernel;
        ensure!(
            kernel == found,
            "flags of {}: kernel {kernel:#x}, ours {found:#x}",
            path.escape_ascii()
        );
    }
    Ok(())
}

/// Compares all inodes in order with those that paths lead to.
fn compare_inodes(volume: &Ext, inodes: &BTreeMap<Vec<u8>, ExtInode>) -> Result<()> {
    let by_path: BTreeMap<_, _> = inodes.values().map(|inode| (inode.number, inode)).collect();
    let (mut seen, mut last) = (BTreeSet::new(), None);
    for inode in volume.inodes() {
        let inode = inode?;
        ensure!(
            last < Some(inode.number),
            "inode {} is out of order",
            inode.number
        );
        last = Some(inode.number);
        if volume.superblock().is_internal(inode.number) || inode.is_attribute_value() {
            ensure!(
                !by_path.contains_key(&inode.number),
                "a path leads to inode {}",
                inode.number
            );
            continue;
        }
        ensure!(
            by_path.get(&inode.number) == Some(&&inode),
            "inode {} differs",
            inode.number
        );
        seen.insert(inode.number);
    }
    let all: BTreeSet<_> = by_path.into_keys().collect();
    ensure!(
        seen == all,
        "inodes that paths lead to: {all:?}, by the iterator: {seen:?}"
    );
    Ok(())
}

#[test]
fn ext2_and_ext3_match_the_kernel() -> Result<()> {
    compare(&["-t", "ext2", "-b", "4096", "-I", "128"], "acl,user_xattr", EXT2)?;
    compare(
        &["-t", "ext3", "-b", "4096", "-g", "4096"],
        "acl,user_xattr",
        EXT2,
    )
}

#[test]
fn revision_zero_matches_the_kernel() -> Result<()> {
    if skips(any_missing(&NEEDS)) {
        return Ok(());
    }
    let image = Image::new(32, &["-t", "ext2", "-b", "4096", "-r", "0"])?;
    let mounted = Mounted::new(&image.path, "rw")?;
    for name in 0..50 {
        std::fs::write(
            mounted.path().join(format!("file-{name}")),
            vec![name; 100 * usize::from(name)],
        )?;
    }
    mounted.close()?;
    compare_filled(&image)
}

#[test]
fn ext4_defaults_match_the_kernel() -> Result<()> {
    compare(&["-t", "ext4", "-b", "4096"], "rw", EXT4)
}

#[test]
fn uninit_bg_and_block_maps_match_the_kernel() -> Result<()> {
    let features = "^64bit,^metadata_csum,uninit_bg,^sparse_super,^resize_inode";
    compare(
        &["-t", "ext4", "-b", "4096", "-O", features, "-g", "2048"],
        "rw",
        EXT4,
    )?;
    let features = "^extents,^64bit,metadata_csum,^flex_bg";
    compare(
        &["-t", "ext4", "-b", "4096", "-O", features],
        "rw",
        Abilities {
            unwritten: false,
            ..EXT4
        },
    )
}

#[test]
fn meta_bg_matches_the_kernel() -> Result<()> {
    // Groups of 256 blocks: 96 groups, two blocks of descriptors.
    let options = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "meta_bg,^resize_inode",
        "-g",
        "256",
        "-N",
        "4096",
    ];
    compare(&options, "rw", EXT4)?;
    let features = "meta_bg,^resize_inode,^flex_bg,^64bit,sparse_super2,^sparse_super";
    compare(
        &[
            "-t", "ext4", "-b", "4096", "-O", features, "-g", "256", "-N", "4096",
        ],
        "rw",
        EXT4,
    )
}

#[test]
fn inline_data_and_large_values_match_the_kernel() -> Result<()> {
    let large = Abilities {
        large_values: true,
        ..EXT4
    };
    compare(&["-t", "ext4", "-b", "4096", "-O", "inline_data"], "rw", EXT4)?;
    let features = "inline_data,ea_inode,large_dir,metadata_csum_seed";
    compare(
        &["-t", "ext4", "-b", "4096", "-O", features, "-I", "1024"],
        "rw",
        large,
    )
}

#[test]
fn quotas_and_projects_match_the_kernel() -> Result<()> {
    if skips(any_missing(&NEEDS)) {
        return Ok(());
    }
    let image = Image::new(96, &["-t", "ext4", "-b", "4096", "-O", "^has_journal"])?;
    let mounted = Mounted::new(&image.path, "rw")?;
    fill(mounted.path(), EXT4)?;
    mounted.close()?;
    // A kernel without quotas mounts such a volume only for reading.
    let words = ["-O", "project,quota", "-Q", "usrquota,grpquota,prjquota"];
    run(Command::new("tune2fs").args(words).arg(&image.path))?;
    let request = "set_inode_field /content-100 projid 77";
    run(Command::new("debugfs")
        .args(["-w", "-R", request])
        .arg(&image.path))?;
    compare_filled(&image)?;
    let device = image.device()?;
    let volume = Ext::open(&device)?;
    let (_, inodes) = ours::manifest(&device, &volume)?;
    let project = |path: &[u8]| inodes.get(path).and_then(|inode| inode.project);
    ensure!(project(b"content-100") == Some(77) && project(b"content-59") == Some(0));
    ensure!(
        volume.superblock().internal_inodes.len() == 3,
        "quotas of users, groups and projects"
    );
    Ok(())
}
