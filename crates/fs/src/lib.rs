//! btrfs as a file system: subvolumes, paths, inodes, file content, back references, space.
//!
//! The layers below read verified tree blocks and data by logical address; here their items get their meaning.
//! Everything hangs on [`Filesystem`], a cheap handle on an open volume. All calls take `&self` and may run at
//! once from any number of threads.
//!
//! | to | see |
//! |---|---|
//! | open a volume | [`OpenOptions`] in [`open`], [`Notice`] |
//! | find trees and subvolumes | [`filesystem`], [`subvolume`] |
//! | follow paths, list directories | [`lookup`], [`directory`] |
//! | see what `stat`, `lsattr`, `getfattr` show | [`inode`], [`xattrs`] |
//! | write files | [`data`] |
//! | read files | [`mod@file`] at any offset, [`reader`] as a stream, [`extents`] for their maps |
//! | see extents, data and holes as `FIEMAP` and `lseek` show them | [`fiemap`] |
//! | have extents as they are stored | [`stored`] |
//! | go over whole directory trees | [`walk`] |
//! | find who uses an address, and who shares extents | [`back_references`] |
//! | see where space went | [`space`] |
//! | find what two snapshots do not share | [`changed`] |
//! | watch and stop long jobs | [`progress`] |
//!
//! Writing goes through [`WritableFilesystem`], in [`transaction`]. A pending log tree is not replayed.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

pub mod back_references;
pub mod changed;
mod checksums;
pub mod content;
pub mod data;
pub mod directory;
pub mod error;
mod executor;
pub mod extents;
pub mod fiemap;
pub mod file;
pub mod filesystem;
pub mod inode;
mod live;
pub mod location;
pub mod lookup;
pub mod mkfs;
pub mod notice;
pub mod open;
pub mod operations;
pub mod progress;
pub mod reader;
pub mod space;
pub mod stored;
pub mod subvolume;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod transaction;
pub mod walk;
pub mod xattrs;

pub use back_references::{
    DataReference, DataReferences, Extent, ExtentUse, FileSpace, References, SHARING_BATCH, Sharing,
};
pub use changed::ChangedInodes;
pub use content::{Chunk, Content};
pub use data::{AllocateMode, DataOptions};
pub use directory::{DirEntry, ReadDir};
pub use error::{Corruption, Error, Name, Result, WritingRefusal};
pub use extents::{DiskExtent, FileExtents, FileRange, FileRangeBuilder, InlineContent, RangeKind};
pub use fiemap::{DataRuns, Fiemap, FiemapExtent, FiemapFlags};
pub use file::File;
pub use filesystem::Filesystem;
pub use inode::{DeviceNumber, FileAttributes, InodeLink, InodeRecord, Metadata};
pub use location::Location;
pub use lookup::Follow;
pub use notice::Notice;
pub use open::OpenOptions;
pub use progress::Progress;
pub use reader::FileReader;
pub use space::{DeviceSpace, GroupSpace, Space, Totals};
pub use stored::{PendingStored, StoredReader};
pub use subvolume::{SubvolumeInfo, SubvolumePlace};
pub use transaction::{Environment, SystemEnvironment, Uncommitted, WritableFilesystem, WriteOptions};
pub use walk::{Walk, WalkEntry, WalkError, WalkItem, WalkOptions, WalkOrder};
pub use xattrs::Xattr;
