//! Devices for tests: the effects of a drive, a cable, a host and a power supply on a program that
//! stores data.
//!
//! Every device in the lab is a [`Backend`] over another backend. A test stacks the backends that
//! it needs, and runs the program on a [`Device`] over the top. The program needs no change:
//! `buttress::VolumeOptions::open_devices` accepts the device, as does every other call with a
//! device.
//!
//! | to | see |
//! |---|---|
//! | cut the power at every write of a program, and judge the result | [`crash`] |
//! | fail, tear or misdirect requests, rot bits, remove a device | [`Fault`], [`FaultyBackend`] |
//! | fail each request of a program in turn | [`strike_each`] |
//! | fill the host's disk below an image file with holes | [`SparseBackend`] |
//! | hold requests back until the test releases them | [`gate`] |
//! | measure in the time of a disk that the machine does not have | [`simulated`], [`Model`] |
//!
//! All devices are deterministic: a cut, a number or a seed reproduces a failure. With threads, the
//! system's scheduler decides the order in which requests reach a device; a history records that
//! order.
//!
//! The crate does not depend on btrfs. No ordinary command uses this crate, except `buttress tour`,
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
