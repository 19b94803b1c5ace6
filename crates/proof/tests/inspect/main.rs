//! Comparisons of `buttress inspect-internal` with btrfs-progs, line by line.
//!
//! The reference is the version that `docs/btrfs-progs-compatibility.md` names; with another one the cases are
//! skipped. [`matrix`] takes volumes of every kind that mkfs.btrfs can make, [`states`] what a running kernel
//! leaves behind, [`crafted`] blocks that hold every type of item, the rare and the wrong ones too.

mod compare;
mod crafted;
mod matrix;
mod states;

use buttress_proof::harness::{Case, run};

fn main() -> std::process::ExitCode {
    let cases: Vec<Case> = matrix::cases()
        .into_iter()
        .chain(states::cases())
        .chain(crafted::cases())
        .collect();
    run(cases)
}
