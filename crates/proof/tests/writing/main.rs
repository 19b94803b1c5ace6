//! Tests of writing: random changes compared with a model, on volumes of Buttress and of the
//! kernel, and on full volumes.
//!
//! - [`model`]: seeds in the ordinary suite, more in `cargo xtask soak`;
//! - [`rounds`]: the kernel and Buttress change one volume alternately;
//! - [`balanced`]: Buttress deletes subvolumes that the kernel relocated;
//! - [`relocated`]: Buttress relocates block groups, between all kinds of profiles;
//! - [`converted`]: Buttress converts volumes between all profiles, and crashes interrupt conversions;
//! - [`cut_balances`]: a power cut ends balances of the kernel, and Buttress ends what is left;
//! - [`old_layouts`]: volumes in the layouts of old versions of mkfs.btrfs;
//! - [`full`]: volumes without space;
//! - [`host`]: image files with holes on a host that becomes full;
//! - [`faults`]: required devices that fail during a run;
//! - [`devices`]: devices that fail during a run, and that the volume can do without.

mod balanced;
mod converted;
mod cut_balances;
mod devices;
mod faults;
mod full;
mod host;
mod model;
mod old_layouts;
mod relocated;
mod rounds;
mod subject;

use buttress_proof::harness::run;

/// Returns a number from `cargo xtask soak`, or the ordinary suite's.
fn number(name: &str, or: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(or)
}

fn main() -> std::process::ExitCode {
    let cases = model::cases().into_iter();
    run(cases
        .chain(rounds::cases())
        .chain(balanced::cases())
        .chain(relocated::cases())
        .chain(converted::cases())
        .chain(cut_balances::cases())
        .chain(old_layouts::cases())
        .chain(full::cases())
        .chain(host::cases())
        .chain(faults::cases())
        .chain(devices::cases())
        .collect())
}
