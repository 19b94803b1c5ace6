//! fs-verity items: the descriptor and the Merkle tree of a protected file.
//!
//! Descriptor and Merkle tree are byte strings, split into items of at most 2 KiB. The key of a
//! Merkle item holds its offset in the tree. Descriptor items begin at offset 1. The item at offset
//! 0 is a head that holds the descriptor's length.
//!
//! This module does not check that the hashes match the file.
//!
//! Source: on-disk format documentation, sections "VERITY_DESC_ITEM" and "VERITY_MERKLE_ITEM".

use crate::item_error::{ItemError, ItemProblem};
use crate::key::Key;
use crate::raw;
use crate::units::ByteCount;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The on-disk layout of the head of a descriptor.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawVerityDescriptorHead {
    /// Length of the descriptor in the items that follow.
    pub size: U64,
    /// A reserved field, zero.
    pub reserved: [U64; 2],
    /// A field for encryption, zero.
    pub encryption: u8,
}

const _: () = assert!(size_of::<RawVerityDescriptorHead>() == 25);

/// A part of a file's fs-verity descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerityDescriptor<'a> {
    /// The head, which is the item at offset 0.
    Head {
        /// The length of the descriptor in bytes.
        size: ByteCount,
        /// A field for encryption that is not defined yet; zero.
        encryption: u8,
    },
    /// A part of the descriptor's bytes.
    Bytes {
        /// The offset of the part in the descriptor: one less than the key's offset.
        offset: u64,
        /// The bytes of this part of the descriptor or Merkle tree.
        bytes: &'a [u8],
    },
}

impl<'a> VerityDescriptor<'a> {
    /// Checks a `VERITY_DESC_ITEM`: the head's size, and that parts are not empty and end within
    /// 2^64.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &'a [u8]) -> Result<Self, ItemError> {
        let Some(offset) = key.offset.checked_sub(1) else {
            let raw: &RawVerityDescriptorHead = raw::exactly(key, data)?;
            return Ok(Self::Head {
                size: ByteCount::new(raw.size.get()),
                encryption: raw.encryption,
            });
        };
        check_part(key, data)?;
        Ok(Self::Bytes { offset, bytes: data })
    }
}

/// A part of a file's Merkle tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerityMerkle<'a> {
    /// The offset of the part in the Merkle tree.
    pub offset: u64,
    /// The bytes of the part.
    pub bytes: &'a [u8],
}

impl<'a> VerityMerkle<'a> {
    /// Checks a `VERITY_MERKLE_ITEM`: its data is not empty and ends within 2^64.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &'a [u8]) -> Result<Self, ItemError> {
        check_part(key, data)?;
        Ok(Self {
            offset: key.offset,
            bytes: data,
        })
    }
}

fn check_part(key: &Key, data: &[u8]) -> Result<(), ItemError> {
    if data.is_empty() {
        return Err(ItemError::new(
            key,
            ItemProblem::SizeTooSmall {
                size_bytes: 0,
                needed_bytes: 1,
            },
        ));
    }
    raw::range_end(key, key.offset, ByteCount::of(data.len()).get())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;
    use crate::units::ObjectId;

    fn key(item_type: ItemType, offset: u64) -> Key {
        Key::new(ObjectId::new(257), item_type, offset)
    }

    #[test]
    fn descriptor_head_and_parts() {
        let head = RawVerityDescriptorHead {
            size: U64::new(256),
            reserved: [U64::new(0); 2],
            encryption: 0,
        };
        assert_eq!(
            VerityDescriptor::parse(&key(ItemType::VERITY_DESC_ITEM, 0), head.as_bytes()).unwrap(),
            VerityDescriptor::Head {
                size: ByteCount::new(256),
                encryption: 0
            }
        );
        assert_eq!(
            VerityDescriptor::parse(&key(ItemType::VERITY_DESC_ITEM, 0), &[0; 24])
                .unwrap_err()
                .problem,
            ItemProblem::SizeWrong {
                size_bytes: 24,
                expected_bytes: 25
            }
        );
        assert_eq!(
            VerityDescriptor::parse(&key(ItemType::VERITY_DESC_ITEM, 1), b"abc").unwrap(),
            VerityDescriptor::Bytes {
                offset: 0,
                bytes: b"abc"
            }
        );
    }

    #[test]
    fn merkle_parts_end_within_the_tree() {
        let parse = |offset, data| {
            VerityMerkle::parse(&key(ItemType::VERITY_MERKLE_ITEM, offset), data)
                .map_err(|error| error.problem)
        };
        assert_eq!(
            parse(4096, b"abc"),
            Ok(VerityMerkle {
                offset: 4096,
                bytes: b"abc"
            })
        );
        assert_eq!(
            parse(0, b""),
            Err(ItemProblem::SizeTooSmall {
                size_bytes: 0,
                needed_bytes: 1
            })
        );
        assert_eq!(
            parse(u64::MAX, b"a"),
            Err(ItemProblem::RangeOverflow {
                start: u64::MAX,
                length_bytes: 1
            })
        );
    }
}
