//! Whether the data that a file refers to has the checksums that it should have.

use crate::census::Walk;
use crate::coverage::{item_reach, key_at};
use crate::finding::Finding;
use crate::runs::{self, Run};
use buttress_format::{
    ByteCount, Compression, FileExtent, FileExtentBody, FileOffset, InodeFlags, InodeItem, InodeNumber,
    ItemType, Key, Logical, TreeId,
};
use buttress_tree::{BlockPointer, ReadAhead};

/// Checks one file extent item. `inode` is given where it lies in the same leaf.
pub(crate) fn check(
    walk: &Walk<'_>,
    pointer: &BlockPointer,
    key: &Key,
    extent: &FileExtent<'_>,
    inode: Option<&InodeItem>,
) {
    let (Some(subvolume), FileExtentBody::Regular(slice)) = (pointer.tree.as_subvolume(), &extent.body)
    else {
        return;
    };
    if slice.is_hole() {
        return;
    }
    let disk = slice.disk.get();
    let (start, length) = if extent.compression == Compression::None {
        (disk.saturating_add(slice.offset.get()), slice.num_bytes.get())
    } else {
        (disk, slice.disk_bytes.get())
    };
    let end = start.saturating_add(length);
    if !walk.bare().may_meet(start, end) || without_checksums(walk, pointer, key, inode) {
        return;
    }
    for (from, to) in missing(walk, start, end) {
        walk.check.find(Finding::ChecksumMissing {
            subvolume,
            inode: InodeNumber::new(key.objectid.get()),
            offset: FileOffset::new(key.offset),
            logical: Logical::new(from),
            length: ByteCount::new(to.saturating_sub(from)),
        });
    }
}

/// Whether the inode's content has no checksums; so it is taken where the inode cannot be read.
fn without_checksums(walk: &Walk<'_>, pointer: &BlockPointer, key: &Key, inode: Option<&InodeItem>) -> bool {
    if let Some(inode) = inode {
        return inode.flags.contains(InodeFlags::NODATASUM);
    }
    let inode_key = Key::new(key.objectid, ItemType::INODE_ITEM, 0);
    let item = walk.tree(pointer.tree).map(|tree| tree.get(&inode_key));
    let Some(Ok(Some(item))) = item else { return true };
    InodeItem::parse(&inode_key, item.data())
        .map_or(true, |inode| inode.flags.contains(InodeFlags::NODATASUM))
}

/// The parts of `[start, end)` without checksums; none where the tree cannot be read.
fn missing(walk: &Walk<'_>, start: u64, end: u64) -> Vec<Run> {
    let Some(tree) = walk.tree(TreeId::CHECKSUM) else {
        return Vec::new();
    };
    let check = walk.check;
    let size = ByteCount::of(check.filesystem.checksum_type().size_bytes()).get();
    let first = key_at(start.saturating_sub(item_reach(check)));
    let mut covered = Vec::new();
    for item in tree.range(first..key_at(end), ReadAhead::None) {
        let Ok(item) = item else { return Vec::new() };
        let from = item.key().offset;
        let sectors = ByteCount::of(item.data().len()).get().checked_div(size);
        let length = sectors.unwrap_or(0).saturating_mul(u64::from(check.sector_bytes));
        runs::push(&mut covered, from, from.saturating_add(length));
    }
    runs::clip(&mut covered, start, end);
    let mut missing = Vec::new();
    runs::compare(
        &[(start, end)],
        &covered,
        &mut |from, to| missing.push((from, to)),
        &mut |_, _| {},
    );
    missing
}
