//! The most nodes that edits can take: arithmetic on the shape of the trees, without any state.
//!
//! A *place* is a run of adjacent items that fits into one leaf. An edit at a place copies the leaf
//! and its parents.
//!
//! | per place | nodes | why |
//! |---|---|---|
//! | leaf | 3 | the copy, and two more: an item between two large ones splits its leaf twice |
//! | each level above | 2 | the copy, and one split; or the copy and a neighbour that it is merged with |
//! | root | 1 in all | the tree becomes higher by one level |
//!
//! No level of the tree has more copies than nodes. A level's nodes are at most its roots and one
//! node for each [`pointers_least`] nodes of the level below. Two neighbours together hold more
//! than half of their pointers, or an edit merges them. Trees that another program left sparser use
//! the reserve ([`super::reservation`]). The worst case counts a tree that an edit opens itself
//! only from the next edit on.
//!
//! Left out: the space that a chunk item takes in system block groups ([`super::chunks`]).

use buttress_exact::Exact as _;
use buttress_format::root::TREE_LEVELS_MAX;

/// The bytes of a node that hold no item and no pointer.
const HEADER_BYTES: u64 = 101;

/// The bytes of one pointer.
const POINTER_BYTES: u64 = 33;

/// The largest record of one extent: its header (25), item (24), and a reference to data (29).
const EXTENT_RECORD_BYTES: u64 = 78;

/// The smallest node size.
const NODE_BYTES_MIN: u64 = 4096;

/// The nodes that one place takes at leaf level.
const LEAVES_A_PLACE: u64 = 3;

/// Places that every commit may change in addition to those of edits. Beside those of edits, a
/// commit changes places for root items, a device item, a block group item, its count of free
/// ranges, and quotas.
pub(crate) const PLACES_OF_COMMIT: u64 = 6;

// The smallest nodes still have neighbours to merge with, and hold several records after a split.
const _: () = assert!(pointers_least(NODE_BYTES_MIN) >= 30 && records_least(NODE_BYTES_MIN) >= 25);

/// Returns the bytes of a node for items or pointers. No node of an open volume is smaller than
/// [`NODE_BYTES_MIN`].
const fn room(node_bytes: u64) -> u64 {
    assert!(
        node_bytes >= NODE_BYTES_MIN,
        "a node is smaller than the format allows"
    );
    // The assertion above makes this subtraction exact.
    node_bytes.saturating_sub(HEADER_BYTES)
}

/// Returns the least average number of pointers in a node: a quarter of its capacity.
const fn pointers_least(node_bytes: u64) -> u64 {
    room(node_bytes) / POINTER_BYTES / 4
}

/// Returns the least number of extent records in a leaf after a split.
const fn records_least(node_bytes: u64) -> u64 {
    room(node_bytes) / EXTENT_RECORD_BYTES / 2
}

/// The number of open trees with their root on each level; level 0 is a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roots([u64; TREE_LEVELS_MAX as usize]);

impl Roots {
    /// Counts a tree with its root on this level.
    pub(crate) fn add(&mut self, level: u8) {
        let roots = self.0.get_mut(usize::from(level));
        debug_assert!(roots.is_some(), "a root on level {level}");
        if let Some(roots) = roots {
            *roots = roots.exact_add(1);
        }
    }
}

/// The size and the heights of a volume's trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    node_bytes: u64,
    /// The number of nodes of all trees.
    used_nodes: u64,
    /// The largest number of nodes on each level above the leaves, from level 1 on.
    above_max: [u64; TREE_LEVELS_MAX as usize - 1],
}

impl Shape {
    /// Every reservation computes a tree's shape, so a level without nodes costs no division.
    #[must_use]
    pub(crate) fn new(node_bytes: u64, used_nodes: u64, roots: Roots) -> Self {
        let each = pointers_least(node_bytes);
        let mut above_max = [0; TREE_LEVELS_MAX as usize - 1];
        let mut below = used_nodes;
        // Clamp: without an open tree, the highest level is 0.
        let top = roots.0.iter().rposition(|roots| *roots > 0).unwrap_or(0);
        let levels = above_max.iter_mut().zip(roots.0.iter().skip(1)).take(top);
        for (level, (nodes, roots)) in levels.enumerate() {
            below = below.quotient(each);
            // The levels below the highest root also have nodes that are not roots.
            let passed = if level.exact_add(1) < top {
                below.exact_add(1)
            } else {
                0
            };
            *nodes = passed.exact_add(*roots);
        }
        Self {
            node_bytes,
            used_nodes,
            above_max,
        }
    }

    /// Returns the nodes of all trees.
    #[must_use]
    pub(crate) const fn used_nodes(&self) -> u64 {
        self.used_nodes
    }

    /// Returns how many nodes above the leaves the paths to `places` places have at most.
    #[must_use]
    pub(crate) fn above_leaves(&self, places: u64) -> u64 {
        let levels = self.above_max.iter();
        levels.fold(0, |sum, nodes| sum.exact_add(places.min(*nodes)))
    }

    /// Returns the copies of nodes for edits at `places` places, without splits.
    #[must_use]
    pub(crate) fn copies(&self, places: u64) -> u64 {
        places.min(self.used_nodes).exact_add(self.above_leaves(places))
    }

    /// Returns the nodes that edits at `places` places take, including all splits.
    #[must_use]
    pub(crate) fn edited_nodes(&self, places: u64) -> u64 {
        if buttress_faults::on("edit-asks-for-nothing") {
            return 0;
        }
        let above = self.above_leaves(places);
        places
            .exact_mul(LEAVES_A_PLACE)
            .exact_add(above.exact_mul(2))
            .exact_add(1)
    }

    /// Returns the new leaves for adjacent new records of extents, when two trees record each
    /// extent.
    #[must_use]
    pub(crate) fn leaves_of_records(&self, extents: u64) -> u64 {
        extents.div_ceil(records_least(self.node_bytes)).exact_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reservation::RESERVED_NODES;

    const SIZES: [u64; 5] = [4096, 8192, 16384, 32768, 65536];

    /// Returns the number of nodes on each level, from the root down, in the smallest tree whose
    /// root has this level. The root of the smallest tree has two pointers, and each node below
    /// fills a quarter of its capacity.
    fn levels_of_least(node_bytes: u64, level: u8) -> Vec<u64> {
        let mut levels = vec![1_u64];
        for _ in 0..level {
            let pointers = if levels.len() == 1 {
                2
            } else {
                pointers_least(node_bytes)
            };
            levels.push(levels[levels.len() - 1].saturating_mul(pointers));
        }
        levels
    }

    /// Returns one tree of this height, and `trees` in all; the other trees are one level lower.
    fn one_root(level_max: u8, trees: u64) -> Roots {
        let mut roots = [0; TREE_LEVELS_MAX as usize];
        roots[usize::from(level_max.saturating_sub(1))] += trees - 1;
        roots[usize::from(level_max)] += 1;
        Roots(roots)
    }

    /// Returns the smallest volume with `trees` trees, one of which has this height.
    fn smallest(node_bytes: u64, level_max: u8, trees: u64) -> Shape {
        Shape::new(
            node_bytes,
            nodes_least(node_bytes, level_max),
            one_root(level_max, trees),
        )
    }

    fn nodes_least(node_bytes: u64, level: u8) -> u64 {
        levels_of_least(node_bytes, level)
            .iter()
            .fold(0, |sum, nodes| sum.saturating_add(*nodes))
    }

    /// Trees of each height, and edits whose places have separate paths as far down as the levels
    /// have nodes.
    #[test]
    fn every_height_has_paths_for_every_place() {
        for node_bytes in SIZES {
            for level_max in 0..TREE_LEVELS_MAX {
                let shape = smallest(node_bytes, level_max, 1);
                let levels = u64::from(level_max);
                assert!(shape.above_leaves(1) >= levels, "{shape:?}");
                assert!(shape.copies(1) > levels, "{shape:?}");
                // A single place needs a copy and a split on each level, a leaf that is split
                // twice, and a new root.
                assert!(shape.edited_nodes(1) > 3 + 2 * levels, "{shape:?}");
                for places in [2, 9, 22, 1000] {
                    let levels = levels_of_least(node_bytes, level_max);
                    let copies: u64 = levels.iter().map(|nodes| places.min(*nodes)).sum();
                    assert!(shape.copies(places) >= copies, "{places} in {shape:?}");
                }
            }
        }
    }

    /// The reserve of space suffices for one edit that frees space, in trees of any height. The
    /// reserve is one part in 16 of the space for metadata, and at least [`RESERVED_NODES`].
    #[test]
    fn the_reserve_holds_an_edit_that_frees() {
        /// The places of a rename that replaces a file.
        const PLACES: u64 = 22;
        for node_bytes in SIZES {
            for level_max in 0..TREE_LEVELS_MAX {
                let shape = smallest(node_bytes, level_max, 9);
                let reserve = RESERVED_NODES.max(shape.used_nodes / 16);
                assert!(shape.edited_nodes(PLACES) <= reserve, "{reserve} for {shape:?}");
            }
        }
    }

    /// Edits grow with places, levels and trees, and never beyond what the places need on every level.
    #[test]
    fn edited_nodes_grow_with_places_levels_and_trees() {
        let shape = |used_nodes, level_max| Shape::new(16384, used_nodes, one_root(level_max, 9));
        for places in 0..200 {
            for level in 0..TREE_LEVELS_MAX {
                let (less, more) = (shape(1000, level), shape(1_000_000, level));
                assert!(less.edited_nodes(places) <= more.edited_nodes(places));
                assert!(less.edited_nodes(places) <= less.edited_nodes(places + 1));
                let all_levels = places * (3 + 2 * u64::from(TREE_LEVELS_MAX - 1)) + 1;
                assert!(more.edited_nodes(places) <= all_levels);
            }
        }
    }
}
