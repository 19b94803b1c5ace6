//! The operations of a file system, for servers of any protocol.
//!
//! - A [`NodeId`] is a file, directory or other inode. It is unique over all subvolumes of a mount.
//!   Except for placeholders, it is also the inode number that `stat(2)` shows. [`Vfs::lookup`] and
//!   other calls that return an [`Entry`] give out a reference to the node. The node lives, even
//!   without a name, until [`Vfs::forget`] has returned all its references.
//! - A [`HandleId`] is an opened node, and lives until its release.
//! - All calls take `&self` and may come from any number of threads. A call may wait for devices,
//!   but not for another call's commit.
//! - The server, or its kernel, checks permissions from the result of [`Vfs::attributes`]. The file
//!   system enforces universal rules (read-only subvolumes, immutable files).
//! - The errors of this interface are system call error numbers ([`Errno`]). The file system logs
//!   errors that an administrator must know about.

use buttress::{AllocateMode, Metadata, NodeKind, Progress, Timestamp};
use core::fmt;
use core::ops::Range;

/// Number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// Number of an opened node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);

/// A file or directory to read: a handle if the caller opened it, else its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// A handle of the opened file or directory.
    Handle(HandleId),
    /// The node of a file or directory that the caller did not open.
    Node(NodeId),
}

/// Error number of a system call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The operation is not permitted (`EPERM`).
    pub const PERM: Self = Self(libc::EPERM);
    /// The name already exists (`EEXIST`).
    pub const EXIST: Self = Self(libc::EEXIST);
    /// The caller must retry the call later (`EAGAIN`).
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// The target is on another file system (`EXDEV`).
    pub const XDEV: Self = Self(libc::EXDEV);
    /// The file does not exist (`ENOENT`).
    pub const NOENT: Self = Self(libc::ENOENT);
    /// A device failed (`EIO`).
    pub const IO: Self = Self(libc::EIO);
    /// The handle does not exist, or does not allow this call (`EBADF`).
    pub const BADF: Self = Self(libc::EBADF);
    /// The mode or owner of the file forbids the access (`EACCES`).
    pub const ACCES: Self = Self(libc::EACCES);
    /// An argument is invalid (`EINVAL`).
    pub const INVAL: Self = Self(libc::EINVAL);
    /// The control command is unknown (`ENOTTY`).
    pub const NOTTY: Self = Self(libc::ENOTTY);
    /// An address is invalid (`EFAULT`).
    pub const FAULT: Self = Self(libc::EFAULT);
    /// No data or hole exists at or after the offset (`ENXIO`).
    pub const NXIO: Self = Self(libc::ENXIO);
    /// The extended attribute does not exist (`ENODATA`).
    pub const NODATA: Self = Self(libc::ENODATA);
    /// The answer does not fit the caller's buffer (`ERANGE`).
    pub const RANGE: Self = Self(libc::ERANGE);
    /// The file system or subvolume is read-only (`EROFS`).
    pub const ROFS: Self = Self(libc::EROFS);
    /// The directory is not empty (`ENOTEMPTY`).
    pub const NOTEMPTY: Self = Self(libc::ENOTEMPTY);
    /// The server does not support this operation (`EOPNOTSUPP`).
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// The server does not implement this call (`ENOSYS`).
    pub const NOSYS: Self = Self(libc::ENOSYS);
    /// The node no longer exists (`ESTALE`).
    pub const STALE: Self = Self(libc::ESTALE);
    /// The node is not a directory (`ENOTDIR`).
    pub const NOTDIR: Self = Self(libc::ENOTDIR);
    /// The answer is too large for its field (`EOVERFLOW`).
    pub const OVERFLOW: Self = Self(libc::EOVERFLOW);
    /// The file system was shut down (`EIO`).
    pub const SHUTDOWN: Self = Self(libc::EIO);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// Result of a call.
pub type Result<T> = core::result::Result<T, Errno>;

/// A node that a name leads to; the caller gets one reference to it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The node.
    pub node: NodeId,
    /// Distinguishes the node from an earlier node that had the same number.
    pub generation: u64,
    /// Attributes of the node.
    pub metadata: Metadata,
    /// Time in seconds for which the kernel may cache the attributes, unless a call of this file
    /// system changes them.
    pub lasts_s: u64,
}

/// Attributes of a node, with their validity.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The attributes.
    pub metadata: Metadata,
    /// Validity of the attributes in seconds, unless a call of this file system changes them.
    pub lasts_s: u64,
}

/// Owner and mode for a new node.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// Permission bits.
    pub mode: u32,
    /// Permission bits to clear, unless the directory has a default access list.
    pub umask: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id, unless the directory passes its own group on.
    pub gid: u32,
}

/// A new time for an inode.
#[derive(Clone, Copy, Debug)]
pub enum NewTime {
    /// The time of the call.
    Now,
    /// The given time.
    At(Timestamp),
}

/// Changes of a node's attributes; `None` keeps an attribute.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Size of a file in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<NewTime>,
    /// Time of the last change of content.
    pub modified: Option<NewTime>,
    /// Time of the last change of the inode, if the server's kernel maintains it.
    pub changed: Option<Timestamp>,
    /// Clears the set-user-id and set-group-id bits and removes capabilities.
    pub drop_privileges: bool,
    /// Handle that was opened for writing. With a handle that was opened for writing, the mode of
    /// the file no longer matters for a change of size.
    pub handle: Option<HandleId>,
}

impl Changes {
    /// Returns whether this is a `chown` that keeps owner and group: the kernel then names neither.
    #[must_use]
    pub const fn is_of_owner_that_stays(&self) -> bool {
        let names_times = self.accessed.is_some() || self.modified.is_some();
        let names_owner = self.uid.is_some() || self.gid.is_some();
        let names_other = self.mode.is_some() || self.size.is_some() || self.drop_privileges;
        !names_times && !names_owner && !names_other
    }
}

/// Mode in which a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenMode {
    /// The caller may change the file's content.
    pub write: bool,
    /// The caller has no permission to read content. The kernel may still read content through a
    /// write-only handle, to complete a page of a partial write.
    pub write_only: bool,
    /// Writes go to the end of the file.
    pub append: bool,
    /// Opening the file removes its content.
    pub truncate: bool,
    /// Opening with `truncate` also clears the set-user-id and set-group-id bits and removes
    /// capabilities.
    pub drop_privileges: bool,
    /// Writes are durable when they return (`O_DSYNC`, `O_SYNC`). The client syncs after writes; a
    /// copy into the file is durable by itself.
    pub durable: bool,
}

/// Target of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadHow {
    /// The read fills the client's cache.
    Cached,
    /// The read goes directly to the caller's memory.
    Direct,
}

/// Kind of a new node.
#[derive(Clone, Copy, Debug)]
pub enum NewKind<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A pipe, socket or device.
    Node(NodeKind),
}

/// Treatment of an existing entry at the new name of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameHow {
    /// The rename replaces the existing entry.
    Replace,
    /// The rename fails if the entry exists.
    NoReplace,
    /// Both entries swap their names.
    Exchange,
    /// The rename replaces the existing entry, and a whiteout replaces the old name.
    Whiteout,
    /// The rename fails if the entry exists; a whiteout replaces the old name.
    WhiteoutNoReplace,
}

/// A directory entry in a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Name of the entry.
    pub name: Vec<u8>,
    /// Number of the node; the listing gives out no reference to it.
    pub node: NodeId,
    /// File type of the entry, as mode bits.
    pub type_bits: u32,
    /// Position at which the listing continues after this entry.
    pub next: u64,
    /// True for `.` and `..`.
    pub is_dot: bool,
}

/// Sizes and counts of the whole volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Size of a block in bytes, the unit of the counts below.
    pub block_bytes: u32,
    /// Number of all blocks.
    pub blocks: u64,
    /// Number of blocks free for new content.
    pub free: u64,
    /// Number of free blocks for users other than root.
    pub available: u64,
    /// Length of the longest name in bytes.
    pub name_bytes_max: u32,
}

/// Precondition of setting an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetHow {
    /// The attribute may exist or not.
    CreateOrReplace,
    /// The attribute must not exist.
    Create,
    /// The extended attribute must exist.
    Replace,
}

/// Target of [`Vfs::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The next data.
    Data,
    /// The next hole after an offset, or the end of the file.
    Hole,
}

/// Identity of the calling process.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User id of the caller.
    pub uid: u32,
    /// Group id of the caller.
    pub gid: u32,
    /// Process id of the caller.
    pub pid: u32,
}

/// A control command (`ioctl(2)`) with its input.
#[derive(Clone, Copy, Debug)]
pub struct Control<'a> {
    /// Number of the command.
    pub command: u32,
    /// Input from the caller.
    pub input: &'a [u8],
    /// Size of the caller's output buffer in bytes.
    pub output_bytes: usize,
    /// Argument of the call: an address in the caller's memory, or another value.
    pub argument: u64,
    /// Identity of the caller.
    pub caller: Caller,
    /// Progress of the call, which a signal to the caller cancels.
    pub progress: &'a Progress,
}

/// Cached information that a client may hold and that is out of date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stale {
    /// A name in a directory, or its absence.
    Name(NodeId, Vec<u8>),
    /// The attributes and the content of a node.
    Node(NodeId),
    /// The attributes of a node.
    Attributes(NodeId),
    /// The content in a range of a node, and its attributes.
    Content(NodeId, Range<u64>),
}

/// Result of a copy between files.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Number of copied bytes.
    pub bytes: u64,
    /// True if the copy changed the source's access time, which the kernel does not know.
    pub is_accessed: bool,
}

/// Result of a control command.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// Output for the caller.
    pub bytes: Vec<u8>,
    /// Cached information to invalidate before the caller gets the output.
    pub stale: Vec<Stale>,
    /// Result value of the control command: 0, or an error number that the caller gets with the
    /// output. The caller gets a negative value negated, as a result without an error.
    pub result: i32,
}

/// Content and times that the kernel, or another client, has cached and not sent yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// Nodes with unsent content. Invalidating a node makes the client send its content.
    pub content: Vec<Stale>,
    /// True if times of files are unsent. [`Vfs::fetch_times`] makes the client send unsent times.
    pub times: bool,
}

impl HeldBack {
    /// Creates a value with unsent content of these nodes, and no unsent times.
    #[must_use]
    pub const fn content(content: Vec<Stale>) -> Self {
        Self {
            content,
            times: false,
        }
    }

    /// Returns whether nothing is unsent.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.content.is_empty() && !self.times
    }
}

/// Operation that depends on content without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Search for data or holes in this file.
    Seek(NodeId),
    /// Control command of a node, by its number.
    Command(NodeId, u32),
    /// Operation on all files.
    All,
    /// A change of this file's modification time, which content that arrives later would overwrite.
    Times(NodeId),
}

impl From<Vec<u8>> for Answered {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }
}

/// A file system.
pub trait Vfs: Send + Sync {
    /// Returns the root directory.
    fn root(&self) -> NodeId;

    /// Resolves a name in a directory.
    fn lookup(&self, directory: NodeId, name: &[u8]) -> Result<Entry>;
    /// Returns the parent of a directory. The parent of the root directory is the root directory.
    fn parent(&self, directory: NodeId) -> Result<Entry>;
    /// Returns a node by its number. A call must have returned the node before, or `listed_in` must
    /// have listed it.
    fn revive(&self, node: NodeId, listed_in: Option<NodeId>) -> Result<Entry>;
    /// Returns references to a node.
    fn forget(&self, node: NodeId, references: u64);
    /// Records that a client may cache content of a node for as long as it has references to the
    /// node.
    fn caches(&self, node: NodeId);
    /// Returns whether [`Vfs::caches`] recorded a node.
    fn is_cached(&self, node: NodeId) -> bool;

    /// Returns the attributes that `stat(2)` shows.
    fn attributes(&self, node: NodeId) -> Result<Shown>;
    /// Changes attributes of a node.
    fn change(&self, node: NodeId, changes: &Changes) -> Result<Shown>;
    /// Returns the target of a symbolic link.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>>;

    /// Creates a node with a name.
    fn make(&self, directory: NodeId, name: &[u8], new: &NewNode, kind: NewKind<'_>) -> Result<Entry>;
    /// Creates a file and opens it.
    fn create(
        &self,
        directory: NodeId,
        name: &[u8],
        new: &NewNode,
        mode: OpenMode,
    ) -> Result<(Entry, HandleId)>;
    /// Creates a file without a name and opens it.
    fn create_unnamed(&self, directory: NodeId, new: &NewNode, mode: OpenMode) -> Result<(Entry, HandleId)>;
    /// Adds a name to a node.
    fn link(&self, node: NodeId, directory: NodeId, name: &[u8]) -> Result<Entry>;
    /// Removes a name of a node other than a directory.
    fn unlink(&self, directory: NodeId, name: &[u8]) -> Result<()>;
    /// Removes an empty directory or subvolume.
    fn remove_directory(&self, directory: NodeId, name: &[u8]) -> Result<()>;
    /// Renames or moves an entry.
    fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
        caller: Caller,
    ) -> Result<()>;

    /// Opens a file. [`Errno::NOSYS`] means that files need no handle: the client asks only once,
    /// and reads name the node.
    fn open(&self, node: NodeId, mode: OpenMode) -> Result<HandleId>;
    /// Reads content. The result is shorter than the buffer only at the end of the file.
    fn read(&self, file: Opened, offset: u64, buffer: &mut [u8], how: ReadHow) -> Result<usize>;
    /// Writes the whole buffer. `cached`: the data comes from the client's cache, and `offset`
    /// applies even to append-only handles.
    fn write(
        &self,
        handle: HandleId,
        offset: u64,
        bytes: &[u8],
        cached: bool,
        drop_privileges: bool,
    ) -> Result<()>;
    /// Makes a node durable.
    fn sync(&self, node: NodeId, only_data: bool) -> Result<()>;
    /// Makes everything durable.
    fn sync_all(&self) -> Result<()>;
    /// Handles an unmount that the caller waits for: commits the last changes and releases the
    /// devices.
    fn end(&self);
    /// Closes a file or directory.
    fn release(&self, handle: HandleId);
    /// Allocates space or punches holes.
    fn allocate(&self, handle: HandleId, range: Range<u64>, mode: AllocateMode) -> Result<()>;
    /// Finds the next data or hole.
    fn seek(&self, file: Opened, offset: u64, to: SeekTo) -> Result<u64>;
    /// Copies a range between files, and shares extents if possible.
    fn copy(&self, from: (HandleId, u64), to: (HandleId, u64), bytes: u64) -> Result<Copied>;

    /// Opens a directory. [`Errno::NOSYS`] means that directories need no handle: the client asks
    /// only once, and listings name the node.
    fn open_directory(&self, node: NodeId) -> Result<HandleId>;
    /// Lists entries from a position: 0, or [`Listed::next`] of the last entry. Returns an empty
    /// list at the end of the directory.
    fn list(&self, directory: Opened, position: u64, count: usize) -> Result<Vec<Listed>>;

    /// Returns sizes and counts of the volume.
    fn statistics(&self) -> Result<Statistics>;

    /// Returns the value of an extended attribute.
    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>>;
    /// Returns the names of all extended attributes.
    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>>;
    /// Sets an extended attribute. `drop_set_group`: setting the attribute takes away the caller's
    /// right to the set-group-id bit.
    fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: SetHow,
        drop_set_group: bool,
    ) -> Result<()>;
    /// Removes an extended attribute.
    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()>;

    /// Executes a control command.
    fn control(&self, node: NodeId, control: &Control<'_>) -> Result<Answered>;

    /// Switches to a client with a write-back cache, which then determines the sizes and times of
    /// files.
    fn keeps_writes(&self) {}
    /// Returns the unsent content and times that affect an operation. The client must send its
    /// unsent content and times before the operation, which otherwise does not see them.
    fn kept_back(&self, _by: Looks) -> HeldBack {
        HeldBack::default()
    }
    /// Makes the client send all unsent times, and content with them. The kernel sends other
    /// requests during this call.
    fn fetch_times(&self) {}
    /// Returns whether a caller syncs the file system only for [`Vfs::fetch_times`], and needs
    /// nothing to become durable.
    fn is_fetching_times(&self, _caller: Caller) -> bool {
        false
    }
    /// Notes that the client has sent this content.
    fn has_come(&self, _content: &[Stale]) {}

    /// Handles a panic in a call: its incomplete changes must not become durable.
    fn broke(&self);
}
