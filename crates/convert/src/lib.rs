//! Converts ext2, ext3 and ext4 to btrfs in place.
//!
//! | module | holds |
//! |---|---|
//! | `options`, `source` | the inputs of a conversion |
//! | `survey` | the used bytes, and the size of the new trees |
//! | [`layout`] | which bytes of the device become which chunks |
//! | `inodes`, `records` | the items of inodes, in order |
//! | `extents`, `checksums` | content: one pass over the used bytes |
//! | `log`, `chunks`, `trees` | packed trees, and the trees that describe the volume |
//! | `prepare` | the order of all steps up to the moment of change |
//! | `publish`, `record`, `superblocks` | the moment of change, and its end after a power cut |
//! | `saved` | the saved image, and its checks |
//! | `zeros` | the holes of the old image file |
//! | `roll_back` | the way back, from the saved image |
//! | [`error`] | the reasons of a failure |
//!
//! The old content stays where it is. The new volume has the files of the old one as its top level,
//! and a read-only subvolume `ext2_saved` whose file `image` is the old file system. Both refer to
//! the same bytes.
//!
//! # Left out
//!
//! Compression, and roll backs of volumes that btrfs-convert made.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests"
    )
)]

mod checksums;
mod chunks;
pub mod error;
mod extents;
mod inodes;
pub mod layout;
mod log;
mod options;
mod prepare;
mod publish;
mod record;
mod records;
mod roll_back;
mod saved;
mod source;
mod superblocks;
mod survey;
mod trees;
mod zeros;

pub use error::{Error, Result};
pub use options::{Options, Without};
pub use prepare::{Prepared, prepare};
pub use publish::{Resumed, resume};
pub use roll_back::{RollBack, Verified};
pub use source::Source;

use buttress_format::{Generation, TreeId};

/// The generation of a new volume.
const GENERATION: Generation = Generation::new(8);

/// The subvolume with the saved image.
const SAVED_TREE: TreeId = TreeId::new(256);

/// The distance from an inode number of the old file system to the one of the new volume.
const INODE_OFFSET: u64 = 254;
