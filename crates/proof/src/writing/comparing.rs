//! Comparison of a volume's content, read by Buttress or shown by the kernel, with the model.

use super::model::{Model, whole};
use super::newborn::COMPRESSION;
use super::volume::devices;
use crate::library;
use anyhow::{Context, Result, ensure};
use buttress::check::{Options, Report};
use buttress::unstable::check::check;
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{Backend, FileAttributes, Location, Progress, SubvolumeId};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{Manifest, add_attributes, expect_equal, of_directory_by, shown};
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Properties of a volume outside of its files.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    label: Vec<u8>,
    default: Option<Vec<u8>>,
    /// Paths of subvolumes, with their read-only flags.
    subvolumes: BTreeMap<Vec<u8>, bool>,
}

impl Frame {
    /// Returns the properties that the model expects.
    #[must_use]
    pub fn of_model(model: &Model) -> Self {
        let path = |id: SubvolumeId| model.path_of(Location::root_of(id));
        Self {
            label: model.label.clone(),
            default: path(model.default),
            subvolumes: model
                .subvolumes
                .iter()
                .filter_map(|(id, subvolume)| Some((path(*id)?, subvolume.read_only)))
                .collect(),
        }
    }

    /// Reads the properties of a volume.
    ///
    /// # Errors
    /// The volume is unreadable, or has an undeleted subvolume without a location.
    pub fn of_volume(filesystem: &Filesystem) -> Result<Self> {
        let default = filesystem.default_subvolume()?;
        let mut frame = Self {
            label: filesystem.superblock().label.clone(),
            default: None,
            subvolumes: BTreeMap::new(),
        };
        for subvolume in filesystem.subvolumes()? {
            if subvolume.is_deleted() {
                continue;
            }
            let path = subvolume.path.clone();
            let path = path.with_context(|| format!("subvolume {} has no path", subvolume.id))?;
            if subvolume.id == default {
                frame.default = Some(path.clone());
            }
            frame.subvolumes.insert(path, subvolume.is_read_only());
        }
        Ok(frame)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = self.default.as_deref().map(shown);
        write!(f, "{:?}, default {default:?}, subvolumes", shown(&self.label))?;
        for (path, read_only) in &self.subvolumes {
            write!(
                f,
                "\n    {}{}",
                shown(path),
                if *read_only { " read-only" } else { "" }
            )?;
        }
        Ok(())
    }
}

/// Opens a volume for reading.
pub(super) fn open(backends: &[Arc<dyn Backend>]) -> Result<Filesystem> {
    Ok(OpenOptions::new(devices(backends)).open()?)
}

/// Compares a volume, as Buttress reads it, with the model.
///
/// # Errors
/// The differences.
pub fn expect_model(what: &str, model: &Model, filesystem: &Filesystem) -> Result<()> {
    expect_frame(what, model, filesystem)?;
    let found = comparable(model, manifest(filesystem)?);
    expect_equal(what, &comparable(model, model.manifest()), &found)
}

/// As [`expect_model`], with a volume whose changes were made by another clock. Returns the
/// volume's content in a form that is comparable with other volumes of the same changes.
///
/// # Errors
/// The differences.
pub fn expect_model_by_another_clock(what: &str, model: &Model, filesystem: &Filesystem) -> Result<Manifest> {
    expect_frame(what, model, filesystem)?;
    let mut found = comparable(model, manifest(filesystem)?);
    mark_compressed(&mut found);
    let expected = comparable(model, model.manifest_by_another_clock());
    expect_equal(what, &expected, &found)?;
    for (path, entry) in &mut found {
        entry.made_up = expected.get(path).is_some_and(|entry| entry.made_up);
        entry.extra = None;
    }
    Ok(found)
}

/// Derives compression flags from the compression property. The kernel marks the root of a new
/// subvolume as compressed only at its next change. The kernel may also mark a file as
/// incompressible while it does not know the file's property (see [`twin`](super::twin)).
fn mark_compressed(manifest: &mut Manifest) {
    for entry in manifest.values_mut() {
        let value = entry.xattrs.get(COMPRESSION);
        if value.is_some_and(|value| ![&b"no"[..], b"none"].contains(&value.as_slice()))
            && let Some(attributes) = &mut entry.attributes
        {
            *attributes |= FileAttributes::COMPRESS.bits();
            *attributes &= !FileAttributes::NOCOMPRESS.bits();
        }
    }
}

fn expect_frame(what: &str, model: &Model, filesystem: &Filesystem) -> Result<()> {
    let (expected, found) = (Frame::of_model(model), Frame::of_volume(filesystem)?);
    ensure!(found == expected, "{what} is {found}\nexpected {expected}");
    Ok(())
}

/// Removes marks of incompressible content if such marks may be set, because their timing is not
/// specified.
pub(super) fn comparable(model: &Model, mut manifest: Manifest) -> Manifest {
    if model.may_give_up {
        let files = manifest
            .values_mut()
            .filter(|entry| entry.mode & 0o170_000 == 0o100_000);
        for attributes in files.filter_map(|entry| entry.attributes.as_mut()) {
            *attributes &= !FileAttributes::NOCOMPRESS.bits();
        }
    }
    manifest
}

/// Checks the volume on these images with `btrfs check`, mounts it with the kernel, and compares
/// the kernel's view with the model.
///
/// # Errors
/// Fails with the findings of the check, or with the differences.
pub fn expect_kernel_sees(model: &Model, images: &[PathBuf]) -> Result<()> {
    btrfs_check(images)?;
    let expected = comparable(model, model.manifest());
    expect_equal(
        "the kernel's view",
        &expected,
        &comparable(model, kernels_view(images)?),
    )
}

/// Returns the kernel's view of the volume on these images, with whole files.
pub(super) fn kernels_view(images: &[PathBuf]) -> Result<Manifest> {
    kernels_view_with(images, "ro,noatime,subvolid=5", &mut |_| Ok(()))
}

/// Returns the kernel's view with mount options, and runs an action during the mount.
pub(super) fn kernels_view_with(
    images: &[PathBuf],
    options: &str,
    meanwhile: &mut dyn FnMut(&Path) -> Result<()>,
) -> Result<Manifest> {
    let mount = Mount::new(images, options)?;
    let mut shown = of_directory_by(mount.path(), |_, file, entry| {
        let mut content = vec![0; usize::try_from(entry.size)?];
        file.read_exact_at(&mut content, 0)?;
        entry.data = whole(&content);
        Ok(())
    })?;
    add_attributes(mount.path(), &mut shown)?;
    meanwhile(mount.path())?;
    mount.close()?;
    Ok(shown)
}

/// Checks a volume, all data included.
pub fn expect_nothing_found(filesystem: &Filesystem) -> Result<Report> {
    let options = Options {
        data_checksums: true,
        cache: buttress::ByteCount::new(16 << 20),
        ..Options::default()
    };
    let report = check(filesystem, &options, &Progress::new())?;
    let lines: Vec<String> = report
        .findings
        .iter()
        .take(20)
        .map(|reported| format!("{}: {}", reported.finding.code(), reported.finding))
        .collect();
    ensure!(
        report.is_clean(),
        "the check finds:\n    {}",
        lines.join("\n    ")
    );
    Ok(report)
}

/// Returns the content of a volume, with whole files.
pub fn manifest(filesystem: &Filesystem) -> Result<Manifest> {
    library::manifest_with(filesystem, TOP, |location, metadata, entry| {
        let kind = entry.mode & 0o170_000;
        if kind == 0o100_000 {
            let mut content = Vec::new();
            std::io::copy(&mut filesystem.open_file(location)?.reader(), &mut content)?;
            entry.data = whole(&content);
        }
        let has_attributes = matches!(kind, 0o100_000 | 0o040_000) && location.placeholder().is_none();
        entry.attributes = has_attributes.then(|| FileAttributes::from_inode_flags(metadata.flags).bits());
        Ok(())
    })
}
