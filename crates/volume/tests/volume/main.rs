//! Tests of volumes on devices in memory: opening, every profile, writes, rows of parity, failing
//! and replaced devices.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is how a test fails; tests compute with known numbers"
)]

mod failing;
mod opening;
mod profiles;
mod replacing;
mod row_locks;
mod rows;
mod support;
mod writing;
