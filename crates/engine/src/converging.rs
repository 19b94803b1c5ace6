//! Convergence: the commit's work under the edit lock, repeated until no work is left.
//!
//! Dirty nodes get their addresses only here, tree by tree in order of keys. The nodes of a tree
//! therefore lie together in the order in which readers read them. Each address makes a new extent,
//! whose item is an edit of the extent tree, and that edit may dirty more nodes. Recording used and
//! freed ranges edits the free-space tree. New extents and freed ranges change the used bytes of a
//! block group. A commit's own edits converge: a transaction copies a node at most once, so each
//! round finds fewer unassigned nodes.
//!
//! The order of the stages within a round is [`STAGES`]. The root tree follows the other trees
//! because root items record where those trees begin.
//!
//! A stage of convergence works in parts. Before each part, the stage inspects the places that the
//! part will edit. If blocks are missing at these places, convergence returns them. Convergence
//! also returns at the end of the commit's slice of time ([`super::slice`]). After releasing the
//! edit lock, the caller reads the blocks or lets other threads edit. Convergence then continues,
//! and includes the edits of that time: a node with an address may still change until it is frozen.
//! Convergence ends only after a whole round without any work, under one hold of the edit lock.

use super::backing::Backing;
use super::block_groups::{Found, Purpose};
use super::fault_in::{FaultIn, or_missing};
use super::running::Running;
use super::slice::Slice;
use crate::running_parts::Converging;
use buttress_accounts::delayed_references::{Created, ExtentKind, Reference};
use buttress_format::{ByteCount, ItemType, Key, Logical, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_tree::BlockPointer;

/// The maximum number of rounds of convergence. Convergence needs a handful of rounds; more rounds
/// mean that a stage undoes its own work.
const ROUNDS_MAX: usize = 64;

/// How many references one part applies. All blocks that one part's references change must be in
/// memory together.
const REFERENCES_AT_ONCE: usize = 512;

/// A part of a round of convergence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Gives addresses to the nodes of all trees except the root tree.
    Addresses,
    /// Updates root items with the addresses at which their trees now begin.
    RootItems,
    /// Gives addresses to the nodes of the root tree.
    RootTree,
    /// Applies delayed references to the extent tree.
    References,
    /// Updates the free-space tree after changes of the extent tree.
    FreeSpace,
    /// Updates the used bytes in block group items.
    BlockGroups,
    /// Updates quota items after the transaction made and freed extents.
    Quotas,
}

/// The position of convergence at its last pause.
#[derive(Debug, Default)]
pub struct Convergence {
    /// The index of the next stage in [`STAGES`].
    stage: usize,
    /// The number of rounds of convergence since the last pause.
    rounds: usize,
    /// Whether the current round of convergence found work.
    is_busy: bool,
}

/// The result of one call of [`Converging::run`].
pub enum Converged {
    /// No work of the commit is left.
    Done,
    /// The caller must release the edit lock and read these blocks before the commit continues.
    Missing(Vec<BlockPointer>),
    /// The commit's time slice under the edit lock is over.
    Paused,
}

/// The stages of a round in their order.
const STAGES: [Stage; 7] = [
    Stage::Addresses,
    Stage::RootItems,
    Stage::RootTree,
    Stage::References,
    Stage::FreeSpace,
    Stage::BlockGroups,
    Stage::Quotas,
];

impl Converging<'_> {
    /// Works until every dirty node has an address and all trees describe each other correctly.
    /// Returns early if blocks are missing or the time slice is over. The next call includes all
    /// edits made between the two calls in one more round.
    pub fn run(&mut self, reads: &FaultIn, at: &mut Convergence, slice: &Slice) -> Result<Converged> {
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
        let left = ByteCount::of(self.running.core.references.len()).get();
        let defect = Defect::new("a commit did not come to rest").with("references", left);
        Err(defect.with("rounds", ROUNDS_MAX as i128).into())
    }

    fn pause(&mut self, at: &mut Convergence, why: Converged) -> Converged {
        self.let_others_in(at);
        why
    }

    /// While convergence pauses, prepares for edits of other threads. After the pause, convergence
    /// inspects everything in another round.
    pub fn let_others_in(&mut self, at: &mut Convergence) {
        at.is_busy = true;
        at.rounds = 0;
        self.note_gap();
    }

    /// Counts a range that convergence must still record in the free-space tree. Edits outside of
    /// convergence must not use the space of these ranges.
    fn note_gap(&mut self) {
        let ranges = self.running.core.groups.iter().fold(0_usize, |sum, group| {
            sum.saturating_add(group.became_used.count())
                .saturating_add(group.became_free.count())
        });
        self.running.core.unrecorded_ranges = ByteCount::of(ranges).get();
    }

    /// Returns the blocks that a stage will need and that are not in memory. The call changes
    /// nothing that a reader sees.
    fn missing_for(&mut self, stage: Stage) -> Result<Vec<BlockPointer>> {
        match stage {
            // For these two stages, the allocation itself finds the missing blocks.
            Stage::Addresses | Stage::RootTree => Ok(Vec::new()),
            Stage::RootItems => {
                let changed = self.changed_root_items();
                self.running
                    .missing_along(TreeId::ROOT, changed.into_iter().map(|(_, key)| (key, key)))
            }
            Stage::References => self.running.missing_for_references(REFERENCES_AT_ONCE),
            Stage::FreeSpace => self.running.free_space_tree().missing(),
            Stage::BlockGroups => {
                let groups = self.running.core.groups.iter();
                let changed = groups.filter(|group| group.written_used != Some(group.used));
                let keys: Vec<Key> = changed.map(|group| group.item_key()).collect();
                let tree = self.running.core.block_group_tree();
                self.running
                    .missing_along(tree, keys.into_iter().map(|key| (key, key)))
            }
            Stage::Quotas => self.running.quota_tree().reach_changed().map(|()| Vec::new()),
        }
    }

    /// Does the next part of a stage of convergence. Returns false if no work is left, which ends
    /// the stage. If a block needed for finding addresses is missing, the work fails before it
    /// assigns any address.
    fn work(&mut self, stage: Stage, reads: &FaultIn) -> Result<bool> {
        match stage {
            Stage::Addresses => self.assign_next(reads),
            Stage::RootItems => self.write_root_items(),
            Stage::RootTree => self.assign_tree(TreeId::ROOT, reads),
            Stage::References => {
                let any = !self.running.core.references.is_empty();
                self.running.extent_tree().run_references(REFERENCES_AT_ONCE)?;
                Ok(any)
            }
            Stage::FreeSpace => {
                self.running.core.unrecorded_ranges = 0;
                self.running.free_space_tree().update()
            }
            Stage::BlockGroups => self.write_block_groups(),
            Stage::Quotas => self.running.quota_tree().write(),
        }
    }

    /// Gives addresses to the nodes of the next tree that needs some, except the root tree. Returns
    /// whether a tree needed an address.
    fn assign_next(&mut self, reads: &FaultIn) -> Result<bool> {
        if self.running.core.extent.tree.unassigned_nodes() > 0 {
            return self.assign_tree(TreeId::EXTENT, reads);
        }
        let next = self
            .running
            .trees
            .iter()
            .find(|(id, open)| **id != TreeId::ROOT && open.tree.unassigned_nodes() > 0)
            .map(|(id, _)| *id);
        match next {
            Some(id) => self.assign_tree(id, reads),
            None => Ok(false),
        }
    }

    /// Gives addresses to all nodes of a tree that have none. Returns whether any node of the tree
    /// lacked an address.
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
            let _rule = reads.guard();
            self.allocate_nodes(purpose, id)?
        };
        self.running.core.nodes_addressed = self
            .running
            .core
            .nodes_addressed
            .saturating_add(ByteCount::of(places.len()).get());
        let mut places = places.into_iter();
        let node_bytes = self.running.core.node_bytes();
        let Running { core, trees, .. } = &mut *self.running;
        let references = &mut core.references;
        let mut assign = |level: u8, first_key: Key| {
            // The allocator returned one address for each node. A commit would write the block to
            // any address that this code invented.
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
            self.running
                .core
                .groups
                .give_back(unused.get(), node_bytes.get())?;
        }
        Ok(true)
    }

    fn unassigned_nodes(&self, id: TreeId) -> u64 {
        match id {
            TreeId::EXTENT => self.running.core.extent.tree.unassigned_nodes(),
            _ => self
                .running
                .trees
                .get(id)
                .map_or(0, |open| open.tree.unassigned_nodes()),
        }
    }

    /// Allocates addresses for all unassigned nodes of a tree, in as few runs as possible. After an
    /// error, no node's address stays allocated.
    fn allocate_nodes(&mut self, purpose: Purpose, id: TreeId) -> Result<Vec<Logical>> {
        let mut places = Vec::new();
        let cursor = self.running.core.groups.cursor(purpose);
        let result = self.take_nodes(purpose, id, &mut places);
        if let Err(error) = result {
            let node_bytes = self.running.core.node_bytes().get();
            for place in places {
                let given = self.running.core.groups.give_back(place.get(), node_bytes);
                self.running.core.settle(given);
            }
            self.running.core.groups.go_on_at(purpose, cursor);
            return Err(error);
        }
        Ok(places)
    }

    fn take_nodes(&mut self, purpose: Purpose, id: TreeId, places: &mut Vec<Logical>) -> Result<()> {
        let node_bytes = self.running.core.node_bytes().get();
        loop {
            // Count again in each turn, because making a chunk also edits these trees.
            let left = self
                .unassigned_nodes(id)
                .saturating_sub(ByteCount::of(places.len()).get());
            if left == 0 {
                return Ok(());
            }
            let wanted = left.saturating_mul(node_bytes);
            match self
                .running
                .core
                .groups
                .allocate(purpose, wanted, node_bytes, node_bytes)?
            {
                Found::Range(start, length) => {
                    // The allocator returned at least the length of one node, as requested. A run
                    // of zero nodes would repeat this loop forever.
                    let count = length.checked_div(node_bytes).unwrap_or(0).max(1);
                    for index in 0..count {
                        places.push(Logical::new(
                            start.saturating_add(index.saturating_mul(node_bytes)),
                        ));
                    }
                }
                Found::Load(group) => self.running.load_group(group)?,
                Found::Nothing => {
                    let backing = self.running.host_space().back_more(purpose, wanted)?;
                    if backing == Backing::More {
                        continue;
                    }
                    if backing == Backing::HostFull || !self.running.chunks().allocate(purpose)? {
                        return Err(self.running.core.host_failure().unwrap_or(Error::NoSpace {
                            what: "metadata",
                            wanted: ByteCount::new(wanted),
                            pinned_by_readers: ByteCount::ZERO,
                            reclaimable: self.running.core.groups.reclaimable(purpose),
                        }));
                    }
                }
            }
        }
    }

    /// Returns the keys of root items that changed, or whose trees have a root at another address
    /// than recorded.
    fn changed_root_items(&self) -> Vec<(TreeId, Key)> {
        let own = core::iter::once((&TreeId::EXTENT, &self.running.core.extent));
        let mut changed: Vec<(TreeId, Key)> = own
            .chain(self.running.trees.iter())
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

    /// Updates root items with the addresses at which their trees now begin.
    fn write_root_items(&mut self) -> Result<bool> {
        let changed = self.changed_root_items();
        let generation = self.running.core.generation;
        for (id, key) in &changed {
            let open = self.running.open_tree(*id)?;
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
            self.running.put(TreeId::ROOT, key, &bytes)?;
        }
        Ok(!changed.is_empty())
    }

    /// Updates block group items with the used bytes of their groups.
    fn write_block_groups(&mut self) -> Result<bool> {
        let mut changed = Vec::new();
        for group in self.running.core.groups.iter_mut() {
            if group.written_used != Some(group.used) {
                group.written_used = Some(group.used);
                changed.push((group.item_key(), group.item()));
            }
        }
        let tree = self.running.core.block_group_tree();
        let any = !changed.is_empty();
        let stale = usize::from(buttress_faults::on("ledger-group-item-stale"));
        for (key, item) in changed.into_iter().skip(stale) {
            self.running.put(tree, &key, &item.to_bytes())?;
        }
        Ok(any)
    }
}
