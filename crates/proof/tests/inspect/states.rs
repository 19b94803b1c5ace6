//! States that a running kernel leaves behind: logs, orphans, half-dropped snapshots, balances,
//! replacements, quotas.
//!
//! Most of these states are gone after the unmount, so the images are copied during the mount.

use crate::compare::{chunks, equal, everything, shows, tree_statistics};
use anyhow::{Context, Result};
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::tools::reference_missing;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn btrfs(words: &[&str], paths: &[&Path]) -> Result<()> {
    run(Command::new(newest("btrfs")).args(words).args(paths))?;
    Ok(())
}

fn sync(path: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

fn copy(image: &Path, name: &str) -> Result<PathBuf> {
    let to = image.with_file_name(name);
    run(Command::new("cp").arg("--sparse=always").arg(image).arg(&to))?;
    Ok(to)
}

fn volume(fill: Fill, devices: u32) -> Result<(tempfile::TempDir, Vec<PathBuf>)> {
    format(&Specification {
        fill,
        devices,
        ..Specification::default()
    })
}

/// Creates names, data, renames and deletions that are pending in a log tree.
fn pending_log() -> Result<Outcome> {
    let (_folder, images) = volume(Fill::Empty, 1)?;
    let mount = Mount::new(&images, "commit=300")?;
    let directory = mount.path().join("d");
    std::fs::create_dir(&directory)?;
    for number in 0..60 {
        std::fs::write(directory.join(format!("f{number}")), vec![1; number * 100])?;
    }
    sync(mount.path())?;
    let file = File::create(directory.join("new"))?;
    file.write_all_at(&[2; 100_000], 4096)?;
    file.sync_all()?;
    std::fs::rename(directory.join("f3"), directory.join("renamed"))?;
    std::fs::remove_file(directory.join("f9"))?;
    File::open(directory.join("renamed"))?.sync_all()?;
    File::open(&directory)?.sync_all()?;
    let image = copy(images.first().context("an image")?, "logged")?;
    drop(file);
    mount.close()?;
    let images = [image];
    everything(&images)?;
    equal(&["dump-tree", "-t", "tree-log"], &images)?;
    shows(&["dump-tree"], &images, "dir log end")?;
    Ok(Outcome::Passed)
}

/// Creates an open file without a name, and snapshots whose deletion has begun.
fn orphans() -> Result<Outcome> {
    let (_folder, images) = volume(Fill::Kinds, 1)?;
    let mount = Mount::new(&images, "commit=300")?;
    let path = mount.path().join("open");
    let file = File::create(&path)?;
    file.write_all_at(&[3; 300_000], 0)?;
    std::fs::remove_file(&path)?;
    let snapshot = mount.path().join("snapshot");
    btrfs(&["-q", "subvolume", "snapshot"], &[mount.path(), &snapshot])?;
    btrfs(&["-q", "subvolume", "delete", "-c"], &[&snapshot])?;
    sync(mount.path())?;
    let image = copy(images.first().context("an image")?, "orphans")?;
    drop(file);
    mount.close()?;
    let images = [image];
    everything(&images)?;
    shows(&["dump-tree"], &images, "key (ORPHAN ORPHAN_ITEM ")?;
    Ok(Outcome::Passed)
}

/// Fragments free space, so that the free-space tree stores it in bitmaps.
fn bitmaps() -> Result<Outcome> {
    let (_folder, images) = volume(Fill::Empty, 1)?;
    let mount = Mount::new(&images, "")?;
    let name = |number: u32| mount.path().join(format!("f{number}"));
    for number in 0..6000 {
        std::fs::write(name(number), [number as u8; 8192])?;
    }
    sync(mount.path())?;
    for number in (0..6000).step_by(2) {
        std::fs::remove_file(name(number))?;
    }
    mount.close()?;
    everything(&images)?;
    tree_statistics(images.first().context("an image")?, &[5, 10])?;
    shows(&["dump-tree", "-t", "10"], &images, "free space bitmap")?;
    Ok(Outcome::Passed)
}

/// Creates quota groups with parents and limits, before and after a rescan.
fn quota_groups() -> Result<Outcome> {
    let (_folder, images) = volume(Fill::Kinds, 1)?;
    let mount = Mount::new(&images, "")?;
    let top = mount.path();
    btrfs(&["quota", "enable"], &[top])?;
    btrfs(&["qgroup", "create", "1/100"], &[top])?;
    btrfs(&["qgroup", "create", "2/7"], &[top])?;
    btrfs(&["qgroup", "assign", "--no-rescan", "0/5", "1/100"], &[top])?;
    btrfs(&["qgroup", "assign", "--no-rescan", "1/100", "2/7"], &[top])?;
    btrfs(&["qgroup", "limit", "100M", "0/5"], &[top])?;
    btrfs(&["qgroup", "limit", "-e", "50M", "1/100"], &[top])?;
    sync(top)?;
    let before = copy(images.first().context("an image")?, "before")?;
    mount.close()?;
    everything(&[before])?;
    everything(&images)?;
    Ok(Outcome::Passed)
}

/// Creates a sent and received subvolume, a read-only snapshot, a default subvolume, and device
/// statistics.
fn subvolumes() -> Result<Outcome> {
    let (folder, images) = volume(Fill::Kinds, 1)?;
    let mount = Mount::new(&images, "")?;
    let top = mount.path();
    let (origin, snapshot, received) = (top.join("origin"), top.join("snapshot"), top.join("received"));
    btrfs(&["-q", "subvolume", "create"], &[&origin])?;
    std::fs::write(origin.join("file"), vec![4; 70_000])?;
    btrfs(&["-q", "subvolume", "snapshot", "-r"], &[&origin, &snapshot])?;
    std::fs::create_dir(&received)?;
    let stream = folder.path().join("stream");
    run(Command::new(newest("btrfs"))
        .arg("-q")
        .arg("send")
        .arg("-f")
        .arg(&stream)
        .arg(&snapshot))?;
    run(Command::new(newest("btrfs"))
        .arg("-q")
        .arg("receive")
        .arg("-f")
        .arg(&stream)
        .arg(&received))?;
    btrfs(&["subvolume", "set-default"], &[&origin])?;
    mount.close()?;
    everything(&images)?;
    Ok(Outcome::Passed)
}

/// Pauses a balance, whose arguments stay in the root tree.
fn paused_balance() -> Result<Outcome> {
    let (_folder, images) = volume(Fill::Empty, 1)?;
    let mount = Mount::new(&images, "")?;
    let top = mount.path();
    for number in 0..40 {
        let file = File::create(top.join(format!("f{number}")))?;
        // The volume has many extents, so that the relocation is slow enough to be interrupted.
        for piece in 0..400u64 {
            file.write_all_at(&[5; 4096], piece * 12_288)?;
        }
    }
    sync(top)?;
    let words = [
        "balance",
        "start",
        "--background",
        "-dusage=0..100,limit=0..90,stripes=1..8,devid=1",
        "-mconvert=single,soft",
        "-f",
    ];
    btrfs(&words, &[top])?;
    let mut copied = None;
    for attempt in 0..200 {
        if btrfs(&["balance", "status"], &[top]).is_err() || attempt == 199 {
            // "status" fails while a balance runs, which marks the moment for the copy.
            let image = copy(images.first().context("an image")?, "balance")?;
            copied = Some(image);
            break;
        }
    }
    let _ = btrfs(&["balance", "cancel"], &[top]);
    mount.close()?;
    let image = copied.context("the balance was over before it was seen")?;
    // The copied image may be from between two commits, so only trees of the last commit are in it.
    let images = [image];
    equal(&["dump-tree", "-t", "root"], &images)?;
    shows(&["dump-tree", "-t", "root"], &images, "balance status flags")?;
    Ok(Outcome::Passed)
}

/// Replaces a device, after which chunks are distributed unevenly.
fn replaced_device() -> Result<Outcome> {
    let (folder, images) = format(&Specification {
        data: "raid1",
        metadata: "raid1",
        devices: 2,
        device_mib: 768,
        fill: Fill::Kinds,
        ..Specification::default()
    })?;
    let new_image = folder.path().join("new");
    File::create(&new_image)?.set_len(768 << 20)?;
    let mount = Mount::new(&images, "")?;
    let new_device = LoopDevice::attach(&new_image)?;
    btrfs(
        &["replace", "start", "-B", "-f", "2"],
        &[new_device.path(), mount.path()],
    )?;
    sync(mount.path())?;
    let images = [images.first().context("an image")?.clone(), new_image];
    for words in [&[][..], &["--raw", "--sort", "pstart"]] {
        chunks(mount.path(), &images, words)?;
    }
    mount.close()?;
    drop(new_device);
    everything(&images)?;
    shows(&["dump-tree", "-t", "dev"], &images, "state FINISHED")?;
    Ok(Outcome::Passed)
}

fn case(name: &str, body: fn() -> Result<Outcome>) -> Case {
    Case::new(format!("states::{name}"), move || match reference_missing() {
        Some(reason) => Ok(Outcome::Skipped(reason)),
        None => body(),
    })
}

pub fn cases() -> Vec<Case> {
    vec![
        case("pending_log", pending_log),
        case("orphans", orphans),
        case("bitmaps", bitmaps),
        case("quota_groups", quota_groups),
        case("subvolumes", subvolumes),
        case("paused_balance", paused_balance),
        case("replaced_device", replaced_device),
    ]
}
