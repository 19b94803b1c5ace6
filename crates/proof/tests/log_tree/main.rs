//! Tests in both directions with the kernel: synced changes survive a crash.
//!
//! - [`situations`]: named situations, each a sentence and a short script;
//! - [`script`]: the commands of the scripts;
//! - [`sides`]: the same script by the kernel and by Buttress;
//! - [`both_ways`]: the image right after the sync, replayed by the kernel and by Buttress, and
//!   compared.

mod both_ways;
mod script;
mod sides;
mod situations;

use buttress_proof::harness::run;

fn main() -> std::process::ExitCode {
    run(both_ways::cases())
}
