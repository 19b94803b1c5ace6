//! Directory entries and extended attributes: `DIR_ITEM`, `DIR_INDEX`, `XATTR_ITEM`.
//!
//! The three item types share one layout: an array of entries. Each entry has a fixed head of 30
//! bytes, a name, and, in attributes only, a value. A directory holds every name twice. A
//! `DIR_ITEM` holds the name under its hash, for lookup; names of equal hash share the item. A
//! `DIR_INDEX` item holds one name, in the order of creation, for listing. Extended attributes are
//! keyed by the hash of their name, like `DIR_ITEM`.
//!
//! [`DirItems::parse`] checks the whole item: bounds, kinds, locations, names and their hash. After
//! this check, iterating cannot fail. Iterating over directory entries copies nothing.
//!
//! Source: on-disk format documentation, sections "DIR_ITEM", "DIR_INDEX" and "XATTR_ITEM".

mod edit;

use crate::checksum::name_hash;
use crate::inode::{MODE_TYPE_MASK, is_inode_objectid};
use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key, RawKey};
use crate::names::{NameProblem, check_length, check_name};
use crate::tree_checker::is_file_tree;
use crate::units::{Generation, ObjectId, TreeId};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The fixed head of an entry. Name and value of the entry follow this head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDirItem {
    /// The key of the inode item or root item that the entry leads to; zero for attributes.
    pub location: RawKey,
    /// The transaction that created the entry.
    pub transid: U64,
    /// Length of the value that follows the name.
    pub data_bytes: U16,
    /// Length of the name that follows.
    pub name_bytes: U16,
    /// The kind, see [`FileKind`].
    pub kind: u8,
}

const _: () = assert!(size_of::<RawDirItem>() == 30);

/// The kind of file that a directory entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// The entry does not state a kind.
    Unknown = 0,
    /// A regular file.
    Regular = 1,
    /// A directory, or the root of a subvolume.
    Directory = 2,
    /// A character device node.
    CharacterDevice = 3,
    /// A block device node.
    BlockDevice = 4,
    /// A named pipe.
    Fifo = 5,
    /// A socket.
    Socket = 6,
    /// A symbolic link.
    Symlink = 7,
    /// An extended attribute, stored with the type of a directory entry.
    Xattr = 8,
}

impl FileKind {
    /// Returns the kind with this number, or `None` if no kind has this number.
    #[must_use]
    pub const fn from_raw(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Unknown,
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharacterDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            8 => Self::Xattr,
            _ => return None,
        })
    }

    /// Returns the number that stands for this kind on disk.
    #[must_use]
    pub const fn to_raw(self) -> u8 {
        self as u8
    }

    /// Returns the kind that the type bits of a mode name, or `None` if they name none.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & MODE_TYPE_MASK {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o020_000 => Self::CharacterDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o120_000 => Self::Symlink,
            _ => return None,
        })
    }
}

/// A directory entry or extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirItem<'a> {
    /// The key of the item that the entry names: `(inode INODE_ITEM 0)`, or `(tree ROOT_ITEM …)`
    /// for a subvolume. All fields are zero for attributes.
    pub location: Key,
    /// The transaction that created the entry.
    pub transid: Generation,
    /// The kind of file that the entry names.
    pub kind: FileKind,
    /// The name as raw bytes.
    pub name: &'a [u8],
    /// The value of an attribute; empty for directory entries.
    pub data: &'a [u8],
}

/// The entries of one `DIR_ITEM`, `DIR_INDEX` or `XATTR_ITEM`, in the order in which they are
/// stored.
#[derive(Clone, Debug)]
pub struct DirItems<'a> {
    rest: &'a [u8],
}

impl<'a> DirItems<'a> {
    /// Checks an item of directory entries or extended attributes, and everything in it. The key's
    /// type selects one of the three item types.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &'a [u8]) -> Result<Self, ItemError> {
        let mut rest = data;
        loop {
            let position = data.len().saturating_sub(rest.len());
            let (raw, name, value, after) = split(rest).map_err(|needed_bytes| {
                let needed_bytes = position.saturating_add(needed_bytes);
                ItemError::new(
                    key,
                    ItemProblem::SizeTooSmall {
                        size_bytes: data.len(),
                        needed_bytes,
                    },
                )
            })?;
            check_entry(key, raw, name, value)?;
            rest = after;
            if rest.is_empty() {
                return Ok(Self { rest: data });
            }
            if key.item_type == ItemType::DIR_INDEX {
                let problem = DirectoryProblem::IndexHoldsSeveral {
                    rest_bytes: rest.len(),
                };
                return Err(ItemError::new(key, problem));
            }
        }
    }
}

impl<'a> Iterator for DirItems<'a> {
    type Item = DirItem<'a>;

    fn next(&mut self) -> Option<DirItem<'a>> {
        let (raw, name, data, rest) = split(self.rest).ok()?;
        self.rest = rest;
        Some(DirItem {
            location: raw.location.into(),
            transid: Generation::new(raw.transid.get()),
            kind: FileKind::from_raw(raw.kind)?,
            name,
            data,
        })
    }
}

type Entry<'a> = (&'a RawDirItem, &'a [u8], &'a [u8], &'a [u8]);

/// Splits the first entry off `rest`: head, name, value, and the bytes that follow. If `rest` is
/// too short, returns the number of bytes that the entry needs.
fn split(rest: &[u8]) -> Result<Entry<'_>, usize> {
    let head_bytes = size_of::<RawDirItem>();
    let (raw, rest) = RawDirItem::ref_from_prefix(rest).map_err(|_| head_bytes)?;
    let name_bytes = usize::from(raw.name_bytes.get());
    let value_bytes = usize::from(raw.data_bytes.get());
    let needed = || head_bytes.saturating_add(name_bytes).saturating_add(value_bytes);
    let (name, rest) = rest.split_at_checked(name_bytes).ok_or_else(needed)?;
    let (value, rest) = rest.split_at_checked(value_bytes).ok_or_else(needed)?;
    Ok((raw, name, value, rest))
}

fn check_entry(key: &Key, raw: &RawDirItem, name: &[u8], value: &[u8]) -> Result<(), ItemError> {
    let is_attribute = key.item_type == ItemType::XATTR_ITEM;
    let fail = |problem: DirectoryProblem| Err(ItemError::new(key, problem));
    let location = Key::from(raw.location);
    if !is_location_valid(location, is_attribute) {
        return fail(DirectoryProblem::LocationInvalid { location });
    }
    match FileKind::from_raw(raw.kind) {
        None => return fail(DirectoryProblem::KindUnknown { kind: raw.kind }),
        Some(kind) if (kind == FileKind::Xattr) != is_attribute => {
            return fail(DirectoryProblem::KindMismatch { kind });
        }
        Some(_) => {}
    }
    if !is_attribute && !value.is_empty() {
        return fail(DirectoryProblem::EntryHasData {
            data_bytes: value.len(),
        });
    }
    let named = if is_attribute {
        check_length(name)
    } else {
        check_name(name, false)
    };
    named.map_err(|problem| ItemError::new(key, problem))?;
    if key.item_type != ItemType::DIR_INDEX {
        let hash = name_hash(name);
        if hash != key.offset {
            return Err(ItemError::new(
                key,
                NameProblem::HashMismatch {
                    hash,
                    expected: key.offset,
                },
            ));
        }
    }
    Ok(())
}

/// Checks the location of an entry: all zero for an attribute, else an inode of the same tree or
/// the root of a subvolume.
fn is_location_valid(location: Key, is_attribute: bool) -> bool {
    let Key {
        objectid,
        item_type,
        offset,
    } = location;
    if is_attribute {
        return objectid == ObjectId::MIN && item_type == ItemType(0) && offset == 0;
    }
    match item_type {
        ItemType::ROOT_ITEM => is_file_tree(TreeId::new(objectid.get())),
        ItemType::INODE_ITEM | ItemType(0) => is_inode_objectid(objectid) && offset == 0,
        _ => false,
    }
}

/// The check that a directory entry or extended attribute fails. [`NameProblem`] holds the checks
/// of its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryProblem {
    /// The location of a directory entry is neither an inode nor a subvolume, or an attribute has a
    /// location.
    #[error("an entry points to {location}, expected an inode or a subvolume")]
    LocationInvalid {
        /// The location.
        location: Key,
    },
    /// The number stands for no kind of file.
    #[error("an entry has the unknown file type {kind}")]
    KindUnknown {
        /// The number.
        kind: u8,
    },
    /// The item mixes an attribute with directory entries, or a directory entry with attributes.
    #[error("an entry has the file type {kind:?}, which its item type does not allow")]
    KindMismatch {
        /// The kind.
        kind: FileKind,
    },
    /// A directory entry has a value; only attributes have values.
    #[error("a directory entry has {data_bytes} bytes of data, expected none")]
    EntryHasData {
        /// Length of the value.
        data_bytes: usize,
    },
    /// The value is too long for its length field.
    #[error("the value of an extended attribute is {value_bytes} bytes long, expected at most 65535")]
    ValueTooLong {
        /// Length of the value.
        value_bytes: usize,
    },
    /// A `DIR_INDEX` item holds more than one name.
    #[error("a directory index contains more than one entry: {rest_bytes} bytes follow the first")]
    IndexHoldsSeveral {
        /// Bytes after the first entry.
        rest_bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(location: Key, kind: u8, name: &[u8], data: &[u8]) -> Vec<u8> {
        let raw = RawDirItem {
            location: location.into(),
            transid: U64::new(7),
            data_bytes: U16::new(u16::try_from(data.len()).unwrap()),
            name_bytes: U16::new(u16::try_from(name.len()).unwrap()),
            kind,
        };
        [raw.as_bytes(), name, data].concat()
    }

    fn inode(number: u64) -> Key {
        Key::new(ObjectId::new(number), ItemType::INODE_ITEM, 0)
    }

    fn nowhere() -> Key {
        Key::new(ObjectId::MIN, ItemType(0), 0)
    }

    fn item_key(item_type: ItemType, name: &[u8]) -> Key {
        let offset = if item_type == ItemType::DIR_INDEX {
            2
        } else {
            name_hash(name)
        };
        Key::new(ObjectId::new(256), item_type, offset)
    }

    fn problem(key: &Key, data: &[u8]) -> Result<(), ItemProblem> {
        DirItems::parse(key, data)
            .map(|_| ())
            .map_err(|error| error.problem)
    }

    #[test]
    fn the_three_item_types_pass() {
        let data = entry(inode(300), 1, b"file", b"");
        for item_type in [ItemType::DIR_ITEM, ItemType::DIR_INDEX] {
            let items: Vec<_> = DirItems::parse(&item_key(item_type, b"file"), &data)
                .unwrap()
                .collect();
            assert_eq!(items.len(), 1);
            assert_eq!((items[0].name, items[0].kind), (&b"file"[..], FileKind::Regular));
            assert_eq!((items[0].location, items[0].transid.get()), (inode(300), 7));
        }
        let attribute = entry(nowhere(), 8, b"user.a/b", b"value");
        let items: Vec<_> = DirItems::parse(&item_key(ItemType::XATTR_ITEM, b"user.a/b"), &attribute)
            .unwrap()
            .collect();
        assert_eq!(items[0].data, b"value");
    }

    #[test]
    fn names_of_equal_hash_share_an_item() {
        let (first, second) = (*b"aiyifwg", *b"dlpjrry");
        assert_eq!(name_hash(&first), name_hash(&second));
        let data = [
            entry(inode(300), 1, &first, b""),
            entry(inode(301), 1, &second, b""),
        ]
        .concat();
        assert_eq!(
            DirItems::parse(&item_key(ItemType::DIR_ITEM, &first), &data)
                .unwrap()
                .count(),
            2
        );
        assert_eq!(
            problem(&item_key(ItemType::DIR_INDEX, &first), &data),
            Err(DirectoryProblem::IndexHoldsSeveral { rest_bytes: 37 }.into())
        );
    }

    #[test]
    fn each_check_has_its_error() {
        let key = item_key(ItemType::DIR_ITEM, b"n");
        let subvolume = |id, offset| Key::new(ObjectId::new(id), ItemType::ROOT_ITEM, offset);
        let bad_locations = [
            inode(255),
            nowhere(),
            Key::new(ObjectId::new(300), ItemType::INODE_ITEM, 1),
            Key::new(ObjectId::new(300), ItemType::DIR_ITEM, 0),
            subvolume(2, 0),
            subvolume(u64::MAX, 0),
        ];
        for location in bad_locations {
            assert_eq!(
                problem(&key, &entry(location, 1, b"n", b"")),
                Err(DirectoryProblem::LocationInvalid { location }.into())
            );
        }
        assert_eq!(
            problem(&key, &entry(subvolume(256, u64::MAX), 2, b"n", b"")),
            Ok(())
        );
        assert_eq!(
            problem(&key, &entry(inode(300), 9, b"n", b"")),
            Err(DirectoryProblem::KindUnknown { kind: 9 }.into())
        );
        assert_eq!(
            problem(&key, &entry(inode(300), 8, b"n", b"")),
            Err(DirectoryProblem::KindMismatch {
                kind: FileKind::Xattr
            }
            .into())
        );
        assert_eq!(
            problem(
                &item_key(ItemType::XATTR_ITEM, b"n"),
                &entry(nowhere(), 1, b"n", b"")
            ),
            Err(DirectoryProblem::KindMismatch {
                kind: FileKind::Regular
            }
            .into())
        );
        assert_eq!(
            problem(&key, &entry(inode(300), 1, b"n", b"xy")),
            Err(DirectoryProblem::EntryHasData { data_bytes: 2 }.into())
        );
        assert_eq!(
            problem(&key, &entry(inode(300), 1, b"m", b"")),
            Err(NameProblem::HashMismatch {
                hash: name_hash(b"m"),
                expected: name_hash(b"n")
            }
            .into())
        );
        assert_eq!(
            problem(
                &item_key(ItemType::DIR_ITEM, b"a/"),
                &entry(inode(300), 1, b"a/", b"")
            ),
            Err(NameProblem::ByteForbidden {
                byte: b'/',
                position: 1
            }
            .into())
        );
        assert_eq!(
            problem(&key, b""),
            Err(ItemProblem::SizeTooSmall {
                size_bytes: 0,
                needed_bytes: 30
            })
        );
        assert_eq!(
            problem(&key, &entry(inode(300), 1, b"n", b"")[..30]),
            Err(ItemProblem::SizeTooSmall {
                size_bytes: 30,
                needed_bytes: 31
            })
        );
    }

    #[test]
    fn kinds_round_trip() {
        for number in 0..=u8::MAX {
            assert!(FileKind::from_raw(number).map_or(number >= 9, |kind| kind.to_raw() == number));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(data: Vec<u8>, offset: u64) {
            for item_type in [ItemType::DIR_ITEM, ItemType::DIR_INDEX, ItemType::XATTR_ITEM] {
                let key = Key::new(ObjectId::new(256), item_type, offset);
                if let Ok(items) = DirItems::parse(&key, &data) {
                    let bytes: usize = items.map(|item| 30 + item.name.len() + item.data.len()).sum();
                    prop_assert_eq!(bytes, data.len());
                }
            }
        }
    }
}
