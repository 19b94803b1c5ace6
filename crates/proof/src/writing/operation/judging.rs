//! The model's rules about possible changes.

use super::drawing::is_of_one_hash;
use super::{Mode, Operation};
use crate::writing::model::{Inode, Model, Target};
use crate::writing::newborn::{COMPRESSION, flags_after};
use crate::writing::renames::{can_rename, names_placeholder};
use buttress::{FileAttributes, InodeNumber, Location, SubvolumeId};

/// Largest number of subvolumes.
pub const SUBVOLUMES_MAX: usize = 12;

/// Overhead of an item of entries beside their names: each entry's, the item's, and a block's
/// header.
const ENTRY_BYTES: u64 = 30;
const ITEM_BYTES: u64 = 25;
const HEADER_BYTES: u64 = 101;

impl Model {
    /// Returns whether a directory accepts new names.
    pub(crate) fn takes_names(&self, directory: Location) -> bool {
        let takes = |inode: &Inode| inode.is_directory() && !inode.flags.contains(FileAttributes::IMMUTABLE);
        self.is_writable(directory) && self.inode(directory).is_some_and(takes)
    }

    /// Returns whether names can be removed from a directory.
    pub(crate) fn gives_names(&self, directory: Location) -> bool {
        let is_open = |inode: &Inode| !inode.flags.contains(FileAttributes::APPEND);
        self.takes_names(directory) && self.inode(directory).is_some_and(is_open)
    }

    /// Returns whether a directory item has space for one more name with the same hash.
    pub(crate) fn has_space_for(&self, directory: Location, name: &[u8]) -> bool {
        let Some(inode) = self.inode(directory).filter(|_| is_of_one_hash(name)) else {
            return true;
        };
        let bytes = |name: &[u8]| name.len() as u64 + ENTRY_BYTES;
        let others = inode.entries.keys().filter(|other| is_of_one_hash(other));
        let present: u64 = others.map(|other| bytes(other)).sum();
        present == 0 || present + bytes(name) + ITEM_BYTES + HEADER_BYTES <= self.node_bytes
    }

    /// Returns whether a directory accepts a new name.
    fn is_free(&self, directory: Location, name: &[u8]) -> bool {
        self.takes_names(directory)
            && self.target(directory, name).is_none()
            && self.has_space_for(directory, name)
    }

    /// Returns whether attributes of an inode can be changed.
    fn is_changeable(&self, location: Location) -> bool {
        self.is_writable(location) && self.inode(location).is_some_and(|inode| !inode.is_fixed())
    }
}

impl Operation {
    /// Returns whether the change is possible.
    #[must_use]
    pub fn is_possible(&self, model: &Model) -> bool {
        match self {
            Self::Create(directory, name, _)
            | Self::MakeDirectory(directory, name, _)
            | Self::MakeSymlink(directory, name, _)
            | Self::MakeNode(directory, name, _)
            | Self::CreateSubvolume(directory, name) => model.is_free(*directory, name),
            Self::Snapshot(source, directory, name, _) => {
                model.subvolumes.contains_key(source) && model.is_free(*directory, name)
            }
            Self::MakeUnnamed(directory, _) => model.takes_names(*directory),
            Self::Link(inode, directory, name) => {
                let takes = |inode: &Inode| !inode.is_directory() && !inode.is_fixed();
                inode.subvolume == directory.subvolume
                    && model.inode(*inode).is_some_and(takes)
                    && model.is_free(*directory, name)
            }
            Self::Unlink(directory, name) => {
                let goes = |inode: &Inode| !inode.is_directory() && !inode.is_fixed();
                model.gives_names(*directory) && named(model, *directory, name).is_some_and(goes)
            }
            Self::RemoveDirectory(directory, name) => can_remove_directory(model, *directory, name),
            Self::Rename(from, old, to, new, mode) => can_rename(model, (*from, old), (*to, new), *mode),
            Self::DeleteSubvolume(id) => can_delete(model, *id),
            Self::SetReadOnly(id, _) | Self::SetDefault(id) => model.subvolumes.contains_key(id),
            Self::DropDeleted | Self::SetLabel(_) | Self::Release(_) => true,
            Self::Content(inode, change) => {
                let is_file = model.inode(*inode).is_some_and(Inode::is_file);
                is_file && model.is_writable(*inode) && change.is_possible(model, *inode)
            }
            _ => self.can_change_inode(model),
        }
    }

    /// Returns whether a change of one inode's attributes is possible.
    fn can_change_inode(&self, model: &Model) -> bool {
        match self {
            // The model allows user attributes only on files and directories.
            Self::SetXattr(inode, name, _) => {
                let takes =
                    |inode: &Inode| !name.starts_with(b"user.") || inode.is_file() || inode.is_directory();
                model.is_changeable(*inode) && model.inode(*inode).is_some_and(takes)
            }
            Self::SetMode(inode, _) | Self::SetOwner(inode, ..) | Self::SetModified(inode, _) => {
                model.is_changeable(*inode)
            }
            Self::RemoveXattr(inode, name) => {
                let has = |inode: &Inode| inode.xattrs.contains_key(name);
                model.is_changeable(*inode) && model.inode(*inode).is_some_and(has)
            }
            Self::SetAccessList(inode, list) => {
                let is_in_order = list.as_ref().is_none_or(|list| list.is_in_order());
                let has_lists = |inode: &Inode| inode.target.is_empty();
                is_in_order && model.is_changeable(*inode) && model.inode(*inode).is_some_and(has_lists)
            }
            // If a default access list is missing, removing it succeeds on anything except a
            // symlink.
            Self::SetDefaultList(inode, list) => {
                let is_in_order = list.as_ref().is_none_or(|list| list.is_in_order());
                let takes = |inode: &Inode| inode.is_directory() || list.is_none() && inode.target.is_empty();
                is_in_order && model.is_changeable(*inode) && model.inode(*inode).is_some_and(takes)
            }
            Self::SetCompression(inode, value) => {
                let is_known = value.is_none_or(|value| value != "gzip");
                // A nodatacow file cannot have the compression property, but an empty value can
                // remove the property.
                let takes = |inode: &Inode| match value {
                    None => inode.xattrs.contains_key(COMPRESSION),
                    Some("") => true,
                    Some(_) => !inode.flags.contains(FileAttributes::NOCOW),
                };
                is_known && model.is_changeable(*inode) && model.inode(*inode).is_some_and(takes)
            }
            Self::SetFlags(inode, wanted) => {
                let can = |inode: &Inode| flags_after(inode, *wanted).is_some();
                model.is_writable(*inode) && model.inode(*inode).is_some_and(can)
            }
            Self::Hold(inode) => model.inode(*inode).is_some_and(|inode| inode.links > 0),
            _ => false,
        }
    }
}

/// Returns the inode with a name, unless it is a subvolume.
fn named<'a>(model: &'a Model, directory: Location, name: &[u8]) -> Option<&'a Inode> {
    match model.target(directory, name)? {
        Target::Inode(number) => model.inode(Location::new(directory.subvolume, InodeNumber::new(number))),
        Target::Subvolume(_) => None,
    }
}

/// rmdir(2) removes the placeholder of a subvolume, but not a subvolume.
fn can_remove_directory(model: &Model, directory: Location, name: &[u8]) -> bool {
    let goes = |inode: &Inode| inode.is_directory() && inode.entries.is_empty() && !inode.is_fixed();
    model.gives_names(directory)
        && match model.target(directory, name) {
            Some(Target::Subvolume(id)) => !model.is_place(id, directory, name),
            _ => named(model, directory, name).is_some_and(goes),
        }
}

/// Returns whether a subvolume can be deleted: it is neither the top level nor the default, has no
/// nested subvolumes, and its directory and its own root allow changes.
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
    let is_fixed = model.inode(Location::root_of(id)).is_some_and(Inode::is_fixed);
    !holds_others && !is_fixed && id != model.default && model.gives_names(*directory)
}

/// Returns whether the test should make a drawn change. Changes without a specified outcome are
/// excluded:
///
/// - more subvolumes than a run may have;
/// - renames of placeholders, in which kernels differ;
/// - copies from a file other than a regular one;
/// - links to an open file that has lost its names: Buttress allows them, the kernel only for files
///   that never had a name;
/// - contradictory flags, if incompressible content may have set one of them;
#[must_use]
pub fn can_be_drawn(model: &Model, operation: &Operation) -> bool {
    match operation {
        Operation::CreateSubvolume(..) | Operation::Snapshot(..) => model.subvolumes.len() < SUBVOLUMES_MAX,
        Operation::Rename(..) => !names_placeholder(model, operation),
        Operation::Content(_, change) => !change.comes_from_no_file(model),
        Operation::Link(inode, ..) => {
            model.unnamed.contains(inode) || model.inode(*inode).is_some_and(|inode| inode.links > 0)
        }
        Operation::SetFlags(inode, wanted) => {
            let is_file = model.inode(*inode).is_some_and(Inode::is_file);
            !(model.may_give_up && is_file && wanted.contains(FileAttributes::NOCOW))
        }
        _ => true,
    }
}

impl Mode {
    /// Returns the name of this kind of rename.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Replace => "rename",
            Self::NoReplace => "rename without replacing",
            Self::Exchange => "exchange",
            Self::Whiteout => "rename with whiteout",
        }
    }
}
