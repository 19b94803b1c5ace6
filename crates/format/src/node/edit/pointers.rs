//! Edits of nodes: the pointers to child blocks.

use super::super::TreeBlock;
use super::super::access::KeyPointer;
use super::super::header::{HEADER_BYTES, RawKeyPointer};
use super::shift::shift;
use crate::key::{Key, RawKey};
use core::ops::Range;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

/// Returns the maximum number of pointers of a node.
#[must_use]
pub const fn node_pointers_max(node_bytes: u32) -> usize {
    let room = (node_bytes as usize).saturating_sub(HEADER_BYTES);
    match room.checked_div(size_of::<RawKeyPointer>()) {
        Some(most) => most,
        None => 0,
    }
}

/// A node's bytes, lent for an edit; see the module's documentation.
#[derive(Debug)]
pub struct NodeEdit<'a> {
    bytes: &'a mut [u8],
    count: usize,
}

impl<'a> NodeEdit<'a> {
    pub(super) const fn new(bytes: &'a mut [u8], count: usize) -> Self {
        Self { bytes, count }
    }

    /// Returns the number of pointers.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Inserts a pointer before the one in `slot`. Returns false if the node has no space.
    pub fn insert(&mut self, slot: usize, pointer: &KeyPointer) -> bool {
        self.open(slot, 1).is_some() && self.set(slot, pointer)
    }

    /// Replaces the pointer in `slot`. Returns false if the slot does not exist.
    pub fn set(&mut self, slot: usize, pointer: &KeyPointer) -> bool {
        let raw = raw_of(pointer);
        self.pointers_mut()
            .get_mut(slot)
            .map(|place| *place = raw)
            .is_some()
    }

    /// Replaces the key of the pointer in `slot`. The caller keeps the keys in order. Returns false
    /// if the slot does not exist.
    pub fn set_key(&mut self, slot: usize, key: &Key) -> bool {
        self.pointers_mut()
            .get_mut(slot)
            .map(|place| place.key = RawKey::from(*key))
            .is_some()
    }

    /// Removes the pointers in `slots`. Returns false if a slot does not exist.
    pub fn remove(&mut self, slots: Range<usize>) -> bool {
        if slots.end > self.count || slots.start > slots.end {
            return false;
        }
        let (from, to) = (pointer_at(slots.end), pointer_at(slots.start));
        let after = pointer_at(self.count).saturating_sub(from);
        let moved = shift(self.bytes, from, to, after);
        if moved {
            self.count = self.count.saturating_sub(slots.len());
        }
        moved
    }

    /// Inserts copies of the pointers in `slots` of another node before the one in `slot`. Returns
    /// false if the pointers do not fit, or if a source slot does not exist.
    pub fn insert_from(&mut self, slot: usize, source: &TreeBlock, slots: Range<usize>) -> bool {
        let Some(pointers) = source.raw_pointers().get(slots) else {
            return false;
        };
        if self.open(slot, pointers.len()).is_none() {
            return false;
        }
        let places = self.pointers_mut().iter_mut().skip(slot);
        for (place, pointer) in places.zip(pointers) {
            *place = *pointer;
        }
        true
    }

    fn pointers_mut(&mut self) -> &mut [RawKeyPointer] {
        let body = self.bytes.get_mut(HEADER_BYTES..).unwrap_or_default();
        <[RawKeyPointer]>::mut_from_prefix_with_elems(body, self.count).map_or(&mut [], |(row, _)| row)
    }

    /// Makes space for `more` pointers before `slot`.
    fn open(&mut self, slot: usize, more: usize) -> Option<()> {
        let count = self.count.checked_add(more)?;
        if slot > self.count || pointer_at(count) > self.bytes.len() {
            return None;
        }
        let (from, to) = (pointer_at(slot), pointer_at(slot.checked_add(more)?));
        let after = pointer_at(self.count).checked_sub(from)?;
        shift(self.bytes, from, to, after).then_some(())?;
        self.count = count;
        Some(())
    }
}

/// Returns a pointer in its on-disk layout.
pub(super) fn raw_of(pointer: &KeyPointer) -> RawKeyPointer {
    RawKeyPointer {
        key: RawKey::from(pointer.key),
        blockptr: U64::new(pointer.logical.get()),
        generation: U64::new(pointer.generation.get()),
    }
}

/// Returns the offset in the block of the pointer in `slot`.
const fn pointer_at(slot: usize) -> usize {
    HEADER_BYTES.saturating_add(slot.saturating_mul(size_of::<RawKeyPointer>()))
}
