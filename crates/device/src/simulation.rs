//! Simulated disks.
pub(crate) mod clock;
pub use clock::VirtualClock;
