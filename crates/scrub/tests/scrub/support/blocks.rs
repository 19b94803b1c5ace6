//! Tree blocks of a lab as bytes: their device addresses, and changes that keep their checksums
//! right.
#![allow(
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails; each test uses a part of this"
)]

use super::{Lab, Use};
use buttress_format::{ChecksumType, Logical};

/// The owner and the level in a tree block's header.
const OWNER: std::ops::Range<usize> = 88..96;
const LEVEL: usize = 100;
/// Offsets in a tree block: the number of items in the header, and the items.
const ITEM_COUNT: usize = 96;
const ITEMS: usize = 101;
const ITEM_BYTES: usize = 25;

/// Returns the bytes of a device at a use.
pub(crate) fn bytes_of(lab: &Lab, used: &Use) -> Vec<u8> {
    lab.spies[used.device].read(used.physical, used.length)
}

/// Returns the first copies of the leaves that a tree owns.
pub(crate) fn leaves_of(lab: &Lab, tree: u64) -> Vec<Use> {
    let is_leaf = |used: &Use| {
        let bytes = bytes_of(lab, used);
        used.is_copy() && !used.is_data && bytes[OWNER] == tree.to_le_bytes() && bytes[LEVEL] == 0
    };
    let mut leaves: Vec<Use> = lab.uses().unwrap().into_iter().filter(is_leaf).collect();
    leaves.dedup_by_key(|used| used.logical);
    leaves
}

/// Returns all copies and parity ranges of a part of the extent at a logical address.
pub(crate) fn places_of(lab: &Lab, logical: Logical) -> Vec<Use> {
    let uses = lab.uses().unwrap().into_iter();
    uses.filter(|used| used.logical == logical).collect()
}

/// Changes a leaf, given its bytes, the offset of an item, and the range of the item's data. The
/// function returns whether it changed the leaf.
type Change<'a> = dyn Fn(&mut [u8], usize, std::ops::Range<usize>) -> bool + 'a;

/// Changes one item of each leaf of a tree, in all copies, and updates the leaf's checksum.
fn change_item(lab: &Lab, tree: u64, change: &Change<'_>) {
    let mut is_changed = false;
    // The leaves are found while the extent tree is complete.
    let leaves = leaves_of(lab, tree).into_iter();
    let leaves: Vec<Vec<Use>> = leaves.map(|leaf| places_of(lab, leaf.logical)).collect();
    for place in leaves.iter().flatten().filter(|place| place.is_copy()) {
        let mut bytes = bytes_of(lab, place);
        let word =
            |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        for number in 0..word(&bytes, ITEM_COUNT) {
            let at = ITEMS + number * ITEM_BYTES;
            let start = ITEMS + word(&bytes, at + 17);
            let data = start..start + word(&bytes, at + 21);
            if change(&mut bytes, at, data) {
                is_changed = true;
                break;
            }
        }
        let sum = ChecksumType::Crc32c.compute(&bytes[32..]);
        bytes[..sum.as_bytes().len()].copy_from_slice(sum.as_bytes());
        lab.spies[place.device].put(place.physical, &bytes);
    }
    assert!(is_changed, "no such item in tree {tree}");
}

/// Changes the first item of an extent in the extent tree.
pub(crate) fn change_extent_item(lab: &Lab, logical: Logical, change: impl Fn(&mut [u8])) {
    change_item(lab, 2, &|bytes, at, data| {
        let is_it = bytes[at..at + 8] == logical.get().to_le_bytes();
        if is_it {
            change(&mut bytes[data]);
        }
        is_it
    });
}

/// Changes the length of an extent in the extent tree.
pub(crate) fn change_extent_length(lab: &Lab, logical: Logical, length: u64) {
    change_item(lab, 2, &|bytes, at, _| {
        let is_it = bytes[at..at + 8] == logical.get().to_le_bytes();
        if is_it {
            bytes[at + 9..at + 17].copy_from_slice(&length.to_le_bytes());
        }
        is_it
    });
}

/// Makes the first free range after an address begin and end 64 KiB earlier.
pub(crate) fn change_free_space(lab: &Lab, behind: Logical) {
    const FREE_SPACE_EXTENT: u8 = 199;
    change_item(lab, 10, &|bytes, at, _| {
        let start = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let is_it = bytes[at + 8] == FREE_SPACE_EXTENT && start > behind.get();
        if is_it {
            bytes[at..at + 8].copy_from_slice(&(start - (64 << 10)).to_le_bytes());
        }
        is_it
    });
}
