//! A volume as a file system that can be mounted or served.
//!
//! | module | holds |
//! |---|---|
//! | [`vfs`] | the operations of a file system as a trait: nodes, handles, names, content; independent of any protocol |
//! | [`volume`] | that trait over an open volume: subvolumes as directories, one space of inode numbers |
//! | [`fuse`] | a server of that trait for the kernel's FUSE: the protocol, mounting, threads |
//!
//! Servers of other protocols would use the same trait, beside [`fuse`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests compute with known numbers"
    )
)]

pub mod fuse;
pub mod vfs;
pub mod volume;
