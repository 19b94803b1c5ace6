//! What tests of the writer need.
//!
//! - [`volume`], [`state`], [`workload`]: volumes in memory, what a volume holds as one text, random operations: for
//!   crashes;
//! - [`recorded`]: runs in the crash laboratory, and what each generation of them held;
//! - [`unsteady`]: devices whose requests end in another order than they began;
//! - [`deep`]: trees of many levels;
//! - [`fill`]: volumes that are filled until there is no space, by data, metadata or snapshots;
//! - [`model`]: what a volume must hold: subvolumes, inodes, names, attributes, content;
//! - [`operation`]: one change, drawn from a seed so that it mostly makes sense, and carried out on both sides;
//! - [`access_list`], [`newborn`]: the model's rules of access control lists, flags, and what directories pass on;
//! - [`renames`]: what renames may do;
//! - [`content`]: those changes that concern the content of a file;
//! - [`world`]: a volume, its model and a clock: commits, reopening;
//! - [`comparing`]: the comparison after each commit, of the volume and of what the kernel shows of it;
//! - [`twin`]: the same changes by the kernel, on a volume of its own;
//! - [`degraded`]: what is left of a volume that lost devices;
//! - [`account`]: what a run met.
//!
//! Whether a change succeeds must be the same on all sides. After each commit the volume is opened anew from its
//! devices, checked, and compared with the model in all that stat(2), chattr(1), xattrs and reading show, and in what it has
//! beside files: label, default subvolume, which subvolumes are read-only. Everything but the ids of volumes follows from the
//! seed.

pub mod access_list;
pub mod account;
pub mod comparing;
pub mod content;
pub mod deep;
pub mod degraded;
pub mod fill;
pub mod model;
pub mod newborn;
pub mod operation;
pub mod recorded;
pub mod renames;
pub mod state;
pub mod twin;
pub mod unsteady;
pub mod volume;
pub mod workload;
pub mod world;

pub use model::Model;
pub use operation::Operation;
pub use world::{Plan, World};
