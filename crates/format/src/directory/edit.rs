//! Additions to and removals from the items of directories and attributes.
//!
//! The functions change the data of an item in memory. Like the kernel, the functions append new
//! entries at the end of the item. If an item becomes empty, the caller deletes it. The functions
//! check an entry before they add it, so the parser accepts each written item.

use super::{DirItem, DirItems, DirectoryProblem, FileKind, RawDirItem};
use crate::checksum::name_hash;
use crate::item_error::ItemProblem;
use crate::key::{ItemType, Key, RawKey};
use crate::names::{check_length, check_name, length};
use crate::units::InodeNumber;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U64};

impl DirItem<'_> {
    /// Returns the key `(directory DIR_ITEM hash of name)`.
    #[must_use]
    pub fn key(directory: InodeNumber, name: &[u8]) -> Key {
        Key::new(directory.object_id(), ItemType::DIR_ITEM, name_hash(name))
    }

    /// Returns the key `(directory DIR_INDEX index)`.
    #[must_use]
    pub const fn index_key(directory: InodeNumber, index: u64) -> Key {
        Key::new(directory.object_id(), ItemType::DIR_INDEX, index)
    }

    /// Returns the key `(inode XATTR_ITEM hash of name)`.
    #[must_use]
    pub fn xattr_key(inode: InodeNumber, name: &[u8]) -> Key {
        Key::new(inode.object_id(), ItemType::XATTR_ITEM, name_hash(name))
    }

    /// Returns the number of bytes that [`DirItems::push`] adds for this entry.
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        size_of::<RawDirItem>()
            .saturating_add(self.name.len())
            .saturating_add(self.data.len())
    }

    /// Returns the data of an item that holds only this entry.
    ///
    /// # Errors
    /// Fails as [`DirItems::push`] does.
    pub fn encode(&self) -> Result<Vec<u8>, ItemProblem> {
        let mut data = Vec::with_capacity(self.encoded_bytes());
        DirItems::push(&mut data, self)?;
        Ok(data)
    }
}

impl DirItems<'_> {
    /// Appends an entry to an item's data.
    ///
    /// # Errors
    /// Fails if the name is invalid, or if the value is too long for its length field.
    pub fn push(data: &mut Vec<u8>, entry: &DirItem<'_>) -> Result<(), ItemProblem> {
        if entry.kind == FileKind::Xattr {
            check_length(entry.name)?;
        } else {
            check_name(entry.name, false)?;
        }
        let data_bytes = u16::try_from(entry.data.len()).map_err(|_| DirectoryProblem::ValueTooLong {
            value_bytes: entry.data.len(),
        })?;
        let raw = RawDirItem {
            location: RawKey::from(entry.location),
            transid: U64::new(entry.transid.get()),
            data_bytes: U16::new(data_bytes),
            name_bytes: length(entry.name)?,
            kind: entry.kind.to_raw(),
        };
        data.extend_from_slice(raw.as_bytes());
        data.extend_from_slice(entry.name);
        data.extend_from_slice(entry.data);
        Ok(())
    }

    /// Removes the entry with this name from the data of an item that [`DirItems::parse`] accepts.
    /// Returns true if the data held the entry.
    pub fn remove(data: &mut Vec<u8>, name: &[u8]) -> bool {
        let mut start = 0_usize;
        for entry in (DirItems { rest: data }) {
            let end = start.saturating_add(entry.encoded_bytes());
            if entry.name == name {
                data.drain(start..end.min(data.len()));
                return true;
            }
            start = end;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Generation, ObjectId};
    use proptest::prelude::*;

    fn attribute<'a>(name: &'a [u8], data: &'a [u8]) -> DirItem<'a> {
        DirItem {
            location: Key::new(ObjectId::MIN, ItemType(0), 0),
            transid: Generation::new(7),
            kind: FileKind::Xattr,
            name,
            data,
        }
    }

    #[test]
    fn entries_that_cannot_be_are_refused_and_change_nothing() {
        let mut data = vec![1];
        let too_long = vec![0; 65_536];
        assert_eq!(
            DirItems::push(&mut data, &attribute(b"user.a", &too_long)),
            Err(DirectoryProblem::ValueTooLong { value_bytes: 65_536 }.into())
        );
        assert!(DirItems::push(&mut data, &attribute(b"", b"")).is_err());
        let mut entry = attribute(b"a/b", b"");
        assert!(
            DirItems::push(&mut data, &entry).is_ok(),
            "attributes' names hold any byte"
        );
        data.truncate(1);
        entry.kind = FileKind::Regular;
        assert!(DirItems::push(&mut data, &entry).is_err());
        assert_eq!(data, [1]);
    }

    /// Returns two names with the same hash. CRC-32C is linear, so xor with a multiple of its
    /// polynomial keeps the hash.
    fn colliding() -> [Vec<u8>; 2] {
        let first = b"user.collision-0".to_vec();
        let mut second = first.clone();
        // The 33 coefficients of the polynomial from bit 0 of byte 8 on, the lowest degree last.
        let multiple = 0x1_05ec_76f1_u64;
        for bit in 0..33 {
            if multiple >> bit & 1 == 1 {
                second[8 + bit / 8] ^= 1 << (bit % 8);
            }
        }
        [first, second]
    }

    #[test]
    fn names_of_one_hash_share_an_item() {
        let [first, second] = colliding();
        assert_ne!(first, second);
        assert_eq!(name_hash(&first), name_hash(&second));
        let key = DirItem::xattr_key(InodeNumber::new(300), &first);
        let mut data = attribute(&first, b"1").encode().unwrap();
        DirItems::push(&mut data, &attribute(&second, b"22")).unwrap();
        let values: Vec<_> = DirItems::parse(&key, &data)
            .unwrap()
            .map(|entry| entry.data.to_vec())
            .collect();
        assert_eq!(values, [b"1".to_vec(), b"22".to_vec()]);
        assert!(DirItems::remove(&mut data, &first));
        assert!(!DirItems::remove(&mut data, &first));
        assert_eq!(DirItems::parse(&key, &data).unwrap().next().unwrap().name, second);
    }

    proptest! {
        #[test]
        fn items_come_back_byte_for_byte(
            entries in prop::collection::vec(("[a-z]{1,40}", prop::collection::vec(any::<u8>(), 0..80)), 1..8),
        ) {
            // A `DIR_ITEM` holds only names of one hash, so each name of this test has its own
            // item.
            for (name, value) in &entries {
                let entry = attribute(name.as_bytes(), value);
                let data = entry.encode().unwrap();
                prop_assert_eq!(data.len(), entry.encoded_bytes());
                let key = DirItem::xattr_key(InodeNumber::new(300), name.as_bytes());
                let found: Vec<_> = DirItems::parse(&key, &data).unwrap().collect();
                prop_assert_eq!(found, vec![entry]);
            }
        }
    }
}
