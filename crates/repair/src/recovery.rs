//! Recovery of the trees without which no volume opens.
//!
//! All other repairs need an open volume. A recovery begins with the index of a scan, and writes
//! one tree from the records that are left:
//!
//! | module | holds |
//! |---|---|
//! | `chunk_tree` | the chunk tree, and the system chunks of the superblock |
//! | `root_tree` | the root tree, with the newest root of each tree |
//! | `file_trees` | blocks of subvolumes that are lost |
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
//! - The whole recovery first runs in memory. It writes only if the recovered volume opens.
//! - The new tree has the generation of the last commit, so a pending log stays valid.
//!
//! # Crash safety
//!
//! The blocks of the new tree are durable before the first superblock names them. A cut before the
//! rebuild leaves a volume that opens; `check --repair` then rebuilds.

mod chunk_tree;
mod error;
mod file_trees;
mod packed;
mod root_tree;
mod volume;

pub use chunk_tree::ChunkRecovery;
pub use error::Error;
pub use file_trees::{FileTreeRecovery, LostBlock, inodes_of};
pub use root_tree::RootRecovery;
pub use volume::RecoveryOptions;
