//! btrfs without the kernel: open any btrfs volume, in image files or on block devices, without root and
//! without a mount, and read everything in it exactly as the kernel would show it.
//!
//! This crate is what applications depend on. It only re-exports; the parts live in crates of their own, each
//! under its name here: [`fs`] (subvolumes, paths, files), [`tree`] (the B-trees), [`volume`] (logical addresses
//! over devices, profiles, mirrors), [`device`] (files, block devices, memory, simulated disks) and [`format`]
//! (the bytes on disk as types).
//!
//! # Reading a file
//!
//! ```no_run
//! use buttress::{Device, DeviceOptions, Follow, Location, OpenOptions, SubvolumeId};
//! use std::io::Read;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open("backup.img", &DeviceOptions::default())?;
//! let volume = OpenOptions::new(vec![device]).open()?;
//! for notice in volume.notices() {
//!     eprintln!("{notice}");
//! }
//! let top = Location::root_of(SubvolumeId::TOP_LEVEL);
//! let location = volume.resolve(top, b"etc/hostname", Follow::All)?;
//! let mut content = String::new();
//! volume.open_file(location)?.reader().read_to_string(&mut content)?;
//! # Ok(())
//! # }
//! ```
//!
//! # A device that holds no volume
//!
//! Anything at all may be opened; what is not btrfs gives an error that says so.
//!
//! ```
//! use buttress::{Device, ErrorKind, OpenOptions};
//!
//! let noise = Device::memory(vec![0xa5; 1 << 20]);
//! let error = OpenOptions::new(vec![noise]).open().unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Corrupt);
//! ```
//!
//! # Errors
//!
//! Errors are of four kinds, told apart by [`Error::kind`]: bytes on disk are wrong, a feature is not supported,
//! a device failed, or the caller asked for what is not there. [`Error::errno`] gives the number that a system
//! call would have failed with.
#![forbid(unsafe_code)]

pub use buttress_device as device;
pub use buttress_format as format;
pub use buttress_fs as fs;
pub use buttress_tree as tree;
pub use buttress_volume as volume;

pub use buttress_device::{Device, IoError, OpenOptions as DeviceOptions};
pub use buttress_format::{
    ByteCount, Compression, DeviceId, ErrorKind, FileKind, FileOffset, Generation, InodeNumber, Key, Logical,
    ObjectId, Physical, SubvolumeId, Superblock, Timestamp, TreeId,
};
pub use buttress_fs::{
    Chunk, Content, Corruption, DirEntry, Error, File, FileAttributes, FileExtents, FileRange, FileReader,
    Filesystem, Follow, InodeRecord, Location, Metadata, Notice, OpenOptions, Progress, RangeKind, ReadDir,
    Result, SubvolumeInfo, Walk, WalkEntry, WalkError, WalkItem, WalkOptions, WalkOrder, Xattr,
};
pub use buttress_tree::{ReadAhead, Tree};
pub use buttress_volume::{Rescue, Volume};
