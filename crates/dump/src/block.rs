//! Raw fields of tree blocks, read without trust: damaged blocks are dumped, too.
//!
//! Source: on-disk format documentation, sections "Header", "Leaf", "Node" and "Root item".

use crate::cluster::bytes_at;
use crate::error::{Error, Result};
use buttress_exact::Exact as _;
use buttress_format::{ChecksumType, ItemType, Key, TreeId, Uuid};

/// The length of a header, after which item heads or pointers follow.
pub(crate) const HEADER_BYTES: usize = 101;
/// The length of the head of an item in a leaf.
pub(crate) const HEAD_BYTES: usize = 25;
/// The length of a pointer in a node.
pub(crate) const POINTER_BYTES: usize = 33;
/// The length of the field of the checksum.
pub(crate) const CHECKSUM_BYTES: usize = 32;

/// The highest level of a root.
pub(crate) const LEVEL_MAX: u8 = 7;

/// An item of a leaf: its key, and the range of its data in the block.
#[derive(Clone, Debug)]
pub(crate) struct RawItem {
    pub(crate) key: Key,
    pub(crate) range: core::ops::Range<usize>,
}

fn number(block: &[u8], at: usize) -> Option<u64> {
    bytes_at(block, at).map(u64::from_le_bytes)
}

fn short(block: &[u8], at: usize) -> Option<usize> {
    bytes_at(block, at).map(u32::from_le_bytes)?.try_into().ok()
}

/// Returns the logical address in the header.
pub(crate) fn address(block: &[u8]) -> Option<u64> {
    number(block, 48)
}

/// Returns the uuid of the volume in the header.
pub(crate) fn fsid(block: &[u8]) -> Option<Uuid> {
    bytes_at(block, 32).map(Uuid::from_bytes)
}

/// Returns the tree in the header.
pub(crate) fn owner(block: &[u8]) -> Option<TreeId> {
    number(block, 88).map(TreeId::new)
}

/// Returns the level in the header.
pub(crate) fn level(block: &[u8]) -> Option<u8> {
    block.get(100).copied()
}

/// Returns the key at `at`.
pub(crate) fn key(block: &[u8], at: usize) -> Option<Key> {
    let objectid = buttress_format::ObjectId::new(number(block, at)?);
    let item_type = ItemType(*block.get(at.exact_add(8))?);
    Some(Key::new(objectid, item_type, number(block, at.exact_add(9))?))
}

/// The head of an item in a leaf.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The place of the head in the block.
    pub(crate) at: usize,
    /// The item, if its data is inside the block.
    pub(crate) item: Option<RawItem>,
}

/// Returns the places of heads or pointers of `size` bytes. The count in the header is limited by
/// the block's length.
fn places(block: &[u8], size: usize) -> impl Iterator<Item = usize> + use<> {
    // Clamp: a block without a count has no items.
    let count = short(block, 96).unwrap_or(0);
    let room = block.len().saturating_sub(HEADER_BYTES); // Clamp: a short block has no items.
    let most = room.checked_div(size).map_or(0, |most| most.min(count));
    (0..most).map(move |number| HEADER_BYTES.exact_add(number.exact_mul(size)))
}

/// Returns the heads of a leaf.
pub(crate) fn heads(block: &[u8]) -> Vec<Head> {
    let item = |at: usize| {
        let start = HEADER_BYTES.checked_add(short(block, at.exact_add(17))?)?;
        let end = start.checked_add(short(block, at.exact_add(21))?)?;
        let key = key(block, at)?;
        (end <= block.len()).then_some(RawItem {
            key,
            range: start..end,
        })
    };
    let heads = places(block, HEAD_BYTES).map(|at| Head { at, item: item(at) });
    heads.collect()
}

/// Returns the items of a leaf that are inside the block.
pub(crate) fn items(block: &[u8]) -> impl Iterator<Item = RawItem> {
    heads(block).into_iter().filter_map(|head| head.item)
}

/// A pointer of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawPointer {
    /// The place of the pointer in the block.
    pub(crate) at: usize,
    pub(crate) key: Key,
    pub(crate) address: u64,
    pub(crate) generation: u64,
}

/// Returns the pointers of a node.
pub(crate) fn pointers(block: &[u8]) -> Vec<RawPointer> {
    let pointer = |at: usize| {
        Some(RawPointer {
            at,
            key: key(block, at)?,
            address: number(block, at.exact_add(17))?,
            generation: number(block, at.exact_add(25))?,
        })
    };
    places(block, POINTER_BYTES).filter_map(pointer).collect()
}

/// Returns the addresses of a node's children.
pub(crate) fn children(block: &[u8]) -> impl Iterator<Item = u64> {
    pointers(block).into_iter().map(|pointer| pointer.address)
}

/// Changes the key of the head or pointer at `at`.
pub(crate) fn set_key(block: &mut [u8], at: usize, key: &Key) {
    if let Some(place) = block.get_mut(at..at.exact_add(8)) {
        place.copy_from_slice(&key.objectid.get().to_le_bytes());
    }
    if let Some(place) = block.get_mut(at.exact_add(8)) {
        *place = key.item_type.0;
    }
    set_key_offset(block, at, key.offset);
}

/// Changes the offset in the key of the head or pointer at `at`.
pub(crate) fn set_key_offset(block: &mut [u8], at: usize, offset: u64) {
    let place = at.exact_add(9)..at.exact_add(17);
    if let Some(place) = block.get_mut(place) {
        place.copy_from_slice(&offset.to_le_bytes());
    }
}

/// Returns address and level of the root that a `ROOT_ITEM` names.
pub(crate) fn root_of(data: &[u8]) -> Option<(u64, u8)> {
    let level = *data.get(238)?;
    (level <= LEVEL_MAX).then_some((number(data, 176)?, level))
}

/// Returns whether the checksum of a block is right.
pub(crate) fn is_whole(block: &[u8], checksum: ChecksumType) -> bool {
    let Some((stored, covered)) = block.split_at_checked(CHECKSUM_BYTES) else {
        return false;
    };
    stored.starts_with(trimmed(checksum, checksum.compute(covered).as_bytes()))
}

/// Computes the checksum of a changed block.
pub(crate) fn seal(block: &mut [u8], checksum: ChecksumType) {
    let Some((stored, covered)) = block.split_at_mut_checked(CHECKSUM_BYTES) else {
        return;
    };
    let computed = checksum.compute(covered);
    let bytes = trimmed(checksum, computed.as_bytes());
    stored.fill(0);
    if let Some(place) = stored.get_mut(..bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn trimmed(checksum: ChecksumType, bytes: &[u8]) -> &[u8] {
    // Clamp: a checksum has at least its own length.
    bytes.get(..checksum.size_bytes()).unwrap_or(bytes)
}

/// Writes items into a leaf: heads behind the header, data from the end.
pub(crate) fn repack(leaf: &mut [u8], items: &[(Key, Vec<u8>)]) -> Result<()> {
    let full = || Error::Unusable {
        what: "the items of a leaf do not fit into the leaf",
        logical: 0,
    };
    let (header, body) = leaf.split_at_mut_checked(HEADER_BYTES).ok_or_else(full)?;
    body.fill(0);
    let count: u32 = items.len().narrow();
    if let Some(place) = header.get_mut(96..100) {
        place.copy_from_slice(&count.to_le_bytes());
    }
    let mut end = body.len();
    for (number, (key, data)) in items.iter().enumerate() {
        let start = end.checked_sub(data.len()).ok_or_else(full)?;
        let at = number.exact_mul(HEAD_BYTES);
        if at.exact_add(HEAD_BYTES) > start {
            return Err(full());
        }
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend_from_slice(&key.objectid.get().to_le_bytes());
        head.push(key.item_type.0);
        head.extend_from_slice(&key.offset.to_le_bytes());
        head.extend_from_slice(&start.narrow::<u32>().to_le_bytes());
        head.extend_from_slice(&data.len().narrow::<u32>().to_le_bytes());
        let places = [(at, head.as_slice()), (start, data.as_slice())];
        for (at, bytes) in places {
            let place = body.get_mut(at..at.exact_add(bytes.len()));
            place.ok_or_else(full)?.copy_from_slice(bytes);
        }
        end = start;
    }
    Ok(())
}

/// Zeroes what no reader of metadata needs, and computes the checksum again: the inline content of
/// files and symbolic links, and unused bytes, which may hold anything. Damaged blocks keep their
/// checksum and unused bytes. `keeps` says whether the inline content of an inode stays.
pub(crate) fn blank(block: &mut [u8], checksum: ChecksumType, keeps: &dyn Fn(u64) -> bool) {
    let was_whole = is_whole(block, checksum);
    blank_inline_content(block, keeps);
    if was_whole {
        if let Some(unused) = unused(block).and_then(|range| block.get_mut(range)) {
            unused.fill(0);
        }
        seal(block, checksum);
    }
}

/// Returns the unused bytes of a block whose items or pointers are all inside the block.
fn unused(block: &[u8]) -> Option<core::ops::Range<usize>> {
    let count = short(block, 96)?;
    if level(block)? > 0 {
        let end = count.checked_mul(POINTER_BYTES)?.checked_add(HEADER_BYTES)?;
        return (end <= block.len()).then_some(end..block.len());
    }
    let items: Vec<RawItem> = items(block).collect();
    let heads_end = count.checked_mul(HEAD_BYTES)?.checked_add(HEADER_BYTES)?;
    let first = items.iter().map(|item| item.range.start).min();
    // Clamp: a leaf without items has no data.
    let first = first.unwrap_or(block.len());
    (items.len() == count && heads_end <= first).then_some(heads_end..first)
}

fn blank_inline_content(block: &mut [u8], keeps: &dyn Fn(u64) -> bool) {
    /// The bytes of a file extent item before inline content, and the place of its kind.
    const BEFORE_CONTENT: usize = 21;
    const KIND_AT: usize = 20;
    if level(block) != Some(0) {
        return;
    }
    let is_inline = |item: &RawItem| {
        let kind = item.range.start.checked_add(KIND_AT);
        item.key.item_type == ItemType::EXTENT_DATA
            && item.range.len() > BEFORE_CONTENT
            && kind.and_then(|at| block.get(at)) == Some(&0)
            && !keeps(item.key.objectid.get())
    };
    let found: Vec<RawItem> = items(block).filter(is_inline).collect();
    for item in &found {
        let start = item.range.start.exact_add(BEFORE_CONTENT);
        if let Some(content) = block.get_mut(start..item.range.end) {
            content.fill(0);
        }
    }
}
