//! The kernel as the oracle: what tests and benchmarks need to compare with it.
//!
//! Only the project's own tests and benchmarks use this crate. Its modules:
//!
//! - [`needs`]: what tests need of the machine, by name;
//! - [`skip`]: a test that could not run says so, and is counted;
//! - [`harness`]: runs named cases, several at a time, and says for each whether it passed, failed or was skipped, and why;
//! - [`tools`]: whether the kernel can be compared with, versions of btrfs-progs, running programs;
//! - [`btrfs_check`]: what btrfs-progs finds wrong with a volume;
//! - [`loop_device`]: attaches images, mounts volumes, and undoes both;
//! - [`volumes`]: makes volumes with mkfs.btrfs and the kernel from a specification;
//! - [`content`]: fills a mounted volume with every kind of file and metadata, from a seed;
//! - [`history`]: chains of snapshots with changes in between, from seeds or written down by hand;
//! - [`ioctls`]: what is asked of a mounted btrfs by ioctl;
//! - [`manifest`]: what a directory tree holds: the common form in which two sides are compared;
//! - [`noise`]: damage to copies of a volume's devices;
//! - [`seeds`]: the seeds of random tests;
//! - [`signals`]: signals to programs that are tested.

pub mod btrfs_check;
pub mod content;
pub mod field;
pub mod harness;
pub mod history;
pub mod ioctls;
pub mod loop_device;
pub mod manifest;
pub mod needs;
pub mod noise;
pub mod seeds;
pub mod signals;
pub mod skip;
pub mod tools;
pub mod volumes;
