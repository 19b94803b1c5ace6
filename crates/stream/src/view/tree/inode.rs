//! Inodes of a view's tree.

use super::Entries;
use crate::view::extents::{ExtentMap, FILE_BYTES_MAX, Pieces};
use buttress_format::{ByteCount, FileKind, FileOffset, InodeNumber, Timestamp, name_hash};
use rpds::RedBlackTreeMapSync;
use std::sync::Arc;

/// An inode of any kind, in its state after the streams so far. A copy is cheap: it shares names,
/// content and attributes.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Kind of the inode, with its kind-specific data.
    pub node: Node,
    /// Inode number at the sender, if the stream contains it.
    pub number: Option<InodeNumber>,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Times from the stream. Times that the stream does not set are zero in the view; a receiver
    /// would use its clock.
    pub times: Times,
    /// Number of names; 1 for directories.
    pub links: u32,
    /// Inode flags, if the stream sets them.
    pub flags: Option<u64>,
    xattrs: RedBlackTreeMapSync<Arc<[u8]>, Arc<[u8]>>,
}

/// The times of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time of the last access.
    pub accessed: Timestamp,
    /// Time of the last change of the content.
    pub modified: Timestamp,
    /// Time of the last change of the inode at the sender.
    pub changed: Timestamp,
    /// Creation time at the sender; present from stream version 2 on.
    pub created: Option<Timestamp>,
}

/// Kind of an inode, with its kind-specific data.
#[derive(Clone, Debug)]
pub enum Node {
    /// A directory; see [`Tree::entries`](super::Tree::entries).
    Directory(Directory),
    /// A regular file.
    File(File),
    /// A symbolic link.
    Symlink {
        /// Target path, unchecked.
        target: Arc<[u8]>,
    },
    /// A device node.
    Device {
        /// True for a block device, false for a character device.
        block: bool,
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// The names of a directory.
#[derive(Clone, Debug, Default)]
pub struct Directory(pub(in crate::view) Entries);

impl Directory {
    /// Returns the number of names in the directory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.size()
    }

    /// Returns whether the directory is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The content of a regular file.
#[derive(Clone, Debug, Default)]
pub struct File {
    pub(in crate::view) size: u64,
    pub(in crate::view) extents: ExtentMap,
    /// True if ranges of the file changed to content that the stream omits.
    pub(in crate::view) lacks_data: bool,
    pub(in crate::view) has_verity: bool,
}

impl File {
    /// Returns the size of the file.
    #[must_use]
    pub const fn size(&self) -> ByteCount {
        ByteCount::new(self.size)
    }

    /// Returns whether a stream omitted content of the file (`--no-data`).
    #[must_use]
    pub const fn lacks_data(&self) -> bool {
        self.lacks_data
    }

    /// Returns whether fs-verity is enabled.
    #[must_use]
    pub const fn has_verity(&self) -> bool {
        self.has_verity
    }

    /// Returns the ranges that hold data, `[start, end)`, in order. The returned ranges may be
    /// adjacent.
    pub fn data_ranges(&self) -> impl Iterator<Item = (FileOffset, FileOffset)> {
        self.pieces().filter(|piece| piece.data.is_some()).map(|piece| {
            let end = piece.offset.saturating_add(piece.length);
            (FileOffset::new(piece.offset), FileOffset::new(end))
        })
    }

    /// Returns the approximate number of bytes that are not in holes. Holes in cloned ranges count
    /// as data.
    #[must_use]
    pub fn data_bytes(&self) -> ByteCount {
        ByteCount::new(self.extents.covered_bytes(self.size))
    }

    pub(crate) fn pieces(&self) -> Pieces {
        Pieces::new(&self.extents, self.size)
    }

    /// Grows the file to at least `size` bytes.
    pub(in crate::view) fn grow_to(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    pub(in crate::view) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.extents.remove(size, FILE_BYTES_MAX);
        }
        if size == 0 {
            self.lacks_data = false;
        }
        self.size = size;
    }
}

impl Node {
    /// Creates an empty directory.
    pub(in crate::view) fn directory() -> Self {
        Self::Directory(Directory::default())
    }

    /// Returns the kind of the inode in words.
    #[must_use]
    pub const fn kind_name(&self) -> &'static str {
        match self {
            Self::Directory(_) => "directory",
            Self::File(_) => "regular file",
            Self::Symlink { .. } => "symbolic link",
            Self::Device { .. } => "device",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
        }
    }

    /// Returns the kind of the inode as the file type of directory items.
    #[must_use]
    pub const fn kind(&self) -> FileKind {
        match self {
            Self::Directory(_) => FileKind::Directory,
            Self::File(_) => FileKind::Regular,
            Self::Symlink { .. } => FileKind::Symlink,
            Self::Device { block: true, .. } => FileKind::BlockDevice,
            Self::Device { block: false, .. } => FileKind::CharacterDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }
}

impl Inode {
    pub(in crate::view) fn new(node: Node, permissions: u32, number: Option<InodeNumber>) -> Self {
        Self {
            node,
            number,
            permissions,
            uid: 0,
            gid: 0,
            times: Times::default(),
            links: 1,
            flags: None,
            xattrs: RedBlackTreeMapSync::new_sync(),
        }
    }

    /// Returns type and permission bits, as in `st_mode`.
    #[must_use]
    pub const fn mode(&self) -> u32 {
        let kind = match self.node.kind() {
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::CharacterDevice => 0o020_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            _ => 0o100_000,
        };
        kind | self.permissions
    }

    /// Returns `st_size`: the content length of a file, the target length of a symbolic link and,
    /// as in btrfs, twice the length of a directory's names.
    #[must_use]
    pub fn size(&self) -> ByteCount {
        ByteCount::new(match &self.node {
            Node::File(file) => file.size,
            Node::Symlink { target } => target.len() as u64,
            Node::Directory(directory) => directory.0.keys().fold(0, |sum: u64, name| {
                sum.saturating_add((name.len() as u64).saturating_mul(2))
            }),
            _ => 0,
        })
    }

    /// Returns names and values of the extended attributes, in the order in which btrfs stores and
    /// lists them: by the hashes of their names.
    #[must_use]
    pub fn xattrs(&self) -> Vec<(&[u8], &[u8])> {
        let all = self.xattrs.iter();
        let mut all: Vec<_> = all.map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
        all.sort_by_cached_key(|(name, _)| name_hash(name));
        all
    }

    pub(in crate::view) fn set_xattr(&mut self, name: &[u8], value: &[u8]) {
        self.xattrs.insert_mut(name.into(), value.into());
    }

    /// Removes an extended attribute. Returns whether the extended attribute existed.
    pub(in crate::view) fn remove_xattr(&mut self, name: &[u8]) -> bool {
        self.xattrs.remove_mut(name)
    }
}
