//! Overlays: devices whose changes go to a file beside the device, which stays unchanged.
//!
//! Writes to the overlay go to a sparse *side file*. Reads of written bytes come from the side
//! file, and all other reads from the base. After a close and a new open, the overlay has at least
//! the state of its last flush. Finally, the overlay is written into the base ([`apply`]), or
//! discarded ([`discard`]).
//!
//! A [`VolatileOverlay`] keeps changes in memory instead. Side files need Linux.
//!
//! The module `side` documents the side file's format, and docs/overlay.md documents it for users.
//! Invariants:
//!
//! - the overlay's base is never written while the overlay is in use. An overlay refuses a base
//!   whose size, modification time or primary superblock has changed, because the overlay's blocks
//!   would not match the base;
//! - a block's bit in the map is on disk only after the block. A crash loses unflushed data, as on
//!   any device;
//! - applying may be interrupted and repeated. Until an apply is done, the side file is marked, and
//!   cannot be used otherwise;
//! - an apply writes blocks in stages with a flush after each. The caller names the blocks of the
//!   last stages, such as superblocks.

#[cfg(target_os = "linux")]
mod apply;
#[cfg(target_os = "linux")]
mod identity;
#[cfg(target_os = "linux")]
mod persistent;
#[cfg(target_os = "linux")]
mod side;
mod volatile;

#[cfg(target_os = "linux")]
pub use apply::{Applied, Last, apply, apply_all, discard};
#[cfg(target_os = "linux")]
pub(crate) use persistent::Overlay;
#[cfg(target_os = "linux")]
pub use side::BLOCK_BYTES;
#[cfg(target_os = "linux")]
pub(crate) use side::BaseState;
pub use volatile::VolatileOverlay;

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
