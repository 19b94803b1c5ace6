//! A directory of the system as a source: the argument of `mkfs.btrfs --rootdir`.
//!
//! Directories are read one after another, and entries are inspected without following links. The
//! source takes only the time of the last change of content. The other times describe this copy of
//! the tree, not its content. The source reads content later. At that read, the file must still
//! have the same identity, size and times of change, both before and after.

use crate::entry::{Attributes, DataExtent, Entry, EntryKind, EntryPath, FileContent, LinkKey, Precedence};
use crate::source::{ContentReader, Contents, Source, SourceError};
use buttress_format::{ByteCount, FileOffset, InodeFlags, Timestamp};
use buttress_fs::NodeKind;
use buttress_fs::{DeviceNumber, Xattr};
use core::ops::Range;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{DirEntry, File, FileType, Metadata, OpenOptions, ReadDir};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kernel's maximum length of a list of names, or of a value, of extended attributes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// A directory and everything below it.
#[derive(Debug)]
pub struct DirectorySource {
    root: PathBuf,
    /// Directories that were found and not read yet, by their paths in the tree.
    pending: Vec<Vec<u8>>,
    open: Option<(Vec<u8>, ReadDir)>,
    started: bool,
    without: Vec<(u64, u64)>,
    without_names: Vec<Vec<u8>>,
    /// The path in the tree at which the directory is placed.
    below: EntryPath,
    buffer: Vec<u8>,
}

impl DirectorySource {
    /// Makes a source of the directory at this path.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            pending: Vec::new(),
            open: None,
            started: false,
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

    fn begin(&mut self) -> Result<Entry, SourceError> {
        self.started = true;
        let metadata = std::fs::metadata(&self.root);
        let metadata = metadata.map_err(|cause| Self::failed("looking at", &self.root, cause))?;
        if !metadata.is_dir() {
            let cause = io::ErrorKind::NotADirectory.into();
            return Err(Self::failed("reading", &self.root, cause));
        }
        // A link may lead to the root itself, but not to entries below.
        let root = self.root.canonicalize();
        self.root = root.map_err(|cause| Self::failed("looking at", &self.root, cause))?;
        self.pending.push(Vec::new());
        let path = self.root.clone();
        self.entry(self.below.clone(), &path, &metadata)
    }

    fn next_in_directory(&mut self) -> Result<Option<(Vec<u8>, DirEntry)>, SourceError> {
        loop {
            if let Some((at, open)) = &mut self.open {
                match open.next() {
                    Some(Ok(entry)) => return Ok(Some((at.clone(), entry))),
                    Some(Err(cause)) => {
                        let path = host_path(&self.root, at);
                        return Err(Self::failed("reading", &path, cause));
                    }
                    None => self.open = None,
                }
            }
            let Some(at) = self.pending.pop() else {
                return Ok(None);
            };
            let path = host_path(&self.root, &at);
            let open = std::fs::read_dir(&path).map_err(|cause| Self::failed("reading", &path, cause))?;
            self.open = Some((at, open));
        }
    }

    fn entry(&mut self, path: EntryPath, at: &Path, metadata: &Metadata) -> Result<Entry, SourceError> {
        let kind = kind(at, metadata)?;
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
            xattrs: self.xattrs(at)?,
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

    fn xattrs(&mut self, path: &Path) -> Result<Vec<Xattr>, SourceError> {
        let failed = |error: Errno| Self::failed("reading attributes of", path, error.into());
        let length = match rustix::fs::llistxattr(path, &mut self.buffer) {
            Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Ok(length) => length,
            Err(error) => return Err(failed(error)),
        };
        let names = self.buffer.get(..length).unwrap_or_default().to_vec();
        let mut xattrs = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
            let length = match rustix::fs::lgetxattr(path, name, &mut self.buffer) {
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

/// Returns true if a volume keeps attributes of this name. Other attributes belong to the file
/// system that holds them.
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

/// Returns the data extent of a file of this system. Returns `None` if the file has no holes, or if
/// its holes cannot be found.
#[must_use]
pub fn data_of_file(at: &Path, metadata: &Metadata) -> Option<DataExtent> {
    // The limit on a file's ranges. A file with more ranges counts as data throughout.
    const RANGES_MAX: u64 = 1 << 16;
    let seen = Seen::of(metadata);
    if !seen.sparse {
        return None;
    }
    // Reading the file later reports a failure to open it.
    let file = open_file(at).ok()?;
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

fn open_file(host: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(flags).map_err(io::Error::other)?)
        .open(host)
}

fn kind(at: &Path, metadata: &Metadata) -> Result<EntryKind, SourceError> {
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
            data: data_of_file(at, metadata),
            locator: Seen::of(metadata).encode(),
            share: None,
        })
    } else if file_type.is_symlink() {
        let target = std::fs::read_link(at);
        let target = target.map_err(|cause| DirectorySource::failed("reading", at, cause))?;
        EntryKind::Symlink(target.into_os_string().into_vec())
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
        if !self.started {
            return self.begin().map(Some);
        }
        loop {
            let Some((mut at, entry)) = self.next_in_directory()? else {
                return Ok(None);
            };
            let host = entry.path();
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(cause) => return Err(Self::failed("looking at", &host, cause)),
            };
            if self.without.contains(&(metadata.dev(), metadata.ino())) {
                continue;
            }
            let name = entry.file_name();
            if self
                .without_names
                .iter()
                .any(|left_out| name.as_bytes() == left_out)
            {
                continue;
            }
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(name.as_bytes());
            let path = EntryPath::new(&[self.below.as_bytes(), b"/", &at].concat()).map_err(|problem| {
                SourceError::Invalid {
                    place: host.display().to_string(),
                    problem: problem.into(),
                }
            })?;
            let entry = self.entry(path, &host, &metadata)?;
            if metadata.is_dir() {
                self.pending.push(at);
            }
            return Ok(Some(entry));
        }
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        Ok(Arc::new(DirectoryContents {
            root: self.root.clone(),
            below: self.below.clone(),
        }))
    }
}

/// The state of a file when its entry was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    inode: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
    /// True if the file allocates fewer blocks than its length, so that it may have holes.
    sparse: bool,
}

impl Seen {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.len(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
            sparse: metadata.blocks().saturating_mul(512) < metadata.len(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let numbers = [
            self.inode.to_le_bytes(),
            self.size.to_le_bytes(),
            self.mtime.0.to_le_bytes(),
            self.mtime.1.to_le_bytes(),
            self.ctime.0.to_le_bytes(),
            self.ctime.1.to_le_bytes(),
        ];
        let mut bytes = numbers.concat();
        bytes.push(u8::from(self.sparse));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut parts = bytes.chunks(8);
        let mut next = || parts.next()?.try_into().ok();
        Some(Self {
            inode: u64::from_le_bytes(next()?),
            size: u64::from_le_bytes(next()?),
            mtime: (i64::from_le_bytes(next()?), i64::from_le_bytes(next()?)),
            ctime: (i64::from_le_bytes(next()?), i64::from_le_bytes(next()?)),
            sparse: bytes.last() == Some(&1),
        })
    }

    /// Returns the difference to the current state as text.
    fn difference(&self, now: &Self) -> Option<String> {
        if now.inode != self.inode {
            return Some("another file has replaced it".to_owned());
        }
        if now.size != self.size {
            return Some(format!(
                "its size changed from {} to {} bytes",
                self.size, now.size
            ));
        }
        if now.mtime != self.mtime || now.ctime != self.ctime {
            return Some("its change time differs".to_owned());
        }
        None
    }
}

/// A reader of files below a directory.
#[derive(Debug)]
struct DirectoryContents {
    root: PathBuf,
    below: EntryPath,
}

impl Contents for DirectoryContents {
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        let path = path.as_bytes();
        let inside = path.strip_prefix(self.below.as_bytes()).unwrap_or(path);
        let inside = inside.strip_prefix(b"/").unwrap_or(inside);
        let host = host_path(&self.root, inside);
        let file = open_file(&host).map_err(|cause| DirectorySource::failed("opening", &host, cause))?;
        let seen = Seen::decode(&content.locator).ok_or_else(|| SourceError::Changed {
            place: host.display().to_string(),
            what: "its recorded state is lost".to_owned(),
        })?;
        let mut reader = FileReader { file, host, seen };
        reader.finish()?;
        Ok(Box::new(reader))
    }
}

/// A file that is being read.
#[derive(Debug)]
struct FileReader {
    file: File,
    host: PathBuf,
    seen: Seen,
}

impl FileReader {
    fn failed(&self, cause: io::Error) -> SourceError {
        DirectorySource::failed("reading", &self.host, cause)
    }
}

impl ContentReader for FileReader {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        let size = self.seen.size;
        if from.get() >= size {
            return Ok(None);
        }
        if !self.seen.sparse {
            return Ok(Some(from..FileOffset::new(size)));
        }
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(from.get())) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL) => return Ok(Some(from..FileOffset::new(size))),
            Err(error) => return Err(self.failed(error.into())),
        };
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start));
        let end = end.map_err(|error| self.failed(error.into()))?;
        if start >= size {
            return Ok(None);
        }
        Ok(Some(FileOffset::new(start)..FileOffset::new(end.min(size))))
    }

    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError> {
        match self.file.read_exact_at(into, at.get()) {
            Ok(()) => Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Err(SourceError::Changed {
                place: self.host.display().to_string(),
                what: format!("it is truncated (expected {} bytes)", self.seen.size),
            }),
            Err(cause) => Err(self.failed(cause)),
        }
    }

    fn host_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        let metadata = self.file.metadata().map_err(|cause| self.failed(cause))?;
        match self.seen.difference(&Seen::of(&metadata)) {
            Some(what) => Err(SourceError::Changed {
                place: self.host.display().to_string(),
                what,
            }),
            None => Ok(()),
        }
    }
}
