//! Inodes, names, file extents, checksums.

use super::Plant;
use crate::editor::{Editor, add, key};
use buttress_format::{
    Compression, DirItems, FileExtent, FileExtentBody, FileKind, InodeItem, InodeRefs, ItemType, Key,
    Logical, TreeId, name_hash,
};

const SIZE: usize = 16;
const NBYTES: usize = 24;
const NLINK: usize = 40;
const FLAGS: usize = 64;

/// The inode item of the first inode of a kind in the top level, the root directory left out.
fn inode(editor: &Editor, kind: FileKind) -> (Key, InodeItem) {
    let (key, data) = editor.find(TreeId::FS, ItemType::INODE_ITEM, |key, data| {
        key.objectid.get() > 256 && InodeItem::parse(key, data).is_ok_and(|inode| inode.kind() == kind)
    });
    let inode = InodeItem::parse(&key, &data).expect("it was found");
    (key, inode)
}

/// Makes a directory as much larger as names become longer.
fn resize(editor: &mut Editor, directory: u64, more: i64) {
    let item = key(directory, ItemType::INODE_ITEM, 0);
    editor.data(TreeId::FS, &item, |data| add(data, SIZE, more));
}

/// Location and name of the first entry of an item.
fn name_of(key: &Key, data: &[u8]) -> (Key, Vec<u8>) {
    let entry = DirItems::parse(key, data).expect("it is sound").next();
    let entry = entry.expect("it holds a name");
    (entry.location, entry.name.to_vec())
}

fn is_of_inode(key: &Key, data: &[u8]) -> bool {
    DirItems::parse(key, data)
        .is_ok_and(|mut entries| entries.all(|entry| entry.location.item_type == ItemType::INODE_ITEM))
}

/// Removes a name in one of its two forms.
fn remove_entry(editor: &mut Editor, item_type: ItemType) {
    let (key, data) = editor.find(TreeId::FS, item_type, |key, data| {
        is_of_inode(key, data) && DirItems::parse(key, data).is_ok_and(|entries| entries.count() == 1)
    });
    let (_, name) = name_of(&key, &data);
    editor.remove(TreeId::FS, &key);
    resize(
        editor,
        key.objectid.get(),
        -i64::try_from(name.len()).unwrap_or(0),
    );
}

/// A DIR_INDEX whose entry is wanted, and the DIR_ITEM of the same name.
fn both_forms(editor: &Editor, wanted: impl Fn(&Key, &[u8]) -> bool) -> (Key, Key, Vec<u8>) {
    let (index, data) = editor.find(TreeId::FS, ItemType::DIR_INDEX, wanted);
    let (_, name) = name_of(&index, &data);
    let hash = Key::new(index.objectid, ItemType::DIR_ITEM, name_hash(&name));
    (index, hash, data)
}

fn orphan_key(inode: u64) -> Key {
    key(0_u64.wrapping_sub(5), ItemType::ORPHAN_ITEM, inode)
}

/// An inode without links, whose size and bytes are as they are in the middle of a deletion.
fn insert_unlinked(editor: &mut Editor, number: u64) {
    let (key_of_file, _) = inode(editor, FileKind::Regular);
    let (_, mut data) = editor.find(TreeId::FS, ItemType::INODE_ITEM, |key, _| *key == key_of_file);
    data[NLINK..NLINK + 4].fill(0);
    data[SIZE..SIZE + 8].copy_from_slice(&123_456_u64.to_le_bytes());
    data[NBYTES..NBYTES + 8].copy_from_slice(&65_536_u64.to_le_bytes());
    editor.insert(TreeId::FS, &key(number, ItemType::INODE_ITEM, 0), &data);
}

/// A file extent that lies on disk, and its inode.
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

fn set_flags(editor: &mut Editor, inode: &Key, flags: u8) {
    editor.data(TreeId::FS, inode, |data| data[FLAGS] |= flags);
}

fn checksums(editor: &Editor) -> (Key, Vec<u8>) {
    editor.find(TreeId::CHECKSUM, ItemType::EXTENT_CSUM, |_, _| true)
}

/// Overwrites the first data that has checksums.
fn damage_data(editor: &mut Editor, copy: Option<usize>) {
    let (at, _) = checksums(editor);
    let filesystem = editor.open();
    editor.write(&filesystem, Logical::new(at.offset), &[0x5a; 100], copy);
}

/// An inline extent that is short.
fn inline(editor: &Editor) -> Vec<u8> {
    let (_, data) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
        FileExtent::parse(key, data, 4096)
            .is_ok_and(|extent| matches!(extent.body, FileExtentBody::Inline(content) if content.len() < 200))
    });
    data
}

pub(super) const PLANTS: &[Plant] = &[
    Plant::new(
        "link-count",
        "kinds",
        "a file says one link more",
        &["link-count"],
        |editor| {
            let (key, _) = inode(editor, FileKind::Regular);
            editor.data(TreeId::FS, &key, |data| add(data, NLINK, 1));
        },
    ),
    Plant::new(
        "directory-size",
        "kinds",
        "a directory's size is another",
        &["directory-size"],
        |editor| {
            let (key, _) = inode(editor, FileKind::Directory);
            editor.data(TreeId::FS, &key, |data| add(data, SIZE, 2));
        },
    ),
    Plant::new(
        "file-bytes",
        "kinds",
        "a file counts its bytes wrongly",
        &["file-bytes"],
        |editor| {
            let (key, _) = inode(editor, FileKind::Regular);
            editor.data(TreeId::FS, &key, |data| add(data, NBYTES, 4096));
        },
    ),
    Plant::new(
        "entry-missing-index",
        "kinds",
        "a DIR_INDEX removed",
        &["entry-missing"],
        |editor| remove_entry(editor, ItemType::DIR_INDEX),
    ),
    Plant::new(
        "entry-missing-item",
        "kinds",
        "a DIR_ITEM removed",
        &["entry-missing"],
        |editor| remove_entry(editor, ItemType::DIR_ITEM),
    ),
    Plant::new(
        "link-missing",
        "kinds",
        "one of several names removed from an inode",
        &["link-missing"],
        |editor| {
            let (at, data) = editor.find(TreeId::FS, ItemType::INODE_REF, |key, data| {
                InodeRefs::parse(key, data).is_ok_and(|names| names.count() > 1)
            });
            let first = usize::from(data[8]) | usize::from(data[9]) << 8;
            editor.replace(TreeId::FS, &at, &data[10 + first..]);
            let item = Key::new(at.objectid, ItemType::INODE_ITEM, 0);
            editor.data(TreeId::FS, &item, |data| add(data, NLINK, -1));
        },
    ),
    Plant::new(
        "entry-without-inode",
        "kinds",
        "an entry leads to an inode that there is not",
        &["entry-without-inode", "entry-missing"],
        |editor| {
            let (index, hash, _) = both_forms(editor, is_of_inode);
            for key in [index, hash] {
                editor.data(TreeId::FS, &key, |data| {
                    data[..8].copy_from_slice(&99_999_u64.to_le_bytes())
                });
            }
        },
    ),
    Plant::new(
        "entry-kind",
        "kinds",
        "an entry says that a file is a pipe",
        &["entry-kind"],
        |editor| {
            let (index, hash, _) = both_forms(editor, |key, data| {
                is_of_inode(key, data) && data[29] == FileKind::Regular.to_raw()
            });
            for key in [index, hash] {
                editor.data(TreeId::FS, &key, |data| data[29] = FileKind::Fifo.to_raw());
            }
        },
    ),
    Plant::new(
        "entries-differ",
        "kinds",
        "the DIR_ITEM of a subvolume leads to another one",
        &["entries-differ", "subvolume-entry-missing"],
        |editor| {
            let (_, hash, _) = both_forms(editor, |key, data| !is_of_inode(key, data));
            editor.data(TreeId::FS, &hash, |data| {
                data[..8].copy_from_slice(&99_999_u64.to_le_bytes())
            });
        },
    ),
    Plant::new(
        "not-a-directory",
        "kinds",
        "a pipe has an entry",
        &["not-a-directory", "link-missing"],
        |editor| {
            let (item, _) = inode(editor, FileKind::Fifo);
            let (index, hash, data) = both_forms(editor, is_of_inode);
            let (target, _) = name_of(&index, &data);
            for (item_type, offset) in [(ItemType::DIR_ITEM, hash.offset), (ItemType::DIR_INDEX, 2)] {
                let mut entry = data.clone();
                entry[..8].copy_from_slice(&target.objectid.get().to_le_bytes());
                editor.insert(TreeId::FS, &Key::new(item.objectid, item_type, offset), &entry);
            }
        },
    ),
    Plant::new(
        "name-twice",
        "kinds",
        "a file has the same name twice, in all forms of it",
        &["name-twice"],
        |editor| {
            // A name that its DIR_ITEM and its INODE_REF hold alone, of a file with one link.
            let (index, hash, data) = both_forms(editor, |key, data| {
                let (target, name) = name_of(key, data);
                let inode =
                    crate::editor::key(target.objectid.get(), ItemType::INODE_REF, key.objectid.get());
                is_of_inode(key, data)
                    && data[29] == FileKind::Regular.to_raw()
                    && !editor.leads_a_leaf(TreeId::FS, &inode)
                    && editor
                        .items(TreeId::FS)
                        .iter()
                        .any(|(other, names)| *other == inode && names.len() == 10 + name.len())
            });
            let (target, name) = name_of(&index, &data);
            let (last, _) = editor
                .items(TreeId::FS)
                .into_iter()
                .rfind(|(key, _)| key.objectid == index.objectid && key.item_type == ItemType::DIR_INDEX)
                .expect("there is one");
            let again = last.offset + 1000;
            editor.insert(
                TreeId::FS,
                &Key {
                    offset: again,
                    ..last
                },
                &data,
            );
            editor.replace(TreeId::FS, &hash, &[&data[..], &data[..]].concat());
            let names = Key::new(target.objectid, ItemType::INODE_REF, index.objectid.get());
            let name_of_inode = |index: u64| {
                let length = u16::try_from(name.len()).unwrap_or(0).to_le_bytes();
                [&index.to_le_bytes()[..], &length[..], &name[..]].concat()
            };
            let both = [name_of_inode(index.offset), name_of_inode(again)].concat();
            editor.replace(TreeId::FS, &names, &both);
            let item = Key::new(target.objectid, ItemType::INODE_ITEM, 0);
            editor.data(TreeId::FS, &item, |data| add(data, NLINK, 1));
            let more = i64::try_from(2 * name.len()).unwrap_or(0);
            resize(editor, index.objectid.get(), more);
        },
    ),
    Plant::new(
        "root-directory-name",
        "kinds",
        "the root directory names itself otherwise",
        &["root-directory-name"],
        |editor| {
            let at = key(256, ItemType::INODE_REF, 256);
            editor.data(TreeId::FS, &at, |data| data[10] = b'x');
        },
    ),
    Plant::new(
        "root-inode-missing",
        "kinds",
        "the root directory of the data relocation tree has another number",
        &["root-inode-missing", "link-count"],
        |editor| {
            // Its name, `..`, is one that no other inode may have.
            editor.remove(TreeId::DATA_RELOCATION, &key(256, ItemType::INODE_REF, 256));
            let inode = key(256, ItemType::INODE_ITEM, 0);
            editor.leaf(TreeId::DATA_RELOCATION, &inode, |leaf, slot| {
                let to = crate::editor::key(257, ItemType::INODE_ITEM, 0);
                assert!(slot.is_ok_and(|slot| leaf.set_key(slot, &to)));
            });
        },
    ),
    Plant::new(
        "orphan-item-missing",
        "kinds",
        "an inode without links and without an orphan item",
        &["orphan-item-missing", "file-bytes"],
        |editor| insert_unlinked(editor, 1 << 40),
    ),
    Plant::new(
        "orphan",
        "kinds",
        "no damage: an inode that waits for deletion, and is half gone",
        &[],
        |editor| {
            insert_unlinked(editor, 1 << 40);
            editor.insert(TreeId::FS, &orphan_key(1 << 40), &[]);
        },
    )
    .noting(&["orphans"]),
    Plant::new(
        "orphan-directory",
        "quota-xxhash",
        "no damage: a directory and its child that wait for deletion, with the name between them",
        &[],
        |editor| {
            let (directory, child) = (1 << 40, (1 << 40) + 1);
            for number in [directory, child] {
                insert_unlinked(editor, number);
                editor.insert(TreeId::FS, &orphan_key(number), &[]);
            }
            let (_, mut entry) = editor.find(TreeId::FS, ItemType::DIR_INDEX, |key, data| {
                is_of_inode(key, data) && data[29] == FileKind::Regular.to_raw()
            });
            let (_, name) = name_of(&key(directory, ItemType::DIR_INDEX, 2), &entry);
            editor.data(TreeId::FS, &key(directory, ItemType::INODE_ITEM, 0), |data| {
                data[52..54].copy_from_slice(&0o40_755_u16.to_le_bytes());
                data[SIZE..SIZE + 8].copy_from_slice(&(2 * name.len() as u64).to_le_bytes());
                data[NBYTES..NBYTES + 8].fill(0);
            });
            entry[..8].copy_from_slice(&child.to_le_bytes());
            for (item_type, offset) in [(ItemType::DIR_ITEM, name_hash(&name)), (ItemType::DIR_INDEX, 2)] {
                editor.insert(TreeId::FS, &key(directory, item_type, offset), &entry);
            }
        },
    )
    .noting(&["orphans"]),
    Plant::new(
        "orphan-item-left-over",
        "kinds",
        "no damage: an orphan item whose inode is gone",
        &[],
        |editor| editor.insert(TreeId::FS, &orphan_key(1 << 40), &[]),
    )
    .noting(&["orphan-item-left-over"]),
    Plant::new(
        "orphan-item-of-a-file",
        "kinds",
        "no damage: an orphan item of a file that has links, as kernels before 4.19 wrote for a truncation",
        &[],
        |editor| {
            let (file, _) = inode(editor, FileKind::Regular);
            editor.insert(TreeId::FS, &orphan_key(file.objectid.get()), &[]);
        },
    )
    .noting(&["orphans"]),
    Plant::new(
        "inode-flags",
        "kinds",
        "a symlink is immutable",
        &["inode-flags"],
        |editor| {
            let (link, _) = inode(editor, FileKind::Symlink);
            set_flags(editor, &link, 1 << 6);
        },
    ),
    Plant::new(
        "inode-flags-inherited",
        "kinds",
        "no damage: a symlink has the flag of a directory without copy-on-write",
        &[],
        |editor| {
            let (link, _) = inode(editor, FileKind::Symlink);
            set_flags(editor, &link, 1 << 1);
        },
    ),
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
        "a file larger than its extents, on a volume whose holes are items",
        &["hole-item-missing"],
        |editor| {
            let (key, _) = inode(editor, FileKind::Regular);
            editor.data(TreeId::FS, &key, |data| add(data, SIZE, 1 << 20));
        },
    ),
    Plant::new(
        "inode-missing",
        "kinds",
        "the inode item at the end of a leaf removed",
        &["inode-missing", "entry-without-inode"],
        |editor| {
            // Inside a leaf the check of the leaf itself tells.
            let mut borders = editor.borders(TreeId::FS).into_iter();
            let border = borders.find(|(last, next)| {
                last.item_type == ItemType::INODE_ITEM && last.objectid == next.objectid
            });
            let (last, _) = border.expect("a leaf of the volume ends with an inode item");
            editor.remove(TreeId::FS, &last);
        },
    ),
    Plant::new(
        "file-extent-generation",
        "kinds",
        "a file extent is of a transaction that has not been",
        &["file-extent-generation"],
        |editor| {
            let (at, _) = extent(editor, |_| true);
            editor.data(TreeId::FS, &at, |data| add(data, 0, 1 << 30));
        },
    ),
    Plant::new(
        "file-extent-generation-of-relocation",
        "kinds",
        "a file extent of the data relocation tree is of a transaction that has not been",
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
        "a compressed extent of no length on disk",
        &["file-extent-lengths", "extent-length"],
        |editor| {
            let (at, _) = extent(editor, |extent| extent.compression != Compression::None);
            editor.data(TreeId::FS, &at, |data| data[29..37].fill(0));
        },
    ),
    Plant::new(
        "file-extent-lengths-compressed",
        "mixed",
        "a compressed extent that is longer than its content",
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
        "a plain extent that is shorter than its content",
        &["file-extent-lengths"],
        |editor| {
            let (at, _) = extent(editor, |extent| extent.compression == Compression::None);
            editor.data(TreeId::FS, &at, |data| add(data, 8, 4096));
        },
    ),
    Plant::new(
        "file-extent-lengths-inline",
        "kinds",
        "inline content with a compression that cannot be so short",
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
        "a hole with a length on disk",
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
        "checksums behind all block groups",
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
        "a file with checksums gets the flag that it has none",
        &["checksum-unexpected"],
        |editor| {
            let (_, inode) = extent(editor, |extent| extent.compression == Compression::None);
            set_flags(editor, &inode, 1);
        },
    ),
    Plant::new(
        "checksum-of-preallocated",
        "kinds",
        "an extent with checksums becomes a preallocated one",
        &["checksum-unexpected"],
        |editor| {
            let (at, _) = extent(editor, |extent| extent.compression == Compression::None);
            editor.data(TreeId::FS, &at, |data| data[20] = 2);
        },
    ),
    Plant::new(
        "compressed-without-checksums",
        "mixed",
        "a compressed file gets the flag that it has no checksums, and they are removed",
        &["compressed-without-checksums"],
        |editor| {
            let (at, inode) = extent(editor, |extent| extent.compression != Compression::None);
            let (_, data) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, _| *key == at);
            let disk = u64::from_le_bytes(data[21..29].try_into().expect("8 bytes"));
            let length = u64::from_le_bytes(data[29..37].try_into().expect("8 bytes"));
            // All of its inode: the flag is for all of them.
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
        "one copy of data overwritten",
        &["data-copy-damaged"],
        |editor| damage_data(editor, Some(1)),
    )
    .reading_data(),
];

/// Takes the checksums of `[start, end)` out of the items that hold them.
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
