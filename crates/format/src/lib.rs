//! The bytes of btrfs as types. No I/O, no threads, no `unsafe`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers"))]

pub mod key;
pub mod units;

pub use key::{ItemType, Key};
pub use units::{
    ByteCount, DeviceId, FileOffset, Generation, InodeNumber, Logical, ObjectId, Physical, SubvolumeId,
    TreeId,
};
