//! Accounts of space, compared with a count that walks every subvolume separately, with block
//! groups, btrfs-progs and compsize, and with the space that deletions of snapshots really free.

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
