//! Devices for tests: what a drive, a cable, a host and a power supply do to a program that stores things.
//!
//! Every device in the lab is a [`Backend`] over another one, so a test stacks them as needed, and
//! runs the program on a [`Device`] over the top. The program needs no change:
//! `buttress::VolumeOptions::open_devices` takes the device, and so does everything else that takes
//! one.
//!
//! | to | see |
//! |---|---|
//! | cut the power at every write of a program, and judge what is found | [`crash`] |
//! | fail, tear or misdirect requests, rot bits, pull a device out | [`Fault`], [`FaultyBackend`] |
//! | fail each request of a program in turn | [`strike_each`] |
//! | fill the host's disk below an image file with holes | [`SparseBackend`] |
//! | hold requests back until the test lets them go on | [`gate`] |
//! | measure in the time of a disk that the machine does not have | [`simulated`], [`Model`] |
//!
//! All of it is deterministic: a failure is found again by its cut, its number or its seed. Of threads it depends on the
//! system's scheduler in which order requests reach a device; a recorded history keeps the order that occurred.
//!
//! No code in this crate knows btrfs. No ordinary command uses this crate, except `buttress tour`,
//! which shows repairs.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        reason = "tests work on numbers of their own"
    )
)]
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "tests work on numbers of their own"
    )
)]

pub mod crash;
mod fault;
pub mod gate;
mod layer;
mod simulation;
mod sparse;

pub use buttress_device::{Backend, Device, Engine, IoError, MemoryBackend, VirtualClock};
pub use fault::{Fault, FaultyBackend, strike_each};
pub use simulation::{FlashParameters, FlashTimes, Model, SpinningParameters, as_if_on, simulated};
pub use sparse::SparseBackend;
