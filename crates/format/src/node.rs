//! Tree blocks: nodes and leaves, checked once when they are read.
//!
//! A [`TreeBlock`] owns its bytes, which clones share. [`TreeBlock::check`] has proved that:
//!
//! - checksum, fsid, address, level, generation, owner and first key of the block are as expected;
//! - keys are in order;
//! - item data lies inside the block, without gaps or overlaps;
//! - each item passes the tree checker.
//!
//! Access to a [`TreeBlock`] therefore cannot fail and checks nothing.
//!
//! A [`DamagedBlock`] holds a block that fails its checks, for jobs that request such blocks. The
//! `DamagedBlock` holds the failures, and a `TreeBlock` that shows only the items inside the block.
//!
//! ```text
//! leaf:  header 101 | item 0 | item 1 | … 25 each | free space | … | data 1 | data 0 |
//! node:  header 101 | pointer 0 | pointer 1 | … 33 each | free space                 |
//! ```
//! The offsets of a leaf's items count from the end of the header.
//!
//! Source: on-disk format documentation, section "Tree blocks".

pub(crate) mod access;
pub(crate) mod check;
pub mod edit;
mod error;
mod header;

pub use access::{Item, Items, KeyPointer, Pointers};
pub use edit::{LeafEdit, NewBlock, NodeEdit};
pub use error::{BlockError, BlockProblem};
pub use header::{HEADER_BYTES, Header, HeaderFlags, RawHeader, RawItem, RawKeyPointer};

use crate::checksum::ChecksumType;
use crate::key::Key;
use crate::superblock::{CompatRo, Incompat, Superblock, SuperblockFlags};
use crate::units::{Generation, Logical, TreeId};
use bytes::Bytes;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use uuid::Uuid;

/// The fields of the superblock that the checks of tree blocks need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFormat {
    /// Size of tree blocks, in bytes.
    pub node_bytes: u32,
    /// The unit of addresses and data, in bytes.
    pub sector_bytes: u32,
    /// The algorithm of the blocks' checksums.
    pub checksum_type: ChecksumType,
    /// The former algorithm, which blocks may still use while a change of the checksums is
    /// unfinished.
    pub former_checksum_type: Option<ChecksumType>,
    /// True while a change of the checksums is unfinished: checksum items may have the size of the
    /// former or of the new algorithm.
    pub changes_checksums: bool,
    /// The uuid that the blocks carry: the superblock's metadata uuid.
    pub fsid: Uuid,
    /// The other uuids that blocks may carry: the fsids of seed devices, and the former fsid while a
    /// change of the fsid is unfinished.
    pub seed_fsids: Arc<[Uuid]>,
    /// The uuid of the chunk tree that the blocks carry. `None` means that the uuid is unknown or
    /// not to be checked.
    pub chunk_tree_uuid: Option<Uuid>,
    /// The superblock's generation. The blocks of a log tree may be one generation ahead of the
    /// superblock.
    pub generation: CommittedGeneration,
    /// The incompatible features of the volume.
    pub incompat: Incompat,
    /// The read-only compatible features of the volume.
    pub compat_ro: CompatRo,
}

impl BlockFormat {
    /// Returns the block format that a superblock prescribes.
    #[must_use]
    pub fn new(superblock: &Superblock) -> Self {
        Self {
            node_bytes: superblock.node_bytes,
            sector_bytes: superblock.sector_bytes,
            checksum_type: superblock.checksum_type,
            former_checksum_type: None,
            changes_checksums: superblock.flags.intersects(SuperblockFlags::CHANGING_CHECKSUMS),
            fsid: superblock.metadata_uuid,
            seed_fsids: superblock.former_fsid().into_iter().collect(),
            chunk_tree_uuid: None,
            generation: superblock.generation.into(),
            incompat: superblock.incompat,
            compat_ro: superblock.compat_ro,
        }
    }

    /// Returns this format for a volume that grew from seed devices, whose blocks may carry the
    /// seeds' uuids.
    #[must_use]
    pub fn with_seeds(self, fsids: impl IntoIterator<Item = Uuid>) -> Self {
        Self {
            seed_fsids: self.seed_fsids.iter().copied().chain(fsids).collect(),
            ..self
        }
    }

    /// Returns this format for a volume whose blocks change from the format's algorithm to another.
    #[must_use]
    pub fn changing_checksums_to(self, checksum_type: ChecksumType) -> Self {
        Self {
            former_checksum_type: Some(self.checksum_type),
            checksum_type,
            ..self
        }
    }

    /// Returns the largest generation that a block or item can have.
    #[must_use]
    pub fn generation_limit(&self) -> Generation {
        Generation::new(self.generation.get().get().saturating_add(1))
    }
}

/// The last committed generation that the checks of tree blocks use. All clones share one number,
/// so a commit that raises it affects every check.
#[derive(Clone, Debug)]
pub struct CommittedGeneration(Arc<AtomicU64>);

impl CommittedGeneration {
    /// Returns the last committed generation.
    #[must_use]
    pub fn get(&self) -> Generation {
        Generation::new(self.0.load(Ordering::Relaxed))
    }

    /// Records that the volume has reached `generation`. The recorded generation never decreases.
    pub fn raise(&self, generation: Generation) {
        self.0.fetch_max(generation.get(), Ordering::Relaxed);
    }
}

impl From<Generation> for CommittedGeneration {
    fn from(generation: Generation) -> Self {
        Self(Arc::new(AtomicU64::new(generation.get())))
    }
}

impl PartialEq for CommittedGeneration {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for CommittedGeneration {}

/// The fields that the pointer to a block predicts. A check skips expected fields that are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The address from which the block was read.
    pub logical: Logical,
    /// The block's level: one less than the level of its parent.
    pub level: Option<u8>,
    /// The generation in the parent's pointer to the block.
    pub generation: Option<Generation>,
    /// The id of the tree that the reader walks. Subvolumes may share blocks, so any subvolume may
    /// own the block of another subvolume. Relocation trees hold blocks of any tree, so their owner
    /// is not checked.
    pub owner: Option<TreeId>,
    /// The first key in the parent's pointer to the block.
    pub first_key: Option<Key>,
}

impl Expectation {
    /// Returns an expectation with the address alone.
    #[must_use]
    pub const fn at(logical: Logical) -> Self {
        Self {
            logical,
            level: None,
            generation: None,
            owner: None,
            first_key: None,
        }
    }
}

/// A checked tree block. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeBlock {
    bytes: Bytes,
    header: Header,
}

/// A tree block that failed its checks.
#[derive(Clone, Debug)]
pub struct DamagedBlock {
    /// Every failed check, at most [`DamagedBlock::MAX_FAILURES`]. The list of failed checks is
    /// empty if the block is valid.
    pub failures: Vec<BlockError>,
    /// The block. A damaged block shows only items whose data is inside the block, and may have any
    /// other error.
    pub block: TreeBlock,
}

impl DamagedBlock {
    /// The maximum number of failed checks that are kept for one damaged block.
    pub const MAX_FAILURES: usize = 1000;
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
