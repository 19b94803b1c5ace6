//! The order in which a relocation moves the extents of a window: siblings together.
//!
//! A batch copies each node above its blocks once. Snapshots make many versions of a node, and all
//! versions share most of their blocks. Blocks below the same versions are rarely neighbours by
//! address. A job in address order therefore copies each version in many batches.
//!
//! Two tree blocks are *siblings* if they have a node above them in common, by references that name
//! the node's address. Siblings of siblings form one family. The window is sorted by families;
//! within a family by the nodes above, then by address. Data, and blocks without such references,
//! come first in order of address.
//!
//! Left out: keyed references by address outside of the extent item.

use buttress_format::{ExtentItem, InlineReference, Logical};
use std::collections::HashMap;

/// The families of the nodes above the blocks of a window, as a disjoint-set forest.
#[derive(Default)]
struct Families {
    /// The index of each node.
    index: HashMap<Logical, usize>,
    /// For each node, a node of the same family, or itself.
    next: Vec<usize>,
    /// The addresses, by index.
    nodes: Vec<Logical>,
}

impl Families {
    fn index_of(&mut self, node: Logical) -> usize {
        let (nodes, next) = (&mut self.nodes, &mut self.next);
        *self.index.entry(node).or_insert_with(|| {
            let index = nodes.len();
            nodes.push(node);
            next.push(index);
            index
        })
    }

    /// Returns the representative of a node's family, and shortens the path to it.
    fn representative(&mut self, mut at: usize) -> usize {
        while let Some(next) = self.next.get(at).copied().filter(|next| *next != at) {
            let after = self.next.get(next).copied();
            if let (Some(place), Some(after)) = (self.next.get_mut(at), after) {
                *place = after;
            }
            at = next;
        }
        at
    }

    /// Joins the families of two nodes.
    fn join(&mut self, first: Logical, second: Logical) {
        let [first, second] = [first, second].map(|node| self.index_of(node));
        let [first, second] = [first, second].map(|at| self.representative(at));
        if let Some(place) = self.next.get_mut(second) {
            *place = first;
        }
    }

    fn family(&mut self, node: Logical) -> Option<Logical> {
        let index = *self.index.get(&node)?;
        let representative = self.representative(index);
        self.nodes.get(representative).copied()
    }
}

/// Returns the addresses of the nodes above a tree block, as far as its item names them.
fn nodes_above(extent: &ExtentItem) -> impl Iterator<Item = Logical> {
    extent.inline_references.iter().filter_map(|inline| match inline {
        InlineReference::SharedBlock { parent } => Some(*parent),
        _ => None,
    })
}

/// Sorts the extents of a window, which are in order of address.
pub(super) fn sort(window: &mut [ExtentItem]) {
    let mut families = Families::default();
    for extent in window.iter() {
        let Some(first) = nodes_above(extent).next() else {
            continue;
        };
        for node in nodes_above(extent) {
            families.join(first, node);
        }
    }
    window.sort_by_cached_key(|extent| {
        let above = nodes_above(extent).min();
        let family = above.and_then(|node| families.family(node));
        (family, above, extent.start)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{ByteCount, ExtentFlags, Generation, TreeId};

    fn block(start: u64, above: &[u64]) -> ExtentItem {
        let shared = above.iter().map(|node| InlineReference::SharedBlock {
            parent: Logical::new(*node),
        });
        let owner = InlineReference::TreeBlock { root: TreeId::FS };
        ExtentItem {
            start: Logical::new(start),
            length: ByteCount::new(16384),
            references: 1,
            generation: Generation::new(7),
            flags: ExtentFlags::TREE_BLOCK,
            tree_block_info: None,
            level: Some(0),
            inline_references: core::iter::once(owner).chain(shared).collect(),
        }
    }

    /// Two ranges of keys with three versions of the node above each. Their blocks alternate by
    /// address. A block that only newer versions have stays with its range.
    #[test]
    fn blocks_below_versions_of_one_node_come_together() {
        let mut window = vec![
            block(1, &[100, 101]),
            block(2, &[200, 201, 202]),
            block(3, &[]),
            block(4, &[102]),
            block(5, &[201]),
            block(6, &[101, 102]),
            block(7, &[200]),
        ];
        sort(&mut window);
        let starts: Vec<u64> = window.iter().map(|extent| extent.start.get()).collect();
        assert_eq!(
            starts.first(),
            Some(&3),
            "a block without shared nodes comes first"
        );
        let mut families: Vec<&[u64]> = vec![&starts[1..4], &starts[4..]];
        families.sort_unstable();
        assert_eq!(families, [[1, 6, 4].as_slice(), &[2, 7, 5]]);
    }

    #[test]
    fn extents_without_shared_nodes_keep_their_order() {
        let mut window: Vec<ExtentItem> = (1..50).map(|start| block(start, &[])).collect();
        let before = window.clone();
        sort(&mut window);
        assert_eq!(window, before);
    }
}
