//! Starting an edit: acquires the edit lock, and promises that the commit will find enough space.
//!
//! Dirty nodes take no space until the commit, so promising space needs only arithmetic. The engine
//! adds up nodes without an address, delayed references, dirty data, and the worst case of the edit
//! that starts. The sum must fit into the free space of block groups, besides a reserve for edits
//! that free space. If the sum of the reservations does not fit, the engine makes a chunk at once,
//! so no other edit takes the counted space. If there is no space for a chunk, the engine commits,
//! since the commit may free space. If space is still lacking after commits, the edit fails with
//! `NoSpace`.

use super::block_groups::Purpose;
use super::memory::{INODE_BYTES, Pressure, REFERENCE_BYTES};
use super::running::Running;
#[cfg(debug_assertions)]
use crate::allowance::Allowance;
use crate::engine::{EditLock, Engine, TrimmingLock};
pub use crate::need::{Claim, Need};
use crate::need::{NewChunks, OTHER_PLACES};
use crate::running_parts::BlockReserve;
use crate::steps::Steps;
use crate::trees::LiveTree;
use crate::waiting_names::WAITING_NAME_BYTES;
use crate::worst_case::{PLACES_OF_COMMIT, Roots, Shape};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, Incompat, Timestamp};
use buttress_fs::error::{Error, Result};
use buttress_locks::MutexGuard;
use core::ops::{Deref, DerefMut};

/// The number of commits with which an edit without space tries to free space.
const COMMITS_FOR_SPACE: usize = 2;

/// The least number of records of new data in a leaf. The data of one write-back is adjacent on
/// disk, so its checksum and extent records are adjacent too. A leaf of the smallest nodes holds 25
/// records after a split.
const DATA_RECORDS_A_LEAF: u64 = 8;

/// The most extents with delayed references. If more extents have delayed references, an edit first
/// applies a batch of the same size.
const REFERENCES_MAX: usize = 2048;
const REFERENCES_AT_ONCE: usize = 512;

/// The memory of a node beside its bytes.
const NODE_OVERHEAD_BYTES: u64 = 256;

/// The dirty content that is always allowed on volumes with enough space for metadata, in bytes.
const SPARED_BYTES_MAX: u64 = 4 << 20;
const SPARED_BYTES_MIN: u64 = 64 << 10;

/// The least number of nodes in the reserve.
pub(crate) const RESERVED_NODES: u64 = 192;

/// The metadata bytes that edits may need until the next commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    /// The bytes of an edit's need and of the reserve.
    pub all_bytes: u64,
    /// The part of the reserved bytes that must have space on the host.
    pub backed_bytes: u64,
}

/// The trimming lock: while it is held, no trim keeps free space from being allocated
/// ([`super::trimming`]).
#[derive(Debug)]
pub struct NoTrim<'a>(#[expect(dead_code, reason = "a guard")] MutexGuard<'a, (), TrimmingLock>);

/// An edit of the running transaction, which holds the edit lock until it is dropped.
///
/// All changes through one handle belong to the same commit. No caller may wait for a device while
/// it holds a handle, so callers load an edit's blocks in advance.
#[derive(Debug)]
pub struct Handle<'a> {
    running: MutexGuard<'a, Running, EditLock>,
    filesystem: &'a Engine,
    /// The need of the edit.
    #[cfg(debug_assertions)]
    allowance: Option<Allowance>,
}

#[cfg(debug_assertions)]
impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if let Some(allowance) = self.allowance.filter(|_| !std::thread::panicking()) {
            allowance.check(&self.running);
        }
    }
}

impl Deref for Handle<'_> {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for Handle<'_> {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

impl<'a> Handle<'a> {
    /// Returns the lock that makes an operation's edits appear together to live lookups.
    pub fn steps(&self) -> &'a Steps {
        let filesystem: &'a Engine = self.filesystem;
        filesystem.steps()
    }
}

impl Handle<'_> {
    /// Records the need of the edit, which an assertion compares at the edit's end.
    #[cfg(debug_assertions)]
    fn allow(&mut self, need: Need) {
        self.allowance = Some(Allowance::of(need, &self.running));
    }

    /// Records nothing: this build has no assertions.
    #[cfg(not(debug_assertions))]
    #[expect(
        clippy::needless_pass_by_ref_mut,
        clippy::unused_self,
        reason = "debug builds record"
    )]
    const fn allow(&mut self, _need: Need) {}

    /// Returns the time of the clock that the caller gave at opening.
    pub fn now(&self) -> Timestamp {
        self.filesystem.now()
    }

    /// Returns the engine whose edit lock this handle holds.
    pub const fn filesystem(&self) -> &Engine {
        self.filesystem
    }
}

impl Engine {
    /// Starts an edit.
    ///
    /// # Errors
    /// Fails with [`Error::NoSpace`] if the edit's worst case does not fit, or with the error that
    /// stopped writing.
    pub fn start(&self, need: Need) -> Result<Handle<'_>> {
        for attempt in 0..COMMITS_FOR_SPACE {
            self.require_writing()?;
            // A commit would apply these delayed references anyway. If these references are applied
            // here, the reservation counts the blocks that they dirty, and a commit is still
            // possible.
            let mut handle = self.start_with_few_references(REFERENCES_MAX, REFERENCES_AT_ONCE)?;
            let is_over_limit = attempt == 0 && self.is_over_limit(&handle);
            if !is_over_limit {
                let new_chunks = match attempt {
                    0 => NewChunks::Sparing,
                    _ => NewChunks::Always,
                };
                let found;
                (handle, found) = self.retry(handle, |handle| handle.reserve(need, new_chunks))?;
                if found {
                    handle.allow(need);
                    return Ok(handle);
                }
                // A commit without changes would free nothing.
                if attempt > 0 && !handle.is_dirty() {
                    break;
                }
            }
            drop(handle);
            if !is_over_limit || !self.waited_for_commit() {
                self.commit_metadata()?;
            }
        }
        self.start_without_trim(&self.hold_off_trims(), need)
    }

    /// Waits for the trim in progress, and blocks new trims until the caller drops the guard. The
    /// caller must not commit meanwhile: a commit may discard, which acquires the same lock.
    pub fn hold_off_trims(&self) -> NoTrim<'_> {
        NoTrim(self.shared.trimming.lock())
    }

    /// Starts an edit while the caller blocks trims. Never commits.
    ///
    /// # Errors
    /// Fails as [`start`](Self::start) does.
    pub fn start_without_trim(&self, _no_trim: &NoTrim<'_>, need: Need) -> Result<Handle<'_>> {
        self.require_writing()?;
        let (mut handle, found) = self.retry(self.start_unchecked(), |handle| handle.reserve_space(need))?;
        if found {
            handle.allow(need);
            return Ok(handle);
        }
        Err(handle.block_reserve().no_metadata_space(need))
    }

    /// Returns whether dirty memory is at its limit, so that a commit must precede the edit. A
    /// background commit begins below this limit.
    pub(crate) fn is_over_limit(&self, handle: &Handle<'_>) -> bool {
        let dirty_memory = &self.shared.dirty_memory;
        dirty_memory.set_dirty(handle.block_reserve().dirty_bytes());
        match dirty_memory.pressure(self.data().delalloc_bytes()) {
            Pressure::None => false,
            Pressure::Background => {
                let holders = self.holders.as_ref();
                if let Some(background) = holders.and_then(|holders| holders.background.as_ref()) {
                    background.wake();
                }
                false
            }
            Pressure::Hard => true,
        }
    }

    /// Wakes the background write-back. Returns false if the volume has no thread for background
    /// write-back.
    pub fn wake_write_back(&self) -> bool {
        let holders = self.holders.as_ref();
        let background = holders.and_then(|holders| holders.background.as_ref());
        background
            .inspect(|background| background.wake_write_back())
            .is_some()
    }

    /// Waits for the commit in progress, if there is one. Returns whether dirty memory is now under
    /// its limit; false without background threads.
    fn waited_for_commit(&self) -> bool {
        let holders = self.holders.as_ref();
        if holders.is_none_or(|holders| holders.background.is_none()) {
            return false;
        }
        drop(self.shared.committing.lock());
        let handle = self.start_unchecked();
        !self.is_over_limit(&handle)
    }

    /// Returns whether the items of dirty data, at their worst, take space that other edits need.
    pub fn is_short_of_space(&self) -> Result<bool> {
        let ahead = &self.shared.ahead;
        if !ahead.is_short() || self.data().delalloc_bytes() < ahead.spared_bytes() {
            return Ok(false);
        }
        let need = Need::places(OTHER_PLACES);
        let (_, found) = self.retry(self.start_unchecked(), |handle| {
            handle.reserve(need, NewChunks::Sparing)
        })?;
        self.shared.ahead.set_short(!found);
        Ok(!found)
    }

    /// Reserves space for `bytes` of content.
    pub fn reserve_data(&self, bytes: u64) -> Result<()> {
        let ahead = &self.shared.ahead;
        if ahead.take(bytes) {
            return Ok(());
        }
        let mut handle = match self.reserve_data_once(bytes) {
            Err(Error::NoSpace { .. }) if !buttress_faults::on("space-of-trim-unawaited") => {
                let _no_trim = self.hold_off_trims();
                self.reserve_data_once(bytes)?
            }
            reserved => reserved?,
        };
        handle.data_space().reserve_ahead();
        // The spared bytes are those after this reservation, for writes that take from the batch.
        let spared_bytes = handle.block_reserve().spared_bytes();
        ahead.set_spared_bytes(spared_bytes);
        let is_much = self.data().delalloc_bytes() >= spared_bytes;
        ahead.set_short(is_much && !handle.block_reserve().has_space_beside_data());
        Ok(())
    }

    /// Reserves space for `bytes` of content, and makes a chunk if necessary.
    fn reserve_data_once(&self, bytes: u64) -> Result<Handle<'_>> {
        let reserved = self.retry(self.start_unchecked(), |handle| {
            handle.data_space().reserve(bytes)
        });
        reserved.map(|(handle, ())| handle)
    }

    /// Releases the reservation of `bytes` of content.
    pub fn release_data(&self, bytes: u64) {
        let rest = self.shared.ahead.give_back(bytes);
        if rest > 0 {
            self.start_reading().data_space().release(rest);
        }
    }

    /// Acquires the edit lock without a reservation, for edits inside a commit.
    pub fn start_unchecked(&self) -> Handle<'_> {
        let handle = self.start_reading();
        if !buttress_faults::on("view-outlives-an-edit") {
            self.shared.forget_view();
        }
        handle
    }

    /// Acquires the edit lock for lookups. The caller must not change anything that a view shows.
    pub fn start_reading(&self) -> Handle<'_> {
        crate::look_ups::count(|counts| &mut counts.edit_locks);
        let mut running = self.shared.running.lock();
        running.holders.note();
        let _nobody_asks = running.core.release_pins(&self.shared.readers);
        Handle {
            running,
            filesystem: self,
            #[cfg(debug_assertions)]
            allowance: None,
        }
    }
}

impl BlockReserve<'_> {
    fn sum_of_trees(&self, of: impl Fn(&LiveTree) -> u64) -> u64 {
        self.running
            .trees
            .values()
            .fold(of(&self.running.core.extent.tree), |sum, open| {
                sum.saturating_add(of(&open.tree))
            })
    }

    /// Returns the memory of dirty nodes, delayed references, changed inodes, and names waiting for
    /// their directories.
    pub fn dirty_bytes(&self) -> u64 {
        let references = ByteCount::of(self.running.core.references.len()).get();
        let inodes = ByteCount::of(self.running.inodes.count()).get();
        let node_bytes = self.running.core.node_bytes().get();
        let node_bytes = node_bytes.exact_add(NODE_OVERHEAD_BYTES);
        // A commit that released the lock to read has already assigned some of the addresses.
        self.sum_of_trees(LiveTree::unfrozen_nodes)
            .saturating_mul(node_bytes)
            .saturating_add(references.saturating_mul(REFERENCE_BYTES))
            .saturating_add(inodes.saturating_mul(INODE_BYTES))
            .saturating_add(
                self.sum_of_trees(LiveTree::names_waiting)
                    .saturating_mul(WAITING_NAME_BYTES),
            )
    }

    /// Returns the shape of the trees, and the number of their nodes without an address.
    pub(crate) fn shape(&self) -> (Shape, u64) {
        let node_bytes = self.running.core.node_bytes().get();
        let used_bytes = self.running.core.groups.room(Purpose::Metadata).used_bytes;
        let mut roots = Roots::default();
        let mut nodes = 0_u64;
        for tree in core::iter::once(&self.running.core.extent.tree)
            .chain(self.running.trees.values().map(|open| &open.tree))
        {
            let (level, unassigned) = tree.level_and_unassigned_nodes();
            roots.add(level);
            nodes = nodes.exact_add(unassigned);
        }
        (
            Shape::new(node_bytes, used_bytes.quotient(node_bytes), roots),
            nodes,
        )
    }

    /// Returns the largest number of nodes that a commit allocates now.
    pub(crate) fn nodes_of_commit(&self) -> u64 {
        self.nodes_at_commit(Need::promised(0))
    }

    /// Returns the largest number of nodes that a commit would allocate now: the nodes of `need`,
    /// the nodes without an address, and the nodes that record both. [`super::worst_case`] explains
    /// the sums.
    fn nodes_at_commit(&self, need: Need) -> u64 {
        self.nodes_at_commit_of_data(need, self.running.core.reserved_data_bytes)
    }

    /// As [`nodes_at_commit`](Self::nodes_at_commit), for a given amount of dirty data.
    pub(crate) fn nodes_at_commit_of_data(&self, need: Need, dirty_bytes: u64) -> u64 {
        let (shape, nodes) = self.shape();
        let nodes = nodes.exact_add(need.nodes(&shape));
        if buttress_faults::on("commit-expects-only-edits") {
            return nodes;
        }
        // In the worst case, each sector of dirty data becomes an item in a leaf of its own. Leaves
        // hold more records of extents and checksums than file extent items.
        let data = match need.claim {
            Claim::Reserved => 0,
            Claim::Ordinary | Claim::Freeing => dirty_bytes.quotient(self.running.core.sector_bytes()),
        };
        // A reference changes a leaf of the extent tree and one of the free-space tree.
        let references = u64_of(self.running.core.references.len());
        let places = [
            references,
            references,
            data,
            self.running.inodes.changed(),
            self.running.core.unrecorded_ranges,
        ];
        // A commit copies each node at most once.
        let copies = places.map(|places| shape.copies(places));
        let copies = copies.into_iter().fold(0, u64::exact_add).min(shape.used_nodes());
        let extents = nodes.exact_add(references).exact_add(data);
        nodes
            .exact_add(copies)
            .exact_add(data.div_ceil(DATA_RECORDS_A_LEAF))
            .exact_add(shape.leaves_of_records(extents))
            .exact_add(shape.edited_nodes(PLACES_OF_COMMIT))
    }

    /// Returns the space kept for edits that free space. In mixed block groups, data takes most of
    /// the total.
    fn reserve_bytes(&self) -> u64 {
        let total = self.running.core.groups.room(Purpose::Metadata).total_bytes;
        let least = self
            .running
            .core
            .node_bytes()
            .get()
            .saturating_mul(RESERVED_NODES);
        let part = match self.running.core.has(Incompat::MIXED_GROUPS) {
            true => total >> 7,
            false => total >> 4,
        };
        part.max(least.min(total >> 2)).min(512 << 20)
    }

    /// Returns how many bytes of dirty data need at most one part in 32 of the space for metadata.
    fn spared_bytes(&self) -> u64 {
        let nodes = self
            .running
            .core
            .groups
            .room(Purpose::Metadata)
            .total_bytes
            .checked_div(self.running.core.node_bytes().get())
            .unwrap_or(0);
        (nodes >> 5)
            .saturating_mul(self.running.core.sector_bytes())
            .clamp(SPARED_BYTES_MIN, SPARED_BYTES_MAX)
    }

    /// Returns the bytes that metadata may need in block groups until the next commit, with the
    /// reserve.
    pub fn metadata_bytes(&self, need: Need) -> u64 {
        self.reservation(need).all_bytes
    }

    /// Returns the part of the reservation that must have space on the host. Of the reserve, that
    /// part includes the need of a few edits that free space.
    pub fn backed_bytes(&self, need: Need) -> u64 {
        self.reservation(need).backed_bytes
    }

    pub(crate) fn reservation(&self, need: Need) -> Reservation {
        self.reservation_of_nodes(need, self.nodes_at_commit(need))
    }

    /// Returns the space that `need` and this number of commit nodes reserve.
    pub(crate) fn reservation_of_nodes(&self, need: Need, nodes: u64) -> Reservation {
        let node_bytes = self.running.core.node_bytes().get();
        let bytes = nodes.exact_mul(node_bytes);
        let reserve_bytes = match need.claim {
            Claim::Ordinary => self.reserve_bytes(),
            Claim::Freeing | Claim::Reserved => 0,
        };
        let backed_reserve_bytes = reserve_bytes.min(node_bytes.exact_mul(RESERVED_NODES));
        Reservation {
            all_bytes: bytes.exact_add(reserve_bytes),
            backed_bytes: bytes.exact_add(backed_reserve_bytes),
        }
    }
}
