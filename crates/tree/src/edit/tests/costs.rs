//! Tests of the costs of edits: the blocks that they copy and keep in memory, and snapshots.

use super::*;
use buttress_format::Generation;

fn committed(count: u64) -> (Scratch, EditableTree) {
    let mut scratch = scratch(4096);
    let mut tree = scratch.new_tree(TREE);
    for number in 0..count {
        tree.insert(&mut scratch.account, &key(number), &[1; 60]).unwrap();
    }
    scratch.commit(&mut tree);
    scratch.unpin();
    (scratch, tree)
}

#[test]
fn a_block_is_copied_once_in_a_transaction() {
    let (mut scratch, mut tree) = committed(5000);
    let levels = u64::from(tree.level()) + 1;
    for transaction in 1..5 {
        for number in 0..30 {
            tree.update(&mut scratch.account, &key(number), &mut |data| data.fill(2))
                .unwrap();
        }
        assert_eq!(scratch.account.copied, levels * transaction);
        assert_eq!(tree.unassigned_nodes(), levels);
        scratch.commit(&mut tree);
    }
    assert_eq!(scratch.account.dropped, 0);
}

#[test]
fn blocks_made_and_removed_in_a_transaction_leave_no_trace() {
    let (mut scratch, mut tree) = committed(5000);
    for number in 0..3000 {
        tree.insert(&mut scratch.account, &key(100_000 + number), &[1; 60])
            .unwrap();
    }
    for number in 0..3000 {
        assert!(tree.remove(&mut scratch.account, &key(100_000 + number)).unwrap());
    }
    let levels = u64::from(tree.level()) + 1;
    assert!(scratch.account.copied <= levels + 1 && scratch.account.dropped == 0);
    assert!(tree.unassigned_nodes() <= levels);
}

#[test]
fn assigned_blocks_that_leave_before_a_freeze_are_dropped() {
    let (mut scratch, mut tree) = committed(1000);
    for number in 0..1000 {
        tree.insert(&mut scratch.account, &key(100_000 + number), &[1; 60])
            .unwrap();
    }
    scratch.assign(&mut tree);
    tree.remove_range(&mut scratch.account, key(100_000)..key(200_000), &mut |_, _| ())
        .unwrap();
    assert!(scratch.account.dropped > 10);
    scratch.commit(&mut tree);
    let used = addresses(&scratch.reopened(), committed_root(&tree));
    assert!(scratch.account.used().is_superset(&used));
    assert!(scratch.account.used().len() <= used.len() + 1);
}

#[test]
fn removed_whole_leaves_are_not_copied() {
    let (mut scratch, mut tree) = committed(20_000);
    let before = tree.view().blocks(ReadAhead::None).count() as u64;
    let count = tree
        .remove_range(&mut scratch.account, Key::MIN..Key::MAX, &mut |_, _| ())
        .unwrap();
    assert_eq!(count, 20_000);
    // At the end of this test, the tree holds only one new empty leaf in memory.
    assert_eq!(
        (scratch.account.copied, tree.unassigned_nodes(), tree.level()),
        (before, 1, 0)
    );
}

/// Records the children of blocks at the time of their copy.
struct Children {
    generation: Generation,
    seen: BTreeSet<u64>,
}

impl crate::EditContext for Children {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn copied(
        &mut self,
        _: TreeId,
        _: &crate::BlockPointer,
        block: &buttress_format::node::TreeBlock,
    ) -> Result<(), crate::ContextError> {
        self.seen
            .extend(block.pointers().map(|pointer| pointer.logical.get()));
        Ok(())
    }

    fn dropped(
        &mut self,
        _: TreeId,
        _: &crate::BlockPointer,
        _: &buttress_format::node::TreeBlock,
    ) -> Result<(), crate::ContextError> {
        Ok(())
    }
}

/// A frozen block that is copied before it is written shows its children's future addresses.
#[test]
fn children_of_frozen_blocks_have_their_addresses() {
    let (mut scratch, mut tree) = committed(20_000);
    for number in (0..20_000).step_by(100) {
        tree.update(&mut scratch.account, &key(number), &mut |data| data.fill(2))
            .unwrap();
    }
    scratch.assign(&mut tree);
    let frozen = tree.freeze().unwrap().unwrap();
    let mut children = Children {
        generation: Generation::new(50),
        seen: BTreeSet::new(),
    };
    for number in (0..20_000).step_by(100) {
        tree.update(&mut children, &key(number), &mut |data| data.fill(3))
            .unwrap();
    }
    assert!(children.seen.len() > 100);
    assert!(children.seen.is_subset(scratch.account.used()));
    drop(frozen);
}

/// A written tree has no blocks in memory. An edited tree has the blocks changed since.
#[test]
fn written_blocks_are_let_go() {
    let (mut scratch, mut tree) = committed(5000);
    for number in 0..5000 {
        tree.update(&mut scratch.account, &key(number), &mut |data| data.fill(2))
            .unwrap();
    }
    scratch.assign(&mut tree);
    let frozen = tree.freeze().unwrap().unwrap();
    let blocks = frozen.blocks().unwrap();
    tree.update(&mut scratch.account, &key(2500), &mut |data| data.fill(3))
        .unwrap();
    let levels = u64::from(tree.level()) + 1;
    for block in &blocks {
        scratch
            .forest()
            .keep_written(TREE, block.seal(buttress_format::ChecksumType::Crc32c));
    }
    let watched: Vec<_> = blocks.iter().map(|block| block.watch()).collect();
    drop(blocks);
    tree.forget_written(&frozen);
    drop(frozen);
    assert_eq!(watched.iter().filter(|block| block.strong_count() > 0).count(), 0);
    assert_eq!(tree.unassigned_nodes(), levels);
    scratch.commit(&mut tree);
    assert!(!tree.view().is_in_memory());
}

/// A freeze after the write keeps blocks that edits probably change and changes them in place; it
/// releases full blocks.
#[test]
fn kept_blocks_are_changed_where_they_are() {
    let (mut scratch, mut tree) = committed(20_000);
    let mut number = 20_000;
    let mut first = 0;
    let in_memory = |tree: &EditableTree| {
        let root = tree.root.node.as_ref().unwrap();
        let leaves = root.links.iter().flatten();
        (Arc::as_ptr(root), leaves.map(Arc::as_ptr).collect::<Vec<_>>())
    };
    let mut before = None;
    for round in 0..40 {
        for _ in 0..50 {
            tree.insert(&mut scratch.account, &key(number), &[1; 60]).unwrap();
            number += 1;
        }
        first += 1;
        tree.update(&mut scratch.account, &key(0), &mut |data| data.fill(first))
            .unwrap();
        if round > 2 {
            let (root, leaves) = in_memory(&tree);
            let (root_before, leaves_before): (_, Vec<_>) = before.unwrap();
            assert_eq!(root, root_before, "the root was copied");
            assert!(leaves_before.len() <= 2, "{leaves_before:?}");
            assert!(leaves_before.iter().all(|leaf| leaves.contains(leaf)));
        }
        scratch.commit_and_keep(&mut tree).unwrap();
        before = Some(in_memory(&tree));
        let written = all(&scratch.reopened().tree(committed_root(&tree)));
        assert_eq!(written, all(&tree.view()));
        assert_eq!(written.len(), usize::try_from(number).unwrap());
        assert_eq!(written[&key(0)][0], first);
    }
}

/// A view of kept blocks shows their old content.
#[test]
fn kept_blocks_with_a_view_are_copied() {
    let (mut scratch, mut tree) = committed(5000);
    for step in 1..20_u8 {
        tree.update(&mut scratch.account, &key(2500), &mut |data| data.fill(step))
            .unwrap();
        scratch.commit_and_keep(&mut tree).unwrap();
        let view = tree.view();
        let before = all(&view);
        tree.update(&mut scratch.account, &key(2500), &mut |data| data.fill(100))
            .unwrap();
        assert_eq!(all(&view), before);
        assert_eq!(all(&tree.view())[&key(2500)][0], 100);
    }
}

/// A snapshot's tree can hold blocks in memory that its source made and kept. Changed blocks get
/// the snapshot as owner, because the accounting would not find their references under another
/// owner.
#[test]
fn kept_blocks_of_another_tree_are_copied() {
    let (mut scratch, mut tree) = committed(5000);
    tree.update(&mut scratch.account, &key(2500), &mut |data| data.fill(1))
        .unwrap();
    scratch.commit_and_keep(&mut tree).unwrap();
    let own = TreeId::new(301);
    let mut snapshot = EditableTree::from_copied_root(&tree.view(), own, Generation::new(20)).unwrap();
    scratch.commit_and_keep(&mut snapshot).unwrap();
    drop(tree);
    snapshot
        .update(&mut scratch.account, &key(2500), &mut |data| data.fill(2))
        .unwrap();
    scratch.commit(&mut snapshot);
    let forest = scratch.reopened();
    let mut blocks = forest
        .tree(committed_root(&snapshot))
        .blocks(ReadAhead::None)
        .map(|visit| visit.unwrap().block);
    let is_changed = |block: &buttress_format::TreeBlock| block.items().any(|item| item.key == key(2500));
    let leaf = blocks.find(|block| block.is_leaf() && is_changed(block)).unwrap();
    assert_eq!(leaf.header().owner, own);
}

#[test]
fn a_copied_root_shares_everything_below_it() {
    let (mut scratch, mut tree) = committed(5000);
    let source = all(&tree.view());
    let mut snapshot =
        EditableTree::from_copied_root(&tree.view(), TreeId::new(301), Generation::new(20)).unwrap();
    assert_eq!((snapshot.unassigned_nodes(), snapshot.is_dirty()), (1, true));
    scratch.commit(&mut snapshot);
    assert_eq!(all(&snapshot.view()), source);
    tree.remove_range(&mut scratch.account, key(10)..key(4000), &mut |_, _| ())
        .unwrap();
    scratch.commit(&mut tree);
    assert_eq!(all(&scratch.reopened().tree(committed_root(&snapshot))), source);
    let root = snapshot.view().blocks(ReadAhead::None).next().unwrap().unwrap();
    assert_eq!(root.block.header().owner, TreeId::new(301));
}

/// Readers on other threads see complete states while the tree changes.
#[test]
fn views_are_read_by_other_threads_while_the_tree_changes() {
    let (mut scratch, mut tree) = committed(2000);
    let (send, receive) = crossbeam_channel::bounded::<(Tree, u64)>(4);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let receive = receive.clone();
            std::thread::spawn(move || {
                for (view, expected) in receive {
                    let (mut sum, mut count) = (0, 0);
                    for data in all(&view).values() {
                        sum += u64::from(data[0]);
                        count += 1;
                    }
                    assert_eq!((sum, count), (expected, 2000));
                }
            })
        })
        .collect();
    // Every transaction moves one unit from one item to another, so the sum stays constant.
    let mut random = Random::new(buttress_oracle::seeds::seed(
        "tree::edit::costs",
        "BUTTRESS_SEED",
        1,
    ));
    for step in 0..3000_u64 {
        let (from, to) = (key(random.below(2000)), key(random.below(2000)));
        let mut moved = 0;
        tree.update(&mut scratch.account, &from, &mut |data| {
            moved = data[0].min(1);
            data[0] -= moved;
        })
        .unwrap();
        tree.update(&mut scratch.account, &to, &mut |data| {
            let more = moved.min(u8::MAX - data[0]);
            data[0] += more;
            moved -= more;
        })
        .unwrap();
        assert_eq!(moved, 0);
        if step % 10 == 0 {
            send.send((tree.view(), 2000)).unwrap();
        }
        if step % 500 == 0 {
            scratch.commit(&mut tree);
        }
    }
    drop(send);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}
