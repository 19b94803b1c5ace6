//! Comparisons of `buttress inspect-internal` with btrfs-progs, line by line.
//!
//! The reference is the version named in `docs/btrfs-progs-compatibility.md`; with another version
//! the cases are skipped. [`matrix`] covers volumes of every kind that mkfs.btrfs can create,
//! [`states`] the states that a running kernel leaves behind, [`crafted`] blocks with every type of
//! item, including rare and invalid ones. [`roots`] has the separate programs of btrfs-progs, in
//! every version.

mod compare;
mod crafted;
mod matrix;
mod roots;
mod states;

use buttress_proof::harness::{Case, run};

fn main() -> std::process::ExitCode {
    let cases: Vec<Case> = matrix::cases()
        .into_iter()
        .chain(states::cases())
        .chain(crafted::cases())
        .chain(roots::cases())
        .collect();
    run(cases)
}
