//! fs-verity items: the descriptor and the Merkle tree of a protected file.
//!
//! Both are byte strings cut into items of at most 2 KiB. Merkle items carry in their key where in the tree they
//! begin. Descriptor items begin at offset 1; the one at offset 0 is a head that tells the descriptor's length.
//!
//! Whether the hashes match the file is not asked here.
//!
//! Source: on-disk format documentation, sections "VERITY_DESC_ITEM" and "VERITY_MERKLE_ITEM".

use crate::item_error::{ItemError, ItemProblem};
use crate::key::Key;
use crate::raw;
use crate::units::ByteCount;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The head of a descriptor as it lies on disk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawVerityDescriptorHead {
    /// Length of the descriptor in the items that follow.
    pub size: U64,
    /// Zero.
    pub reserved: [U64; 2],
    /// Zero.
    pub encryption: u8,
}

const _: () = assert!(size_of::<RawVerityDescriptorHead>() == 25);

/// A part of a file's fs-verity descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerityDescriptor<'a> {
    /// The item at offset 0.
    Head {
        /// Length of the descriptor.
        size: ByteCount,
        /// Not defined yet; zero.
        encryption: u8,
    },
    /// A part of the descriptor's bytes.
    Bytes {
        /// Where in the descriptor the part begins: one less than the key's offset.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
}

impl<'a> VerityDescriptor<'a> {
    /// Checks a `VERITY_DESC_ITEM`: the head's size, and that parts are not empty and end within 2^64.
    ///
    /// # Errors
    /// An [`ItemError`] with the first check that fails.
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
    /// Where in the tree the part begins.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> VerityMerkle<'a> {
    /// Checks a `VERITY_MERKLE_ITEM`: not empty, and ending within 2^64.
    ///
    /// # Errors
    /// An [`ItemError`] with the first check that fails.
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
