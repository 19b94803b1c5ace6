//! File operations on volumes of mkfs.btrfs, each checked by btrfs-progs, and against the kernel.

mod against_kernel;
mod every_operation;
mod limits;
mod many_files;
mod steps;
mod subvolumes;
pub(crate) mod volume;
