//! New items for a tree that keeps its blocks.
//!
//! Items are spread over the leaves of the tree in order, about equally many bytes in each, and the
//! keys in the nodes change to the new first keys. The number of blocks stays, so the extent tree
//! stays right.
//!
//! Left out: fewer items than leaves, and items that do not fit the leaves.

use crate::block;
use crate::error::{Error, Result};
use buttress_exact::Exact as _;
use buttress_format::{ChecksumType, Key};
use std::collections::{BTreeMap, BTreeSet};

/// The blocks of a tree by address.
pub(crate) type Blocks = BTreeMap<u64, Vec<u8>>;

/// Returns the root of the tree that consists of these blocks: the block that no other block names.
pub(crate) fn root_of(blocks: &Blocks) -> Option<u64> {
    let nodes = blocks.values().filter(|block| block::level(block) != Some(0));
    let named: BTreeSet<u64> = nodes.flat_map(|block| block::children(block)).collect();
    let mut roots = blocks.keys().filter(|address| !named.contains(address));
    let root = roots.next()?;
    roots.next().is_none().then_some(*root)
}

/// Returns the addresses of the tree's leaves in order of their keys.
pub(crate) fn leaves(blocks: &Blocks, root: u64, checksum: ChecksumType) -> Result<Vec<u64>> {
    let mut leaves = Vec::new();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![(root, None)];
    while let Some((address, level)) = waiting.pop() {
        let unusable = |what| Error::Unusable {
            what,
            logical: address,
        };
        let block = blocks.get(&address);
        let block = block.ok_or_else(|| unusable("a block of its device tree is missing (give -m)"))?;
        let own = block::level(block);
        let fits = block::is_whole(block, checksum)
            && block::address(block) == Some(address)
            && (level.is_none() || own == level)
            && seen.insert(address);
        let Some(own) = own.filter(|own| fits && *own <= block::LEVEL_MAX) else {
            return Err(unusable("a block of its device tree is damaged (give -m)"));
        };
        match own.checked_sub(1) {
            None => leaves.push(address),
            Some(below) => {
                let mut children: Vec<_> = block::children(block).map(|child| (child, Some(below))).collect();
                children.reverse();
                waiting.extend(children);
            }
        }
    }
    Ok(leaves)
}

/// Replaces the items of a tree.
pub(crate) fn spread(
    blocks: &mut Blocks,
    root: u64,
    items: &[(Key, Vec<u8>)],
    checksum: ChecksumType,
) -> Result<()> {
    let leaves = leaves(blocks, root, checksum)?;
    let unusable = |what| Error::Unusable { what, logical: root };
    if items.len() < leaves.len() {
        return Err(unusable(
            "a tree has more leaves than items on one device (give -m)",
        ));
    }
    let size = |item: &(Key, Vec<u8>)| item.1.len().exact_add(block::HEAD_BYTES);
    let mut rest = items;
    for (number, address) in leaves.iter().enumerate() {
        let leaves_left = leaves.len().exact_sub(number);
        let bytes_left: usize = rest.iter().map(size).sum();
        let share = bytes_left.div_ceil(leaves_left);
        let items_max = rest.len().exact_sub(leaves_left.exact_sub(1));
        let mut count = 0_usize;
        let mut bytes = 0_usize;
        while count < items_max && (bytes < share || leaves_left == 1) {
            bytes = bytes.exact_add(rest.get(count).map_or(0, size));
            count = count.exact_add(1);
        }
        // Clamp: the count is at most the number of items that are left.
        let (own, after) = rest.split_at_checked(count).unwrap_or((rest, &[]));
        rest = after;
        if let Some(leaf) = blocks.get_mut(address) {
            block::repack(leaf, own)?;
            block::seal(leaf, checksum);
        }
    }
    first_key(blocks, root, checksum);
    Ok(())
}

/// Changes the keys of all nodes below a block to the first keys of their children. Returns the first
/// key of the block. [`leaves`] has checked the levels, so the recursion ends.
fn first_key(blocks: &mut Blocks, address: u64, checksum: ChecksumType) -> Option<Key> {
    let block = blocks.get(&address)?;
    if block::level(block) == Some(0) {
        return block::items(block).next().map(|item| item.key);
    }
    let pointers = block::pointers(block);
    let keys: Vec<(usize, Option<Key>)> = pointers
        .iter()
        .map(|pointer| (pointer.at, first_key(blocks, pointer.address, checksum)))
        .collect();
    let node = blocks.get_mut(&address)?;
    for (at, key) in &keys {
        if let Some(key) = key {
            block::set_key(node, *at, key);
        }
    }
    block::seal(node, checksum);
    keys.first().and_then(|(_, key)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{ItemType, ObjectId};

    const NODE_BYTES: usize = 4096;

    fn key(number: u64) -> Key {
        Key::new(ObjectId::new(1), ItemType::DEV_EXTENT, number)
    }

    fn block(address: u64, level: u8, count: usize) -> Vec<u8> {
        let mut block = vec![0; NODE_BYTES];
        block[48..56].copy_from_slice(&address.to_le_bytes());
        block[96..100].copy_from_slice(&(count as u32).to_le_bytes());
        block[100] = level;
        block
    }

    /// Returns a tree of three leaves below one node.
    fn tree() -> Blocks {
        let mut blocks = Blocks::new();
        let mut node = block(40, 1, 3);
        for (number, leaf) in [10_u64, 20, 30].into_iter().enumerate() {
            let mut bytes = block(leaf, 0, 0);
            block::repack(&mut bytes, &[(key(leaf), vec![1; 48])]).unwrap();
            block::seal(&mut bytes, ChecksumType::Crc32c);
            blocks.insert(leaf, bytes);
            let at = block::HEADER_BYTES + number * block::POINTER_BYTES;
            block::set_key(&mut node, at, &key(leaf));
            node[at + 17..at + 25].copy_from_slice(&leaf.to_le_bytes());
        }
        block::seal(&mut node, ChecksumType::Crc32c);
        blocks.insert(40, node);
        blocks
    }

    fn items(count: u64) -> Vec<(Key, Vec<u8>)> {
        (0..count).map(|number| (key(number), vec![2; 48])).collect()
    }

    #[test]
    fn items_are_spread_over_all_leaves_in_order() {
        let mut blocks = tree();
        assert_eq!(root_of(&blocks), Some(40));
        for count in [3, 7, 100] {
            spread(&mut blocks, 40, &items(count), ChecksumType::Crc32c).unwrap();
            let leaves = leaves(&blocks, 40, ChecksumType::Crc32c).unwrap();
            assert_eq!(leaves, [10, 20, 30]);
            let keys = leaves.iter().flat_map(|leaf| block::items(&blocks[leaf]));
            let keys: Vec<u64> = keys.map(|item| item.key.offset).collect();
            assert!(keys.into_iter().eq(0..count));
            for pointer in block::pointers(&blocks[&40]) {
                let first = block::items(&blocks[&pointer.address]).next().unwrap();
                assert_eq!(pointer.key, first.key);
            }
        }
    }

    #[test]
    fn trees_that_do_not_fit_are_refused() {
        let mut blocks = tree();
        spread(&mut blocks, 40, &items(2), ChecksumType::Crc32c).unwrap_err();
        spread(&mut blocks, 40, &items(200), ChecksumType::Crc32c).unwrap_err();
        let mut cut = tree();
        cut.remove(&20);
        spread(&mut cut, 40, &items(9), ChecksumType::Crc32c).unwrap_err();
        let mut two = tree();
        two.insert(50, block(50, 0, 0));
        assert_eq!(root_of(&two), None);
    }
}
