//! The bytes of a block as they are written.

use super::super::TreeBlock;
use super::super::header::{HEADER_BYTES, Header, HeaderFlags, RawItem, RawKeyPointer};
use super::header_mut;
use crate::checksum::{CHECKSUM_FIELD_BYTES, ChecksumType};
use crate::units::{Generation, Logical};
use bytes::Bytes;
use core::ops::Range;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

impl TreeBlock {
    /// The block as it is to be written at `logical`: its header, zeros where nothing is stored, its checksum.
    /// `child` gives, for each slot of a node, address and generation of the block below where they are not those
    /// in the bytes.
    #[must_use]
    pub fn seal(
        &self,
        logical: Logical,
        checksum_type: ChecksumType,
        child: impl Fn(usize) -> Option<(Logical, Generation)>,
    ) -> Self {
        let mut bytes = vec![0; self.bytes().len()];
        let sealed = self.seal_into(&mut bytes, logical, checksum_type, child);
        // There is room: the block's own size.
        let header = sealed.unwrap_or(*self.header());
        Self::new(Bytes::from(bytes), header)
    }

    /// The block whose bytes and header came from [`TreeBlock::seal_into`].
    #[must_use]
    pub const fn of_sealed(header: Header, bytes: Bytes) -> Self {
        Self { bytes, header }
    }

    /// As [`TreeBlock::seal`], into memory that is given; gives the header. `None`, and nothing useful in `place`, when that
    /// has not as many bytes as the block.
    pub fn seal_into(
        &self,
        place: &mut [u8],
        logical: Logical,
        checksum_type: ChecksumType,
        child: impl Fn(usize) -> Option<(Logical, Generation)>,
    ) -> Option<Header> {
        if place.len() != self.bytes().len() {
            return None;
        }
        place.copy_from_slice(self.bytes());
        self.seal_copy(place, logical, checksum_type, child)
    }

    /// As [`TreeBlock::seal_into`], in a copy of [`TreeBlock::bytes`].
    pub fn seal_copy(
        &self,
        place: &mut [u8],
        logical: Logical,
        checksum_type: ChecksumType,
        child: impl Fn(usize) -> Option<(Logical, Generation)>,
    ) -> Option<Header> {
        if place.len() != self.bytes().len() {
            return None;
        }
        if !self.is_leaf() {
            self.set_children(place, child);
        }
        if let Some(free) = place.get_mut(self.free_range()) {
            free.fill(0);
        }
        self.write_header(place, logical);
        let checksum = checksum_type.compute(place.get(CHECKSUM_FIELD_BYTES..).unwrap_or_default());
        if let Some(field) = place.get_mut(..CHECKSUM_FIELD_BYTES) {
            field.fill(0);
            if let Some(room) = field.get_mut(..checksum.as_bytes().len()) {
                room.copy_from_slice(checksum.as_bytes());
            }
        }
        Some(Header {
            checksum,
            logical,
            ..*self.header()
        })
    }

    fn set_children(&self, bytes: &mut [u8], child: impl Fn(usize) -> Option<(Logical, Generation)>) {
        let body = bytes.get_mut(HEADER_BYTES..).unwrap_or_default();
        let Ok((pointers, _)) = <[RawKeyPointer]>::mut_from_prefix_with_elems(body, self.item_count()) else {
            return;
        };
        for (slot, pointer) in pointers.iter_mut().enumerate() {
            if let Some((logical, generation)) = child(slot) {
                pointer.blockptr = U64::new(logical.get());
                pointer.generation = U64::new(generation.get());
            }
        }
    }

    /// Where nothing is stored.
    fn free_range(&self) -> Range<usize> {
        if self.is_leaf() {
            let heads = self.item_count().saturating_mul(size_of::<RawItem>());
            let start = HEADER_BYTES.saturating_add(heads);
            start..start.saturating_add(self.free_space())
        } else {
            let pointers = self.item_count().saturating_mul(size_of::<RawKeyPointer>());
            HEADER_BYTES.saturating_add(pointers)..self.bytes().len()
        }
    }

    fn write_header(&self, bytes: &mut [u8], logical: Logical) {
        let header = self.header();
        let Some(raw) = header_mut(bytes) else {
            return;
        };
        let flags = header.flags | HeaderFlags::WRITTEN;
        raw.fsid = header.fsid.into_bytes();
        raw.bytenr = U64::new(logical.get());
        for (place, byte) in raw.flags.iter_mut().zip(flags.bits().to_le_bytes()) {
            *place = byte;
        }
        raw.backref_revision = header.backref_revision;
        raw.chunk_tree_uuid = header.chunk_tree_uuid.into_bytes();
        raw.generation = U64::new(header.generation.get());
        raw.owner = U64::new(header.owner.get());
        raw.nritems = U32::new(header.item_count);
        raw.level = header.level;
    }
}
