//! The reader beside the kernel and e2fsprogs: volumes of all features, filled through a mount.
//!
//! The kernel's mount gives the manifest of names, content, attributes and times. FIEMAP gives the
//! extents, and dumpe2fs gives the free blocks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "tests"
)]

mod damage;
mod fill;
mod free_blocks;
mod matrix;
mod mount;
mod ours;
mod refusals;
mod second_reader;
