//! Changes as calls of the library.

use super::{Made, Mode, Operation};
use crate::writing::access_list::AccessList;
use crate::writing::model::Model;
use crate::writing::newborn::{COMPRESSION, UMASK};
use buttress::unstable::fs::Result;
use buttress::unstable::fs::acl::{ACCESS_NAME, DEFAULT_NAME};
use buttress::unstable::writer::WritableFilesystem;
use buttress::{
    AttributeChanges, DeviceNumber, Location, NewInode, NodeKind, Progress, ReceivedUuid, RenameMode,
    SetXattr, Timestamp,
};

/// Returns the requested properties of a new inode.
const fn new(mode: u32) -> NewInode {
    NewInode {
        mode,
        umask: UMASK,
        uid: 0,
        gid: 0,
    }
}

impl Operation {
    /// Makes the change on the volume.
    pub(crate) fn write(&self, model: &Model, filesystem: &WritableFilesystem) -> Result<Made> {
        let made = match self {
            Self::Create(directory, name, mode) => {
                Made::Inode(filesystem.create(*directory, name, &new(*mode))?)
            }
            Self::MakeDirectory(directory, name, mode) => {
                Made::Inode(filesystem.make_directory(*directory, name, &new(*mode))?)
            }
            Self::MakeSymlink(directory, name, target) => {
                Made::Inode(filesystem.make_symlink(*directory, name, &new(0o777), target)?)
            }
            Self::MakeNode(directory, name, kind) => {
                Made::Inode(filesystem.make_node(*directory, name, &new(0o666), node_kind(*kind))?)
            }
            Self::MakeUnnamed(directory, mode) => {
                Made::Held(filesystem.make_unnamed(*directory, &new(*mode))?)
            }
            Self::Hold(inode) => Made::Held(filesystem.open_inode(*inode)?),
            Self::CreateSubvolume(directory, name) => {
                Made::Subvolume(filesystem.subvolumes().create(*directory, name)?)
            }
            Self::Snapshot(source, directory, name, read_only) => Made::Subvolume(
                filesystem
                    .subvolumes()
                    .snapshot(*source, *directory, name, *read_only)?,
            ),
            Self::Rename(from, old, to, new_name, mode) => {
                let as_called = match mode {
                    Mode::Replace => RenameMode::Replace,
                    Mode::NoReplace => RenameMode::NoReplace,
                    Mode::Exchange => RenameMode::Exchange,
                    Mode::Whiteout => RenameMode::Whiteout(new(0)),
                };
                // A rename between two names of one inode leaves no whiteout.
                let stays = model.target(*from, old) == model.target(*to, new_name);
                filesystem.rename(*from, old, *to, new_name, as_called)?;
                if *mode != Mode::Whiteout || stays {
                    return Ok(Made::Nothing);
                }
                match filesystem.live().lookup(*from, old)? {
                    Some(whiteout) => Made::Inode(whiteout.target),
                    None => Made::Nothing,
                }
            }
            Self::Content(inode, change) if change.punches_hole(filesystem, *inode) => {
                self.write_in_place(filesystem)?;
                Made::Unchanged
            }
            _ => {
                self.write_in_place(filesystem)?;
                Made::Nothing
            }
        };
        Ok(made)
    }

    fn write_in_place(&self, filesystem: &WritableFilesystem) -> Result<()> {
        match self {
            Self::Link(inode, directory, name) => filesystem.link(*inode, *directory, name),
            Self::Unlink(directory, name) => filesystem.unlink(*directory, name),
            Self::RemoveDirectory(directory, name) => filesystem.remove_directory(*directory, name),
            Self::DeleteSubvolume(id) => filesystem.subvolumes().delete(*id),
            Self::DropDeleted => filesystem.subvolumes().drop_deleted(&Progress::new()),
            Self::SetReadOnly(id, read_only) => {
                filesystem
                    .subvolumes()
                    .set_read_only(*id, *read_only, ReceivedUuid::Refuse)
            }
            Self::SetDefault(id) => filesystem.subvolumes().set_default(*id),
            Self::SetLabel(label) => filesystem.set_label(label),
            Self::Content(inode, change) => change.write(filesystem, *inode),
            _ => self.write_attributes(filesystem),
        }
    }

    fn write_attributes(&self, filesystem: &WritableFilesystem) -> Result<()> {
        let set_list = |inode: &Location, name: &[u8], list: &Option<AccessList>| match list {
            Some(list) => filesystem.set_xattr(*inode, name, &list.value(), SetXattr::CreateOrReplace),
            None => filesystem.remove_xattr(*inode, name),
        };
        let none = AttributeChanges::default();
        match self {
            Self::SetXattr(inode, name, value) => {
                filesystem.set_xattr(*inode, name, value, SetXattr::CreateOrReplace)
            }
            Self::RemoveXattr(inode, name) => filesystem.remove_xattr(*inode, name),
            Self::SetAccessList(inode, list) => set_list(inode, ACCESS_NAME, list),
            Self::SetDefaultList(inode, list) => set_list(inode, DEFAULT_NAME, list),
            Self::SetCompression(inode, Some(value)) => {
                filesystem.set_xattr(*inode, COMPRESSION, value.as_bytes(), SetXattr::CreateOrReplace)
            }
            Self::SetCompression(inode, None) => filesystem.remove_xattr(*inode, COMPRESSION),
            Self::SetFlags(inode, flags) => filesystem.set_flags(*inode, *flags),
            Self::SetMode(inode, mode) => {
                let changes = AttributeChanges {
                    mode: Some(*mode),
                    ..none
                };
                filesystem.set_attributes(*inode, &changes)
            }
            Self::SetOwner(inode, uid, gid) => {
                let changes = AttributeChanges {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..none
                };
                filesystem.set_attributes(*inode, &changes)
            }
            Self::SetModified(inode, seconds) => {
                let modified = Timestamp {
                    seconds: *seconds,
                    nanoseconds: 0,
                };
                let changes = AttributeChanges {
                    modified: Some(modified),
                    ..none
                };
                filesystem.set_attributes(*inode, &changes)
            }
            // If the value that holds the inode is dropped, the inode is released; the test's world
            // does this.
            _ => Ok(()),
        }
    }
}

fn node_kind(kind: u8) -> NodeKind {
    let device = |major, minor| DeviceNumber { major, minor };
    match kind {
        0 => NodeKind::Fifo,
        1 => NodeKind::Socket,
        2 => NodeKind::CharacterDevice(device(1, 3)),
        _ => NodeKind::BlockDevice(device(7, 300)),
    }
}
