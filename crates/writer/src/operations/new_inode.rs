//! Mode, owner and kind of an inode to be made.

use buttress_fs::NodeKind;

/// Mode and owner of an inode to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Permission bits, with set-user-id, set-group-id and sticky. A symlink ignores these
    /// permission bits and has all permissions.
    pub mode: u32,
    /// Permission bits that the new inode loses, unless the directory has a default access control
    /// list.
    pub umask: u32,
    /// The owner.
    pub uid: u32,
    /// The group id of the inode, unless the directory's set-group-id bit passes its own group on.
    pub gid: u32,
}

impl NewInode {
    /// Returns a new inode of root with these permission bits and an empty umask.
    #[must_use]
    pub const fn of_root(mode: u32) -> Self {
        Self {
            mode,
            umask: 0,
            uid: 0,
            gid: 0,
        }
    }
}

/// The kind of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// A regular file without content.
    File,
    /// A directory.
    Directory,
    /// A device node, pipe or socket as `mknod(2)` makes it.
    Node(NodeKind),
    /// A symlink to this target.
    Symlink(&'a [u8]),
}
