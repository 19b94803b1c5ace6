//! The state that edits of any tree need: the extent tree, delayed references, block groups, pins,
//! and superblock fields.

use crate::balancing::Balancing;
use crate::block_groups::{BlockGroups, Group};
use crate::device_space::Devices;
use crate::pins::{Hold, Pins, Readers};
use crate::quota_limits::QuotaLimits;
use crate::quotas::Quotas;
use crate::replacing::Replacing;
use crate::reserved_ahead::ReservedAhead;
use crate::trees::OpenTree;
use crate::tuning::Tuning;
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_exact::Exact as _;
use buttress_format::superblock::SYSTEM_CHUNK_ARRAY_BYTES;
use buttress_format::{
    BlockFormat, ByteCount, Chunk, CompatRo, DEVICE_RESERVED_BYTES, Generation, Incompat, Key, Logical,
    Profile, Superblock, TreeId, Uuid,
};
use buttress_fs::error::Result;
use buttress_tree::Forest;
use buttress_volume::Returning;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The features of a volume with a valid free-space tree. btrfs-progs clears the second feature when
/// it writes without updating the tree.
pub(crate) const VALID_FREE_SPACE_TREE: CompatRo =
    CompatRo::FREE_SPACE_TREE.union(CompatRo::FREE_SPACE_TREE_VALID);

/// The state that edits of any tree need.
#[derive(Debug)]
pub struct Core {
    /// The cache of tree blocks.
    pub forest: Arc<Forest>,
    /// The formats and features that checks of tree blocks and items need.
    pub format: BlockFormat,
    pub(crate) compat_ro: CompatRo,
    /// The uuid of the chunk tree, which every tree block carries.
    pub chunk_tree_uuid: Uuid,
    /// The generation of the running transaction.
    pub generation: Generation,
    /// The last generation that is durable.
    pub durable: Generation,
    /// The extent tree.
    pub extent: OpenTree,
    /// Changes of extents' reference counts that are not in the extent tree yet.
    pub references: DelayedReferences,
    /// The block groups of the volume.
    pub groups: BlockGroups,
    pub(crate) devices: Devices,
    /// Freed space that may not be reused yet.
    pub pins: Pins,
    pub(crate) quotas: Quotas,
    /// The limits of quota groups.
    pub quota_limits: Arc<QuotaLimits>,
    /// Bytes of all extents, recorded in the superblock.
    pub bytes_used: u64,
    /// The chunks that hold the chunk tree, recorded in the superblock.
    pub system_chunks: Vec<(Key, Chunk)>,
    /// The volume's label.
    pub label: Vec<u8>,
    /// Whether a field changed that only the superblock records.
    pub superblock_changed: bool,
    /// Bytes reserved for data that is not yet written back.
    pub reserved_data_bytes: u64,
    /// The part of `reserved_data_bytes` that is reserved ahead and that no file uses yet.
    pub ahead: Arc<ReservedAhead>,
    /// The number of ranges not yet recorded in the free-space tree. The number is non-zero only
    /// while a converging commit has released the edit lock.
    pub unrecorded_ranges: u64,
    /// The number of nodes to which commits gave addresses since the volume was opened.
    pub nodes_addressed: u64,
    /// The device replacement in progress.
    pub replacing: Option<Replacing>,
    /// The balance that is in progress or paused.
    pub balancing: Option<Balancing>,
    /// Block groups that relocations emptied, and that exist until their readers end.
    pub left_groups: Vec<Logical>,
    /// The reason why the host refused the last request for space; `None` if the host granted the
    /// space.
    pub host_failure: Option<buttress_device::IoError>,
    /// The end of the last range for which space of a full host was requested.
    pub asked_host_at: u64,
    /// The changes of the superblock for the next commit.
    pub tuning: Tuning,
    /// Whether this transaction made a new chunk. The last commit does not contain the new chunk,
    /// so no log can refer to it.
    pub has_new_chunk: bool,
    /// Tree blocks that relocations wrote in this transaction. Readers may hold relocated blocks,
    /// so their addresses stay pinned until these readers end.
    pub relocated_blocks: BTreeSet<Logical>,
}

impl Core {
    /// Returns the number of the volume's devices, missing devices included.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.devices.rooms.len()
    }

    /// Returns a hold on the state of the running transaction. While a commit is in progress, the
    /// last durable generation is older than the generation before the running transaction.
    pub fn hold(&self, readers: &Arc<Readers>) -> Hold {
        let follows = Generation::new(self.generation.get().saturating_sub(1));
        readers.hold(match buttress_faults::on("view-holds-durable") {
            true => self.durable,
            false => follows,
        })
    }

    /// Stops writing if a change to a ledger failed, for callers that cannot return the error. No
    /// state derived from a wrong ledger then reaches the devices.
    pub fn settle(&self, changed: Result<()>) {
        if let Err(error) = changed {
            self.forest.volume().stop_writing(&error);
        }
    }

    /// Returns whether the volume has a feature.
    pub const fn has(&self, feature: Incompat) -> bool {
        self.format.incompat.contains(feature)
    }

    /// Returns the length of a tree block, in bytes.
    pub fn node_bytes(&self) -> ByteCount {
        ByteCount::new(u64::from(self.format.node_bytes))
    }

    /// Returns whether new chunks of a profile may use a device. To be used, the device must exist,
    /// be up to date, be open for writing, and have failed no write. A returning device gets all
    /// writes to a chunk on it. The chunk must survive without the returning device until that
    /// device's superblock is written.
    pub fn device_takes_chunks(&self, uuid: Uuid, profile: Profile) -> bool {
        let volume = self.forest.volume();
        // A moved stripe is identified by its chunk's start, and a new chunk may reuse that start.
        let is_new = |returning: &Returning| {
            let start = Logical::new(self.next_chunk_start());
            returning.moved.keys().all(|(moved, _)| *moved < start)
        };
        let returning = volume.replacement().filter(|replacement| {
            replacement.returning().is_some_and(is_new) && profile.tolerated_failures() > 0
        });
        let target = returning.as_ref().map(|returning| returning.target());
        volume.devices().iter().chain(target).any(|slot| {
            let is_used = slot.is_written() || buttress_faults::on("chunk-on-failed-device");
            slot.uuid() == uuid && is_used && slot.device().is_some_and(|device| device.is_writable())
        })
    }

    /// Returns the start of the next new chunk.
    pub fn next_chunk_start(&self) -> u64 {
        let ends = self.groups.iter().map(Group::end);
        ends.max().unwrap_or(DEVICE_RESERVED_BYTES)
    }

    /// Returns the free bytes of the superblock's array of system chunks.
    pub fn system_array_free_bytes(&self) -> usize {
        let taken = self
            .system_chunks
            .iter()
            .map(|(_, chunk)| Superblock::system_chunk_bytes(chunk));
        // Clamp: no superblock holds more, and no chunk is made that the array cannot hold.
        SYSTEM_CHUNK_ARRAY_BYTES.saturating_sub(taken.fold(0, usize::exact_add))
    }

    /// Returns the length of a sector, in bytes.
    pub const fn sector_bytes(&self) -> u64 {
        self.format.sector_bytes as u64
    }

    /// Returns the id of the tree that holds block group items.
    pub fn block_group_tree(&self) -> TreeId {
        if self.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            TreeId::BLOCK_GROUP
        } else {
            TreeId::EXTENT
        }
    }

    /// Returns whether the volume has a valid free-space tree. An invalid tree is neither read nor
    /// updated: Linux makes the tree again at the next mount.
    pub(crate) fn has_free_space_tree(&self) -> bool {
        self.compat_ro.contains(VALID_FREE_SPACE_TREE)
    }
}
