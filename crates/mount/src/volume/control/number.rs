//! Numbers of control commands.
//!
//! Source: `linux/fs.h` and `linux/btrfs.h`, the kernel's interface to programs.

const WRITE: u32 = 1;
const READ: u32 = 2;

/// The number of a command, as the kernel puts it together.
const fn command(direction: u32, kind: u8, number: u8, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | (kind as u32) << 8 | number as u32
}

pub(super) const FS_IOC_GETFLAGS: u32 = command(READ, b'f', 1, 8);
pub(super) const FS_IOC_SETFLAGS: u32 = command(WRITE, b'f', 2, 8);
pub(super) const FS_IOC32_GETFLAGS: u32 = command(READ, b'f', 1, 4);
pub(super) const FS_IOC32_SETFLAGS: u32 = command(WRITE, b'f', 2, 4);
pub(super) const FS_IOC_GETVERSION: u32 = command(READ, b'v', 1, 8);
pub(super) const FS_IOC_FSGETXATTR: u32 = command(READ, b'X', 31, 28);
pub(super) const FS_IOC_FSSETXATTR: u32 = command(WRITE, b'X', 32, 28);
