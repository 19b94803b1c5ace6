//! Tests of refused edits, and of the state that they leave.

use super::*;
use crate::error::{Cause, ContextError};
use crate::{BlockPointer, EditContext};
use buttress_format::node::TreeBlock;
use buttress_format::node::edit::leaf_data_bytes_max;
use buttress_format::{ErrorKind, Generation};

#[test]
fn items_that_exist_or_fit_nowhere_are_refused() {
    for node_bytes in NODE_SIZES {
        let mut scratch = scratch(node_bytes);
        let mut tree = scratch.new_tree(TREE);
        let most = leaf_data_bytes_max(node_bytes);
        let context = &mut scratch.account;
        tree.insert(context, &key(1), &vec![7; most]).unwrap();
        let error = tree.insert(context, &key(1), &[]).unwrap_err();
        assert!(matches!(error.cause(), Cause::ItemExists(exists) if *exists == key(1)));
        assert_eq!(error.kind(), ErrorKind::Caller);
        for place in [key(1), key(2)] {
            let error = tree.put(context, &place, &vec![7; most + 1]).unwrap_err();
            assert!(matches!(error.cause(), Cause::ItemTooLarge { most_bytes, .. } if *most_bytes == most));
        }
        tree.insert(context, &key(0), &vec![8; most]).unwrap();
        tree.insert(context, &key(2), &vec![9; most]).unwrap();
        let expected = [(0, 8), (1, 7), (2, 9)].map(|(number, byte)| (key(number), vec![byte; most]));
        assert_eq!(all(&tree.view()), Items::from(expected));
    }
}

/// A context that accepts a limited number of blocks.
struct Limited(u32);

impl EditContext for Limited {
    fn generation(&self) -> Generation {
        Generation::new(8)
    }

    fn copied(&mut self, _: TreeId, _: &BlockPointer, _: &TreeBlock) -> Result<(), ContextError> {
        self.0 = self.0.checked_sub(1).ok_or("no more")?;
        Ok(())
    }

    fn dropped(&mut self, _: TreeId, _: &BlockPointer, _: &TreeBlock) -> Result<(), ContextError> {
        Ok(())
    }
}

fn committed(count: u64) -> (Scratch, Tree) {
    let items: Vec<_> = (0..count).map(|number| (key(number), vec![1; 40])).collect();
    let (scratch, root) = Scratch::with_tree(options(4096, 8 << 20), ByteCount::ZERO, TREE, &items);
    let tree = scratch.forest().tree(root);
    (scratch, tree)
}

#[test]
fn errors_of_the_context_come_through() {
    let (_scratch, old) = committed(5000);
    for limit in 0..3 {
        let mut tree = EditableTree::open(&old);
        assert_eq!(tree.level(), 2);
        let error = tree.insert(&mut Limited(limit), &key(100_000), &[]).unwrap_err();
        assert!(matches!(error.cause(), Cause::Context(_)), "{error}");
        assert!(error.to_string().contains("no more"));
    }
    assert!(
        EditableTree::open(&old)
            .insert(&mut Limited(3), &key(100_000), &[])
            .is_ok()
    );
}

#[test]
fn blocks_that_cannot_be_read_leave_the_tree_as_it_was() {
    let items: Vec<_> = (0..5000).map(|number| (key(number), vec![1; 40])).collect();
    let mut builder = crate::testing::ImageBuilder::new(options(4096, 8 << 20));
    let shape = crate::testing::TreeShape {
        items_per_leaf: 50,
        children_per_node: 20,
    };
    let root = builder.tree(TREE, &items, shape);
    // The first leaf is the first block of the chunk.
    builder.block_mut(crate::testing::CHUNK_LOGICAL)[200] ^= 1;
    let volume = builder.open(&root, buttress_device::Device::memory);
    let forest = Forest::new(volume, ByteCount::ZERO);
    let mut tree = EditableTree::open(&forest.tree(root));
    let mut context = Limited(0);
    for result in [
        tree.insert(&mut context, &key(0), &[]),
        tree.put(&mut context, &key(3), &[]),
        tree.remove(&mut context, &key(3)).map(drop),
        tree.update(&mut context, &key(3), &mut |_| ()).map(drop),
        tree.remove_range(&mut context, key(0)..key(9), &mut |_, _| ())
            .map(drop),
        tree.get(&key(3)).map(drop),
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(!tree.is_dirty() && tree.unassigned_nodes() == 0);
}

#[test]
fn trees_are_not_frozen_before_they_have_addresses() {
    let scratch = scratch(4096);
    let mut tree = scratch.new_tree(TREE);
    assert!(matches!(tree.freeze().unwrap_err().cause(), Cause::Broken(_)));
    let copied = EditableTree::from_copied_root(&tree.view(), TreeId::new(301), Generation::new(9));
    assert!(copied.is_err());
}
