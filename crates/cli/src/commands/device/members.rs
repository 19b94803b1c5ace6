//! Arguments that name a device of a volume, or one that is to become a device.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress::{DeviceId, DeviceInfo};

use crate::context::Context;
use crate::exit::Advice;
use crate::identity::Identity;

/// The word for the first missing device.
const MISSING: &str = "missing";

fn id_of(word: &OsStr) -> Option<DeviceId> {
    word.to_str()?.parse().ok().map(DeviceId::new)
}

/// Finds a device of the volume by its id, by `missing`, or by its image or block device.
pub(super) fn find(context: &Context, word: &OsStr, devices: &[DeviceInfo]) -> Result<DeviceInfo> {
    let named = context.path_of_client(Path::new(word));
    let identity = Identity::of_path(&named);
    let is_same_file = |path: &String| {
        let own = Identity::of_path(Path::new(path));
        let same = own.zip(identity.as_ref()).map(|(own, other)| own.overlaps(other));
        same.unwrap_or_else(|| Path::new(path) == named)
    };
    let is_it = |device: &&DeviceInfo| match id_of(word) {
        Some(id) => device.id == id,
        None if word == MISSING => device.path.is_none(),
        None => device.path.as_ref().is_some_and(is_same_file),
    };
    let mut listed = devices.iter().filter(|device| device.size.is_some());
    if let Some(found) = listed.find(is_it) {
        return Ok(found.clone());
    }
    let error = match word == MISSING {
        true => anyhow!("no device of the volume is missing"),
        false => anyhow!("the volume has no device {}", word.display()),
    };
    Err(error).context(Advice::new(
        "`buttress filesystem show IMAGE` lists its devices; give further devices with --device",
    ))
}

/// Refuses new devices that are among the volume's, or that are named twice.
pub(super) fn refuse_same(new: &[PathBuf], given: &[PathBuf]) -> Result<()> {
    for (index, path) in new.iter().enumerate() {
        let Some(identity) = Identity::of_path(path) else {
            continue;
        };
        let is_same =
            |other: &&PathBuf| Identity::of_path(other).is_some_and(|other| other.overlaps(&identity));
        if let Some(own) = given.iter().find(is_same) {
            return Err(anyhow!(
                "{}: already is {}, a device of the volume",
                path.display(),
                own.display()
            ));
        }
        if new.iter().take(index).any(|other| is_same(&other)) {
            return Err(anyhow!("{}: given twice", path.display()));
        }
    }
    Ok(())
}

/// The images and devices of a volume, as the command line gives them.
pub(super) fn given(context: &Context, image: &Path) -> Vec<PathBuf> {
    let image = core::iter::once(image.to_owned());
    image.chain(context.globals().devices.iter().cloned()).collect()
}
