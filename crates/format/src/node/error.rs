//! The errors of tree blocks: one variant for each check.

use crate::checksum::Checksum;
use crate::error::ErrorKind;
use crate::item_error::ItemError;
use crate::key::Key;
use crate::units::{Generation, Logical, TreeId};
use uuid::Uuid;

/// A tree block that fails a check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tree block {logical}: {problem}")]
pub struct BlockError {
    /// The address from which the block was read.
    pub logical: Logical,
    /// The check that the block fails.
    pub problem: BlockProblem,
}

impl BlockError {
    /// Always [`ErrorKind::Corrupt`].
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::Corrupt
    }
}

/// The check that a tree block fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the fields are the numbers of the message beside them"
)]
pub enum BlockProblem {
    /// The block's size differs from the node size.
    #[error("{size_bytes} bytes long, expected {node_bytes}")]
    Size { size_bytes: usize, node_bytes: u32 },
    /// The stored checksum differs from the computed one.
    #[error("checksum is {stored}, computed {computed}")]
    Checksum { stored: Checksum, computed: Checksum },
    /// The block's header names another address.
    #[error("address is {stored} in the block's header")]
    Address { stored: Logical },
    /// The block belongs to another volume.
    #[error("fsid is {stored}, expected {expected}")]
    Fsid { stored: Uuid, expected: Uuid },
    /// The block belongs to another chunk tree.
    #[error("chunk tree uuid is {stored}, expected {expected}")]
    ChunkTreeUuid { stored: Uuid, expected: Uuid },
    /// The level exceeds the highest level that a tree can have.
    #[error("level is {level}, expected at most {}", crate::superblock::HIGHEST_LEVEL)]
    LevelTooHigh { level: u8 },
    /// The level differs from the level that the parent predicts.
    #[error("level is {stored}, expected {expected}")]
    Level { stored: u8, expected: u8 },
    /// The generation differs from the generation in the parent's pointer.
    #[error("generation is {stored}, expected {expected}")]
    Generation {
        stored: Generation,
        expected: Generation,
    },
    /// The block belongs to another tree than the one that the reader walks.
    #[error("owner is tree {stored}, expected {expected}")]
    Owner { stored: TreeId, expected: TreeId },
    /// The first key differs from the key in the parent's pointer.
    #[error("first key is {}, expected {expected}", stored.map_or_else(|| "missing".to_owned(), |key| key.to_string()))]
    FirstKey { stored: Option<Key>, expected: Key },
    /// The flag `WRITTEN`, which every block on disk has, is not set.
    #[error("flags 0x{flags:x} have no WRITTEN bit")]
    NotWritten { flags: u64 },
    /// A node has no pointers.
    #[error("the node has no pointers")]
    NodeEmpty,
    /// A leaf is empty, in a tree that always has items.
    #[error("the leaf has no items, but tree {owner} is never empty")]
    LeafEmpty { owner: TreeId },
    /// A leaf has no items and no owner.
    #[error("owner is tree 0, which does not exist")]
    OwnerZero,
    /// The count of items or pointers exceeds the block's capacity.
    #[error("{count} items, expected at most {most}")]
    TooManyItems { count: u32, most: usize },
    /// The keys are not in ascending order.
    #[error("slot {slot}: key {key} is not greater than the key before it, {previous}")]
    KeyOrder { slot: usize, previous: Key, key: Key },
    /// A pointer names address 0.
    #[error("slot {slot}: pointer to address 0")]
    PointerZero { slot: usize },
    /// The address in a pointer is not sector-aligned.
    #[error("slot {slot}: pointer to {pointer}, not a multiple of the sector size {sector_bytes}")]
    PointerUnaligned {
        slot: usize,
        pointer: Logical,
        sector_bytes: u32,
    },
    /// A pointer names a newer generation than that of its own block.
    #[error("slot {slot}: pointer generation is {generation}, expected at most {own}")]
    PointerGeneration {
        slot: usize,
        generation: Generation,
        own: Generation,
    },
    /// An item's data does not end where the previous item's data begins.
    #[error("slot {slot}: data ends at {end_bytes}, expected {expected_bytes}")]
    DataEnd {
        slot: usize,
        end_bytes: u64,
        expected_bytes: u64,
    },
    /// An item's data overlaps the item heads.
    #[error(
        "slot {slot}: data starts at {start_bytes}, expected at least {heads_end_bytes}, the end of the item heads"
    )]
    DataOverlapsHeads {
        slot: usize,
        start_bytes: u64,
        heads_end_bytes: u64,
    },
    /// An item of the leaf fails a check of its own.
    #[error("slot {slot}: {error}")]
    Item { slot: usize, error: ItemError },
}
