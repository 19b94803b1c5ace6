//! Streams against the kernel: what is sent, received by the kernel, and compared.
//!
//! Named cases are in files by theme, each with a sentence on what goes wrong where its situation is not
//! thought of; [`broken`] has what is damaged, [`power_cuts`] what the power is cut off from; [`histories`] are random ones from seeds; [`views`] looks into the streams of such. Where
//! `BUTTRESS_SENDER=kernel`, the kernel's own streams take the place of Buttress's: that tests the tests.

mod broken;
mod histories;
mod named;
mod other_senders;
mod power_cuts;
mod settling;
mod views;
mod waiting_names;

use buttress_proof::harness::{Case, run};
use buttress_proof::send::volumes;

fn main() -> std::process::ExitCode {
    let cases: Vec<Case> = named::cases()
        .into_iter()
        .chain(histories::cases())
        .chain(views::cases())
        .chain(broken::cases())
        .chain(power_cuts::cases())
        .chain(waiting_names::cases())
        .chain(other_senders::cases())
        .chain(settling::cases())
        .collect();
    let code = run(cases);
    volumes::close();
    code
}
