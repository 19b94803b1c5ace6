//! The facts that the items of one leaf state about inodes, names and extents, as one sum.
//!
//! If two items must agree on a fact, one adds the fact and the other subtracts it. The sum over
//! all leaves of a subvolume is therefore zero:
//!
//! | added by | subtracted by |
//! |---|---|
//! | each name in `INODE_REF` and `INODE_EXTREF`: a link | the inode's link count, as many times |
//! | each such name: directory, index, inode, name | the `DIR_INDEX` |
//! | each `DIR_INDEX`: directory, location, type, name | the `DIR_ITEM` |
//! | each `DIR_INDEX`: the file type of its inode | the inode, once for each link |
//! | the length of each name in `DIR_ITEM` and `DIR_INDEX` | the directory's size |
//! | the length of each file extent that is no hole | the inode's `nbytes` |
//! | an inode without links | its orphan item |
//!
//! Rules about neighbours in key order are checked here directly: an inode item before all other
//! items of its inode, extents that do not overlap, holes. The parent supplies the first key of the
//! next leaf.
//!
//! Source: on-disk format documentation, sections "INODE_ITEM", "INODE_REF", "DIR_ITEM",
//! "DIR_INDEX", "EXTENT_DATA".

use crate::block_scan::Walk;
use crate::checksum_need;
use crate::files;
use crate::finding::Finding;
use crate::fingerprint::{Fact, Hash};
use crate::rules;
use buttress_format::{
    DirItem, DirItems, FileExtent, FileExtentBody, FileKind, FileOffset, InodeExtrefs, InodeItem, InodeName,
    InodeNumber, InodeRefs, ItemType, Key, ObjectId, TreeBlock,
};
use buttress_tree::BlockPointer;

/// Returns whether this is the root directory's own name `..`, which has no directory entry.
pub(crate) fn is_own_parent(inode: InodeNumber, name: &InodeName<'_>) -> bool {
    name.parent == inode && inode == InodeNumber::ROOT_DIRECTORY
}

/// Returns whether an inode number belongs to a file. Greater numbers belong to caches of old
/// kernels.
pub(crate) fn is_file(objectid: ObjectId) -> bool {
    objectid >= ObjectId::FIRST_FREE && objectid <= ObjectId::LAST_FREE
}

/// Returns the bytes that a file extent item adds to `nbytes`.
pub(crate) fn extent_bytes(extent: &FileExtent<'_>) -> u64 {
    match &extent.body {
        FileExtentBody::Inline(_) => extent.ram_bytes.get(),
        FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) if !slice.is_hole() => {
            slice.num_bytes.get()
        }
        FileExtentBody::Regular(_) | FileExtentBody::Preallocated(_) => 0,
    }
}

/// Returns the sum of an item's facts.
pub(crate) fn of_item(key: &Key, data: &[u8], sector_bytes: u32) -> u64 {
    let number = key.objectid.get();
    if key.objectid == ObjectId::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM {
        return Hash::of(Fact::Orphan).number(key.offset).get().wrapping_neg();
    }
    if !is_file(key.objectid) {
        return 0;
    }
    match key.item_type {
        ItemType::INODE_ITEM => InodeItem::parse(key, data).map_or(0, |inode| of_inode(number, &inode)),
        ItemType::INODE_REF => InodeRefs::parse(key, data).map_or(0, |names| of_names(number, names)),
        ItemType::INODE_EXTREF => InodeExtrefs::parse(key, data).map_or(0, |names| of_names(number, names)),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
            let Ok(entries) = DirItems::parse(key, data) else {
                return 0;
            };
            entries.fold(0_u64, |sum, entry| sum.wrapping_add(of_entry(key, &entry)))
        }
        ItemType::EXTENT_DATA => FileExtent::parse(key, data, sector_bytes).map_or(0, |extent| {
            Hash::of(Fact::FileBytes)
                .number(number)
                .times(extent_bytes(&extent))
        }),
        _ => 0,
    }
}

fn of_inode(number: u64, inode: &InodeItem) -> u64 {
    let links = u64::from(inode.nlink);
    let mut sum = Hash::of(Fact::Link).number(number).times(links);
    if number != InodeNumber::ROOT_DIRECTORY.get() {
        sum = sum.wrapping_add(kind_hash(number, inode.kind()).times(links));
    }
    sum = sum.wrapping_add(match inode.kind() {
        FileKind::Directory => Hash::of(Fact::DirectorySize)
            .number(number)
            .times(inode.size.get()),
        FileKind::Regular | FileKind::Symlink => {
            Hash::of(Fact::FileBytes).number(number).times(inode.nbytes.get())
        }
        _ => 0,
    });
    if inode.nlink == 0 {
        let orphan = Hash::of(Fact::Orphan).number(number).get();
        sum = sum.wrapping_sub(orphan);
    }
    sum.wrapping_neg()
}

const fn kind_hash(number: u64, kind: FileKind) -> Hash {
    Hash::of(Fact::Kind).number(number).number(kind.to_raw() as u64)
}

fn name_hash(directory: u64, index: u64, inode: u64, name: &[u8]) -> u64 {
    Hash::of(Fact::Name)
        .number(directory)
        .number(index)
        .number(inode)
        .bytes(name)
        .get()
}

fn of_names<'a>(number: u64, names: impl Iterator<Item = InodeName<'a>>) -> u64 {
    let link = Hash::of(Fact::Link).number(number).get();
    names.fold(0_u64, |sum, name| {
        let sum = sum.wrapping_add(link);
        if is_own_parent(InodeNumber::new(number), &name) {
            return sum;
        }
        sum.wrapping_add(name_hash(name.parent.get(), name.index, number, name.name))
    })
}

fn of_entry(key: &Key, entry: &DirItem<'_>) -> u64 {
    let directory = key.objectid.get();
    let length = buttress_format::ByteCount::of(entry.name.len()).get();
    let size = Hash::of(Fact::DirectorySize).number(directory).times(length);
    let location = entry.location;
    let form = Hash::of(Fact::Entry)
        .number(directory)
        .number(location.objectid.get())
        .number(u64::from(location.item_type.0) << 8 | u64::from(entry.kind.to_raw()))
        .bytes(entry.name)
        .get();
    if key.item_type == ItemType::DIR_ITEM {
        return size.wrapping_sub(form);
    }
    let sum = size.wrapping_add(form);
    if location.item_type != ItemType::INODE_ITEM {
        return sum;
    }
    let inode = location.objectid.get();
    sum.wrapping_add(kind_hash(inode, entry.kind).get())
        .wrapping_sub(name_hash(directory, key.offset, inode, entry.name))
}

/// Returns the sum of a leaf's facts, and reports errors that the leaf alone shows.
pub(crate) fn of_leaf(walk: &Walk<'_>, pointer: &BlockPointer, block: &TreeBlock) -> u64 {
    let check = walk.check;
    let mut sum = 0_u64;
    let mut inode: Option<(ObjectId, InodeItem)> = None;
    let mut last: Option<(Key, u64)> = None;
    let mut holes = Holes::default();
    for item in block.items() {
        let key = item.key;
        sum = sum.wrapping_add(of_item(&key, item.data, check.sector_bytes));
        let mut end = 0;
        match key.item_type {
            ItemType::INODE_ITEM => {
                inode = InodeItem::parse(&key, item.data)
                    .ok()
                    .map(|inode| (key.objectid, inode));
                holes.begin(walk, pointer, inode);
                if let Some((_, inode)) = &inode {
                    rules::check_flags(walk, pointer, &key, inode);
                }
            }
            ItemType::DIR_ITEM | ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                rules::check_names(walk, pointer, &key, item.data);
            }
            ItemType::EXTENT_DATA => {
                if let Ok(extent) = FileExtent::parse(&key, item.data, check.sector_bytes) {
                    end = extent.file_end(&key, check.sector_bytes).get();
                    holes.extent(&key, end);
                    let known = inode.as_ref().filter(|(number, _)| *number == key.objectid);
                    let known = known.map(|(_, inode)| inode);
                    checksum_need::check(walk, pointer, &key, &extent, known);
                    rules::check_extent(walk, pointer, &key, &extent, known);
                }
            }
            _ => {}
        }
        last = Some((key, end));
    }
    let goes_on =
        |inode: &(ObjectId, InodeItem)| pointer.end_key.is_some_and(|next| next.objectid == inode.0);
    holes.gap |= inode.as_ref().is_some_and(goes_on);
    holes.begin(walk, pointer, None);
    if let (Some((key, end)), Some(next)) = (last, pointer.end_key) {
        check_border(walk, pointer, &key, end, &next);
    }
    sum
}

/// Returns whether an inode item must precede items of this type.
const fn is_led(item_type: ItemType) -> bool {
    matches!(
        item_type,
        ItemType::INODE_REF
            | ItemType::INODE_EXTREF
            | ItemType::XATTR_ITEM
            | ItemType::DIR_ITEM
            | ItemType::DIR_INDEX
            | ItemType::EXTENT_DATA
    )
}

/// Checks the border of two leaves: `last` is the last key of one, `next` the first key of the
/// other.
fn check_border(walk: &Walk<'_>, pointer: &BlockPointer, last: &Key, extent_end: u64, next: &Key) {
    let Some(subvolume) = rules::tree_of_files(pointer.tree) else {
        return;
    };
    let inode = InodeNumber::new(next.objectid.get());
    if last.objectid != next.objectid {
        if is_led(next.item_type) && is_file(next.objectid) {
            walk.check.find(Finding::InodeMissing { subvolume, inode });
        }
    } else if next.item_type == ItemType::EXTENT_DATA && extent_end > next.offset {
        walk.check.find(Finding::FileExtentsOverlap {
            subvolume,
            inode,
            offset: FileOffset::new(next.offset),
            previous_end: FileOffset::new(extent_end),
        });
    }
}

/// Without the NO_HOLES feature, every range of a file has an item. The scan of the leaf checks
/// files that lie within one leaf. A file that continues in another leaf, or seems to have a hole,
/// is checked from its beginning.
#[derive(Default)]
struct Holes {
    inode: Option<(ObjectId, InodeItem)>,
    covered: u64,
    gap: bool,
}

impl Holes {
    /// Ends the check of the previous inode, and continues with `next`.
    fn begin(&mut self, walk: &Walk<'_>, pointer: &BlockPointer, next: Option<(ObjectId, InodeItem)>) {
        if walk.no_holes {
            return;
        }
        let Self {
            inode: done,
            covered,
            gap,
        } = core::mem::take(self);
        self.inode = next.filter(|(_, inode)| {
            inode.kind() == FileKind::Regular && inode.nlink > 0 && inode.size.get() > 0
        });
        if let (Some((number, inode)), Some(subvolume)) = (done, pointer.tree.as_subvolume())
            && (gap || covered < inode.size.get())
        {
            let number = InodeNumber::new(number.get());
            let tree = walk.tree(pointer.tree);
            files::check_holes(walk.check, tree.as_ref(), subvolume, number, &inode);
        }
    }

    fn extent(&mut self, key: &Key, end: u64) {
        if self
            .inode
            .as_ref()
            .is_some_and(|(number, _)| *number == key.objectid)
        {
            self.gap |= key.offset > self.covered;
            self.covered = self.covered.max(end);
        }
    }
}
