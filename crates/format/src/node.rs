//! Tree blocks: nodes and leaves, checked once when they are read.
//!
//! A [`TreeBlock`] owns its bytes (cheaply shared), and holds what [`TreeBlock::check`] found true of them:
//! checksum, volume, address, level, generation, owner and first key are those that were expected, keys are
//! in order, item data lies inside the block without gaps or overlaps, and each item obeys the tree checker.
//! So access cannot fail and checks nothing again.
//!
//! A block that fails is handed to the jobs that ask for it as a [`DamagedBlock`]: its failures, and a
//! `TreeBlock` of which only the items that lie inside the block can be seen.
//!
//! ```text
//! leaf:  header 101 | item 0 | item 1 | … 25 each | free space | … | data 1 | data 0 |
//! node:  header 101 | pointer 0 | pointer 1 | … 33 each | free space                 |
//! ```
//! Item offsets count from the end of the header.
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
use crate::superblock::{CompatRo, Incompat, Superblock};
use crate::units::{Generation, Logical, TreeId};
use bytes::Bytes;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use uuid::Uuid;

/// What of the superblock the checks of tree blocks need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFormat {
    /// Size of tree blocks, in bytes.
    pub node_bytes: u32,
    /// Unit of addresses and data, in bytes.
    pub sector_bytes: u32,
    /// How the blocks' checksums are computed.
    pub checksum_type: ChecksumType,
    /// The uuid that the blocks carry: the superblock's metadata uuid.
    pub fsid: Uuid,
    /// The uuids that blocks of seed devices may carry instead.
    pub seed_fsids: Arc<[Uuid]>,
    /// The uuid of the chunk tree that the blocks carry, where it is known and to be checked.
    pub chunk_tree_uuid: Option<Uuid>,
    /// The superblock's generation. A log tree's blocks may be one ahead of it.
    pub generation: CommittedGeneration,
    /// Features.
    pub incompat: Incompat,
    /// Features.
    pub compat_ro: CompatRo,
}

impl BlockFormat {
    /// The format that a superblock prescribes.
    #[must_use]
    pub fn new(superblock: &Superblock) -> Self {
        Self {
            node_bytes: superblock.node_bytes,
            sector_bytes: superblock.sector_bytes,
            checksum_type: superblock.checksum_type,
            fsid: superblock.metadata_uuid,
            seed_fsids: Arc::default(),
            chunk_tree_uuid: None,
            generation: superblock.generation.into(),
            incompat: superblock.incompat,
            compat_ro: superblock.compat_ro,
        }
    }

    /// The same, for a volume that grew from seeds: blocks may carry their uuids as well.
    #[must_use]
    pub fn with_seeds(self, fsids: impl IntoIterator<Item = Uuid>) -> Self {
        Self {
            seed_fsids: fsids.into_iter().collect(),
            ..self
        }
    }

    /// The largest generation that a block or item can have.
    #[must_use]
    pub fn generation_limit(&self) -> Generation {
        Generation::new(self.generation.get().get().saturating_add(1))
    }
}

/// The last committed generation, as the checks know it. Clones are one number: whoever writes the volume raises it, and
/// all checks go along.
#[derive(Clone, Debug)]
pub struct CommittedGeneration(Arc<AtomicU64>);

impl CommittedGeneration {
    /// The generation.
    #[must_use]
    pub fn get(&self) -> Generation {
        Generation::new(self.0.load(Ordering::Relaxed))
    }

    /// From now on the volume has reached `generation`; never goes back.
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

/// What the pointer to a block promises of it. `None` is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Where the block was read from.
    pub logical: Logical,
    /// Its level: one less than that of the block that points to it.
    pub level: Option<u8>,
    /// The generation in the pointer.
    pub generation: Option<Generation>,
    /// The tree that is being walked. Blocks of one subvolume may be shared by another: for a subvolume any
    /// subvolume will do. Relocation trees hold blocks of any tree and are not checked.
    pub owner: Option<TreeId>,
    /// The key in the pointer.
    pub first_key: Option<Key>,
}

impl Expectation {
    /// Only the address is known.
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
    /// Every check that fails, at most [`DamagedBlock::MAX_FAILURES`]; none when the block is in order.
    pub failures: Vec<BlockError>,
    /// The block. Only items whose data lies inside it can be seen, and nothing else of them is certain.
    pub block: TreeBlock,
}

impl DamagedBlock {
    /// How many failures of one block are kept.
    pub const MAX_FAILURES: usize = 1000;
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
