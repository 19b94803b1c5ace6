//! Uuid items: the index from uuids to subvolumes, in the uuid tree.
//!
//! The key holds the uuid: its first eight bytes are the object id and its last eight the offset,
//! both little-endian. The type selects the relation. Subvolumes have the key's uuid as their own
//! ([`ItemType::UUID_KEY_SUBVOL`]), or were received from it
//! ([`ItemType::UUID_KEY_RECEIVED_SUBVOL`]). The item's data is an array of subvolume ids.
//!
//! The tree is only an index, which the kernel rebuilds. A wrong entry in the uuid tree costs a
//! search, not data.
//!
//! Source: on-disk format documentation, section "UUID tree".

use crate::item_error::ItemError;
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{ObjectId, TreeId};
use uuid::Uuid;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

/// A checked uuid item.
#[derive(Clone, Copy, Debug)]
pub struct UuidItem<'a> {
    /// The uuid that the key holds.
    pub uuid: Uuid,
    subvolumes: &'a [U64],
}

impl<'a> UuidItem<'a> {
    /// Checks a uuid item: an array of one or more 8-byte ids.
    ///
    /// # Errors
    /// Returns [`crate::ItemProblem::SizeNotMultiple`].
    pub fn parse(key: &Key, data: &'a [u8]) -> Result<Self, ItemError> {
        Ok(Self {
            uuid: uuid_of(key),
            subvolumes: raw::row(key, data)?,
        })
    }

    /// Returns the stored subvolume ids. A subvolume may no longer exist.
    pub fn subvolumes(&self) -> impl ExactSizeIterator<Item = TreeId> + use<'a> {
        self.subvolumes.iter().map(|id| TreeId::new(id.get()))
    }
}

impl UuidItem<'_> {
    /// Returns true if the item names this subvolume.
    #[must_use]
    pub fn holds(&self, subvolume: TreeId) -> bool {
        self.subvolumes().any(|id| id == subvolume)
    }

    /// Appends a subvolume to an item's data, unless the data already holds it.
    pub fn push(data: &mut Vec<u8>, subvolume: TreeId) {
        if position(data, subvolume).is_none() {
            data.extend_from_slice(&subvolume.get().to_le_bytes());
        }
    }

    /// Removes a subvolume from an item's data. Returns true if the item's data held the subvolume.
    /// If the data becomes empty, the caller deletes the item.
    pub fn remove(data: &mut Vec<u8>, subvolume: TreeId) -> bool {
        let Some(start) = position(data, subvolume) else {
            return false;
        };
        data.drain(start..start.saturating_add(size_of::<U64>()));
        true
    }
}

/// Returns the byte offset of the id of a subvolume.
fn position(data: &[u8], subvolume: TreeId) -> Option<usize> {
    let id = subvolume.get().to_le_bytes();
    let index = data.chunks_exact(id.len()).position(|chunk| chunk == id)?;
    index.checked_mul(id.len())
}

/// Returns the uuid that the key of a uuid item holds.
#[must_use]
pub fn uuid_of(key: &Key) -> Uuid {
    let number = (u128::from(key.offset) << 64) | u128::from(key.objectid.get());
    Uuid::from_bytes(number.to_le_bytes())
}

/// Returns the key of the item that lists the subvolumes of a uuid.
#[must_use]
pub fn uuid_key(uuid: Uuid, item_type: ItemType) -> Key {
    let (low, high) = uuid.as_bytes().split_at(8);
    let number = |bytes: &[u8]| U64::read_from_bytes(bytes).map_or(0, U64::get);
    Key::new(ObjectId::new(number(low)), item_type, number(high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item_error::ItemProblem;

    #[test]
    fn keys_spell_uuids() {
        let uuid = Uuid::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let key = uuid_key(uuid, ItemType::UUID_KEY_SUBVOL);
        assert_eq!(key.objectid.get(), 0x0706_0504_0302_0100);
        assert_eq!(key.offset, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(uuid_of(&key), uuid);
    }

    #[test]
    fn a_row_of_ids() {
        let key = Key::new(ObjectId::new(1), ItemType::UUID_KEY_SUBVOL, 2);
        let data = [256_u64.to_le_bytes(), 257_u64.to_le_bytes()].concat();
        let item = UuidItem::parse(&key, &data).unwrap();
        assert_eq!(
            item.subvolumes().collect::<Vec<_>>(),
            [TreeId::new(256), TreeId::new(257)]
        );
        for length in [0, 1, 15] {
            assert_eq!(
                UuidItem::parse(&key, &data[..length]).unwrap_err().problem,
                ItemProblem::SizeNotMultiple {
                    size_bytes: length,
                    unit_bytes: 8
                }
            );
        }
    }
}
