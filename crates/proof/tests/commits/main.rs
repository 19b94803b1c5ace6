//! What commits do, seen from below and beside the kernel.
//!
//! - [`order`]: the system calls that reach the devices, as strace sees them: what is durable before what is written;
//! - [`steps`]: the same steps by the kernel and by Buttress, each committed, and every item that came of it compared;
//! - [`dropping`]: subvolumes and their snapshots that go one after the other;
//! - [`leftovers`]: what must not stay behind, and what must not go;
//! - [`live`]: that no commit writes where the one before it has something;
//! - [`promised`]: what subvolume operations promise of a power cut;
//! - [`backup_roots`]: the roots of earlier commits that a superblock keeps, and volumes opened from them.

mod backup_roots;
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
        .chain(dropping::cases())
        .chain(leftovers::cases())
        .chain(live::cases())
        .chain(promised::cases())
        .collect())
}
