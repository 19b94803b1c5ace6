//! What tests of the writer need.
//!
//! - [`volume`], [`state`], [`workload`]: volumes in memory, what a volume holds as one text, random operations: for
//!   crashes;
//! - [`recorded`]: runs in the crash laboratory, and what each generation of them held;
//! - [`fill`]: volumes that are filled until there is no room, by data, metadata or snapshots;
//! - [`model`]: what a volume must hold: subvolumes, inodes, names, attributes, content;
//! - [`operation`]: one change, drawn from a seed so that it mostly makes sense, and carried out on both sides;
//! - [`renames`]: what renames may do;
//! - [`content`]: those changes that concern the content of a file;
//! - [`world`]: a volume, its model and a clock: commits, reopening, and the comparison after each commit.
//!
//! Whether a change succeeds must be the same on both sides. After each commit the volume is opened anew from its
//! devices, checked, and compared with the model in all that stat(2), xattrs and reading show. Everything follows from
//! the seed.

pub mod content;
pub mod fill;
pub mod model;
pub mod operation;
pub mod recorded;
pub mod renames;
pub mod state;
pub mod volume;
pub mod workload;
pub mod world;

pub use model::Model;
pub use operation::Operation;
pub use world::{Plan, World};
