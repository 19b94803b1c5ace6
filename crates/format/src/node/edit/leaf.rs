//! Edits of leaves: items with their heads and data.

use super::super::TreeBlock;
use super::super::access::{data_range, row};
use super::super::header::{HEADER_BYTES, RawItem};
use super::shift::shift;
use crate::key::{Key, RawKey};
use core::ops::Range;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// The bytes that an item takes in a leaf in addition to its data.
pub const ITEM_HEAD_BYTES: usize = size_of::<RawItem>();

/// Returns the maximum length of an item's data, for an item that fills its leaf alone.
#[must_use]
pub const fn leaf_data_bytes_max(node_bytes: u32) -> usize {
    (node_bytes as usize).saturating_sub(HEADER_BYTES + ITEM_HEAD_BYTES)
}

/// A leaf's bytes, lent for an edit; see the module's documentation.
#[derive(Debug)]
pub struct LeafEdit<'a> {
    bytes: &'a mut [u8],
    count: usize,
}

impl<'a> LeafEdit<'a> {
    pub(super) const fn new(bytes: &'a mut [u8], count: usize) -> Self {
        Self { bytes, count }
    }

    /// Returns the number of items.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes between the heads and the data.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.data_start().saturating_sub(self.heads_end())
    }

    /// Returns the data of the item in `slot` for a change.
    pub fn data_mut(&mut self, slot: usize) -> Option<&mut [u8]> {
        let range = data_range(self.heads().get(slot)?)?;
        self.bytes.get_mut(range)
    }

    /// Inserts an item before the one in `slot`, and returns its data for the caller to fill.
    /// Returns `None` if a head and `size_bytes` of data do not fit.
    pub fn insert(&mut self, slot: usize, key: &Key, size_bytes: usize) -> Option<&mut [u8]> {
        let needed = size_bytes.checked_add(ITEM_HEAD_BYTES)?;
        if slot > self.count || needed > self.free_bytes() {
            return None;
        }
        let data_end = self.data_end(slot)?;
        self.move_data(slot, data_end.checked_sub(size_bytes)?, data_end)?;
        self.open_heads(slot, 1)?;
        let start = data_end.checked_sub(size_bytes)?;
        let head = RawItem {
            key: RawKey::from(*key),
            offset: offset_of(start)?,
            size: U32::new(u32::try_from(size_bytes).ok()?),
        };
        *self.heads_mut().get_mut(slot)? = head;
        self.bytes.get_mut(start..data_end)
    }

    /// Inserts items in key order before the one in `slot`, with one move. Inserts as many items as
    /// fit, from the first item on. Returns the number of inserted items.
    pub fn insert_run(&mut self, slot: usize, items: &[(Key, &[u8])]) -> usize {
        let mut free = self.free_bytes();
        let fitting = items
            .iter()
            .map_while(|(_, data)| {
                free = free.checked_sub(data.len().checked_add(ITEM_HEAD_BYTES)?)?;
                Some(())
            })
            .count();
        let items = items.get(..fitting).unwrap_or_default();
        if slot > self.count || items.is_empty() {
            return 0;
        }
        self.insert_run_checked(slot, items).map_or(0, |()| fitting)
    }

    fn insert_run_checked(&mut self, slot: usize, items: &[(Key, &[u8])]) -> Option<()> {
        let sizes = items.iter().map(|(_, data)| data.len());
        let data_end = self.data_end(slot)?;
        let start = data_end.checked_sub(sizes.sum())?;
        self.move_data(slot, start, data_end)?;
        self.open_heads(slot, items.len())?;
        let mut rest = self.bytes.get_mut(start..data_end)?;
        for (_, data) in items {
            let (before, place) = rest.split_at_mut_checked(rest.len().checked_sub(data.len())?)?;
            place.copy_from_slice(data);
            rest = before;
        }
        let heads = self.heads_mut().get_mut(slot..)?;
        let mut at = data_end;
        for (head, (key, data)) in heads.iter_mut().zip(items) {
            at = at.checked_sub(data.len())?;
            *head = RawItem {
                key: RawKey::from(*key),
                offset: offset_of(at)?,
                size: U32::new(u32::try_from(data.len()).ok()?),
            };
        }
        Some(())
    }

    /// Removes the items in `slots`. Returns false if a slot does not exist.
    pub fn remove(&mut self, slots: Range<usize>) -> bool {
        if slots.end > self.count || slots.start > slots.end {
            return false;
        }
        self.remove_checked(slots).is_some()
    }

    fn remove_checked(&mut self, slots: Range<usize>) -> Option<()> {
        let data_end = self.data_end(slots.start)?;
        let data_start = self.data_end(slots.end)?;
        self.move_data(slots.end, data_end, data_start)?;
        let (from, to) = (head_at(slots.end), head_at(slots.start));
        let after = self.heads_end().checked_sub(from)?;
        shift(self.bytes, from, to, after).then_some(())?;
        self.count = self.count.checked_sub(slots.len())?;
        Some(())
    }

    /// Changes the length of the data of the item in `slot`. Resizing keeps the beginning of the
    /// data, and added bytes are zero. Returns false if the leaf has no space or no such item.
    pub fn resize(&mut self, slot: usize, size_bytes: usize) -> bool {
        self.resize_checked(slot, size_bytes, true).is_some()
    }

    /// Changes the length like [`LeafEdit::resize`], but at the front of the data, which keeps its
    /// end.
    pub fn resize_front(&mut self, slot: usize, size_bytes: usize) -> bool {
        self.resize_checked(slot, size_bytes, false).is_some()
    }

    fn resize_checked(&mut self, slot: usize, size_bytes: usize, keep_beginning: bool) -> Option<()> {
        let old = data_range(self.heads().get(slot)?)?;
        let more = size_bytes.saturating_sub(old.len());
        if more > self.free_bytes() {
            return None;
        }
        let size = U32::new(u32::try_from(size_bytes).ok()?);
        let new_start = old.end.checked_sub(size_bytes)?;
        let kept = old.len().min(size_bytes);
        let next = slot.checked_add(1)?;
        // Item data that shrinks moves before its neighbours move. Data that grows moves after its
        // neighbours have moved.
        if more == 0 {
            if keep_beginning {
                shift(self.bytes, old.start, new_start, kept).then_some(())?;
            }
            self.move_data(next, new_start, old.start)?;
        } else {
            self.move_data(next, new_start, old.start)?;
            let fresh = if keep_beginning {
                shift(self.bytes, old.start, new_start, kept).then_some(())?;
                new_start.checked_add(kept)?..old.end
            } else {
                new_start..old.start
            };
            self.bytes.get_mut(fresh)?.fill(0);
        }
        let head = self.heads_mut().get_mut(slot)?;
        head.offset = offset_of(new_start)?;
        head.size = size;
        Some(())
    }

    /// Replaces the key of the item in `slot`. The caller keeps the keys in order. Returns false if
    /// the slot does not exist.
    pub fn set_key(&mut self, slot: usize, key: &Key) -> bool {
        self.heads_mut()
            .get_mut(slot)
            .map(|head| head.key = RawKey::from(*key))
            .is_some()
    }

    /// Inserts copies of the items in `slots` of another leaf before the one in `slot`, with one
    /// move. Returns false if the items do not fit, or if a source slot does not exist.
    pub fn insert_from(&mut self, slot: usize, source: &TreeBlock, slots: Range<usize>) -> bool {
        if slots.end > source.item_count() || slots.start > slots.end || slot > self.count {
            return false;
        }
        slots.is_empty() || self.insert_from_checked(slot, source, slots).is_some()
    }

    fn insert_from_checked(&mut self, slot: usize, source: &TreeBlock, slots: Range<usize>) -> Option<()> {
        let data = data_of_slots(source, &slots)?;
        let heads = source.raw_items().get(slots.clone())?;
        let heads_bytes = slots.len().checked_mul(ITEM_HEAD_BYTES)?;
        if heads_bytes.checked_add(data.len())? > self.free_bytes() {
            return None;
        }
        let data_end = self.data_end(slot)?;
        let start = data_end.checked_sub(data.len())?;
        self.move_data(slot, start, data_end)?;
        self.open_heads(slot, slots.len())?;
        self.bytes
            .get_mut(start..data_end)?
            .copy_from_slice(source.bytes().get(data.clone())?);
        let end = slot.checked_add(slots.len())?;
        for (new, old) in self.heads_mut().get_mut(slot..end)?.iter_mut().zip(heads) {
            *new = *old;
        }
        self.add_to_offsets(slot..end, start, data.start)
    }

    /// Returns the item heads.
    fn heads(&self) -> &[RawItem] {
        row(self.bytes, self.count)
    }

    fn heads_mut(&mut self) -> &mut [RawItem] {
        let body = self.bytes.get_mut(HEADER_BYTES..).unwrap_or_default();
        <[RawItem]>::mut_from_prefix_with_elems(body, self.count).map_or(&mut [], |(row, _)| row)
    }

    fn heads_end(&self) -> usize {
        head_at(self.count)
    }

    /// Returns the offset in the block at which the data of the last item begins. The data of all
    /// items ends above this offset.
    fn data_start(&self) -> usize {
        self.data_end(self.count).unwrap_or(0)
    }

    /// Returns the offset in the block at which the data of an item in `slot` ends, or would end.
    fn data_end(&self, slot: usize) -> Option<usize> {
        match slot.checked_sub(1) {
            None => Some(self.bytes.len()),
            Some(before) => Some(data_range(self.heads().get(before)?)?.start),
        }
    }

    /// Moves the data of all items from `slot` on. The data ends at `end` before the move and at
    /// `new_end` after the move.
    fn move_data(&mut self, slot: usize, new_end: usize, end: usize) -> Option<()> {
        if slot >= self.count || new_end == end {
            return Some(());
        }
        let start = self.data_start();
        let length = end.checked_sub(start)?;
        let new_start = new_end.checked_sub(length)?;
        shift(self.bytes, start, new_start, length).then_some(())?;
        self.add_to_offsets(slot..self.count, new_end, end)
    }

    /// Adds `plus - minus` to the offsets of the items in `slots`.
    fn add_to_offsets(&mut self, slots: Range<usize>, plus: usize, minus: usize) -> Option<()> {
        let change = u32::try_from(plus).ok()?.wrapping_sub(u32::try_from(minus).ok()?);
        for head in self.heads_mut().get_mut(slots)? {
            head.offset.set(head.offset.get().wrapping_add(change));
        }
        Some(())
    }

    /// Makes space for `more` heads before `slot`.
    fn open_heads(&mut self, slot: usize, more: usize) -> Option<()> {
        let (from, to) = (head_at(slot), head_at(slot.checked_add(more)?));
        let after = self.heads_end().checked_sub(from)?;
        shift(self.bytes, from, to, after).then_some(())?;
        self.count = self.count.checked_add(more)?;
        Some(())
    }
}

impl TreeBlock {
    /// Returns the bytes that the items in `slots` of a leaf take, including heads. Returns zero if
    /// a slot does not exist.
    #[must_use]
    pub fn items_bytes(&self, slots: Range<usize>) -> usize {
        data_of_slots(self, &slots).map_or(0, |data| {
            data.len()
                .saturating_add(slots.len().saturating_mul(ITEM_HEAD_BYTES))
        })
    }
}

/// Returns the contiguous range of the block that holds the data of the items in `slots`.
fn data_of_slots(block: &TreeBlock, slots: &Range<usize>) -> Option<Range<usize>> {
    let heads = block.raw_items().get(slots.clone())?;
    match (heads.first(), heads.last()) {
        (Some(first), Some(last)) => Some(data_range(last)?.start..data_range(first)?.end),
        _ => Some(0..0),
    }
}

/// Returns the offset in the block of the head of the item in `slot`.
const fn head_at(slot: usize) -> usize {
    HEADER_BYTES.saturating_add(slot.saturating_mul(ITEM_HEAD_BYTES))
}

/// Converts an offset in the block to the form that item headers store.
fn offset_of(at: usize) -> Option<U32> {
    Some(U32::new(u32::try_from(at.checked_sub(HEADER_BYTES)?).ok()?))
}
