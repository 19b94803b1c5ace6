//! Writing btrfs: transactions, and everything that edits a volume.
//!
//! [`WritableFilesystem`] is a volume that is open for writing: a cheap handle, whose calls all take `&self` and may run
//! at once from any number of threads. Committed state is read through views
//! ([`Filesystem`](buttress_fs::Filesystem)), the newest state live.
//!
//! | to | see |
//! |---|---|
//! | open one for writing, commit, close | [`WritableFilesystem`], [`engine`](buttress_engine) |
//! | change names, attributes, subvolumes | [`operations`] |
//! | write content | [`data`] |
//! | read what is newest | `live`: the reading calls of [`WritableFilesystem`] |
//!
//! A pending log tree is replayed when a volume is opened for writing.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

pub mod data;
mod fiemap;
mod filesystem;
mod live;
pub mod log_tree;
pub mod operations;
#[cfg(test)]
mod relocation_tests;
mod subvolume;
#[cfg(test)]
mod transaction_tests;

pub use buttress_engine::{
    ChunkInTheWay, DataOptions, Emptying, Engine, Environment, JoinOptions, LEAST_DEVICE_BYTES, Return,
    SpaceNow, SystemEnvironment, Trimmed, Uncommitted, WriteOptions, look_ups, replacement_item,
    wipe_superblocks,
};
pub use data::AllocateMode;
pub use filesystem::WritableFilesystem;
pub use live::LiveFile;
pub use log_tree::{CommitCause, LogStatistics, Shown, Synced, open_replayed};
