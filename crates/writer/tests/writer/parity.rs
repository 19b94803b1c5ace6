//! The kernel checks RAID5 and RAID6 rows that commits wrote. Its scrub recomputes all parity, and
//! its degraded mounts read through parity.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use anyhow::{Context, Result, ensure};
use buttress_device::{Device, OpenOptions as DeviceOptions};
use buttress_format::{InodeNumber, Profile, SubvolumeId};
use buttress_fs::{Location, OpenOptions};
use buttress_mkfs::{self as mkfs, Identity, Options};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::scratch;
use buttress_writer::operations::{NewInode, SetXattr};
use buttress_writer::{Environment, SystemEnvironment, WritableFilesystem, WriteOptions};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const COMMITS: usize = 8;
const FILES: usize = 120;

fn open(images: &[PathBuf]) -> Result<Vec<Device>> {
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let devices = images.iter().map(|image| Device::open(image, &options));
    Ok(devices.collect::<Result<_, _>>()?)
}

fn make(folder: &Path, profile: Profile, count: usize) -> Result<Vec<PathBuf>> {
    let images: Vec<PathBuf> = (0..count)
        .map(|number| folder.join(format!("device-{number}")))
        .collect();
    for image in &images {
        File::create(image)?.set_len(400 << 20)?;
    }
    let options = Options {
        data: Some(profile),
        metadata: Some(profile),
        ..Options::default()
    };
    let environment = SystemEnvironment;
    let identity = Identity {
        fsid: environment.new_uuid(),
        chunk_tree: environment.new_uuid(),
        top_level: environment.new_uuid(),
        devices: images.iter().map(|_| environment.new_uuid()).collect(),
        time: environment.now(),
    };
    mkfs::make(&open(&images)?, &options, &identity)?;
    Ok(images)
}

/// Makes several commits of names and attributes: each writes parts of rows.
fn fill(images: &[PathBuf]) -> Result<()> {
    let filesystem = OpenOptions::new(open(images)?).open()?;
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default())?;
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    assert_eq!(root.inode, InodeNumber::ROOT_DIRECTORY);
    for commit in 0..COMMITS {
        let name = format!("directory-{commit}");
        let directory = filesystem.make_directory(root, name.as_bytes(), &NewInode::of_root(0o755))?;
        for number in 0..FILES {
            let name = format!("file-{number}-of-commit-{commit}");
            let file = filesystem.create(directory, name.as_bytes(), &NewInode::of_root(0o644))?;
            let value = vec![b'a' + u8::try_from(number % 26)?; 200];
            filesystem.set_xattr(file, b"user.value", &value, SetXattr::Create)?;
        }
        filesystem.commit()?;
    }
    Ok(())
}

fn require_content(mount: &Mount) -> Result<()> {
    for commit in 0..COMMITS {
        let directory = mount.path().join(format!("directory-{commit}"));
        let names = std::fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        ensure!(names.count() == FILES, "{}", directory.display());
    }
    Ok(())
}

fn rows_hold(profile: Profile, count: usize) -> Result<()> {
    let folder = scratch()?;
    let images = make(folder.path(), profile, count)?;
    fill(&images)?;
    let mount = Mount::new(&images, "")?;
    require_content(&mount)?;
    let scrubbed = run(Command::new(newest("btrfs"))
        .args(["scrub", "start", "-B"])
        .arg(mount.path()))?;
    let text = String::from_utf8_lossy(&scrubbed.stdout).into_owned();
    ensure!(text.contains("no errors found"), "{profile}: {text}");
    mount.close()?;
    for missing in 0..count {
        let mut others = images.clone();
        let gone = others.remove(missing);
        let hidden = gone.with_extension("gone");
        std::fs::rename(&gone, &hidden)?;
        let mount =
            Mount::new(&others, "degraded,ro").with_context(|| format!("{profile} without {missing}"))?;
        require_content(&mount).with_context(|| format!("{profile} without {missing}"))?;
        mount.close()?;
        std::fs::rename(&hidden, &gone)?;
    }
    Ok(())
}

#[test]
fn the_kernel_finds_no_wrong_parity_and_reads_through_it() {
    if skips(kernel_missing()) {
        return;
    }
    rows_hold(Profile::Raid5, 3).unwrap();
    rows_hold(Profile::Raid5, 4).unwrap();
    rows_hold(Profile::Raid6, 4).unwrap();
}
