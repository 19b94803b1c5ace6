//! Damage of content: file extents and their lengths, checksums, data.

use super::super::Plant;
use super::{NBYTES, NLINK, SIZE, inode, orphan_key, set_flags};
use crate::editor::{Editor, add, key};
use buttress_format::{Compression, FileExtent, FileExtentBody, FileKind, ItemType, Key, Logical, TreeId};

/// Returns a file extent on disk, and its inode.
fn extent(editor: &Editor, wanted: impl Fn(&FileExtent<'_>) -> bool) -> (Key, Key) {
    let (at, _) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
        let inode = crate::editor::key(key.objectid.get(), ItemType::INODE_ITEM, 0);
        !editor.leads_a_leaf(TreeId::FS, &inode)
            && FileExtent::parse(key, data, 4096).is_ok_and(|extent| {
                matches!(extent.body, FileExtentBody::Regular(slice) if !slice.is_hole()) && wanted(&extent)
            })
    });
    (at, key(at.objectid.get(), ItemType::INODE_ITEM, 0))
}

fn checksums(editor: &Editor) -> (Key, Vec<u8>) {
    editor.find(TreeId::CHECKSUM, ItemType::EXTENT_CSUM, |_, _| true)
}

/// Overwrites the first data extent that has checksums.
fn damage_data(editor: &mut Editor, copy: Option<usize>) {
    let (at, _) = checksums(editor);
    let filesystem = editor.open();
    editor.write(&filesystem, Logical::new(at.offset), &[0x5a; 100], copy);
}

/// Returns the data of a short inline extent.
fn inline(editor: &Editor) -> Vec<u8> {
    let (_, data) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
        FileExtent::parse(key, data, 4096)
            .is_ok_and(|extent| matches!(extent.body, FileExtentBody::Inline(content) if content.len() < 200))
    });
    data
}

pub(super) const PLANTS: &[Plant] = &[
    Plant::new(
        "symlink-content",
        "kinds",
        "a file with an extent on disk becomes a symlink",
        &["symlink-content", "entry-kind"],
        |editor| {
            let (_, inode) = extent(editor, |_| true);
            editor.data(TreeId::FS, &inode, |data| {
                let mode = u16::from_le_bytes([data[52], data[53]]) & 0o7777 | 0o120_000;
                data[52..54].copy_from_slice(&mode.to_le_bytes());
            });
        },
    ),
    Plant::new(
        "content-unexpected",
        "kinds",
        "a pipe has an extent",
        &["content-unexpected"],
        |editor| {
            let (item, _) = inode(editor, FileKind::Fifo);
            let data = inline(editor);
            let at = Key::new(item.objectid, ItemType::EXTENT_DATA, 0);
            editor.insert(TreeId::FS, &at, &data);
        },
    ),
    Plant::new(
        "hole-item-missing",
        "old",
        "a file is larger than its extents, on a volume without the NO_HOLES feature",
        &["hole-item-missing"],
        |editor| {
            let (key, _) = inode(editor, FileKind::Regular);
            editor.data(TreeId::FS, &key, |data| add(data, SIZE, 1 << 20));
        },
    ),
    Plant::new(
        "file-extent-generation",
        "kinds",
        "a file extent has a future generation",
        &["file-extent-generation"],
        |editor| {
            let (at, _) = extent(editor, |_| true);
            editor.data(TreeId::FS, &at, |data| add(data, 0, 1 << 30));
        },
    ),
    Plant::new(
        "file-extent-generation-of-relocation",
        "kinds",
        "a file extent of the data relocation tree has a future generation",
        &["file-extent-generation"],
        |editor| {
            let tree = TreeId::DATA_RELOCATION;
            let root = key(256, ItemType::INODE_ITEM, 0);
            let (_, mut inode) = editor.find(tree, ItemType::INODE_ITEM, |key, _| *key == root);
            inode[NLINK..NLINK + 4].fill(0);
            inode[NBYTES..NBYTES + 8].fill(0);
            inode[52..54].copy_from_slice(&0o100_644_u16.to_le_bytes());
            editor.insert(tree, &key(258, ItemType::INODE_ITEM, 0), &inode);
            editor.insert(tree, &orphan_key(258), &[]);
            let hole = FileExtent {
                generation: buttress_format::Generation::new(1 << 30),
                ram_bytes: buttress_format::ByteCount::new(4096),
                compression: Compression::None,
                other_encoding: 0,
                body: FileExtentBody::Regular(buttress_format::ExtentSlice {
                    disk: Logical::MIN,
                    disk_bytes: buttress_format::ByteCount::ZERO,
                    offset: buttress_format::ByteCount::ZERO,
                    num_bytes: buttress_format::ByteCount::new(4096),
                }),
            };
            editor.insert(tree, &key(258, ItemType::EXTENT_DATA, 0), &hole.encode());
        },
    ),
    Plant::new(
        "file-extent-lengths-zero",
        "mixed",
        "a compressed extent has no length on disk",
        &["file-extent-lengths", "extent-length"],
        |editor| {
            let (at, _) = extent(editor, |extent| extent.compression != Compression::None);
            editor.data(TreeId::FS, &at, |data| data[29..37].fill(0));
        },
    ),
    Plant::new(
        "file-extent-lengths-compressed",
        "mixed",
        "a compressed extent is longer than its content",
        &["file-extent-lengths", "extent-length", "checksum-missing"],
        |editor| {
            let (at, _) = extent(editor, |extent| extent.compression != Compression::None);
            editor.data(TreeId::FS, &at, |data| {
                let ram_bytes = u64::from_le_bytes(data[8..16].try_into().expect("8 bytes"));
                data[29..37].copy_from_slice(&(ram_bytes + 4096).to_le_bytes());
            });
        },
    ),
    Plant::new(
        "file-extent-lengths-plain",
        "kinds",
        "an uncompressed extent is shorter than its content",
        &["file-extent-lengths"],
        |editor| {
            let (at, _) = extent(editor, |extent| extent.compression == Compression::None);
            editor.data(TreeId::FS, &at, |data| add(data, 8, 4096));
        },
    ),
    Plant::new(
        "file-extent-lengths-inline",
        "kinds",
        "inline content is too short for its compression",
        &["file-extent-lengths"],
        |editor| {
            let (at, data) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
                FileExtent::parse(key, data, 4096).is_ok_and(
                    |extent| matches!(extent.body, FileExtentBody::Inline(content) if content.len() > 9),
                )
            });
            let mut short = data[..21 + 7].to_vec();
            short[16] = Compression::Zlib.to_raw();
            editor.replace(TreeId::FS, &at, &short);
        },
    ),
    Plant::new(
        "file-extent-lengths-hole",
        "old",
        "a hole has a length on disk",
        &["file-extent-lengths"],
        |editor| {
            let (at, _) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
                FileExtent::parse(key, data, 4096)
                    .is_ok_and(|extent| extent.slice().is_some_and(|slice| slice.is_hole()))
            });
            editor.data(TreeId::FS, &at, |data| add(data, 29, 4096));
        },
    ),
    Plant::new(
        "checksum-surplus",
        "kinds",
        "checksums after all block groups",
        &["checksum-surplus"],
        |editor| {
            let at = key(0_u64.wrapping_sub(10), ItemType::EXTENT_CSUM, 1 << 40);
            editor.insert(TreeId::CHECKSUM, &at, &[1, 2, 3, 4]);
        },
    ),
    Plant::new(
        "checksum-missing",
        "kinds",
        "a checksum removed",
        &["checksum-missing"],
        |editor| {
            let (at, data) = checksums(editor);
            if data.len() > 4 {
                editor.replace(TreeId::CHECKSUM, &at, &data[..data.len() - 4]);
            } else {
                editor.remove(TreeId::CHECKSUM, &at);
            }
        },
    ),
    Plant::new(
        "checksum-unexpected",
        "kinds",
        "a file with checksums gets the nodatasum flag",
        &["checksum-unexpected"],
        |editor| {
            let (_, inode) = extent(editor, |extent| extent.compression == Compression::None);
            set_flags(editor, &inode, 1);
        },
    ),
    Plant::new(
        "checksum-of-preallocated",
        "kinds",
        "an extent with checksums becomes preallocated",
        &["checksum-unexpected"],
        |editor| {
            let (at, _) = extent(editor, |extent| extent.compression == Compression::None);
            editor.data(TreeId::FS, &at, |data| data[20] = 2);
        },
    ),
    Plant::new(
        "compressed-without-checksums",
        "mixed",
        "a compressed file gets the nodatasum flag, and its checksums are removed",
        &["compressed-without-checksums"],
        |editor| {
            let (at, inode) = extent(editor, |extent| extent.compression != Compression::None);
            let (_, data) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, _| *key == at);
            let disk = u64::from_le_bytes(data[21..29].try_into().expect("8 bytes"));
            let length = u64::from_le_bytes(data[29..37].try_into().expect("8 bytes"));
            // The flag for data without checksums applies to all extents of the inode.
            set_flags(editor, &inode, 1);
            remove_checksums(editor, disk, disk + length);
        },
    ),
    Plant::new(
        "data-damaged",
        "kinds",
        "data overwritten",
        &["data-damaged"],
        |editor| damage_data(editor, None),
    )
    .reading_data(),
    Plant::new(
        "data-copy-damaged",
        "raid1",
        "a single copy of data overwritten",
        &["data-copy-damaged"],
        |editor| damage_data(editor, Some(1)),
    )
    .reading_data(),
];

/// Removes the checksums of `[start, end)` from their items.
fn remove_checksums(editor: &mut Editor, start: u64, end: u64) {
    let size = editor.open().checksum_type().size_bytes();
    for (at, data) in editor.items(TreeId::CHECKSUM) {
        let sectors = u64::try_from(data.len() / size).unwrap_or(0);
        let item_end = at.offset + sectors * 4096;
        if at.offset >= end || item_end <= start {
            continue;
        }
        let cut = |address: u64| {
            let inside = address.clamp(at.offset, item_end) - at.offset;
            usize::try_from(inside / 4096).unwrap_or(0) * size
        };
        let (head, tail) = (data[..cut(start)].to_vec(), data[cut(end)..].to_vec());
        if head.is_empty() {
            editor.remove(TreeId::CHECKSUM, &at);
        } else {
            editor.replace(TreeId::CHECKSUM, &at, &head);
        }
        if !tail.is_empty() {
            editor.insert(TreeId::CHECKSUM, &Key { offset: end, ..at }, &tail);
        }
    }
}
