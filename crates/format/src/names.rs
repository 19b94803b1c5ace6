//! Names of an inode, seen from the inode: `INODE_REF` and `INODE_EXTREF`.
//!
//! An `INODE_REF` holds the names that an inode has in one directory, packed in sequence. The
//! directory is the key's offset. Names that do not fit an `INODE_REF` item go to `INODE_EXTREF`
//! items. The key of an `INODE_EXTREF` holds a hash of directory and name, so each entry also names
//! its directory. Both item types yield [`InodeName`]s.
//!
//! The iterator's constructor checks the whole reference item, so iterating over its names cannot
//! fail. Names are borrowed from the leaf, not copied.
//!
//! For all items, this module refuses names that could mislead a reader: names that are empty or
//! longer than 255 bytes, names with `/` or NUL, and `.` and `..`. The only permitted such name is
//! the `..` with which a root directory names itself.
//!
//! Source: on-disk format documentation, sections "INODE_REF" and "INODE_EXTREF".

mod edit;

pub(crate) use edit::length;

use crate::checksum::extref_hash;
use crate::item_error::{ItemError, ItemProblem};
use crate::key::Key;
use crate::units::InodeNumber;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest name, in bytes, of a directory entry, a subvolume or an extended attribute.
pub const NAME_BYTES_MAX: usize = 255;

/// The fixed part of an entry of an `INODE_REF`. The name follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInodeRef {
    /// The name's index in the directory: the offset of its `DIR_INDEX` key.
    pub index: U64,
    /// Length of the name that follows.
    pub name_bytes: U16,
}

const _: () = assert!(size_of::<RawInodeRef>() == 10);

/// The fixed part of an entry of an `INODE_EXTREF`; the name follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInodeExtref {
    /// The directory that holds the name.
    pub parent: U64,
    /// The name's index in the directory.
    pub index: U64,
    /// Length of the name that follows.
    pub name_bytes: U16,
}

const _: () = assert!(size_of::<RawInodeExtref>() == 18);

/// A name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeName<'a> {
    /// The directory that holds the name.
    pub parent: InodeNumber,
    /// The name's index in the directory: the offset of its `DIR_INDEX` key.
    pub index: u64,
    /// The name as raw bytes.
    pub name: &'a [u8],
}

/// The names in one `INODE_REF`, in the order in which they are stored.
#[derive(Clone, Debug)]
pub struct InodeRefs<'a> {
    parent: InodeNumber,
    rest: &'a [u8],
}

impl<'a> InodeRefs<'a> {
    /// Checks an `INODE_REF` and all its names.
    ///
    /// # Errors
    /// An [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &'a [u8]) -> Result<Self, ItemError> {
        let item = Self {
            parent: InodeNumber::new(key.offset),
            rest: data,
        };
        let names_itself = key.objectid.get() == key.offset;
        let mut rest = data;
        loop {
            let (name, after) = item
                .split(rest)
                .map_err(|problem| problem.at(key, data.len(), rest.len()))?;
            check_name(name.name, names_itself).map_err(|problem| ItemError::new(key, problem))?;
            rest = after;
            if rest.is_empty() {
                return Ok(item);
            }
        }
    }

    fn split(&self, rest: &'a [u8]) -> Result<(InodeName<'a>, &'a [u8]), Cut> {
        let (raw, rest) = RawInodeRef::ref_from_prefix(rest).map_err(|_| Cut(size_of::<RawInodeRef>()))?;
        let (name, rest) = split_name(rest, raw.name_bytes, size_of::<RawInodeRef>())?;
        Ok((
            InodeName {
                parent: self.parent,
                index: raw.index.get(),
                name,
            },
            rest,
        ))
    }
}

impl<'a> Iterator for InodeRefs<'a> {
    type Item = InodeName<'a>;

    fn next(&mut self) -> Option<InodeName<'a>> {
        let (name, rest) = self.split(self.rest).ok()?;
        self.rest = rest;
        Some(name)
    }
}

/// The names in one `INODE_EXTREF`, for which the hash of directory and name equals the key's
/// offset.
#[derive(Clone, Debug)]
pub struct InodeExtrefs<'a> {
    rest: &'a [u8],
}

impl<'a> InodeExtrefs<'a> {
    /// Checks an `INODE_EXTREF`, all its names, and that each of them has the hash in the key.
    ///
    /// # Errors
    /// An [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &'a [u8]) -> Result<Self, ItemError> {
        let mut rest = data;
        loop {
            let (name, after) =
                Self::split(rest).map_err(|problem| problem.at(key, data.len(), rest.len()))?;
            check_name(name.name, false).map_err(|problem| ItemError::new(key, problem))?;
            let hash = extref_hash(name.parent, name.name);
            if hash != key.offset {
                return Err(ItemError::new(
                    key,
                    NameProblem::HashMismatch {
                        hash,
                        expected: key.offset,
                    },
                ));
            }
            rest = after;
            if rest.is_empty() {
                return Ok(Self { rest: data });
            }
        }
    }

    fn split(rest: &'a [u8]) -> Result<(InodeName<'a>, &'a [u8]), Cut> {
        let (raw, rest) =
            RawInodeExtref::ref_from_prefix(rest).map_err(|_| Cut(size_of::<RawInodeExtref>()))?;
        let (name, rest) = split_name(rest, raw.name_bytes, size_of::<RawInodeExtref>())?;
        let parent = InodeNumber::new(raw.parent.get());
        Ok((
            InodeName {
                parent,
                index: raw.index.get(),
                name,
            },
            rest,
        ))
    }
}

impl<'a> Iterator for InodeExtrefs<'a> {
    type Item = InodeName<'a>;

    fn next(&mut self) -> Option<InodeName<'a>> {
        let (name, rest) = Self::split(self.rest).ok()?;
        self.rest = rest;
        Some(name)
    }
}

/// The error of an entry that ends inside its fixed part or its name. Holds the number of bytes
/// that the entry needs.
#[derive(Debug)]
struct Cut(usize);

impl Cut {
    /// Returns the error of an item of `size_bytes` whose last entry begins `rest_bytes` before the
    /// item's end.
    fn at(&self, key: &Key, size_bytes: usize, rest_bytes: usize) -> ItemError {
        let needed_bytes = size_bytes.saturating_sub(rest_bytes).saturating_add(self.0);
        ItemError::new(
            key,
            ItemProblem::SizeTooSmall {
                size_bytes,
                needed_bytes,
            },
        )
    }
}

fn split_name(rest: &[u8], name_bytes: U16, fixed_bytes: usize) -> Result<(&[u8], &[u8]), Cut> {
    let name_bytes = usize::from(name_bytes.get());
    rest.split_at_checked(name_bytes)
        .ok_or(Cut(fixed_bytes.saturating_add(name_bytes)))
}

/// Checks a name of a directory entry or subvolume. A valid name has 1 to 255 bytes and no `/` or
/// NUL. `.` and `..` are refused unless `may_be_dots` is set.
pub(crate) fn check_name(name: &[u8], may_be_dots: bool) -> Result<(), NameProblem> {
    check_length(name)?;
    // The loop never stops early, so that the compiler can vectorise it over all bytes of the name.
    let is_separator = |byte: &u8| matches!(byte, b'/' | 0);
    if name.iter().fold(false, |found, byte| found | is_separator(byte)) {
        let position = name.iter().position(is_separator).unwrap_or_default();
        let byte = name.get(position).copied().unwrap_or_default();
        return Err(NameProblem::ByteForbidden { byte, position });
    }
    if (name == b"." || name == b"..") && !may_be_dots {
        return Err(NameProblem::Dots);
    }
    Ok(())
}

/// Checks the length of a name: 1 to 255 bytes.
pub(crate) fn check_length(name: &[u8]) -> Result<(), NameProblem> {
    match name.len() {
        0 => Err(NameProblem::Empty),
        1..=NAME_BYTES_MAX => Ok(()),
        length_bytes => Err(NameProblem::TooLong { length_bytes }),
    }
}

/// The check that the name of a directory entry, an inode, a subvolume or an extended attribute
/// fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameProblem {
    /// The name is empty.
    #[error("a name is empty")]
    Empty,
    /// The name is longer than any name can be.
    #[error("a name is {length_bytes} bytes long, expected at most {NAME_BYTES_MAX}")]
    TooLong {
        /// The length of the name in bytes.
        length_bytes: usize,
    },
    /// A name holds a byte that separates or ends names.
    #[error("a name contains the byte {byte:#04x} at {position}")]
    ByteForbidden {
        /// `/` or NUL.
        byte: u8,
        /// The position of the byte in the name, counted from 0.
        position: usize,
    },
    /// The name is `.` or `..`.
    #[error("a name is \".\" or \"..\"")]
    Dots,
    /// The name does not have the hash that the key holds.
    #[error("the name's hash is {hash}, the key says {expected}")]
    HashMismatch {
        /// Hash of the name (for `INODE_EXTREF`, of its directory too).
        hash: u64,
        /// The key's offset.
        expected: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;
    use crate::units::ObjectId;
    use proptest::prelude::*;

    fn reference(index: u64, name: &[u8]) -> Vec<u8> {
        let name_bytes = U16::new(u16::try_from(name.len()).unwrap());
        [
            RawInodeRef {
                index: U64::new(index),
                name_bytes,
            }
            .as_bytes(),
            name,
        ]
        .concat()
    }

    fn extended(parent: u64, index: u64, name: &[u8]) -> Vec<u8> {
        let name_bytes = U16::new(u16::try_from(name.len()).unwrap());
        [
            RawInodeExtref {
                parent: U64::new(parent),
                index: U64::new(index),
                name_bytes,
            }
            .as_bytes(),
            name,
        ]
        .concat()
    }

    fn ref_key() -> Key {
        Key::new(ObjectId::new(300), ItemType::INODE_REF, 256)
    }

    #[test]
    fn several_names_in_their_order() {
        let data = [reference(2, b"a"), reference(9, b"\xff\xfe")].concat();
        let names: Vec<_> = InodeRefs::parse(&ref_key(), &data).unwrap().collect();
        let parent = InodeNumber::new(256);
        assert_eq!(
            names,
            [
                InodeName {
                    parent,
                    index: 2,
                    name: b"a"
                },
                InodeName {
                    parent,
                    index: 9,
                    name: b"\xff\xfe"
                }
            ]
        );
    }

    #[test]
    fn every_cut_is_seen() {
        let data = [reference(2, b"abc"), reference(9, b"de")].concat();
        for length in 0..data.len() {
            let whole = length == 13;
            assert_eq!(
                InodeRefs::parse(&ref_key(), &data[..length]).is_ok(),
                whole,
                "{length} bytes"
            );
        }
        assert_eq!(
            InodeRefs::parse(&ref_key(), &data[..24]).unwrap_err().problem,
            ItemProblem::SizeTooSmall {
                size_bytes: 24,
                needed_bytes: 25
            }
        );
    }

    #[test]
    fn names_that_lead_astray_are_refused() {
        let problem = |name: &[u8]| {
            InodeRefs::parse(&ref_key(), &reference(2, name))
                .map(|_| ())
                .map_err(|error| error.problem)
        };
        assert_eq!(problem(b""), Err(NameProblem::Empty.into()));
        assert_eq!(
            problem(&[b'a'; 256]),
            Err(NameProblem::TooLong { length_bytes: 256 }.into())
        );
        assert_eq!(problem(&[b'a'; 255]), Ok(()));
        assert_eq!(
            problem(b"a/b"),
            Err(NameProblem::ByteForbidden {
                byte: b'/',
                position: 1
            }
            .into())
        );
        assert_eq!(
            problem(b"ab\0"),
            Err(NameProblem::ByteForbidden { byte: 0, position: 2 }.into())
        );
        assert_eq!(problem(b".."), Err(NameProblem::Dots.into()));
        assert_eq!(problem(b"..."), Ok(()));
        let root = Key::new(ObjectId::new(256), ItemType::INODE_REF, 256);
        assert!(InodeRefs::parse(&root, &reference(0, b"..")).is_ok());
    }

    #[test]
    fn extended_names_must_have_the_hash_of_the_key() {
        let hash = extref_hash(InodeNumber::new(256), b"name");
        let key = |offset| Key::new(ObjectId::new(300), ItemType::INODE_EXTREF, offset);
        let data = extended(256, 5, b"name");
        let names: Vec<_> = InodeExtrefs::parse(&key(hash), &data).unwrap().collect();
        assert_eq!(
            names,
            [InodeName {
                parent: InodeNumber::new(256),
                index: 5,
                name: b"name"
            }]
        );
        assert_eq!(
            InodeExtrefs::parse(&key(hash ^ 1), &data).unwrap_err().problem,
            NameProblem::HashMismatch {
                hash,
                expected: hash ^ 1
            }
            .into()
        );
        assert!(InodeExtrefs::parse(&key(hash), &data[..21]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(data: Vec<u8>) {
            if let Ok(names) = InodeRefs::parse(&ref_key(), &data) {
                let bytes: usize = names.map(|name| name.name.len() + size_of::<RawInodeRef>()).sum();
                prop_assert_eq!(bytes, data.len());
            }
        }
    }
}
