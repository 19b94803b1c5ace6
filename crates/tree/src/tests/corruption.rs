//! Tests of damaged and hostile trees: exact errors at their place, and a finite walk.

use super::{MODES, TREE, key};
use crate::error::Failure;
use crate::testing::{ImageBuilder, ImageOptions, Written};
use crate::{BlockOrder, Error, Forest, ReadAhead, RootPointer, Tree};
use buttress_device::Device;
use buttress_format::node::BlockProblem;
use buttress_format::{ByteCount, Generation, Key, Logical, TreeId};

/// A root, two nodes and four leaves, with ten items in each leaf.
struct Small {
    builder: ImageBuilder,
    leaves: Vec<Written>,
    nodes: Vec<Written>,
    root: Written,
}

impl Small {
    fn new() -> Self {
        Self::with_owner(TREE)
    }

    fn with_owner(owner: TreeId) -> Self {
        let mut builder = ImageBuilder::new(ImageOptions::default());
        let leaves: Vec<_> = (0..4)
            .map(|leaf| {
                let items: Vec<_> = (0..10).map(|item| (key(leaf * 10 + item), vec![7; 8])).collect();
                builder.leaf(owner, &items)
            })
            .collect();
        let nodes = vec![
            builder.node(owner, &leaves[..2]),
            builder.node(owner, &leaves[2..]),
        ];
        let root = builder.node(owner, &nodes);
        Self {
            builder,
            leaves,
            nodes,
            root,
        }
    }

    fn tree(self, owner: TreeId) -> Tree {
        let root = self.root.root(owner);
        open(self.builder, root)
    }
}

fn open(builder: ImageBuilder, root: RootPointer) -> Tree {
    Forest::new(builder.open(&root, Device::memory), ByteCount::new(1 << 20)).tree(root)
}

fn problem(error: &Error) -> &BlockProblem {
    match error.failure() {
        Some(Failure::Block(error)) => &error.problem,
        other => panic!("not a failed block: {other:?}"),
    }
}

/// Returns the addresses of good blocks and the errors that a walk finds.
pub(super) fn walk(tree: &Tree, mode: ReadAhead) -> (Vec<Logical>, Vec<Error>) {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for visit in tree.blocks(mode) {
        match visit {
            Ok(visit) => {
                assert_eq!(visit.block.logical(), visit.pointer.logical);
                good.push(visit.pointer.logical);
            }
            Err(error) => bad.push(error),
        }
    }
    (good, bad)
}

/// Asserts that the items with numbers in `range` are missing, with one error in their place.
fn check_items(tree: &Tree, missing: std::ops::Range<u64>, check: &dyn Fn(&Error)) {
    for mode in MODES {
        let mut expected = (0..40).filter(|number| !missing.contains(number)).map(key);
        let mut errors = 0;
        for item in tree.range(.., mode) {
            match item {
                Ok(item) => assert_eq!(Some(item.key()), expected.next(), "{mode:?}"),
                Err(error) => {
                    check(&error);
                    errors += 1;
                }
            }
        }
        assert_eq!((expected.next(), errors), (None, 1), "{mode:?}");
        // The cursor also walks backwards.
        let mut cursor = tree.cursor(mode);
        let mut found = Vec::new();
        let mut more = cursor.seek_last();
        loop {
            match more {
                Ok(true) => found.push(cursor.key().unwrap()),
                Ok(false) => break,
                Err(error) => check(&error),
            }
            more = cursor.previous();
        }
        found.reverse();
        let expected: Vec<Key> = (0..40)
            .filter(|number| !missing.contains(number))
            .map(key)
            .collect();
        assert_eq!(found, expected, "{mode:?}");
    }
}

#[test]
fn each_broken_promise_gives_its_own_error() {
    for case in broken_promises() {
        check_broken_promise(case);
    }
}

type Case = (&'static str, fn(&mut Small), fn(&BlockProblem) -> bool);

/// The ways to damage the second leaf, each with its failure.
fn broken_promises() -> [Case; 6] {
    [
        (
            "checksum",
            |small| small.builder.block_mut(small.leaves[1].logical)[2000] ^= 1,
            |problem| matches!(problem, BlockProblem::Checksum { .. }),
        ),
        (
            "generation",
            |small| {
                small
                    .builder
                    .edit_header(small.leaves[1].logical, |header| header.generation = 6.into())
            },
            |problem| {
                *problem
                    == BlockProblem::Generation {
                        stored: Generation::new(6),
                        expected: Generation::new(7),
                    }
            },
        ),
        (
            "owner",
            |small| {
                small
                    .builder
                    .edit_header(small.leaves[1].logical, |header| header.owner = 7.into())
            },
            |problem| {
                *problem
                    == BlockProblem::Owner {
                        stored: TreeId::CHECKSUM,
                        expected: TREE,
                    }
            },
        ),
        (
            "fsid",
            |small| {
                small
                    .builder
                    .edit_header(small.leaves[1].logical, |header| header.fsid = [9; 16])
            },
            |problem| matches!(problem, BlockProblem::Fsid { .. }),
        ),
        (
            "address",
            |small| {
                small
                    .builder
                    .edit_header(small.leaves[1].logical, |header| header.bytenr = 4096.into())
            },
            |problem| {
                *problem
                    == BlockProblem::Address {
                        stored: Logical::new(4096),
                    }
            },
        ),
        (
            "first key",
            |small| {
                let shifted = key(9);
                small.builder.edit(small.leaves[1].logical, |block| {
                    block[101..118].copy_from_slice(zerocopy::IntoBytes::as_bytes(
                        &buttress_format::key::RawKey::from(shifted),
                    ));
                });
            },
            |problem| {
                *problem
                    == BlockProblem::FirstKey {
                        stored: Some(key(9)),
                        expected: key(10),
                    }
            },
        ),
    ]
}

fn check_broken_promise((name, damage, expected): Case) {
    let mut small = Small::new();
    damage(&mut small);
    let leaf = small.leaves[1].logical;
    let tree = small.tree(TREE);
    check_items(&tree, 10..20, &|error| {
        assert!(expected(problem(error)), "{name}: {error}");
        assert_eq!(error.pointer().logical, leaf, "{name}");
    });
    for mode in MODES {
        let (good, bad) = walk(&tree, mode);
        assert_eq!((good.len(), bad.len()), (6, 1), "{name} {mode:?}");
        assert!(expected(problem(&bad[0])));
    }
    let bad: Vec<_> = tree.blocks_by_address().filter_map(Result::err).collect();
    assert!(bad.len() == 1 && expected(problem(&bad[0])), "{name}: {bad:?}");
    let damaged = tree
        .forest()
        .inspect_block(walk(&tree, ReadAhead::None).1[0].pointer())
        .unwrap();
    assert!(
        damaged.failures.iter().any(|failure| expected(&failure.problem)),
        "{name}"
    );
}

#[test]
fn a_node_that_cannot_be_had_hides_its_leaves_alone() {
    let mut small = Small::new();
    let node = small.nodes[0].logical;
    small.builder.block_mut(node)[3000] ^= 0x40;
    let tree = small.tree(TREE);
    check_items(&tree, 0..20, &|error| {
        assert!(matches!(problem(error), BlockProblem::Checksum { .. }), "{error}");
        assert_eq!((error.pointer().logical, error.pointer().level), (node, 1));
    });
    // A seek into the gap that the damaged block leaves fails. The cursor then continues after the
    // gap or before it.
    let mut cursor = tree.cursor(ReadAhead::None);
    assert!(cursor.seek(&key(5)).is_err());
    assert!(cursor.current().is_none());
    assert!(cursor.next().unwrap());
    assert_eq!(cursor.key(), Some(key(20)));
    assert!(cursor.previous().is_err());
    assert!(!cursor.previous().unwrap());
}

#[test]
fn a_root_that_cannot_be_had_is_one_error() {
    let mut small = Small::new();
    small.builder.block_mut(small.root.logical)[3000] ^= 0x40;
    let tree = small.tree(TREE);
    for mode in MODES {
        let results: Vec<_> = tree.range(.., mode).collect();
        assert_eq!(results.len(), 1);
        assert!(results[0].is_err());
        assert_eq!(walk(&tree, mode).1.len(), 1);
    }
    let small = Small::new();
    let root = small.root.root(TREE);
    let tree = small.tree(TREE).forest().tree(RootPointer { level: 200, ..root });
    let error = tree.get(&key(0)).unwrap_err();
    assert_eq!(error.failure(), Some(&Failure::RootLevel));
}

#[test]
fn an_address_that_no_chunk_maps_is_named() {
    let mut small = Small::new();
    let node = small.nodes[1].logical;
    small
        .builder
        .edit_pointer(node, 0, |pointer| pointer.blockptr = (1_u64 << 40).into());
    let tree = small.tree(TREE);
    check_items(&tree, 20..30, &|error| {
        assert!(error.failure().is_none());
        assert!(error.to_string().contains("1099511627776"), "{error}");
        assert_eq!(error.kind(), buttress_format::error::ErrorKind::Corrupt);
    });
}

#[test]
fn a_cycle_of_pointers_ends_at_the_level_check() {
    let mut small = Small::new();
    let (node, root) = (small.nodes[0], small.root.logical);
    // The node's first child is the root.
    small
        .builder
        .edit_pointer(node.logical, 0, |pointer| pointer.blockptr = root.get().into());
    let tree = small.tree(TREE);
    check_items(&tree, 0..10, &|error| {
        assert_eq!(
            *problem(error),
            BlockProblem::Level {
                stored: 2,
                expected: 0
            }
        );
    });
    // The node's first child is the node itself.
    let mut small = Small::new();
    small.builder.edit_pointer(node.logical, 0, |pointer| {
        pointer.blockptr = node.logical.get().into()
    });
    check_items(&small.tree(TREE), 0..10, &|error| {
        assert_eq!(
            *problem(error),
            BlockProblem::Level {
                stored: 1,
                expected: 0
            }
        );
    });
}

#[test]
fn keys_beyond_the_parents_bound_are_refused() {
    let mut builder = ImageBuilder::new(ImageOptions::default());
    let leaf = |builder: &mut ImageBuilder, numbers: std::ops::Range<u64>| {
        let items: Vec<_> = numbers.map(|number| (key(number), vec![1])).collect();
        builder.leaf(TREE, &items)
    };
    let first = leaf(&mut builder, 0..21);
    let rest = [leaf(&mut builder, 20..30), leaf(&mut builder, 30..40)];
    let left = builder.node(TREE, &[first]);
    let right = builder.node(TREE, &rest);
    let root = builder.node(TREE, &[left, right]);
    let tree = open(builder, root.root(TREE));
    check_items(&tree, 0..20, &|error| {
        let expected = Failure::KeysPastEnd {
            last_key: key(20),
            end_key: key(20),
        };
        assert_eq!(error.failure(), Some(&expected), "{error}");
    });
}

/// Every node points twice at the one block below. Along 2^7 paths, or 121^7 with full nodes, a
/// walk could reach the leaf.
#[test]
fn shared_children_are_visited_once() {
    let mut builder = ImageBuilder::new(ImageOptions::default());
    let items: Vec<_> = (0..10).map(|number| (key(number), vec![1])).collect();
    let mut below = builder.leaf(TREE, &items);
    for level in 1..8 {
        let again = Written {
            first_key: key(level * 10),
            ..below
        };
        below = builder.node(TREE, &[below, again]);
    }
    let tree = open(builder, below.root(TREE));
    for mode in MODES {
        let (good, bad) = walk(&tree, mode);
        assert_eq!((good.len(), bad.len()), (8, 7), "{mode:?}");
        for error in bad {
            assert!(
                matches!(problem(&error), BlockProblem::FirstKey { .. }),
                "{error}"
            );
        }
        assert_eq!(tree.range(.., mode).filter(Result::is_ok).count(), 10);
    }
    let visits = tree.blocks_by_address();
    assert_eq!(
        visits.fold((0, 0), |(good, bad), visit| match visit {
            Ok(_) => (good + 1, bad),
            Err(_) => (good, bad + 1),
        }),
        (8, 7)
    );
}

#[test]
fn snapshots_may_share_blocks_of_other_subvolumes() {
    let small = Small::with_owner(TreeId::FS);
    let tree = small.tree(TreeId::new(257));
    assert_eq!(tree.range(.., ReadAhead::None).filter_map(Result::ok).count(), 40);
}

/// The test reads the cached block again through a pointer with other expectations. The cache must
/// not hide the mismatch.
#[test]
fn a_cached_block_is_compared_with_each_pointer() {
    let small = Small::new();
    let leaf = small.leaves[0];
    let node = small.nodes[0];
    let tree = small.tree(TREE);
    assert_eq!(tree.range(.., ReadAhead::None).count(), 40);
    let wrong_level = tree.forest().tree(RootPointer {
        level: 1,
        ..leaf.root(TREE)
    });
    let error = wrong_level.get(&key(0)).unwrap_err();
    assert_eq!(
        *problem(&error),
        BlockProblem::Level {
            stored: 0,
            expected: 1
        }
    );
    let wrong_owner = tree.forest().tree(node.root(TreeId::EXTENT));
    let error = wrong_owner.get(&key(0)).unwrap_err();
    assert_eq!(
        *problem(&error),
        BlockProblem::Owner {
            stored: TREE,
            expected: TreeId::EXTENT
        }
    );
    let stale = tree.forest().tree(RootPointer {
        generation: Generation::new(5),
        ..leaf.root(TREE)
    });
    let error = stale.get(&key(0)).unwrap_err();
    assert!(
        matches!(problem(&error), BlockProblem::Generation { .. }),
        "{error}"
    );
}

#[test]
fn walks_stop_at_a_level_and_go_breadth_first() {
    let mut small = Small::new();
    let (leaves, nodes, root) = (small.leaves.clone(), small.nodes.clone(), small.root);
    small.builder.block_mut(leaves[2].logical)[3000] ^= 1;
    let tree = small.tree(TREE);
    for mode in MODES {
        let visits = tree.blocks_in(BlockOrder::DepthDownTo(1), mode);
        let found: Vec<_> = visits.map(|visit| visit.unwrap().pointer.logical).collect();
        assert_eq!(found, [root.logical, nodes[0].logical, nodes[1].logical]);
        let visits = tree.blocks_in(BlockOrder::Breadth, mode);
        let found: Vec<_> = visits
            .map(|visit| visit.map_or_else(|error| error.pointer().logical, |visit| visit.pointer.logical))
            .collect();
        let expected: Vec<_> = [root]
            .iter()
            .chain(&nodes)
            .chain(&leaves)
            .map(|block| block.logical)
            .collect();
        assert_eq!(found, expected, "{mode:?}");
        let mut visits = tree.blocks(mode);
        let mut found = Vec::new();
        while let Some(visit) = visits.next() {
            let logical = visit.map_or_else(|error| error.pointer().logical, |visit| visit.pointer.logical);
            found.push(logical);
            if logical == nodes[0].logical {
                visits.skip_children();
            }
        }
        let expected = [
            root.logical,
            nodes[0].logical,
            nodes[1].logical,
            leaves[2].logical,
            leaves[3].logical,
        ];
        assert_eq!(found, expected, "{mode:?}");
    }
}
