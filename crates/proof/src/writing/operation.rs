//! One change: drawn from a seed, judged by the model, carried out on both sides.

use super::content::Change;
use super::model::{Inode, Model, Subvolume, Target, root_directory};
use super::renames::{can_rename, rename};
use anyhow::{Context, Result, ensure};
use buttress::fs::operations::{AttributeChanges, NewInode, NodeKind, RenameMode, SetXattr};
use buttress::fs::{DeviceNumber, WritableFilesystem};
use buttress::{InodeNumber, Location, SubvolumeId, Timestamp};
use buttress_oracle::content::Random;
use std::collections::BTreeMap;
use std::fmt;

/// How many names there are to choose from: few, so that they meet again.
const NAMES: u64 = 24;

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

/// Places that changes are drawn from.
struct Draw<'a> {
    model: &'a Model,
    random: &'a mut Random,
}

impl Draw<'_> {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound.max(1) as u64)).unwrap_or(0)
    }

    fn subvolume(&mut self) -> SubvolumeId {
        let number = self.below(self.model.subvolumes.len());
        let ids = self.model.subvolumes.keys();
        ids.copied().nth(number).unwrap_or(SubvolumeId::TOP_LEVEL)
    }

    /// An inode of any subvolume that is wanted; the root of one where there is none.
    fn inode(&mut self, wanted: impl Fn(&Inode) -> bool) -> Location {
        let id = self.subvolume();
        let found: Vec<u64> = self.model.subvolumes[&id]
            .inodes
            .iter()
            .filter(|(_, inode)| wanted(inode))
            .map(|(number, _)| *number)
            .collect();
        let number = self.below(found.len());
        let inode = found.get(number).copied().unwrap_or(256);
        Location::new(id, InodeNumber::new(inode))
    }

    fn directory(&mut self) -> Location {
        self.inode(Inode::is_directory)
    }

    /// A name that may be there or not.
    fn name(&mut self) -> Vec<u8> {
        match self.random.below(NAMES) {
            0 => vec![b'n'; 255],
            1 => b"with \xff bytes".to_vec(),
            number => format!("name-{number}").into_bytes(),
        }
    }

    /// A name that is there, if any is.
    fn present(&mut self) -> (Location, Vec<u8>) {
        let directory = self.inode(|inode| inode.is_directory() && !inode.entries.is_empty());
        let names: Vec<Vec<u8>> = self
            .model
            .inode(directory)
            .map_or(Vec::new(), |inode| inode.entries.keys().cloned().collect());
        let number = self.below(names.len());
        let name = names.get(number).cloned();
        let name = name.unwrap_or_else(|| self.name());
        (directory, name)
    }

    fn xattr_name(&mut self) -> Vec<u8> {
        format!("user.attribute-{}", self.random.below(6)).into_bytes()
    }

    fn mode(&mut self) -> u32 {
        u32::try_from(self.random.below(0o1000)).unwrap_or(0) | 0o400
    }
}

impl Operation {
    /// Draws a change.
    #[must_use]
    pub fn draw(model: &Model, random: &mut Random) -> Self {
        let choice = random.below(160);
        let mut draw = Draw { model, random };
        match choice {
            0..24 => Self::Create(draw.directory(), draw.name(), draw.mode()),
            24..31 => Self::MakeDirectory(draw.directory(), draw.name(), draw.mode()),
            31..36 => {
                let length = draw.below(300) + 1;
                Self::MakeSymlink(draw.directory(), draw.name(), vec![b't'; length])
            }
            36..38 => Self::MakeNode(draw.directory(), draw.name(), draw.below(4) as u8),
            38..45 => {
                let inode = draw.inode(|inode| !inode.is_directory());
                Self::Link(inode, draw.directory(), draw.name())
            }
            45..57 => {
                let (directory, name) = draw.present();
                Self::Unlink(directory, name)
            }
            57..61 => {
                let (directory, name) = draw.present();
                Self::RemoveDirectory(directory, name)
            }
            61..74 => draw_rename(&mut draw),
            74..82 => {
                let length = draw.below(200) * draw.below(10);
                let value = draw.random.bytes(length, false);
                Self::SetXattr(draw.inode(|_| true), draw.xattr_name(), value)
            }
            82..85 => Self::RemoveXattr(draw.inode(|inode| !inode.xattrs.is_empty()), draw.xattr_name()),
            85..88 => Self::SetMode(draw.inode(|inode| inode.target.is_empty()), draw.mode()),
            88..90 => Self::SetOwner(draw.inode(|_| true), draw.below(3) as u32, draw.below(3) as u32),
            90..92 => Self::SetModified(draw.inode(|_| true), 5_000_000 + draw.below(1000) as i64),
            92..94 => Self::CreateSubvolume(draw.directory(), draw.name()),
            94..97 => {
                let read_only = draw.random.below(2) == 0;
                Self::Snapshot(draw.subvolume(), draw.directory(), draw.name(), read_only)
            }
            97..99 => Self::DeleteSubvolume(draw.subvolume()),
            99 => Self::DropDeleted,
            _ => {
                let file = draw.inode(Inode::is_file);
                let source = draw.inode(Inode::is_file);
                Self::Content(file, Change::draw(model, random, file, source))
            }
        }
    }

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

fn draw_rename(draw: &mut Draw<'_>) -> Operation {
    let (from, name) = draw.present();
    let to = match draw.random.below(3) {
        0 => from,
        1 => draw.directory(),
        // Somewhere in the same subvolume.
        _ => {
            let directories: Vec<u64> = draw.model.subvolumes[&from.subvolume]
                .inodes
                .iter()
                .filter(|(_, inode)| inode.is_directory())
                .map(|(number, _)| *number)
                .collect();
            let number = draw.below(directories.len());
            Location::new(from.subvolume, InodeNumber::new(directories[number]))
        }
    };
    let mode = match draw.random.below(4) {
        0 => Mode::NoReplace,
        1 => Mode::Exchange,
        _ => Mode::Replace,
    };
    let new_name = draw.name();
    Operation::Rename(from, name, to, new_name, mode)
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

    /// Makes the change on the model.
    fn follow(&self, model: &mut Model, made: Made, now: i64) {
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
                let mode = super::model::DIRECTORY | mode & 0o777;
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
