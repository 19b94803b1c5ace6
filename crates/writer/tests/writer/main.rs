//! Tests of the writer across its layers: mkfs, the order of commits, writes in place, live reads,
//! and atomic calls.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is how a test fails; tests compute with known numbers"
)]

mod balance;
mod balance_corners;
mod commit_in_flight;
mod commit_order;
mod damaged_subvolume;
mod defragmenting;
mod in_place;
mod live;
mod mkfs;
mod parity;
mod quota_charges;
mod quota_inheritance;
mod quota_removal;
mod quotas;
mod shrink;
mod space_needs;
mod trimming;
mod whole_calls;
