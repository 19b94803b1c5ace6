//! Counts of inodes, and values of single fields.

use crate::items::{Items, broken, keys_of};
use crate::steps::Applied;
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, Compression, DirItems, ExtentSlice, FileExtent, FileExtentBody, FileKind, FileOffset,
    InodeExtrefs, InodeFlags, InodeNumber, InodeRefs, ItemType, Key, Logical, TreeId,
};
use buttress_fs::error::{Error, Result};
use core::ops::Range;

/// The sums over the items of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) names: u64,
    pub(crate) name_bytes: u64,
    pub(crate) bytes: u64,
    /// The end of the last extent. Inline content ends with its last byte.
    pub(crate) end: u64,
    pub(crate) has_extents: bool,
    pub(crate) has_entries: bool,
}

/// Sums up the items of an inode.
pub(crate) fn sums(items: &mut Items<'_>, tree: TreeId, inode: InodeNumber) -> Result<Sums> {
    let sector_bytes = items.sector_bytes();
    let mut sums = Sums::default();
    let fail = |error| broken(tree, error);
    items.each(tree, keys_of(inode), &mut |key, data| {
        match key.item_type {
            ItemType::INODE_REF => {
                let names = InodeRefs::parse(key, data).map_err(fail)?.count();
                sums.names = sums.names.exact_add(buttress_exact::u64_of(names));
            }
            ItemType::INODE_EXTREF => {
                let names = InodeExtrefs::parse(key, data).map_err(fail)?.count();
                sums.names = sums.names.exact_add(buttress_exact::u64_of(names));
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                sums.has_entries = true;
                for entry in DirItems::parse(key, data).map_err(fail)? {
                    let length = buttress_exact::u64_of(entry.name.len());
                    sums.name_bytes = sums.name_bytes.exact_add(length);
                }
            }
            ItemType::EXTENT_DATA => {
                let extent = FileExtent::parse(key, data, sector_bytes).map_err(fail)?;
                sums.has_extents = true;
                add_extent(&mut sums, key, &extent)?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(sums)
}

fn add_extent(sums: &mut Sums, key: &Key, extent: &FileExtent<'_>) -> Result<()> {
    let length = match &extent.body {
        FileExtentBody::Inline(_) => extent.ram_bytes.get(),
        FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => slice.num_bytes.get(),
    };
    let is_hole = extent.slice().is_some_and(ExtentSlice::is_hole);
    // Lengths come from the volume.
    let too_long = Error::Invalid {
        what: "extents longer than any file",
    };
    if !is_hole {
        sums.bytes = sums.bytes.checked_add(length).ok_or_else(|| too_long.clone())?;
    }
    let end = key.offset.checked_add(length).ok_or(too_long)?;
    sums.end = sums.end.max(end);
    Ok(())
}

/// Sets the counts of an inode to the sums over its items.
pub(crate) fn recount(items: &mut Items<'_>, tree: TreeId, inode: InodeNumber) -> Result<Applied> {
    let Some(mut item) = items.inode(tree, inode)? else {
        return Ok(Applied::Nothing("the inode does not exist"));
    };
    let before = item;
    let sums = sums(items, tree, inode)?;
    item.nlink = u32::try_from(sums.names).map_err(|_| Error::TooMany {
        what: "the inode has more names than the format permits",
    })?;
    match item.kind() {
        FileKind::Directory => item.size = ByteCount::new(sums.name_bytes),
        FileKind::Regular | FileKind::Symlink => item.nbytes = ByteCount::new(sums.bytes),
        _ => {}
    }
    if item == before {
        return Ok(Applied::Nothing("the counts are right"));
    }
    items.put_inode(tree, inode, item)?;
    Ok(Applied::Changed)
}

/// Clears the flags that a symlink cannot have.
pub(super) fn clear_symlink_flags(
    items: &mut Items<'_>,
    tree: TreeId,
    inode: InodeNumber,
) -> Result<Applied> {
    let Some(mut item) = items.inode(tree, inode)? else {
        return Ok(Applied::Nothing("the inode does not exist"));
    };
    item.flags.remove(InodeFlags::IMMUTABLE.union(InodeFlags::APPEND));
    items.put_inode(tree, inode, item)?;
    Ok(Applied::Changed)
}

/// Sets the generation of a file extent to that of the last commit.
pub(super) fn set_extent_generation(
    items: &mut Items<'_>,
    tree: TreeId,
    inode: InodeNumber,
    offset: u64,
) -> Result<Applied> {
    let key = FileExtent::key(inode, FileOffset::new(offset));
    let Some(item) = items.get(tree, &key)? else {
        return Ok(Applied::Nothing("the extent does not exist"));
    };
    let generation = items.running.core.durable;
    let mut extent =
        FileExtent::parse(&key, item.data(), items.sector_bytes()).map_err(|error| broken(tree, error))?;
    extent.generation = generation;
    items.put(tree, &key, &extent.encode())?;
    Ok(Applied::Changed)
}

/// Inserts the item of a hole.
pub(super) fn insert_hole(
    items: &mut Items<'_>,
    tree: TreeId,
    inode: InodeNumber,
    range: Range<u64>,
) -> Result<Applied> {
    let key = FileExtent::key(inode, FileOffset::new(range.start));
    let Some(length) = range.end.checked_sub(range.start).filter(|length| *length > 0) else {
        return Ok(Applied::Nothing("the hole is empty"));
    };
    if items.has(tree, &key)? {
        return Ok(Applied::Nothing("the range has an item"));
    }
    let length = ByteCount::new(length);
    let hole = FileExtent {
        generation: items.generation(),
        ram_bytes: length,
        compression: Compression::None,
        other_encoding: 0,
        body: FileExtentBody::Regular(ExtentSlice {
            disk: Logical::MIN,
            disk_bytes: ByteCount::ZERO,
            offset: ByteCount::ZERO,
            num_bytes: length,
        }),
    };
    items.put(tree, &key, &hole.encode())?;
    Ok(Applied::Changed)
}
