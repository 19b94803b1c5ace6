//! Freezing: turns a converged transaction into the state that a commit writes, and opens the next
//! transaction.

use super::converging::{Converged, Convergence};
use super::fault_in::FaultIn;
use super::pins::Readers;
use super::recount::Recount;
use super::running::Running;
use super::slice::Slice;
use super::trees::OpenTree;
use crate::core_state::Core;
use crate::running_parts::Freezing;
use buttress_format::{
    BackupRoot, BackupTree, ByteCount, ChecksumType, DeviceId, DeviceItem, Generation, Key, Logical,
    Superblock, TreeBlock, TreeId, Uuid,
};
use buttress_fs::error::{Error, Result};
use buttress_tree::{BlockPointer, EditableTree, Frozen};
use buttress_volume::Volume;

/// The number of trees that stay open between transactions.
const OPEN_TREES_KEPT: usize = 256;

/// The state that a commit writes.
#[derive(Debug)]
pub struct Prepared {
    /// The frozen blocks of each changed tree.
    pub frozen: Vec<Frozen>,
    pub(crate) superblock: Superblock,
    pub(crate) device_items: Vec<DeviceItem>,
    /// The used bytes of each block group in this state.
    pub groups: Vec<(u64, u64)>,
    /// The bytes of all frozen tree blocks.
    pub frozen_bytes: u64,
    /// The block groups and free ranges to recount against the frozen trees.
    pub recount: Option<Recount>,
    /// Device extents of chunks that this transaction removed.
    pub freed_device_extents: Vec<(DeviceId, u64, u64)>,
    /// Devices that leave the volume with this commit.
    pub(crate) leaving: Vec<Uuid>,
    /// Whether the replacement's target takes the source's place in this commit.
    pub replaces: bool,
}

/// The result of preparing a commit.
#[derive(Debug)]
pub enum Preparation {
    /// The running transaction changed nothing.
    NothingToDo,
    /// The commit needs these blocks: the caller must release the lock and read them first.
    Missing(Vec<BlockPointer>),
    /// The time slice is over: the caller lets other threads edit before it continues.
    Paused,
    /// The transaction has converged, and the caller did not want it frozen.
    Settled,
    /// The transaction is frozen, and the caller writes the frozen state.
    Frozen(Box<Prepared>),
}

fn backup(open: Option<&OpenTree>) -> BackupTree {
    let Some(open) = open else {
        return BackupTree::default();
    };
    BackupTree {
        logical: open.tree.root_logical().unwrap_or(Logical::MIN),
        generation: open.tree.root_generation(),
        level: open.tree.level(),
    }
}

impl Prepared {
    /// Returns the bytes of the frozen tree blocks.
    pub const fn bytes(&self) -> u64 {
        self.frozen_bytes
    }

    /// Returns the root block of a tree in the commit being written; `None` if the tree did not
    /// change.
    pub fn root_block(&self, tree: TreeId, checksum_type: ChecksumType) -> Option<TreeBlock> {
        let frozen = self.frozen.iter().find(|frozen| frozen.tree() == tree)?;
        Some(frozen.root_block(checksum_type))
    }
}

impl Running {
    /// Returns whether the transaction changed anything.
    pub fn is_dirty(&self) -> bool {
        self.core.extent.tree.is_dirty()
            || !self.core.references.is_empty()
            || self.core.superblock_changed
            || self.core.has_device_errors()
            || self.core.has_replacement_change()
            || self.core.has_balance_change()
            || self
                .trees
                .values()
                .any(|open| open.tree.is_dirty() || open.item_changed)
    }
}

impl Freezing<'_> {
    /// Makes the running transaction converge: all its blocks get addresses. Returns `None` if the
    /// transaction can be frozen now.
    pub fn settle(
        &mut self,
        reads: &FaultIn,
        convergence: &mut Convergence,
        slice: &Slice,
        may_freeze: bool,
    ) -> Result<Option<Preparation>> {
        if !self.running.is_dirty() {
            return Ok(Some(Preparation::NothingToDo));
        }
        let missing = reads.missing_for(|| self.open_for_commit())?;
        if !missing.is_empty() {
            return Ok(Some(Preparation::Missing(missing)));
        }
        // Every commit writes a root tree block of its own generation.
        self.touch_root_tree()?;
        Ok(match self.running.converging().run(reads, convergence, slice)? {
            Converged::Done if may_freeze => None,
            Converged::Done => {
                self.running.converging().let_others_in(convergence);
                Some(Preparation::Settled)
            }
            Converged::Missing(missing) => Some(Preparation::Missing(missing)),
            Converged::Paused => Some(Preparation::Paused),
        })
    }

    /// Does the work that precedes convergence: removes empty block groups, records device
    /// statistics, and opens trees. Returns the missing blocks of the root tree that this work
    /// needs.
    fn open_for_commit(&mut self) -> Result<Vec<BlockPointer>> {
        self.running.chunks().remove_empty_groups()?;
        self.running.device_items().record_errors()?;
        self.running.device_items().record_replacement()?;
        self.running.record_balance()?;
        // The superblock names the roots of these three trees, whether or not they changed.
        for id in [TreeId::FS, TreeId::DEVICE, TreeId::CHECKSUM] {
            self.running.open_tree(id)?;
        }
        self.running.missing_along(TreeId::ROOT, [(Key::MIN, Key::MIN)])
    }

    /// Checks that the ledgers of a converged transaction balance: block groups, shares and pins.
    fn balance(&self) -> Result<()> {
        let core = &self.running.core;
        core.groups.balance(core.bytes_used)?;
        core.references.balance()?;
        core.pins.balance(&core.groups)?;
        Ok(())
    }

    /// Freezes the converged state and opens the next transaction.
    pub fn freeze(&mut self, volume: &Volume) -> Result<Preparation> {
        self.balance()?;
        let superblock = self.next_superblock(&volume.superblock())?;
        let mut frozen: Vec<Frozen> = Vec::new();
        let trees = core::iter::once(&self.running.core.extent).chain(self.running.trees.values());
        for open in trees {
            frozen.extend(open.tree.edit(EditableTree::freeze)?);
        }
        let nodes = frozen
            .iter()
            .fold(0_u64, |sum, frozen| sum.saturating_add(frozen.nodes()));
        let prepared = Prepared {
            frozen_bytes: self.running.core.node_bytes().get().saturating_mul(nodes),
            frozen,
            superblock,
            device_items: self
                .running
                .core
                .devices
                .rooms
                .iter()
                .map(|room| room.item)
                .collect(),
            groups: self
                .running
                .core
                .groups
                .iter()
                .map(|group| (group.start, group.used))
                .collect(),
            recount: Recount::of(self.running),
            leaving: core::mem::take(&mut self.running.core.devices.leaving),
            freed_device_extents: core::mem::take(&mut self.running.core.devices.freed),
            replaces: self
                .running
                .core
                .replacing
                .is_some_and(|replacing| replacing.finishes),
        };
        if prepared.replaces {
            self.running.core.replacing = None;
        }
        if buttress_faults::on("pins-released-at-freeze") {
            self.running.core.durable = self.running.core.generation;
        }
        self.running.core.superblock_changed = false;
        self.running.core.has_new_chunk = false;
        self.running.core.relocated_blocks.clear();
        if self.running.core.quotas.counts_by_maker() {
            self.running
                .core
                .quota_limits
                .settle(self.running.core.generation);
        }
        self.running.core.quotas.begin();
        // Frozen blocks may be read again before they are durable.
        self.running
            .core
            .format
            .generation
            .raise(self.running.core.generation);
        self.running.core.generation = Generation::new(self.running.core.generation.get().saturating_add(1));
        self.running.core.quota_limits.begin(self.running.core.generation);
        self.forget_clean_trees();
        self.running.inodes.forget_indexes();
        self.running.inodes.forget_log_states();
        self.running.names.forget();
        Ok(Preparation::Frozen(Box::new(prepared)))
    }

    fn forget_clean_trees(&mut self) {
        if self.running.trees.len() > OPEN_TREES_KEPT {
            // A block that was just frozen exists only in memory until it is written.
            let stays = |open: &OpenTree| {
                open.item_changed
                    || open.tree.is_unfinished()
                    || open.tree.is_in_memory() && !buttress_faults::on("trees-forgotten-unwritten")
            };
            self.running
                .trees
                .retain(|id, open| !id.holds_files() || stays(open) || id == TreeId::FS);
        }
    }

    fn next_superblock(&self, last: &Superblock) -> Result<Superblock> {
        let root = self.running.root_tree()?;
        let tree = |id: TreeId| self.running.trees.get(id);
        let (root, chunk) = (backup(Some(root)), backup(tree(TreeId::CHUNK)));
        let total_bytes = ByteCount::new(self.running.core.devices.total_bytes());
        let entry = BackupRoot {
            tree_root: root,
            chunk_root: chunk,
            extent_root: backup(Some(&self.running.core.extent)),
            fs_root: backup(tree(TreeId::FS)),
            dev_root: backup(tree(TreeId::DEVICE)),
            csum_root: backup(tree(TreeId::CHECKSUM)),
            total_bytes,
            bytes_used: ByteCount::new(self.running.core.bytes_used),
            num_devices: self.running.core.num_devices(),
        };
        let newest = (0..4_usize)
            .max_by_key(|slot| {
                last.backup_roots
                    .get(*slot)
                    .map_or(Generation::MIN, |backup| backup.tree_root.generation)
            })
            .unwrap_or(3);
        let mut backup_roots = last.backup_roots;
        let slot = match buttress_faults::on("backup-roots-in-one-slot") {
            true => 0,
            false => newest.wrapping_add(1) & 3,
        };
        if let Some(place) = backup_roots.get_mut(slot) {
            *place = entry;
        }
        let uuid_tree_is_complete = last.uuid_tree_generation == last.generation;
        let mut next = Superblock {
            generation: self.running.core.generation,
            root: root.logical,
            root_level: root.level,
            chunk_root: chunk.logical,
            chunk_root_level: chunk.level,
            chunk_root_generation: chunk.generation,
            log_root: Logical::MIN,
            log_root_level: 0,
            total_bytes,
            num_devices: self.running.core.num_devices(),
            bytes_used: match buttress_faults::on("ledger-superblock-bytes-stale") {
                true => last.bytes_used,
                false => ByteCount::new(self.running.core.bytes_used),
            },
            incompat: self.running.core.format.incompat,
            compat_ro: self.running.core.compat_ro,
            label: self.running.core.label.clone(),
            uuid_tree_generation: if uuid_tree_is_complete {
                self.running.core.generation
            } else {
                last.uuid_tree_generation
            },
            system_chunks: self.running.core.system_chunks.clone(),
            backup_roots,
            ..last.clone()
        };
        self.running.core.tuning.apply(&mut next);
        Ok(next)
    }

    /// Makes sure that the root tree has a new root block in this transaction.
    fn touch_root_tree(&mut self) -> Result<()> {
        let first = self
            .running
            .at_or_after(TreeId::ROOT, &Key::MIN)?
            .ok_or(Error::TreeNotFound { tree: TreeId::ROOT })?;
        self.running.update(TreeId::ROOT, &first.key(), &mut |_| {})?;
        Ok(())
    }
}

impl Core {
    /// The number of devices that the chunk tree lists.
    fn num_devices(&self) -> u64 {
        ByteCount::of(self.devices.rooms.len()).get()
    }

    /// Frees pinned ranges that no reader needs any more. Returns the freed ranges as starts and
    /// lengths.
    pub fn release_pins(&mut self, readers: &Readers) -> Vec<(u64, u64)> {
        let core = self;
        let released = core.pins.release(core.durable, readers);
        for (start, length) in &released {
            let unpinned = core.groups.unpin(*start, *length);
            core.settle(unpinned);
        }
        released
    }

    /// Returns the bytes that stay pinned only for readers, for the error that reports them.
    pub fn pinned_by_readers(&self) -> ByteCount {
        ByteCount::new(self.pins.held_by_readers_bytes(self.durable))
    }
}
