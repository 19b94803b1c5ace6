//! Older states of a volume, for `--generation`, and the index that finds them.
//!
//! Superblocks name the last four commits. The index of `buttress rescue scan`, if the file exists
//! beside the image, finds older ones.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use buttress::salvage::{BlockIndex, Identity, identify};
use buttress::{Device, Error, Notice, Progress, VolumeOptions};

use crate::context::Context;
use crate::exit::Advice;

/// Returns the default name of an index: beside an image file, or in the current folder for a
/// device.
pub(crate) fn default_index(image: &Path) -> PathBuf {
    let is_device = image
        .metadata()
        .is_ok_and(|metadata| metadata.file_type().is_block_device());
    let name: &OsStr = match (is_device, image.file_name()) {
        (true, Some(name)) => name,
        _ => image.as_os_str(),
    };
    let mut name = name.to_owned();
    name.push(".scan");
    name.into()
}

/// Opens an index: the given one, or the one beside the image if that one exists. Warns if the
/// devices have changed since the scan. An index of another file system is ignored, and refused if
/// the user named it.
pub(crate) fn index_of(
    context: &Context,
    image: &Path,
    given: Option<&Path>,
    devices: &[Device],
) -> Result<Option<BlockIndex>> {
    let beside = default_index(image);
    let path = match given {
        Some(path) => path,
        None if beside.exists() => &beside,
        None => return Ok(None),
    };
    let index = BlockIndex::open(path).context(Advice(format!(
        "to make a new index, delete {}, and run `buttress rescue scan {}`",
        path.display(),
        image.display()
    )))?;
    let scanned = index.identity();
    let known = identify(devices, &Progress::new()).unwrap_or_default(); // Clamp: without superblocks, nothing is compared.
    let now = known.iter().find(|now| now.fsid == scanned.fsid);
    if now.is_none() && !known.is_empty() {
        let other = format!(
            "{}: the index is of another file system (found {}, expected one of {})",
            path.display(),
            scanned.fsid,
            image.display()
        );
        if given.is_some() {
            bail!(other);
        }
        context.warn(format_args!("{other}; the index is ignored"));
        return Ok(None);
    }
    if now.is_some_and(|now| now.generation() != scanned.generation()) {
        context.warn(format_args!(
            "{}: the image has changed since the scan; to scan it again, run `buttress rescue scan`",
            path.display()
        ));
    }
    Ok(Some(index))
}

/// Returns the file system that the devices hold: that of the index, else that of the first
/// superblock.
pub(crate) fn identity_of(
    image: &Path,
    devices: &[Device],
    index: Option<&BlockIndex>,
    progress: &Progress,
) -> Result<Identity> {
    if let Some(index) = index {
        return Ok(index.identity().clone());
    }
    let found = identify(devices, progress)?.into_iter().next();
    found.with_context(|| format!("{} holds no file system", image.display()))
}

/// Adds the index beside the image to options, if they ask for an older state.
pub(super) fn with_index(
    context: &Context,
    image: &Path,
    devices: &[Device],
    options: VolumeOptions,
    is_older: bool,
) -> Result<VolumeOptions> {
    if !is_older {
        return Ok(options);
    }
    Ok(match index_of(context, image, None, devices)? {
        Some(_) => options.index(default_index(image)),
        None => options,
    })
}

/// Adds advice to the error of opening an older state that no root is known for.
pub(super) fn advised(is_older: bool, error: anyhow::Error) -> anyhow::Error {
    let is_unknown = error.downcast_ref().is_some_and(Error::is_not_found);
    if !is_older || !is_unknown {
        return error;
    }
    error.context(Advice::new(
        "`buttress generations IMAGE` lists the known ones; to find older ones, run `buttress rescue scan IMAGE`",
    ))
}

/// Returns whether a notice only repeats that the user asked for an older state.
pub(super) fn is_requested(context: &Context, notice: &Notice) -> bool {
    notice.is_older_state() && context.globals().verbose == 0
}
