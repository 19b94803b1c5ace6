//! What can be wrong with a tree block: one variant for each check.

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
    /// Where the block was read from.
    pub logical: Logical,
    /// The check that it fails.
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
    /// Not as long as the volume's tree blocks are.
    #[error("{size_bytes} bytes long, expected {node_bytes}")]
    Size { size_bytes: usize, node_bytes: u32 },
    /// The stored checksum is not that of the bytes.
    #[error("checksum is {stored}, computed {computed}")]
    Checksum { stored: Checksum, computed: Checksum },
    /// The block says that it lies elsewhere.
    #[error("the block says that it lies at {stored}")]
    Address { stored: Logical },
    /// The block belongs to another volume.
    #[error("fsid is {stored}, expected {expected}")]
    Fsid { stored: Uuid, expected: Uuid },
    /// The block belongs to another chunk tree.
    #[error("chunk tree uuid is {stored}, expected {expected}")]
    ChunkTreeUuid { stored: Uuid, expected: Uuid },
    /// A level above the highest.
    #[error("level is {level}, the highest is {}", crate::superblock::HIGHEST_LEVEL)]
    LevelTooHigh { level: u8 },
    /// Not the level that the parent promised.
    #[error("level is {stored}, expected {expected}")]
    Level { stored: u8, expected: u8 },
    /// Not the generation that the parent promised.
    #[error("generation is {stored}, expected {expected}")]
    Generation {
        stored: Generation,
        expected: Generation,
    },
    /// Not a block of the tree that is being walked.
    #[error("owner is tree {stored}, expected {expected}")]
    Owner { stored: TreeId, expected: TreeId },
    /// Not the first key that the parent promised.
    #[error("first key is {}, expected {expected}", stored.map_or_else(|| "missing".to_owned(), |key| key.to_string()))]
    FirstKey { stored: Option<Key>, expected: Key },
    /// The flag that every block on disk has is not set.
    #[error("flags 0x{flags:x} have no WRITTEN bit")]
    NotWritten { flags: u64 },
    /// A node without pointers.
    #[error("a node without pointers")]
    NodeEmpty,
    /// A leaf without items, in a tree that always has some.
    #[error("a leaf without items, but tree {owner} is never empty")]
    LeafEmpty { owner: TreeId },
    /// A leaf without items and without a tree.
    #[error("owner is tree 0, which does not exist")]
    OwnerZero,
    /// More items or pointers than fit.
    #[error("{count} items, at most {most} fit")]
    TooManyItems { count: u32, most: usize },
    /// Keys that do not rise.
    #[error("slot {slot}: key {key} does not come after {previous}")]
    KeyOrder { slot: usize, previous: Key, key: Key },
    /// A pointer to address 0.
    #[error("slot {slot}: pointer to address 0")]
    PointerZero { slot: usize },
    /// A pointer that no sector begins at.
    #[error("slot {slot}: pointer to {pointer}, not a multiple of the sector size {sector_bytes}")]
    PointerUnaligned {
        slot: usize,
        pointer: Logical,
        sector_bytes: u32,
    },
    /// A pointer to a block newer than the block that holds it.
    #[error("slot {slot}: pointer of generation {generation} in a block of generation {own}")]
    PointerGeneration {
        slot: usize,
        generation: Generation,
        own: Generation,
    },
    /// Item data that does not end where the data of the item before begins.
    #[error("slot {slot}: data ends at {end_bytes}, expected {expected_bytes}")]
    DataEnd {
        slot: usize,
        end_bytes: u64,
        expected_bytes: u64,
    },
    /// Item data that reaches into the item heads.
    #[error("slot {slot}: data begins at {start_bytes}, the item heads end at {heads_end_bytes}")]
    DataOverlapsHeads {
        slot: usize,
        start_bytes: u64,
        heads_end_bytes: u64,
    },
    /// An item that is wrong in itself.
    #[error("slot {slot}: {error}")]
    Item { slot: usize, error: ItemError },
}
