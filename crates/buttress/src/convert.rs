//! Conversion of ext2, ext3 and ext4 to btrfs in place, and back.
//!
//! [`prepare`] writes the new trees to the free space of the old file system.
//! [`Prepared::publish`] then makes the device a btrfs volume. The content stays where it is, and
//! the subvolume `ext2_saved` holds the old file system as the file `image`. [`RollBack`] brings the
//! old file system back from this file. After an interruption, [`resume`] ends both of them.
//!
//! The example `convert` is a program for both ways.
//!
//! ```
//! use buttress::Device;
//! use buttress::convert::{Error, Source};
//!
//! let empty = Device::memory(vec![0; 1 << 20]);
//! let Err(Error::Ext(refusal)) = Source::read(&empty) else {
//!     panic!("an empty device was read");
//! };
//! assert!(refusal.to_string().contains("no ext2, ext3 or ext4 volume"));
//! ```
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use buttress::convert::{self, Options, RollBack, Source, Without};
//! use buttress::mkfs::Identity;
//! use buttress::{Device, DeviceOptions, Progress, Timestamp, Uuid};
//!
//! let options = DeviceOptions { write: true, ..DeviceOptions::default() };
//! let device = Device::open("disk.img", &options)?;
//! convert::resume(&device)?;
//! let source = Source::read(&device)?;
//! println!("{} of {} bytes", source.kind, source.bytes());
//!
//! let uuid = |number: u128| Uuid::from_u128(0x7000_4000_8000_0000_0000_0000_0000_0000 + number);
//! let options = Options {
//!     make: Default::default(),
//!     identity: Identity {
//!         fsid: uuid(1),
//!         chunk_tree: uuid(2),
//!         top_level: uuid(3),
//!         devices: vec![uuid(4)],
//!         time: Timestamp { seconds: 1_700_000_000, nanoseconds: 0 },
//!     },
//!     saved: uuid(5),
//!     folder: None,
//!     without: Without::default(),
//! };
//! convert::prepare(&device, &options, &Progress::new())?.publish()?;
//!
//! // The way back loses all changes since.
//! let roll_back = RollBack::find(&device)?;
//! if roll_back.commits() == 0 {
//!     roll_back.verify(&Progress::new())?.run()?;
//! }
//! # Ok(())
//! # }
//! ```

pub use buttress_convert::layout::NoSpace;
pub use buttress_convert::{
    Error, Options, Prepared, Result, Resumed, RollBack, Source, Verified, Without, prepare, resume,
};
