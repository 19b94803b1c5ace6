//! The kernel as the oracle: the needs of tests and benchmarks that compare with it.
//!
//! Only the project's own tests and benchmarks use this crate. Its modules:
//!
//! - [`needs`]: the needs of tests, by name: programs, rights, features of the machine;
//! - [`skip`]: records of tests that could not run;
//! - [`harness`]: runs named cases, several at a time, and reports for each whether it passed,
//!   failed or was skipped, and why;
//! - [`tools`]: the reasons against a comparison with the kernel, versions of btrfs-progs, running
//!   programs;
//! - [`btrfs_check`]: the findings of btrfs-progs on a volume;
//! - [`loop_device`]: attaches images, mounts volumes, and undoes both;
//! - [`volumes`]: makes volumes with mkfs.btrfs and the kernel from a specification;
//! - [`content`]: fills a mounted volume with every kind of file and metadata, from a seed;
//! - [`history`]: chains of snapshots with changes in between, from seeds or written by hand;
//! - [`ioctls`]: ioctls of a mounted btrfs;
//! - [`manifest`]: the content of a directory tree, in a form for comparisons;
//! - [`noise`]: damage to copies of a volume's devices;
//! - [`seeds`]: the seeds of random tests;
//! - [`signals`]: signals to tested programs.

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
