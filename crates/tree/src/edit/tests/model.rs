//! Tests of random edits with commits against a map, and of views against the map at their moment.

use super::*;

/// A tree, its map, and the other state of a run.
struct Run {
    scratch: Scratch,
    tree: EditableTree,
    model: Items,
    views: Vec<(Tree, Items)>,
    random: Random,
    node_bytes: u32,
    /// The addresses of the second tree, which does not change.
    other: BTreeSet<u64>,
}

impl Run {
    fn new(seed: u64, node_bytes: u32) -> Self {
        let scratch = scratch(node_bytes);
        let tree = scratch.new_tree(TREE);
        let other = scratch.account.used().clone();
        Self {
            scratch,
            tree,
            model: Items::new(),
            views: Vec::new(),
            random: Random::new(seed),
            node_bytes,
            other,
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let most = buttress_format::node::edit::leaf_data_bytes_max(self.node_bytes);
        let longest = match self.random.below(20) {
            0 => most,
            1..=4 => most / 4,
            _ => 80,
        };
        let length = self.random.below(longest as u64 + 1) as usize;
        data(&mut self.random, length)
    }

    fn step(&mut self, keys: u64) {
        let place = key(self.random.below(keys));
        let bytes = self.bytes();
        let context = &mut self.scratch.account;
        match self.random.below(100) {
            0..=29 => {
                let result = self.tree.insert(context, &place, &bytes);
                assert_eq!(result.is_ok(), !self.model.contains_key(&place));
                self.model.entry(place).or_insert(bytes);
            }
            30..=49 => {
                self.tree.put(context, &place, &bytes).unwrap();
                self.model.insert(place, bytes);
            }
            50..=59 => {
                let changed = self
                    .tree
                    .update(context, &place, &mut |data| data.fill(9))
                    .unwrap();
                let item = self.model.get_mut(&place);
                assert_eq!(changed, item.is_some());
                item.into_iter().for_each(|item| item.fill(9));
            }
            60..=84 => {
                let removed = self.tree.remove(context, &place).unwrap();
                assert_eq!(removed, self.model.remove(&place).is_some());
            }
            85..=87 => self.remove_range(place, keys),
            88..=92 => self.insert_row(place),
            93..=94 => self.views.push((self.tree.view(), self.model.clone())),
            95..=96 => {
                let number = self.random.below(self.views.len() as u64 + 1) as usize;
                if number < self.views.len() {
                    let (view, model) = self.views.swap_remove(number);
                    assert_eq!(all(&view), model);
                }
            }
            97 => self.commit(),
            _ => self.look_up(&place),
        }
    }

    fn remove_range(&mut self, start: Key, keys: u64) {
        let end = key(self.random.below(keys / 4) + (start.objectid.get() - 1000) * 20);
        let expected: Vec<_> = if start < end {
            let range = self.model.range(start..end);
            range.map(|(key, data)| (*key, data.clone())).collect()
        } else {
            Vec::new()
        };
        let mut removed = Vec::new();
        let context = &mut self.scratch.account;
        let count = self
            .tree
            .remove_range(context, start..end, &mut |key, data| {
                removed.push((*key, data.to_vec()))
            })
            .unwrap();
        assert_eq!(count as usize, expected.len());
        assert_eq!(removed, expected);
        removed.iter().for_each(|(key, _)| drop(self.model.remove(key)));
    }

    /// Inserts a sequence of new items in one call.
    fn insert_row(&mut self, start: Key) {
        let first = (start.objectid.get() - 1000) * 20 + start.offset;
        let count = self.random.below(60);
        let mut new = Vec::new();
        for number in first..first + count {
            if !self.model.contains_key(&key(number)) {
                let bytes = self.bytes();
                new.push((key(number), bytes));
            }
        }
        let list: Vec<(Key, &[u8])> = new.iter().map(|(key, data)| (*key, &data[..])).collect();
        self.tree.insert_many(&mut self.scratch.account, &list).unwrap();
        self.model.extend(new);
    }

    fn look_up(&self, place: &Key) {
        let found = |item: Option<crate::OwnedItem>| item.map(|item| (item.key(), item.data().to_vec()));
        let expected = |item: Option<(&Key, &Vec<u8>)>| item.map(|(key, data)| (*key, data.clone()));
        let (tree, model) = (&self.tree, &self.model);
        assert_eq!(
            found(tree.get(place).unwrap()),
            expected(model.get_key_value(place))
        );
        assert_eq!(
            found(tree.at_or_before(place).unwrap()),
            expected(model.range(..=place).next_back())
        );
        assert_eq!(
            found(tree.at_or_after(place).unwrap()),
            expected(model.range(place..).next())
        );
        assert_eq!(tree.with_item(place, |_| ()).unwrap(), model.contains_key(place));
    }

    fn commit(&mut self) {
        let was_dirty = self.tree.is_dirty();
        let keeps = self.random.below(2) == 0;
        let written = match keeps {
            true => self.scratch.commit_and_keep(&mut self.tree),
            false => self.scratch.commit(&mut self.tree),
        };
        assert_eq!(written.is_some(), was_dirty);
        assert!(!self.tree.is_dirty());
        match keeps {
            true => self.check(),
            false if was_dirty => assert!(!self.tree.view().is_in_memory()),
            false => {}
        }
        let root = committed_root(&self.tree);
        let forest = self.scratch.reopened();
        assert_eq!(all(&forest.tree(root)), self.model);
        let mut expected = addresses(&forest, root);
        expected.extend(&self.other);
        assert_eq!(
            self.scratch.account.used(),
            &expected,
            "each block is accounted for"
        );
        if self.views.is_empty() {
            self.scratch.unpin();
        }
    }

    fn check(&self) {
        assert_eq!(all(&self.tree.view()), self.model);
    }
}

fn run(seed: u64, node_bytes: u32, steps: u64, keys: u64) {
    let mut run = Run::new(seed, node_bytes);
    for step in 0..steps {
        run.step(keys);
        if step % 64 == 0 {
            run.check();
        }
    }
    for (view, model) in core::mem::take(&mut run.views) {
        assert_eq!(all(&view), model);
    }
    run.commit();
    // The step empties the tree and refills it.
    for place in run.model.keys().copied().collect::<Vec<_>>() {
        assert!(run.tree.remove(&mut run.scratch.account, &place).unwrap());
        run.model.remove(&place);
        if run.random.below(200) == 0 {
            run.commit();
        }
    }
    run.commit();
    assert_eq!((run.tree.level(), run.model.len()), (0, 0));
    run.insert_row(key(0));
    run.commit();
}

#[test]
fn random_edits_agree_with_a_map_for_every_node_size() {
    let first = buttress_oracle::seeds::seed("tree::edit::model", "BUTTRESS_SEED", 0);
    for (index, node_bytes) in (0_u64..).zip(NODE_SIZES) {
        for (number, keys) in (0_u64..).zip([40, 400, 3000]) {
            run(first + index * 10 + number, node_bytes, 3000, keys);
        }
    }
}

#[test]
fn high_trees_agree_with_a_map() {
    // Many keys in blocks of 4 KiB make a tree of three levels above the leaves.
    let mut run = Run::new(
        buttress_oracle::seeds::seed("tree::edit::model::high", "BUTTRESS_SEED", 77),
        4096,
    );
    for round in 0..40_u64 {
        for number in 0..1000 {
            let number = (number * 40 + round * 7) % 40_000;
            let bytes = data(&mut run.random, 150);
            run.tree
                .put(&mut run.scratch.account, &key(number), &bytes)
                .unwrap();
            run.model.insert(key(number), bytes);
        }
        if round % 8 == 7 {
            run.commit();
        }
    }
    assert!(run.tree.level() >= 2, "{}", run.tree.level());
    run.commit();
    for _ in 0..3000 {
        run.step(40_000);
    }
    run.views.clear();
    run.commit();
    run.remove_range(key(50), 160_000);
    run.commit();
}
