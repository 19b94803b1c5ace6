//! A directory tree of the host as one side of a comparison.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress_fs::inode::kind_of_mode;
use rustix::io::Errno;

use super::content::Segments;
use super::side::{Entry, Facts, Node};

/// The names of all attributes of one file fit into this, by the system's limit.
const NAMES_BYTES: usize = 64 << 10;

/// A directory tree of the host.
#[derive(Debug)]
pub(super) struct HostTree {
    path: PathBuf,
    device: u64,
    one_file_system: bool,
}

/// A file of the host.
#[derive(Clone, Debug)]
pub(super) struct HostFile {
    path: PathBuf,
}

impl HostTree {
    pub(super) fn new(path: &Path, one_file_system: bool) -> Result<Self> {
        // A slash at the end: the directory itself is meant, not a link to it.
        let path = path.join("");
        let device = fs::metadata(&path)
            .with_context(|| path.display().to_string())?
            .dev();
        Ok(Self {
            path,
            device,
            one_file_system,
        })
    }

    pub(super) fn start(&self) -> HostFile {
        HostFile {
            path: self.path.clone(),
        }
    }

    pub(super) fn entries(&self, directory: &HostFile) -> Result<Vec<Entry>> {
        if self.one_file_system && directory.metadata()?.dev() != self.device {
            return Ok(Vec::new());
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(&directory.path).with_context(|| directory.path.display().to_string())? {
            let entry = entry.with_context(|| directory.path.display().to_string())?;
            let node = Node::Host(HostFile { path: entry.path() });
            entries.push(Entry {
                name: entry.file_name().into_vec(),
                node,
            });
        }
        Ok(entries)
    }
}

impl HostFile {
    fn metadata(&self) -> Result<Metadata> {
        fs::symlink_metadata(&self.path).with_context(|| self.path.display().to_string())
    }

    pub(super) fn facts(&self) -> Result<Facts> {
        let metadata = self.metadata()?;
        let is_device = matches!(metadata.mode() & 0o170_000, 0o020_000 | 0o060_000);
        let number = metadata.rdev();
        Ok(Facts {
            kind: kind_of_mode(metadata.mode()),
            permissions: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            size_bytes: metadata.size(),
            modified: (
                metadata.mtime(),
                u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
            ),
            links: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
            identity: (metadata.dev(), metadata.ino()),
            device: is_device.then(|| (rustix::fs::major(number), rustix::fs::minor(number))),
        })
    }

    pub(super) fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let place = || self.path.display().to_string();
        let mut names = vec![0u8; NAMES_BYTES];
        let length = match rustix::fs::llistxattr(&self.path, names.as_mut_slice()) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(error).with_context(place),
        };
        let names = names.get(..length).unwrap_or_default();
        let mut xattrs = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0u8; NAMES_BYTES];
            let length = rustix::fs::lgetxattr(&self.path, OsStr::from_bytes(name), value.as_mut_slice())
                .with_context(place)?;
            value.truncate(length);
            xattrs.push((name.to_vec(), value));
        }
        Ok(xattrs)
    }

    pub(super) fn link_target(&self) -> Result<Vec<u8>> {
        let target = fs::read_link(&self.path).with_context(|| self.path.display().to_string())?;
        Ok(target.into_os_string().into_vec())
    }

    pub(super) fn segments(&self) -> Result<Segments> {
        let file = File::open(&self.path).with_context(|| self.path.display().to_string())?;
        Segments::host(file).with_context(|| self.path.display().to_string())
    }
}
