//! Commands that make, move and take away names, and those that change attributes.
//!
//! Owner, mode and times of an inode, which follow each other in streams, are changed in one step.

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
    /// Carries out a command on the subvolume with this root.
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
            // Those of content are done, and those of the stream do not come here.
            _ => Ok(()),
        }
    }

    /// What a path leads to.
    pub(super) fn find(&mut self, root: Location, path: &[u8]) -> Result<Node, Problem> {
        self.names.find(self.filesystem, root, path)
    }

    fn create(&mut self, root: Location, path: &[u8], kind: NewKind) -> Result<(), Problem> {
        self.begin_new(root, path, kind)?;
        match self.made_names.wait() {
            // A rename may change its name before it is made.
            true => Ok(()),
            false => {
                let made = self.make_files();
                if made.is_err() {
                    // The command is carried out again, or left out.
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
        // Of two names of one inode both stay; else this is the one that it has now.
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
        // A mode that was set before loses bits.
        let is_after_mode = |changes: &AttributeChanges| changes.mode.is_some();
        let changes = self.changes_of(root, path, is_after_mode)?;
        (changes.uid, changes.gid) = (Some(uid), Some(gid));
        Ok(())
    }

    fn change_mode(&mut self, root: Location, path: &[u8], mode: u64) -> Result<(), Problem> {
        let node = self.find(root, path)?;
        if node.kind == FileKind::Symlink {
            // It would be followed, to anywhere.
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
        // Nothing that comes after the times belongs to the same step.
        self.flush_changes()
    }

    /// The changes of an inode that wait. Those that wait of another one, or are `before` this one, are made first; so is what
    /// waits of content, since it changes times.
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

    /// Makes the changes that wait.
    pub(super) fn flush_changes(&mut self) -> Result<(), Problem> {
        let Some((location, changes)) = self.changes.take() else {
            return Ok(());
        };
        let changed = self
            .filesystem
            .set_attributes(location, &changes)
            .map_err(about(b""));
        if changed.as_ref().is_err_and(Problem::is_no_space) {
            // It is tried again if room can be made.
            self.changes = Some((location, changes));
        }
        changed
    }
}

/// The times that a command sets, and the path.
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

/// An owner as an inode has it.
pub(super) fn owner(uid: u64, gid: u64) -> Result<(u32, u32), Problem> {
    let id = |field, value| {
        u32::try_from(value).map_err(|_| Problem::from(TreeProblem::OutOfRange { field, value }))
    };
    Ok((id("uid", uid)?, id("gid", gid)?))
}

pub(super) fn permissions(mode: u64) -> u32 {
    u32::try_from(mode & 0o7777).unwrap_or(0)
}

/// What a mode says is to be made, and its permissions.
fn node_kind(mode: u64, device: u64) -> Result<(NodeKind, u32), Problem> {
    // The wide form of the kernel: the low 8 bits of the minor, 12 of the major, the rest of the minor.
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
