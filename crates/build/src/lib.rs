//! Building btrfs images: whole trees in, packed volumes out, the same bytes every time.
//!
//! [`ImageBuilder`] reads the entries of any number of [`Source`]s, sorts them, and writes a volume
//! that holds them. Trees are packed and contiguous, and each block is written once. Contents are
//! adjacent on disk, in the order in which a walk over the tree reads them. The builder needs no
//! transaction, no mount and no root privileges.
//!
//! # Sorting and ownership
//!
//! Sources do not sort their entries. A source may pass on its entries in any order. The builder
//! sorts entries by path, on disk if the entries exceed the memory limit. Entries in another order
//! yield the same volume bytes. The builder also handles layers, whiteouts and hard links
//! ([`entry`] gives the rules). A source owns its input, and guarantees that contents still match
//! their entries ([`source`]). The builder owns the received entries, the worker threads, and the
//! devices.
//!
//! | module | holds |
//! |---|---|
//! | [`entry`], [`source`] | the output of a source, and the traits of sources |
//! | [`directory`] | a directory of the system as a source |
//! | [`options`], [`error`] | the options of the volume; the reasons of a failure |
//! | [`builder`] | [`ImageBuilder`] |
//! | `gather`, `ahead`, `record`, `sort_key` | entries in order, on disk if they exceed the memory |
//! | `layers`, `links`, `tree` | the merged tree of several sources, and the names of one inode |
//! | `layout` | inode numbers; items of everything except content |
//! | `emit`, `content`, `data` | the pass that reads contents, packs items, copies snapshots' roots and assigns data addresses |
//! | `sharing` | contents that are shared with the files of a source instead of copied |
//! | `blocks`, `space` | the blocks of packed trees; the places of chunks |
//! | `finish`, `write` | the trees that describe the volume; the order of writes |
//!
//! The crate `packing` sorts records and packs trees. docs/images.md describes the cooperation of
//! all modules.
//!
//! # Left out
//!
//! Zoned volumes. The built volume's quotas have no limits, and no groups above those of
//! subvolumes.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

mod ahead;
mod blocks;
pub mod builder;
mod content;
mod data;
pub mod directory;
mod emit;
pub mod entry;
pub mod error;
mod finish;
mod gather;
mod layers;
mod layout;
mod links;
mod nested;
pub mod options;
mod record;
mod sharing;
mod sort_key;
pub mod source;
mod space;
mod tree;
mod write;

pub use builder::{Gathered, ImageBuilder, Verdict};
pub use directory::{DirectorySource, data_of_file};
pub use entry::{
    Attributes, Compress, DataExtent, Entry, EntryKind, EntryPath, FileContent, LinkKey, PathProblem,
    Precedence, ShareKey, SubvolumeMark,
};
pub use error::{Error, Result};
pub use finish::derived_uuid;
pub use options::{BuildOptions, Owners, Size};
pub use source::{ContentReader, Contents, LocatorContents, MemorySource, Source, SourceError};
