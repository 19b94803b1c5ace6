//! Tests of file operations on volumes made by mkfs.btrfs, checked by btrfs-progs and compared with
//! the kernel.

mod against_kernel;
mod every_operation;
mod limits;
mod many_files;
mod panics;
mod quotas;
mod steps;
mod subvolumes;
pub(crate) mod volume;
