//! A found tree block, as the index keeps it.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | logical address in the header |
//! | 8 | 8 | generation |
//! | 16 | 8 | owner |
//! | 24 | 6 | physical address / 512 |
//! | 30 | 1 | device, by its number among the given devices |
//! | 31 | 1 | level |
//! | 32 | 2 | number of items, at most 65,535 |
//! | 34 | 2 | flags |
//! | 36 | 4 | first bytes of the stored checksum, to recognise equal copies |
//! | 40 | 17 | first key |
//! | 57 | 17 | last key |
//! | 74 | 6 | zero |
//!
//! All numbers are little-endian.
//!
//! # Left out
//!
//! Whether a block is at the place that a chunk tree gives its address: this depends on the state
//! that is read, not on the block.

use buttress_exact::Exact as _;
use buttress_format::key::RawKey;
use buttress_format::superblock::HIGHEST_LEVEL;
use buttress_format::{Generation, Key, Logical, Physical, TreeId};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of a record in bytes.
pub const RECORD_BYTES: usize = 80;

/// The unit of physical addresses in a record, in bytes.
const PHYSICAL_UNIT: u64 = 512;

/// The size of the largest device that a record can describe, in bytes.
pub(crate) const DEVICE_BYTES_MAX: u64 = (1 << 48) * PHYSICAL_UNIT;

bitflags::bitflags! {
    /// The results of checking a block.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RecordFlags: u16 {
        /// The checksum is correct.
        const CHECKSUM = 1 << 0;
        /// Every check of the block succeeds, including the tree checker.
        const SOUND = 1 << 1;
        /// The block belongs to a relocation tree.
        const RELOCATION = 1 << 2;
        /// The block carries the former uuid of the file system.
        const FORMER_UUID = 1 << 3;
        /// The block belongs to a log tree.
        const LOG = 1 << 4;
    }
}

/// A found tree block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The address in the block's header.
    pub logical: Logical,
    /// The generation in the block's header.
    pub generation: Generation,
    /// The owner in the block's header.
    pub owner: TreeId,
    /// The place of the block on its device.
    pub physical: Physical,
    /// The device, by its number among the scanned devices.
    pub device: u8,
    /// The level in the block's header.
    pub level: u8,
    /// The number of items or pointers, at most 65,535.
    pub items: u16,
    /// The results of checking the block.
    pub flags: RecordFlags,
    /// The first bytes of the stored checksum.
    pub checksum: [u8; 4],
    /// The first key; the smallest key for a block without items.
    pub first_key: Key,
    /// The last key; the smallest key for a block without items.
    pub last_key: Key,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    logical: U64,
    generation: U64,
    owner: U64,
    physical: [u8; 6],
    device: u8,
    level: u8,
    items: U16,
    flags: U16,
    checksum: [u8; 4],
    first_key: RawKey,
    last_key: RawKey,
    zero: [u8; 6],
}

const _: () = assert!(size_of::<RawRecord>() == RECORD_BYTES);

/// The field of a record that has a wrong value, and the value.
pub(crate) type WrongField = (&'static str, u64);

impl Record {
    /// Returns true if the checksum is correct.
    #[must_use]
    pub const fn has_checksum(&self) -> bool {
        self.flags.contains(RecordFlags::CHECKSUM)
    }

    /// Returns true if every check of the block succeeded.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.flags.contains(RecordFlags::SOUND)
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let units = self.physical.get().quotient(PHYSICAL_UNIT).to_le_bytes();
        let [p0, p1, p2, p3, p4, p5, ..] = units;
        let raw = RawRecord {
            logical: self.logical.get().into(),
            generation: self.generation.get().into(),
            owner: self.owner.get().into(),
            physical: [p0, p1, p2, p3, p4, p5],
            device: self.device,
            level: self.level,
            items: self.items.into(),
            flags: self.flags.bits().into(),
            checksum: self.checksum,
            first_key: self.first_key.into(),
            last_key: self.last_key.into(),
            zero: [0; 6],
        };
        zerocopy::transmute!(raw)
    }

    /// Decodes a record of an index with this number of devices.
    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES], devices: usize) -> Result<Self, WrongField> {
        let raw: RawRecord = zerocopy::transmute!(*bytes);
        let [p0, p1, p2, p3, p4, p5] = raw.physical;
        let units = u64::from_le_bytes([p0, p1, p2, p3, p4, p5, 0, 0]);
        if usize::from(raw.device) >= devices {
            return Err(("device", raw.device.into()));
        }
        if raw.level > HIGHEST_LEVEL {
            return Err(("level", raw.level.into()));
        }
        let flags = RecordFlags::from_bits(raw.flags.get()).ok_or(("flags", raw.flags.get().into()))?;
        if raw.zero != [0; 6] {
            return Err(("padding", 1));
        }
        Ok(Self {
            logical: Logical::new(raw.logical.get()),
            generation: Generation::new(raw.generation.get()),
            owner: TreeId::new(raw.owner.get()),
            physical: Physical::new(units.exact_mul(PHYSICAL_UNIT)),
            device: raw.device,
            level: raw.level,
            items: raw.items.get(),
            flags,
            checksum: raw.checksum,
            first_key: Key::from(raw.first_key),
            last_key: Key::from(raw.last_key),
        })
    }

    /// Returns the bytes that order records by address: the newest block of an address first.
    pub(crate) fn address_order(&self) -> [u8; 25] {
        let mut order = [0; 25];
        let fields = [self.logical.get(), !self.generation.get(), self.physical.get()];
        let (numbers, device) = order.split_at_mut(24);
        for (place, field) in numbers.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        device.fill(self.device);
        order
    }

    /// Returns the bytes that order records by tree, level and first key, the newest first.
    pub(crate) fn key_order(&self) -> [u8; 34] {
        let mut order = [0; 34];
        let key = &self.first_key;
        let parts: [&[u8]; 6] = [
            &self.owner.get().to_be_bytes(),
            &[self.level],
            &key.objectid.get().to_be_bytes(),
            &[key.item_type.0],
            &key.offset.to_be_bytes(),
            &(!self.generation.get()).to_be_bytes(),
        ];
        for (place, byte) in order.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{ItemType, ObjectId};

    fn record() -> Record {
        Record {
            logical: Logical::new(30_408_704),
            generation: Generation::new(9),
            owner: TreeId::FS,
            physical: Physical::new(38_797_312),
            device: 2,
            level: 1,
            items: 121,
            flags: RecordFlags::CHECKSUM | RecordFlags::SOUND,
            checksum: [1, 2, 3, 4],
            first_key: Key::new(ObjectId::new(256), ItemType::INODE_ITEM, 0),
            last_key: Key::new(ObjectId::new(300), ItemType::INODE_REF, 256),
        }
    }

    #[test]
    fn records_survive_encoding() {
        let bytes = record().encode();
        assert_eq!(Record::decode(&bytes, 3), Ok(record()));
        assert_eq!(Record::decode(&bytes, 2), Err(("device", 2)));
    }

    #[test]
    fn records_with_wrong_fields_are_refused() {
        for (at, value, field) in [(31, 8, "level"), (35, 0x80, "flags"), (79, 1, "padding")] {
            let mut bytes = record().encode();
            bytes[at] = value;
            assert_eq!(Record::decode(&bytes, 3).unwrap_err().0, field);
        }
    }

    #[test]
    fn newest_block_of_an_address_comes_first() {
        let older = Record {
            generation: Generation::new(8),
            ..record()
        };
        let next = Record {
            logical: Logical::new(30_408_705),
            ..older
        };
        assert!(record().address_order() < older.address_order());
        assert!(older.address_order() < next.address_order());
        assert!(record().key_order() < older.key_order());
        let leaf = Record { level: 0, ..older };
        assert!(leaf.key_order() < record().key_order());
    }
}
