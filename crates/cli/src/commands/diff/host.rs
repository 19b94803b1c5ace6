//! A directory tree of the host as one side of a comparison.
//!
//! Files are reached by a single name in an open directory: links on the way are never followed, and paths may be
//! longer than the system's limit for one call.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use buttress_fs::inode::kind_of_mode;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::content::Segments;
use super::side::{Entry, Facts, Node};

/// The names of all attributes of one file, and any value, fit into this, by the system's limit.
const ATTRIBUTE_BYTES: usize = 64 << 10;

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory tree of the host.
#[derive(Debug)]
pub(super) struct HostTree {
    start: HostFile,
    device: u64,
    one_file_system: bool,
}

/// A file of the host: a name in an open directory.
#[derive(Clone, Debug)]
pub(super) struct HostFile {
    directory: Arc<OwnedFd>,
    name: OsString,
}

impl HostTree {
    pub(super) fn new(path: &Path, one_file_system: bool) -> Result<Self> {
        let directory = rustix::fs::openat(CWD, path, OPEN_DIRECTORY, Mode::empty())
            .with_context(|| path.display().to_string())?;
        let start = HostFile {
            directory: Arc::new(directory),
            name: ".".into(),
        };
        let device = start.stat()?.st_dev;
        Ok(Self {
            start,
            device,
            one_file_system,
        })
    }

    pub(super) fn start(&self) -> HostFile {
        self.start.clone()
    }

    pub(super) fn entries(&self, directory: &HostFile) -> Result<Vec<Entry>> {
        if self.one_file_system && directory.stat()?.st_dev != self.device {
            return Ok(Vec::new());
        }
        let opened = Arc::new(directory.open(OPEN_DIRECTORY)?);
        let mut entries = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name == b"." || name == b".." {
                continue;
            }
            let file = HostFile {
                directory: Arc::clone(&opened),
                name: OsString::from_vec(name.clone()),
            };
            entries.push(Entry {
                name,
                node: Node::Host(file),
            });
        }
        Ok(entries)
    }
}

impl HostFile {
    fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())
    }

    pub(super) fn facts(&self) -> Result<Facts> {
        let stat = self.stat()?;
        let is_device = matches!(stat.st_mode & 0o170_000, 0o020_000 | 0o060_000);
        Ok(Facts {
            kind: kind_of_mode(stat.st_mode),
            permissions: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            identity: (stat.st_dev, stat.st_ino),
            device: is_device.then(|| (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev))),
        })
    }

    pub(super) fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        // There is no call that takes a directory and a name; this path leads to the directory without following
        // links.
        let path = Path::new("/proc/self/fd")
            .join(self.directory.as_raw_fd().to_string())
            .join(&self.name);
        let mut names = vec![0u8; ATTRIBUTE_BYTES];
        let length = match rustix::fs::llistxattr(&path, names.as_mut_slice()) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(error).context("listing its attributes"),
        };
        let names = names.get(..length).unwrap_or_default();
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        names
            .map(|name| Ok((name.to_vec(), xattr(&path, name)?)))
            .collect()
    }

    pub(super) fn link_target(&self) -> Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(&self.directory, &self.name, Vec::new())?;
        Ok(target.into_bytes())
    }

    pub(super) fn segments(&self) -> Result<Segments> {
        Ok(Segments::host(File::from(self.open(OFlags::RDONLY)?))?)
    }
}

fn xattr(path: &Path, name: &[u8]) -> Result<Vec<u8>> {
    let mut value = vec![0u8; ATTRIBUTE_BYTES];
    let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), value.as_mut_slice())
        .with_context(|| format!("its attribute {}", name.escape_ascii()))?;
    value.truncate(length);
    Ok(value)
}
