//! The guard: a file that was whole before a repair is whole after it.
//!
//! The guard compares two states of a volume, subvolume by subvolume. Blocks that both states share
//! are equal, so the guard reads only the differences, and then the items of the inodes in them.
//!
//! An inode is whole if its item exists, its items can be parsed, and a name leads to it. After the
//! repair it must have the same attributes, extents and extended attributes, and at least as many
//! names. Counts are no part of the comparison, because repairs correct them.
//!
//! Limit: the guard compares records, not data. No edit of a repair writes data.

use crate::items::keys_of;
use buttress_format::{
    ByteCount, DirItem, DirItems, FileExtent, FileKind, Generation, InodeExtrefs, InodeFlags, InodeItem,
    InodeNumber, InodeRefs, ItemType, Key, ObjectId, RootItem, RootRef, SubvolumeId, TreeId,
};
use buttress_fs::{Error, Filesystem, Location, Progress, Result};
use buttress_tree::{ReadAhead, Tree, changes};
use core::hash::{Hash as _, Hasher as _};
use std::collections::BTreeSet;
use std::hash::DefaultHasher;

/// A file or subvolume that was whole before, and is not whole after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The subvolume.
    pub subvolume: SubvolumeId,
    /// The inode; the root directory for a whole subvolume.
    pub inode: InodeNumber,
    /// The paths of the inode before, from the top of its subvolume.
    pub paths: Vec<Vec<u8>>,
    /// The difference.
    pub what: &'static str,
}

/// A file of a subvolume.
pub(crate) type FileId = (TreeId, InodeNumber);

/// Returns the files that were whole in `before` and are not whole in `after`. Files in `announced`
/// are subjects of steps that named their loss.
pub(crate) fn lost(
    before: &Filesystem,
    after: &Filesystem,
    announced: &BTreeSet<FileId>,
    progress: &Progress,
) -> Result<Vec<Lost>> {
    let mut found = Vec::new();
    if buttress_faults::on("repair-guard-off") {
        return Ok(found);
    }
    for subvolume in subvolumes(before)? {
        progress.check()?;
        let old = before.tree(subvolume.tree())?;
        let mut add = |inode: InodeNumber, what| {
            // Clamp: the paths are for display, and a directory above may be damaged.
            let paths = before
                .inode_paths(Location::new(subvolume, inode))
                .unwrap_or_default();
            found.push(Lost {
                subvolume,
                inode,
                paths,
                what,
            });
        };
        let new = match after.tree(subvolume.tree()) {
            Ok(new) => new,
            Err(Error::TreeNotFound { .. }) => {
                add(InodeNumber::ROOT_DIRECTORY, "the subvolume is gone");
                continue;
            }
            Err(error) => return Err(error),
        };
        if is_reachable(before, subvolume)? && !is_reachable(after, subvolume)? {
            add(InodeNumber::ROOT_DIRECTORY, "no directory leads to the subvolume");
        }
        for inode in changed_inodes(&old, &new)? {
            if announced.contains(&(subvolume.tree(), inode)) {
                continue;
            }
            let Some(whole) = State::read(&old, inode)?.filter(State::is_whole) else {
                continue;
            };
            if let Some(what) = whole.difference(State::read(&new, inode)?.as_ref()) {
                add(inode, what);
            }
        }
    }
    Ok(found)
}

/// Returns the subvolumes that are not being deleted.
fn subvolumes(filesystem: &Filesystem) -> Result<Vec<SubvolumeId>> {
    let mut found = Vec::new();
    for item in filesystem.root_tree().range(.., ReadAhead::Forward) {
        let item = item?;
        let key = item.key();
        let Some(subvolume) = TreeId::new(key.objectid.get()).as_subvolume() else {
            continue;
        };
        if key.item_type != ItemType::ROOT_ITEM {
            continue;
        }
        let root = RootItem::parse(&key, item.data(), filesystem.sector_bytes());
        if root.is_ok_and(|root| root.references > 0) {
            found.push(subvolume);
        }
    }
    found.dedup();
    Ok(found)
}

/// Returns whether a directory leads to a subvolume. The top level needs none.
fn is_reachable(filesystem: &Filesystem, subvolume: SubvolumeId) -> Result<bool> {
    if subvolume == SubvolumeId::TOP_LEVEL {
        return Ok(true);
    }
    let child = subvolume.tree().object_id();
    let keys = Key::new(child, ItemType::ROOT_BACKREF, 0)..=Key::new(child, ItemType::ROOT_BACKREF, u64::MAX);
    for item in filesystem.root_tree().range(keys, ReadAhead::None) {
        let item = item?;
        let key = item.key();
        let Ok(place) = RootRef::parse(&key, item.data()) else {
            continue;
        };
        let Ok(parent) = filesystem.tree(TreeId::new(key.offset)) else {
            continue;
        };
        let leads_there = |entry: &DirItem<'_>| {
            entry.location.item_type == ItemType::ROOT_ITEM && entry.location.objectid == child
        };
        if has_entry(&parent, place.directory, place.name, &leads_there)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a directory has an entry with this name that `wanted` accepts.
fn has_entry(
    tree: &Tree,
    directory: InodeNumber,
    name: &[u8],
    wanted: &dyn Fn(&DirItem<'_>) -> bool,
) -> Result<bool> {
    let key = DirItem::key(directory, name);
    let Some(item) = tree.get(&key)? else {
        return Ok(false);
    };
    let entries = DirItems::parse(&key, item.data());
    Ok(entries.is_ok_and(|mut entries| entries.any(|entry| entry.name == name && wanted(&entry))))
}

/// Returns the inodes whose items differ, and the targets of entries that differ.
fn changed_inodes(old: &Tree, new: &Tree) -> Result<BTreeSet<InodeNumber>> {
    let mut found = BTreeSet::new();
    let mut changes = changes(old, new, ReadAhead::sweep());
    while let Some(change) = changes.next()? {
        let key = change.key;
        if key.objectid < ObjectId::FIRST_FREE || key.objectid > ObjectId::LAST_FREE {
            continue;
        }
        found.insert(InodeNumber::new(key.objectid.get()));
        if matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX) {
            for data in [change.old, change.new].into_iter().flatten() {
                let entries = DirItems::parse(&key, data).into_iter().flatten();
                let inodes = entries.filter(|entry| entry.location.item_type == ItemType::INODE_ITEM);
                found.extend(inodes.map(|entry| InodeNumber::new(entry.location.objectid.get())));
            }
        }
    }
    Ok(found)
}

/// The parts of an inode that must stay.
#[derive(Debug)]
struct State {
    inode: InodeNumber,
    item: InodeItem,
    /// The names that lead to the inode.
    names: BTreeSet<(InodeNumber, Vec<u8>)>,
    /// A hash of extents and extended attributes.
    content: u64,
    /// Whether all items could be parsed.
    is_sound: bool,
}

impl State {
    /// Returns the state of an inode; `None` without an inode item.
    fn read(tree: &Tree, inode: InodeNumber) -> Result<Option<Self>> {
        let key = InodeItem::key(inode);
        let Some(found) = tree.get(&key)? else {
            return Ok(None);
        };
        let Ok(item) = InodeItem::parse(&key, found.data()) else {
            return Ok(None);
        };
        let mut state = Self {
            inode,
            item,
            names: BTreeSet::new(),
            content: 0,
            is_sound: true,
        };
        let sector_bytes = tree.forest().block_format().sector_bytes;
        let mut content = DefaultHasher::new();
        for found in tree.range(keys_of(inode), ReadAhead::Forward) {
            let found = found?;
            let (key, data) = (found.key(), found.data());
            match key.item_type {
                ItemType::INODE_REF => match InodeRefs::parse(&key, data) {
                    Ok(names) => names.for_each(|name| state.add_name(name.parent, name.name)),
                    Err(_) => state.is_sound = false,
                },
                ItemType::INODE_EXTREF => match InodeExtrefs::parse(&key, data) {
                    Ok(names) => names.for_each(|name| state.add_name(name.parent, name.name)),
                    Err(_) => state.is_sound = false,
                },
                ItemType::XATTR_ITEM => (key.offset, data).hash(&mut content),
                ItemType::EXTENT_DATA => match FileExtent::parse(&key, data, sector_bytes) {
                    Ok(mut extent) => {
                        extent.generation = Generation::MIN;
                        let is_hole = extent.slice().is_some_and(|slice| slice.is_hole());
                        if !is_hole {
                            (key.offset, extent.encode()).hash(&mut content);
                        }
                    }
                    Err(_) => state.is_sound = false,
                },
                _ => {}
            }
        }
        state.content = content.finish();
        state.keep_leading(tree)?;
        Ok(Some(state))
    }

    fn add_name(&mut self, directory: InodeNumber, name: &[u8]) {
        self.names.insert((directory, name.to_vec()));
    }

    /// Drops the names that no directory entry has.
    fn keep_leading(&mut self, tree: &Tree) -> Result<()> {
        let target = InodeItem::key(self.inode);
        let mut leading = BTreeSet::new();
        for (directory, name) in core::mem::take(&mut self.names) {
            if has_entry(tree, directory, &name, &|entry| entry.location == target)? {
                leading.insert((directory, name));
            }
        }
        self.names = leading;
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.is_sound && (!self.names.is_empty() || self.inode == InodeNumber::ROOT_DIRECTORY)
    }

    /// Returns the attributes that a repair must not change.
    fn attributes(&self) -> (u32, u32, u32, u64, u64, ByteCount) {
        let item = &self.item;
        let size = if item.kind() == FileKind::Directory {
            ByteCount::ZERO
        } else {
            item.size
        };
        let cleared = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);
        let flags = if item.kind() == FileKind::Symlink {
            item.flags.difference(cleared)
        } else {
            item.flags
        };
        (item.mode, item.uid, item.gid, item.rdev, flags.bits(), size)
    }

    /// Returns what of this state is missing in another.
    fn difference(&self, after: Option<&Self>) -> Option<&'static str> {
        let Some(after) = after else {
            return Some("the inode is gone");
        };
        if !after.is_sound {
            return Some("an item of the inode is damaged");
        }
        if after.attributes() != self.attributes() {
            return Some("its attributes differ");
        }
        if after.content != self.content {
            return Some("its extents or extended attributes differ");
        }
        (after.names.len() < self.names.len()).then_some("a name of it is gone")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_hostile::editor::{Editor, key};
    use buttress_hostile::plants;

    fn lost_by(change: impl FnOnce(&mut Editor)) -> Vec<Lost> {
        let whole = plants::seed("kinds");
        let mut damaged = whole.clone();
        change(&mut damaged);
        let none = BTreeSet::new();
        lost(&whole.open(), &damaged.open(), &none, &Progress::new()).unwrap()
    }

    /// Returns a file with one name whose items are inside a leaf.
    fn file(editor: &Editor) -> (InodeNumber, Key) {
        let (name, _) = editor.find(TreeId::FS, ItemType::INODE_REF, |name, data| {
            let item = InodeItem::key(InodeNumber::new(name.objectid.get()));
            let is_single = InodeRefs::parse(name, data).is_ok_and(|names| names.count() == 1);
            let is_inside = |key| !editor.leads_a_leaf(TreeId::FS, key);
            name.objectid.get() > 256 && is_single && is_inside(&item) && is_inside(name)
        });
        (InodeNumber::new(name.objectid.get()), name)
    }

    #[test]
    fn equal_volumes_have_lost_nothing() {
        assert_eq!(lost_by(|_| {}), []);
    }

    #[test]
    fn inode_that_is_gone_is_lost() {
        let (inode, _) = file(&plants::seed("kinds"));
        let found = lost_by(|editor| {
            for (key, _) in editor.items(TreeId::FS) {
                if key.objectid == inode.object_id() {
                    editor.remove(TreeId::FS, &key);
                }
            }
        });
        assert!(
            found
                .iter()
                .any(|lost| lost.inode == inode && lost.what == "the inode is gone"),
            "{found:?}"
        );
    }

    #[test]
    fn name_that_is_gone_is_lost() {
        let (inode, name) = file(&plants::seed("kinds"));
        let found = lost_by(|editor| editor.remove(TreeId::FS, &name));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].inode, found[0].what), (inode, "a name of it is gone"));
        assert!(!found[0].paths.is_empty());
    }

    #[test]
    fn attributes_of_a_whole_file_must_stay_and_counts_may_change() {
        let (inode, _) = file(&plants::seed("kinds"));
        let item = InodeItem::key(inode);
        // Byte 40 is the link count, byte 44 the owner.
        assert_eq!(
            lost_by(|editor| editor.data(TreeId::FS, &item, |data| data[40] += 1)),
            []
        );
        let found = lost_by(|editor| editor.data(TreeId::FS, &item, |data| data[44] += 1));
        assert_eq!(found[0].what, "its attributes differ");
    }

    #[test]
    fn subvolume_without_an_entry_is_lost() {
        let editor = plants::seed("kinds");
        let (place, _) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
        let back = key(place.offset, ItemType::ROOT_BACKREF, place.objectid.get());
        let found = lost_by(|editor| editor.remove(TreeId::ROOT, &back));
        assert_eq!(found[0].what, "no directory leads to the subvolume");
    }
}
