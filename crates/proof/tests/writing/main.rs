//! Writing: random changes beside a model, on volumes that Buttress makes and on the kernel's, and full volumes.
//!
//! - [`model`]: seeds in the ordinary suite, more in `cargo xtask soak`;
//! - [`rounds`]: the kernel and Buttress change one volume in turn;
//! - [`balanced`]: what the kernel relocated is deleted here;
//! - [`old_layouts`]: volumes as old versions of mkfs.btrfs laid them out;
//! - [`full`]: volumes without space;
//! - [`host`]: image files with holes on a host that becomes full;
//! - [`faults`]: devices that fail half-way, and that the volume needs;
//! - [`devices`]: devices that fail half-way, and that the volume can do without.

mod balanced;
mod devices;
mod faults;
mod full;
mod host;
mod model;
mod old_layouts;
mod rounds;
mod subject;

use buttress_proof::harness::run;

/// A number that `cargo xtask soak` gives, or the ordinary suite's.
fn number(name: &str, or: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(or)
}

fn main() -> std::process::ExitCode {
    let cases = model::cases().into_iter();
    run(cases
        .chain(rounds::cases())
        .chain(balanced::cases())
        .chain(old_layouts::cases())
        .chain(full::cases())
        .chain(host::cases())
        .chain(faults::cases())
        .chain(devices::cases())
        .collect())
}
