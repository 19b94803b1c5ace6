//! Access to a checked tree block: its items, its pointers, and searches.

use super::header::{HEADER_BYTES, Header, RawItem, RawKeyPointer};
use super::{DamagedBlock, TreeBlock};
use crate::key::{Key, RawKey};
use crate::units::{Generation, Logical};
use buttress_exact::usize_of;
use bytes::Bytes;
use core::ops::Range;
use zerocopy::FromBytes;

/// An item of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The item's key.
    pub key: Key,
    /// The offset of the item's data, in bytes from the end of the block's header.
    pub offset: u32,
    /// The item's data.
    pub data: &'a [u8],
}

/// A key pointer of a node to a child block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPointer {
    /// The first key of the child block that the pointer names.
    pub key: Key,
    /// The address of the child block.
    pub logical: Logical,
    /// The generation of the child block.
    pub generation: Generation,
}

impl TreeBlock {
    pub(super) fn new(bytes: Bytes, header: Header) -> Self {
        Self { bytes, header }
    }

    /// Limits the item count to the items that fit the block. Only a damaged block states a higher
    /// count.
    pub(super) fn within_bounds(mut self) -> Self {
        let count = if self.is_leaf() {
            self.raw_items().len()
        } else {
            self.raw_pointers().len()
        };
        self.header.item_count = u32::try_from(count).unwrap_or(self.header.item_count);
        self
    }

    /// Returns the block's header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the block's address.
    #[must_use]
    pub const fn logical(&self) -> Logical {
        self.header.logical
    }

    /// Returns the height above the leaves: 0 for a leaf.
    #[must_use]
    pub const fn level(&self) -> u8 {
        self.header.level
    }

    /// Returns true if the block is a leaf, which holds items. The tree block is a leaf if it holds
    /// items, and a node if it holds pointers.
    #[must_use]
    pub const fn is_leaf(&self) -> bool {
        self.header.level == 0
    }

    /// Returns the number of items or pointers in the block.
    #[must_use]
    pub fn item_count(&self) -> usize {
        usize_of(self.header.item_count)
    }

    /// Returns the bytes of the whole block.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns `data` as bytes that share the block's memory, if `data` is part of the block, such
    /// as an item's data. The result keeps the whole block in memory. Data outside the block is
    /// copied to new memory.
    #[must_use]
    pub fn shared(&self, data: &[u8]) -> Bytes {
        let start = data.as_ptr().addr().checked_sub(self.bytes.as_ptr().addr());
        let range = start.and_then(|start| Some(start..start.checked_add(data.len())?));
        match range.filter(|range| range.end <= self.bytes.len()) {
            Some(range) => self.bytes.slice(range),
            None => Bytes::copy_from_slice(data),
        }
    }

    /// Returns the heads of a leaf's items; empty for a node.
    pub(crate) fn raw_items(&self) -> &[RawItem] {
        if self.is_leaf() {
            row(&self.bytes, self.item_count())
        } else {
            &[]
        }
    }

    /// Returns the pointers of a node; empty for a leaf.
    pub(crate) fn raw_pointers(&self) -> &[RawKeyPointer] {
        if self.is_leaf() {
            &[]
        } else {
            row(&self.bytes, self.item_count())
        }
    }

    /// Returns the key of the item or pointer in `slot`.
    #[must_use]
    pub fn key(&self, slot: usize) -> Option<Key> {
        if self.is_leaf() {
            self.raw_items().get(slot).map(|raw| Key::from(raw.key))
        } else {
            self.raw_pointers().get(slot).map(|raw| Key::from(raw.key))
        }
    }

    /// Returns `Ok` with the first slot whose key is `key`.
    ///
    /// # Errors
    /// Returns the slot of the first key greater than `key`, or the item count if no key is
    /// greater.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        if self.is_leaf() {
            search(self.raw_items(), |raw| &raw.key, key)
        } else {
            search(self.raw_pointers(), |raw| &raw.key, key)
        }
    }

    /// Returns the item in `slot` of a leaf, or `None` for a node or beyond the end. For a damaged
    /// block, also returns `None` if the item's data is located outside the block.
    #[must_use]
    pub fn item(&self, slot: usize) -> Option<Item<'_>> {
        item_of(&self.bytes, self.raw_items().get(slot)?)
    }

    /// Returns the range of [`TreeBlock::bytes`] that holds the data of the item in `slot`.
    #[must_use]
    pub fn item_range(&self, slot: usize) -> Option<Range<usize>> {
        let range = data_range(self.raw_items().get(slot)?)?;
        (range.end <= self.bytes.len()).then_some(range)
    }

    /// Returns the pointer in `slot` of a node, or `None` for a leaf or beyond the end.
    #[must_use]
    pub fn pointer(&self, slot: usize) -> Option<KeyPointer> {
        self.raw_pointers().get(slot).map(pointer_of)
    }

    /// Returns all items of a leaf in order; none for a node.
    #[must_use]
    pub fn items(&self) -> Items<'_> {
        Items {
            bytes: &self.bytes,
            heads: self.raw_items().iter(),
        }
    }

    /// Returns the keys of all items of a leaf in order; none for a node.
    pub fn item_keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.raw_items().iter().map(|raw| Key::from(raw.key))
    }

    /// Returns all pointers of a node in order; none for a leaf.
    #[must_use]
    pub fn pointers(&self) -> Pointers<'_> {
        Pointers {
            heads: self.raw_pointers().iter(),
        }
    }

    /// Returns the free space as btrfs-progs prints it. For a leaf, the free space is the bytes
    /// between item heads and item data. For a node, the free space is "free spc", the number of
    /// pointers that still fit. Returns zero for a damaged block whose numbers are invalid.
    #[must_use]
    pub fn free_space(&self) -> usize {
        let room = self.bytes.len().saturating_sub(HEADER_BYTES);
        if self.is_leaf() {
            let heads = self.item_count().saturating_mul(size_of::<RawItem>());
            let data_start = match self.raw_items().last() {
                Some(last) => usize_of(last.offset.get()),
                None => room,
            };
            data_start.saturating_sub(heads)
        } else {
            let most = room.checked_div(size_of::<RawKeyPointer>()).unwrap_or(0);
            most.saturating_sub(self.item_count())
        }
    }
}

impl DamagedBlock {
    /// Returns true if the block passed every check.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.failures.is_empty()
    }
}

/// The iterator that [`TreeBlock::items`] returns. In a damaged block, it skips items whose data
/// lies outside the block.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    bytes: &'a [u8],
    heads: core::slice::Iter<'a, RawItem>,
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        self.heads.by_ref().find_map(|raw| item_of(self.bytes, raw))
    }
}

/// The iterator that [`TreeBlock::pointers`] returns.
#[derive(Clone, Debug)]
pub struct Pointers<'a> {
    heads: core::slice::Iter<'a, RawKeyPointer>,
}

impl Iterator for Pointers<'_> {
    type Item = KeyPointer;

    fn next(&mut self) -> Option<KeyPointer> {
        self.heads.next().map(pointer_of)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.heads.size_hint()
    }
}

impl ExactSizeIterator for Pointers<'_> {}

/// Searches an array of raw structs by key. The comparison compiles without branches: a
/// mispredicted branch would cost more than the rest of the search.
fn search<Raw>(row: &[Raw], key_of: impl Fn(&Raw) -> &RawKey, key: &Key) -> Result<usize, usize> {
    let rest = |item_type: u8, offset: u64| (u128::from(item_type) << u64::BITS) | u128::from(offset);
    let (objectid, wanted) = (key.objectid.get(), rest(key.item_type.0, key.offset));
    let slot = row.partition_point(|raw| {
        let raw = key_of(raw);
        let own = raw.objectid.get();
        (own < objectid) | ((own == objectid) & (rest(raw.item_type, raw.offset.get()) < wanted))
    });
    match row.get(slot) {
        Some(raw) if Key::from(*key_of(raw)) == *key => Ok(slot),
        _ => Err(slot),
    }
}

/// Returns the array of `count` raw structs after the header of `block`. The returned array is
/// shorter if the block ends first.
pub(super) fn row<Raw>(block: &[u8], count: usize) -> &[Raw]
where
    Raw: FromBytes + zerocopy::Immutable + zerocopy::Unaligned,
{
    let body = block.get(HEADER_BYTES..).unwrap_or_default();
    let most = body.len().checked_div(size_of::<Raw>()).unwrap_or(0);
    <[Raw]>::ref_from_prefix_with_elems(body, count.min(most)).map_or(&[], |(row, _)| row)
}

/// Returns the range that the head names for its item's data, without a check that the block holds
/// it.
pub(crate) fn data_range(raw: &RawItem) -> Option<Range<usize>> {
    let start = HEADER_BYTES.checked_add(usize::try_from(raw.offset.get()).ok()?)?;
    let end = start.checked_add(usize::try_from(raw.size.get()).ok()?)?;
    Some(start..end)
}

fn item_of<'a>(block: &'a [u8], raw: &RawItem) -> Option<Item<'a>> {
    let data = block.get(data_range(raw)?)?;
    Some(Item {
        key: Key::from(raw.key),
        offset: raw.offset.get(),
        data,
    })
}

fn pointer_of(raw: &RawKeyPointer) -> KeyPointer {
    KeyPointer {
        key: Key::from(raw.key),
        logical: Logical::new(raw.blockptr.get()),
        generation: Generation::new(raw.generation.get()),
    }
}
