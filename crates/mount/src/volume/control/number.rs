//! Numbers of control commands.
//!
//! Source: `linux/fs.h` and `linux/btrfs.h`, the kernel's interface to programs.

const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;
const BOTH: u32 = READ | WRITE;

/// Type letter of btrfs commands.
const BTRFS: u8 = 0x94;

/// Builds the number of a command as the kernel does.
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

pub(super) const FITRIM: u32 = command(READ | WRITE, b'X', 121, 24);

/// The command number says that the command only returns data; its input is at the address in its
/// argument.
pub(super) const SHUTDOWN: u32 = command(READ, b'X', 125, 4);

pub(super) const SNAP_CREATE: u32 = command(WRITE, BTRFS, 1, 4096);
pub(super) const DEFRAG: u32 = command(WRITE, BTRFS, 2, 4096);
pub(super) const SYNC: u32 = command(NONE, BTRFS, 8, 0);
pub(super) const SUBVOL_CREATE: u32 = command(WRITE, BTRFS, 14, 4096);
pub(super) const SNAP_DESTROY: u32 = command(WRITE, BTRFS, 15, 4096);
pub(super) const DEFRAG_RANGE: u32 = command(WRITE, BTRFS, 16, 48);
pub(super) const TREE_SEARCH: u32 = command(BOTH, BTRFS, 17, 4096);
/// The results follow its 112 bytes, where a FUSE server cannot write.
pub(super) const TREE_SEARCH_V2: u32 = command(BOTH, BTRFS, 17, 112);
pub(super) const INO_LOOKUP: u32 = command(BOTH, BTRFS, 18, 4096);
pub(super) const DEFAULT_SUBVOL: u32 = command(WRITE, BTRFS, 19, 8);
/// The results follow its 16 bytes, where a FUSE server cannot write; these bytes hold the number
/// of results.
pub(super) const SPACE_INFO: u32 = command(BOTH, BTRFS, 20, 16);
pub(super) const WAIT_SYNC: u32 = command(WRITE, BTRFS, 22, 8);
pub(super) const SNAP_CREATE_V2: u32 = command(WRITE, BTRFS, 23, 4096);
pub(super) const SUBVOL_CREATE_V2: u32 = command(WRITE, BTRFS, 24, 4096);
pub(super) const START_SYNC: u32 = command(READ, BTRFS, 24, 8);
pub(super) const SUBVOL_GETFLAGS: u32 = command(READ, BTRFS, 25, 8);
pub(super) const SUBVOL_SETFLAGS: u32 = command(WRITE, BTRFS, 26, 8);
pub(super) const DEV_INFO: u32 = command(BOTH, BTRFS, 30, 4096);
pub(super) const FS_INFO: u32 = command(READ, BTRFS, 31, 1024);
pub(super) const QUOTA_CTL: u32 = command(BOTH, BTRFS, 40, 16);
pub(super) const QGROUP_ASSIGN: u32 = command(WRITE, BTRFS, 41, 24);
pub(super) const QGROUP_CREATE: u32 = command(WRITE, BTRFS, 42, 16);
/// The command number says that the command only returns data, so its input does not arrive.
pub(super) const QGROUP_LIMIT: u32 = command(READ, BTRFS, 43, 48);
pub(super) const QUOTA_RESCAN: u32 = command(WRITE, BTRFS, 44, 64);
pub(super) const QUOTA_RESCAN_STATUS: u32 = command(READ, BTRFS, 45, 64);
pub(super) const QUOTA_RESCAN_WAIT: u32 = command(NONE, BTRFS, 46, 0);
pub(super) const GET_FSLABEL: u32 = command(READ, BTRFS, 49, 256);
pub(super) const SET_FSLABEL: u32 = command(WRITE, BTRFS, 50, 256);
pub(super) const GET_DEV_STATS: u32 = command(BOTH, BTRFS, 52, 1032);
pub(super) const GET_FEATURES: u32 = command(READ, BTRFS, 57, 24);
pub(super) const GET_SUBVOL_INFO: u32 = command(READ, BTRFS, 60, 504);
pub(super) const GET_SUBVOL_ROOTREF: u32 = command(BOTH, BTRFS, 61, 4096);
pub(super) const INO_LOOKUP_USER: u32 = command(BOTH, BTRFS, 62, 4096);
pub(super) const SNAP_DESTROY_V2: u32 = command(WRITE, BTRFS, 63, 4096);
