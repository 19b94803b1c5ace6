//! Stream commands that create, move and remove names, and commands that change attributes.
//!
//! The receiver changes owner, mode and times of an inode, which are consecutive in streams, in one
//! operation.

use super::error::Problem;
use super::making::{Receiver, about};
use super::names::Node;
use super::new_file::{FILE_MODE, NewKind};
use crate::command::Command;
use crate::view::Problem as TreeProblem;
use buttress_format::{FileKind, InodeFlags, Timestamp};
use buttress_fs::Location;
use buttress_fs::inode::{DeviceNumber, kind_name};
use buttress_writer::operations::{AttributeChanges, NodeKind, RenameMode, SetXattr};

impl Receiver<'_> {
    /// Executes a command on the subvolume with this root.
    pub(super) fn apply(&mut self, root: Location, command: &Command<'_>) -> Result<(), Problem> {
        self.put_many_names()?;
        if self.gather_times(root, command) || self.gather(root, command)? {
            return Ok(());
        }
        if !matches!(command, Command::Mkfile { .. }) {
            self.make_files()?;
        }
        match *command {
            Command::Chown { path, uid, gid } => return self.change_owner(root, path, uid, gid),
            Command::Chmod { path, mode } => return self.change_mode(root, path, mode),
            Command::Utimes {
                path,
                atime,
                mtime,
                ctime,
                otime,
            } => return self.set_times(root, path, [Some(atime), Some(mtime), Some(ctime), otime]),
            _ => self.flush_changes()?,
        }
        if self.apply_content(root, command)? {
            return Ok(());
        }
        self.flush_batch()?;
        match *command {
            Command::Mkfile { path, .. } => self.begin_file(root, path),
            Command::Mkdir { path, .. } => self.create(root, path, NewKind::Directory),
            Command::Mknod {
                path, mode, device, ..
            } => {
                let (kind, mode) = node_kind(mode, device)?;
                self.create(root, path, NewKind::Node(kind, mode))
            }
            Command::Mkfifo { path, .. } => self.create(root, path, NewKind::Node(NodeKind::Fifo, FILE_MODE)),
            Command::Mksock { path, .. } => {
                self.create(root, path, NewKind::Node(NodeKind::Socket, FILE_MODE))
            }
            Command::Symlink { path, target, .. } => {
                self.create(root, path, NewKind::Symlink(target.to_vec()))
            }
            Command::Rename { from, to } => self.rename(root, from, to),
            Command::Link { path, target } => self.link(root, path, target),
            Command::Unlink { path } => {
                let (directory, name) = self.names.place(self.filesystem, root, path)?;
                self.filesystem.unlink(directory, name).map_err(about(path))?;
                self.names.forget(directory, name);
                Ok(())
            }
            Command::Rmdir { path } => {
                let (directory, name) = self.names.place(self.filesystem, root, path)?;
                self.filesystem
                    .remove_directory(directory, name)
                    .map_err(about(path))?;
                self.names.forget(directory, name);
                Ok(())
            }
            Command::SetXattr { path, name, value } => {
                let node = self.find(root, path)?;
                self.filesystem
                    .set_xattr(node.location, name, value, SetXattr::CreateOrReplace)
                    .map_err(about(path))
            }
            Command::RemoveXattr { path, name } => {
                let node = self.find(root, path)?;
                self.filesystem
                    .remove_xattr(node.location, name)
                    .map_err(about(path))
            }
            Command::FileAttributes { path, attributes } => {
                let node = self.find(root, path)?;
                self.filesystem
                    .set_inode_flags(node.location, InodeFlags::from_bits_truncate(attributes))
                    .map_err(about(path))
            }
            Command::EnableVerity { .. } => Err(Problem::Verity),
            // `apply_content` has executed content commands, and stream commands never reach this
            // function.
            _ => Ok(()),
        }
    }

    /// Resolves a path to its inode.
    pub(super) fn find(&mut self, root: Location, path: &[u8]) -> Result<Node, Problem> {
        self.names.find(self.filesystem, root, path)
    }

    fn create(&mut self, root: Location, path: &[u8], kind: NewKind) -> Result<(), Problem> {
        self.begin_new(root, path, kind)?;
        match self.made_names.wait() {
            // A later rename may change the name of the inode before its creation.
            true => Ok(()),
            false => {
                let made = self.make_files();
                if made.is_err() {
                    // On failure the receiver executes the command again or skips it.
                    self.new_file = None;
                }
                made
            }
        }
    }

    fn rename(&mut self, root: Location, from: &[u8], to: &[u8]) -> Result<(), Problem> {
        let moved = self.find(root, from)?;
        let (old_directory, old_name) = self.names.place(self.filesystem, root, from)?;
        let (new_directory, new_name) = self.names.place(self.filesystem, root, to)?;
        self.filesystem
            .rename(
                old_directory,
                old_name,
                new_directory,
                new_name,
                RenameMode::Replace,
            )
            .map_err(about(from))?;
        self.names.forget(old_directory, old_name);
        self.names.forget(new_directory, new_name);
        // If both names of the rename belong to one inode, both names stay. If the names belong to
        // different inodes, the new name is now the inode's name.
        self.names.insert(new_directory, new_name, moved);
        self.taken_names.add(new_directory, new_name);
        Ok(())
    }

    fn link(&mut self, root: Location, path: &[u8], target: &[u8]) -> Result<(), Problem> {
        let node = self.find(root, target)?;
        let (directory, name) = self.names.place(self.filesystem, root, path)?;
        self.filesystem
            .link(node.location, directory, name)
            .map_err(about(path))?;
        self.names.insert(directory, name, node);
        self.note_name(directory, name, self.current);
        Ok(())
    }

    fn change_owner(&mut self, root: Location, path: &[u8], uid: u64, gid: u64) -> Result<(), Problem> {
        let (uid, gid) = owner(uid, gid)?;
        // Changing the owner clears bits of a mode that was set before.
        let is_after_mode = |changes: &AttributeChanges| changes.mode.is_some();
        let changes = self.changes_of(root, path, is_after_mode)?;
        (changes.uid, changes.gid) = (Some(uid), Some(gid));
        Ok(())
    }

    fn change_mode(&mut self, root: Location, path: &[u8], mode: u64) -> Result<(), Problem> {
        let node = self.find(root, path)?;
        if node.kind == FileKind::Symlink {
            // A symbolic link would redirect the command to any other file.
            return Err(TreeProblem::WrongKind {
                path: path.to_vec(),
                found: kind_name(node.kind),
                wanted: "anything else",
            }
            .into());
        }
        self.changes_of(root, path, |_| false)?.mode = Some(permissions(mode));
        Ok(())
    }

    fn set_times(
        &mut self,
        root: Location,
        path: &[u8],
        [accessed, modified, changed, created]: [Option<Timestamp>; 4],
    ) -> Result<(), Problem> {
        let changes = self.changes_of(root, path, |_| false)?;
        (changes.accessed, changes.modified) = (accessed, modified);
        (changes.changed, changes.created) = (changed, created.or(changes.created));
        // The receiver's operation sets the times last.
        self.flush_changes()
    }

    /// Returns the pending changes of an inode. It first applies pending changes of another inode,
    /// and changes `before` this one. The receiver also writes pending content first, because
    /// writing changes times.
    fn changes_of(
        &mut self,
        root: Location,
        path: &[u8],
        before: impl Fn(&AttributeChanges) -> bool,
    ) -> Result<&mut AttributeChanges, Problem> {
        let location = self.find(root, path)?.location;
        self.flush_batch()?;
        let stays = |(of, changes): &(Location, AttributeChanges)| *of == location && !before(changes);
        if !self.changes.as_ref().is_some_and(stays) {
            self.flush_changes()?;
        }
        let (_, changes) = self
            .changes
            .get_or_insert_with(|| (location, AttributeChanges::default()));
        Ok(changes)
    }

    /// Applies the pending changes.
    pub(super) fn flush_changes(&mut self) -> Result<(), Problem> {
        let Some((location, changes)) = self.changes.take() else {
            return Ok(());
        };
        let changed = self
            .filesystem
            .set_attributes(location, &changes)
            .map_err(about(b""));
        if changed.as_ref().is_err_and(Problem::is_no_space) {
            // If the receiver can free space, it retries these changes.
            self.changes = Some((location, changes));
        }
        changed
    }
}

/// Returns the path and the times of a `Utimes` command.
pub(super) fn times_of<'c>(command: &Command<'c>) -> Option<(&'c [u8], AttributeChanges)> {
    let Command::Utimes {
        path,
        atime,
        mtime,
        ctime,
        otime,
    } = *command
    else {
        return None;
    };
    let times = AttributeChanges {
        accessed: Some(atime),
        modified: Some(mtime),
        changed: Some(ctime),
        created: otime,
        ..AttributeChanges::default()
    };
    Some((path, times))
}

/// Converts an owner to the width of an inode's fields.
pub(super) fn owner(uid: u64, gid: u64) -> Result<(u32, u32), Problem> {
    let id = |field, value| {
        u32::try_from(value).map_err(|_| Problem::from(TreeProblem::OutOfRange { field, value }))
    };
    Ok((id("uid", uid)?, id("gid", gid)?))
}

pub(super) fn permissions(mode: u64) -> u32 {
    u32::try_from(mode & 0o7777).unwrap_or(0)
}

/// Returns the node type that a mode asks for, and its permissions.
fn node_kind(mode: u64, device: u64) -> Result<(NodeKind, u32), Problem> {
    // The kernel's wide form: the low 8 bits of the minor, 12 bits of the major, the rest of the
    // minor.
    let low = |bits: u64| u32::try_from(bits).unwrap_or(0);
    let number = DeviceNumber {
        major: low((device >> 8) & 0xfff),
        minor: low((device & 0xff) | ((device >> 12) & 0xf_ff00)),
    };
    let kind = match mode & 0o170_000 {
        0o020_000 => NodeKind::CharacterDevice(number),
        0o060_000 => NodeKind::BlockDevice(number),
        0o010_000 => NodeKind::Fifo,
        0o140_000 => NodeKind::Socket,
        _ => return Err(TreeProblem::NodeMode { mode }.into()),
    };
    Ok((kind, permissions(mode)))
}
