//! File operations on volumes of mkfs.btrfs, each checked by btrfs-progs.

mod every_operation;
mod subvolumes;
mod volume;
