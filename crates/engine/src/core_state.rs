//! The state that edits of any tree need: the extent tree, delayed references, block groups, pins, and the superblock's fields.

use crate::block_groups::{BlockGroups, Group};
use crate::device_space::Devices;
use crate::pins::{Hold, Pins, Readers};
use crate::quotas::Quotas;
use crate::replacing::Replacing;
use crate::reserved_ahead::ReservedAhead;
use crate::trees::OpenTree;
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_format::superblock::SYSTEM_CHUNK_ARRAY_BYTES;
use buttress_format::{
    BlockFormat, ByteCount, Chunk, CompatRo, DEVICE_RESERVED_BYTES, Generation, Incompat, Key, Logical,
    Profile, Superblock, Uuid,
};
use buttress_fs::error::Result;
use buttress_tree::Forest;
use buttress_volume::Returning;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What edits of any tree need.
#[derive(Debug)]
pub struct Core {
    /// The cache of tree blocks.
    pub forest: Arc<Forest>,
    /// Formats of blocks and features, as checks of items want them.
    pub format: BlockFormat,
    pub(crate) compat_ro: CompatRo,
    /// The uuid that blocks carry of the tree that maps them.
    pub chunk_tree_uuid: Uuid,
    /// The generation of the running transaction.
    pub generation: Generation,
    /// The last generation that is durable.
    pub durable: Generation,
    /// The extent tree.
    pub extent: OpenTree,
    /// Changes of reference counts that no tree has yet.
    pub references: DelayedReferences,
    /// Block groups.
    pub groups: BlockGroups,
    pub(crate) devices: Devices,
    /// Freed space that must wait.
    pub pins: Pins,
    pub(crate) quotas: Quotas,
    /// Bytes of all extents, for the superblock.
    pub bytes_used: u64,
    /// The chunks that hold the chunk tree, for the superblock.
    pub system_chunks: Vec<(Key, Chunk)>,
    /// The volume's label.
    pub label: Vec<u8>,
    /// Whether a field of the superblock alone changed.
    pub superblock_changed: bool,
    /// Room promised to data that is not yet written back.
    pub reserved_data_bytes: u64,
    /// What of that no file has yet.
    pub ahead: Arc<ReservedAhead>,
    /// While a commit that settles has release the lock: ranges that the free-space tree does not know of yet.
    pub unrecorded_ranges: u64,
    /// Nodes that commits gave addresses to since the volume was opened.
    pub nodes_addressed: u64,
    /// The replacement of a device that is under way.
    pub replacing: Option<Replacing>,
    /// Why the host gave no space when it was asked last; `None` where it did.
    pub host_failure: Option<buttress_device::IoError>,
    /// The last address that a full host was asked for.
    pub asked_host_at: u64,
    /// Whether this transaction made a chunk: the last commit knows nothing of it, so no log can refer to it.
    pub has_new_chunk: bool,
    /// Tree blocks that relocations wrote in this transaction. Readers may have them, so their places wait for readers.
    pub relocated_blocks: BTreeSet<Logical>,
}

impl Core {
    /// A hold on what the running transaction leads to. While a commit is under way, the last durable generation is older than
    /// the one that this transaction follows.
    pub fn hold(&self, readers: &Arc<Readers>) -> Hold {
        let follows = Generation::new(self.generation.get().saturating_sub(1));
        readers.hold(match buttress_faults::on("view-holds-durable") {
            true => self.durable,
            false => follows,
        })
    }

    /// Takes the outcome of a change to a ledger that nobody can be told of: what is wrong stops writing, before anything that
    /// follows from it is on the devices.
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

    /// Whether new chunks of a profile may use a device: it is there, up to date, open for writing, and failed no write. A
    /// device that is being brought up to date gets what is written to such a chunk; until its superblock is written, the
    /// chunk must do without it.
    pub fn device_takes_chunks(&self, uuid: Uuid, profile: Profile) -> bool {
        let volume = self.forest.volume();
        // Moved stripes are known by their chunk's start, which a new chunk may have again.
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

    /// Whether the superblock can name one more system chunk.
    pub fn system_array_has_space(&self) -> bool {
        let taken = self.system_chunks.iter().fold(0_usize, |sum, (_, chunk)| {
            sum.saturating_add(Superblock::system_chunk_bytes(chunk))
        });
        let one_more = self
            .system_chunks
            .iter()
            .map(|(_, chunk)| Superblock::system_chunk_bytes(chunk))
            .max()
            .unwrap_or(0);
        taken.saturating_add(one_more) <= SYSTEM_CHUNK_ARRAY_BYTES
    }

    /// Returns the length of a sector, in bytes.
    pub const fn sector_bytes(&self) -> u64 {
        self.format.sector_bytes as u64
    }
}
