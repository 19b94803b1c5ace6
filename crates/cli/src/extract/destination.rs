//! Directories of the destination, and what is made in them by a single name.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use buttress_format::FileKind;
use buttress_fs::WalkEntry;
use buttress_fs::directory::is_valid_name;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Shared;
use super::attributes::{self, Attributes};
use super::replacing::Spot;
use crate::replacing::non_directory_in_the_way;

/// An open directory of the destination. When the last holder lets go of it, [`release`] finishes it.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    parent: Option<Arc<Directory>>,
    /// What it gets when it is finished.
    attributes: Option<Attributes>,
}

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Directory {
    /// The directory that the user named. Links in its own path are the user's and are followed.
    pub(super) fn destination(path: &Path) -> Result<Self, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let fd = rustix::fs::openat(
            CWD,
            path,
            OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC),
            Mode::empty(),
        )?;
        Ok(Self {
            fd,
            parent: None,
            attributes: None,
        })
    }

    /// The same directory, to be finished with the attributes of `entry`.
    pub(super) fn reopen(&self, entry: &WalkEntry, shared: &Shared) -> Result<Self> {
        let fd = rustix::fs::openat(&self.fd, ".", OPEN_DIRECTORY, Mode::empty())?;
        Ok(Self {
            fd,
            parent: None,
            attributes: Some(Attributes::of(entry, shared)),
        })
    }

    /// Makes the directory `name` in `parent`, or takes the one that is there.
    pub(super) fn make(parent: &Arc<Self>, name: &OsStr, entry: &WalkEntry, shared: &Shared) -> Result<Self> {
        let attributes = Attributes::of(entry, shared);
        // Files must be made in it, whatever its mode will be.
        let mode = Mode::from_raw_mode(attributes.permissions & 0o777).union(Mode::RWXU);
        let made = match rustix::fs::mkdirat(&parent.fd, name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let fd = match rustix::fs::openat(&parent.fd, name, OPEN_DIRECTORY, Mode::empty()) {
            Ok(fd) => fd,
            Err(error) if made => return Err(error.into()),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let path = entry.path();
                let source = path.escape_ascii().to_string();
                return Err(non_directory_in_the_way(&shared.shown(&path), &source));
            }
            Err(error) => return Err(error.into()),
        };
        // A directory that was there keeps its mode, unless modes are to be preserved.
        let attributes = (made || shared.preserve.all()).then_some(attributes);
        Ok(Self {
            fd,
            parent: Some(Arc::clone(parent)),
            attributes,
        })
    }

    /// Its descriptor.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

/// Lets go of a directory; finishes it, and those above it, if nobody else holds them.
pub(super) fn release(directory: Arc<Directory>, shared: &Shared) {
    let mut next = Some(directory);
    while let Some(directory) = next.and_then(Arc::into_inner) {
        if let Some(attributes) = &directory.attributes
            && let Err(error) = attributes.apply_to_directory(&directory.fd, shared)
        {
            let shown = shared.shown(&attributes.path);
            shared.lost(error.context(format!("finishing {shown}")));
        }
        next = directory.parent;
    }
}

/// Calls `make`; if something is in the way that is no directory, removes it and calls again.
pub(super) fn make_way<T>(
    parent: &Directory,
    name: &OsStr,
    mut make: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match make() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(&parent.fd, name, AtFlags::empty())?;
            make()
        }
        other => other,
    }
}

/// Makes a symbolic link, device node, pipe or socket.
pub(super) fn make_special(
    parent: &Directory,
    name: &OsStr,
    is_named: bool,
    entry: &WalkEntry,
    shared: &Shared,
) -> Result<()> {
    let metadata = entry.metadata();
    let spot = Spot {
        directory: parent,
        name,
        is_named,
        path: &entry.path(),
    };
    if !spot.for_other(metadata.kind, shared)? {
        return Ok(());
    }
    let attributes = Attributes::of(entry, shared);
    let kind = match metadata.kind {
        FileKind::Symlink => {
            let target = entry.link_target()?;
            let target = OsStr::from_bytes(&target);
            make_way(parent, name, || rustix::fs::symlinkat(target, &parent.fd, name))?;
            return attributes.apply_to_name(&parent.fd, name, true, shared);
        }
        FileKind::CharacterDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        _ => anyhow::bail!("mode {:o} is no kind of file", metadata.mode),
    };
    let device = metadata
        .device
        .map_or(0, |device| rustix::fs::makedev(device.major, device.minor));
    let mode = Mode::from_raw_mode(attributes.permissions & 0o777);
    match make_way(parent, name, || {
        rustix::fs::mknodat(&parent.fd, name, kind, mode, device)
    }) {
        Ok(()) => attributes.apply_to_name(&parent.fd, name, false, shared),
        Err(Errno::PERM) => {
            shared.refusals.count(attributes::Refused::DeviceNode);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes `name` in `parent` another name of the file at `first`, a path below `top`.
pub(super) fn link(top: &Arc<Directory>, first: &[u8], parent: &Directory, name: &OsStr) -> Result<()> {
    let mut names: Vec<OsString> = Vec::new();
    for part in first.split(|byte| *byte == b'/') {
        if !is_valid_name(part) {
            anyhow::bail!("{:?} is not a name", part.escape_ascii().to_string());
        }
        names.push(OsStr::from_bytes(part).to_owned());
    }
    let Some(last) = names.pop() else {
        anyhow::bail!("the first name of the file is not known")
    };
    // Step by step, so that no link that lies on the way is followed.
    let mut directory: Option<OwnedFd> = None;
    for step in &names {
        let at = directory.as_ref().unwrap_or(&top.fd);
        directory = Some(rustix::fs::openat(at, step, OPEN_DIRECTORY, Mode::empty())?);
    }
    let at = directory.as_ref().unwrap_or(&top.fd);
    make_way(parent, name, || {
        rustix::fs::linkat(at, &last, &parent.fd, name, AtFlags::empty())
    })
    .context("linking it to its first name")
}
