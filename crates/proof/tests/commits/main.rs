//! What commits do, seen from below and beside the kernel.
//!
//! - [`order`]: the system calls that reach the devices, as strace sees them: what is durable before what is written;
//! - [`backup_roots`]: the roots of earlier commits that a superblock keeps, and volumes opened from them.

mod backup_roots;
mod order;

use buttress_proof::harness::run;

fn main() -> std::process::ExitCode {
    if let Some(done) = order::run_traced() {
        return done;
    }
    let cases = order::cases().into_iter();
    run(cases.chain(backup_roots::cases()).collect())
}
