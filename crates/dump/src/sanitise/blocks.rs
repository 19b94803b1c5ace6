//! Sanitised tree blocks.
//!
//! A block that passes the tree checker is packed again from its sanitised items, so its unused bytes
//! are zeros. A leaf in which only items fail their checks is treated in the same way. Of another
//! damaged block, only parts of which the meaning is known stay: the header, heads of items inside the
//! block, and data that overlaps nothing. A right checksum is computed again, and a wrong checksum
//! stays.
//!
//! A wrong checksum may mean a torn write: the data under a head is then of another version or of
//! another tree. An item of such a block stays only if its type has many checks and it passes them.
//!
//! Clamps: ranges are inside the block or item, by the functions that found them; a start past the
//! end of damaged data leaves nothing to zero.

use super::items::{self, Kept};
use super::{Names, items::NamePlaces};
use crate::block::{self, HEAD_BYTES, HEADER_BYTES, POINTER_BYTES, RawItem};
use buttress_exact::Exact as _;
use buttress_format::node::{BlockProblem, DamagedBlock};
use buttress_format::{BlockError, BlockFormat, Expectation, ItemType, Key, Logical, TreeBlock, TreeId};
use bytes::Bytes;

/// The checks of an item.
struct Checked<'a> {
    /// Whether the block's checksum is right, so that heads and data belong together.
    is_whole: bool,
    /// Returns whether the format allows the data.
    is_valid: &'a dyn Fn(&[u8]) -> bool,
}

impl Names {
    /// Sanitises a block.
    pub(super) fn sanitise_block(&self, block: &mut [u8], format: &BlockFormat, keeps: &dyn Fn(u64) -> bool) {
        let is_whole = block::is_whole(block, format.checksum_type);
        let state = match is_whole {
            true => state(block, format),
            false => State::Damaged,
        };
        match block::level(block) {
            Some(0) if state != State::Damaged => self.ordered_leaf(block, state, format, keeps),
            Some(0) => self.damaged_leaf(block, is_whole, format),
            Some(1..=block::LEVEL_MAX) => self.node(block, is_whole, state, format),
            _ => zero_from(block, HEADER_BYTES),
        }
        if is_whole {
            block::seal(block, format.checksum_type);
        } else {
            let unused = format.checksum_type.size_bytes()..block::CHECKSUM_BYTES;
            block.get_mut(unused).unwrap_or_default().fill(0);
        }
    }

    /// Sanitises a leaf whose items are in order and do not overlap.
    fn ordered_leaf(
        &self,
        block: &mut [u8],
        state: State,
        format: &BlockFormat,
        keeps: &dyn Fn(u64) -> bool,
    ) {
        let owner = block::owner(block);
        let changed = |item: RawItem| {
            let mut data = block.get(item.range)?.to_vec();
            let is_valid =
                |data: &[u8]| state == State::Valid || is_valid_item(block, &item.key, data, format);
            let is_kept = item.key.item_type == ItemType::EXTENT_DATA
                && keeps(item.key.objectid.get())
                && is_valid(&data);
            if !is_kept {
                let checked = Checked {
                    is_whole: true,
                    is_valid: &is_valid,
                };
                self.sanitise_item(owner, &item.key, &mut data, &checked);
            }
            // Clamp: an item whose key stays has no other key.
            Some((self.replacements.key(&item.key).unwrap_or(item.key), data))
        };
        let mut items: Vec<(Key, Vec<u8>)> = block::items(block).filter_map(changed).collect();
        items.sort_by_key(|(key, _)| *key);
        if block::repack(block, &items).is_err() {
            debug_assert!(false, "sizes of items do not change");
            self.damaged_leaf(block, true, format);
        }
    }

    fn damaged_leaf(&self, block: &mut [u8], is_whole: bool, format: &BlockFormat) {
        let old = block.to_vec();
        let owner = block::owner(&old);
        let heads = block::heads(&old);
        let heads_end = heads
            .last()
            .map_or(HEADER_BYTES, |head| head.at.exact_add(HEAD_BYTES));
        let inside: Vec<&RawItem> = heads.iter().filter_map(|head| head.item.as_ref()).collect();
        let first = inside.iter().map(|item| item.range.start).min();
        let are_apart = first.is_none_or(|first| heads_end <= first);
        let is_alone = |item: &RawItem| {
            let overlaps =
                |other: &&&RawItem| other.range.start < item.range.end && item.range.start < other.range.end;
            heads_end <= item.range.start
                && (item.range.is_empty() || inside.iter().filter(overlaps).count() == 1)
        };
        zero_from(block, HEADER_BYTES);
        for head in &heads {
            let item = head.item.as_ref().filter(|item| is_alone(item));
            let is_plausible = item.is_some_and(|item| item.key.item_type.name().is_some());
            if is_plausible || (is_whole && are_apart) {
                copy(block, head.at, old.get(head.at..head.at.exact_add(HEAD_BYTES)));
                if let Some(key) = item.and_then(|item| self.replacements.key(&item.key)) {
                    block::set_key_offset(block, head.at, key.offset);
                }
            }
            let Some((item, data)) = item.and_then(|item| Some((item, old.get(item.range.clone())?))) else {
                continue;
            };
            let mut data = data.to_vec();
            let checked = Checked {
                is_whole,
                is_valid: &|data| is_valid_item(&old, &item.key, data, format),
            };
            self.sanitise_item(owner, &item.key, &mut data, &checked);
            copy(block, item.range.start, Some(&data));
        }
    }

    /// Sanitises a node. Of pointers that nothing explains, only the first stays in a damaged node with a
    /// right checksum: if the level is wrong, the pointers are heads and data of items.
    fn node(&self, block: &mut [u8], is_whole: bool, state: State, format: &BlockFormat) {
        let mut keeps_implausible = is_whole;
        let places = block::pointers(block);
        let end = places
            .last()
            .map_or(HEADER_BYTES, |last| last.at.exact_add(POINTER_BYTES));
        for pointer in places {
            let sector_bytes = u64::from(format.sector_bytes);
            let is_plausible = pointer.address.checked_rem(sector_bytes) == Some(0)
                && pointer.generation <= format.generation_limit().get();
            let stays = is_plausible || keeps_implausible;
            keeps_implausible &= is_plausible || state == State::Valid;
            if !stays {
                let place = pointer.at..pointer.at.exact_add(POINTER_BYTES);
                block.get_mut(place).unwrap_or_default().fill(0);
            } else if let Some(key) = self.replacements.key(&pointer.key) {
                block::set_key_offset(block, pointer.at, key.offset);
            }
        }
        zero_from(block, end);
    }

    /// Sanitises the data of an item.
    fn sanitise_item(&self, owner: Option<TreeId>, key: &Key, data: &mut [u8], checked: &Checked<'_>) {
        let is_valid = checked.is_valid;
        let names = items::names(key, data);
        let is_certain = checked.is_whole
            || ((names.is_some() || items::has_strict_checks(key.item_type)) && is_valid(data));
        if !is_certain {
            return zero_from(data, 0);
        }
        if let Some(names) = names {
            return self.sanitise_names(owner, key, data, &names);
        }
        let kept = match items::kept(key, data) {
            Kept::Valid if is_valid(data) => data.len(),
            Kept::Valid => 0,
            Kept::First(bytes) => bytes,
            Kept::FirstOfInvalid(bytes) => {
                data.get_mut(bytes..).unwrap_or_default().fill(u8::MAX);
                data.len()
            }
        };
        zero_from(data, kept);
        self.sanitise_copied_key(key, data);
        let unchecked = match checked.is_whole {
            true => &[],
            false => items::unchecked_fields(key),
        };
        for field in items::unused_fields(key).iter().chain(unchecked) {
            data.get_mut(field.clone()).unwrap_or_default().fill(0);
        }
    }

    /// Changes a key that is a copy of another item's key. A hash of an old short name is the name.
    fn sanitise_copied_key(&self, key: &Key, data: &mut [u8]) {
        let Some(at) = items::copied_key(key, data) else {
            return;
        };
        let Some(copied) = block::key(data, at) else {
            return;
        };
        if let Some(new) = self.replacements.key(&copied) {
            block::set_key_offset(data, at, new.offset);
        } else if key.item_type == ItemType::EXTENT_ITEM && items::is_hashed(copied.item_type) {
            // Linux reads the block for its key. The progress of a deletion has readers, and stays.
            block::set_key_offset(data, at, 0);
        }
    }

    fn sanitise_names(&self, owner: Option<TreeId>, key: &Key, data: &mut [u8], names: &NamePlaces) {
        for place in &names.places {
            let name = data.get(place.name.clone()).unwrap_or_default().to_vec();
            let keeps_value = self.keeps_value(key, &name);
            if let Some(new) = self.replaced(owner, key, place.directory, &name) {
                copy(data, place.name.start, Some(&new));
            }
            if !keeps_value {
                data.get_mut(place.value.clone()).unwrap_or_default().fill(0);
            }
        }
        zero_from(data, names.end);
    }
}

/// The result of the tree checker for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Valid,
    /// Only data of items fails its checks. Keys and places of all items are right.
    InvalidItems,
    Damaged,
}

fn state(block: &[u8], format: &BlockFormat) -> State {
    let Some(address) = block::address(block) else {
        return State::Damaged;
    };
    let expected = Expectation::at(Logical::new(address));
    let found = TreeBlock::inspect(Bytes::copy_from_slice(block), format, &expected);
    let is_item = |failure: &BlockError| matches!(failure.problem, BlockProblem::Item { .. });
    match found.failures.len() {
        0 => State::Valid,
        // The checks end at this number.
        DamagedBlock::MAX_FAILURES.. => State::Damaged,
        _ if found.failures.iter().all(is_item) => State::InvalidItems,
        _ => State::Damaged,
    }
}

/// Returns whether the tree checker accepts an item as the only one of its leaf.
fn is_valid_item(leaf: &[u8], key: &Key, data: &[u8], format: &BlockFormat) -> bool {
    let mut alone = leaf.to_vec();
    let (Ok(()), Some(address)) = (
        block::repack(&mut alone, &[(*key, data.to_vec())]),
        block::address(leaf),
    ) else {
        return false;
    };
    let expected = Expectation::at(Logical::new(address));
    let found = TreeBlock::inspect(alone.into(), format, &expected);
    let mut failures = found.failures.iter();
    !failures.any(|failure| matches!(failure.problem, BlockProblem::Item { .. }))
}

fn zero_from(bytes: &mut [u8], start: usize) {
    bytes.get_mut(start..).unwrap_or_default().fill(0);
}

fn copy(to: &mut [u8], at: usize, from: Option<&[u8]>) {
    let Some(from) = from else { return };
    if let Some(place) = at.checked_add(from.len()).and_then(|end| to.get_mut(at..end)) {
        place.copy_from_slice(from);
    }
}
