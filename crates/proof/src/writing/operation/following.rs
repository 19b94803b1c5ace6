//! What a change that the volume made means for the model.

use super::{Made, Operation};
use crate::writing::model::{DIRECTORY, Inode, Model, Subvolume, Target, root_directory};
use crate::writing::renames::rename;
use buttress::Location;
use std::collections::BTreeMap;

impl Operation {
    /// Makes the change on the model.
    pub(super) fn follow(&self, model: &mut Model, made: Made, now: i64) {
        match (self, made) {
            (_, Made::Inode(location)) => self.follow_new(model, location, now),
            (Self::CreateSubvolume(directory, name), Made::Subvolume(id)) => {
                let subvolume = Subvolume {
                    inodes: BTreeMap::from([(256, root_directory(now))]),
                    read_only: false,
                    place: Some((*directory, name.clone())),
                };
                model.subvolumes.insert(id, subvolume);
                model.link(*directory, name, Target::Subvolume(id), now);
            }
            (Self::Snapshot(source, directory, name, read_only), Made::Subvolume(id)) => {
                model.snapshot(*source, id, (*directory, name.clone()), *read_only);
                model.link(*directory, name, Target::Subvolume(id), now);
            }
            _ => self.follow_in_place(model, now),
        }
    }

    fn follow_new(&self, model: &mut Model, location: Location, now: i64) {
        let inode = Inode {
            modified: now,
            links: 1,
            ..Inode::default()
        };
        let (directory, name, inode) = match self {
            Self::Create(directory, name, mode) => {
                let mode = 0o100_000 | mode & 0o777;
                (directory, name, Inode { mode, ..inode })
            }
            Self::MakeDirectory(directory, name, mode) => {
                let mode = DIRECTORY | mode & 0o777;
                (directory, name, Inode { mode, ..inode })
            }
            Self::MakeSymlink(directory, name, target) => {
                let target = target.clone();
                let mode = 0o120_777;
                (
                    directory,
                    name,
                    Inode {
                        mode,
                        target,
                        ..inode
                    },
                )
            }
            Self::MakeNode(directory, name, kind) => {
                let (bits, device) = match kind {
                    0 => (0o010_000, (0, 0)),
                    1 => (0o140_000, (0, 0)),
                    2 => (0o020_000, (1, 3)),
                    _ => (0o060_000, (7, 300)),
                };
                let mode = bits | 0o600;
                (
                    directory,
                    name,
                    Inode {
                        mode,
                        device,
                        ..inode
                    },
                )
            }
            _ => return,
        };
        if let Some(subvolume) = model.subvolumes.get_mut(&location.subvolume) {
            subvolume.inodes.insert(location.inode.get(), inode);
        }
        model.link(*directory, name, Target::Inode(location.inode.get()), now);
    }

    fn follow_in_place(&self, model: &mut Model, now: i64) {
        match self {
            Self::Link(inode, directory, name) => {
                model.link(*directory, name, Target::Inode(inode.inode.get()), now);
                if let Some(inode) = model.inode_mut(*inode) {
                    inode.links += 1;
                }
            }
            Self::Unlink(directory, name) | Self::RemoveDirectory(directory, name) => {
                model.unlink(*directory, name, now);
            }
            Self::Rename(from, old, to, new, mode) => rename(model, (*from, old), (*to, new), *mode, now),
            Self::SetXattr(inode, name, value) => {
                model
                    .inode_mut(*inode)
                    .map(|inode| inode.xattrs.insert(name.clone(), value.clone()));
            }
            Self::RemoveXattr(inode, name) => {
                model.inode_mut(*inode).map(|inode| inode.xattrs.remove(name));
            }
            Self::SetMode(inode, mode) => {
                if let Some(inode) = model.inode_mut(*inode) {
                    inode.mode = inode.mode & !0o7777 | mode & 0o777;
                }
            }
            Self::SetOwner(inode, uid, gid) => {
                if let Some(inode) = model.inode_mut(*inode) {
                    (inode.uid, inode.gid) = (*uid, *gid);
                }
            }
            Self::SetModified(inode, seconds) => {
                if let Some(inode) = model.inode_mut(*inode) {
                    inode.modified = *seconds;
                }
            }
            Self::Content(inode, change) => change.follow(model, *inode, now),
            Self::DeleteSubvolume(id) => {
                let place = model.subvolumes.remove(id).and_then(|subvolume| subvolume.place);
                if let Some((directory, name)) = place {
                    model.unlink(directory, &name, now);
                }
            }
            _ => {}
        }
    }
}
