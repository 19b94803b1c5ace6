//! The bytes of an inode: the base of 128 bytes, and the fields that `i_extra_isize` adds.
//!
//! Source: ext4 documentation, section "Index Nodes".

use crate::bytes::{u16_at, u32_at};
use crate::error::Problem;
use buttress_exact::{Exact as _, u64_of};
use core::mem::offset_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// The size of the field that holds extents, a block map, or content.
pub(crate) const MAP_BYTES: usize = 60;

/// The size of the fields that every inode has.
const BASE_BYTES: usize = 128;

/// The fields that every inode has.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Base {
    pub(super) mode: U16,
    pub(super) uid_low: U16,
    pub(super) size_low: U32,
    pub(super) accessed: U32,
    pub(super) changed: U32,
    pub(super) modified: U32,
    pub(super) deleted: U32,
    pub(super) gid_low: U16,
    pub(super) links: U16,
    pub(super) blocks_low: U32,
    pub(super) flags: U32,
    pub(super) version: U32,
    pub(super) map: [u8; MAP_BYTES],
    pub(super) generation: U32,
    pub(super) attribute_block_low: U32,
    pub(super) size_high: U32,
    pub(super) fragment: U32,
    pub(super) blocks_high: U16,
    pub(super) attribute_block_high: U16,
    pub(super) uid_high: U16,
    pub(super) gid_high: U16,
    pub(super) checksum_low: U16,
    pub(super) reserved: U16,
}

const _: () = assert!(size_of::<Base>() == BASE_BYTES);
const _: () = assert!(offset_of!(Base, map) == 0x28 && offset_of!(Base, checksum_low) == 0x7c);

/// An inode's fields.
pub(super) struct RawInode<'a> {
    pub(super) base: &'a Base,
    pub(super) extra: Extra<'a>,
    /// The bytes after all fields, which can hold attributes.
    pub(super) after_fields: &'a [u8],
}

impl<'a> RawInode<'a> {
    /// The offset of the low half of the checksum.
    pub(super) const CHECKSUM_LOW: usize = offset_of!(Base, checksum_low);
    /// The offset of the high half of the checksum.
    pub(super) const CHECKSUM_HIGH: usize = 0x82;

    /// Divides the bytes of an inode, at least [`BASE_BYTES`].
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Problem> {
        let bounds = || Problem::Bounds {
            what: "the inode",
            offset: 0,
            length: u64_of(BASE_BYTES),
            end: u64_of(bytes.len()),
        };
        let (base, rest) = Base::ref_from_prefix(bytes).map_err(|_| bounds())?;
        let extra_bytes = if rest.is_empty() {
            0
        } else {
            let field = "i_extra_isize";
            let found = usize::from(u16_at(rest, field, 0)?);
            if found > rest.len() || !found.is_multiple_of(4) {
                let most = u64_of(rest.len());
                return Err(Problem::Field {
                    field,
                    found: u64_of(found),
                    least: 0,
                    most,
                });
            }
            found
        };
        let (extra, after_fields) = rest.split_at(extra_bytes);
        Ok(Self {
            base,
            extra: Extra { bytes: extra },
            after_fields,
        })
    }
}

/// The fields after the base. A field exists only if it is complete.
pub(super) struct Extra<'a> {
    bytes: &'a [u8],
}

impl Extra<'_> {
    /// Returns the number at an offset from the start of the inode.
    fn at(&self, offset: usize) -> Option<u32> {
        u32_at(self.bytes, "field", offset.exact_sub(BASE_BYTES)).ok()
    }

    pub(super) fn checksum_high(&self) -> Option<u16> {
        u16_at(self.bytes, "field", RawInode::CHECKSUM_HIGH.exact_sub(BASE_BYTES)).ok()
    }

    pub(super) fn changed(&self) -> Option<u32> {
        self.at(0x84)
    }

    pub(super) fn modified(&self) -> Option<u32> {
        self.at(0x88)
    }

    pub(super) fn accessed(&self) -> Option<u32> {
        self.at(0x8c)
    }

    pub(super) fn created(&self) -> Option<u32> {
        self.at(0x90)
    }

    pub(super) fn created_extra(&self) -> Option<u32> {
        self.at(0x94)
    }

    pub(super) fn project(&self) -> Option<u32> {
        self.at(0x9c)
    }
}
