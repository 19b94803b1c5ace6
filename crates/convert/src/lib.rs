//! Converts ext2, ext3 and ext4 to btrfs in place.
//!
//! | module | holds |
//! |---|---|
//! | [`layout`] | which bytes of the device become which chunks |
//! | [`error`] | the reasons of a failure |
//!
//! The old content stays where it is until the new volume is complete. Left out so far: the trees of
//! the new volume, its publication, and the way back.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests"
    )
)]

pub mod error;
pub mod layout;

pub use error::Error;
