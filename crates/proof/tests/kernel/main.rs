//! Comparisons with the kernel: volumes that it made, read by the `buttress` command and by the library.
//!
//! Each case makes its own volume; [`matrix`] covers what mkfs.btrfs can vary, [`redundancy`] takes devices
//! and copies away, [`states`] what a running kernel can leave behind, [`soak`] goes on with random volumes.

mod compare;
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
        .chain(soak::cases())
        .collect();
    run(cases)
}
