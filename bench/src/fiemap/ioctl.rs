//! Counts extents by the ioctl alone.

use anyhow::Result;
use rustix::ioctl::{Updater, ioctl, opcode};
use std::fs::File;

/// The head of the ioctl's argument, without space for extents.
///
/// Source: `include/uapi/linux/fiemap.h`.
#[repr(C)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

const FS_IOC_FIEMAP: rustix::ioctl::Opcode = opcode::read_write::<Head>(b'f', 11);

/// Returns the number of a file's extents, by an ioctl that requests none of them.
pub(crate) fn count_extents(file: &File) -> Result<u32> {
    let mut head = Head {
        start: 0,
        length: u64::MAX,
        flags: 0,
        mapped_extents: 0,
        extent_count: 0,
        reserved: 0,
    };
    // SAFETY: the operation reads and writes this head. The head requests no extents, so the kernel
    // writes nothing after it.
    unsafe { ioctl(file, Updater::<FS_IOC_FIEMAP, Head>::new(&mut head)) }?;
    Ok(head.mapped_extents)
}
