//! Tests of scrubs, replacements and resynchronisations: damage of every kind, crashes at every
//! write, and the kernel.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is how a test fails; tests compute with known numbers"
)]

mod beside;
mod beside_the_kernels;
mod crash;
mod damage;
mod damage_beside_writes;
mod kernel;
mod replace;
mod replace_kernel;
mod replace_lost;
mod reserved;
mod resync;
mod resync_beside;
mod resync_cuts;
mod resync_kernel;
mod resync_reads;
mod running;
mod support;
mod unwalked;
