//! Sealing: the bytes of a tree block in the form that is written to disk.

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
    /// Returns the block as it is to be written at `logical`: with its header, zeros in its free
    /// space, and its checksum. For each slot of a node, `child` may return an address and
    /// generation that replace those in the bytes.
    #[must_use]
    pub fn seal(
        &self,
        logical: Logical,
        checksum_type: ChecksumType,
        child: impl Fn(usize) -> Option<(Logical, Generation)>,
    ) -> Self {
        let mut bytes = vec![0; self.bytes().len()];
        let sealed = self.seal_into(&mut bytes, logical, checksum_type, child);
        // The header fits, because the memory has the block's own size.
        let header = sealed.unwrap_or(*self.header());
        Self::new(Bytes::from(bytes), header)
    }

    /// Makes a block of a header and the bytes that [`TreeBlock::seal_into`] returned.
    #[must_use]
    pub const fn of_sealed(header: Header, bytes: Bytes) -> Self {
        Self { bytes, header }
    }

    /// Seals the block like [`TreeBlock::seal`], but into `place`, and returns the header. If
    /// `place` does not have the block's size, returns `None` and leaves arbitrary bytes in
    /// `place`.
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

    /// Seals the block like [`TreeBlock::seal_into`], but in a copy of [`TreeBlock::bytes`].
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

    /// Returns the byte range of the block's free space.
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
