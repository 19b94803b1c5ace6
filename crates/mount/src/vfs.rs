//! The operations of a file system, for servers of any protocol.
//!
//! - A [`NodeId`] is a file, directory or other inode. It is also the inode number that `stat(2)` shows, except of placeholders: unique over all
//!   subvolumes of a mount. A node lives from the [`Vfs::lookup`] (or other call that gives an [`Entry`]) that
//!   tells it until as many references are given back with [`Vfs::forget`]; meanwhile it is there even without a name.
//! - A [`HandleId`] is a node that was opened, and lives until it is released.
//! - All calls take `&self` and may come from any number of threads. They wait for devices, not for each other's commits.
//! - Permissions are the server's to check, or its kernel's, from what [`Vfs::attributes`] tells. What holds for all (read-only subvolumes,
//!   immutable files) is enforced here.
//! - Errors are numbers of system calls ([`Errno`]): what went wrong was told to the log where a person must know.

use buttress::{AllocateMode, Metadata, NodeKind, Timestamp};
use core::fmt;
use core::ops::Range;

/// A node. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// A node that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);

/// A file or a directory that is read: as it was opened, or its node if it was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It was opened.
    Handle(HandleId),
    /// It was not.
    Node(NodeId),
}

/// The number of a system call's error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Not permitted.
    pub const PERM: Self = Self(libc::EPERM);
    /// There is one already.
    pub const EXIST: Self = Self(libc::EEXIST);
    /// Not now.
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// On another file system.
    pub const XDEV: Self = Self(libc::EXDEV);
    /// No such file.
    pub const NOENT: Self = Self(libc::ENOENT);
    /// A device failed.
    pub const IO: Self = Self(libc::EIO);
    /// The handle is none, or not for this.
    pub const BADF: Self = Self(libc::EBADF);
    /// Not permitted by mode or owner.
    pub const ACCES: Self = Self(libc::EACCES);
    /// An argument makes no sense.
    pub const INVAL: Self = Self(libc::EINVAL);
    /// The control command is not known.
    pub const NOTTY: Self = Self(libc::ENOTTY);
    /// An address that leads nowhere.
    pub const FAULT: Self = Self(libc::EFAULT);
    /// No data, or nothing behind here.
    pub const NXIO: Self = Self(libc::ENXIO);
    /// There is no such attribute.
    pub const NODATA: Self = Self(libc::ENODATA);
    /// The answer does not fit.
    pub const RANGE: Self = Self(libc::ERANGE);
    /// Read-only.
    pub const ROFS: Self = Self(libc::EROFS);
    /// A directory that is not empty.
    pub const NOTEMPTY: Self = Self(libc::ENOTEMPTY);
    /// The server does not do this.
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// The server does not know this call.
    pub const NOSYS: Self = Self(libc::ENOSYS);
    /// The node is gone.
    pub const STALE: Self = Self(libc::ESTALE);
    /// The directory is no directory.
    pub const NOTDIR: Self = Self(libc::ENOTDIR);
    /// The answer is too large for its field.
    pub const OVERFLOW: Self = Self(libc::EOVERFLOW);
    /// The file system was shut down.
    pub const SHUTDOWN: Self = Self(libc::EIO);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// What a call ends with.
pub type Result<T> = core::result::Result<T, Errno>;

/// A node as a name leads to it: one more reference to it was given out.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The node.
    pub node: NodeId,
    /// Tells the node from an earlier one of the same number.
    pub generation: u64,
    /// Its attributes.
    pub metadata: Metadata,
    /// For how long the attributes hold, in seconds, unless a call of this file system changes them.
    pub lasts_s: u64,
}

/// Attributes of a node.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The attributes.
    pub metadata: Metadata,
    /// For how long they hold, in seconds, unless a call of this file system changes them.
    pub lasts_s: u64,
}

/// Who makes a new node, and with which mode.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// Permission bits.
    pub mode: u32,
    /// Bits that are taken away, unless the directory has a default access list.
    pub umask: u32,
    /// The owner.
    pub uid: u32,
    /// The group, unless the directory gives its own.
    pub gid: u32,
}

/// A time to be set.
#[derive(Clone, Copy, Debug)]
pub enum NewTime {
    /// The time of the call.
    Now,
    /// This one.
    At(Timestamp),
}

/// What is to be changed of a node; `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size of a file.
    pub size: Option<u64>,
    /// The last access.
    pub accessed: Option<NewTime>,
    /// The last change of content.
    pub modified: Option<NewTime>,
    /// The last change of the inode, where the server keeps it.
    pub changed: Option<Timestamp>,
    /// The bits that give the rights of owner and group go, and so do capabilities.
    pub drop_privileges: bool,
    /// The file was opened for writing: its mode does not matter any more for a change of size.
    pub handle: Option<HandleId>,
}

impl Changes {
    /// Returns whether this changes the owner and group to what they are: the kernel names neither then.
    #[must_use]
    pub const fn is_of_owner_that_stays(&self) -> bool {
        let names_times = self.accessed.is_some() || self.modified.is_some();
        let names_owner = self.uid.is_some() || self.gid.is_some();
        let names_other = self.mode.is_some() || self.size.is_some() || self.drop_privileges;
        !names_times && !names_owner && !names_other
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenMode {
    /// Content may be changed.
    pub write: bool,
    /// The caller may not read content. The kernel may, to complete a page of which a write changes a part.
    pub write_only: bool,
    /// What is written goes to the end.
    pub append: bool,
    /// The content is taken away first.
    pub truncate: bool,
    /// With it the bits that give the rights of owner and group, and capabilities.
    pub drop_privileges: bool,
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadHow {
    /// Into a cache.
    Cached,
    /// Into the caller's memory.
    Direct,
}

/// What a new name is to be.
#[derive(Clone, Copy, Debug)]
pub enum NewKind<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symlink to this.
    Symlink(&'a [u8]),
    /// A pipe, socket or device.
    Node(NodeKind),
}

/// What a rename does with what has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameHow {
    /// It goes.
    Replace,
    /// There must be nothing.
    NoReplace,
    /// Both change places.
    Exchange,
    /// It goes, and the old name becomes a whiteout.
    Whiteout,
}

/// An entry of a directory as it is listed.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// The node's number; no reference was given out.
    pub node: NodeId,
    /// The type bits of its mode, as the entry has them.
    pub type_bits: u32,
    /// Where the listing goes on behind this entry.
    pub next: u64,
    /// Whether it is `.` or `..`.
    pub is_dot: bool,
}

/// Sizes and counts of the whole volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// The unit of the others.
    pub block_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Those in which new content may lie.
    pub free: u64,
    /// The same, for those who are not root.
    pub available: u64,
    /// The longest name.
    pub name_bytes_max: u32,
}

/// What an attribute may be before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetHow {
    /// Anything.
    CreateOrReplace,
    /// Not there.
    Create,
    /// There.
    Replace,
}

/// What [`Vfs::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// Content.
    Data,
    /// A hole, or the end.
    Hole,
}

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process.
    pub pid: u32,
}

/// A control command (`ioctl(2)`) with what came with it.
#[derive(Clone, Copy, Debug)]
pub struct Control<'a> {
    /// The command's number.
    pub command: u32,
    /// What the caller gave.
    pub input: &'a [u8],
    /// How much he takes.
    pub output_bytes: usize,
    /// The address in his memory that he gave, or what he gave instead of one.
    pub argument: u64,
    /// Who he is.
    pub caller: Caller,
}

/// What a server may have told others, and is no longer so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stale {
    /// A name in a directory, and whether there is one.
    Name(NodeId, Vec<u8>),
    /// The attributes and the content of a node.
    Node(NodeId),
    /// The attributes of a node.
    Attributes(NodeId),
    /// The content in a range of a node, and its attributes.
    Content(NodeId, Range<u64>),
}

/// The result of a copy between files.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// How much, in bytes.
    pub bytes: u64,
    /// Whether the source's time of the last access moved, of which the kernel does not know.
    pub is_accessed: bool,
}

/// What a control command gives.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// What the caller gets.
    pub bytes: Vec<u8>,
    /// What is to be forgotten before he gets it.
    pub stale: Vec<Stale>,
    /// 0, or the number of an error that he gets with it.
    pub result: i32,
}

/// Content and times that the kernel, or another client, keeps back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// Content of these. It comes when it is to be forgotten.
    pub content: Vec<Stale>,
    /// Times of files. They come by [`Vfs::fetch_times`].
    pub times: bool,
}

impl HeldBack {
    /// Content of these, and no times.
    #[must_use]
    pub const fn content(content: Vec<Stale>) -> Self {
        Self {
            content,
            times: false,
        }
    }

    /// Returns whether nothing is kept back.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.content.is_empty() && !self.times
    }
}

/// Who looks at content otherwise than by reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// At where this file has content and where it has none.
    Seek(NodeId),
    /// What this control command of a node is about.
    Command(NodeId, u32),
    /// At all files.
    All,
    /// At the modification time of this file, which a call sets: content that comes after that would change it.
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

/// A file system. See the module.
pub trait Vfs: Send + Sync {
    /// The root directory.
    fn root(&self) -> NodeId;

    /// What a name in a directory leads to.
    fn lookup(&self, directory: NodeId, name: &[u8]) -> Result<Entry>;
    /// The directory that a directory is in; the root's is the root.
    fn parent(&self, directory: NodeId) -> Result<Entry>;
    /// A node by its number: one that was known once, or was listed in a directory.
    fn revive(&self, node: NodeId, listed_in: Option<NodeId>) -> Result<Entry>;
    /// Gives references back.
    fn forget(&self, node: NodeId, references: u64);
    /// Notes that whoever is served may have content of a node in a cache of his, as long as he has references to it.
    fn caches(&self, node: NodeId);
    /// Whether that was noted.
    fn is_cached(&self, node: NodeId) -> bool;

    /// What `stat(2)` shows.
    fn attributes(&self, node: NodeId) -> Result<Shown>;
    /// Changes some of it.
    fn change(&self, node: NodeId, changes: &Changes) -> Result<Shown>;
    /// The target of a symlink.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>>;

    /// Makes a node with a name.
    fn make(&self, directory: NodeId, name: &[u8], new: &NewNode, kind: NewKind<'_>) -> Result<Entry>;
    /// Makes a file and opens it.
    fn create(
        &self,
        directory: NodeId,
        name: &[u8],
        new: &NewNode,
        mode: OpenMode,
    ) -> Result<(Entry, HandleId)>;
    /// Makes a file without a name and opens it.
    fn create_unnamed(&self, directory: NodeId, new: &NewNode, mode: OpenMode) -> Result<(Entry, HandleId)>;
    /// Gives a node another name.
    fn link(&self, node: NodeId, directory: NodeId, name: &[u8]) -> Result<Entry>;
    /// Takes a name from a node that is no directory.
    fn unlink(&self, directory: NodeId, name: &[u8]) -> Result<()>;
    /// Removes an empty directory or subvolume.
    fn remove_directory(&self, directory: NodeId, name: &[u8]) -> Result<()>;
    /// Gives an entry another name or place.
    fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
        caller: Caller,
    ) -> Result<()>;

    /// Opens a file. [`Errno::NOSYS`]: files are not opened here, which is asked for once; who reads names the node.
    fn open(&self, node: NodeId, mode: OpenMode) -> Result<HandleId>;
    /// Reads; fewer bytes only at the end.
    fn read(&self, file: Opened, offset: u64, buffer: &mut [u8], how: ReadHow) -> Result<usize>;
    /// Writes all of it. `cached`: it comes out of the server's cache, and goes where `offset` says.
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
    /// It was unmounted, and who did waits: the last of it becomes durable, and its devices are let go of.
    fn end(&self);
    /// Closes a file or directory.
    fn release(&self, handle: HandleId);
    /// Gives room, or takes content away.
    fn allocate(&self, handle: HandleId, range: Range<u64>, mode: AllocateMode) -> Result<()>;
    /// Finds content or a hole.
    fn seek(&self, file: Opened, offset: u64, to: SeekTo) -> Result<u64>;
    /// Copies between files, sharing what can be shared.
    fn copy(&self, from: (HandleId, u64), to: (HandleId, u64), bytes: u64) -> Result<Copied>;

    /// Opens a directory. [`Errno::NOSYS`]: directories are not opened here, and the kernel asks once. Lists name the node.
    fn open_directory(&self, node: NodeId) -> Result<HandleId>;
    /// Entries from a position on: 0, or the last one's [`Listed::next`]. None at the end.
    fn list(&self, directory: Opened, position: u64, count: usize) -> Result<Vec<Listed>>;

    /// The volume's sizes.
    fn statistics(&self) -> Result<Statistics>;

    /// One extended attribute.
    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>>;
    /// The names of all.
    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>>;
    /// Sets one. `drop_set_group`: the caller loses the right to the set-group-id bit with it.
    fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: SetHow,
        drop_set_group: bool,
    ) -> Result<()>;
    /// Removes one.
    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()>;

    /// A control command.
    fn control(&self, node: NodeId, control: &Control<'_>) -> Result<Answered>;

    /// From now on whoever is served keeps for a while what is written to files: he knows their sizes and their times, and says them.
    fn keeps_writes(&self) {}
    /// What he may keep back that belongs to what is looked at: where there is any, it has to come before. As long as it does not, nothing of
    /// it is seen.
    fn kept_back(&self, _by: Looks) -> HeldBack {
        HeldBack::default()
    }
    /// Has all times come that are kept back, and content with them. Other requests come meanwhile.
    fn fetch_times(&self) {}
    /// Returns whether a caller syncs the file system for [`Vfs::fetch_times`], and wants nothing to become durable.
    fn is_fetching_times(&self, _caller: Caller) -> bool {
        false
    }
    /// Content has come.
    fn has_come(&self, _content: &[Stale]) {}

    /// A call of this panicked: what it left half done must not become durable.
    fn broke(&self);
}
