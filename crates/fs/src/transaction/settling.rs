//! Settling: what a commit does under the edit lock, until nothing is left to do.
//!
//! Dirty nodes get their addresses only here, tree by tree in order of keys, so that a tree lies together in the order in
//! which it is read. Each address makes a new extent, whose item is an edit of the extent tree, which may dirty more
//! nodes; freed and used ranges are edits of the free-space tree; both change how much of a block group is used. All of
//! them converge: a node is copied at most once a transaction, so each round finds fewer that have no address.
//!
//! Order within a round: addresses of all trees but the root tree; root items; the root tree; references; free space;
//! block groups. The root tree comes after the others because root items say where those begin.

use super::block_groups::{Found, Purpose};
use super::delayed_references::{Created, ExtentKind, Reference};
use super::running::Running;
use crate::error::{Error, Result};
use buttress_format::{ByteCount, ItemType, Key, Logical, ObjectId, RootItem, TreeId};

/// Rounds converge in a handful; more than this means that something undoes its own work.
const ROUNDS_MAX: usize = 64;

impl Running {
    /// Works until every dirty node has an address and every tree agrees with every other.
    pub(crate) fn settle(&mut self) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let mut busy = self.assign_all()?;
            busy |= self.write_root_items()?;
            busy |= self.assign_tree(TreeId::ROOT)?;
            busy |= self.run_delayed_references()?;
            busy |= self.update_free_space_tree()?;
            busy |= self.write_block_groups()?;
            busy |= self.write_quotas()?;
            if !busy {
                return Ok(());
            }
        }
        Err(Error::Defect {
            what: "a commit did not come to rest",
        })
    }

    fn assign_all(&mut self) -> Result<bool> {
        let ids: Vec<TreeId> = self
            .trees
            .keys()
            .copied()
            .filter(|id| *id != TreeId::ROOT)
            .collect();
        let mut any = self.assign_tree(TreeId::EXTENT)?;
        for id in ids {
            any |= self.assign_tree(id)?;
        }
        Ok(any)
    }

    /// Gives addresses to the nodes of a tree that have none. Returns whether there were any.
    fn assign_tree(&mut self, id: TreeId) -> Result<bool> {
        let nodes = match id {
            TreeId::EXTENT => self.core.extent.tree.unassigned_nodes(),
            _ => self.trees.get(&id).map_or(0, |open| open.tree.unassigned_nodes()),
        };
        if nodes == 0 {
            return Ok(false);
        }
        let purpose = if id == TreeId::CHUNK {
            Purpose::System
        } else {
            Purpose::Metadata
        };
        let mut places = self.allocate_nodes(purpose, nodes)?.into_iter();
        let node_bytes = self.core.node_bytes();
        let Self { core, trees, .. } = self;
        let references = &mut core.references;
        let mut assign = |level: u8, first_key: Key| {
            // As many places were found as there are nodes; an address that is made up would be written to.
            let logical = places.next().ok_or(Error::Defect {
                what: "a commit found fewer places than it has tree blocks",
            })?;
            let kind = ExtentKind::TreeBlock { level };
            let reference = Reference::TreeBlock { root: id };
            let created = Created {
                owner: id,
                first_key: Some(first_key),
            };
            references.create(logical, node_bytes, kind, created, reference);
            Ok(logical)
        };
        match id {
            TreeId::EXTENT => core.extent.tree.for_each_unassigned(&mut assign)?,
            _ => {
                if let Some(open) = trees.get_mut(&id) {
                    open.tree.for_each_unassigned(&mut assign)?;
                }
            }
        }
        for unused in places {
            self.core.groups.give_back(unused.get(), node_bytes.get());
        }
        Ok(true)
    }

    /// Addresses for so many nodes, in as few runs as there can be.
    fn allocate_nodes(&mut self, purpose: Purpose, nodes: u64) -> Result<Vec<Logical>> {
        let node_bytes = self.core.node_bytes().get();
        let mut places = Vec::with_capacity(usize::try_from(nodes).unwrap_or(0));
        let mut left = nodes;
        while left > 0 {
            let wanted = left.saturating_mul(node_bytes);
            match self.core.groups.allocate(purpose, wanted, node_bytes, node_bytes) {
                Found::Range(start, length) => {
                    let count = length.checked_div(node_bytes).unwrap_or(0);
                    for index in 0..count {
                        places.push(Logical::new(
                            start.saturating_add(index.saturating_mul(node_bytes)),
                        ));
                    }
                    left = left.saturating_sub(count.max(1));
                }
                Found::Load(group) => self.load_group(group)?,
                Found::Nothing => {
                    if !self.allocate_chunk(purpose)? {
                        return Err(Error::NoSpace {
                            what: "metadata",
                            wanted: ByteCount::new(wanted),
                            pinned_by_readers: ByteCount::ZERO,
                        });
                    }
                }
            }
        }
        Ok(places)
    }

    /// Brings root items up to date with where trees begin now.
    fn write_root_items(&mut self) -> Result<bool> {
        let mut changed: Vec<(Key, RootItem)> = Vec::new();
        let generation = self.core.generation;
        let own = core::iter::once((&TreeId::EXTENT, &mut self.core.extent));
        for (id, open) in own.chain(self.trees.iter_mut()) {
            let Some(logical) = open.tree.root_logical() else {
                continue;
            };
            let level = open.tree.level();
            let is_dirty = open.tree.is_dirty();
            let Some(item) = open.item.as_mut() else {
                continue;
            };
            if (item.logical, item.level) == (logical, level) && !open.item_changed {
                continue;
            }
            if is_dirty {
                item.generation = generation;
            }
            item.generation_v2 = item.generation;
            item.logical = logical;
            item.level = level;
            open.item_changed = false;
            let key = Key::new(id.object_id(), ItemType::ROOT_ITEM, open.item_offset);
            changed.push((key, item.clone()));
        }
        let any = !changed.is_empty();
        for (key, item) in changed {
            self.put(TreeId::ROOT, &key, &item.to_bytes())?;
        }
        Ok(any)
    }

    /// Brings block group items up to date with how much is used.
    fn write_block_groups(&mut self) -> Result<bool> {
        let mut changed = Vec::new();
        for group in self.core.groups.iter_mut() {
            if group.written_used != Some(group.used) {
                group.written_used = Some(group.used);
                changed.push(group.item());
            }
        }
        let tree = self.block_group_tree();
        let any = !changed.is_empty();
        for item in changed {
            let key = Key::new(
                ObjectId::new(item.start.get()),
                ItemType::BLOCK_GROUP_ITEM,
                item.length.get(),
            );
            self.put(tree, &key, &item.to_bytes())?;
        }
        Ok(any)
    }
}
