//! Tests of mounts, each on its own image: their answers, compared with the kernel's, and their
//! end.
//!
//! Tests of io_uring change a setting of the whole machine, so they are a separate program
//! (`mount_rings`).
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is how a test fails; tests compute with known numbers"
)]

mod adding;
mod auto_reclaim;
mod balance;
mod beside_kernel;
mod defragment;
mod deleted_image;
mod devices;
mod exclusive;
mod files;
mod ioctls;
mod kept_times;
#[path = "../mounting/mod.rs"]
mod mounting;
mod options;
mod power_cuts;
mod programs;
mod quota_ioctls;
mod quotas;
mod read_only;
mod remount_times;
mod resync;
mod scrub;
mod soak;
mod times_beside_kernel;
mod twice;
mod words;
mod writeback_cache;
