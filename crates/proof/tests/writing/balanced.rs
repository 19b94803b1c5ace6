//! Volumes that the kernel partly relocated: tree blocks with references by address above blocks
//! with keyed references to their tree. If Buttress deletes such a subvolume, nothing may remain
//! that is counted for it.

use anyhow::{Context, Result};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Follow, Progress};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::history::subvolume;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{expect_equal, of_directory};
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::{Specification, Volume, make};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::comparing::expect_nothing_found;
use buttress_proof::writing::fill::TOP;
use buttress_proof::writing::volume::open_images;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of files, enough for several metadata block groups, so that one of them can be relocated
/// alone.
const FILES: usize = 16_000;

fn file(top: &Path, number: usize) -> PathBuf {
    top.join(format!("{}/file-{number}", number % 4))
}

fn append(top: &Path, first: usize, step: usize) -> Result<()> {
    for number in (first..FILES).step_by(step) {
        File::options()
            .append(true)
            .open(file(top, number))?
            .write_all(b"more")?;
    }
    Ok(())
}

/// Creates a subvolume and its snapshot, and changes both before and after a balance of one block
/// group.
fn balanced_by_kernel(mount: &Path) -> Result<()> {
    let (source, copy) = (mount.join("source"), mount.join("copy"));
    subvolume(&["create"], &[&source])?;
    for directory in 0..4 {
        fs::create_dir(source.join(directory.to_string()))?;
    }
    for number in 0..FILES {
        let length = if number % 10 == 0 { 6000 } else { 1900 };
        fs::write(file(&source, number), vec![b'x'; length])?;
    }
    subvolume(&["snapshot"], &[&source, &copy])?;
    append(&source, 0, 400)?;
    run(Command::new(newest("btrfs"))
        .args(["filesystem", "sync"])
        .arg(mount))?;
    run(Command::new(newest("btrfs"))
        .args(["balance", "start", "-f", "-mlimit=1"])
        .arg(mount))?;
    append(&source, 4, 400)?;
    append(&copy, 8, 800)
}

fn expect_sound(volume: &Volume) -> Result<()> {
    expect_nothing_found(&OpenOptions::new(open_images(&volume.images, false)?).open()?)?;
    btrfs_check(&volume.images).map(drop)
}

fn deleted_here(deleted: &str, kept: &str) -> Result<()> {
    let volume = make(&Specification {
        device_mib: 512,
        node_kib: 4,
        ..Specification::default()
    })?;
    let mount = Mount::new(&volume.images, "noatime")?;
    balanced_by_kernel(mount.path())?;
    let before = of_directory(&mount.path().join(kept))?;
    mount.close()?;
    expect_sound(&volume).context("as the kernel left it")?;
    let filesystem = OpenOptions::new(open_images(&volume.images, true)?).open()?;
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default())?;
    let found = filesystem.view().resolve(TOP, deleted.as_bytes(), Follow::All)?;
    filesystem.subvolumes().delete(found.subvolume)?;
    filesystem.subvolumes().drop_deleted(&Progress::new())?;
    filesystem.commit()?;
    drop(filesystem);
    expect_sound(&volume).with_context(|| format!("without {deleted}"))?;
    let mount = Mount::new(&volume.images, "noatime")?;
    expect_equal(kept, &before, &of_directory(&mount.path().join(kept))?)?;
    append(&mount.path().join(kept), 12, 200)?;
    mount.close()?;
    expect_sound(&volume).context("after changes by the kernel")
}

pub fn cases() -> Vec<Case> {
    [("source", "copy"), ("copy", "source")]
        .into_iter()
        .map(|(deleted, kept)| {
            Case::new(format!("balanced::{deleted}_deleted"), move || {
                if let Some(reason) = kernel_missing() {
                    return Ok(Outcome::Skipped(reason));
                }
                deleted_here(deleted, kept)?;
                Ok(Outcome::Passed)
            })
        })
        .collect()
}
