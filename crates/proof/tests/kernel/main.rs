//! Comparisons with the kernel: the `buttress` command and the library read volumes that the kernel
//! made.
//!
//! Each case creates its own volume. [`matrix`] covers the variations of mkfs.btrfs, [`redundancy`]
//! removes devices and copies, [`states`] covers the states that a running kernel leaves behind,
//! [`generations`] reads older states, [`soak`] continues with random volumes.

mod compare;
mod generations;
mod matrix;
mod redundancy;
mod soak;
mod states;

use buttress_proof::harness::{Case, run};

fn main() -> std::process::ExitCode {
    let cases: Vec<Case> = matrix::cases()
        .into_iter()
        .chain(redundancy::cases())
        .chain(states::cases())
        .chain(generations::cases())
        .chain(soak::cases())
        .collect();
    run(cases)
}
