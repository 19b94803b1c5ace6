//! Lookups of names in a tree: directory entries by index and by hash, and references of the inode.

use buttress_format::{
    DirItems, FileKind, InodeExtrefs, InodeNumber, InodeRefs, ItemType, Key, extref_hash, name_hash,
};
use buttress_tree::{Result, Tree};

/// The target of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) location: Key,
    pub(crate) kind: FileKind,
}

/// Returns the target of the `DIR_INDEX` of `directory` at `index`, if it has this name.
pub(crate) fn by_index(
    tree: &Tree,
    directory: InodeNumber,
    index: u64,
    name: &[u8],
) -> Result<Option<Target>> {
    entry(
        tree,
        &Key::new(directory.object_id(), ItemType::DIR_INDEX, index),
        name,
    )
}

/// Returns the target of the `DIR_ITEM` of `directory` with this name.
pub(crate) fn by_hash(tree: &Tree, directory: InodeNumber, name: &[u8]) -> Result<Option<Target>> {
    let hash = name_hash(name);
    entry(
        tree,
        &Key::new(directory.object_id(), ItemType::DIR_ITEM, hash),
        name,
    )
}

fn entry(tree: &Tree, key: &Key, name: &[u8]) -> Result<Option<Target>> {
    let Some(item) = tree.get(key)? else {
        return Ok(None);
    };
    let Ok(mut entries) = DirItems::parse(key, item.data()) else {
        return Ok(None);
    };
    let found = entries.find(|entry| entry.name == name);
    Ok(found.map(|entry| Target {
        location: entry.location,
        kind: entry.kind,
    }))
}

/// Returns whether the inode has a reference with this name in `directory`, and with this index if
/// one is given.
pub(crate) fn has_link(
    tree: &Tree,
    inode: InodeNumber,
    directory: InodeNumber,
    index: Option<u64>,
    name: &[u8],
) -> Result<bool> {
    let fits = |own: &[u8], at: u64| own == name && index.is_none_or(|index| index == at);
    let key = Key::new(inode.object_id(), ItemType::INODE_REF, directory.get());
    if let Some(item) = tree.get(&key)?
        && let Ok(mut names) = InodeRefs::parse(&key, item.data())
        && names.any(|own| fits(own.name, own.index))
    {
        return Ok(true);
    }
    let hash = extref_hash(directory, name);
    let key = Key::new(inode.object_id(), ItemType::INODE_EXTREF, hash);
    let Some(item) = tree.get(&key)? else {
        return Ok(false);
    };
    let names = InodeExtrefs::parse(&key, item.data());
    Ok(names.is_ok_and(|mut names| names.any(|own| own.parent == directory && fits(own.name, own.index))))
}

/// Returns the names of an entry's missing items; `None` if none is missing.
pub(crate) const fn missing(index: bool, hash: bool) -> Option<&'static str> {
    match (index, hash) {
        (true, true) => None,
        (true, false) => Some("DIR_ITEM"),
        (false, true) => Some("DIR_INDEX"),
        (false, false) => Some("DIR_ITEM and DIR_INDEX"),
    }
}
