//! Tests of how full leaves are after different patterns of insertion and removal.

use super::*;

/// Returns the mean fill of a tree's leaves, in percent of their capacity.
fn fill(tree: &EditableTree) -> u64 {
    let (mut leaves, mut free): (u64, u64) = (0, 0);
    let mut walk = tree.view().leaves(.., ReadAhead::None);
    while let Some(leaf) = walk.next().unwrap() {
        leaves += 1;
        free += leaf.block.free_space() as u64;
    }
    let room = leaves * u64::from(tree.forest().block_format().node_bytes - 101);
    100 - free * 100 / room
}

#[test]
fn rows_fill_leaves_to_the_end() {
    for node_bytes in NODE_SIZES {
        let mut scratch = scratch(node_bytes);
        let mut tree = scratch.new_tree(TREE);
        for number in 0..20_000 {
            tree.insert(&mut scratch.account, &key(number), &[1; 60]).unwrap();
        }
        assert!(fill(&tree) >= 96, "{node_bytes}: {}", fill(&tree));
    }
}

/// Several rows of insertions into one tree run at once, each at the end of its own key range, like
/// the entries of directories.
#[test]
fn rows_in_the_middle_fill_leaves_too() {
    for node_bytes in NODE_SIZES {
        let mut scratch = scratch(node_bytes);
        let mut tree = scratch.new_tree(TREE);
        // Each sequence of insertions fills some 25 leaves.
        for number in 0..u64::from(node_bytes) * 25 / 85 {
            for row in 0..4 {
                let place = key(row * 100_000 + number);
                tree.insert(&mut scratch.account, &place, &[1; 60]).unwrap();
            }
        }
        assert!(fill(&tree) >= 94, "{node_bytes}: {}", fill(&tree));
    }
}

#[test]
fn random_insertions_fill_leaves_well() {
    for node_bytes in NODE_SIZES {
        let mut scratch = scratch(node_bytes);
        let mut tree = scratch.new_tree(TREE);
        let mut random = Random::new(buttress_oracle::seeds::seed(
            "tree::edit::fill",
            "BUTTRESS_SEED",
            5,
        ));
        for _ in 0..30_000 {
            let place = key(random.below(1 << 40));
            tree.put(&mut scratch.account, &place, &[1; 60]).unwrap();
        }
        assert!(fill(&tree) >= 74, "{node_bytes}: {}", fill(&tree));
    }
}

#[test]
fn random_removals_do_not_leave_empty_leaves() {
    for node_bytes in NODE_SIZES {
        let mut scratch = scratch(node_bytes);
        let mut tree = scratch.new_tree(TREE);
        let mut random = Random::new(buttress_oracle::seeds::seed(
            "tree::edit::fill",
            "BUTTRESS_SEED",
            6,
        ));
        let mut keys: Vec<Key> = (0..20_000).map(key).collect();
        for place in &keys {
            tree.insert(&mut scratch.account, place, &[1; 60]).unwrap();
        }
        while keys.len() > 1000 {
            let place = keys.swap_remove(random.below(keys.len() as u64) as usize);
            assert!(tree.remove(&mut scratch.account, &place).unwrap());
        }
        assert!(fill(&tree) >= 40, "{node_bytes}: {}", fill(&tree));
    }
}
