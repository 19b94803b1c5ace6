//! Facts about extents, as records that sort by address.
//!
//! A survey finds the facts about an extent in any order and in different blocks. Sorting brings all
//! facts about an address together: the key of a record is the address, the kind of the fact, and
//! the reference. Equal references have equal keys.

use buttress_exact::Defect;
use buttress_format::{ByteCount, Generation, InodeNumber, ItemType, Key, Logical, ObjectId, TreeId};
use buttress_packing::Record;

/// A fact about the extent at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// The extent tree had an item of data here. It only confirms what the users of the extent say.
    Recorded {
        length: ByteCount,
        generation: Generation,
        owner: Option<TreeId>,
    },
    /// The extent tree said that a subvolume without a root item uses this extent.
    Claimed,
    /// A tree block is here.
    Block {
        level: u8,
        generation: Generation,
        first_key: Key,
        /// Whether the block's children are recorded under its address.
        is_full: bool,
    },
    /// A tree refers to the block.
    TreeBlock { tree: TreeId },
    /// A parent refers to the block.
    SharedBlock { parent: Logical },
    /// A file extent item of a tree refers to the data.
    Data {
        tree: TreeId,
        inode: InodeNumber,
        offset: u64,
        size: Size,
    },
    /// A file extent item of a leaf refers to the data. The tree is the leaf's owner.
    SharedData {
        parent: Logical,
        tree: TreeId,
        size: Size,
    },
}

/// The properties of a data extent, as a file extent item states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// The length of the extent.
    pub(super) length: ByteCount,
    /// The length by the item's decoded length, which equals `length` without compression; 0 for
    /// compressed data, whose item states the length once.
    pub(super) decoded: ByteCount,
    /// The generation of the item.
    pub(super) generation: Generation,
}

/// The number of bytes of the longest key and of the longest payload.
const KEY_BYTES: usize = 33;
const PAYLOAD_BYTES: usize = 32;

/// A record in its encoded form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoded {
    key: [u8; KEY_BYTES],
    key_bytes: usize,
    payload: [u8; PAYLOAD_BYTES],
    payload_bytes: usize,
}

impl Encoded {
    const EMPTY: Self = Self {
        key: [0; KEY_BYTES],
        key_bytes: 0,
        payload: [0; PAYLOAD_BYTES],
        payload_bytes: 0,
    };

    /// Returns the record of a fact.
    pub(super) fn of(logical: Logical, fact: &Fact) -> Self {
        let mut to = Self::EMPTY;
        to.key_number(logical.get());
        to.key_byte(fact.kind());
        match *fact {
            Fact::Recorded {
                length,
                generation,
                owner,
            } => {
                to.payload_number(length.get());
                to.payload_number(generation.get());
                // No tree has the id 0.
                to.payload_number(owner.map_or(0, TreeId::get));
            }
            Fact::Block {
                level,
                generation,
                first_key,
                is_full,
            } => {
                to.payload_number(generation.get());
                to.payload_number(first_key.objectid.get());
                to.payload_number(first_key.offset);
                to.payload_bytes(&[level, u8::from(is_full), first_key.item_type.0]);
            }
            Fact::Claimed => {}
            Fact::TreeBlock { tree } => to.key_number(tree.get()),
            Fact::SharedBlock { parent } => to.key_number(parent.get()),
            Fact::Data {
                tree,
                inode,
                offset,
                size,
            } => {
                to.key_number(tree.get());
                to.key_number(inode.get());
                to.key_number(offset);
                to.payload_size(&size);
            }
            Fact::SharedData { parent, tree, size } => {
                to.key_number(parent.get());
                to.payload_size(&size);
                to.payload_number(tree.get());
            }
        }
        to
    }

    pub(super) fn key(&self) -> &[u8] {
        // Clamp: the length counts bytes of this array.
        self.key.get(..self.key_bytes).unwrap_or_default()
    }

    pub(super) fn payload(&self) -> &[u8] {
        // Clamp: the length counts bytes of this array.
        self.payload.get(..self.payload_bytes).unwrap_or_default()
    }

    fn key_number(&mut self, number: u64) {
        append(&mut self.key, &mut self.key_bytes, &number.to_be_bytes());
    }

    fn key_byte(&mut self, byte: u8) {
        append(&mut self.key, &mut self.key_bytes, &[byte]);
    }

    fn payload_number(&mut self, number: u64) {
        self.payload_bytes(&number.to_be_bytes());
    }

    fn payload_bytes(&mut self, bytes: &[u8]) {
        append(&mut self.payload, &mut self.payload_bytes, bytes);
    }

    fn payload_size(&mut self, size: &Size) {
        self.payload_number(size.length.get());
        self.payload_number(size.decoded.get());
        self.payload_number(size.generation.get());
    }
}

/// Appends bytes to an array that has space for them.
fn append(array: &mut [u8], length: &mut usize, bytes: &[u8]) {
    let end = length.checked_add(bytes.len());
    let place = end.and_then(|end| array.get_mut(*length..end));
    debug_assert!(place.is_some(), "a fact is longer than the longest");
    if let (Some(place), Some(end)) = (place, end) {
        place.copy_from_slice(bytes);
        *length = end;
    }
}

impl Fact {
    /// Returns the byte that orders the facts about one address.
    const fn kind(&self) -> u8 {
        match self {
            Self::Recorded { .. } => 0,
            Self::Block { .. } => 1,
            Self::TreeBlock { .. } => 2,
            Self::SharedBlock { .. } => 3,
            Self::Data { .. } => 4,
            Self::SharedData { .. } => 5,
            Self::Claimed => 6,
        }
    }
}

/// The fields of a record that are not read yet.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn number(&mut self) -> Result<u64, Defect> {
        let (number, rest) = self.0.split_first_chunk().ok_or_else(too_short)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*number))
    }

    fn byte(&mut self) -> Result<u8, Defect> {
        let (byte, rest) = self.0.split_first().ok_or_else(too_short)?;
        self.0 = rest;
        Ok(*byte)
    }

    fn size(&mut self) -> Result<Size, Defect> {
        Ok(Size {
            length: ByteCount::new(self.number()?),
            decoded: ByteCount::new(self.number()?),
            generation: Generation::new(self.number()?),
        })
    }
}

fn too_short() -> Defect {
    Defect::new("a record of an extent is too short")
}

/// Returns the fact of a record, and its address.
pub(super) fn decode(record: &Record) -> Result<(Logical, Fact), Defect> {
    let (mut key, mut payload) = (Fields(&record.key), Fields(&record.payload));
    let logical = Logical::new(key.number()?);
    let fact = match key.byte()? {
        0 => Fact::Recorded {
            length: ByteCount::new(payload.number()?),
            generation: Generation::new(payload.number()?),
            owner: Some(payload.number()?).filter(|id| *id != 0).map(TreeId::new),
        },
        1 => {
            let generation = Generation::new(payload.number()?);
            let (objectid, offset) = (payload.number()?, payload.number()?);
            let (level, is_full) = (payload.byte()?, payload.byte()? != 0);
            let item_type = ItemType(payload.byte()?);
            Fact::Block {
                level,
                generation,
                first_key: Key::new(ObjectId::new(objectid), item_type, offset),
                is_full,
            }
        }
        2 => Fact::TreeBlock {
            tree: TreeId::new(key.number()?),
        },
        3 => Fact::SharedBlock {
            parent: Logical::new(key.number()?),
        },
        4 => Fact::Data {
            tree: TreeId::new(key.number()?),
            inode: InodeNumber::new(key.number()?),
            offset: key.number()?,
            size: payload.size()?,
        },
        5 => Fact::SharedData {
            parent: Logical::new(key.number()?),
            size: payload.size()?,
            tree: TreeId::new(payload.number()?),
        },
        6 => Fact::Claimed,
        _ => return Err(Defect::new("a record of an extent has an unknown kind")),
    };
    Ok((logical, fact))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_their_records_in_order() {
        let size = Size {
            length: ByteCount::new(1 << 20),
            decoded: ByteCount::new(1 << 21),
            generation: Generation::new(u64::MAX),
        };
        let facts = [
            Fact::Recorded {
                length: ByteCount::new(4096),
                generation: Generation::new(7),
                owner: Some(TreeId::FS),
            },
            Fact::Block {
                level: 3,
                generation: Generation::new(8),
                first_key: Key::new(ObjectId::new(u64::MAX), ItemType(1), 0x1_0000_0000),
                is_full: true,
            },
            Fact::TreeBlock { tree: TreeId::FS },
            Fact::SharedBlock {
                parent: Logical::new(1 << 40),
            },
            Fact::Data {
                tree: TreeId::new(257),
                inode: InodeNumber::new(258),
                offset: u64::MAX - 4095,
                size,
            },
            Fact::SharedData {
                parent: Logical::new(1 << 41),
                tree: TreeId::DATA_RELOCATION,
                size,
            },
            Fact::Claimed,
        ];
        let mut last = Vec::new();
        for fact in facts {
            let at = Logical::new(0x12_3456_7000);
            let encoded = Encoded::of(at, &fact);
            let record = Record {
                key: encoded.key().to_vec(),
                payload: encoded.payload().to_vec(),
            };
            assert_eq!(decode(&record), Ok((at, fact)));
            assert!(last < record.key, "{fact:?}");
            last = record.key;
        }
    }
}
