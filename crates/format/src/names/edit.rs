//! Additions to and removals from the name items of an inode.
//!
//! The functions change the data of an item in memory. Like the kernel, these functions append new
//! names at the end of the item. If an item becomes empty, the caller deletes it. The functions
//! check a name before they add it, so the parser accepts each written item.

use super::{InodeExtrefs, InodeRefs, NameProblem, RawInodeExtref, RawInodeRef, check_name};
use crate::checksum::extref_hash;
use crate::key::{ItemType, Key};
use crate::units::InodeNumber;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U64};

impl InodeRefs<'_> {
    /// Returns the key `(inode INODE_REF parent)`.
    #[must_use]
    pub const fn key(inode: InodeNumber, parent: InodeNumber) -> Key {
        Key::new(inode.object_id(), ItemType::INODE_REF, parent.get())
    }

    /// Returns the number of bytes that [`InodeRefs::push`] adds for this name.
    #[must_use]
    pub const fn entry_bytes(name: &[u8]) -> usize {
        size_of::<RawInodeRef>().saturating_add(name.len())
    }

    /// Appends a name to an item's data. `..` is valid, because a root directory names itself `..`.
    ///
    /// # Errors
    /// Fails if no inode can have this name.
    pub fn push(data: &mut Vec<u8>, index: u64, name: &[u8]) -> Result<(), NameProblem> {
        check_name(name, name == b"..")?;
        let raw = RawInodeRef {
            index: U64::new(index),
            name_bytes: length(name)?,
        };
        data.extend_from_slice(raw.as_bytes());
        data.extend_from_slice(name);
        Ok(())
    }

    /// Removes a name from the data of an item that [`InodeRefs::parse`] accepts. Returns the
    /// name's index, or `None` if the data does not hold the name.
    pub fn remove(data: &mut Vec<u8>, name: &[u8]) -> Option<u64> {
        let entries = InodeRefs {
            parent: InodeNumber::MIN,
            rest: data,
        };
        let mut start = 0_usize;
        for entry in entries {
            let end = start.saturating_add(Self::entry_bytes(entry.name));
            if entry.name == name {
                let index = entry.index;
                data.drain(start..end.min(data.len()));
                return Some(index);
            }
            start = end;
        }
        None
    }
}

impl InodeExtrefs<'_> {
    /// Returns the key `(inode INODE_EXTREF hash of parent and name)`.
    #[must_use]
    pub fn key(inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Key {
        Key::new(
            inode.object_id(),
            ItemType::INODE_EXTREF,
            extref_hash(parent, name),
        )
    }

    /// Returns the number of bytes that [`InodeExtrefs::push`] adds for this name.
    #[must_use]
    pub const fn entry_bytes(name: &[u8]) -> usize {
        size_of::<RawInodeExtref>().saturating_add(name.len())
    }

    /// Appends a name to the data of the item under [`InodeExtrefs::key`].
    ///
    /// # Errors
    /// Fails if no inode can have this name.
    pub fn push(data: &mut Vec<u8>, parent: InodeNumber, index: u64, name: &[u8]) -> Result<(), NameProblem> {
        check_name(name, false)?;
        let raw = RawInodeExtref {
            parent: U64::new(parent.get()),
            index: U64::new(index),
            name_bytes: length(name)?,
        };
        data.extend_from_slice(raw.as_bytes());
        data.extend_from_slice(name);
        Ok(())
    }

    /// Removes a name in the directory `parent` from the data of an item that
    /// [`InodeExtrefs::parse`] accepts. Returns the name's index, or `None` if the data does not
    /// hold the name.
    pub fn remove(data: &mut Vec<u8>, parent: InodeNumber, name: &[u8]) -> Option<u64> {
        let mut start = 0_usize;
        for entry in (InodeExtrefs { rest: data }) {
            let end = start.saturating_add(Self::entry_bytes(entry.name));
            if entry.parent == parent && entry.name == name {
                let index = entry.index;
                data.drain(start..end.min(data.len()));
                return Some(index);
            }
            start = end;
        }
        None
    }
}

/// Returns the length of a name in the width of the items' length field.
pub(crate) fn length(name: &[u8]) -> Result<U16, NameProblem> {
    u16::try_from(name.len())
        .map(U16::new)
        .map_err(|_| NameProblem::TooLong {
            length_bytes: name.len(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INODE: InodeNumber = InodeNumber::new(300);
    const PARENT: InodeNumber = InodeNumber::new(256);

    #[test]
    fn names_that_no_inode_has_are_refused_and_change_nothing() {
        let mut data = Vec::new();
        let long = [b'n'; 256];
        for name in [b"".as_slice(), b".", b"a/b", b"a\0", &long] {
            assert!(InodeRefs::push(&mut data, 2, name).is_err());
            assert!(InodeExtrefs::push(&mut data, PARENT, 2, name).is_err());
        }
        assert!(data.is_empty());
    }

    #[test]
    fn a_name_of_another_directory_with_the_same_hash_stays() {
        // The name hash uses only the low 32 bits of the directory's inode number.
        let other = InodeNumber::new(PARENT.get() | 1 << 32);
        let mut data = Vec::new();
        InodeExtrefs::push(&mut data, PARENT, 2, b"name").unwrap();
        InodeExtrefs::push(&mut data, other, 3, b"name").unwrap();
        let key = InodeExtrefs::key(INODE, PARENT, b"name");
        assert_eq!(InodeExtrefs::parse(&key, &data).unwrap().count(), 2);
        assert_eq!(InodeExtrefs::remove(&mut data, other, b"name"), Some(3));
        assert_eq!(InodeExtrefs::remove(&mut data, other, b"name"), None);
        let left: Vec<_> = InodeExtrefs::parse(&key, &data).unwrap().collect();
        assert_eq!((left.len(), left[0].parent, left[0].index), (1, PARENT, 2));
    }

    proptest! {
        #[test]
        fn a_row_of_names_behaves_as_a_list(
            steps in prop::collection::vec((any::<bool>(), 0_u8..12, 2_u64..9), 1..60),
        ) {
            let key = InodeRefs::key(INODE, PARENT);
            let mut data = Vec::new();
            let mut model: Vec<(u64, Vec<u8>)> = Vec::new();
            for (add, number, index) in steps {
                let name = vec![b'a' + number; usize::from(number) * 20 + 1];
                let at = model.iter().position(|(_, known)| *known == name);
                if add && at.is_none() {
                    InodeRefs::push(&mut data, index, &name).unwrap();
                    model.push((index, name));
                } else if !add {
                    let expected = at.map(|at| model.remove(at).0);
                    prop_assert_eq!(InodeRefs::remove(&mut data, &name), expected);
                }
                if model.is_empty() {
                    prop_assert!(data.is_empty());
                } else {
                    let found: Vec<_> = InodeRefs::parse(&key, &data).unwrap()
                        .map(|entry| (entry.index, entry.name.to_vec())).collect();
                    prop_assert_eq!(&found, &model);
                }
            }
        }
    }
}
