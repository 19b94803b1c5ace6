//! Treatment of existing files during an extraction: see [`crate::replacing`] for the rules.
//!
//! During an extraction, only a link that the user named is followed. A file to write into is
//! checked again after it was opened: it must be the file found before, and none of the command's
//! sources.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;

use anyhow::{Context as _, Result, anyhow, bail};
use buttress::{FileKind, kind_of_mode};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Shared;
use super::destination::Directory;
use crate::identity::Identity;
use crate::replacing::{dangling, directory_in_the_way, kind_name};

/// Target for a regular file.
#[derive(Debug)]
pub(super) enum Way {
    /// No file has the target name any more, or a restoration replaces it.
    Free,
    /// The content goes into this new or emptied file.
    Into(File),
    /// The existing file stays unchanged, because replacing it was declined.
    Closed,
}

/// A name for a new file.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) directory: &'a Directory,
    pub(super) name: &'a OsStr,
    /// True if the name comes from the user, not from the volume.
    pub(super) is_named: bool,
    /// Path of the entry from the start of the walk.
    pub(super) path: &'a [u8],
}

impl Spot<'_> {
    /// Returns the attributes of the file with this name, without following a link.
    fn look(self) -> Result<Option<Stat>> {
        match rustix::fs::statat(self.directory.fd(), self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn clear(self) -> Result<()> {
        rustix::fs::unlinkat(self.directory.fd(), self.name, AtFlags::empty())
            .with_context(|| format!("cannot remove '{}'", self.name.display()))
    }

    /// Prepares the destination's name for a regular file.
    pub(super) fn for_file(self, shared: &Shared) -> Result<Way> {
        let Some(there) = self.look()? else {
            return Ok(Way::Free);
        };
        let replacing = shared.replacing;
        let shown = shared.shown(self.path);
        let is_link = kind_of_mode(there.st_mode) == FileKind::Symlink;
        let follows = is_link && self.is_named && !replacing.remove;
        let target = if follows {
            match rustix::fs::statat(self.directory.fd(), self.name, AtFlags::empty()) {
                Err(Errno::NOENT) => return Err(dangling(&shown)),
                target => target?,
            }
        } else {
            there
        };
        shared
            .sources
            .refuse(Identity::of_stat(&target).as_ref(), &shown)?;
        if replacing.no_clobber {
            return Ok(Way::Closed);
        }
        let kind = kind_of_mode(target.st_mode);
        if kind == FileKind::Directory {
            return Err(directory_in_the_way(&shown));
        }
        let keeps_content = replacing.keep_links && target.st_nlink > 1;
        if replacing.remove || keeps_content || (is_link && !follows) {
            // A restoration renames its file over this one, after the content was judged.
            if shared.review.is_none() {
                self.clear()?;
            }
            return Ok(Way::Free);
        }
        let opened = self.open(follows, &target, shared, &shown);
        match opened {
            Ok(file) => Ok(Way::Into(file)),
            Err(_) if replacing.force => {
                self.clear()?;
                Ok(Way::Free)
            }
            Err(error) => Err(error.context(format!("cannot create regular file '{shown}'"))),
        }
    }

    /// Opens an existing file to be overwritten from its start.
    fn open(self, follows: bool, expected: &Stat, shared: &Shared, shown: &str) -> Result<File> {
        let kind = kind_of_mode(expected.st_mode);
        if kind != FileKind::Regular && !self.is_named {
            bail!("a {} is in the way", kind_name(kind));
        }
        let mut flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        if !follows {
            flags |= OFlags::NOFOLLOW;
        }
        let file = rustix::fs::openat(self.directory.fd(), self.name, flags, Mode::empty())?;
        let opened = rustix::fs::fstat(&file)?;
        if (opened.st_dev, opened.st_ino) != (expected.st_dev, expected.st_ino) {
            bail!("another process replaced it");
        }
        shared
            .sources
            .refuse(Identity::of_stat(&opened).as_ref(), shown)?;
        let file = File::from(file);
        if kind == FileKind::Regular {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Prepares the name for another kind of file. Returns whether the file should be created.
    pub(super) fn for_other(self, kind: FileKind, shared: &Shared) -> Result<bool> {
        let Some(there) = self.look()? else {
            return Ok(true);
        };
        let shown = shared.shown(self.path);
        if shared.replacing.no_clobber {
            return Ok(false);
        }
        self.refuse(&there, shared, &shown)?;
        if !shared.replacing.by_others && !shared.replacing.remove && self.is_named {
            return Err(anyhow!(
                "cannot create {} '{shown}': File exists",
                kind_name(kind)
            ));
        }
        self.clear()?;
        Ok(true)
    }

    /// Prepares the name for a hard link. Returns whether the extraction should create the link.
    pub(super) fn for_link(self, shared: &Shared) -> Result<bool> {
        let Some(there) = self.look()? else {
            return Ok(true);
        };
        if shared.replacing.no_clobber {
            return Ok(false);
        }
        self.refuse(&there, shared, &shared.shown(self.path))?;
        self.clear()?;
        Ok(true)
    }

    /// Refuses to remove a directory, or a name of a source.
    fn refuse(self, there: &Stat, shared: &Shared, shown: &str) -> Result<()> {
        if kind_of_mode(there.st_mode) == FileKind::Directory {
            return Err(directory_in_the_way(shown));
        }
        shared.sources.refuse(Identity::of_stat(there).as_ref(), shown)
    }
}

/// Returns whether the file supports writes at an offset, and therefore holes.
pub(super) fn is_positioned(file: &File) -> bool {
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_block_device())
}
