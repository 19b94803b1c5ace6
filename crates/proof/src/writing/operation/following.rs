//! Updates the model after a change that the volume has made.

use super::{Made, Mode, Operation};
use crate::writing::model::{DIRECTORY, Inode, Model, REGULAR, SET_GROUP_ID, Subvolume, Target};
use crate::writing::newborn::{COMPRESSION, flags_after, newborn, newborn_subvolume};
use crate::writing::renames::rename;
use buttress::{FileAttributes, Location, SubvolumeId};
use std::collections::BTreeMap;

const CHARACTER_DEVICE: u32 = 0o020_000;
const SET_USER_ID: u32 = 0o4000;
const GROUP_EXECUTE: u32 = 0o010;

impl Operation {
    /// Makes the change on the model.
    pub(crate) fn follow(&self, model: &mut Model, made: &Made, now: i64) {
        match (self, made) {
            (Self::Rename(from, old, to, new, mode), made) => {
                rename(model, (*from, old), (*to, new), *mode, now);
                if let (Mode::Whiteout, Made::Inode(location)) = (mode, made) {
                    add_inode(model, *from, *location, CHARACTER_DEVICE, 0, now);
                    model.link(*from, old, Target::Inode(location.inode.get()), now);
                }
            }
            (Self::MakeUnnamed(directory, mode), Made::Held(held)) => {
                let location = held.location();
                add_inode(model, *directory, location, REGULAR, *mode, now);
                if let Some(inode) = model.inode_mut(location) {
                    inode.links = 0;
                }
                model.held.insert(location);
                model.unnamed.insert(location);
            }
            (Self::Hold(location), _) => drop(model.held.insert(*location)),
            (_, Made::Unchanged) => {}
            (_, Made::Inode(location)) => self.follow_new(model, *location, now),
            (_, Made::Subvolume(id)) => self.follow_new_subvolume(model, *id, now),
            _ => self.follow_in_place(model, now),
        }
    }

    fn follow_new_subvolume(&self, model: &mut Model, id: SubvolumeId, now: i64) {
        let (directory, name) = match self {
            Self::CreateSubvolume(directory, name) => {
                let above = model.inode(*directory).cloned().unwrap_or_default();
                let root = model.inode(Location::root_of(directory.subvolume)).cloned();
                let root = newborn_subvolume(&above, &root.unwrap_or_default(), now);
                let subvolume = Subvolume {
                    inodes: BTreeMap::from([(256, root)]),
                    read_only: false,
                    place: Some((*directory, name.clone())),
                };
                model.subvolumes.insert(id, subvolume);
                (directory, name)
            }
            Self::Snapshot(source, directory, name, read_only) => {
                model.snapshot(*source, id, (*directory, name.clone()), *read_only);
                (directory, name)
            }
            _ => return,
        };
        model.link(*directory, name, Target::Subvolume(id), now);
    }

    fn follow_new(&self, model: &mut Model, location: Location, now: i64) {
        let (directory, name, kind, mode) = match self {
            Self::Create(directory, name, mode) => (directory, name, REGULAR, *mode),
            // mkdir(2) ignores both set-id bits.
            Self::MakeDirectory(directory, name, mode) => (directory, name, DIRECTORY, *mode & 0o1777),
            Self::MakeSymlink(directory, name, _) => (directory, name, 0o120_000, 0o777),
            Self::MakeNode(directory, name, kind) => {
                let kinds = [0o010_000, 0o140_000, CHARACTER_DEVICE, 0o060_000];
                (directory, name, kinds[usize::from(*kind)], 0o666)
            }
            _ => return,
        };
        add_inode(model, *directory, location, kind, mode, now);
        if let Some(inode) = model.inode_mut(location) {
            match self {
                Self::MakeSymlink(_, _, target) => inode.target.clone_from(target),
                Self::MakeNode(_, _, 2) => inode.device = (1, 3),
                Self::MakeNode(_, _, 3) => inode.device = (7, 300),
                _ => {}
            }
        }
        model.link(*directory, name, Target::Inode(location.inode.get()), now);
    }

    fn follow_in_place(&self, model: &mut Model, now: i64) {
        match self {
            Self::Link(inode, directory, name) => {
                model.link(*directory, name, Target::Inode(inode.inode.get()), now);
                model.unnamed.remove(inode);
                if let Some(inode) = model.inode_mut(*inode) {
                    inode.links += 1;
                }
            }
            Self::Unlink(directory, name) | Self::RemoveDirectory(directory, name) => {
                model.unlink(*directory, name, now);
            }
            Self::Release(location) => model.release(*location),
            Self::Content(inode, change) => change.follow(model, *inode, now),
            Self::DeleteSubvolume(id) => {
                let place = model.subvolumes.remove(id).and_then(|subvolume| subvolume.place);
                if let Some((directory, name)) = place {
                    model.unlink(directory, &name, now);
                }
                model.held.retain(|held| held.subvolume != *id);
                model.unnamed.retain(|held| held.subvolume != *id);
            }
            Self::SetReadOnly(id, read_only) => {
                if let Some(subvolume) = model.subvolumes.get_mut(id) {
                    subvolume.read_only = *read_only;
                }
            }
            Self::SetDefault(id) => model.default = *id,
            Self::SetLabel(label) => model.label.clone_from(label),
            _ => self.follow_attributes(model),
        }
    }

    fn follow_attributes(&self, model: &mut Model) {
        let (Self::SetXattr(location, ..)
        | Self::RemoveXattr(location, _)
        | Self::SetAccessList(location, _)
        | Self::SetDefaultList(location, _)
        | Self::SetCompression(location, _)
        | Self::SetFlags(location, _)
        | Self::SetMode(location, _)
        | Self::SetOwner(location, ..)
        | Self::SetModified(location, _)) = self
        else {
            return;
        };
        if let Some(inode) = model.inode_mut(*location) {
            self.change_attributes(inode);
        }
    }

    fn change_attributes(&self, inode: &mut Inode) {
        match self {
            Self::SetXattr(_, name, value) => drop(inode.xattrs.insert(name.clone(), value.clone())),
            Self::RemoveXattr(_, name) => drop(inode.xattrs.remove(name)),
            Self::SetAccessList(_, list) => {
                if let Some(list) = list {
                    inode.mode = inode.mode & !0o777 | list.permissions();
                }
                inode.access_list = list.clone().filter(|list| list.says_more_than_a_mode());
            }
            Self::SetDefaultList(_, list) => inode.default_list.clone_from(list),
            Self::SetCompression(_, value) => set_compression(inode, value.unwrap_or_default()),
            Self::SetFlags(_, wanted) => {
                inode.flags = flags_after(inode, *wanted).unwrap_or(inode.flags);
                inode.xattrs.remove(COMPRESSION);
                if wanted.contains(FileAttributes::COMPRESS) {
                    inode.xattrs.insert(COMPRESSION.to_vec(), b"zlib".to_vec());
                }
            }
            Self::SetMode(_, mode) => {
                inode.mode = inode.mode & !0o7777 | mode & 0o7777;
                if let Some(list) = &mut inode.access_list {
                    list.follow(*mode);
                }
            }
            Self::SetOwner(_, uid, gid) => {
                (inode.uid, inode.gid) = (*uid, *gid);
                if !inode.is_directory() {
                    let executes = inode.mode & GROUP_EXECUTE != 0;
                    inode.mode &= !SET_USER_ID & if executes { !SET_GROUP_ID } else { !0 };
                }
            }
            Self::SetModified(_, seconds) => (inode.modified, inode.modified_is_set) = (*seconds, true),
            _ => {}
        }
    }
}

/// Adds a new inode to the subvolume of `directory`, from which it inherits.
fn add_inode(model: &mut Model, directory: Location, location: Location, kind: u32, mode: u32, now: i64) {
    let Some(parent) = model.inode(directory) else {
        return;
    };
    let inode = newborn(parent, kind, mode, now);
    if let Some(subvolume) = model.subvolumes.get_mut(&location.subvolume) {
        subvolume.inodes.insert(location.inode.get(), inode);
    }
}

/// If the value of a property is empty, the change removes the property.
fn set_compression(inode: &mut Inode, value: &str) {
    inode
        .flags
        .remove(FileAttributes::COMPRESS | FileAttributes::NOCOMPRESS);
    inode.xattrs.remove(COMPRESSION);
    if value.is_empty() {
        return;
    }
    inode
        .xattrs
        .insert(COMPRESSION.to_vec(), value.as_bytes().to_vec());
    inode.flags.insert(match value {
        "no" | "none" => FileAttributes::NOCOMPRESS,
        _ => FileAttributes::COMPRESS,
    });
}
