//! Makes volumes with mkfs.btrfs and the kernel from a specification.
//!
//! A [`Volume`] is a set of sparse image files in a scratch directory, in memory if the machine has
//! space. The kernel's mount filled it, and its manifest is what the mount showed.

use crate::content::{every_kind, many_names, random_tree};
use crate::loop_device::Mount;
use crate::manifest::{Manifest, of_directory};
use crate::tools::{newest, run};
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kind of volume to make. [`Specification::default`] is one device with mkfs.btrfs's own
/// choices.
#[derive(Clone, Debug)]
pub struct Specification {
    /// The checksum, by its name in mkfs.btrfs.
    pub checksum: &'static str,
    /// The size of tree blocks in KiB.
    pub node_kib: u32,
    /// The profile of data.
    pub data: &'static str,
    /// The profile of metadata.
    pub metadata: &'static str,
    /// The number of devices.
    pub devices: u32,
    /// The size of each device in MiB.
    pub device_mib: u64,
    /// Whether data and metadata share block groups.
    pub mixed: bool,
    /// Features for mkfs.btrfs -O.
    pub features: &'static [&'static str],
    /// Options for mount -o.
    pub mount: &'static str,
    /// The amount of content.
    pub fill: Fill,
    /// The seed of the content.
    pub seed: u64,
}

/// The amount of a volume's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// No files.
    Empty,
    /// Every kind of file, and a small random tree.
    Kinds,
    /// Every kind of file, a larger random tree, and the directory of very many names.
    Full,
}

impl Default for Specification {
    fn default() -> Self {
        Self {
            checksum: "crc32c",
            node_kib: 16,
            data: "single",
            metadata: "dup",
            devices: 1,
            device_mib: 1024,
            mixed: false,
            features: &[],
            mount: "",
            fill: Fill::Kinds,
            seed: 1,
        }
    }
}

/// A volume on image files.
#[derive(Debug)]
pub struct Volume {
    /// The devices' images, in the order of mkfs.btrfs's arguments.
    pub images: Vec<PathBuf>,
    /// The tree that the kernel's mount showed before the unmount.
    pub manifest: Manifest,
    // The scratch folder. Dropping the volume removes the images.
    folder: tempfile::TempDir,
}

impl Volume {
    /// Returns the scratch directory of the images.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Returns a directory for images that is removed with its content. The directory is in memory if 8
/// GiB are available, otherwise in the place of temporary files.
pub fn scratch() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let free_bytes =
        rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let mut builder = tempfile::Builder::new();
    builder.prefix("buttress-proof-");
    let folder = if free_bytes > 8 << 30 {
        builder.tempdir_in(memory)
    } else {
        builder.tempdir()
    };
    folder.context("making a scratch directory")
}

/// Makes sparse image files and a file system on them, without a mount.
pub fn format(specification: &Specification) -> Result<(tempfile::TempDir, Vec<PathBuf>)> {
    let folder = scratch()?;
    let mut images = Vec::new();
    for number in 0..specification.devices {
        let image = folder.path().join(format!("device-{number}"));
        File::create(&image)?.set_len(specification.device_mib << 20)?;
        images.push(image);
    }
    let mut command = Command::new(newest("mkfs.btrfs"));
    command.args(["-q", "-f", "--csum", specification.checksum, "-L", "proof"]);
    if specification.mixed {
        command.args(["-M", "-d", specification.data, "-m", specification.data]);
    } else {
        command.args(["-d", specification.data, "-m", specification.metadata]);
        command.arg("-n").arg((specification.node_kib * 1024).to_string());
    }
    for feature in specification.features {
        command.args(["-O", feature]);
    }
    run(command.args(&images))?;
    Ok((folder, images))
}

/// Makes, mounts, fills, records and unmounts a volume.
pub fn make(specification: &Specification) -> Result<Volume> {
    make_with(specification, |_| Ok(()))
}

/// Makes a volume as [`make`] does, and calls `more` on the mounted and filled volume before its
/// manifest is recorded.
pub fn make_with(specification: &Specification, more: impl FnOnce(&Mount) -> Result<()>) -> Result<Volume> {
    let (folder, images) = format(specification)?;
    let mount = Mount::new(&images, specification.mount)?;
    fill(mount.path(), specification)?;
    more(&mount)?;
    // A second mount shows the state on disk instead of cached state. Reading must not change
    // access times.
    mount.close()?;
    let options = if specification.mount.is_empty() {
        "ro,noatime".to_owned()
    } else {
        format!("ro,noatime,{}", specification.mount)
    };
    let mount = Mount::new(&images, &options)?;
    let manifest = of_directory(mount.path())?;
    mount.close()?;
    Ok(Volume {
        images,
        manifest,
        folder,
    })
}

fn fill(top: &Path, specification: &Specification) -> Result<()> {
    if specification.fill == Fill::Empty {
        return Ok(());
    }
    every_kind::plant(top, &newest("btrfs"), specification.seed)?;
    // A commit in between makes tree blocks of several generations.
    rustix::fs::syncfs(File::open(top)?)?;
    let full = specification.fill == Fill::Full;
    random_tree::plant(
        &top.join("random"),
        specification.seed,
        if full { 1500 } else { 300 },
    )?;
    if full {
        many_names::plant(&top.join("many-names"), specification.seed, many_names::NAMES)?;
    }
    Ok(())
}
