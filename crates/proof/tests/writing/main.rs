//! Writing: random changes beside a model, on volumes that Buttress makes.
//!
//! [`model`]: seeds in the ordinary suite, more in `cargo xtask soak`.

mod model;

use buttress_proof::harness::run;

fn main() -> std::process::ExitCode {
    run(model::cases())
}
