//! Recovery of the chunk tree, without which no volume opens.
//!
//! All other repairs need an open volume. A recovery begins with the index of a scan, and writes
//! one tree from the records that are left:
//!
//! | module | holds |
//! |---|---|
//! | `chunk_tree` | the chunk tree, and the system chunks of the superblock |
//! | `volume` | the superblocks before a recovery, and the accounts after it |
//! | `packed` | the blocks of a small tree, at addresses that no sound block has |
//! | `error` | the reasons against a recovery |
//!
//! The extent tree then has records of the lost blocks, and none of the new ones. A rebuild of the
//! trees that account for space follows.
//!
//! # Invariants
//!
//! - No sound tree block is overwritten. The superblocks are the exception: they name the new tree.
//! - The whole recovery first runs in memory, with the accounts. It writes only if both succeed.
//! - A volume with a pending log is refused: the accounts make a commit, and the log belongs to the
//!   one before.
//!
//! # Crash safety
//!
//! The blocks of the new tree are durable before the first superblock names them. A cut before the
//! rebuild leaves a volume that opens; `check --repair` then rebuilds.

mod chunk_tree;
mod error;
mod packed;
mod volume;

pub use chunk_tree::ChunkRecovery;
pub use error::Error;
pub use volume::RecoveryOptions;
