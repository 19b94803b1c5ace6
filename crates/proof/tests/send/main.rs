//! Streams compared with the kernel: sent by Buttress, received by the kernel, and compared.
//!
//! Named cases are in files by theme; each case has a sentence about the error of an incomplete
//! implementation. [`broken`] covers damaged streams, [`power_cuts`] power cuts during a receive,
//! [`histories`] random histories from seeds, [`views`] views of their streams. With
//! `BUTTRESS_SENDER=kernel`, the kernel's own streams replace Buttress's, which tests the tests.

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
