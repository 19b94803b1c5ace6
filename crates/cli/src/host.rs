//! Files of the host, addressed by a single name in an open directory. Links on the path are never
//! followed, and paths may be longer than the system's limit for one call.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Size of a buffer for the attribute names of one file, or for one value; the system's limit in
/// bytes.
const ATTRIBUTE_BYTES: usize = 64 << 10;

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A file of the host: a name in an open directory.
#[derive(Clone, Debug)]
pub struct HostFile {
    directory: Arc<OwnedFd>,
    name: OsString,
}

impl HostFile {
    /// Opens the directory at a path, and follows links in the path.
    pub fn directory(path: &Path) -> Result<Self> {
        let directory = rustix::fs::openat(CWD, path, OPEN_DIRECTORY, Mode::empty())
            .with_context(|| path.display().to_string())?;
        Ok(Self {
            directory: Arc::new(directory),
            name: ".".into(),
        })
    }

    /// Returns the file with this name in the directory at a path.
    pub fn named(directory: &Path, name: &OsStr) -> Result<Self> {
        let mut file = Self::directory(directory)?;
        file.name = name.to_owned();
        Ok(file)
    }

    /// Returns the name of the file.
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// Lists the entries of a directory, in the order of the system.
    pub fn entries(&self) -> Result<Vec<Self>> {
        let opened = Arc::new(self.open_quietly(OPEN_DIRECTORY)?);
        let mut entries = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                entries.push(Self {
                    directory: Arc::clone(&opened),
                    name: OsString::from_vec(name),
                });
            }
        }
        Ok(entries)
    }

    /// Returns the inode's attributes, without following a link.
    pub fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens the file like [`open`](Self::open), without an access time update if the system allows
    /// this. If the copy is repeated, it then gives the same result.
    pub fn open_quietly(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.open(flags.union(OFlags::NOATIME)) {
            // If the process does not own the file, it cannot suppress the access time update.
            Err(Errno::PERM) => self.open(flags),
            opened => opened,
        }
    }

    /// Opens the file for reading, unless it is a symbolic link.
    pub fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())
    }

    /// Returns the extended attributes with their full names.
    pub fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        // The system has no `*at` call of this kind for a directory and a name. This path leads to
        // the directory without following links.
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

    /// Returns the target of a symbolic link.
    pub fn link_target(&self) -> Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(&self.directory, &self.name, Vec::new())?;
        Ok(target.into_bytes())
    }
}

fn xattr(path: &Path, name: &[u8]) -> Result<Vec<u8>> {
    let mut value = vec![0u8; ATTRIBUTE_BYTES];
    let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), value.as_mut_slice())
        .with_context(|| format!("its attribute {}", name.escape_ascii()))?;
    value.truncate(length);
    Ok(value)
}
