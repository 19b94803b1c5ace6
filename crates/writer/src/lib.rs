//! The writer: every operation that edits a btrfs volume.
//!
//! [`WritableFilesystem`] is a volume that is open for writing. A `WritableFilesystem` is a cheap
//! handle. All its calls take `&self` and may run at once on any number of threads. Callers read
//! committed state through views ([`Filesystem`](buttress_fs::Filesystem)), and the newest state
//! through live reads.
//!
//! | to | see |
//! |---|---|
//! | open one for writing, commit, close | [`WritableFilesystem`], [`engine`](buttress_engine) |
//! | change names, attributes, subvolumes | [`operations`] |
//! | find the handle of a job: quotas, subvolumes, log tree, live reads | [`areas`] |
//! | write content | [`data`] |
//! | read the newest state | [`LiveReads`](areas::LiveReads) |
//! | change the fsid or the checksums of a whole volume | [`whole_changes`] |
//!
//! Opening a volume for writing replays its pending log tree.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

pub mod areas;
pub mod data;
mod fiemap;
mod filesystem;
mod live;
pub mod log_tree;
pub mod operations;
mod recounts;
#[cfg(test)]
mod relocation_tests;
mod subvolume;
#[cfg(test)]
mod transaction_tests;
pub mod whole_changes;

pub use buttress_engine::areas::{MemberDevices, Replacements};
pub use buttress_engine::membership::SizeFix;
pub use buttress_engine::quota_tree::QuotaKind;
pub use buttress_engine::relocation::{RelocationOptions, RelocationSummary, TargetProfiles};
pub use buttress_engine::shrinking::{ShrinkSummary, ShrunkDevice, plan_shrink};
pub use buttress_engine::{
    AutoReclaim, AutoReclaiming, BlockGroupPlace, ChunkInTheWay, DataOptions, Emptying, Engine, Environment,
    JoinOptions, LEAST_DEVICE_BYTES, Reclaimed, Return, SpaceNow, SystemEnvironment, Trimmed, Tuning,
    Uncommitted, WriteOptions, balance, balance_item, look_ups, relocation, replacement_item,
    wipe_superblocks,
};
pub use data::AllocateMode;
pub use filesystem::WritableFilesystem;
pub use live::LiveFile;
pub use log_tree::{CommitCause, LogStatistics, Shown, Synced, open_replayed};
pub use whole_changes::WholeVolume;
