//! Tests of commits, from below and compared with the kernel.
//!
//! - [`order`]: the system calls that reach the devices, from strace: writes and the flushes
//!   between them;
//! - [`steps`]: the same steps by the kernel and by Buttress, each committed, with every resulting
//!   item compared;
//! - [`defragmented`]: power cuts during a defragmentation;
//! - [`dropping`]: subvolumes and their snapshots, deleted one after another;
//! - [`leftovers`]: items that must not remain, and those that must not disappear;
//! - [`live`]: no commit overwrites an extent of the previous one;
//! - [`promised`]: durability of subvolume operations after a power cut;
//! - [`backup_roots`]: the roots of earlier commits in a superblock, and volumes opened from them.

mod backup_roots;
mod defragmented;
mod dropping;
mod leftovers;
mod live;
mod order;
mod promised;
mod steps;

use buttress_proof::harness::run;

fn main() -> std::process::ExitCode {
    if let Some(done) = order::run_traced() {
        return done;
    }
    let cases = order::cases().into_iter();
    run(cases
        .chain(steps::cases())
        .chain(backup_roots::cases())
        .chain(defragmented::cases())
        .chain(dropping::cases())
        .chain(leftovers::cases())
        .chain(live::cases())
        .chain(promised::cases())
        .collect())
}
