//! A directory of the system as a source: the argument of `mkfs.btrfs --rootdir`.
//!
//! Directories are read one after another, and entries are inspected without following links. The
//! source takes only the time of the last change of content. The other times describe this copy of
//! the tree, not its content. The source reads content later. At that read, the file must still
//! have the same identity, size and times of change, both before and after.
//!
//! Another user may own a part of the tree and change it meanwhile. The source therefore opens every
//! directory and file from the open root, one component after another, and follows no link. A
//! directory must still be the one that was found. Entries never come from outside of the root.

use crate::entry::{Attributes, DataExtent, Entry, EntryKind, EntryPath, FileContent, LinkKey, Precedence};
use crate::source::{Contents, Source, SourceError};
use beneath::{DIRECTORY_FLAGS, Identity, open_beneath};
use buttress_format::{ByteCount, InodeFlags, Timestamp};
use buttress_fs::NodeKind;
use buttress_fs::{DeviceNumber, Xattr};
use contents::{DirectoryContents, Seen};
use rustix::fs::{CWD, Dir, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod beneath;
mod contents;

/// The kernel's maximum length of a list of names, or of a value, of extended attributes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// A directory and everything below it.
#[derive(Debug)]
pub struct DirectorySource {
    root: PathBuf,
    /// The open root, after the first entry.
    top: Option<Arc<OwnedFd>>,
    /// Directories that were found and not read yet, by their paths in the tree.
    pending: Vec<(Vec<u8>, Identity)>,
    open: Option<OpenDirectory>,
    without: Vec<(u64, u64)>,
    without_names: Vec<Vec<u8>>,
    /// The path in the tree at which the directory is placed.
    below: EntryPath,
    buffer: Vec<u8>,
}

/// The directory whose entries are being read.
#[derive(Debug)]
struct OpenDirectory {
    /// The path in the tree.
    path: Vec<u8>,
    directory: OwnedFd,
    entries: Dir,
}

/// A file that an entry describes.
struct Node<'a> {
    /// The file itself, not the target of a link. It gives no access to the content.
    opened: &'a File,
    /// The directory that contains the file, and the file's name.
    place: (BorrowedFd<'a>, &'a [u8]),
    /// The path for messages.
    host: &'a Path,
    metadata: &'a Metadata,
}

impl DirectorySource {
    /// Makes a source of the directory at this path.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            top: None,
            pending: Vec::new(),
            open: None,
            without: Vec::new(),
            without_names: Vec::new(),
            below: EntryPath::root(),
            buffer: vec![0; XATTR_BYTES_MAX],
        }
    }

    /// Leaves out the file with this device and inode number: the image itself, if the source
    /// directory contains it.
    #[must_use]
    pub fn without(mut self, device: u64, inode: u64) -> Self {
        self.without.push((device, inode));
        self
    }

    /// Leaves out entries with this name, and everything below them.
    #[must_use]
    pub fn without_name(mut self, name: &[u8]) -> Self {
        self.without_names.push(name.to_vec());
        self
    }

    /// Places the source directory at this path of the tree, instead of the root.
    #[must_use]
    pub fn below(mut self, path: EntryPath) -> Self {
        self.below = path;
        self
    }

    fn failed(action: &'static str, path: &Path, cause: io::Error) -> SourceError {
        SourceError::Io {
            action,
            place: path.display().to_string(),
            cause,
        }
    }

    /// Opens the root.
    fn open_top(&mut self) -> Result<Arc<OwnedFd>, SourceError> {
        let metadata = std::fs::metadata(&self.root);
        let metadata = metadata.map_err(|cause| Self::failed("looking at", &self.root, cause))?;
        if !metadata.is_dir() {
            let cause = io::ErrorKind::NotADirectory.into();
            return Err(Self::failed("reading", &self.root, cause));
        }
        // A symbolic link may lead to the root itself, but the source follows no link below the
        // root.
        let root = self.root.canonicalize();
        self.root = root.map_err(|cause| Self::failed("looking at", &self.root, cause))?;
        let flags = DIRECTORY_FLAGS | OFlags::CLOEXEC;
        let top = rustix::fs::openat(CWD, &self.root, flags, Mode::empty());
        let top = top.map_err(|error| Self::failed("reading", &self.root, error.into()))?;
        let top = Arc::new(top);
        self.top = Some(Arc::clone(&top));
        Ok(top)
    }

    fn begin(&mut self) -> Result<Entry, SourceError> {
        let top = self.open_top()?;
        let (opened, metadata) =
            inspected(&top, b".").map_err(|cause| Self::failed("looking at", &self.root, cause))?;
        self.pending.push((Vec::new(), Identity::of(&metadata)));
        let node = Node {
            opened: &opened,
            place: (top.as_fd(), b"."),
            host: &self.root.clone(),
            metadata: &metadata,
        };
        self.entry(self.below.clone(), &node)
    }

    /// Returns the next name in the open directory, or in the next pending one.
    fn next_name(&mut self) -> Result<Option<Vec<u8>>, SourceError> {
        loop {
            if let Some(open) = &mut self.open {
                match open.entries.next() {
                    Some(Ok(entry)) => {
                        let name = entry.file_name().to_bytes();
                        if !matches!(name, b"." | b"..") {
                            return Ok(Some(name.to_vec()));
                        }
                        continue;
                    }
                    Some(Err(error)) => {
                        let path = host_path(&self.root, &open.path);
                        return Err(Self::failed("reading", &path, error.into()));
                    }
                    None => self.open = None,
                }
            }
            let Some((path, identity)) = self.pending.pop() else {
                return Ok(None);
            };
            self.open = Some(self.open_directory(path, identity)?);
        }
    }

    /// Opens a directory that was found earlier.
    fn open_directory(&self, path: Vec<u8>, found: Identity) -> Result<OpenDirectory, SourceError> {
        let host = host_path(&self.root, &path);
        let failed = |cause: io::Error| Self::failed("reading", &host, cause);
        let top = self
            .top
            .as_ref()
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let directory =
            open_beneath(top.as_fd(), &path, DIRECTORY_FLAGS).map_err(|error| failed(error.into()))?;
        let directory = File::from(directory);
        if Identity::of(&directory.metadata().map_err(failed)?) != found {
            return Err(SourceError::Changed {
                place: host.display().to_string(),
                what: "another directory has replaced it".to_owned(),
            });
        }
        Ok(OpenDirectory {
            path,
            entries: Dir::read_from(&directory).map_err(|error| failed(error.into()))?,
            directory: directory.into(),
        })
    }

    fn entry(&mut self, path: EntryPath, node: &Node<'_>) -> Result<Entry, SourceError> {
        let kind = kind(node)?;
        let metadata = node.metadata;
        let is_link = kind_has_links(&kind) && metadata.nlink() > 1;
        let attributes = Attributes {
            permissions: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            mtime: Timestamp {
                seconds: metadata.mtime(),
                nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
            },
            atime: None,
            ctime: None,
            otime: None,
            xattrs: self.xattrs(node)?,
            flags: InodeFlags::empty(),
            compression: None,
            link: is_link.then(|| LinkKey(metadata.dev(), metadata.ino())),
        };
        Ok(Entry {
            path,
            precedence: Precedence::default(),
            kind,
            attributes,
        })
    }

    /// Returns the entry of a name in the open directory. Returns `None` for a file that is left out.
    fn entry_of_name(&mut self, name: &[u8]) -> Result<Option<Entry>, SourceError> {
        let Some(open) = self.open.take() else {
            return Ok(None);
        };
        let at = match open.path.as_slice() {
            b"" => name.to_vec(),
            above => [above, b"/", name].concat(),
        };
        let host = host_path(&self.root, &at);
        let found = inspected(&open.directory, name);
        let (opened, metadata) = found.map_err(|cause| Self::failed("looking at", &host, cause))?;
        let node = Node {
            opened: &opened,
            place: (open.directory.as_fd(), name),
            host: &host,
            metadata: &metadata,
        };
        let is_left_out = self.without.contains(&(metadata.dev(), metadata.ino()));
        let entry = match is_left_out {
            true => None,
            false => {
                let path = EntryPath::new(&[self.below.as_bytes(), b"/", &at].concat());
                let path = path.map_err(|problem| SourceError::Invalid {
                    place: host.display().to_string(),
                    problem: problem.into(),
                })?;
                Some(self.entry(path, &node)?)
            }
        };
        self.open = Some(open);
        if metadata.is_dir() && !is_left_out {
            self.pending.push((at, Identity::of(&metadata)));
        }
        Ok(entry)
    }

    fn xattrs(&mut self, node: &Node<'_>) -> Result<Vec<Xattr>, SourceError> {
        let failed = |error: Errno| Self::failed("reading attributes of", node.host, error.into());
        // The system reads attributes through a descriptor only if the file is open for reading.
        // This path leads to the open file itself, even if the file is a link.
        let path = PathBuf::from(format!("/proc/self/fd/{}", node.opened.as_raw_fd()));
        let length = match rustix::fs::listxattr(&path, &mut self.buffer) {
            Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Ok(length) => length,
            Err(Errno::NOENT) => {
                let cause = io::Error::other("/proc is not mounted");
                return Err(Self::failed("reading attributes of", node.host, cause));
            }
            Err(error) => return Err(failed(error)),
        };
        let names = self.buffer.get(..length).unwrap_or_default().to_vec();
        let mut xattrs = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
            let length = match rustix::fs::getxattr(&path, name, &mut self.buffer) {
                Ok(length) => length,
                // The attribute is listed, but this process may not read it.
                Err(Errno::NODATA | Errno::NOTSUP) => continue,
                Err(error) => return Err(failed(error)),
            };
            xattrs.push(Xattr {
                name: name.to_vec(),
                value: self.buffer.get(..length).unwrap_or_default().to_vec(),
            });
        }
        // The kernel lists attributes in no meaningful order.
        xattrs.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(xattrs)
    }
}

/// Returns true if a volume keeps attributes of this name. Attributes of other name spaces belong
/// to the file system that holds the source directory.
fn is_kept(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 5] = [
        b"user.",
        b"security.",
        b"trusted.",
        b"system.posix_acl_",
        b"btrfs.",
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

const fn kind_has_links(kind: &EntryKind) -> bool {
    matches!(
        kind,
        EntryKind::File(_) | EntryKind::Symlink(_) | EntryKind::Node(_)
    )
}

fn host_path(root: &Path, at: &[u8]) -> PathBuf {
    if at.is_empty() {
        root.to_owned()
    } else {
        root.join(std::ffi::OsStr::from_bytes(at))
    }
}

/// Opens the file with this name itself, even if it is a link, and returns its attributes.
fn inspected(directory: impl AsFd, name: &[u8]) -> io::Result<(File, Metadata)> {
    let opened = File::from(open_beneath(directory.as_fd(), name, OFlags::PATH)?);
    let metadata = opened.metadata()?;
    Ok((opened, metadata))
}

/// Returns the data extent of a file of this system. Returns `None` if the file has no holes, or if
/// its holes cannot be found.
#[must_use]
pub fn data_of_file(at: &Path, metadata: &Metadata) -> Option<DataExtent> {
    let flags = FILE_FLAGS | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    data_of(metadata, || rustix::fs::openat(CWD, at, flags, Mode::empty()))
}

/// Flags that open a file's content. If a pipe has replaced the file, opening it does not wait.
const FILE_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

fn data_of(metadata: &Metadata, open: impl FnOnce() -> Result<OwnedFd, Errno>) -> Option<DataExtent> {
    // The limit on a file's ranges. A file with more ranges counts as data throughout.
    const RANGES_MAX: u64 = 1 << 16;
    let seen = Seen::of(metadata);
    if !seen.sparse {
        return None;
    }
    // If this open fails, a later read of the file reports the failure.
    let file = open().ok()?;
    let mut found = DataExtent::default();
    let mut from = 0;
    while from < seen.size && found.ranges < RANGES_MAX {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(from)) {
            Ok(start) if start < seen.size => start,
            Ok(_) | Err(Errno::NXIO) => return Some(found),
            Err(_) => return None,
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start))
            .ok()?
            .min(seen.size);
        // The file changed during the search for holes, so its holes cannot be found.
        let length = end.checked_sub(start).filter(|length| *length > 0)?;
        found = found.with_range(length);
        from = end;
    }
    (from >= seen.size).then_some(found)
}

fn kind(node: &Node<'_>) -> Result<EntryKind, SourceError> {
    let metadata = node.metadata;
    let file_type: FileType = metadata.file_type();
    let number = || {
        let raw = metadata.rdev();
        DeviceNumber {
            major: rustix::fs::major(raw),
            minor: rustix::fs::minor(raw),
        }
    };
    Ok(if file_type.is_dir() {
        EntryKind::Directory(None)
    } else if file_type.is_file() {
        EntryKind::File(FileContent {
            size: ByteCount::new(metadata.len()),
            data: data_of(metadata, || open_beneath(node.place.0, node.place.1, FILE_FLAGS)),
            locator: Seen::of(metadata).encode(),
            share: None,
        })
    } else if file_type.is_symlink() {
        let target = rustix::fs::readlinkat(node.opened, "", Vec::new());
        let target = target.map_err(|error| DirectorySource::failed("reading", node.host, error.into()))?;
        EntryKind::Symlink(target.into_bytes())
    } else if file_type.is_fifo() {
        EntryKind::Node(NodeKind::Fifo)
    } else if file_type.is_socket() {
        EntryKind::Node(NodeKind::Socket)
    } else if file_type.is_char_device() {
        EntryKind::Node(NodeKind::CharacterDevice(number()))
    } else {
        EntryKind::Node(NodeKind::BlockDevice(number()))
    })
}

impl Source for DirectorySource {
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        if self.top.is_none() {
            return self.begin().map(Some);
        }
        loop {
            let Some(name) = self.next_name()? else {
                return Ok(None);
            };
            if self.without_names.contains(&name) {
                continue;
            }
            if let Some(entry) = self.entry_of_name(&name)? {
                return Ok(Some(entry));
            }
        }
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        let top = match &self.top {
            Some(top) => Arc::clone(top),
            None => self.open_top()?,
        };
        Ok(Arc::new(DirectoryContents {
            root: self.root.clone(),
            top,
            below: self.below.clone(),
        }))
    }
}

#[cfg(test)]
mod tests;
