//! One inode.

use super::Entries;
use crate::view::extents::{ExtentMap, FILE_BYTES_MAX, Pieces};
use buttress_format::{ByteCount, FileKind, FileOffset, InodeNumber, Timestamp, name_hash};
use rpds::RedBlackTreeMapSync;
use std::sync::Arc;

/// A file of any kind, as the streams so far made it. A clone is cheap: it shares names, content and attributes.
#[derive(Clone, Debug)]
pub struct Inode {
    /// What it is, with what only that has.
    pub node: Node,
    /// Inode number at the sender, where the stream says it.
    pub number: Option<InodeNumber>,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Times, as the stream sets them. Where it does not, a receiver's clock would: here they are zero.
    pub times: Times,
    /// Names; 1 for directories.
    pub links: u32,
    /// Inode flags, where the stream sets them.
    pub flags: Option<u64>,
    xattrs: RedBlackTreeMapSync<Arc<[u8]>, Arc<[u8]>>,
}

/// The times of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of anything, at the sender.
    pub changed: Timestamp,
    /// When it was made at the sender; from version 2 of the stream on.
    pub created: Option<Timestamp>,
}

/// What an inode is.
#[derive(Clone, Debug)]
pub enum Node {
    /// A directory: [`Tree::entries`](super::Tree::entries).
    Directory(Directory),
    /// A regular file.
    File(File),
    /// A symbolic link.
    Symlink {
        /// Where it points, unchecked.
        target: Arc<[u8]>,
    },
    /// A device.
    Device {
        /// Whether a block device; else a character device.
        block: bool,
        /// The driver.
        major: u32,
        /// The device.
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
    /// How many names it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.size()
    }

    /// Whether it holds none.
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
    /// Ranges of it changed, but the stream does not say to what.
    pub(in crate::view) lacks_data: bool,
    pub(in crate::view) has_verity: bool,
}

impl File {
    /// Its size.
    #[must_use]
    pub const fn size(&self) -> ByteCount {
        ByteCount::new(self.size)
    }

    /// Whether content of it was not sent (`--no-data`).
    #[must_use]
    pub const fn lacks_data(&self) -> bool {
        self.lacks_data
    }

    /// Whether fs-verity is on.
    #[must_use]
    pub const fn has_verity(&self) -> bool {
        self.has_verity
    }

    /// The ranges that hold data, `[start, end)`, in order. One may begin where the one before ends.
    pub fn data_ranges(&self) -> impl Iterator<Item = (FileOffset, FileOffset)> {
        self.pieces().filter(|piece| piece.data.is_some()).map(|piece| {
            let end = piece.offset.saturating_add(piece.length);
            (FileOffset::new(piece.offset), FileOffset::new(end))
        })
    }

    /// How much of it is not a hole, roughly: holes in what was cloned count.
    #[must_use]
    pub fn data_bytes(&self) -> ByteCount {
        ByteCount::new(self.extents.covered_bytes(self.size))
    }

    pub(crate) fn pieces(&self) -> Pieces {
        Pieces::new(&self.extents, self.size)
    }

    /// Makes it at least this long.
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
    /// An empty directory.
    pub(in crate::view) fn directory() -> Self {
        Self::Directory(Directory::default())
    }

    /// What it is, in words.
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

    /// What it is, as directory items say it.
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

    /// Type and permission bits, as `st_mode` has them.
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

    /// `st_size`: of a file its content, of a symbolic link its target, of a directory twice the length of its
    /// names, as btrfs has it.
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

    /// Extended attributes, name and value, in the order in which btrfs keeps and lists them: that of the hashes
    /// of their names.
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

    /// Returns whether it was there.
    pub(in crate::view) fn remove_xattr(&mut self, name: &[u8]) -> bool {
        self.xattrs.remove_mut(name)
    }
}
