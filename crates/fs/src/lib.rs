//! Reading btrfs as a file system: subvolumes, paths, inodes, file content.
//!
//! The layers below read verified tree blocks and data by logical address. The `fs` crate
//! interprets the items in tree blocks. [`Filesystem`], a cheap handle on an open volume, provides
//! all calls. The calls take `&self` and may run in parallel on any number of threads.
//!
//! | to | see |
//! |---|---|
//! | open a volume | [`OpenOptions`] in [`open`], [`Notice`] |
//! | find trees and subvolumes | [`filesystem`], [`subvolume`] |
//! | follow paths, list directories | [`lookup`], [`directory`] |
//! | read what `stat`, `lsattr`, `getfattr` show | [`inode`], [`xattrs`] |
//! | read files | [`mod@file`] at any offset, [`reader`] as a stream, [`extents`] for their maps |
//! | read extents in their stored form | [`stored`] |
//! | walk whole directory trees | [`walk`] |
//! | find the inodes that can differ between two snapshots | [`changed`] |
//! | query the used bytes of a chunk | [`block_groups`] |
//! | watch and cancel long jobs | [`progress`] |
//!
//! This crate edits nothing: the crate `writer` does, with the help of this one. The `writer` also
//! replays a pending log tree.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

pub mod acl;
pub mod block_groups;
pub mod changed;
pub mod checksums;
pub mod content;
pub mod directory;
pub mod error;
pub mod executor;
pub mod extents;
pub mod file;
pub mod filesystem;
pub mod inode;
pub mod location;
pub mod lookup;
pub mod notice;
pub mod open;
pub mod progress;
pub mod property;
pub mod reader;
pub mod stored;
pub mod subvolume;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod walk;
pub mod xattrs;

pub use block_groups::BlockGroups;
pub use changed::ChangedInodes;
pub use content::{Chunk, Content};
pub use directory::{DirEntry, ReadDir};
pub use error::{
    BalanceRefusal, Corruption, Defect, Error, Name, QuotaExceeded, QuotaRefusal, Result, WritingRefusal,
};
pub use extents::{DiskExtent, FileExtents, FileRange, FileRangeBuilder, InlineContent, RangeKind};
pub use file::File;
pub use filesystem::Filesystem;
pub use inode::{DeviceNumber, FileAttributes, InodeLink, InodeRecord, Metadata, NodeKind};
pub use location::Location;
pub use lookup::Follow;
pub use notice::Notice;
pub use open::view::StateRoots;
pub use open::{OpenOptions, load_chunks};
pub use progress::Progress;
pub use reader::FileReader;
pub use stored::{PendingStored, StoredReader};
pub use subvolume::{SubvolumeInfo, SubvolumePlace};
pub use walk::{Walk, WalkEntry, WalkError, WalkItem, WalkOptions, WalkOrder};
pub use xattrs::Xattr;
