//! Rules for file items that need only the item itself, and the inode item if it is in the same
//! leaf.
//!
//! The block checks accept what the kernel's checks accept. The rules here find errors that the
//! kernel ignores and `btrfs check` reports.

use crate::block_scan::Walk;
use crate::context::Check;
use crate::facts::is_own_parent;
use crate::finding::Finding;
use buttress_format::directory::RawDirItem;
use buttress_format::{
    ByteCount, Compression, DirItems, FileExtent, FileExtentBody, FileKind, FileOffset, Generation,
    InodeExtrefs, InodeFlags, InodeItem, InodeNumber, InodeRefs, ItemType, Key, ObjectId, SubvolumeId,
    TreeId,
};
use buttress_fs::Name;
use buttress_tree::BlockPointer;

/// Returns the id of a tree with file items: a subvolume, or a relocation tree. Leaves of a
/// relocation tree may be reachable by no other path.
pub(crate) fn tree_of_files(tree: TreeId) -> Option<SubvolumeId> {
    let has_files = tree.holds_files() || tree == TreeId::TREE_RELOCATION;
    has_files.then(|| SubvolumeId::new(tree.get()))
}

/// Flags that a symlink cannot have: a symlink cannot be opened to set them, and new inodes do not
/// inherit them.
const NOT_FOR_SYMLINKS: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// Checks that an inode has only flags that its file type allows. An inode number cache from an old
/// kernel becomes a note.
pub(crate) fn check_flags(walk: &Walk<'_>, pointer: &BlockPointer, key: &Key, inode: &InodeItem) {
    let Some(subvolume) = pointer.tree.as_subvolume() else {
        return;
    };
    if key.objectid == ObjectId::FREE_INODE {
        walk.check.note(crate::Note::InodeCache { subvolume });
    }
    if inode.flags.intersects(NOT_FOR_SYMLINKS) && inode.kind() == FileKind::Symlink {
        walk.check.find(Finding::InodeFlags {
            subvolume,
            inode: InodeNumber::new(key.objectid.get()),
            flags: inode.flags.bits(),
        });
    }
}

/// Checks one file extent item by itself.
pub(crate) fn check_extent(
    walk: &Walk<'_>,
    pointer: &BlockPointer,
    key: &Key,
    extent: &FileExtent<'_>,
    inode: Option<&InodeItem>,
) {
    let Some(subvolume) = tree_of_files(pointer.tree) else {
        return;
    };
    let number = InodeNumber::new(key.objectid.get());
    let limit = Generation::new(walk.check.superblock().generation.get().saturating_add(1));
    if extent.generation > limit {
        walk.check.find(Finding::FileExtentGeneration {
            subvolume,
            inode: number,
            offset: FileOffset::new(key.offset),
            generation: extent.generation,
            limit,
        });
    }
    check_lengths(walk.check, subvolume, key, extent);
    let is_symlink = inode.is_some_and(|inode| inode.kind() == FileKind::Symlink);
    if is_symlink && !matches!(extent.body, FileExtentBody::Inline(_)) {
        let inode = number;
        walk.check.find(Finding::SymlinkContent { subvolume, inode });
    }
}

/// Finds an extent whose lengths contradict each other, in a subvolume or its log.
pub(crate) fn check_lengths(check: &Check<'_>, subvolume: SubvolumeId, key: &Key, extent: &FileExtent<'_>) {
    if let Some(problem) = lengths_problem(extent, check.sector_bytes) {
        check.find(Finding::FileExtentLengths {
            subvolume,
            inode: InodeNumber::new(key.objectid.get()),
            offset: FileOffset::new(key.offset),
            compression: extent.compression.name(),
            disk_num_bytes: stored_bytes(extent),
            ram_bytes: extent.ram_bytes,
            problem,
        });
    }
}

/// Returns the bytes that an extent stores, on disk or inline.
fn stored_bytes(extent: &FileExtent<'_>) -> ByteCount {
    match extent.body {
        FileExtentBody::Inline(content) => ByteCount::of(content.len()),
        FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => slice.disk_bytes,
    }
}

/// Returns the problem with the lengths of an extent, if it has one. The check of the item has
/// already covered alignment, the limit of compressed extents, and the bounds of the window.
///
/// Linux's tree checker requires only alignment, and an end below 2^64. Linux 6.18 mounts a volume
/// with a compressed extent of no length on disk. The kernel's worker crashes when the extent is
/// read.
///
/// Linux stores an extent compressed only if that saves space, so it is never longer on disk than
/// in memory. The two lengths may be equal: encoded writes require one byte less, before both are
/// rounded up to sectors. A plain extent may have a `ram_bytes` that is too small, which kernels
/// before 6.11 left in shortened extents. A plain extent never has a `ram_bytes` that is too large.
fn lengths_problem(extent: &FileExtent<'_>, sector_bytes: u32) -> Option<&'static str> {
    let (stored, ram) = (stored_bytes(extent).get(), extent.ram_bytes.get());
    let is_compressed = extent.compression != Compression::None;
    match extent.body {
        FileExtentBody::Inline(_) if !is_compressed => None,
        FileExtentBody::Inline(_) => {
            let (least, most) = inline_limits(extent.compression, sector_bytes);
            first_of([
                (ram == 0, "compressed content is empty"),
                (stored < least, "inline content too short for its compression"),
                (stored > most, "inline content too long for its compression"),
            ])
        }
        FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) if slice.is_hole() => {
            (stored > 0).then_some("a hole has a length on disk")
        }
        FileExtentBody::Regular(_) | FileExtentBody::Preallocated(_) => first_of([
            (stored == 0, "an extent has no length on disk"),
            (
                is_compressed && stored > ram,
                "a compressed extent is longer than its content",
            ),
            (
                !is_compressed && ram > stored,
                "an uncompressed extent is shorter than its content",
            ),
        ]),
    }
}

/// Returns the first problem whose condition holds.
fn first_of(problems: [(bool, &'static str); 3]) -> Option<&'static str> {
    problems
        .into_iter()
        .find_map(|(is, problem)| is.then_some(problem))
}

/// Returns the least and the greatest compressed length of up to one sector of inline content.
///
/// The minimum is the compressed length of empty content. For zlib and zstd, this minimum is the
/// header and an empty block, for zlib also a checksum. For LZO the least is btrfs's two lengths.
/// The greatest compressed length is a sector plus the overhead of the format for content that does
/// not compress.
fn inline_limits(compression: Compression, sector_bytes: u32) -> (u64, u64) {
    let sector = u64::from(sector_bytes);
    let (least, added) = match compression {
        Compression::None => (0, 0),
        Compression::Zlib => (8, 64),
        // The overhead of LZO is the worst case of LZO1X, and btrfs's two lengths.
        Compression::Lzo => (8, (sector >> 4).saturating_add(64 + 3 + 8)),
        Compression::Zstd => (9, 64),
    };
    (least, sector.saturating_add(added))
}

/// Checks that a directory has each name once. Names of equal hash share an item, and so do the
/// names of an inode in one directory. A duplicate name is therefore twice in one item.
pub(crate) fn check_names(walk: &Walk<'_>, pointer: &BlockPointer, key: &Key, data: &[u8]) {
    // Nearly all items hold one name.
    if holds_one(key, data) && key.objectid != InodeNumber::ROOT_DIRECTORY.object_id() {
        return;
    }
    let Some(subvolume) = tree_of_files(pointer.tree) else {
        return;
    };
    match key.item_type {
        ItemType::DIR_ITEM => {
            let directory = InodeNumber::new(key.objectid.get());
            let names = DirItems::parse(key, data).into_iter().flatten();
            let names = names.map(|entry| (directory, entry.name));
            check_twice(walk, subvolume, key, names);
        }
        ItemType::INODE_REF => {
            let inode = InodeNumber::new(key.objectid.get());
            for name in InodeRefs::parse(key, data).into_iter().flatten() {
                if is_own_parent(inode, &name) && (name.name, name.index) != (b"..", 0) {
                    walk.check.find(Finding::RootDirectoryName {
                        subvolume,
                        name: Name::from(name.name),
                        index: name.index,
                    });
                }
            }
            let names = InodeRefs::parse(key, data).into_iter().flatten();
            check_twice(walk, subvolume, key, names.map(|name| (name.parent, name.name)));
        }
        _ => {
            let names = InodeExtrefs::parse(key, data).into_iter().flatten();
            check_twice(walk, subvolume, key, names.map(|name| (name.parent, name.name)));
        }
    }
}

/// Returns whether the first name of an item, a `DIR_ITEM`, `INODE_REF` or `INODE_EXTREF`, fills
/// the item.
fn holds_one(key: &Key, data: &[u8]) -> bool {
    let (length_at, head) = match key.item_type {
        ItemType::DIR_ITEM => (27, size_of::<RawDirItem>()),
        ItemType::INODE_REF => (8, 10),
        _ => (16, 18),
    };
    let length = data.get(length_at..).and_then(|rest| rest.first_chunk());
    length.is_some_and(|length| head.saturating_add(u16::from_le_bytes(*length).into()) >= data.len())
}

/// Finds names that occur more than once.
fn check_twice<'a>(
    walk: &Walk<'_>,
    subvolume: SubvolumeId,
    key: &Key,
    mut names: impl Iterator<Item = (InodeNumber, &'a [u8])>,
) {
    let (Some(first), Some(second)) = (names.next(), names.next()) else {
        return;
    };
    let mut all = vec![first, second];
    all.extend(names);
    all.sort_unstable();
    for pair in all.windows(2) {
        if let [(directory, name), next] = pair
            && (*directory, *name) == *next
        {
            walk.check.find(Finding::NameTwice {
                subvolume,
                directory: *directory,
                name: Name::from(*name),
                key: *key,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{ExtentSlice, Logical};

    const SECTOR: u32 = 4096;

    fn regular(compression: Compression, [ram, disk, offset, num]: [u64; 4]) -> FileExtent<'static> {
        FileExtent {
            generation: Generation::new(1),
            ram_bytes: ByteCount::new(ram),
            compression,
            other_encoding: 0,
            body: FileExtentBody::Regular(ExtentSlice {
                disk: Logical::new(1 << 20),
                disk_bytes: ByteCount::new(disk),
                offset: ByteCount::new(offset),
                num_bytes: ByteCount::new(num),
            }),
        }
    }

    #[test]
    fn lengths_fit_each_compression() {
        let compressed = [Compression::Zlib, Compression::Lzo, Compression::Zstd];
        for compression in compressed {
            let problem = |lengths| lengths_problem(&regular(compression, lengths), SECTOR);
            assert_eq!(problem([131_072, 4096, 0, 131_072]), None);
            assert_eq!(problem([131_072, 4096, 8192, 4096]), None);
            assert_eq!(problem([4096, 4096, 0, 4096]), None);
            assert!(problem([131_072, 0, 0, 131_072]).is_some());
            assert!(problem([8192, 12_288, 0, 8192]).is_some());
        }
        let problem = |lengths| lengths_problem(&regular(Compression::None, lengths), SECTOR);
        assert_eq!(problem([8192, 8192, 0, 8192]), None);
        // Kernels before 6.11 reduced `ram_bytes` to the part that the file uses.
        assert_eq!(problem([4096, 8192, 0, 4096]), None);
        assert!(problem([12_288, 8192, 0, 8192]).is_some());
        assert!(problem([8192, 0, 0, 4096]).is_some());
    }

    #[test]
    fn inline_content_has_the_least_length_of_its_compression() {
        let problem = |compression, ram_bytes, content: &'static [u8]| {
            let extent = FileExtent {
                ram_bytes: ByteCount::new(ram_bytes),
                body: FileExtentBody::Inline(content),
                ..regular(compression, [0; 4])
            };
            lengths_problem(&extent, SECTOR)
        };
        assert_eq!(problem(Compression::None, 3, b"abc"), None);
        assert_eq!(problem(Compression::None, 0, b""), None);
        for (compression, least) in [
            (Compression::Zlib, 8),
            (Compression::Lzo, 8),
            (Compression::Zstd, 9),
        ] {
            assert_eq!(problem(compression, 100, &[0; 32][..least]), None);
            assert!(problem(compression, 100, &[0; 32][..least - 1]).is_some());
            assert!(problem(compression, 0, &[0; 32]).is_some());
            assert!(problem(compression, 4096, &[0; 8192]).is_some());
        }
    }
}
