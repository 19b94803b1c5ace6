//! Checks that the data of a file has checksums if it must have them, and has none if it must not.

use crate::block_scan::Walk;
use crate::context::Check;
use crate::coverage::{item_reach, key_at};
use crate::finding::Finding;
use crate::runs::{self, Run};
use buttress_accounts::{Accounts as _, DataReference};
use buttress_format::{
    ByteCount, Compression, ExtentSlice, FileExtent, FileExtentBody, FileOffset, InodeFlags, InodeItem,
    InodeNumber, ItemType, Key, Logical, SubvolumeId, TreeId,
};
use buttress_fs::Location;
use buttress_tree::{BlockPointer, ReadAhead, Tree};

/// Checks one file extent item. `inode` is present if the inode item is in the same leaf. Without
/// `inode`, the check finds only missing checksums.
pub(crate) fn check(
    walk: &Walk<'_>,
    pointer: &BlockPointer,
    key: &Key,
    extent: &FileExtent<'_>,
    inode: Option<&InodeItem>,
) {
    let Some(subvolume) = pointer.tree.as_subvolume() else {
        return;
    };
    let is_on_disk = |slice: &&ExtentSlice| !slice.is_hole() && slice.disk_bytes > ByteCount::ZERO;
    let Some(slice) = extent.slice().filter(is_on_disk) else {
        return;
    };
    let is_compressed = extent.compression != Compression::None;
    let disk = slice.disk.get();
    let (start, length) = if is_compressed {
        (disk, slice.disk_bytes.get())
    } else {
        (disk.saturating_add(slice.offset.get()), slice.num_bytes.get())
    };
    let end = start.saturating_add(length);
    let at = At {
        subvolume,
        inode: InodeNumber::new(key.objectid.get()),
        offset: FileOffset::new(key.offset),
    };
    let reason = match extent.body {
        FileExtentBody::Preallocated(_) => Some("it is preallocated"),
        _ => inode
            .filter(|inode| inode.flags.contains(InodeFlags::NODATASUM))
            .map(|_| "its inode has none"),
    };
    if let Some(reason) = reason {
        let is_preallocated = matches!(extent.body, FileExtentBody::Preallocated(_));
        at.check_bare(walk, start, end, reason, is_preallocated);
    }
    if matches!(extent.body, FileExtentBody::Regular(_)) && walk.bare().may_meet(start, end) {
        let bare = without_checksums(walk, pointer, key, inode);
        // Compressed data always needs checksums: a reader must know that the data is valid before
        // decompressing it.
        if !bare || is_compressed {
            at.check_covered(walk, start, end, bare);
        }
    }
}

/// A place in a file.
struct At {
    subvolume: SubvolumeId,
    inode: InodeNumber,
    offset: FileOffset,
}

impl At {
    fn check_covered(&self, walk: &Walk<'_>, start: u64, end: u64, bare: bool) {
        let At {
            subvolume,
            inode,
            offset,
        } = *self;
        for (from, to) in missing(walk.check, walk.tree(TreeId::CHECKSUM).as_ref(), start, end) {
            let (logical, length) = (Logical::new(from), ByteCount::new(to.saturating_sub(from)));
            walk.check.find(if bare {
                Finding::CompressedWithoutChecksums {
                    subvolume,
                    inode,
                    offset,
                    logical,
                    length,
                }
            } else {
                Finding::ChecksumMissing {
                    subvolume,
                    inode,
                    offset,
                    logical,
                    length,
                }
            });
        }
    }

    /// Finds checksums in `[start, end)`. Checksums in a preallocated extent may belong to another
    /// file: the extent was written and cloned in part. A crash then removed the write from this
    /// file, but not from the synced clone.
    fn check_bare(
        &self,
        walk: &Walk<'_>,
        start: u64,
        end: u64,
        reason: &'static str,
        may_be_written_elsewhere: bool,
    ) {
        if !walk.covered().may_meet(start, end) {
            return;
        }
        let covered = walk
            .tree(TreeId::CHECKSUM)
            .and_then(|tree| covered(walk.check, &tree, start, end));
        let mut unexpected = covered.unwrap_or_default();
        if may_be_written_elsewhere && let Some((from, _)) = unexpected.first() {
            let written = written(walk, Logical::new(*from));
            unexpected = without(&unexpected, &written);
        }
        if let Some((from, _)) = unexpected.first().copied() {
            walk.check.find(Finding::ChecksumUnexpected {
                subvolume: self.subvolume,
                inode: self.inode,
                offset: self.offset,
                logical: Logical::new(from),
                reason,
            });
        }
    }
}

/// Returns the ranges that files use as written, plain data of the extent at an address, in order
/// of addresses.
fn written(walk: &Walk<'_>, logical: Logical) -> Vec<Run> {
    let Ok(references) = walk.check.filesystem.data_references(logical, true) else {
        return Vec::new();
    };
    let range_of = |reference: &DataReference| {
        let Location { subvolume, inode, .. } = reference.location;
        let key = FileExtent::key(inode, reference.offset);
        let item = walk.tree(subvolume.tree())?.get(&key).ok()??;
        let extent = FileExtent::parse(&key, item.data(), walk.check.sector_bytes).ok()?;
        let FileExtentBody::Regular(slice) = extent.body else {
            return None;
        };
        let start = slice.disk.get().checked_add(slice.offset.get())?;
        let end = start.checked_add(slice.num_bytes.get())?;
        (extent.compression == Compression::None).then_some((start, end))
    };
    let mut ranges: Vec<Run> = references.iter().filter_map(range_of).collect();
    ranges.sort_unstable();
    let mut written = Vec::new();
    for (start, end) in ranges {
        runs::push(&mut written, start, end);
    }
    written
}

/// Returns the ranges that are in the first list and not in the second.
fn without(runs: &[Run], others: &[Run]) -> Vec<Run> {
    let mut rest = Vec::new();
    runs::compare(
        runs,
        others,
        &mut |from, to| rest.push((from, to)),
        &mut |_, _| {},
    );
    rest
}

/// Returns whether the inode's data has no checksums; true if the inode is unreadable, or was
/// dropped with a part of its tree.
fn without_checksums(walk: &Walk<'_>, pointer: &BlockPointer, key: &Key, inode: Option<&InodeItem>) -> bool {
    if let Some(inode) = inode {
        return inode.flags.contains(InodeFlags::NODATASUM);
    }
    let inode_key = Key::new(key.objectid, ItemType::INODE_ITEM, 0);
    if walk.is_dropped(pointer.tree, &inode_key) {
        return true;
    }
    let item = walk.tree(pointer.tree).map(|tree| tree.get(&inode_key));
    let Some(Ok(Some(item))) = item else { return true };
    InodeItem::parse(&inode_key, item.data())
        .map_or(true, |inode| inode.flags.contains(InodeFlags::NODATASUM))
}

/// Returns the parts of `[start, end)` without checksums; none if the tree is unreadable.
pub(crate) fn missing(check: &Check<'_>, tree: Option<&Tree>, start: u64, end: u64) -> Vec<Run> {
    let Some(covered) = tree.and_then(|tree| covered(check, tree, start, end)) else {
        return Vec::new();
    };
    without(&[(start, end)], &covered)
}

/// Returns the parts of `[start, end)` with checksums; `None` if the tree is unreadable.
fn covered(check: &Check<'_>, tree: &Tree, start: u64, end: u64) -> Option<Vec<Run>> {
    let size = ByteCount::of(check.filesystem.checksum_type().size_bytes()).get();
    let first = key_at(start.saturating_sub(item_reach(check)));
    let mut covered = Vec::new();
    for item in tree.range(first..key_at(end), ReadAhead::None) {
        let item = item.ok()?;
        let from = item.key().offset;
        let sectors = ByteCount::of(item.data().len()).get().checked_div(size);
        let length = sectors.unwrap_or(0).saturating_mul(u64::from(check.sector_bytes));
        runs::push(&mut covered, from, from.saturating_add(length));
    }
    runs::clip(&mut covered, start, end);
    Some(covered)
}
