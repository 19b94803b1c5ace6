//! An overlay: a device whose changes go to a file beside it, so that the device itself stays as it is.
//!
//! What is written lands in a sparse *side file*; what is read comes from there where it was written, and from the base
//! elsewhere. Closed and opened again, the overlay is as its last flush left it, at least. In the end it is put into the
//! base ([`apply`]) or thrown away, by deleting the side file.
//!
//! A [`VolatileOverlay`] keeps changes in memory instead. Side files need Linux.
//!
//! The side file's format is in `side`, and for users in docs/overlay.md. Invariants:
//!
//! - the base is never written to while the overlay is in use, and a base that changed since (by size or time of its last
//!   change) is refused: the overlay's blocks would not fit it;
//! - a block's bit is on disk only after the block is: a crash loses what was not flushed, as on any device;
//! - applying may be interrupted, and begun again: until it is done the side file says so, and cannot be used otherwise.

#[cfg(target_os = "linux")]
mod apply;
#[cfg(target_os = "linux")]
mod persistent;
#[cfg(target_os = "linux")]
mod side;
mod volatile;

#[cfg(target_os = "linux")]
pub use apply::{Applied, apply};
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
