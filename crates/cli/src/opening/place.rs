//! Targets of the commands in a session.
//!
//! A session (`buttress shell`) has one volume open, and a current directory in it. Commands that
//! read volumes run in the session unchanged: instead of opening an image they get the session's
//! volume, and an `IMAGE:/path` argument is a path.
//!
//! For a client's command, the server of a mount has such a place. In such a place, an argument is
//! a path of the machine that the client has resolved inside the mount ([`Mount`]).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};

use buttress::{Progress, Subvolume};
use buttress_mount::volume::{Job, Jobs};

use super::generation::{self, Wanted, bare};
use crate::commands::balance::online::Balances;
use crate::commands::mount::images::Images;
use crate::commands::replace::online::Replacements;
use crate::commands::scrub::online::Scrubs;
use crate::context::Context;
use crate::exit::Advice;
use crate::mounted::passed::Received;
use crate::mounted::places;
use crate::resyncs::Resyncs;
use crate::target::Target;
use crate::writing::Writing;

/// A place of a command: a volume and a directory in it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Current state of the volume.
    pub opened: Subvolume,
    /// Image of the volume, for messages.
    pub image: PathBuf,
    /// Path of the directory from the root of paths; it begins with a slash.
    pub directory: Vec<u8>,
    /// State of the mount, if a mount's server executes the command.
    pub mount: Option<Mount>,
}

/// A volume that this process serves.
#[derive(Clone, Debug)]
pub struct Mount {
    /// The writable volume, if it is open for writing.
    pub writing: Option<Writing>,
    /// Balances of the volume.
    pub balances: Arc<Balances>,
    /// Replacements of the volume's devices.
    pub replacements: Arc<Replacements>,
    /// Scrubs of the volume.
    pub scrubs: Arc<Scrubs>,
    /// Resynchronisations of the volume's devices that missed commits.
    pub resyncs: Arc<Resyncs>,
    /// Image files of the volume.
    pub images: Arc<Images>,
    /// Files that the client opened and passed.
    pub received: Arc<Received>,
    /// Current directory of the client.
    pub directory: PathBuf,
    /// Device number of the mount in the table of mounts.
    pub device: String,
    /// Long changes, which an unmount cancels.
    pub jobs: Arc<Jobs>,
    /// Reason why written data will not last, if it will not.
    pub doomed: Option<String>,
    /// Arguments below the mount, and their paths in it.
    pub paths: Arc<HashMap<OsString, Vec<u8>>>,
}

impl Place {
    /// Returns an error unless an image is the one of this volume.
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
    /// Parses an argument: a file in an image or, in a session, in its volume.
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
            Some(place) => {
                let target = Target {
                    word: None,
                    path: absolute(&place.directory, argument.as_bytes()),
                    image: place.image,
                    has_path: true,
                };
                generation::in_state(self, target, Some(&place.opened))
            }
            None => generation::parsed(self, argument),
        }
    }

    /// Returns the volume that is already open: a session's, or a mount's. Returns `None` if the
    /// image is not open yet.
    ///
    /// # Errors
    /// Fails for another image than the place's, or for a path below a mount, whose server must
    /// execute the command.
    pub(crate) fn present(&self, image: &Path) -> Result<Option<Subvolume>> {
        if let Some(place) = self.place() {
            let (image, wanted) = bare(image);
            place.require(image)?;
            return match wanted {
                Wanted::Newest => Ok(Some(place.opened)),
                older => generation::state_in(self, &place, older).map(Some),
            };
        }
        self.hand_on(image)?;
        Ok(None)
    }

    /// Returns the writable volume if it is already open.
    ///
    /// # Errors
    /// Fails with the errors of [`present`](Self::present), or if the volume is read-only.
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

    /// Returns the state of the mount that this process serves, if it executes the command for a
    /// client.
    pub(crate) fn mount(&self) -> Option<Mount> {
        self.place().and_then(|place| place.mount)
    }

    /// Begins a long change of the volume. An unmount cancels it through `progress`, and waits until
    /// the returned value is dropped.
    ///
    /// # Errors
    /// Fails if the volume is being unmounted.
    pub(crate) fn begin_job(&self, progress: &Progress) -> Result<Option<Job>> {
        let Some(mount) = self.mount() else {
            return Ok(None);
        };
        let job = mount.jobs.begin(progress);
        job.map(Some).context("the volume is being unmounted")
    }

    /// Resolves the path of a file of the machine, which may be relative to the client's directory.
    pub(crate) fn path_of_client(&self, path: &Path) -> PathBuf {
        match self.mount() {
            Some(mount) => mount.directory.join(path),
            None => path.to_owned(),
        }
    }

    /// Returns whether this process executes the command for a client, in a volume that it serves.
    pub fn is_on_mount(&self) -> bool {
        self.place().is_some_and(|place| place.mount.is_some())
    }

    /// Hands the command on to the server, if a path is below a mount of this program.
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

/// Returns a path relative to the directory as a path from the root. The function resolves neither
/// `..` nor links.
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
