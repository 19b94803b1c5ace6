//! One change: drawn from a seed (`drawing`), judged by the model, carried out on both sides (`following`: on the
//! model's).

mod drawing;
mod following;

use super::content::Change;
use super::model::{Inode, Model, Target};
use super::renames::can_rename;
use anyhow::{Context, Result, ensure};
use buttress::fs::operations::{AttributeChanges, NewInode, NodeKind, RenameMode, SetXattr};
use buttress::fs::{DeviceNumber, WritableFilesystem};
use buttress::{InodeNumber, Location, SubvolumeId, Timestamp};
use std::fmt;

/// More subvolumes than this are not made.
const SUBVOLUMES_MAX: usize = 12;

/// A change. Directories are named by where they are, so that a change can be told from its text alone.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names say it; the words are those of the calls")]
pub enum Operation {
    Create(Location, Vec<u8>, u32),
    MakeDirectory(Location, Vec<u8>, u32),
    MakeSymlink(Location, Vec<u8>, Vec<u8>),
    MakeNode(Location, Vec<u8>, u8),
    Link(Location, Location, Vec<u8>),
    Unlink(Location, Vec<u8>),
    RemoveDirectory(Location, Vec<u8>),
    Rename(Location, Vec<u8>, Location, Vec<u8>, Mode),
    SetXattr(Location, Vec<u8>, Vec<u8>),
    RemoveXattr(Location, Vec<u8>),
    SetMode(Location, u32),
    SetOwner(Location, u32, u32),
    SetModified(Location, i64),
    CreateSubvolume(Location, Vec<u8>),
    Snapshot(SubvolumeId, Location, Vec<u8>, bool),
    DeleteSubvolume(SubvolumeId),
    DropDeleted,
    Content(Location, Change),
}

/// How to rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in RenameMode")]
pub enum Mode {
    Replace,
    NoReplace,
    Exchange,
}

/// A change in few words: `rename 256:257/old 256:260/new`.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |location: &Location| format!("{}:{}", location.subvolume, location.inode);
        let name = |name: &[u8]| {
            let text = name.escape_ascii().to_string();
            text.chars().take(20).collect::<String>()
        };
        let place = |directory: &Location, own: &[u8]| format!("{}/{}", at(directory), name(own));
        match self {
            Self::Create(directory, own, mode) => write!(f, "create {} {mode:o}", place(directory, own)),
            Self::MakeDirectory(directory, own, mode) => {
                write!(f, "mkdir {} {mode:o}", place(directory, own))
            }
            Self::MakeSymlink(directory, own, to) => {
                write!(f, "symlink {} of {} bytes", place(directory, own), to.len())
            }
            Self::MakeNode(directory, own, kind) => write!(f, "mknod {} {kind}", place(directory, own)),
            Self::Link(inode, directory, own) => write!(f, "link {} {}", at(inode), place(directory, own)),
            Self::Unlink(directory, own) => write!(f, "unlink {}", place(directory, own)),
            Self::RemoveDirectory(directory, own) => write!(f, "rmdir {}", place(directory, own)),
            Self::Rename(from, old, to, new, mode) => {
                write!(f, "rename {} {} {mode:?}", place(from, old), place(to, new))
            }
            Self::SetXattr(inode, own, value) => {
                write!(f, "setxattr {} {} of {} bytes", at(inode), name(own), value.len())
            }
            Self::RemoveXattr(inode, own) => write!(f, "removexattr {} {}", at(inode), name(own)),
            Self::SetMode(inode, mode) => write!(f, "chmod {} {mode:o}", at(inode)),
            Self::SetOwner(inode, uid, gid) => write!(f, "chown {} {uid}:{gid}", at(inode)),
            Self::SetModified(inode, seconds) => write!(f, "touch {} {seconds}", at(inode)),
            Self::CreateSubvolume(directory, own) => write!(f, "subvolume {}", place(directory, own)),
            Self::Snapshot(source, directory, own, read_only) => {
                write!(
                    f,
                    "snapshot {source} {} read-only {read_only}",
                    place(directory, own)
                )
            }
            Self::DeleteSubvolume(id) => write!(f, "delete subvolume {id}"),
            Self::DropDeleted => f.write_str("drop deleted subvolumes"),
            Self::Content(inode, change) => write!(f, "{change} of {}", at(inode)),
        }
    }
}

impl Operation {
    /// Carries the change out on the model, which must be able to, and on the volume; or on neither.
    pub fn apply(&self, model: &mut Model, filesystem: &WritableFilesystem, now: i64) -> Result<()> {
        let possible = self.is_possible(model);
        let done = self.write(filesystem);
        match (possible, done) {
            (true, Ok(made)) => {
                self.follow(model, made, now);
                Ok(())
            }
            (false, Err(error)) => {
                ensure!(
                    error.kind() == buttress::ErrorKind::Caller,
                    "{self} is refused by {error}, which is no fault of the caller"
                );
                Ok(())
            }
            (true, Err(error)) => {
                Err(anyhow::Error::from(error)).with_context(|| format!("{self} should succeed"))
            }
            (false, Ok(_)) => anyhow::bail!("{self} should be refused"),
        }
    }
}

/// What the volume answered.
enum Made {
    Nothing,
    Inode(Location),
    Subvolume(SubvolumeId),
}

impl Operation {
    /// Whether the model says that the change can be made.
    fn is_possible(&self, model: &Model) -> bool {
        let free = |directory: &Location, name: &Vec<u8>| {
            model.is_writable(*directory)
                && model.inode(*directory).is_some_and(Inode::is_directory)
                && model.target(*directory, name).is_none()
        };
        match self {
            Self::Create(directory, name, _)
            | Self::MakeDirectory(directory, name, _)
            | Self::MakeSymlink(directory, name, _)
            | Self::MakeNode(directory, name, _) => free(directory, name),
            Self::CreateSubvolume(directory, name) => free(directory, name),
            Self::Snapshot(source, directory, name, _) => {
                model.subvolumes.contains_key(source) && free(directory, name)
            }
            Self::Link(inode, directory, name) => {
                inode.subvolume == directory.subvolume
                    && model.inode(*inode).is_some_and(|inode| !inode.is_directory())
                    && free(directory, name)
            }
            Self::Unlink(directory, name) => match model.target(*directory, name) {
                Some(Target::Inode(number)) => {
                    let location = Location::new(directory.subvolume, InodeNumber::new(number));
                    model.is_writable(*directory)
                        && model.inode(location).is_some_and(|inode| !inode.is_directory())
                }
                _ => false,
            },
            Self::RemoveDirectory(directory, name) => match model.target(*directory, name) {
                Some(Target::Inode(number)) => {
                    let location = Location::new(directory.subvolume, InodeNumber::new(number));
                    let is_empty = |inode: &Inode| inode.is_directory() && inode.entries.is_empty();
                    model.is_writable(*directory) && model.inode(location).is_some_and(is_empty)
                }
                // What stands for a subvolume in a snapshot can be removed; a subvolume cannot.
                Some(Target::Subvolume(id)) => {
                    model.is_writable(*directory) && !model.is_place(id, *directory, name)
                }
                None => false,
            },
            Self::Rename(from, old, to, new, mode) => can_rename(model, (*from, old), (*to, new), *mode),
            // Attributes of users are for files and directories.
            Self::SetXattr(inode, ..) => {
                let takes = |inode: &Inode| inode.is_file() || inode.is_directory();
                model.is_writable(*inode) && model.inode(*inode).is_some_and(takes)
            }
            Self::SetMode(inode, _) | Self::SetOwner(inode, ..) | Self::SetModified(inode, _) => {
                model.is_writable(*inode) && model.inode(*inode).is_some()
            }
            Self::RemoveXattr(inode, name) => {
                let has = model
                    .inode(*inode)
                    .is_some_and(|inode| inode.xattrs.contains_key(name));
                model.is_writable(*inode) && has
            }
            Self::DeleteSubvolume(id) => can_delete(model, *id),
            Self::DropDeleted => true,
            Self::Content(inode, change) => {
                let is_file = model.inode(*inode).is_some_and(Inode::is_file);
                is_file && model.is_writable(*inode) && change.is_possible(model, *inode)
            }
        }
    }

    /// Makes the change on the volume.
    fn write(&self, filesystem: &WritableFilesystem) -> buttress::Result<Made> {
        let new = |mode: u32| NewInode::of_root(mode & 0o777);
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
                Made::Inode(filesystem.make_node(*directory, name, &new(0o600), node_kind(*kind))?)
            }
            Self::CreateSubvolume(directory, name) => {
                Made::Subvolume(filesystem.create_subvolume(*directory, name)?)
            }
            Self::Snapshot(source, directory, name, read_only) => {
                Made::Subvolume(filesystem.snapshot(*source, *directory, name, *read_only)?)
            }
            _ => {
                self.write_in_place(filesystem)?;
                Made::Nothing
            }
        };
        Ok(made)
    }

    fn write_in_place(&self, filesystem: &WritableFilesystem) -> buttress::Result<()> {
        let set = |inode: &Location, changes: AttributeChanges| filesystem.set_attributes(*inode, &changes);
        match self {
            Self::Link(inode, directory, name) => filesystem.link(*inode, *directory, name),
            Self::Unlink(directory, name) => filesystem.unlink(*directory, name),
            Self::RemoveDirectory(directory, name) => filesystem.remove_directory(*directory, name),
            Self::Rename(from, old, to, new, mode) => {
                let mode = match mode {
                    Mode::Replace => RenameMode::Replace,
                    Mode::NoReplace => RenameMode::NoReplace,
                    Mode::Exchange => RenameMode::Exchange,
                };
                filesystem.rename(*from, old, *to, new, mode)
            }
            Self::SetXattr(inode, name, value) => {
                filesystem.set_xattr(*inode, name, value, SetXattr::CreateOrReplace)
            }
            Self::RemoveXattr(inode, name) => filesystem.remove_xattr(*inode, name),
            Self::SetMode(inode, mode) => set(
                inode,
                AttributeChanges {
                    mode: Some(*mode & 0o777),
                    ..AttributeChanges::default()
                },
            ),
            Self::SetOwner(inode, uid, gid) => set(
                inode,
                AttributeChanges {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..AttributeChanges::default()
                },
            ),
            Self::SetModified(inode, seconds) => set(
                inode,
                AttributeChanges {
                    modified: Some(Timestamp {
                        seconds: *seconds,
                        nanoseconds: 0,
                    }),
                    ..AttributeChanges::default()
                },
            ),
            Self::DeleteSubvolume(id) => filesystem.delete_subvolume(*id),
            Self::Content(inode, change) => change.write(filesystem, *inode),
            _ => filesystem.drop_deleted_subvolumes(&buttress::Progress::new()),
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

/// A subvolume can be deleted unless it is the top level or others lie in it.
fn can_delete(model: &Model, id: SubvolumeId) -> bool {
    let Some(subvolume) = model.subvolumes.get(&id) else {
        return false;
    };
    let Some((directory, _)) = &subvolume.place else {
        return false;
    };
    let holds_others = model.subvolumes.values().any(|other| {
        other
            .place
            .as_ref()
            .is_some_and(|(place, _)| place.subvolume == id)
    });
    !holds_others && model.is_writable(*directory)
}

/// Whether content would come from what is no file.
#[must_use]
pub fn copies_no_file(model: &Model, operation: &Operation) -> bool {
    match operation {
        Operation::Content(_, change) => change.comes_from_no_file(model),
        _ => false,
    }
}

/// Whether more subvolumes may be made.
#[must_use]
pub fn has_room(model: &Model) -> bool {
    model.subvolumes.len() < SUBVOLUMES_MAX
}
