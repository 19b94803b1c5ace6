//! Settling: what a commit does under the edit lock, until nothing is left to do.
//!
//! Dirty nodes get their addresses only here, tree by tree in order of keys, so that a tree lies together in the order in
//! which it is read. Each address makes a new extent, whose item is an edit of the extent tree, which may dirty more
//! nodes; freed and used ranges are edits of the free-space tree; both change how much of a block group is used. All of
//! them converge: a node is copied at most once a transaction, so each round finds fewer that have no address.
//!
//! Order within a round: [`STAGES`]. The root tree comes after the others because root items say where those begin.
//!
//! A stage works in parts. Before each it looks where it is going to work, and converging ends with the blocks that are
//! missing there; it also ends when the commit's slice of time is over ([`super::slice`]). They are read, or others are let
//! in, without the lock, and converging goes on where it was, with what was edited meanwhile: an address does not keep a node
//! from being changed before it is frozen. Only a whole round without anything to do, under one hold of the lock, is the end.

use super::backing::Backing;
use super::block_groups::{Found, Purpose};
use super::fault_in::{FaultIn, or_missing};
use super::running::Running;
use super::slice::Slice;
use buttress_accounts::delayed_references::{Created, ExtentKind, Reference};
use buttress_format::{ByteCount, ItemType, Key, Logical, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_tree::BlockPointer;

/// Rounds converge in a handful; more than this means that something undoes its own work.
const ROUNDS_MAX: usize = 64;

/// How many references are applied between two looks: the blocks that they work on are to be in memory together.
const REFERENCES_AT_ONCE: usize = 512;

/// A part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nodes of all trees but the root tree get addresses.
    Addresses,
    /// Root items say where their trees begin now.
    RootItems,
    /// Nodes of the root tree get addresses.
    RootTree,
    /// References are applied.
    References,
    /// The free-space tree follows the extent tree.
    FreeSpace,
    /// Block group items say how much is used.
    BlockGroups,
    /// Quota items follow what was made and freed.
    Quotas,
}

/// How far converging got when it paused.
#[derive(Debug, Default)]
pub struct Convergence {
    /// The stage that comes next.
    stage: usize,
    /// Rounds since it paused last.
    rounds: usize,
    /// Whether the round found something to do.
    is_busy: bool,
}

/// How a call of converging ended.
pub enum Converged {
    /// Nothing is left to do.
    Done,
    /// Blocks are to be read first, without the lock.
    Missing(Vec<BlockPointer>),
    /// The slice is over.
    Paused,
}

/// In this order.
const STAGES: [Stage; 7] = [
    Stage::Addresses,
    Stage::RootItems,
    Stage::RootTree,
    Stage::References,
    Stage::FreeSpace,
    Stage::BlockGroups,
    Stage::Quotas,
];

impl Running {
    /// Works until every dirty node has an address and every tree agrees with every other, until blocks are missing, or until
    /// the slice is over. What was edited before it is called again is taken in by one more round.
    pub fn converge(&mut self, reads: &FaultIn, at: &mut Convergence, slice: &Slice) -> Result<Converged> {
        while at.rounds < ROUNDS_MAX {
            while let Some(stage) = STAGES.get(at.stage).copied() {
                let missing = reads.missing_for(|| self.missing_for(stage))?;
                if !missing.is_empty() {
                    return Ok(self.pause(at, Converged::Missing(missing)));
                }
                match self.work(stage, reads) {
                    Ok(true) => at.is_busy = true,
                    Ok(false) => at.stage = at.stage.saturating_add(1),
                    Err(error) => {
                        let missing = or_missing(Err(error))?;
                        return Ok(self.pause(at, Converged::Missing(missing)));
                    }
                }
                if slice.is_over() && at.stage < STAGES.len() {
                    return Ok(self.pause(at, Converged::Paused));
                }
            }
            at.stage = 0;
            at.rounds = at.rounds.saturating_add(1);
            if !core::mem::take(&mut at.is_busy) {
                return Ok(Converged::Done);
            }
        }
        let left = ByteCount::of(self.core.references.len()).get();
        let defect = Defect::new("a commit did not come to rest").with("references", left);
        Err(defect.with("rounds", ROUNDS_MAX as i128).into())
    }

    fn pause(&mut self, at: &mut Convergence, why: Converged) -> Converged {
        self.let_others_in(at);
        why
    }

    /// Others may edit now: one more round has to look at everything.
    pub fn let_others_in(&mut self, at: &mut Convergence) {
        at.is_busy = true;
        at.rounds = 0;
        self.note_gap();
    }

    /// Others may edit before settling goes on: what it has still to record of space takes room that is not theirs.
    fn note_gap(&mut self) {
        let ranges = self.core.groups.iter().fold(0_usize, |sum, group| {
            sum.saturating_add(group.became_used.count())
                .saturating_add(group.became_free.count())
        });
        self.core.unrecorded_ranges = ByteCount::of(ranges).get();
    }

    /// What a stage is going to need and is not in memory. Changes nothing that anybody sees.
    fn missing_for(&mut self, stage: Stage) -> Result<Vec<BlockPointer>> {
        match stage {
            // Places are looked for when they are taken.
            Stage::Addresses | Stage::RootTree => Ok(Vec::new()),
            Stage::RootItems => {
                let changed = self.changed_root_items();
                self.missing_along(TreeId::ROOT, changed.into_iter().map(|(_, key)| (key, key)))
            }
            Stage::References => self.missing_for_references(REFERENCES_AT_ONCE),
            Stage::FreeSpace => self.missing_for_free_space(),
            Stage::BlockGroups => {
                let groups = self.core.groups.iter();
                let changed = groups.filter(|group| group.written_used != Some(group.used));
                let keys: Vec<Key> = changed.map(|group| group.item_key()).collect();
                let tree = self.block_group_tree();
                self.missing_along(tree, keys.into_iter().map(|key| (key, key)))
            }
            Stage::Quotas => self.look_at_quotas().map(|()| Vec::new()),
        }
    }

    /// Does the next part of what a stage has to do. Returns whether there was any: false ends the stage. A block that is missing to find places ends it before
    /// any is given out.
    fn work(&mut self, stage: Stage, reads: &FaultIn) -> Result<bool> {
        match stage {
            Stage::Addresses => self.assign_next(reads),
            Stage::RootItems => self.write_root_items(),
            Stage::RootTree => self.assign_tree(TreeId::ROOT, reads),
            Stage::References => {
                let any = !self.core.references.is_empty();
                self.run_some_references(REFERENCES_AT_ONCE)?;
                Ok(any)
            }
            Stage::FreeSpace => {
                self.core.unrecorded_ranges = 0;
                self.update_free_space_tree()
            }
            Stage::BlockGroups => self.write_block_groups(),
            Stage::Quotas => self.write_quotas(),
        }
    }

    /// Gives addresses to the nodes of the next tree, but the root tree, that has some without. Returns whether there was one.
    fn assign_next(&mut self, reads: &FaultIn) -> Result<bool> {
        if self.core.extent.tree.unassigned_nodes() > 0 {
            return self.assign_tree(TreeId::EXTENT, reads);
        }
        let next = self
            .trees
            .iter()
            .find(|(id, open)| **id != TreeId::ROOT && open.tree.unassigned_nodes() > 0)
            .map(|(id, _)| *id);
        match next {
            Some(id) => self.assign_tree(id, reads),
            None => Ok(false),
        }
    }

    /// Gives addresses to the nodes of a tree that have none. Returns whether there were any.
    fn assign_tree(&mut self, id: TreeId, reads: &FaultIn) -> Result<bool> {
        if self.unassigned_nodes(id) == 0 {
            return Ok(false);
        }
        let purpose = if id == TreeId::CHUNK {
            Purpose::System
        } else {
            Purpose::Metadata
        };
        let places = {
            let _look = reads.look();
            self.allocate_nodes(purpose, id)?
        };
        self.core.nodes_addressed = self
            .core
            .nodes_addressed
            .saturating_add(ByteCount::of(places.len()).get());
        let mut places = places.into_iter();
        let node_bytes = self.core.node_bytes();
        let Self { core, trees, .. } = self;
        let references = &mut core.references;
        let mut assign = |level: u8, first_key: Key| {
            // As many places were found as there are nodes; an address that is made up would be written to.
            let logical = places.next().ok_or_else(|| {
                Error::from(Defect::new("a commit found fewer places than it has tree blocks"))
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
        let open = match id {
            TreeId::EXTENT => Some(&core.extent),
            _ => trees.get(id),
        };
        if let Some(open) = open {
            open.tree.edit(|tree| tree.for_each_unassigned(&mut assign))?;
        }
        for unused in places {
            self.core.groups.give_back(unused.get(), node_bytes.get())?;
        }
        Ok(true)
    }

    fn unassigned_nodes(&self, id: TreeId) -> u64 {
        match id {
            TreeId::EXTENT => self.core.extent.tree.unassigned_nodes(),
            _ => self.trees.get(id).map_or(0, |open| open.tree.unassigned_nodes()),
        }
    }

    /// Addresses for the nodes of a tree that have none, in as few runs as there can be. Nothing stays taken after an error.
    fn allocate_nodes(&mut self, purpose: Purpose, id: TreeId) -> Result<Vec<Logical>> {
        let mut places = Vec::new();
        let cursor = self.core.groups.cursor(purpose);
        let result = self.take_nodes(purpose, id, &mut places);
        if let Err(error) = result {
            let node_bytes = self.core.node_bytes().get();
            for place in places {
                let given = self.core.groups.give_back(place.get(), node_bytes);
                self.core.settle(given);
            }
            self.core.groups.go_on_at(purpose, cursor);
            return Err(error);
        }
        Ok(places)
    }

    fn take_nodes(&mut self, purpose: Purpose, id: TreeId, places: &mut Vec<Logical>) -> Result<()> {
        let node_bytes = self.core.node_bytes().get();
        loop {
            // Counted anew: a chunk that was made is an edit of these trees, too.
            let left = self
                .unassigned_nodes(id)
                .saturating_sub(ByteCount::of(places.len()).get());
            if left == 0 {
                return Ok(());
            }
            let wanted = left.saturating_mul(node_bytes);
            match self
                .core
                .groups
                .allocate(purpose, wanted, node_bytes, node_bytes)?
            {
                Found::Range(start, length) => {
                    // At least one, which was asked for; never none, or this would not end.
                    let count = length.checked_div(node_bytes).unwrap_or(0).max(1);
                    for index in 0..count {
                        places.push(Logical::new(
                            start.saturating_add(index.saturating_mul(node_bytes)),
                        ));
                    }
                }
                Found::Load(group) => self.load_group(group)?,
                Found::Nothing => {
                    let backing = self.back_more(purpose, wanted)?;
                    if backing == Backing::More {
                        continue;
                    }
                    if backing == Backing::HostFull || !self.allocate_chunk(purpose)? {
                        return Err(self.host_failure().unwrap_or(Error::NoSpace {
                            what: "metadata",
                            wanted: ByteCount::new(wanted),
                            pinned_by_readers: ByteCount::ZERO,
                        }));
                    }
                }
            }
        }
    }

    /// The trees that begin elsewhere than their root items say, or whose items changed: the keys of those.
    fn changed_root_items(&self) -> Vec<(TreeId, Key)> {
        let own = core::iter::once((&TreeId::EXTENT, &self.core.extent));
        let mut changed: Vec<(TreeId, Key)> = own
            .chain(self.trees.iter())
            .filter_map(|(id, open)| {
                let item = open.item.as_ref()?;
                let root = (open.tree.root_logical()?, open.tree.level());
                let is_changed = open.item_changed || (item.logical, item.level) != root;
                let key = Key::new(id.object_id(), ItemType::ROOT_ITEM, open.item_offset);
                is_changed.then_some((*id, key))
            })
            .collect();
        changed.sort_unstable_by_key(|(_, key)| *key);
        changed
    }

    /// Brings root items up to date with where trees begin now.
    fn write_root_items(&mut self) -> Result<bool> {
        let changed = self.changed_root_items();
        let generation = self.core.generation;
        for (id, key) in &changed {
            let open = self.open_tree(*id)?;
            let (logical, level) = (open.tree.root_logical(), open.tree.level());
            let is_dirty = open.tree.is_dirty();
            let (Some(item), Some(logical)) = (open.item.as_mut(), logical) else {
                continue;
            };
            if is_dirty {
                item.generation = generation;
            }
            item.generation_v2 = item.generation;
            item.logical = logical;
            item.level = level;
            open.item_changed = false;
            let bytes = item.to_bytes();
            self.put(TreeId::ROOT, key, &bytes)?;
        }
        Ok(!changed.is_empty())
    }

    /// Brings block group items up to date with how much is used.
    fn write_block_groups(&mut self) -> Result<bool> {
        let mut changed = Vec::new();
        for group in self.core.groups.iter_mut() {
            if group.written_used != Some(group.used) {
                group.written_used = Some(group.used);
                changed.push((group.item_key(), group.item()));
            }
        }
        let tree = self.block_group_tree();
        let any = !changed.is_empty();
        let stale = usize::from(buttress_faults::on("ledger-group-item-stale"));
        for (key, item) in changed.into_iter().skip(stale) {
            self.put(tree, &key, &item.to_bytes())?;
        }
        Ok(any)
    }
}
