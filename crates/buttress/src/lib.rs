//! btrfs without the kernel: open any btrfs volume, in image files or on block devices, without root and
//! without a mount, and read everything in it exactly as the kernel would show it.
//!
//! This crate is what applications depend on. It only re-exports; the parts live in crates of their own, each
//! under its name here: [`fs`] (subvolumes, paths, files), [`stream`] (send streams),
//! [`check`] (every cross-reference), [`tree`] (the B-trees), [`volume`] (logical addresses
//! over devices, profiles, mirrors), [`device`] (files, block devices, memory, simulated disks) and [`mod@format`]
//! (the bytes on disk as types).
//!
//! # Reading a file
//!
//! The volume here is the small one that the repository carries; `Device::open("backup.img", …)` or
//! `Device::open("/dev/sdb1", …)` opens one of your own.
//!
//! ```
//! use buttress::{Device, Follow, Location, OpenOptions, SubvolumeId};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let packed = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/tour.img.zst"))?;
//! # let image = zstd::decode_all(&packed[..])?;
//! let volume = OpenOptions::new(vec![Device::memory(image)]).open()?;
//! for notice in volume.notices() {
//!     eprintln!("{notice}");
//! }
//! let top = Location::root_of(SubvolumeId::TOP_LEVEL);
//! for entry in volume.read_dir(top)? {
//!     let entry = entry?;
//!     let metadata = volume.metadata(entry.target)?;
//!     println!("{:o} {:>8} {}", metadata.mode, metadata.size, entry.name.escape_ascii());
//! }
//! # let path = first_file(&volume, top)?;
//! # let path = path.as_slice();
//! let location = volume.resolve(top, path, Follow::All)?;
//! let file = volume.open_file(location)?;
//! let mut content = Vec::new();
//! std::io::copy(&mut file.reader(), &mut content)?;
//! assert_eq!(content.len() as u64, file.size().get());
//! # Ok(())
//! # }
//! # fn first_file(volume: &buttress::Filesystem, top: Location) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//! #     let options = buttress::WalkOptions::without_content();
//! #     for item in volume.walk(top, options) {
//! #         if let buttress::WalkItem::Entry(entry) = item
//! #             && entry.metadata().kind == buttress::FileKind::Regular
//! #             && entry.metadata().size.get() > 0
//! #         {
//! #             return Ok(entry.path());
//! #         }
//! #     }
//! #     Err("no file".into())
//! # }
//! ```
//!
//! # Reading everything
//!
//! [`Filesystem::walk`](fs::Filesystem::walk) goes over a whole directory tree, reads ahead across files and
//! tells hard links and holes; what cannot be read is an item of its own, and the walk goes on.
//!
//! ```no_run
//! use buttress::{Content, Device, DeviceOptions, Location, OpenOptions, SubvolumeId, WalkItem, WalkOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open("backup.img", &DeviceOptions::default())?;
//! let volume = OpenOptions::new(vec![device]).open()?;
//! let top = Location::root_of(SubvolumeId::TOP_LEVEL);
//! for item in volume.walk(top, WalkOptions::default()) {
//!     match item {
//!         WalkItem::Entry(mut entry) if entry.hard_link.is_none() => {
//!             let Ok(mut reader) = entry.reader() else { continue };
//!             while let Some(chunk) = reader.next_chunk()? {
//!                 match chunk.content {
//!                     Content::Data(bytes) => println!("{} bytes at {}", bytes.len(), chunk.offset),
//!                     Content::Hole => println!("a hole of {} bytes", chunk.length),
//!                     Content::Damaged(error) => eprintln!("{error}"),
//!                 }
//!             }
//!         }
//!         WalkItem::Failed(failed) => eprintln!("{failed}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Sending a snapshot
//!
//! What `btrfs receive` takes, from an image that nobody mounted: whole, or what changed since another snapshot.
//!
//! ```
//! use buttress::stream::send::{Options, Snapshot, send};
//! use buttress::{Device, OpenOptions, Progress};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let packed = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/tour.img.zst"))?;
//! # let image = zstd::decode_all(&packed[..])?;
//! let volume = OpenOptions::new(vec![Device::memory(image)]).open()?;
//! let mut snapshots = Vec::new();
//! for subvolume in volume.subvolumes()? {
//!     if subvolume.is_read_only() {
//!         snapshots.push(Snapshot::open(&volume, subvolume.id)?);
//!     }
//! }
//! let options = Options {
//!     parent: snapshots.first().cloned(),
//!     ..Options::default()
//! };
//! let mut stream = Vec::new();
//! let sent = send(&snapshots[1], &options, &mut stream, &Progress::new())?;
//! assert_eq!(sent.stream_bytes.get(), stream.len() as u64);
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

pub use buttress_check as check;
pub use buttress_device as device;
pub use buttress_format as format;
pub use buttress_fs as fs;
pub use buttress_stream as stream;
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
