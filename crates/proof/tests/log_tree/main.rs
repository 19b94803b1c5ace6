//! What is synced lasts, both ways with the kernel.
//!
//! - [`situations`]: named situations, each a sentence and a short script;
//! - [`script`]: the words of the scripts;
//! - [`sides`]: the same script by the kernel and by Buttress;
//! - [`both_ways`]: the image as it is right after the sync, replayed by the kernel and by Buttress, and compared.

mod both_ways;
mod script;
mod sides;
mod situations;

use buttress_proof::harness::run;

fn main() -> std::process::ExitCode {
    run(both_ways::cases())
}
