//! Where the commands of a session find their targets.
//!
//! A session (`buttress shell`) has one volume open and stands in a directory of it. The commands that look at volumes
//! run in it as they are: what would open an image gives the session's volume, and what would be an `IMAGE:/path` is a
//! path.
//!
//! The server of a mount has such a place for a command that somebody asked it for: there an argument is a path of the machine, and who
//! asked said where it leads ([`Mount`]).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};

use buttress::Subvolume;

use crate::commands::scrub::online::Scrubs;
use crate::context::Context;
use crate::exit::Advice;
use crate::mounted::places;
use crate::resyncs::Resyncs;
use crate::target::Target;
use crate::writing::Writing;

/// A volume and a directory in it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The volume as it is now.
    pub opened: Subvolume,
    /// Its image, for messages.
    pub image: PathBuf,
    /// The path from the root of paths to the directory; it begins with a slash.
    pub directory: Vec<u8>,
    /// Where it is a mount.
    pub mount: Option<Mount>,
}

/// A volume that this process serves.
#[derive(Clone, Debug)]
pub struct Mount {
    /// The volume, where it is open for changes.
    pub writing: Option<Writing>,
    /// Its scrubs.
    pub scrubs: Arc<Scrubs>,
    /// Its resynchronisations of devices that missed commits.
    pub resyncs: Arc<Resyncs>,
    /// Why what is written will not last, if it will not.
    pub doomed: Option<String>,
    /// Arguments that lie below the mount, and their paths in it.
    pub paths: Arc<HashMap<OsString, Vec<u8>>>,
}

impl Place {
    /// That an image is this volume's.
    fn require(&self, image: &Path) -> Result<()> {
        if self.mount.is_none() || image == self.image {
            return Ok(());
        }
        Err(anyhow!("{} is not inside this mount", image.display())).context(Advice::new(
            "a command on a mounted volume can use only this volume; to copy to another volume, use `buttress send` and `receive`",
        ))
    }
}

impl Context {
    /// What an argument names: something in an image, or, in a session, in its volume.
    pub fn target(&self, argument: &OsStr) -> Target {
        match self.place() {
            Some(Place {
                mount: Some(mount),
                image,
                ..
            }) => {
                let path = mount.paths.get(argument);
                Target {
                    image: path.map_or_else(|| argument.into(), |_| image),
                    has_path: path.is_some_and(|path| path != b"/"),
                    path: path.cloned().unwrap_or_else(|| b"/".to_vec()),
                    word: Some(argument.to_owned()),
                }
            }
            Some(place) => Target {
                word: None,
                path: absolute(&place.directory, argument.as_bytes()),
                image: place.image,
                has_path: true,
            },
            None => Target::parse(argument),
        }
    }

    /// The volume that there is already: a session's, or a mount's. `None` where the image is to be opened.
    ///
    /// # Errors
    /// That the image is another, or is no image but lies below a mount of ours, whose server is then asked.
    pub(crate) fn present(&self, image: &Path) -> Result<Option<Subvolume>> {
        if let Some(place) = self.place() {
            place.require(image)?;
            return Ok(Some(place.opened));
        }
        self.hand_on(image)?;
        Ok(None)
    }

    /// The same for changes.
    ///
    /// # Errors
    /// As [`present`](Self::present), and that it cannot be changed.
    pub(crate) fn present_for_writing(&self, image: &Path) -> Result<Option<Writing>> {
        let Some(place) = self.place() else {
            self.hand_on(image)?;
            return Ok(None);
        };
        let Some(mount) = &place.mount else {
            return Ok(None);
        };
        place.require(image)?;
        let writing = mount.writing.clone().context("it is mounted read-only");
        writing
            .map(Some)
            .map_err(|error| error.context(Advice::new("mount it with -o rw")))
    }

    /// Whether this process does it for somebody, in a volume that it serves.
    pub fn is_on_mount(&self) -> bool {
        self.place().is_some_and(|place| place.mount.is_some())
    }

    /// Where a path lies below a mount of ours, its server is the one to do this.
    pub(crate) fn hand_on(&self, path: &Path) -> Result<()> {
        let Some(below) = places::find(path) else {
            return Ok(());
        };
        if self.takes_mounted() && self.has_opened() {
            return Err(anyhow!("{} is in a mounted volume", path.display())).context(Advice::new(
                "give either paths below a mount or paths in an image, not both",
            ));
        }
        if self.takes_mounted() {
            self.set_handed_on(below);
            return Err(anyhow!("{} is mounted", path.display()));
        }
        Err(anyhow!("{} is in a mounted volume", path.display())).context(Advice::new(
            "unmount it and give the image, or access the files with any program",
        ))
    }
}

/// A path as it is seen from the directory, from the root. `..` and links are left to whoever follows it.
pub fn absolute(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.first() == Some(&b'/') {
        return path.to_vec();
    }
    let mut whole = directory.to_vec();
    if path.is_empty() || path == b"." {
        return whole;
    }
    if !whole.ends_with(b"/") {
        whole.push(b'/');
    }
    whole.extend_from_slice(path);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_seen_from_the_directory() {
        let cases: [(&[u8], &[u8], &[u8]); 6] = [
            (b"/", b"a", b"/a"),
            (b"/d", b"a/b", b"/d/a/b"),
            (b"/d", b"/a", b"/a"),
            (b"/d", b".", b"/d"),
            (b"/d", b"../a", b"/d/../a"),
            (b"/d", b"a/", b"/d/a/"),
        ];
        for (directory, path, expected) in cases {
            assert_eq!(absolute(directory, path), expected);
        }
    }
}
