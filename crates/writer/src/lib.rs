//! Writing btrfs: transactions, and everything that edits a volume.
//!
//! [`WritableFilesystem`] is a volume that is open for writing: a cheap handle, whose calls all take `&self` and may run
//! at once from any number of threads. Committed state is read through views
//! ([`Filesystem`](buttress_fs::Filesystem)), the newest state live.
//!
//! | to | see |
//! |---|---|
//! | open one for writing, commit, close | [`transaction`] |
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
mod live;
pub mod log_tree;
pub mod operations;
mod subvolume;
pub mod transaction;

pub use data::{AllocateMode, DataOptions};
pub use log_tree::{CommitCause, LogStatistics, Shown, Synced, open_replayed};
pub use transaction::{
    Environment, Return, SpaceNow, SystemEnvironment, Trimmed, Uncommitted, WritableFilesystem, WriteOptions,
    replacement_item, wipe_superblocks,
};
