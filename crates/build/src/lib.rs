//! Building btrfs images: whole trees in, packed volumes out, the same bytes every time.
//!
//! [`ImageBuilder`] takes the entries of any number of [`Source`]s, sorts them, and writes a volume that holds them: trees
//! packed and contiguous, each block written once, contents one after the other in the order in which a walk over the tree
//! reads them. No transaction, no mount, no root.
//!
//! # Who sorts, and who owns what
//!
//! Sources sort nothing. They hand over entries in any order, and the builder sorts them by path, on disk where they do not
//! fit memory; the same entries in another order give the same bytes. Layers, whiteouts and hard links are the builder's
//! matter, too ([`entry`] says how). A source owns what it reads from, and answers for it that contents are still what
//! entries told of ([`source`]). The builder owns entries once it has them, the workers, and the devices.
//!
//! | module | holds |
//! |---|---|
//! | [`entry`], [`source`] | what a source hands over, and the traits of sources |
//! | [`directory`] | a directory of the system as a source |
//! | [`options`], [`error`] | what the volume is to be like; why it failed |
//! | [`builder`] | [`ImageBuilder`] |
//! | `gather`, `ahead`, `record`, `sort`, `sort_key`, `spool` | entries in order, on disk where they do not fit memory |
//! | `layers`, `links`, `tree` | what stays of several sources, and which names are one inode |
//! | `layout` | inode numbers; items of everything but content |
//! | `emit`, `content`, `data` | the pass that reads contents, packs items, copies snapshots' roots and gives data addresses |
//! | `sharing` | contents that are shared with the files of a source instead of copied |
//! | `blocks`, `space` | packed trees; where chunks lie |
//! | `finish`, `write` | the trees that say where everything lies; the order of writes |
//!
//! docs/images.md says how they work together.
//!
//! # What is not done
//!
//! Zoned volumes. Quotas have no limits, and no groups above those of
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
pub mod options;
mod record;
mod sharing;
mod sort;
mod sort_key;
pub mod source;
mod space;
mod spool;
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
