//! Support for tests of the writer.
//!
//! - [`volume`], [`state`], [`workload`]: volumes in memory, the content of a volume as one text,
//!   and random operations for crash tests;
//! - [`recorded`]: runs in the crash laboratory, and the content of each of their generations;
//! - [`unsteady`]: devices whose requests end in another order than they began;
//! - [`deep`]: trees of many levels;
//! - [`fill`]: volumes that are filled until there is no space, by data, metadata or snapshots;
//! - [`model`]: the expected content of a volume: subvolumes, inodes, names, attributes, content;
//! - [`operation`]: one random change from a seed, mostly a valid one, made on the volume and on
//!   the model;
//! - [`access_list`], [`newborn`]: the model's rules for access control lists, flags, and inherited
//!   attributes;
//! - [`renames`]: the model's rules for renames;
//! - [`content`]: changes of a file's content;
//! - [`world`]: a volume, its model and a clock: commits, reopening;
//! - [`comparing`]: the comparison after each commit, of the volume and of the kernel's view of it;
//! - [`twin`]: the same changes by the kernel, on a separate volume;
//! - [`degraded`]: volumes that lost devices;
//! - [`account`]: counts of a run's events.
//!
//! A change must succeed on all sides or fail on all sides. After each commit the volume is opened
//! again from its devices, checked, and compared with the model: in everything that stat(2),
//! chattr(1), xattrs and reading show, and in the label, the default subvolume, and the read-only
//! subvolumes. Everything except the ids of volumes follows from the seed.

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
