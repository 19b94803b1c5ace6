//! Directories of the destination, and files created in them by a single name.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use buttress::{FileKind, WalkEntry, is_valid_name};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Shared;
use super::attributes::{Attributes, DEFAULT_ACL, Refused};
use super::beneath::{self, Identity, Node};
use super::replacing::Spot;
use crate::replacing::{DirectoryFinish, non_directory_in_the_way};

/// An open directory of the destination. When its last holder releases it, [`release`] finishes the
/// directory.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    parent: Option<Arc<Directory>>,
    /// Attributes that the directory gets when it is finished.
    attributes: Option<Attributes>,
    /// True if new entries inherit an ACL from the directory.
    has_default_acl: bool,
}

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Directory {
    /// Opens the directory that the user named, and follows links in its path.
    pub(super) fn destination(path: &Path) -> Result<Self, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let fd = rustix::fs::openat(CWD, path, OPEN_DIRECTORY, Mode::empty())?;
        Ok(Self::opened(fd, None, None))
    }

    /// Opens the same directory again, to finish it with the attributes of `entry`.
    pub(super) fn reopen(&self, entry: &WalkEntry, shared: &Shared) -> Result<Self> {
        let fd = rustix::fs::openat(&self.fd, ".", OPEN_DIRECTORY, Mode::empty())?;
        let attributes = takes_attributes(entry, false, shared).then(|| Attributes::of(entry, shared));
        Ok(Self::opened(fd, None, attributes))
    }

    fn opened(fd: OwnedFd, parent: Option<Arc<Self>>, attributes: Option<Attributes>) -> Self {
        let has_default_acl = rustix::fs::fgetxattr(&fd, DEFAULT_ACL, &mut [0u8; 0]).is_ok();
        Self {
            fd,
            parent,
            attributes,
            has_default_acl,
        }
    }

    /// Creates the directory `name` in `parent`, or opens an existing one.
    pub(super) fn make(parent: &Arc<Self>, name: &OsStr, entry: &WalkEntry, shared: &Shared) -> Result<Self> {
        let attributes = Attributes::of(entry, shared);
        // The mode must allow creating files. Until the directory has its owner, no other user may
        // access it.
        let mode = if shared.preserve.metadata() {
            Mode::RWXU
        } else {
            Mode::from_raw_mode(attributes.permissions & 0o777).union(Mode::RWXU)
        };
        let made = match rustix::fs::mkdirat(&parent.fd, name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let fd = match beneath::open(&parent.fd, name, OPEN_DIRECTORY, 0) {
            Ok(fd) => fd,
            Err(error) if made => return Err(error.into()),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let path = entry.path();
                let source = path.escape_ascii().to_string();
                return Err(non_directory_in_the_way(&shared.shown(&path), &source));
            }
            Err(error) => return Err(error.into()),
        };
        let keeps_attributes = made || shared.preserve.metadata();
        let takes_attributes = takes_attributes(entry, made, shared);
        // An existing directory keeps its mode, unless modes are to be preserved.
        let is_finished = shared.replacing.directories == DirectoryFinish::Now || keeps_attributes;
        let mut attributes = (takes_attributes && is_finished).then_some(attributes);
        if let Some(attributes) = attributes.as_mut().filter(|_| !keeps_attributes) {
            attributes.permissions |= 0o700;
        }
        Ok(Self::opened(fd, Some(Arc::clone(parent)), attributes))
    }

    /// Returns the directory's descriptor.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns whether new entries inherit an ACL from the directory.
    pub(super) fn has_default_acl(&self) -> bool {
        self.has_default_acl
    }
}

/// Returns whether a directory may get the attributes of an entry. Replacements of lost attributes are
/// only for new directories.
fn takes_attributes(entry: &WalkEntry, made: bool, shared: &Shared) -> bool {
    shared.replacing.directories != DirectoryFinish::Later && (made || entry.lost.is_none())
}

/// Releases a directory. If this name was the last reference to a directory, finishes the directory
/// and then its parents.
pub(super) fn release(directory: Arc<Directory>, shared: &Shared) {
    let mut next = Some(directory);
    while let Some(directory) = next.and_then(Arc::into_inner) {
        let inherits_acl = directory
            .parent
            .as_ref()
            .is_some_and(|parent| parent.has_default_acl);
        if let Some(attributes) = &directory.attributes
            && let Err(error) = attributes.apply_to_directory(&directory.fd, inherits_acl, shared)
        {
            let shown = shared.shown(&attributes.path);
            shared.lost(error.context(format!("finishing {shown}")));
        }
        next = directory.parent;
    }
}

/// Calls `make`; if another kind of file is in the way, removes it and retries.
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

/// Creates a symbolic link, device node, pipe or socket. Returns its identity for hard links;
/// `None` if it was omitted.
pub(super) fn make_special(
    parent: &Directory,
    name: &OsStr,
    is_named: bool,
    entry: &WalkEntry,
    shared: &Shared,
) -> Result<Option<Identity>> {
    let metadata = entry.metadata();
    let spot = Spot {
        directory: parent,
        name,
        is_named,
        path: &entry.path(),
    };
    if !spot.for_other(metadata.kind, shared)? {
        if let Some(review) = &shared.review {
            review.skipped(entry);
        }
        return Ok(None);
    }
    let attributes = Attributes::of(entry, shared);
    let kind = match metadata.kind {
        FileKind::Symlink => {
            let target = entry.link_target()?;
            let target = OsStr::from_bytes(&target);
            make_way(parent, name, || rustix::fs::symlinkat(target, &parent.fd, name))?;
            let node = made(parent, name, FileType::Symlink, 0)?;
            attributes.apply_to_node(&node, true, parent.has_default_acl, shared)?;
            return Ok(Some(node.identity()));
        }
        FileKind::CharacterDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        _ => anyhow::bail!("mode {:o} has no valid file type", metadata.mode),
    };
    let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
    if is_device && !shared.preserve.all() {
        shared.refusals.count(Refused::UnwantedDeviceNode);
        return Ok(None);
    }
    let device = metadata
        .device
        .filter(|_| is_device)
        .map_or(0, |device| rustix::fs::makedev(device.major, device.minor));
    let mode = if shared.preserve.all() {
        0o600
    } else {
        attributes.permissions & 0o777
    };
    match make_way(parent, name, || {
        rustix::fs::mknodat(&parent.fd, name, kind, Mode::from_raw_mode(mode), device)
    }) {
        Ok(()) => {
            let node = made(parent, name, kind, device)?;
            attributes.apply_to_node(&node, false, parent.has_default_acl, shared)?;
            Ok(Some(node.identity()))
        }
        Err(Errno::PERM) if is_device => {
            shared.refusals.count(Refused::DeviceNode);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Opens the file that was just created under this name; returns an error if another file has
/// replaced it.
fn made(parent: &Directory, name: &OsStr, kind: FileType, device: u64) -> Result<Node> {
    let node = Node::open(&parent.fd, name).context("opening what was made")?;
    if !node.is(kind, device) {
        anyhow::bail!("another process replaced it during the copy");
    }
    Ok(node)
}

/// Makes `name` in `parent` a hard link to the file `expected` at `first`, a path below `top`.
pub(super) fn link(
    top: &Arc<Directory>,
    first: &[u8],
    expected: Identity,
    parent: &Directory,
    name: &OsStr,
) -> Result<()> {
    let mut names: Vec<&OsStr> = first.split(|byte| *byte == b'/').map(OsStr::from_bytes).collect();
    let Some(last) = names.pop().filter(|last| is_valid_name(last.as_bytes())) else {
        anyhow::bail!("the first name of the file is not known")
    };
    // Open each component separately, so that no link on the path is followed.
    let mut directory: Option<OwnedFd> = None;
    for step in names {
        let at = directory.as_ref().unwrap_or(&top.fd);
        directory = Some(beneath::open(at, step, OPEN_DIRECTORY, 0)?);
    }
    let at = directory.as_ref().unwrap_or(&top.fd);
    make_way(parent, name, || {
        rustix::fs::linkat(at, last, &parent.fd, name, AtFlags::empty())
    })
    .context("linking it to its first name")?;
    let linked = rustix::fs::statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if Identity::from(&linked) != expected {
        rustix::fs::unlinkat(&parent.fd, name, AtFlags::empty())?;
        anyhow::bail!("another process replaced its first name during the copy");
    }
    Ok(())
}
