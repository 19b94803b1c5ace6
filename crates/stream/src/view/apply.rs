//! Execution of commands on a tree, with the effects that they have at a receiver.
//!
//! The view refuses a command that a receiver's system would refuse, before it changes anything. It
//! applies the system's side effects: changing the owner clears set-user-id and set-group-id.
//! Changes of owner or content also remove file capabilities. The view applies neither the
//! receiver's clock nor default ACLs of directories.

mod content;
mod names;

use super::error::Problem;
use super::extents::CopyBudget;
use super::tree::{Inode, Node, NodeId, Times, Tree};
use crate::command::Command;
use buttress_format::{Decompressor, Timestamp, Uuid};

/// Extended attribute that a change of content or owner removes.
const CAPABILITY: &[u8] = b"security.capability";

/// Nanoseconds in a second.
const SECOND: u32 = 1_000_000_000;

/// A tree that commands change, with the context that they may refer to.
pub(super) struct Target<'a> {
    pub(super) tree: &'a mut Tree,
    /// UUID of the subvolume under construction.
    pub(super) uuid: Uuid,
    /// Snapshots that commands may clone from.
    pub(super) earlier: &'a dyn Earlier,
    pub(super) budget: &'a mut CopyBudget,
    /// Offset of the command's data in its input.
    pub(super) data_position: u64,
    /// Number of the input.
    pub(super) file: u32,
    /// Decompressor for encoded data, if the caller asked to verify it.
    pub(super) decode: Option<&'a mut Decompressor>,
}

/// Lookup of snapshots from earlier streams.
pub(super) trait Earlier {
    /// Returns the newest snapshot with this uuid.
    fn tree(&self, uuid: Uuid) -> Option<&Tree>;

    /// Lists the uuids of all snapshots.
    fn uuids(&self) -> Vec<Uuid>;
}

impl Target<'_> {
    /// Executes one command. The commands `Subvolume`, `Snapshot` and `End` do not concern a tree
    /// and have no effect.
    pub(super) fn apply(&mut self, command: &Command<'_>) -> Result<(), Problem> {
        match *command {
            Command::Subvolume { .. } | Command::Snapshot { .. } | Command::End => Ok(()),
            Command::Mkfile { path, inode } => {
                self.create(path, Inode::new(Node::File(Default::default()), 0o600, inode))
            }
            Command::Mkdir { path, inode } => self.create(path, Inode::new(Node::directory(), 0o700, inode)),
            Command::Mknod {
                path,
                inode,
                mode,
                device,
            } => self.make_node(path, inode, mode, device),
            Command::Mkfifo { path, inode, .. } => self.create(path, Inode::new(Node::Fifo, 0o600, inode)),
            Command::Mksock { path, inode, .. } => self.create(path, Inode::new(Node::Socket, 0o600, inode)),
            Command::Symlink { path, inode, target } => {
                let target = target.into();
                self.create(path, Inode::new(Node::Symlink { target }, 0o777, inode))
            }
            Command::Rename { from, to } => self.rename(from, to),
            Command::Link { path, target } => self.link(path, target),
            Command::Unlink { path } => self.unlink(path),
            Command::Rmdir { path } => self.remove_directory(path),
            Command::SetXattr { path, name, value } => self.set_xattr(path, name, value),
            Command::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Command::Chmod { path, mode } => self.change_mode(path, mode),
            Command::Chown { path, uid, gid } => self.change_owner(path, uid, gid),
            Command::Utimes {
                path,
                atime,
                mtime,
                ctime,
                otime,
            } => self.set_times(path, atime, mtime, ctime, otime),
            Command::FileAttributes { path, attributes } => {
                self.inode(path)?.flags = Some(attributes);
                Ok(())
            }
            _ => self.apply_content(command),
        }
    }

    /// Returns the inode at `path`.
    fn inode(&mut self, path: &[u8]) -> Result<&mut Inode, Problem> {
        let id = self.tree.find(path)?;
        self.inode_of(id, path)
    }

    fn inode_of(&mut self, id: NodeId, path: &[u8]) -> Result<&mut Inode, Problem> {
        self.tree
            .inode_mut(id)
            .ok_or_else(|| Problem::NotFound { path: path.to_vec() })
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Problem> {
        if !(1..=buttress_format::NAME_BYTES_MAX).contains(&name.len()) {
            return Err(Problem::XattrName {
                name_bytes: name.len(),
            });
        }
        self.inode(path)?.set_xattr(name, value);
        Ok(())
    }

    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<(), Problem> {
        if self.inode(path)?.remove_xattr(name) {
            return Ok(());
        }
        Err(Problem::XattrMissing {
            path: path.to_vec(),
            name: name.to_vec(),
        })
    }

    fn change_mode(&mut self, path: &[u8], mode: u64) -> Result<(), Problem> {
        let inode = self.inode(path)?;
        if let Node::Symlink { .. } = inode.node {
            // A symbolic link would redirect the command to any other file.
            return Err(Problem::WrongKind {
                path: path.to_vec(),
                found: inode.node.kind_name(),
                wanted: "anything else",
            });
        }
        inode.permissions = u32::try_from(mode & 0o7777).unwrap_or(0);
        Ok(())
    }

    fn change_owner(&mut self, path: &[u8], uid: u64, gid: u64) -> Result<(), Problem> {
        let id = |field, value| u32::try_from(value).map_err(|_| Problem::OutOfRange { field, value });
        let (uid, gid) = (id("uid", uid)?, id("gid", gid)?);
        let inode = self.inode(path)?;
        (inode.uid, inode.gid) = (uid, gid);
        if !matches!(inode.node, Node::Directory(_)) {
            inode.permissions &= !0o4000;
            if inode.permissions & 0o010 != 0 {
                inode.permissions &= !0o2000;
            }
            inode.remove_xattr(CAPABILITY);
        }
        Ok(())
    }

    fn set_times(
        &mut self,
        path: &[u8],
        accessed: Timestamp,
        modified: Timestamp,
        changed: Timestamp,
        created: Option<Timestamp>,
    ) -> Result<(), Problem> {
        for time in [accessed, modified] {
            if time.nanoseconds >= SECOND {
                return Err(Problem::OutOfRange {
                    field: "nanoseconds",
                    value: u64::from(time.nanoseconds),
                });
            }
        }
        let inode = self.inode(path)?;
        inode.times = Times {
            accessed,
            modified,
            changed,
            created: created.or(inode.times.created),
        };
        Ok(())
    }
}
