//! Carrying out commands on a tree, as a receiver does on a subvolume.
//!
//! What a receiver's system refuses is refused here, before anything is changed. What it does by the way is done
//! too: changing the owner takes set-user-id and set-group-id away, and, as any change of content, file
//! capabilities. What it does from its own clock, or from default ACLs of directories, is not.

mod content;
mod names;

use super::error::Problem;
use super::extents::CopyBudget;
use super::tree::{Inode, Node, NodeId, Times, Tree};
use crate::command::Command;
use buttress_format::{Decompressor, Timestamp, Uuid};

/// The attribute that is taken away when content or owner change.
const CAPABILITY: &[u8] = b"security.capability";

/// Nanoseconds in a second.
const SECOND: u32 = 1_000_000_000;

/// A tree that commands are carried out on, with what they may refer to.
pub(super) struct Target<'a> {
    pub(super) tree: &'a mut Tree,
    /// Of the subvolume that is being made.
    pub(super) uuid: Uuid,
    /// The snapshots that may be cloned from.
    pub(super) earlier: &'a dyn Earlier,
    pub(super) budget: &'a mut CopyBudget,
    /// Where the data of the command begins in its input.
    pub(super) data_position: u64,
    /// The number of that input.
    pub(super) file: u32,
    /// Where encoded data is to be decoded, to see whether it can be.
    pub(super) decode: Option<&'a mut Decompressor>,
}

/// Finds snapshots of earlier streams.
pub(super) trait Earlier {
    /// The newest with this uuid.
    fn tree(&self, uuid: Uuid) -> Option<&Tree>;

    /// The uuids of all.
    fn uuids(&self) -> Vec<Uuid>;
}

impl Target<'_> {
    /// Carries out one command; `Subvolume`, `Snapshot` and `End` are not for a tree, and do nothing.
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

    /// The inode at `path`.
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
            // It would be followed, to anywhere.
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
