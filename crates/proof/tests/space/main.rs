//! Accounts of space: against a count that walks every subvolume by itself, against block groups, btrfs-progs and
//! compsize, and against what deleting snapshots really gives back.

mod counting;
mod deleting;
mod programs;
mod states;
mod volumes;

use buttress_proof::harness::run;

fn main() -> std::process::ExitCode {
    let mut cases = volumes::cases();
    cases.extend(states::cases());
    run(cases)
}
